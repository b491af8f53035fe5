"""Attention as entropic optimal transport, "Attention as Inference via Fenchel Duality", Eq. 24 and Appendix D."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from attnorm.attention.masking import Mask
from attnorm.attention.normalizers._templates import log_preference, templates
from attnorm.attention.normalizers.base import Normalizer, masked_scores, upcast
from attnorm.imports import find

COSTS = {"squared_distance": "attnorm.attention.normalizers.ot:squared_distance"}
REACH = {torch.float32: 60.0, torch.float64: 600.0}  # the largest exponents that are safe outside the log domain
BUFFER = 2**24  # elements of the largest temporary tensor in the log domain: 128 MiB


def squared_distance(targets: Tensor, sources: Tensor) -> Tensor:
    """C_ti = |t - i|^2 / D: targets (B, H, A, D), sources (B, H, M, D) -> (B, H, A, M), nonnegative up to rounding."""
    origin = sources[..., :1, :].detach()  # it cancels; without it, keys far from 0 would lose precision
    t, i = targets - origin, sources - origin
    squares = t.square().sum(-1)[..., :, None] + i.square().sum(-1)[..., None, :]
    return (squares - 2 * t @ i.transpose(-2, -1)) / t.shape[-1]


class OptimalTransport(Normalizer):
    """Transports the preference u from the templates of the input (sources i) to all templates (targets t):

    w_t = sum_i u_i exp((s_t - C_ti) / gamma) / Z_i,   Z_i = sum_t' exp((s_t' - C_t'i) / gamma).

    The templates are the keys. u is normalized over the allowed keys of a row, so rows sum to 1. A prior of -inf
    excludes a template as a source, but not as a target. The mask excludes a template as both. To use a table of
    templates that is larger than the input, pass the table as keys and values, and set log_prior = -inf for the
    templates that are not in the input.

    gamma: > 0. With a small gamma the weights follow the scores and the costs strictly; with a large gamma they become
           uniform.
    cost:  "squared_distance" (|k_t - k_i|^2 / D); a function (targets (B, H, A, D), sources (B, H, M, D)) -> C
           (B, H, A, M) >= 0, which need not be symmetric; a module, which is trained with the model; or the dotted path
           'package.module:function' of a function.

    No N x A x M tensor is built. With E = exp(s / gamma) and K = exp(-C / gamma), Z = E K and w = E * ((u / Z) K'). The
    products are computed in float32, or in float64 if the costs require it. Rows that exceed the range of float64 are
    computed in the log domain, a few rows at a time.
    """

    needs_keys = True

    def __init__(self, gamma: float = 1.0, cost: str | Callable[[Tensor, Tensor], Tensor] = "squared_distance"):
        super().__init__()
        if isinstance(gamma, bool) or not isinstance(gamma, (int, float)) or not 0 < gamma < math.inf:
            raise ValueError(f"gamma={gamma!r}: allowed: numbers above 0")
        self.gamma = float(gamma)
        self.cost = cost if callable(cost) else find("cost", cost, COSTS)
        if not callable(self.cost):
            raise ValueError(f"cost={cost!r}: not a function (targets, sources) -> costs")

    def forward(
        self,
        scores: Tensor,
        mask: Tensor | Mask | None = None,
        *,
        log_prior: Tensor | None = None,
        keys: Tensor | None = None,
        scale: float | None = None,
    ) -> Tensor:
        """As `Normalizer.forward`. `keys` (B, H, M, D) is required (ValueError), and `scale` is not used."""
        keys = templates("ot", keys, scores, mask)
        with torch.autocast(scores.device.type, enabled=False):
            s = masked_scores(scores, mask).to(keys.dtype)  # (B, H, N, A)
            log_u = log_preference(s, mask, log_prior)  # (B, H, N, A), or broadcastable to it
            costs = self.costs(keys)  # (B, H, A targets, A sources)
            reach, spread = exponents(s, log_u, costs, self.gamma)
            farthest, widest = torch.stack((reach.max(), spread)).tolist()
            if s.dtype == torch.float32 and widest > REACH[torch.float32]:
                s, log_u, costs = s.double(), log_u.double(), self.costs(keys, torch.float64)
            beyond = reach > REACH[torch.float64] if farthest > REACH[torch.float64] else None
            weights = self.transport(s, log_u, costs, beyond)
        return weights.to(scores.dtype)

    def costs(self, keys: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Returns the costs C (B, H, A, A) of all pairs of keys, in `dtype` or by default in the dtype of the keys."""
        if self.cost is squared_distance and dtype is not None:
            keys = keys.to(dtype)  # other cost functions choose their own precision
        costs = upcast(self.cost(keys, keys))
        size = keys.shape[-2]
        if costs.shape[-2:] != (size, size):
            raise ValueError(f"cost: got {tuple(costs.shape)} for {size} templates; expected (B, H, {size}, {size})")
        return costs.to(dtype or keys.dtype).expand(*keys.shape[:-2], size, size)

    def transport(self, s: Tensor, log_u: Tensor, costs: Tensor, beyond: Tensor | None) -> Tensor:
        """Returns the weights (B, H, N, A). Rows where `beyond` (B, H, N, 1) is True are computed in the log domain."""
        top = s.detach().amax(-1, keepdim=True)
        aside = top == -torch.inf if beyond is None else beyond | (top == -torch.inf)  # (B, H, N, 1)
        s = (s - top.masked_fill(top == -torch.inf, 0.0)) / self.gamma
        costs = (costs - costs.detach().amin(-2, keepdim=True)) / self.gamma  # a constant per source cancels
        E = (s if beyond is None else s.masked_fill(aside, -torch.inf)).exp()
        K = (-costs).exp()
        Z = (E @ K).masked_fill(aside | (log_u == -torch.inf), 1.0)
        # in logarithms, because the gradient of a quotient contains 1 / Z^2, which overflows
        weights = E * ((log_u - Z.log()).exp() @ K.transpose(-2, -1))
        if beyond is None:
            return weights
        rows = beyond.squeeze(-1)  # (B, H, N)
        each = rows.flatten(0, 1).sum(-1).tolist()  # the number of rows per head
        s, log_u, costs = s[rows], log_u.expand_as(s)[rows], costs.flatten(0, 1)
        few = max(1, BUFFER // s.shape[-1] ** 2)
        summed = [
            checkpoint(in_log_domain, *part, head_costs, use_reentrant=False, preserve_rng_state=False)
            for *head, head_costs in zip(s.split(each), log_u.split(each), costs.unbind(), strict=True)
            for part in zip(*(x.split(few) for x in head), strict=True)
            if len(part[0])
        ]
        return weights.index_put((rows,), torch.cat(summed))


def in_log_domain(s: Tensor, log_u: Tensor, costs: Tensor) -> Tensor:
    """Evaluates the formula directly for R rows of one head, with gamma = 1: (R, A), (R, A), (A, A) -> (R, A)."""
    plans = (s[:, None, :] - costs.T).softmax(-1)  # (R, sources, targets)
    return (log_u.exp()[:, None, :] @ plans).squeeze(1)


@torch.no_grad()
def exponents(s: Tensor, log_u: Tensor, costs: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """Bounds the exponents of Z. Returns `reach` (B, H, N, 1) and the spread of the costs (0-dim), divided by gamma.

    In each row, Z_i >= exp(-reach). The best target is within the spread of any source:
    Z_i >= exp((top - spread) / gamma). Every source is also a target: Z_i >= exp((s_i - detour_i) / gamma) with
    detour_i = C_ii - min_t C_ti, which is 0 for distances. The smaller of the two exponents is used. Terms that
    underflow next to such a Z_i are negligible.
    """
    cheapest = costs.amin(-2, keepdim=True)
    spread = (costs - cheapest).max()
    detour = costs.diagonal(dim1=-2, dim2=-1)[..., None, :] - cheapest  # (B, H, 1, A)
    top = s.amax(-1, keepdim=True)
    reach = top - (s - detour).masked_fill(log_u == -torch.inf, torch.inf).amin(-1, keepdim=True)
    reach = reach.masked_fill(top == -torch.inf, 0.0).minimum(spread)
    return reach / gamma, spread / gamma
