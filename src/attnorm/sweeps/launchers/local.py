"""`launcher=local`: jobs as processes of this machine, each on cores and GPUs of its own."""

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from attnorm.sweeps.forkserver import Forked, ForkServer, takes_in_orphans
from attnorm.sweeps.jobs import Job
from attnorm.sweeps.launchers.base import Handle, Launcher
from attnorm.sweeps.process import TRAIN, command_of, environment_of, shell_code, start_process

# Jobs of a sweep in SLURM, and those whose threads are bound to cores as PyTorch is imported, start fresh.
UNSHARED = {"SLURM_JOB_ID", "OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"}
GRACE = 30.0  # seconds that what a run has forked may outlive it


@dataclass(frozen=True)
class Place:
    """Where a job runs: its cores, and the GPUs that it sees."""

    slot: int
    cores: tuple[int, ...]
    gpus: tuple[str, ...]


class Places:
    """Divides cores and GPUs among so many jobs at once.

    With more jobs than cores, or than GPUs, several jobs share one.
    """

    def __init__(self, jobs: int, cores: Sequence[int], gpus: Sequence[str] = ()):
        self.jobs, self.cores, self.gpus = jobs, sorted(cores), list(gpus)
        self.free = list(range(jobs))
        self.used: Counter[str] = Counter()
        self.most = -(-jobs // len(gpus)) if gpus else 0  # jobs per GPU, rounded up

    def cores_of(self, slot: int) -> tuple[int, ...]:
        """The cores of one of the `jobs` slots: consecutive ones, and about as many for each slot."""
        count = len(self.cores)
        if self.jobs >= count:
            return (self.cores[slot % count],)
        return tuple(self.cores[slot * count // self.jobs : (slot + 1) * count // self.jobs])

    def take(self, gpus: int = 0, before: Mapping[str, Any] | None = None) -> Place | None:
        """A free place with so many GPUs, those that the fewest jobs use; None if all are taken.

        before: the slot and the GPUs that the job has if it is already running; they are preferred.
        """
        slot, had = (before or {}).get("slot"), (before or {}).get("gpus", ())
        open_to = [gpu for gpu in self.gpus if self.used[gpu] < self.most]
        if not self.free or len(open_to) < gpus:
            return None
        chosen = sorted(open_to, key=lambda gpu: (gpu not in had, self.used[gpu]))[:gpus]
        number = slot if slot in self.free else self.free[0]
        self.free.remove(number)
        self.used.update(chosen)
        return Place(number, self.cores_of(number), tuple(chosen))

    def give_back(self, place: Place) -> None:
        """Makes a place free again."""
        self.free = sorted([*self.free, place.slot])
        self.used.subtract(place.gpus)


class LocalLauncher(Launcher):
    """Starts jobs as processes of this machine, forked from a server if they can be."""

    def __init__(self, places: Places, program: Sequence[str] = TRAIN):
        super().__init__(places.jobs, program)
        self.places = places
        self.servers: dict[frozenset[tuple[str, str]], ForkServer] = {}
        self.forks = self.program == TRAIN and UNSHARED.isdisjoint(os.environ) and takes_in_orphans()

    def has_room(self, job: Job | None = None) -> bool:
        place = self.places.take(job.gpus if job else 0)
        if place is None:
            return False
        self.places.give_back(place)
        server = self.server_of(job, place) if job else None
        return server is None or server.is_ready()

    def server_of(self, job: Job, place: Place) -> ForkServer | None:
        """The server from which a job starts; None if it needs a fresh process."""
        if not self.forks or job.uses_gpu or job.devices > 1:
            return None
        env = environment_of(job, environment(job, place))
        key = frozenset(env.items())  # on 7 cores, two jobs differ in the number of their threads
        if key not in self.servers:
            self.servers[key] = ForkServer(env)
        return self.servers[key]

    def start(self, job: Job) -> Handle | None:
        lock = job.run.job_lock
        if not lock.acquire():
            return None
        place = self.places.take(job.gpus)
        assert place is not None, "start() without has_room()"
        env, server = environment(job, place), self.server_of(job, place)
        process = start_process(job, command_of(job, self.program), lock, env, place.cores, server)
        return _Child(job, process, self.places, place)

    def attach(self, job: Job, placed: Mapping[str, Any]) -> Handle | None:
        handle = super().attach(job, placed)
        place = self.places.take(job.gpus, placed) if handle else None
        return handle if place is None else _Counted(job, self.places, place)

    def close(self) -> None:
        for server in self.servers.values():
            server.close()


def environment(job: Job, place: Place) -> dict[str, str]:
    """The environment variables of a job at a place: as many threads per process as it has cores."""
    threads = max(1, len(place.cores) // job.devices)
    asked = os.environ.get("OMP_NUM_THREADS", "")
    threads = min(threads, int(asked)) if asked.isdigit() and int(asked) else threads
    gpus = {"CUDA_VISIBLE_DEVICES": ",".join(place.gpus)} if place.gpus else {}
    return {"OMP_NUM_THREADS": str(threads), **gpus}


class _Counted(Handle):
    """A job that an earlier sweep has started, at a place of this one."""

    def __init__(self, job: Job, places: Places, place: Place):
        super().__init__(job, {"slot": place.slot, "gpus": list(place.gpus)})
        self.places, self.place = places, place

    def has_ended(self) -> bool:
        if not super().has_ended():
            return False
        self.places.give_back(self.place)
        return True


class _Child(Handle):
    """A job that this process has started."""

    def __init__(self, job: Job, process: subprocess.Popen | Forked, places: Places, place: Place):
        super().__init__(job, {"slot": place.slot, "gpus": list(place.gpus)})
        self.process, self.places, self.place = process, places, place
        self.ended_at: float | None = None

    def has_ended(self) -> bool:
        if (returncode := self.process.poll()) is None:
            return False
        self.ended_at = self.ended_at or time.monotonic()
        if self.job.run.job_lock.holder() is not None:  # something that the run has forked is left
            if time.monotonic() - self.ended_at > GRACE:
                self.kill()
            return False
        self.code = shell_code(returncode)
        self.places.give_back(self.place)
        return True

    def stop(self) -> None:
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
