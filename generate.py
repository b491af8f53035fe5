"""Writes headlines: python generate.py run=<run folder> input=<file or ->"""

import sys
from pathlib import Path

from attnorm.cli.commands import run_door

if __name__ == "__main__":
    sys.exit(run_door(Path(__file__).parent.resolve() / "conf", "generate"))
