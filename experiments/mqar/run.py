"""The smallest published cell of multi-query associative recall: 64 tokens, 4 pairs, width 64.

    python experiments/mqar/run.py

Trains three seeds at one learning rate, and prints the accuracy of each on the test examples.
"""

import argparse
from pathlib import Path

import torch

from attnorm.probes.jobs import Cell, ProbeJob, load, run, save


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", nargs="+", default=["softmax"])
    parser.add_argument("--rate", type=float, default=1e-2)
    parser.add_argument("--updates", type=int, default=600)
    parser.add_argument("--seeds", type=int, nargs="+", default=[110, 111, 112])
    parser.add_argument("--folder", type=Path, default=Path("logs/mqar"))
    args = parser.parse_args()

    torch.set_num_threads(1)
    for arm in args.arms:
        job = ProbeJob(Cell("mqar", "64x64"), arm, tuple(args.seeds), (args.rate,), False, {}, args.updates)
        if (result := load(job, args.folder)) is None:
            result = run(job)
            save(job, result, args.folder)
        accuracy = result.scores[64].mean(1)
        print(f"{arm}: {', '.join(f'{it:.4f}' for it in accuracy)}; {result.seconds / 60:.1f} core-minutes of training")


if __name__ == "__main__":
    main()
