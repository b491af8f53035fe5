"""Writes headlines: python generate.py run=<run folder> input=<file or ->"""

import sys

from attnorm.cli.main import run

if __name__ == "__main__":
    sys.exit(run("generate", sys.argv[1:]))
