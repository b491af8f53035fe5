"""Attention with an upper bound on each weight: constrained softmax (Martins and Kreutzer 2017) and constrained
sparsemax (Malaviya, Ferreira and Martins 2018); "Neural Attention Mechanisms"."""

import torch
from torch import Tensor, nn

from attnorm.attention.masking import Mask
from attnorm.attention.normalizers.base import add_log_prior, dot_scores, masked_scores, softmax_over_keys, upcast
from attnorm.attention.normalizers.shared.row_map import RowMap, map_rows, value_at
from attnorm.attention.option_checks import finite_number


class Constrained(RowMap):
    """Maps each row of scores to weights p in the simplex with p <= upper. Subclasses differ in the map.

    upper: the bound on each weight, either a number or a tensor that broadcasts to the scores (B, H, N, M) and receives
           gradients. It can be given here or in a call. A number is replaced by max(upper, 1 / number of allowed keys),
           so that a solution always exists; 1.0 means no bound. Values of a tensor at forbidden keys are ignored.

    Raises ValueError if a bound is negative or NaN. A call raises ValueError if, in some live row, the bounds of the
    allowed keys sum to less than 1 by more than the rounding error.
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
        scalars = self.upper.shape[-3] if self.upper.dim() > 2 else 1  # `upper` broadcasts to (B, H, N, M)
        return {"upper": self.upper.flatten()} if self.upper.numel() == scalars else {}

    def bounded_weights(self, scores: Tensor, upper: Tensor) -> Tensor:
        """Maps scores (B, H, N, M) to weights <= upper.

        `upper` has the shape of the scores. Its values are in [0, 1], and 0 where forbidden.
        """
        raise NotImplementedError

    def forward(  # type: ignore[override]  # without what only a class that declares it is called with
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
        s = add_log_prior(masked_scores(scores, mask), log_prior)
        return map_rows(lambda s, out: self.bounded_weights(s, bounds(upper, s, out)), s).to(scores.dtype)

    def value(
        self,
        scores: Tensor,
        mask: Tensor | Mask | None = None,
        *,
        log_prior: Tensor | None = None,
        upper: float | Tensor | None = None,
    ) -> Tensor:
        """As `RowMap.value`, with `upper` as in the constructor. The bounds receive gradients."""
        p = self(upcast(scores), mask, log_prior=log_prior, upper=upper)
        return value_at(p, self.regularizer, scores, mask, log_prior)

    def attend(  # type: ignore[override]  # without what only a class that declares it is called with
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
        """As `Normalizer.attend`, with `upper` as in the constructor."""
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        weights = self(dot_scores(q, k, scale), mask, log_prior=log_prior, upper=upper)
        return weights.to(v.dtype) @ v


class ConstrainedSoftmax(Constrained):
    """w_i = argmin KL(p | softmax(s_i)) over p in the simplex with p <= upper_i.

    The solution is w_ij = min(upper_ij, t_i exp(s_ij)) with s = scores + log u, where t_i is such that the row sums to
    1.
    """

    def bounded_weights(self, scores: Tensor, upper: Tensor) -> Tensor:
        with torch.no_grad():
            # as t grows, the keys reach their bounds in the order of upper / exp(s)
            s, b = scores.double(), upper.double()
            ratio, order = (b.log() - s).masked_fill(s == -torch.inf, torch.inf).sort(-1)
            s, b = s.gather(-1, order), b.gather(-1, order)
            rest = s.flip(-1).logcumsumexp(-1).flip(-1)  # logsumexp of this key and all later keys
            total = b.cumsum(-1) - b + (ratio + rest).exp()  # the row sum at the t at which this key reaches its bound
            at_bound = torch.zeros_like(order, dtype=torch.bool).scatter(-1, order, total < 1)
            at_bound |= upper.sum(-1, keepdim=True) <= 1 + rounding(upper.dtype)  # the bounds are the only solution
        taken = upper.masked_fill(~at_bound, 0.0)
        left = (1 - taken.sum(-1, keepdim=True)).clamp(min=0.0)
        return taken + left * softmax_over_keys(scores.masked_fill(at_bound, -torch.inf))

    def regularizer(self, p: Tensor, allowed: Tensor) -> Tensor:
        """sum_j p_j log p_j."""
        return (p * p.clamp(min=torch.finfo(p.dtype).tiny).log()).sum(-1)


class ConstrainedSparsemax(Constrained):
    """w_i = argmin |p - s_i|^2 over p in the simplex with p <= upper_i.

    The solution is w_ij = min(max(s_ij - tau_i, 0), upper_ij) with s = scores + log u, where tau_i is such that the row
    sums to 1.
    """

    def bounded_weights(self, scores: Tensor, upper: Tensor) -> Tensor:
        s = scores.masked_fill(scores == -torch.inf, 0.0)  # harmless, because the bound of these keys is 0
        with torch.no_grad():
            # As tau decreases, the weight of a key becomes positive at tau = s and reaches its bound at
            # tau = s - upper. The row sum is piecewise linear, and its slope is the number of keys between the two.
            starts, stops = s.double(), s.double() - upper.double()
            knots, order = torch.cat([starts, stops], -1).sort(-1, descending=True)
            slope = torch.where(order < s.shape[-1], 1.0, -1.0).to(knots.dtype).cumsum(-1)
            total = ((knots[..., :-1] - knots[..., 1:]) * slope[..., :-1]).cumsum(-1)
            total = torch.cat([torch.zeros_like(knots[..., :1]), total], -1)  # at each knot
            # tau lies between the knot where the sum reaches 1 and the previous one, or on the knot if the sum is 1
            slack = rounding(scores.dtype)
            reached = (total < 1 - slack).sum(-1, keepdim=True).clamp(max=knots.shape[-1] - 1)
            exact = total.gather(-1, reached) <= 1 + slack
            at_bound = stops >= knots.gather(-1, torch.where(exact, reached, reached - 1))
            free = (starts > knots.gather(-1, reached)) & ~at_bound
            # subtracted first, so that small differences between scores keep their precision
            center = s.masked_fill(~free, -torch.inf).amax(-1, keepdim=True).clamp(min=torch.finfo(s.dtype).min)
        taken = upper.masked_fill(~at_bound, 0.0)
        s = (s - center).masked_fill(~free, 0.0)
        left = 1 - taken.sum(-1, keepdim=True)
        tau = (s.sum(-1, keepdim=True) - left) / free.sum(-1, keepdim=True).clamp(min=1)
        return taken + (s - tau).clamp(min=0.0).masked_fill(~free, 0.0)

    def regularizer(self, p: Tensor, allowed: Tensor) -> Tensor:
        """1/2 |p|^2."""
        return p.square().sum(-1) / 2


def check_number(upper: float) -> float:
    """Returns `upper` as a float. Raises ValueError if it is not a finite number or is negative."""
    if not finite_number(upper) or upper < 0:
        raise ValueError(f"upper={upper!r}: allowed: finite numbers >= 0, or a tensor of them (1.0 means no bound)")
    return float(upper)


def bounds(upper: float | Tensor, scores: Tensor, forbidden: Tensor) -> Tensor:
    """Returns the bounds (B, H, N, M) in the dtype of the scores, at most 1.

    They are 0 where forbidden and 1 in dead rows. Raises ValueError as described in `Constrained`.
    """
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
            f"upper: shape {tuple(upper.shape)} does not broadcast to the shape of the scores, {tuple(scores.shape)}"
        ) from None
    wrong = ~(spread >= 0) & ~forbidden
    if wrong.any():
        index = tuple(wrong.nonzero()[0].tolist())
        raise ValueError(f"upper: {spread[index].item()} at index {index}: allowed: numbers >= 0")
    bound = spread.to(scores.dtype).clamp(max=1).masked_fill(forbidden, 0.0)
    sums = bound.detach().sum(-1, dtype=torch.float64)
    short = (sums < 1 - rounding(upper.dtype)) & ~dead.squeeze(-1)
    if short.any():
        row = tuple(short.nonzero()[0].tolist())
        raise ValueError(
            f"upper: the bounds of the allowed keys in row {row} (batch, head, query) sum to {sums[row].item():.6g}; "
            "the sum must be at least 1, because the weights sum to 1"
        )
    return bound.masked_fill(dead, 1.0)


def rounding(dtype: torch.dtype) -> float:
    """The rounding error allowed for numbers of this dtype that should sum to 1."""
    return 8 * torch.finfo(dtype).eps
