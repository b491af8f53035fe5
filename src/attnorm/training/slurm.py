"""Jobs of SLURM."""

import logging
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from attnorm.errors import Interrupted

log = logging.getLogger(__name__)


def job_id() -> str | None:
    """The id of the SLURM job that this process belongs to, <array>_<task> for one of a job array; None outside."""
    array, task = (os.environ.get(f"SLURM_ARRAY_{name}_ID") for name in ("JOB", "TASK"))
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID")


@contextmanager
def requeued(enabled: bool) -> Iterator[None]:
    """Requeues the job after a run that SIGUSR1 or SIGUSR2 has interrupted, once everything else of it is closed."""
    try:
        yield
    except Interrupted as stopped:
        if enabled and stopped.signal_number in (signal.SIGUSR1, signal.SIGUSR2):
            requeue()
        raise


def requeue() -> None:
    """Puts the job of this process back into the queue. A failure is a warning, because the run has been saved."""
    job = job_id()
    if job is None or os.environ.get("SLURM_PROCID", "0") != "0":
        return
    try:
        subprocess.run(["scontrol", "requeue", job], check=True, capture_output=True, text=True, timeout=60)
        log.info("requeued the SLURM job %s", job)
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip()
        log.warning("could not requeue the SLURM job %s: %s", job, said)
