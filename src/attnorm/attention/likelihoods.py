"""What attention optimizes according to the papers: mixture likelihoods, transport objectives, and Fenchel duality.

[D] "Doubly-Normalized Attention"; [F] "Attention as Inference via Fenchel Duality".

Scores are s_ij = q_i' k_j in [D]. Queries and keys whose scores are scale q_i' k_j are therefore multiplied by
sqrt(scale) first, and D below is the width of a head. `allowed` is the mask, a bool tensor broadcastable to (B, H, N,
M), or None, and sums are over allowed pairs. Everything is computed in float64 and without gradients.
"""

import math
import warnings

import torch
from torch import Tensor

from attnorm.attention.normalizers.base import add_log_prior, logsumexp_over_queries, masked_scores
from attnorm.attention.normalizers.fenchel import solve
from attnorm.attention.normalizers.sinkhorn import logsumexp_over_keys, marginal_error

# ------------------------------------------------------------------------------------------------------------ mixtures


@torch.no_grad()
def mixture_log_likelihood(
    data: Tensor, centers: Tensor, allowed: Tensor | None = None, log_weights: Tensor | None = None
) -> Tensor:
    """log sum_c a_c N(x | c, 1) for each point x of the data, (B, H, N): a mixture of Gaussians of variance 1.

    data, centers: (B, H, N, D) and (B, H, M, D). allowed: which centers each point may come from, (B, H, N, M).
    log_weights:   (B, H, M), log a_c up to a constant; the weights are normalized over the allowed centers. By default,
                   a_c is proportional to exp(|c|^2 / 2), as in [D]. The responsibilities of the centers are then
                   proportional to exp(x'c), the numerators of attention.

    The result is NaN for a point without allowed centers.
    """
    x, c = data.double(), centers.double()
    log_a = c.square().sum(-1) / 2 if log_weights is None else log_weights.double()
    pairs = x @ c.mT - x.square().sum(-1)[..., :, None] / 2 - c.square().sum(-1)[..., None, :] / 2  # -|x - c|^2 / 2
    log_a = log_a[..., None, :].expand(pairs.shape)
    joint, prior = (log_sum(masked_scores(terms, allowed)) for terms in (pairs + log_a, log_a))
    return joint - prior - x.shape[-1] / 2 * math.log(2 * math.pi)


def query_log_likelihood(q: Tensor, k: Tensor, allowed: Tensor | None = None, scale: float = 1.0) -> Tensor:
    """log sum_j a_j N(q_i | k_j, 1), (B, H, N): the terms of [D] Eq. 2, in which the keys generate the queries.

    One update by softmax attention moves a query to the stationary point of its term (Eq. 4).
    """
    root = math.sqrt(scale)
    return mixture_log_likelihood(root * q.double(), root * k.double(), allowed)


def key_log_likelihood(q: Tensor, k: Tensor, allowed: Tensor | None = None, scale: float = 1.0) -> Tensor:
    """log sum_i b_i N(k_j | q_i, 1), (B, H, M): the terms of [D] Eq. 5, in which the queries generate the keys.

    One update by doubly-normalized attention is one step of expectation maximization in the queries, with the weights
    b_i kept as they are (Eq. 8). It never decreases the sum of these terms.
    """
    return query_log_likelihood(k, q, None if allowed is None else allowed.mT, scale)


# ----------------------------------------------------------------------------------------------------------- transport


@torch.no_grad()
def transport_objective(
    weights: Tensor, scores: Tensor, allowed: Tensor | None = None, log_prior: Tensor | None = None
) -> Tensor:
    """sum_ij w_ij (-s_ij) + w_ij log w_ij, divided by the number of live queries, (B, H): [D] Eq. 9 and 10.

    Both equations minimize this function; Eq. 9 subject to rows that sum to 1, Eq. 10 also subject to columns that sum
    to 1. With a prior, log w_ij is replaced by log(w_ij / u_ij). Weights must not be negative.
    """
    w, s = weights.double(), add_log_prior(masked_scores(scores.double(), allowed), log_prior)
    each = torch.special.xlogy(w, w) - (w * s.masked_fill(w == 0, 0.0))
    return each.sum((-2, -1)) / live_queries(s).sum(-1)


