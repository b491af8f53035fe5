"""Hooks of normalizers and scorers for training and recording, and what a layer shows to those who observe it."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from torch import Tensor, nn


class TrainingHooks(nn.Module):
    """Base class of normalizers and scorers. A subclass overrides the hooks that it needs; by default they do nothing.

    A normalizer with a learned temperature, for example, is watched during training if it returns
    ``{"temperature": self.log_temperature.exp()}`` from `learned_scalars`.
    """

    def learned_scalars(self) -> dict[str, Tensor]:
        """Learned scalars that are worth recording during training, by name.

        Each value is a tensor with one element or one element per head, shape (1,) or (heads,). A scalar is recorded in
        ``<name>.csv``, so its name must be a Python identifier.
        """
        return {}

    def fast_parameters(self) -> Iterable[nn.Parameter]:
        """Parameters that are trained with ``optimizer.lr * optimizer.hybrid_lr_factor`` and without weight decay.

        Adam moves a parameter by about its learning rate per update, whatever its gradient, so at the learning rate of
        the weight matrices a scalar would hardly leave its initial value. Parameters of submodules that have hooks of
        their own need not be repeated.
        """
        return ()

    def project_(self) -> None:
        """Moves parameters back into their allowed range, in place.

        It is called after each optimizer update, under `torch.no_grad`.
        """


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
