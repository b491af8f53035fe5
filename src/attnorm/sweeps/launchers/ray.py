"""`launcher=ray`: jobs as tasks of Ray, on this machine or on a Ray cluster."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from attnorm.errors import ConfigError, Problem
from attnorm.sweeps.jobs import Job
from attnorm.sweeps.launchers.base import Handle, Launcher
from attnorm.sweeps.process import TRAIN, Remote


class RayLauncher(Launcher):
    """Starts jobs as tasks of Ray. options: arguments of `ray.init`."""

    def __init__(self, options: Mapping[str, Any], jobs: int | None, program: Sequence[str] = TRAIN):
        try:
            import ray
        except ImportError as error:
            message = "needs the package ray; install it with: pip install ray"
            raise ConfigError([Problem("launcher", message, "ray")]) from error

        super().__init__(jobs, program)
        self.ray = ray
        path = {"PYTHONPATH": os.environ["PYTHONPATH"]} if os.environ.get("PYTHONPATH") else {}
        defaults = {"include_dashboard": False, "log_to_driver": False, "runtime_env": {"env_vars": path}}
        try:
            ray.init(**{**defaults, **options})
        except (TypeError, ValueError, RuntimeError, ConnectionError) as error:
            raise ConfigError([Problem.about("ray", f"ray: {str(error).splitlines()[0]}")]) from error

    def start(self, job: Job) -> Handle | None:
        remote = Remote(replace(job, folder=job.folder.resolve()), self.program, os.getcwd(), {})
        task = self.ray.remote(num_cpus=job.devices, num_gpus=job.gpus, max_retries=0)(run)
        self.running += 1
        return _Task(self, job, task.remote(remote))

    def close(self) -> None:
        self.ray.shutdown()


def run(remote: Remote) -> int:
    """What a worker of Ray executes."""
    return remote()


class _Task(Handle):
    """A task of Ray."""

    def __init__(self, launcher: RayLauncher, job: Job, reference: Any):
        super().__init__(job)
        self.launcher, self.reference = launcher, reference

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
