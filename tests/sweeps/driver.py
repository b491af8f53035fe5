"""`python driver.py <arguments>` is `attnorm sweep <arguments>` with jobs that take milliseconds: see standin.py.

With FORKED=1 in the environment, a server forks them if it can.
"""

import hashlib
import json
import os
import sys
from pathlib import Path

from attnorm.cli import sweep
from attnorm.sweeps import forkserver, planner, process
from attnorm.sweeps.check import CheckedJob, Sized
from attnorm.sweeps.jobs import as_typed
from attnorm.sweeps.launchers import local

PROGRAM = (sys.executable, str(Path(__file__).with_name("standin.py")))


class NoChecker:
    """Finds every job to be fine, and gives it a key without composing it."""

    def __init__(self, folders):
        pass

    def close(self):
        pass

    def check(self, jobs):
        free = ("tags=", "run.")  # keys that do not change what is trained
        texts = [" ".join(sorted(it for it in as_typed(job) if not it.startswith(free))) for job in jobs]
        keys = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
        typed = [dict(it.split("=", 1) for it in as_typed(job) if "=" in it) for job in jobs]
        known = {"task": "fake", "log_dir": "logs", "monitor": "val/loss", "mode": "min"}
        return [CheckedJob(key=key, problems=wrong(its), **known) for key, its in zip(keys, typed, strict=True)]

    def sizes(self, jobs):
        """The sizes follow from the width."""
        widths = [int(it.partition("=")[2]) for job in jobs for it in job if it.startswith("++model.d_model=")]
        return [Sized(width, 1.0, 1.0, updates_per_epoch=9999) for width in widths]


def wrong(typed):
    """A stand-in for a problem: x must not be larger than `upper`."""
    upper = typed.get("upper", "inf")
    return [("x", f"x={typed['x']}: at most {upper}")] if float(typed.get("x", 0)) > float(upper) else []


if __name__ == "__main__":
    sweep.Checker = NoChecker
    planner.TRAIN = PROGRAM
    if os.environ.get("FORKED"):
        forkserver.SERVER = process.TRAIN = local.TRAIN = PROGRAM
    sweep.write_report_of_sweep = lambda folder: None  # what the stand-ins write is no run
    sweep.values_to_try = lambda *_: [tuple(it) for it in json.loads(os.environ.get("FURTHER", "[]"))]
    sys.exit(sweep.run_sweep(sys.argv[1:]))
