"""What the first process decides for all, such as the run folder, before they are connected for training.

Processes that torchrun or SLURM has started have no common environment variables that tell them. They meet where
`torch.distributed` will connect them: at the address and port of its store of keys and values.
"""

import os
from collections.abc import Callable

import torch
from torch.distributed import Store

from attnorm.tasks.ranks import Ranks
from attnorm.training.environment import is_first_rank

_stores: list[Store] = []  # kept, since the first process serves it to the others until training starts
DECIDED: dict[str, str] = {}  # environment variables of the processes that the first one starts


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


def decided_by_first(name: str, decide: Callable[[], str]) -> str:
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
