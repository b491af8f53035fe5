"""The processes of a run: what the first one decides for all, and the job of SLURM.

Processes that torchrun or SLURM has started have no common environment variables that tell them what the first one has
decided. They meet where `torch.distributed` will connect them: at the address and port of its store of keys and values.
"""

import contextlib
import ctypes
import logging
import os
import signal
import subprocess
from collections.abc import Callable, Iterator

import torch
from torch.distributed import Store

from attnorm.errors import Interrupted
from attnorm.tasks.ranks import Ranks

log = logging.getLogger(__name__)

PR_SET_PDEATHSIG = 1
DECIDED: dict[str, str] = {}  # environment variables of the processes that the first one starts
_stores: list[Store] = []  # kept, since the first process serves it to the others until training starts


def is_first_rank() -> bool:
    """Whether this process is the first of a distributed run, or the only one; known before there is a trainer."""
    from pytorch_lightning.utilities import rank_zero_only

    return getattr(rank_zero_only, "rank", 0) == 0  # Lightning sets the attribute when it is imported


def started_together() -> Ranks | None:
    """This process and those that torchrun or SLURM has started with it; None if it started alone."""
    if not torch.distributed.is_available():
        return None
    from lightning_fabric.plugins.environments import SLURMEnvironment, TorchElasticEnvironment

    for environment in (TorchElasticEnvironment, SLURMEnvironment):
        if environment.detect():
            cluster = environment()
            _ = cluster.main_address, cluster.main_port  # sets the variables MASTER_ADDR and MASTER_PORT if needed
            ranks = Ranks(cluster.global_rank(), cluster.world_size())
            return ranks if ranks.size > 1 else None
    return None


def decided_by_first_rank(name: str, decide: Callable[[], str]) -> str:
    """The text that `decide` returns on the first rank, which the others get from it.

    Processes that torchrun or SLURM has started wait for it. Those that the first rank starts itself later find it in
    an environment variable.
    """
    ranks = started_together()
    if ranks is None:
        variable = f"ATTNORM_{name.upper()}"
        if is_first_rank():
            DECIDED[variable] = decide()
        return (os.environ | DECIDED)[variable]

    from torch.distributed.rendezvous import rendezvous

    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # torchrun keeps the store when it restarts processes
    key = f"attnorm/{attempt}/{name}"
    if not _stores:
        store, _, _ = next(rendezvous("env://", ranks.rank, ranks.size))
        _stores.append(store)
    if ranks.rank == 0:
        _stores[0].set(key, decide())
    return _stores[0].get(key).decode()


def was_launched() -> bool:
    """Whether torchrun, or the first process of this machine, started this process."""
    by_first = os.environ.get("LOCAL_RANK", "0") != "0" and "SLURM_PROCID" not in os.environ
    return by_first or "TORCHELASTIC_RUN_ID" in os.environ


def end_with_parent(number: int) -> None:
    """Asks the kernel (Linux) to send this signal to this process when the process that started it ends."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


@contextlib.contextmanager
def slurm_requeue(enabled: bool) -> Iterator[None]:
    """Requeues the job of SLURM after a run that SIGUSR1 or SIGUSR2 has interrupted, once everything else is closed."""
    try:
        yield
    except Interrupted as stopped:
        if enabled and stopped.signal_number in (signal.SIGUSR1, signal.SIGUSR2):
            requeue()
        raise


def requeue() -> None:
    """Puts the job of this process back into the queue of SLURM, if there is one. A failure is a warning, because the
    run has been saved."""
    array, task = (os.environ.get(f"SLURM_ARRAY_{name}_ID") for name in ("JOB", "TASK"))
    job = f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID")
    if job is None or os.environ.get("SLURM_PROCID", "0") != "0":
        return
    try:
        subprocess.run(["scontrol", "requeue", job], check=True, capture_output=True, text=True, timeout=60)
        log.info("requeued the SLURM job %s", job)
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip()
        log.warning("could not requeue the SLURM job %s: %s", job, said)
