"""EM routing: doubly-normalized attention with several updates of the centers ("Doubly-Normalized Attention", App. A).

The keys are data from a mixture of Gaussians whose centers are the queries (Eq. 5):
sum_j log sum_i beta_i N(k_j | q_i, sigma_i^2). One step of expectation maximization is DNAS (Eq. 6-8).
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnorm.attention.masking import Mask
from attnorm.attention.normalizers.base import (
    Given,
    Normalizer,
    add_log_prior,
    logsumexp_over_queries,
    masked_scores,
    softmax_over_keys,
)
from attnorm.attention.normalizers.shared.cluster_prior import ClusterPrior
from attnorm.attention.normalizers.shared.templates import center_on_first, positive_scale, templates
from attnorm.attention.normalizers.sinkhorn import logsumexp_over_keys
from attnorm.attention.option_checks import above_zero, one_of, whole

BETAS = ("norm", "uniform", "estimated", "learned")
SIGMAS = ("fixed", "estimated")
MIN_SIGMA = 0.1  # the default of the smallest estimated sigma


class Mixture(NamedTuple):
    """The parameters of Eq. 5, for keys that are multiplied by the square root of `scale` (then q'k is the score).

    centers (B, H, N, D); log_beta (B, H, N, 1), normalized over the queries, -inf for padded ones; variance
    (B, H, N, 1), which is sigma_i^2.
    """

    centers: Tensor
    log_beta: Tensor
    variance: Tensor


class EMRouting(Normalizer):
    """Repeats the two steps of expectation maximization `n_iters` times:

    xi_ij = beta_i N(k_j | q_i, sigma_i^2) / sum_i' beta_i' N(k_j | q_i', sigma_i'^2)    (Eq. 6)
    q_i = sum_j w_ij k_j,   w_ij = u_j xi_ij / sum_j' u_j' xi_ij'                        (Eq. 8)

    The scores are the logarithms of the numerators of the first step, up to a constant per key. With dot products,
    this is the paper's choice of sigma_i = 1 and beta_i ~ exp(|q_i|^2 / 2), so n_iters = 1 is DNAS. Later steps use the
    centers that the previous ones have found. A prior u weighs the keys. As for Sinkhorn, a prior that differs between
    queries must be normalized if beta is estimated. `keys` and `scale` > 0 are required, unless n_iters = 1.

    n_iters: the number of updates of the centers.
    beta:    the priors of the clusters from the second step on: "norm" (~ exp(|q_i|^2 / 2), as in the paper),
             "uniform", "estimated" (beta_i ~ sum_j u_j xi_ij), or "learned" (~ b_i exp(|q_i|^2 / 2) with a trained b_i
             per head and query position, also in the first step; `queries` is the number of positions).
    sigma:   "fixed" (1) or "estimated" (sigma_i^2 = sum_j w_ij |k_j - q_i|^2 / D, at least min_sigma^2).
             If beta is not "norm" or "learned", no step decreases the likelihood of Eq. 5.
    """

    couples_queries = "all"
    key_shift_invariant = True
    least_mass = 1.0

    def __init__(
        self,
        n_iters: int = 2,
        beta: str = "norm",
        sigma: str = "fixed",
        min_sigma: float = MIN_SIGMA,
        queries: int | None = None,
        heads: int | None = None,
    ):
        super().__init__()
        self.n_iters = whole("n_iters", n_iters, 1)
        self.beta, self.sigma = one_of("beta", beta, BETAS), one_of("sigma", sigma, SIGMAS)
        for name, value, default in (("beta", beta, ("norm", "learned")), ("sigma", sigma, ("fixed",))):
            if n_iters == 1 and value not in default:
                reason = "has no effect with n_iters=1, because it begins in the second step"
                raise ValueError(f"{name}={value!r}: {reason}")
        if queries is not None and beta != "learned":
            raise ValueError(f"queries={queries}: has no effect with beta={beta!r}")
        self.min_sigma = above_zero("min_sigma", min_sigma)
        if min_sigma != MIN_SIGMA and sigma != "estimated":
            raise ValueError(f"min_sigma={min_sigma!r}: has no effect with sigma={sigma!r}")
        self.cluster_prior = ClusterPrior(queries, heads, "em_routing") if beta == "learned" else None
        self.needs_keys = self.needs_fixed_alpha = n_iters > 1
        self.proportional_to_prior = n_iters == 1
        self.query_equivariant, self.prior_scale_invariant = beta != "learned", beta != "estimated"

    def weights(self, s: Tensor, given: Given) -> Tensor:
        s = log_joint = self.first_step(s)
        if self.n_iters > 1:
            k = scaled_keys(s, given)
            for _ in range(self.n_iters - 1):
                log_joint = self.log_joint(self.update(log_joint, given.log_prior, k), k, s)
        return self.center_weights(log_joint, given.log_prior)

    def fit(self, scores: Tensor, mask: Tensor | Mask | None = None, **given: Any) -> Mixture:
        """The mixture after `n_iters` updates. Its centers are what the weights of `forward` make of the keys.

        The arguments are those of `forward`; `keys` and `scale` are required.
        """
        s = log_joint = self.first_step(masked_scores(scores, mask))
        known = Given(mask, **given)
        k = scaled_keys(s, known)
        mixture = self.update(log_joint, known.log_prior, k)
        for _ in range(self.n_iters - 1):
            mixture = self.update(self.log_joint(mixture, k, s), known.log_prior, k)
        return mixture

    def first_step(self, s: Tensor) -> Tensor:
        """log beta_i N(k_j | q_i, 1) up to a constant per key, (B, H, N, M), for masked scores s."""
        return s if self.cluster_prior is None else s + self.cluster_prior(s.shape[-2])

    def center_weights(self, log_joint: Tensor, log_prior: Tensor | None) -> Tensor:
        """w, from the logarithm of the numerator of xi: normalized over the queries, then over the keys."""
        return softmax_over_keys(add_log_prior(log_joint - logsumexp_over_queries(log_joint), log_prior))

    def update(self, log_joint: Tensor, log_prior: Tensor | None, k: Tensor) -> Mixture:
        """The most likely mixture for the responsibilities xi of log_joint (B, H, N, M) and the keys k (B, H, M, D)."""
        w = self.center_weights(log_joint, log_prior)
        centers, dead = w @ k, w.detach().amax(-1, keepdim=True) == 0  # a center without data leaves the mixture
        variance = torch.ones_like(w[..., :1])
        if self.sigma == "estimated":
            spread = (w * squared_distances(centers, k)).sum(-1, keepdim=True) / k.shape[-1]
            variance = spread.clamp(min=self.min_sigma**2)
        if self.beta == "uniform":
            log_beta = torch.zeros_like(variance)
        elif self.beta == "estimated":
            log_xi = log_joint - logsumexp_over_queries(log_joint)
            log_beta = logsumexp_over_keys(add_log_prior(log_xi, log_prior))
        else:
            log_beta = centers.square().sum(-1, keepdim=True) / 2
        if self.cluster_prior is not None:
            log_beta = log_beta + self.cluster_prior(log_beta.shape[-2])
        log_beta = log_beta.masked_fill(dead, -torch.inf)
        return Mixture(centers, log_beta - logsumexp_over_queries(log_beta), variance)

    def log_joint(self, mixture: Mixture, k: Tensor, s: Tensor) -> Tensor:
        """log beta_i N(k_j | q_i, sigma_i^2) up to a constant, (B, H, N, M); -inf where the scores s are."""
        distances, variance = squared_distances(mixture.centers, k), mixture.variance
        log_density = -distances / (2 * variance) - k.shape[-1] / 2 * variance.log()
        return (mixture.log_beta + log_density).masked_fill(s == -torch.inf, -torch.inf)


def scaled_keys(s: Tensor, given: Given) -> Tensor:
    """The keys (B, H, M, D), multiplied by the square root of `scale`. Raises ValueError if one of them is missing."""
    scale = positive_scale("em_routing", given.scale)
    return templates("em_routing", s, given) * scale**0.5


def squared_distances(centers: Tensor, k: Tensor) -> Tensor:
    """|q_i - k_j|^2, (B, H, N, M), computed relative to the first key, so that it is precise far from the origin."""
    origin = k[..., :1, :].detach()
    q, k = centers - origin, center_on_first(k)
    squares = q.square().sum(-1)[..., :, None] + k.square().sum(-1)[..., None, :]
    return (squares - 2 * q @ k.mT).clamp(min=0.0)
