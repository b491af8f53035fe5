"""Trains one model on one task with one attention normalizer: python train.py attention=hnas task=gigaword"""

import sys

from attnorm.cli.main import run

if __name__ == "__main__":
    sys.exit(run("train", sys.argv[1:]))
