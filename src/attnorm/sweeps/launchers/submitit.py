"""`launcher=submitit`: jobs of SLURM, or with submitit.cluster=local processes of this machine that imitate it."""

import os
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from attnorm.errors import ConfigError, Problem
from attnorm.imports import starting_processes
from attnorm.sweeps.jobs import Job
from attnorm.sweeps.launchers.base import Handle, Launcher
from attnorm.sweeps.process import TRAIN, Remote

DEFAULTS = {
    **{"timeout_min": 24 * 60, "slurm_max_num_timeout": 100},  # submitit's own are 5 minutes and 3 requeues
    "slurm_python": f"{shlex.quote(sys.executable)} -P",  # in a queue that does not pass variables on
}
EXECUTOR_OPTIONS = ("slurm_max_num_timeout", "slurm_python", "local_max_num_timeout", "local_python")


class Requeued(Remote):
    """A job that SLURM may interrupt and requeue.

    SLURM sends SIGUSR2 before it ends a job. The run then saves and exits, and submitit puts the job back into the
    queue, where it continues later. This also works when the sweep itself is no longer running.
    """

    def checkpoint(self) -> Any:
        """Called by submitit when SIGUSR2 arrives; returns what is put back into the queue."""
        from submitit.helpers import DelayedSubmission

        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGUSR2)
            with suppress(ChildProcessError):  # process.wait() could wait for a lock that the signal has interrupted
                os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        return DelayedSubmission(Requeued(self.job, self.program, self.cwd, self.env))


class SubmititLauncher(Launcher):
    """Submits jobs to SLURM. options: `cluster`, and parameters of submitit's AutoExecutor."""

    def __init__(self, folder: Path, options: Mapping[str, Any], jobs: int | None, program: Sequence[str] = TRAIN):
        try:
            import submitit
        except ImportError as error:
            message = "needs the package submitit; install it with: pip install submitit"
            raise ConfigError([Problem("launcher", message, "submitit")]) from error

        options = {**DEFAULTS, **options}
        cluster = options.pop("cluster", None)
        made = {name: options.pop(name) for name in EXECUTOR_OPTIONS if name in options}
        self.gpus = options.pop("gpus_per_node", None)
        try:
            self.executor = submitit.AutoExecutor(folder / "submitit", cluster=cluster, **made)
            self.executor.update_parameters(**options)
        except (AssertionError, NameError, TypeError, ValueError, RuntimeError) as error:
            raise ConfigError([Problem.about("submitit", f"submitit: {error}")]) from error
        super().__init__(jobs, program)

    def start(self, job: Job) -> Handle | None:
        gpus = self.gpus if self.gpus is not None else job.gpus
        self.executor.update_parameters(name=job.name, gpus_per_node=gpus)
        absolute = replace(job, folder=job.folder.resolve())
        with starting_processes():
            submitted = self.executor.submit(Requeued(absolute, self.program, os.getcwd(), {}))
        self.running += 1
        return _Submitted(self, job, submitted)

    def attach(self, job: Job, placed: Mapping[str, Any]) -> Handle | None:
        if placed.get("id") and self.executor.cluster == "slurm":
            from submitit import SlurmJob

            job_of_slurm: SlurmJob = SlurmJob(self.executor.folder, placed["id"])
            if not job_of_slurm.done(force_check=True):
                self.running += 1
                return _Submitted(self, job, job_of_slurm)
        return super().attach(job, placed)


class _Submitted(Handle):
    """A job in the queue of SLURM, or out of it."""

    def __init__(self, launcher: SubmititLauncher, job: Job, submitted: Any):
        super().__init__(job, {"id": submitted.job_id})
        self.launcher, self.submitted = launcher, submitted

    def has_ended(self) -> bool:
        if not self.submitted.done() or self.job.run.job_lock.holder() is not None:
            return False
        try:
            self.code = self.submitted.result()
        except Exception:  # of many kinds: it was cancelled, it ran out of time, its node failed
            self.code = 1
        self.launcher.running -= 1
        return True

    def stop(self) -> None:
        if not self.send(signal.SIGTERM):
            self.submitted.cancel(check=False)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        self.submitted.cancel(check=False)