@torch.no_grad()
def row_optimum(scores: Tensor, allowed: Tensor | None = None, log_prior: Tensor | None = None) -> Tensor:
    """The minimum of [D] Eq. 9, (B, H), as `transport_objective`: the mean of -log sum_j u_ij exp(s_ij).

    It is attained by softmax attention.
    """
    s = add_log_prior(masked_scores(scores.double(), allowed), log_prior)
    live = live_queries(s)
    return -log_sum(s).masked_fill(~live, 0.0).sum(-1) / live.sum(-1)


@torch.no_grad()
def transport_optimum(
    scores: Tensor,
    allowed: Tensor | None = None,
    log_prior: Tensor | None = None,
    tolerance: float = 1e-6,
    max_iters: int = 1000,
) -> Tensor:
    """The minimum of [D] Eq. 10, (B, H), as `transport_objective`. Columns sum to N / M, so that it exists.

    Sinkhorn's iterations converge to the minimum, and doubly-normalized attention is the first of them. The value is
    NaN if the columns are not within `tolerance` of their sum after `max_iters` iterations. Unless the mask consists of
    padding and segments, that is not tried: with a causal mask, only the identity has such sums.
    """
    s = masked_scores(scores.double(), allowed)
    pairs = (s > -torch.inf).to(s.dtype)
    feasible = ((pairs @ pairs.mT @ pairs > 0) == (pairs > 0)).all((-2, -1))  # complete blocks of queries and keys
    s, f = add_log_prior(s, log_prior), s.new_zeros(())
    for _ in range(max_iters):
        g = logsumexp_over_queries(s - f)  # (B, H, 1, M), the column step
        f = logsumexp_over_keys(s - g)  # (B, H, N, 1), the row step
        w = (s - f - g).exp()
        converged = marginal_error(w, s > -torch.inf) <= tolerance
        if (converged | ~feasible).all():
            break
    return transport_objective(w, scores, allowed, log_prior).masked_fill(~(converged & feasible), torch.nan)


# ------------------------------------------------------------------------------------------------------------- Fenchel


@torch.no_grad()
def fenchel_deviation(
    evidence: Tensor,
    templates: Tensor,
    allowed: Tensor | None = None,
    log_prior: Tensor | None = None,
    alpha: float = 1.0,
) -> Tensor:
    """|lambda* - alpha z| / |lambda*|, (B, H, N): how far attention is from the problem that it approximates.

    lambda* solves the inference problem of [F] Eq. 8 for the evidence z (B, H, N, D) and the templates (B, H, M, D),
    and softmax attention replaces it by alpha z (Eq. 15). Figures 4 to 8 of [F] show this quantity. It is NaN for a
    query without allowed keys.
    """
    z = evidence.double()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a row that has not converged is as good as it gets
        optimum = solve(z, templates.double(), allowed, log_prior=log_prior, scale=alpha)
    length = optimum.norm(dim=-1)  # 0 without allowed keys, and for the evidence 0
    return (optimum - alpha * z).norm(dim=-1) / length.masked_fill(length == 0, torch.nan)


# -------------------------------------------------------------------------------------------------------------- shared


def live_queries(s: Tensor) -> Tensor:
    """Queries that may see a key, bool (B, H, N), for masked scores (B, H, N, M)."""
    return (s > -torch.inf).any(-1)


def log_sum(s: Tensor) -> Tensor:
    """log sum_j exp(s_ij), (B, H, N); NaN in a row of -inf."""
    return s.logsumexp(-1).masked_fill(~live_queries(s), torch.nan)
