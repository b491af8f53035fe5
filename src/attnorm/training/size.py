"""How large a run is: the parameters and operations of its model, and the tokens of an update."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from attnorm.attention.multihead import observe
from attnorm.data.loader import ResumableLoader
from attnorm.data.sampler import MicroBatch, TokenBatches
from attnorm.errors import DataError
from attnorm.settings import Settings
from attnorm.tasks.module import TaskModule
from attnorm.tasks.task import task_of
from attnorm.training.callbacks.attention_stats import in_evaluation

ROWS = 256  # training examples whose tokens are counted
QUANTILES = (0.1, 0.5, 0.9)  # of the lengths of the training examples that are counted
FORWARD_AND_BACKWARD = 3  # the backward pass has two products for each one of the forward pass


@dataclass(frozen=True)
class Size:
    """The size of a run.

    parameters:        those of matrix products, the output matrix included.
    flops_per_token:   see `flops_per_token`.
    tokens:            the mean number of real tokens of an update.
    updates_per_epoch: updates in one pass over the training data.
    validation:        updates before the first validation, if `trainer.val_check_interval` sets them; otherwise 1.
    """

    parameters: int
    flops_per_token: float
    tokens: float
    updates_per_epoch: int
    validation: int


class MatricesUsed(TorchDispatchMode):
    """Notes the parameters that enter matrix products. An embedding enters none unless it is the output matrix, too."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in flop_registry:
            self.storages |= {arg.untyped_storage().data_ptr() for arg in args if hasattr(arg, "untyped_storage")}
        return func(*args, **(kwargs or {}))

    def parameters_of(self, module: TaskModule) -> int:
        """The number of parameters that have been noted; a parameter that several modules share counts once."""
        matrices = (part for part in module.model.parameters() if part.ndim > 1)  # a bias enters addmm, too
        return sum(part.numel() for part in matrices if part.untyped_storage().data_ptr() in self.storages)


def size_of(config: Settings) -> Size:
    """The size of a run, from its prepared data, which are prepared if they are not, and its model on the CPU.

    The seed has no influence on it. Raises DataError if its model has no matrix products.
    """
    task = task_of(config)
    splits = task.splits()
    train, tokenizer = splits["train"], splits["train"].tokenizer
    module = task.module(task.model(tokenizer), tokenizer, splits["validation"])
    accumulation, devices = config.trainer.accumulate_grad_batches, config.trainer.devices
    ranks = devices if isinstance(devices, int) and devices > 0 else 1
    sampler = TokenBatches(
        train.lengths, config.data.batch_tokens, weights=train.weights, accumulation=accumulation, ranks=ranks
    )
    loader = ResumableLoader(task.collator(train), sampler)
    with MatricesUsed() as used:
        flops = flops_per_token(module, loader)
    if flops is None:
        raise DataError(f"task={config.task.name}: the model has no matrix products, so it has no rungs")
    updates, interval = len(sampler) // accumulation, config.trainer.val_check_interval
    return Size(
        parameters=used.parameters_of(module),
        flops_per_token=flops,
        tokens=float(tokens_in(module, loader) / updates),
        updates_per_epoch=updates,
        validation=max(
            1, round(interval * updates) if isinstance(interval, float) else (interval or 1) // accumulation
        ),
    )


def tokens_in(module: TaskModule, loader: ResumableLoader) -> float:
    """The number of real tokens of all training examples. They are counted in evenly spaced examples of all lengths,
    and are as many in the others, in proportion to their lengths."""
    lengths = loader.sampler.lengths.sum(1)
    order = np.argsort(lengths, kind="stable")
    rows = order[np.linspace(0, len(order) - 1, min(ROWS, len(order))).round().astype(int)]
    counted = sum(int(module.tokens(loader.dataset[MicroBatch([int(row)], 1)])) for row in rows)
    return counted * lengths.sum() / lengths[rows].sum()


def flops_per_token(task: TaskModule, loader: ResumableLoader) -> float | None:
    """The floating-point operations of one token in training: 3 times those of the matrix products in a forward pass.

    They are counted by `torch.utils.flop_counter` for three training examples (a short one, the median and a long one),
    without padding, and with the dense form of attention. So the number is a property of the model and the data, and
    kernels that recompute values do not look faster than they are. None if there is nothing to count.

    The random generators are left as they were.
    """
    order = np.argsort(loader.sampler.lengths.sum(1), kind="stable")
    rows = [int(order[int(quantile * len(order))]) for quantile in QUANTILES]
    device, tokens = next(task.model.parameters()).device, 0
    counter = FlopCounterMode(display=False)
    forked = torch.random.fork_rng([device] if device.type == "cuda" else [])
    with torch.no_grad(), forked, in_evaluation(task.model), observe(task.model, lambda *_: None), counter:
        for row in rows:
            batch = {name: tensor.to(device) for name, tensor in loader.dataset[MicroBatch([row], 1)].items()}
            task.loss(batch)
            tokens += int(task.tokens(batch))
    operations = FORWARD_AND_BACKWARD * counter.get_total_flops()
    return operations / tokens if tokens and operations else None
