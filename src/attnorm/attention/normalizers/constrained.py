"""Attention with an upper bound on each weight: constrained softmax (Martins and Kreutzer 2017) and constrained
sparsemax (Malaviya, Ferreira and Martins 2018); "Neural Attention Mechanisms"."""

import torch
from torch import Tensor, nn

from attnorm.attention.masking import Mask
from attnorm.attention.normalizers._row_map import RowMap, finite_number, map_rows
from attnorm.attention.normalizers.base import dot_scores, softmax_over_keys


class Constrained(RowMap):
    """A map of each row onto the weights p in the simplex with p <= upper; a subclass says which of them.

    upper: the bound on each weight, here or at a call: a number, or a tensor that broadcasts to the scores (B, H, N, M)
           and gets gradients. A number is taken as max(upper, 1 / number of allowed keys), so that there always is a p;
           1.0 bounds nothing. Of a tensor, bounds of forbidden keys are not read.

    Raises ValueError for a bound that is negative or NaN and, at the call, for a live row where the bounds of the
    allowed keys sum to less than 1 (by more than rounding).
    """

    def __init__(self, upper: float | Tensor = 1.0):
        super().__init__()
        if isinstance(upper, Tensor) and not isinstance(upper, nn.Parameter):
            self.register_buffer("upper", upper, persistent=False)
        else:
            self.upper = upper if isinstance(upper, nn.Parameter) else check_number(upper)

    def learned_scalars(self) -> dict[str, Tensor]:
        """The bound, if it is a parameter with one element or one element per head."""
        if not isinstance(self.upper, nn.Parameter):
            return {}
        scalars = self.upper.shape[-3] if self.upper.dim() > 2 else 1  # it broadcasts to (B, H, N, M)
        return {"upper": self.upper.flatten()} if self.upper.numel() == scalars else {}

    def bounded_weights(self, scores: Tensor, upper: Tensor) -> Tensor:
        """scores, and upper in [0, 1], 0 where forbidden, (B, H, N, M) -> weights <= upper."""
        raise NotImplementedError

    def forward(
        self,
        scores: Tensor,
        mask: Tensor | Mask | None = None,
        *,
        log_prior: Tensor | None = None,
        keys: Tensor | None = None,
        scale: float | None = None,
        upper: float | Tensor | None = None,
    ) -> Tensor:
        upper = self.upper if upper is None else upper if isinstance(upper, Tensor) else check_number(upper)
        return map_rows(lambda s, out: self.bounded_weights(s, bounds(upper, s, out)), scores, mask, log_prior)

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | Mask | None = None,
        *,
        log_prior: Tensor | None = None,
        scale: float | None = None,
        upper: float | Tensor | None = None,
    ) -> Tensor:
        """As `Normalizer.attend`, with `upper` as at construction."""
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        weights = self(dot_scores(q, k, scale), mask, log_prior=log_prior, upper=upper)
        return weights.to(v.dtype) @ v


class ConstrainedSoftmax(Constrained):
    """w_i = argmin KL(p | softmax(s_i)) over p in the simplex with p <= upper_i,

    so w_ij = min(upper_ij, t_i exp(s_ij)) with s = scores + log u and t_i such that the row sums to 1.
    """

    def bounded_weights(self, scores: Tensor, upper: Tensor) -> Tensor:
        with torch.no_grad():
            # as t grows, the keys reach their bounds in the order of upper / exp(s)
            s, b = scores.double(), upper.double()
            ratio, order = (b.log() - s).masked_fill(s == -torch.inf, torch.inf).sort(-1)
            s, b = s.gather(-1, order), b.gather(-1, order)
            rest = s.flip(-1).logcumsumexp(-1).flip(-1)  # of this key and all later ones
            total = b.cumsum(-1) - b + (ratio + rest).exp()  # sum of the row with t at which this key reaches its bound
            at_bound = torch.zeros_like(order, dtype=torch.bool).scatter(-1, order, total < 1)
            at_bound |= upper.sum(-1, keepdim=True) <= 1 + rounding(upper.dtype)  # nothing is left to choose
        taken = upper.masked_fill(~at_bound, 0.0)
        left = (1 - taken.sum(-1, keepdim=True)).clamp(min=0.0)
        return taken + left * softmax_over_keys(scores.masked_fill(at_bound, -torch.inf))


