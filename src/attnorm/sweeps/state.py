"""What is known about the jobs of a sweep.

There are two sources, and they never say the same thing twice. The run folder of a job tells how far the run came
(`run.folder`). The file jobs.jsonl in the sweep folder tells what the sweep did: a line per event, only appended.
"""

import json
import os
import time
from collections import Counter, defaultdict
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any

from attnorm.errors import naming
from attnorm.run.folder import EVENTS, FURTHER, TUNE, RunState
from attnorm.sweeps.jobs import Job, job_folder

SWEEP_LOCK = "sweep.lock"


class JobState(StrEnum):
    """The state of a job; as of its run folder, except that a job waits before it starts."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    KILLED = "killed"


class Journal:
    """The events of a sweep, in order: dicts with "event", "time" (seconds since 1970) and "name" (of a job).

    | event | meaning | further values |
    |---|---|---|
    | open | a process took over the sweep | command |
    | job | a job was added | key, label, overrides, and purpose if it has one |
    | aside | it is no longer part of the sweep: other values or seeds are tuned, or another is best | |
    | tuned | the best values were chosen | worst (names of failed jobs that count as the worst) |
    | start | a process of the job is about to be started | attempt |
    | place | it was started | what the launcher needs to find it again |
    | end | the process was seen to have ended | code, state, why, failure |
    | state | values were chosen, or the sweep begins or ends | see `sweeps.job_record` |
    | close | the process that had opened the sweep ended by itself | code |
    """

    def __init__(self, folder: Path, deferred: bool = False):
        self.folder, self.path = folder, folder / EVENTS
        self.waiting: list[bytes] | None = [] if deferred else None
        self.reload()

    def begin(self) -> None:
        """Writes what has been added to a deferred journal: until now, the sweep might have been refused."""
        lines, self.waiting = self.waiting or [], None
        for line in lines:
            self._append(line)

    def reload(self) -> None:
        """Reads the file again. A last line that was being written when the process was killed is left out."""
        self.by_name: dict[str, list[dict[str, Any]]] = defaultdict(list)
        # how many processes of each job failed since the last "close", which a sweep that was killed has not added
        self.failed: Counter[str] = Counter()
        self.worst: set[str] = set()  # failed jobs that count as the worst of their tuning
        if self.path.exists():
            for line in self.path.read_bytes().splitlines():
                with suppress(ValueError, RecursionError):
                    if is_event(content := json.loads(line)):
                        self._note(content)

    def add(self, event: str, name: str | None = None, **values: Any) -> None:
        """Appends an event to the file."""
        content = {"event": event, "time": round(time.time(), 3), **({"name": name} if name else {}), **values}
        self._note(content)
        line = json.dumps(content, ensure_ascii=False).encode() + b"\n"
        if self.waiting is None:
            self._append(line)
        else:
            self.waiting.append(line)

    def _append(self, line: bytes) -> None:
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            with naming(self.path):
                size = os.fstat(descriptor).st_size
                torn = size and os.pread(descriptor, 1, size - 1) != b"\n"
                os.write(descriptor, b"\n" + line if torn else line)
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _note(self, content: dict[str, Any]) -> None:
        self.by_name[content.get("name", "")].append(content)
        if content["event"] == "tuned":
            self.worst = {name for name in content["worst"] if isinstance(name, str)}
        elif content["event"] == "close":
            self.failed.clear()
        elif content["event"] == "end" and content.get("failure"):
            self.failed[content["name"]] += 1

    def of(self, name: str, *kinds: str) -> list[dict[str, Any]]:
        """The events of a job, of these kinds."""
        return [event for event in self.by_name.get(name, ()) if event["event"] in kinds]

    def added(self) -> list[dict[str, Any]]:
        """The events "job"."""
        return [event for events in self.by_name.values() for event in events if event["event"] == "job"]

    def jobs(self) -> list[Job]:
        """The jobs that have been added and not set aside."""
        jobs = []
        for event in (self.of(name, "job")[-1] for name in self.by_name if self.has(name)):
            name, purpose = event["name"], event.get("purpose", "")
            folder = job_folder(self.folder, name, purpose)
            jobs.append(Job(name, event["key"], event["label"], tuple(event["overrides"]), folder, purpose=purpose))
        return jobs

    def has(self, name: str) -> bool:
        """Whether a job has been added and not set aside."""
        return [event["event"] for event in self.of(name, "job", "aside")[-1:]] == ["job"]

    def seconds(self, name: str) -> float:
        """The time that the processes of the job took, as far as their ends were seen."""
        total, started = 0.0, None
        for event in self.of(name, "start", "end"):
            if event["event"] == "start":
                started = event["time"]
            elif started is not None:
                total, started = total + event["time"] - started, None
        return total

    def last_end(self, name: str) -> dict[str, Any]:
        """The last event "end" of the job if no process was started after it; otherwise {}."""
        events = self.of(name, "start", "end")
        return events[-1] if events and events[-1]["event"] == "end" else {}


def is_event(content: Any) -> bool:
    """Whether a line of the file is an event. The names of jobs are those of folders in the sweep folder."""
    if not isinstance(content, dict) or not isinstance(content.get("time"), (int, float)):
        return False
    texts = ("event", *(("name", "key", "label") if content.get("event") == "job" else ()))
    name = content.get("name", "")
    return (
        all(isinstance(content.get(key), str) for key in texts)
        and isinstance(name, str)
        and name not in (".", "..")
        and Path(name).name == name
        and (content["event"] != "job" or isinstance(content.get("overrides"), list))
        and content.get("purpose", "") in ("", TUNE, "compare", FURTHER)
        and (content["event"] != "tuned" or isinstance(content.get("worst"), list))
    )


def is_held(job: Job) -> bool:
    """Whether a process of the job lives. Its lock is taken before the process starts, and the process inherits it."""
    return job.run.job_lock.holder() is not None or job.run.state is RunState.RUNNING


def state_of_job(job: Job, journal: Journal) -> JobState:
    """The state of a job."""
    if is_held(job):
        return JobState.RUNNING
    if (state := job.run.state) is RunState.ABSENT:
        return JobState.FAILED if journal.last_end(job.name).get("failure") else JobState.WAITING
    return JobState(state)


def holders(lock: Path) -> list[int]:
    """The numbers of the processes of this machine that have a lock file open, as far as they may be looked at."""
    holding: set[int] = set()
    with suppress(OSError):  # there is no such file, or no /proc
        wanted = os.stat(lock)
        for pid in {int(name) for name in os.listdir("/proc") if name.isdigit()} - {os.getpid()}:
            with suppress(OSError):  # it has ended, or belongs to somebody else
                for name in os.listdir(f"/proc/{pid}/fd"):
                    with suppress(OSError):  # this file has been closed
                        if os.path.samestat(os.stat(f"/proc/{pid}/fd/{name}"), wanted):
                            holding.add(pid)
    return sorted(holding)
