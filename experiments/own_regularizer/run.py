"""A regularizer of one's own beside softmax, sparsemax and fusedmax, at the cross-attention of headline generation.

    python experiments/own_regularizer/run.py                          # 6 arms x 3 seeds on the built-in corpus, CPU
    python experiments/own_regularizer/run.py --seeds 1 -- task.max_steps=50 task.validations=1

The regularizer is the class in softcap.py; edit it, or name another one with --own. Repeat the command to continue
where it stopped. Overrides after `--` apply to all runs.
"""

import argparse
import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])  # of the runs
from sweeps import ROOT, report, several, spread, sweep, table, values_of  # noqa: E402

OWN = "softcap.SoftCap"
CLOSED = ("softmax", "sparsemax", "fusedmax")
NULL = ("uniform", "none")  # what remains without scores, and without cross-attention
SETTINGS = ["task=gigaword", "attention=softmax"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--own", default=OWN, help="package.module.Class of a RegularizedMax")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--folder", type=Path, default=ROOT / "logs" / "own_regularizer", help="of the sweep")
    parser.add_argument("overrides", nargs="*", help="behind --: for every run, and keys of the sweep such as jobs=2")
    args = parser.parse_args()

    arms = [*CLOSED, args.own, *NULL]
    runs = sweep(
        args.folder, *SETTINGS, f"attention.cross={several(arms)}", f"seed={several(args.seeds)}", *args.overrides
    )
    metrics = [*runs[0].metrics]
    rows = [[arm, *map(spread, values_of(runs, metrics, **{"attention.cross": arm}))] for arm in arms]
    print(f"\n{table(['', *metrics], rows)}")
    report(args.folder)


if __name__ == "__main__":
    main()
