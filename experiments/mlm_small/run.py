"""Masked language modelling beyond the plateau with tuned rates and six seeds.

    python experiments/mlm_small/run.py --texts <folder of novels>
    python experiments/mlm_small/run.py --texts <folder> --seeds 110 --tuning-seeds 100 --out v.csv -- task.max_steps=9

Repeat the command to continue where it stopped. Overrides after `--` apply to all runs.
"""

import argparse
import shlex
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from sweeps import ROOT, report
from tuned import add_options, print_tuned_cost, tuned_sweep
from verdicts import write_verdicts

ARMS = ("softmax", "dnas", "hnas")
RATES = (1.5e-3, 3e-3, 6e-3)
TUNING_SEEDS, SEEDS = (100, 101), tuple(range(110, 116))
UPDATES = 4000  # of experiment=mlm_small
SECONDS = {"softmax": 0.12, "dnas": 0.24, "hnas": 0.24}  # of an update: the longest wall times of the first experiment
OTHERS = 60  # CPU seconds of a run besides its updates, not measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, required=True, help="folder of novels")
    add_options(parser, RATES, TUNING_SEEDS, SEEDS)
    parser.add_argument("--folder", type=Path, default=ROOT / "logs" / "mlm_small_power", help="of the sweep")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("verdicts_power.csv"), help="the CSV file")
    args = parser.parse_args()
    print_tuned_cost(args, SECONDS, UPDATES, OTHERS)
    tuned_sweep(args.folder, args, ARMS, "experiment=mlm_small", f"data.files=[{args.texts.resolve()}]")
    command = shlex.join(["python", "experiments/mlm_small/run.py", *sys.argv[1:]])
    write_verdicts([args.folder], args.out, command, metrics=["accuracy"])
    report(args.folder)


if __name__ == "__main__":
    main()
