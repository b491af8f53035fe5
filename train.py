"""Trains one model on one task with one attention normalizer: python train.py attention=hnas task=gigaword"""

import sys
from pathlib import Path

from attnorm.cli.train import run_train

if __name__ == "__main__":
    sys.exit(run_train(Path(__file__).parent.resolve() / "conf"))
