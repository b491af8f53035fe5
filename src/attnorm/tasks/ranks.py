"""Several processes that work on one model: their shares of a list, what they gather, and parameters kept in shards."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

Item = TypeVar("Item")


class Ranks(NamedTuple):
    """This process and all that work with it: rank `rank` of `size`."""

    rank: int = 0
    size: int = 1

    @classmethod
    def present(cls) -> "Ranks":
        """The processes of the current process group; or this process alone without a process group."""
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return cls()
        return cls(torch.distributed.get_rank(), torch.distributed.get_world_size())

    def share(self, items: Sequence[Item]) -> list[tuple[int, Item]]:
        """Every `size`-th item, starting with number `rank`, and its number. Together the ranks have each item once."""
        return [(number, items[number]) for number in range(self.rank, len(items), self.size)]

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, in their order. All ranks must call it. The values must be picklable."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        torch.distributed.all_gather_object(values, value)
        return values

    def gather_items(self, items: dict[int, Item]) -> list[Item]:
        """The items of all ranks, each under its number, in the order of the numbers."""
        merged = {number: item for of_rank in self.gather(items) for number, item in of_rank.items()}
        return [merged[number] for number in sorted(merged)]


def whole_tensor(tensor: Tensor) -> Tensor:
    """The tensor itself, or the whole tensor if each process holds a shard of it; then all processes must call it."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def is_sharded(model: nn.Module) -> bool:
    """Whether each process holds only a shard of the model's parameters (FSDP2)."""
    return bool(_shards(model))


def _shards(model: nn.Module) -> list[Any]:
    """The modules to which `torch.distributed.fsdp.fully_shard` was applied, the outermost first."""
    if not torch.distributed.is_available():
        return []
    from torch.distributed.fsdp import FSDPModule

    return [module for module in model.modules() if isinstance(module, FSDPModule)]


@contextmanager
def gathered(model: nn.Module) -> Iterator[None]:
    """Within this context, each process holds all parameters of a sharded model. Other models are left as they are.

    Forward passes then need no communication, so that their number may differ between the processes, and methods other
    than `forward` can be called. All processes must enter the context together. Parameters must not be updated in it.
    """
    shards = _shards(model)
    for module in shards:
        module.set_reshard_after_forward(False, recurse=False)
        module.unshard()
    try:
        yield
    finally:
        for module in shards:
            module.set_reshard_after_forward(module is not shards[0], recurse=False)
            module.reshard()
