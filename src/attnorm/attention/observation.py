"""What an attention layer shows to those who observe it."""

from dataclasses import dataclass, replace

from torch import Tensor


@dataclass(frozen=True)
class Observation:
    """What one attention module computed in one forward pass, before dropout.

    weights: (B, H, N, M). allowed: the mask, bool, broadcastable to the weights, or None.
    scores:  (B, H, N, M), without mask and prior. log_prior: log u, broadcastable to them, or None.
    q, k, v: (B, H, N, D), (B, H, M, D), (B, H, M, D), the projected queries, keys and values of every head.
    scale:   the scores are `scale` q k'; None if the scorer is not of a dot-product type, or learns alpha.
    outside: (B, H, N, A), the weights of the templates of the bank, or (B, H, N, 1), that of the value which gets the
             remainder, or None. All of the above is about the input only, so that the rows of `weights` sum to less
             than 1 then.

    With differential attention, H is twice the number of heads: the maps 2m and 2m + 1 are those of head m, each with
    weights as its normalizer returns them, before they are subtracted.
    """

    weights: Tensor
    allowed: Tensor | None
    scores: Tensor
    log_prior: Tensor | None
    q: Tensor
    k: Tensor
    v: Tensor
    scale: float | None
    outside: Tensor | None = None

    def without_bank(self, size: int) -> "Observation":
        """The observation of a layer whose first `size` keys are templates of a bank."""
        outside, weights = self.weights[..., :size], self.weights[..., size:]
        allowed = None if self.allowed is None else self.allowed[..., size:]
        scores, k, v = self.scores[..., size:], self.k[..., size:, :], self.v[..., size:, :]
        return replace(self, weights=weights, allowed=allowed, scores=scores, k=k, v=v, outside=outside)
