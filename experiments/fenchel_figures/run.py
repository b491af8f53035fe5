"""How far attention is from the inference problem that it approximates: Figures 4 to 8 of the Fenchel paper.

    python experiments/fenchel_figures/run.py --text <lines of text>                              # CPU
    python experiments/fenchel_figures/run.py --text <lines of text> --models <BERT folder> <T5 folder>

Trains small encoders by masked language modelling on the text, as a sweep, and measures the deviation in them and in
the given models. Repeat the command to continue where it stopped. Overrides after `--` apply to all runs.
"""

import argparse
import csv
import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from sweeps import NOTHING, ROOT, figures, report, several, sweep, table

PRETRAINING = ["task=mlm", "model=bert_tiny", "task.max_steps=1200", "optimizer.lr=3e-3", "data.batch_tokens=2048"]
OF_MODELS = ("fenchel_fig4", "fenchel_fig5", "fenchel_fig6", "fenchel_fig7", "fenchel_fig8")
OF_RUNS = ("fenchel_fig4", "fenchel_fig5")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--text", type=Path, required=True, help="file with one text per line; it is trained on as well"
    )
    parser.add_argument(
        "--models", type=Path, nargs="+", help="folders of a BERT and a T5; default as `attnorm figures`"
    )
    parser.add_argument("--arms", nargs="+", default=["softmax", "dnas", "hnas"], help="attention=<arm>")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--lines", type=int, default=2, help="number of lines that each model reads")
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "logs" / "fenchel_figures", help="of the sweep and figures"
    )
    parser.add_argument("overrides", nargs="*", help="behind --: for every run, and keys of the sweep such as jobs=2")
    args = parser.parse_args()

    text = args.text.resolve()
    data = ["data=text", f"data.files=[{text}]", "data.document=line", "data.holdout=0.05"]
    arms = [f"attention={several(args.arms)}", f"seed={several(args.seeds)}"]
    runs = sweep(args.folder / "runs", *PRETRAINING, *data, *arms, *args.overrides)
    models = [f"model=[{','.join(str(model.resolve()) for model in args.models)}]"] if args.models else []
    shared = [f"text={text}", f"lines={args.lines}"]
    figures(args.folder / "models", *OF_MODELS, *models, *shared)
    folders = f"runs=[{','.join(str(it.folder) for it in runs)}]"
    for name in OF_RUNS:  # one at a time, as `attnorm figures` requires for runs
        figures(args.folder / "own", name, folders, *shared)

    arms_by_run = {it.folder.name: f"{it.settings['attention']}, seed {it.settings['seed']}" for it in runs}
    means = layer_means(args.folder / "models") | layer_means(args.folder / "own", arms_by_run)
    layers = max(map(len, means.values()))
    rows = [[name, *(f"{it:.3f}" for it in its), *[NOTHING] * (layers - len(its))] for name, its in means.items()]
    rows.append(["the paper: BERT and T5-small, no values stated", *["small"] * layers])
    print(f"\n{table(['mean deviation by layer', *map(str, range(layers))], rows)}")
    report(args.folder / "runs")


def layer_means(folder: Path, names: Mapping[str, str] | None = None) -> dict[str, list[float]]:
    """The mean deviation of each layer, by model and stack, from the numbers of Figure 4. names: of models."""
    found: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    with open(folder / "fenchel_fig4.csv", newline="") as file:
        for row in csv.DictReader(file):
            name = (names or {}).get(row["model"], row["model"])
            found[f"{name}: {row['stack']}"][int(row["layer"])].append(float(row["deviation"]))
    return {name: [*map(statistics.mean, its.values())] for name, its in found.items()}


if __name__ == "__main__":
    main()
