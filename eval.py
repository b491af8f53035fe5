"""Scores a run: python eval.py run=<run folder> [split=test]"""

import sys

from attnorm.cli.main import run

if __name__ == "__main__":
    sys.exit(run("eval", sys.argv[1:]))
