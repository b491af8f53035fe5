"""Captions of rendered scenes with a content preference, a uniform preference, the mean of all cells, and no attention.

    python experiments/captioning/run.py                      # 4 arms x 3 seeds, on a CPU
    python experiments/captioning/run.py --seeds 1 2 3 4 5
    python experiments/captioning/run.py --model transformer_captioner

Repeat the command to continue where it stopped. Overrides after `--` apply to all runs.
"""

import argparse
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from sweeps import ROOT, Run, report, several, spread, sweep, table, values_of

ARMS = {  # the attention of each arm
    "content preference": "preference",
    "uniform preference": "softmax",
    "mean of all cells": "uniform",
    "no attention": "none",
}
RECIPE = ["task=captioning", "task.max_steps=6000"]
METRICS = {"CIDEr-D": "CIDEr-D", "BLEU-4": "BLEU-4", "rougeL": "ROUGE-L", "loss": "loss"}
DRAWN = ("validation-0", "validation-1", "validation-2")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="lstm_captioner", help="lstm_captioner or transformer_captioner")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--folder", type=Path, help="of the sweep; default logs/captioning_<model>")
    parser.add_argument("overrides", nargs="*", help="behind --: for every run, and keys of the sweep such as jobs=2")
    args = parser.parse_args()
    folder = args.folder or ROOT / "logs" / f"captioning_{args.model}"
    swept = [f"attention={several(ARMS.values())}", f"seed={several(args.seeds)}"]
    runs = sweep(folder, *RECIPE, f"model={args.model}", *swept, *args.overrides)
    rows = [[arm, *map(spread, values_of(runs, list(METRICS), attention=name))] for arm, name in ARMS.items()]
    same = runs[0].baselines["the most frequent caption"]  # of all runs
    rows.append(["one caption for all", *(spread([same[it]] if it in same else []) for it in METRICS)])
    print(f"\n{table(['', *METRICS.values()], rows)}")
    draw(runs, args.seeds[0])
    report(folder)


def draw(runs: list[Run], seed: int) -> None:
    """One picture per word, for the runs of one seed that attend to something."""
    from attnorm.analysis.captions import draw_words, looks
    from attnorm.analysis.loaded_run import load_run

    for it in runs:
        if it.settings["seed"] == str(seed) and it.settings["attention"] in ("preference", "softmax"):
            run = load_run(it.folder)
            for example in DRAWN:
                found = looks(run, example)
                title = f"{it.settings['attention']}: {found.caption}"
                target = it.folder / "figures" / f"words_{example}.png"
                draw_words(found, title).savefig(target, dpi=150)
                print(f"figure: {target}")


if __name__ == "__main__":
    main()
