"""What attention weights and states look like: entropy, sinks, column mass, rank, similarity and outliers.

Each function measures one layer. Padding does not count: a query is live if it may see at least one key, and a key is
live if at least one query may see it. A measure of an example in which it is not defined is NaN.

`weights` are attention weights (B, H, N, M). `allowed` is the mask, a bool tensor broadcastable to the weights (True =
may attend), or None. `states` are (..., N, W), and `live`, bool (..., N), says which of their rows count.
"""

import torch
from torch import Tensor

from attnorm.attention.normalizers.base import upcast
from attnorm.attention.normalizers.sinkhorn import marginal_error

SINK = 0.3  # mean mass above which a key is a sink


def allowed_pairs(weights: Tensor, allowed: Tensor | None) -> Tensor:
    """The mask in the shape of the weights, bool (B, H, N, M)."""
    return torch.ones_like(weights, dtype=torch.bool) if allowed is None else allowed.expand(weights.shape)


# ------------------------------------------------------------------------------------------------------------- weights


def normalized_entropy(weights: Tensor, allowed: Tensor | None = None) -> Tensor:
    r"""-sum_j p_ij log p_ij / log n_i with p_ij = |w_ij| / sum_j' |w_ij'|, the mean over live queries, (B, H).

    n_i is the number of keys that query i may see. The value is 0 if each query attends to one key, and 1 if it attends
    to all keys alike. Queries that may see a single key have no choice and are left out.
    """
    weights, allowed = upcast(weights).abs(), allowed_pairs(weights, allowed)
    p = weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
    count = allowed.sum(-1).to(p.dtype)  # (B, H, N)
    each = -torch.special.xlogy(p, p).sum(-1) / count.clamp(min=2).log()
    return masked_mean(each, count > 1)


def mean_mass(weights: Tensor, allowed: Tensor | None = None) -> Tensor:
    """sum_i w_ij / N: the mass on each key, averaged over the N live queries, (B, H, M)."""
    live = allowed_pairs(weights, allowed).any(-1).sum(-1, keepdim=True)  # (B, H, 1)
    return upcast(weights).sum(-2) / live


def first_mass(weights: Tensor, allowed: Tensor | None = None) -> Tensor:
    """`mean_mass` of the first live key, (B, H): the share of the attention on the first token of a text."""
    live = allowed_pairs(weights, allowed).any(-2)  # (B, H, M)
    first = live.int().argmax(-1, keepdim=True)
    return mean_mass(weights, allowed).gather(-1, first).squeeze(-1).masked_fill(~live.any(-1), torch.nan)


def sink_rate(weights: Tensor, allowed: Tensor | None = None, threshold: float = SINK) -> Tensor:
    """The share of heads whose mean mass on a key exceeds the threshold, for each key, (B, M).

    Source: "When Attention Sink Emerges in Language Models" (arXiv 2410.10781), with its threshold 0.3. There,
    the mean is over the queries that may see the key; here it is over all live queries, which is the same for the first
    key of causal attention. So the masses of a head sum to 1, and late keys that few queries see are no sinks.
    """
    return (mean_mass(weights, allowed) > threshold).float().mean(1)


