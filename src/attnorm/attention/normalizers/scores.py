"""Scores: products of queries and keys, masks, priors, and softmaxes that are safe for rows and columns of -inf."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from attnorm.attention.call_context import without_autocast
from attnorm.attention.masking import Mask, dense_mask


class Given(NamedTuple):
    """What the formula of a normalizer, `weights(s, given)`, may use besides the scores.

    mask:      bool, broadcastable to the scores (B, H, N, M), True where a query may attend to a key; or a `Mask`. None
               without a mask. The scores are masked already.
    log_prior: log u, a float tensor broadcastable to the scores, -inf where u = 0. None without a prior.
    keys:      (B, H, M, D), in the dtype in which the layer computes. May be None without the declaration `needs_keys`.
    scale:     a number, the scale of the scores. None where `keys` is.
    queries:   (B, H, N, D), in the dtype of the keys. May be None without the declaration `needs_queries`.
    features:  (B, H, N, F) with needs_states = "queries", and (B, H, M, F) with "keys": what the method `features` has
               returned, a float tensor. None without this declaration.
    repeats_mask: whether there is no prior, and `log_prior` only excludes masked pairs; only with `finite_scores`.
    """

    mask: Tensor | Mask | None = None
    log_prior: Tensor | None = None
    keys: Tensor | None = None
    scale: float | None = None
    queries: Tensor | None = None
    features: Tensor | None = None
    repeats_mask: bool = False

    @property
    def row_prior(self) -> Tensor | None:
        """The prior for a step over the keys of scores that are masked already."""
        return None if self.repeats_mask else self.log_prior

    def with_prior(self, log_prior: Tensor | None, repeats_mask: bool = False) -> "Given":
        """The same with another prior. The compiler of PyTorch before 2.8 does not take `_replace`."""
        return Given(self.mask, log_prior, self.keys, self.scale, self.queries, self.features, repeats_mask)


def dot_scores(q: Tensor, k: Tensor, scale: float | Tensor) -> Tensor:
    """Computes scale q k', (B, H, N, M), in float32 or wider regardless of the dtype of the inputs and of autocast."""
    with without_autocast(q):
        return (upcast(q) * scale) @ upcast(k).transpose(-2, -1)


def upcast(x: Tensor) -> Tensor:
    """Converts `x` to float32, unless it is float64."""
    return x if x.dtype == torch.float64 else x.float()


def masked_scores(scores: Tensor, mask: Tensor | Mask | None) -> Tensor:
    """Returns the scores in float32 or wider, with -inf at masked pairs."""
    allowed = dense_mask(mask, scores)
    scores = upcast(scores)
    return scores if allowed is None else torch.where(allowed, scores, -torch.inf)


def add_log_prior(scores: Tensor, log_prior: Tensor | None) -> Tensor:
    """Returns scores + log u. This is the only way in which a prior enters a normalizer."""
    return scores if log_prior is None else scores + log_prior.to(scores.dtype)


# A row or column of -inf is dead. Its softmax and the gradient of its logsumexp would be NaN, so its scores are
# replaced by finite numbers first, and its result by 0 afterwards. The mask alone does not tell which ones are dead: a
# prior or a scorer may be -inf too.


def softmax_over_keys(scores: Tensor) -> Tensor:
    """exp(s_ij) / sum_j' exp(s_ij'). In a row of -inf, the weights and their gradient are 0 instead of NaN."""
    live = scores.detach().amax(-1, keepdim=True) != -torch.inf
    lowest = torch.finfo(scores.dtype).min
    return F.threshold(scores, lowest, lowest).softmax(-1) * live.to(scores.dtype)


def logsumexp_over_queries(scores: Tensor) -> Tensor:
    """c_j = log sum_i exp(s_ij), (B, H, 1, M). It is 0 for a key that no query may see."""
    top = scores.detach().amax(-2, keepdim=True)
    dead = top == -torch.inf
    # terms that do not change the sum are raised to where exp does not underflow, which is several times slower
    lowest = top.masked_fill(dead, 0.0) + 0.9 * math.log(torch.finfo(scores.dtype).tiny)
    return scores.clamp(min=lowest).logsumexp(-2, keepdim=True).masked_fill(dead, 0.0)
