"""The one idea that must stay simple: a normalizer turns scores into weights."""

from collections.abc import Callable

import torch
from torch import Tensor

from attnorm.attention.hooks import TrainingHooks
from attnorm.attention.masking import Mask, dense_mask

AT_MOST_ONE = (0.0, 1.0)  # a `Normalizer.total`, such as that of sigmoid attention divided by the number of keys


class Normalizer(TrainingHooks):
    """Turns scores (B, H, N, M) into attention weights of the same shape.

    A subclass writes `forward`, the paper's formula. Models call `attend`, which a subclass overrides where a faster
    way to the same numbers exists. What a subclass promises or does not promise about its weights it declares in the
    attributes below; `attnorm.attention.testing.check_normalizer` holds it to them. Trained parameters that are worth
    watching, need a higher learning rate or a projection are declared through the methods of `TrainingHooks`.

    couples_queries: whether a row of weights depends on other queries: "none", "past" (earlier queries only: safe at
                     autoregressive sites) or "all" (refused there).
    needs_keys:      `forward` cannot do without `keys` and `scale`.
    differentiable:  the weights have a gradient; False is refused in training.
    key_equivariant, query_equivariant: reordering the keys (queries) reorders the columns (rows) of the weights.
    total:           what each row that is not dead sums to: a number; a pair (smallest, largest) if the sum may vary,
                     such as AT_MOST_ONE; or None if the class promises neither the sum nor the sign of its weights.
                     If no sum below 0 is allowed, weights are not negative.
    key_shift_invariant: adding a number per key to the scores changes nothing.
    least_mass:      m such that, without a prior, every key that some query may see keeps sum_i w_ij >= m / M (Lemma 1
                     of "Doubly-Normalized Attention"); 0 promises nothing.
    prior_scale_invariant: a number per query added to log u changes nothing, as u is only known up to a factor.
    proportional_to_prior: along a row, the weights under the prior u are proportional to u times those without it.
    """

    couples_queries = "none"
    needs_keys = False
    differentiable = True
    key_equivariant = True
    query_equivariant = True
    total: float | tuple[float, float] | None = 1.0
    key_shift_invariant = False
    least_mass: float = 0.0
    prior_scale_invariant = True
    proportional_to_prior = False
    step: Callable[..., tuple[Tensor, Tensor]]  # of a class with couples_queries = "past"; the others have none

    def forward(
        self,
        scores: Tensor,
        mask: Tensor | Mask | None = None,
        *,
        log_prior: Tensor | None = None,
        keys: Tensor | None = None,
        scale: float | None = None,
    ) -> Tensor:
        """Weights (B, H, N, M) in the dtype of `scores`, computed in float32 or wider.

        scores:    (B, H, N, M), already scaled.
        mask:      bool, broadcastable to scores, True = may attend; or a compact `Mask`. A row without an allowed key
                   gets weights 0.
        log_prior: log u, broadcastable to scores: the preference distribution, -inf where u = 0.
        keys:      (B, H, M, D) the keys behind the scores, and `scale` that of the scores, for the normalizers whose
                   formula needs them (templates of optimal transport, of Fenchel duality).
        """
        raise NotImplementedError

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | Mask | None = None,
        *,
        log_prior: Tensor | None = None,
        scale: float | None = None,
    ) -> Tensor:
        """The values averaged by the weights: q (B, H, N, D), k and v (B, H, M, D) -> (B, H, N, D).

        `scale` multiplies q k' and defaults to D ** -0.5.
        """
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        weights = self(dot_scores(q, k, scale), mask, log_prior=log_prior, keys=k, scale=scale)
        return weights.to(v.dtype) @ v


def dot_scores(q: Tensor, k: Tensor, scale: float | Tensor) -> Tensor:
    """scale q k' (B, H, N, M), in float32 or wider whatever the inputs and autocast."""
    with torch.autocast(q.device.type, enabled=False):
        return (upcast(q) * scale) @ upcast(k).transpose(-2, -1)


def upcast(x: Tensor) -> Tensor:
    """float32, or float64 where it is already."""
    return x if x.dtype == torch.float64 else x.float()


def masked_scores(scores: Tensor, mask: Tensor | Mask | None) -> Tensor:
    """The scores in float32 or wider, -inf where the mask forbids."""
    allowed = dense_mask(mask, scores)
    scores = upcast(scores)
    return scores if allowed is None else scores.masked_fill(~allowed, -torch.inf)


def add_log_prior(scores: Tensor, log_prior: Tensor | None) -> Tensor:
    """scores + log u: the place where a prior acts."""
    return scores if log_prior is None else scores + log_prior.to(scores.dtype)


def softmax_over_keys(scores: Tensor) -> Tensor:
    """exp(s_ij) / sum_j' exp(s_ij'); a row of -inf gives weights 0 and no gradient instead of NaN."""
    dead = scores.amax(-1, keepdim=True) == -torch.inf
    return scores.masked_fill(dead, 0.0).softmax(-1).masked_fill(dead, 0.0)


def logsumexp_over_queries(scores: Tensor) -> Tensor:
    """c_j = log sum_i exp(s_ij), (B, H, 1, M); 0 for a key that no query may see."""
    dead = scores.amax(-2, keepdim=True) == -torch.inf
    return scores.masked_fill(dead, 0.0).logsumexp(-2, keepdim=True).masked_fill(dead, 0.0)