class ConstrainedSparsemax(Constrained):
    """w_i = argmin |p - s_i|^2 over p in the simplex with p <= upper_i,

    so w_ij = min(max(s_ij - tau_i, 0), upper_ij) with s = scores + log u and tau_i such that the row sums to 1.
    """

    def bounded_weights(self, scores: Tensor, upper: Tensor) -> Tensor:
        s = scores.masked_fill(scores == -torch.inf, 0.0)  # their bound is 0
        with torch.no_grad():
            # as tau falls, a key becomes positive at s and reaches its bound at s - upper: the row's sum is piecewise
            # linear, and its slope is the number of keys between the two
            starts, stops = s.double(), s.double() - upper.double()
            knots, order = torch.cat([starts, stops], -1).sort(-1, descending=True)
            slope = torch.where(order < s.shape[-1], 1.0, -1.0).to(knots.dtype).cumsum(-1)
            total = ((knots[..., :-1] - knots[..., 1:]) * slope[..., :-1]).cumsum(-1)
            total = torch.cat([torch.zeros_like(knots[..., :1]), total], -1)  # at each knot
            # tau is between the knot where the sum reaches 1 and the one before; on the knot, if that hits 1 exactly
            slack = rounding(scores.dtype)
            reached = (total < 1 - slack).sum(-1, keepdim=True).clamp(max=knots.shape[-1] - 1)
            exact = total.gather(-1, reached) <= 1 + slack
            at_bound = stops >= knots.gather(-1, torch.where(exact, reached, reached - 1))
            free = (starts > knots.gather(-1, reached)) & ~at_bound
            # subtracted first: scores that differ little must not lose their digits
            center = s.masked_fill(~free, -torch.inf).amax(-1, keepdim=True).clamp(min=torch.finfo(s.dtype).min)
        taken = upper.masked_fill(~at_bound, 0.0)
        s = (s - center).masked_fill(~free, 0.0)
        left = 1 - taken.sum(-1, keepdim=True)
        tau = (s.sum(-1, keepdim=True) - left) / free.sum(-1, keepdim=True).clamp(min=1)
        return taken + (s - tau).clamp(min=0.0).masked_fill(~free, 0.0)


def check_number(upper: float) -> float:
    """`upper` as a number; ValueError if it is none or negative."""
    if not finite_number(upper) or upper < 0:
        raise ValueError(f"upper={upper!r}: allowed are finite numbers >= 0, or a tensor of them (1.0 bounds nothing)")
    return float(upper)


def bounds(upper: float | Tensor, scores: Tensor, forbidden: Tensor) -> Tensor:
    """The bounds (B, H, N, M) in the dtype of the scores, at most 1; 0 where forbidden, 1 in dead rows."""
    dead = forbidden.all(-1, keepdim=True)
    if not isinstance(upper, Tensor):
        share = 1 / (~forbidden).sum(-1, keepdim=True).clamp(min=1).to(scores.dtype)
        return share.clamp(min=upper).clamp(max=1).expand_as(scores).masked_fill(forbidden, 0.0).masked_fill(dead, 1.0)
    if not upper.is_floating_point():
        upper = upper.to(scores.dtype)
    try:
        spread = upper.expand_as(scores)
    except RuntimeError:
        raise ValueError(
            f"upper: shape {tuple(upper.shape)} does not broadcast to that of the scores, {tuple(scores.shape)}"
        ) from None
    wrong = ~(spread >= 0) & ~forbidden
    if wrong.any():
        place = tuple(wrong.nonzero()[0].tolist())
        raise ValueError(f"upper: {spread[place].item()} at {place}: allowed are numbers >= 0")
    bound = spread.to(scores.dtype).clamp(max=1).masked_fill(forbidden, 0.0)
    sums = bound.detach().sum(-1, dtype=torch.float64)
    short = (sums < 1 - rounding(upper.dtype)) & ~dead.squeeze(-1)
    if short.any():
        row = tuple(short.nonzero()[0].tolist())
        raise ValueError(
            f"upper: the bounds of the allowed keys in row {row} (batch, head, query) sum to {sums[row].item():.6g}; "
            "weights that sum to 1 need bounds that sum to at least 1"
        )
    return bound.masked_fill(dead, 1.0)


def rounding(dtype: torch.dtype) -> float:
    """By how much numbers of this dtype that should sum to 1 may miss it."""
    return 8 * torch.finfo(dtype).eps
