"""`launcher=ray`: jobs as tasks of Ray, on this machine or on a Ray cluster."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from attnorm.errors import ConfigError, Problem
from attnorm.sweeps.jobs import Job
from attnorm.sweeps.launchers.base import Attached, Handle
from attnorm.sweeps.process import TRAIN, Remote


class RayLauncher:
    """Starts jobs as tasks of Ray.

    options: arguments of `ray.init`.
    jobs:    how many tasks may be running or waiting at once; None for no limit.
    """

    def __init__(self, options: Mapping[str, Any], jobs: int | None, program: Sequence[str] = TRAIN):
        try:
            import ray
        except ImportError as error:
            message = "needs the package ray; install it with: pip install ray"
            raise ConfigError([Problem("launcher", message, "ray")]) from error

        self.ray, self.program, self.jobs, self.running = ray, program, jobs, 0
        path = {"PYTHONPATH": os.environ["PYTHONPATH"]} if os.environ.get("PYTHONPATH") else {}
        defaults = {"include_dashboard": False, "log_to_driver": False, "runtime_env": {"env_vars": path}}
        try:
            ray.init(**{**defaults, **options})
        except (TypeError, ValueError, RuntimeError, ConnectionError) as error:
            raise ConfigError([Problem.about("ray", f"ray: {str(error).splitlines()[0]}")]) from error

    def has_room(self, job: Job | None = None) -> bool:
        return self.jobs is None or self.running < self.jobs

    def start(self, job: Job) -> Handle | None:
        absolute = replace(job, folder=job.folder.resolve())
        remote = Remote(absolute, tuple(self.program), os.getcwd(), {})
        task = self.ray.remote(num_cpus=job.devices, num_gpus=job.gpus, max_retries=0)(run)
        self.running += 1
        return _Task(self, job, task.remote(remote))

    def attach(self, job: Job, placed: Mapping[str, Any]) -> Handle | None:
        handle = Attached(job)
        return None if handle.has_ended() else handle

    def close(self) -> None:
        self.ray.shutdown()


def run(remote: Remote) -> int:
    """What a worker of Ray executes."""
    return remote()


class _Task:
    """A task of Ray."""

    def __init__(self, launcher: RayLauncher, job: Job, reference: Any):
        self.launcher, self.job, self.reference = launcher, job, reference
        self.code: int | None = None
        self.placed: dict[str, Any] = {}

    def has_ended(self) -> bool:
        ray = self.launcher.ray
        ready, _ = ray.wait([self.reference], timeout=0)
        if not ready or self.job.run.job_lock.holder() is not None:
            return False
        try:
            self.code = ray.get(self.reference)
        except Exception:  # of many kinds: it was cancelled, its worker or its node died
            self.code = 1
        self.launcher.running -= 1
        return True

    def stop(self) -> None:
        self.launcher.ray.cancel(self.reference)

    def kill(self) -> None:
        self.launcher.ray.cancel(self.reference, force=True)
