"""What normalizers of transport plans share: the plan of each set of queries with the same keys, and the prior."""

from collections.abc import Callable

import torch
from torch import Tensor

from attnorm.attention.normalizers.base import Given, add_log_prior, softmax_over_keys
from attnorm.attention.visible import queries_with_the_same_keys


def plan_of_all(s: Tensor, given: Given, plan: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """w_ij = sum_j' p_ij' u_j p_ij / sum_j' u_j' p_ij', with the plan p of the set of queries that i is in.

    Queries that may see the same keys have a plan of their own: padding is in none, and packed texts have one each.

    s:    masked scores (B, H, N, M). Only their mask is used.
    plan: maps such queries and their keys, bool (B, 1 or H, N) and (B, 1 or H, M), to their plan, (B, H, N, M). It is 0
          for all others.
    """
    plans = torch.zeros_like(s)
    for queries, keys in queries_with_the_same_keys(given.mask, s):
        plans = plans + plan(queries, keys)
    if given.log_prior is None:
        return plans
    # a lower bound that is next to 0, because the gradient of the logarithm of 0 would be NaN
    log_plans = plans.clamp(min=torch.finfo(s.dtype).tiny).log().masked_fill(s == -torch.inf, -torch.inf)
    return plans.sum(-1, keepdim=True) * softmax_over_keys(add_log_prior(log_plans, given.log_prior))
