"""Flat against hierarchical attention with softmax, dnas, hnas and uniform weights: which novel is a passage from?

    python experiments/hierarchical/run.py --texts <folder of novels>
    python experiments/hierarchical/run.py --texts <folder of novels> --seeds 1 -- task.max_steps=20
    python experiments/hierarchical/run.py --texts <folder of novels> --names                # names are not masked

Repeat the command to continue where it stopped. Overrides after `--` apply to all runs.
"""

import argparse
import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from sweeps import ROOT, Run, report, several, spread, sweep, table, values_of

MODELS = {"flat": "flat_tiny", "hierarchical": "hierarchical_tiny"}
ATTENTIONS = ("softmax", "dnas", "hnas", "uniform")
RECIPE = [
    *("task=document_classification", "data=base", "data._target_=attnorm.experiments.hierarchical.passages.Passages"),
    *("data.words=100", "task.max_steps=600"),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, required=True, help="a folder of text files, one per label")
    parser.add_argument("--names", action="store_true", help="keep the names of people and places")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument(
        "--folder", type=Path, help="of the sweep; default logs/hierarchical or logs/hierarchical_names"
    )
    parser.add_argument("overrides", nargs="*", help="behind --: for every run, and keys of the sweep such as jobs=2")
    args = parser.parse_args()

    folder = args.folder or ROOT / "logs" / ("hierarchical_names" if args.names else "hierarchical")
    data = [f"data.folder={args.texts.resolve()}", f"data.mask_names={str(not args.names).lower()}"]
    arms = [f"model={several(MODELS.values())}", f"attention={several(ATTENTIONS)}", f"seed={several(args.seeds)}"]
    runs = sweep(folder, *RECIPE, *data, *arms, *args.overrides)
    print(f"\n{results(runs)}")
    for name, model in MODELS.items():
        if of_model := [run.folder for run in runs if run.settings["model"] == model]:
            report(*of_model, out=folder / f"report_{name}.html")


def results(runs: list[Run]) -> str:
    """A Markdown table with a row per model and normalizer: accuracy, loss, number of parameters, and hours."""
    rows = []
    for name, model in MODELS.items():
        for attention in ATTENTIONS:
            settings = {"model": model, "attention": attention}
            accuracy, loss = values_of(runs, ["accuracy", "loss"], **settings)
            facts = [summary(run) for run in runs if settings.items() <= run.settings.items()]
            minutes = [it["wall_seconds"] / 60 for it in facts]
            parameters = f"{facts[0]['parameters']:,}" if facts else spread([])
            rows.append([f"{name}, {attention}", spread(accuracy), spread(loss, 3), parameters, spread(minutes, 1)])
    [(label, scores), *_] = runs[0].baselines.items()
    rows.append([label, spread([scores["accuracy"]]), *[spread([])] * 3])
    return table(["", "accuracy", "loss", "parameters", "minutes"], rows)


def summary(run: Run) -> dict:
    """The summary of a run."""
    return json.loads((run.folder / "summary.json").read_text())


if __name__ == "__main__":
    main()
