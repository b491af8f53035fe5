"""Helpers for tests that run sweeps of stand-ins."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from attnorm.sweeps.job_record import recorded

DRIVER = Path(__file__).with_name("driver.py")
SOURCE = Path(__file__).parents[2] / "src"


def begin(cwd, *arguments):
    """Starts a sweep in the background."""
    paths = [str(SOURCE), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return subprocess.Popen(
        [sys.executable, str(DRIVER), *arguments],
        cwd=cwd,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def end(process, code=0):
    """The output of a sweep that is expected to end with this exit code."""
    output, _ = process.communicate(timeout=60)
    assert process.returncode == code, output
    return output


def sweep(cwd, *arguments, code=0):
    """Runs a sweep to its end and returns its output."""
    return end(begin(cwd, *arguments), code)


def kill(process):
    """kill -9, for the sweep alone."""
    os.kill(process.pid, signal.SIGKILL)
    process.wait(timeout=60)  # not until its output ends: a controller of submitit has it as well


def wait_for(condition, seconds=30.0):
    """Waits until a condition holds."""
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.005)
    return found


def steps(folder):
    """The number of steps that all jobs have made so far."""
    return sum(len(path.read_text().splitlines()) for path in Path(folder).glob("*/steps.txt"))


def attempts(folder):
    """The attempts of each job, in order of the jobs' names: [[{"pid": 1, "resumed": false, ...}], ...]."""
    files = sorted(Path(folder).glob("*/attempts.txt"))
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def events(folder, *kinds):
    """The events of jobs.jsonl."""
    lines = (Path(folder) / "jobs.jsonl").read_text().splitlines()
    return [it for it in map(json.loads, lines) if not kinds or it["event"] in kinds]


def report(folder):
    """The state that a sweep has recorded last."""
    return recorded(Path(folder))


def assert_each_once(folder, jobs, updates):
    """Each job has made each of its steps exactly once, in order, and has finished; no job ever ran twice at a time."""
    files = list(Path(folder).glob("*/steps.txt"))
    assert len(files) == jobs
    for file in files:
        assert file.read_text().split() == [str(number) for number in range(updates)], file
    assert not (Path(folder) / "doubled.txt").exists()
    content = report(folder)
    assert content["unfinished"] == 0 and [it["state"] for it in content["jobs"]] == ["finished"] * jobs