def column_mass(weights: Tensor, allowed: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The smallest and the largest column mass sum_i w_ij of the live keys, (B, H) each.

    Source: "Doubly-Normalized Attention", Lemma 1. Doubly normalized weights keep the smallest one above 1/M.
    """
    mass, live = upcast(weights).sum(-2), allowed_pairs(weights, allowed).any(-2)  # (B, H, M)
    least, most = (mass.masked_fill(~live, fill) for fill in (torch.inf, -torch.inf))
    none = ~live.any(-1)
    return least.amin(-1).masked_fill(none, torch.nan), most.amax(-1).masked_fill(none, torch.nan)


def row_error(weights: Tensor, allowed: Tensor | None = None) -> Tensor:
    """max_i |sum_j w_ij - 1| over the live queries, (B, H): how far the rows are from distributions."""
    live = allowed_pairs(weights, allowed).any(-1)  # (B, H, N)
    largest = ((upcast(weights).sum(-1) - 1).abs() * live).amax(-1)
    return largest.masked_fill(~live.any(-1), torch.nan)


# -------------------------------------------------------------------------------------------------------------- states


def effective_rank(states: Tensor, live: Tensor | None = None) -> Tensor:
    """exp(-sum_k p_k log p_k) with p_k = sigma_k / sum sigma and the singular values sigma of the states, (...).

    It is between 1, if all rows are multiples of one vector, and the number of rows or columns. The singular values of
    attention weights give the effective rank of a head.

    Source: "The Effective Rank: a Measure of Effective Dimensionality" (Roy and Vetterli, 2007).
    """
    x, _ = live_rows(states, live)
    finite = x.isfinite().all(-1).all(-1)
    sigma = torch.linalg.svdvals(torch.where(finite[..., None, None], x, 0.0))
    p = sigma / sigma.sum(-1, keepdim=True)
    return (-torch.special.xlogy(p, p).sum(-1)).exp()


def distance_to_rank_one(states: Tensor, live: Tensor | None = None) -> Tensor:
    """||X - 1 x'|| / ||X||: how far the rows of the states are from being equal, between 0 and 1, (...).

    x is the mean of the rows, which minimizes the Frobenius norm, the norm used here. Pure attention without residual
    connections drives this distance to 0 doubly exponentially in the number of layers.

    Source: "Attention is not all you need: pure attention loses rank doubly exponentially with depth" (arXiv
    2103.03404), with another norm.
    """
    x, live = live_rows(states, live)
    mean = x.sum(-2, keepdim=True) / live.sum(-1)[..., None, None]
    residual = (x - mean) * live.unsqueeze(-1)
    return residual.flatten(-2).norm(dim=-1) / x.flatten(-2).norm(dim=-1)


def mean_cosine(states: Tensor, live: Tensor | None = None) -> Tensor:
    """The mean cosine of the angle between the states of two different live positions, (...). 1: all point one way.

    Source: "How Contextual are Contextualized Word Representations?" (arXiv 1909.00512), the self-similarity of all
    tokens of a text.
    """
    x, live = live_rows(states, live)
    x = x / x.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)
    n = live.sum(-1)
    among_all = x.sum(-2).square().sum(-1)  # sum over all ordered pairs, those of a position with itself included
    with_itself = x.square().sum((-2, -1))
    return ((among_all - with_itself) / (n * (n - 1))).masked_fill(n < 2, torch.nan)


def kurtosis(states: Tensor, live: Tensor | None = None) -> Tensor:
    """E[(x - mean)^4] / E[(x - mean)^2]^2 over all entries of the live states, (...). A normal distribution has 3.

    Large values are a sign of outlier activations.

    Source: "Quantizable Transformers: Removing Outliers by Helping Attention Heads Do Nothing" (arXiv 2306.12929).
    """
    x, live = live_rows(states, live)
    count = live.sum(-1) * states.shape[-1]
    centered = (x - (x.sum((-2, -1)) / count)[..., None, None]) * live.unsqueeze(-1)
    second, fourth = (centered.pow(power).sum((-2, -1)) / count for power in (2, 4))
    return fourth / second.square()


def largest_activation(states: Tensor, live: Tensor | None = None) -> Tensor:
    """max |x| over all entries of the live states, (...): "Massive Activations in LLMs" (arXiv 2402.17762)."""
    x, live = live_rows(states, live)
    return x.abs().amax((-2, -1)).masked_fill(~live.any(-1), torch.nan)


# --------------------------------------------------------------------------------------------------------- all at once


def head_measures(weights: Tensor, allowed: Tensor | None = None) -> dict[str, Tensor]:
    """The measures of the attention weights by name, (B, H) each."""
    least, most = column_mass(weights, allowed)
    mass = mean_mass(weights, allowed)
    return {
        "entropy": normalized_entropy(weights, allowed),
        "sink_mass": mass.amax(-1),
        "first_mass": first_mass(weights, allowed),
        "sink": (mass.amax(-1) > SINK).float(),
        "column_mass_min": least,
        "column_mass_max": most,
        "marginal_error": marginal_error(upcast(weights), allowed),
        "row_error": row_error(weights, allowed),
        "effective_rank": effective_rank(weights),  # the rows of padded queries are 0
    }


def state_measures(states: Tensor, live: Tensor | None = None) -> dict[str, Tensor]:
    """The measures of states (B, N, W) by name, (B,) each."""
    return {
        "effective_rank": effective_rank(states, live),
        "rank_one_distance": distance_to_rank_one(states, live),
        "cosine": mean_cosine(states, live),
        "kurtosis": kurtosis(states, live),
        "largest": largest_activation(states, live),
    }


# -------------------------------------------------------------------------------------------------------------- shared


def live_rows(states: Tensor, live: Tensor | None) -> tuple[Tensor, Tensor]:
    """The states in float32 or wider, with 0 in rows that do not count, and the rows that count, bool (..., N)."""
    if live is None:
        return upcast(states), torch.ones(states.shape[:-1], dtype=torch.bool, device=states.device)
    return upcast(states).masked_fill(~live.unsqueeze(-1), 0.0), live


def masked_mean(values: Tensor, counts: Tensor) -> Tensor:
    """The mean of the values (..., N) that count, (...); NaN if none does."""
    return values.masked_fill(~counts, 0.0).sum(-1) / counts.sum(-1)
