"""Stands in for `attnorm train` in tests of the sweep: a run that takes milliseconds, with the same files, lock, exit
codes and answers to signals as a real one.

    steps=<number>      updates, each of which is appended to steps.txt
    pause=<seconds>     time that each update takes
    broken=<number>     so many attempts fail after half of the updates (exit code 1)
    code=<number>       every attempt ends at once with this exit code
    hang=true           signals are ignored
    center=<number>     the value of x with the best metric
    diverges=<number>   a run with at least this x fails
    start=<seconds>     time before the run has its lock, such as for imports

With the number of a socket as its only argument, it is the server that forks such runs.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from attnorm.cli import fork_jobs
from attnorm.cli import main as command
from attnorm.errors import SIGNALS
from attnorm.run.folder import FolderLock

SETTINGS = {"seed": 1, "task": {"name": "a"}, "model": {}, "attention": {}, "data": {}, "optimizer": {"lr": 1}}
LIGHT = ("numpy", "torch")  # what the server imports


def main(arguments):
    typed = dict(it.lstrip("+").split("=", 1) for it in arguments if "=" in it)
    resumed = "resume" in typed
    folder = Path(typed["resume"] if resumed else typed["hydra.run.dir"])
    if resumed:
        typed = json.loads((folder / "run.json").read_text())["typed"]
    time.sleep(float(typed.get("start", 0)))
    if "code" in typed:
        print("error: this job cannot be run")
        return int(typed["code"])
    lock = FolderLock(folder)
    if not lock.acquire() or (not resumed and (folder / "run.json").exists()):
        with open(folder.parent / "doubled.txt", "a") as file:
            print(folder.name, file=file)
        return 1
    (folder / "run.json").write_text(json.dumps({"format": 1, "settings": SETTINGS, "typed": typed}))
    with open(folder / "attempts.txt", "a") as file:
        cores, threads = sorted(os.sched_getaffinity(0)), os.environ.get("OMP_NUM_THREADS")
        way = {"resumed": resumed, "forked": fork_jobs.PRELOADED == LIGHT}
        print(json.dumps({"pid": os.getpid(), "cores": cores, "threads": threads, **way}), file=file)
    attempts = len((folder / "attempts.txt").read_text().splitlines())

    def stop(number, _):
        finish(folder, "interrupted", "SIGTERM")
        os._exit(128 + number)

    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN if typed.get("hang") else stop)
    steps, path = int(typed.get("steps", 3)), folder / "steps.txt"
    done = len(path.read_text().splitlines()) if path.exists() else 0
    for step in range(done, steps):
        time.sleep(float(typed.get("pause", 0.01)))
        diverges = float(typed.get("x", 0)) >= float(typed.get("diverges", "inf"))
        if (attempts <= int(typed.get("broken", 0)) or diverges) and step >= steps // 2:
            finish(folder, "failed", "it was told to fail")
            return 1
        note(folder, step, steps, typed)
    finish(folder, "finished", None, value=value_of(typed))
    return 0


def value_of(typed):
    """The metric: smallest for x=0.3, or x=<center>."""
    x = float(typed.get("x", 0))
    return (x - float(typed.get("center", 0.3))) ** 2 + float(typed.get("shift", 0))


def note(folder, step, steps, typed):
    with open(folder / "steps.txt", "a") as file:
        print(step, file=file)
    with open(folder / "metrics.csv", "a") as file:
        if not file.tell():
            print("step,val/loss", file=file)
        print(f"{step + 1},{value_of(typed)}", file=file)
    progress = {"step": step + 1, "updates": steps, "monitor": "val/loss", "value": value_of(typed)}
    write(folder, {"state": "running", "progress": {**progress, "best_value": None, "seconds_left": 1}})


def finish(folder, state, why, value=None):
    path = folder / "summary.json"
    progress = json.loads(path.read_text()).get("progress", {}) if path.exists() else {}
    write(folder, {"state": state, "why": why, "monitor": "val/loss", "best_value": value, "progress": progress})


def write(folder, summary):
    (folder / "summary.unfinished").write_text(json.dumps(summary))
    os.replace(folder / "summary.unfinished", folder / "summary.json")


if __name__ == "__main__":
    if sys.argv[1].isdigit():
        fork_jobs.PRELOADED = LIGHT
        command.main = lambda: main(sys.argv[2:])
        sys.exit(fork_jobs.main())
    sys.exit(main(sys.argv[1:]))
