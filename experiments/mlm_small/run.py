"""Masked language modelling beyond the plateau with tuned rates and six seeds.

    python experiments/mlm_small/run.py --texts <folder of novels>
    python experiments/mlm_small/run.py --texts <folder> --seeds 110 111 112 --folder t --out t.csv -- task.max_steps=9

Repeat the command to continue where it stopped. Overrides after `--` apply to all runs.
"""

import argparse
import math
import shlex
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from bounds import BELOW, claim, decide, tables_of, write_claims
from sweeps import ROOT, report
from tuned import add_options, by_arm, print_tuned_cost, tuned_sweep
from verdicts import write_verdicts

ARMS = ("softmax", "dnas", "hnas")
RATES = (1.5e-3, 3e-3, 6e-3)
TUNING_SEEDS, SEEDS = (100, 101), tuple(range(110, 116))
CLAIMS = [
    *(claim(name, arm, "softmax", "loss", BELOW) for name, arm in (("P1", "dnas"), ("P2", "hnas"))),
    claim("P1", "dnas", "softmax", "loss", (-0.12, -0.03)),
    claim("P2", "hnas", "softmax", "loss", (-0.13, -0.04)),
    claim("P3", "dnas", "softmax", "loss", (-0.102, math.inf)),
    claim("P3", "hnas", "softmax", "loss", (-0.118, math.inf)),
]
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
    runs = tuned_sweep(args.folder, args, ARMS, "experiment=mlm_small", f"data.files=[{args.texts.resolve()}]")
    command = shlex.join(["python", "experiments/mlm_small/run.py", *sys.argv[1:]])
    write_verdicts([args.folder], args.out, command, metrics=["accuracy"])
    tables = tables_of(by_arm(runs), ["loss"], "validation")
    write_claims(args.out.with_name(f"{args.out.stem}_predictions.csv"), decide(CLAIMS, tables))
    report(args.folder)


if __name__ == "__main__":
    main()
