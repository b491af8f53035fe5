"""Floating-point operations: how many a model needs per token."""

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from attnorm.attention.multihead import observe
from attnorm.data.loader import ResumableLoader
from attnorm.data.sampler import MicroBatch
from attnorm.tasks.module import TaskModule
from attnorm.training.callbacks.attention_stats import in_evaluation

QUANTILES = (0.1, 0.5, 0.9)  # of the lengths of the training examples that are counted
FORWARD_AND_BACKWARD = 3  # the backward pass has two products for each one of the forward pass


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
