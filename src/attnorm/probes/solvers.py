"""Solvers of probes without training, as ceilings."""

import torch
from torch import Tensor

from attnorm.probes.base import Batch


def assignment(batch: Batch) -> Tensor:
    """The share of queries, (B,), answered by the one-to-one assignment with the largest sum of q'k - |k|^2 / 2.

    For queries that are keys plus normal noise, it is the most likely permutation. The numbers of queries and keys must
    be equal, or there are fewer queries.
    """
    from scipy.optimize import linear_sum_assignment

    fit = batch.queries @ batch.keys.transpose(-2, -1) - batch.keys.square().sum(-1)[:, None, :] / 2
    chosen = torch.stack([torch.as_tensor(linear_sum_assignment(one.numpy(), maximize=True)[1]) for one in fit])
    return right(batch, chosen)


def nearest(batch: Batch) -> Tensor:
    """The share of queries, (B,), answered by the nearest key."""
    return right(batch, torch.cdist(batch.queries, batch.keys).argmin(-1))


def right(batch: Batch, chosen: Tensor) -> Tensor:
    """The share of queries, (B,), whose chosen key, int (B, N), has the label that was asked for."""
    answers = batch.values.argmax(-1).gather(1, chosen)
    return (answers == batch.targets).float().mean(1)
