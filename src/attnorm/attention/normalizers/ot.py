"""Attention as entropic optimal transport, "Attention as Inference via Fenchel Duality", Sec. 9 and Appendix D."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from attnorm.attention.call_context import without_autocast
from attnorm.attention.masking import Mask
from attnorm.attention.normalizers.base import Given, Normalizer, masked_scores, upcast
from attnorm.attention.normalizers.shared.templates import center_on_first, log_preference, positive_scale, templates
from attnorm.attention.normalizers.shared.transport_orders import exact_weights, second_order_scores
from attnorm.attention.option_checks import above_zero, inside_unit_interval, whole
from attnorm.imports import find, parameters

ORDERS = (1, 2, "exact")
COSTS = {
    "squared_distance": "attnorm.attention.normalizers.ot.squared_distance",
    "learned": "attnorm.attention.normalizers.ot.LearnedDistance",
}
REACH = {torch.float32: 60.0, torch.float64: 600.0}  # the largest exponents that are safe outside the log domain
BUFFER = 2**24  # elements of the largest temporary tensor in the log domain: 128 MiB


def squared_distance(targets: Tensor, sources: Tensor) -> Tensor:
    """C_ti = |t - i|^2 / D: targets (B, H, A, D), sources (B, H, M, D) -> (B, H, A, M), nonnegative up to rounding."""
    origin = sources[..., :1, :].detach()  # it cancels; without it, keys far from 0 would lose precision
    t, i = targets - origin, sources - origin
    squares = t.square().sum(-1)[..., :, None] + i.square().sum(-1)[..., None, :]
    return (squares - 2 * t @ i.transpose(-2, -1)) / t.shape[-1]


class LearnedDistance(nn.Module):
    """C_ti = |W (t - i)|^2 / D with one W (D, D) per head. W is initialized to the identity, as in squared_distance."""

    def __init__(self, heads: int, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(width).repeat(heads, 1, 1))  # (H, D, D)

    def forward(self, targets: Tensor, sources: Tensor) -> Tensor:
        W = self.weight.to(targets.dtype).mT
        return squared_distance(targets @ W, sources @ W)


def build_cost(cost: object, **facts: int | None) -> Callable[[Tensor, Tensor], Tensor]:
    """The cost function behind a name or dotted path, or the function itself. A class is built from the facts it takes.

    Raises ValueError if there is no such function, or if a fact is not known.
    """
    function = cost if callable(cost) else find("cost", cost, COSTS)
    if isinstance(function, type):
        takes, known = parameters(function), {name: value for name, value in facts.items() if value is not None}
        if missing := [
            name for name, parameter in takes.items() if parameter.default is parameter.empty and name not in known
        ]:
            raise ValueError(f"cost={cost!r}: needs {' and '.join(f'{name}=<number>' for name in missing)}")
        function = function(**{name: value for name, value in known.items() if name in takes})
    if not callable(function):
        raise ValueError(f"cost={cost!r}: not a function (targets, sources) -> costs")
    return function


class OptimalTransport(Normalizer):
    """Transports the preference u from the templates of the input (sources i) to all templates (targets t):

    w_t = sum_i u_i exp((s_t - C_ti) / gamma) / Z_i,   Z_i = sum_t' exp((s_t' - C_t'i) / gamma).

    The templates are the keys. u is normalized over the allowed keys of a row, so rows sum to 1. A prior of -inf
    excludes a template as a source, but not as a target. The mask excludes a template as both. A `bank` of
    `MultiHeadAttention` adds templates that are targets only, see `forward_with_bank`.

    `keys` are required, and so is `scale` > 0 for orders 2 and "exact".

    gamma: > 0. With a small gamma the weights follow the scores and the costs strictly; with a large gamma they become
           uniform.
    cost:  "squared_distance" (|k_t - k_i|^2 / D); "learned" (the same after a trained linear map per head); a function
           (targets (B, H, A, D), sources (B, H, M, D)) -> C (B, H, A, M) >= 0, which need not be symmetric; a module,
           which is trained with the model; or the dotted path 'package.module.name' of a function or of the class of a
           module, whose constructor may take `heads` and `width`.
    order: the formula above is the solution of an inference problem (Eq. 38) to first order in s: 1. With 2 and
           "exact", the scores are corrected so that it is the solution to second order, or the exact one, found by
           Newton's method with the gradients of the solution (see `shared.transport_orders`). Both need float64.
    tolerance, max_steps: the stopping criterion of Newton's method, as in `fenchel`.
    heads, width: the number of heads and the width of a head, for costs with parameters.

    No N x A x M tensor is built. With E = exp(s / gamma) and K = exp(-C / gamma), Z = E K and w = E * ((u / Z) K'). The
    products are computed in float32, or in float64 if the costs require it. Rows that exceed the range of float64 are
    computed in the log domain, a few rows at a time.
    """

    needs_keys = True

    def __init__(
        self,
        gamma: float = 1.0,
        cost: str | Callable[[Tensor, Tensor], Tensor] = "squared_distance",
        order: int | str = 1,
        tolerance: float = 1e-10,
        max_steps: int = 100,
        heads: int | None = None,
        width: int | None = None,
    ):
        super().__init__()
        if type(order) not in (int, str) or order not in ORDERS:  # True == 1
            raise ValueError(f"order={order!r}: allowed: 1, 2 and 'exact'")
        self.gamma, self.order = above_zero("gamma", gamma), order
        self.tolerance, self.max_steps = inside_unit_interval("tolerance", tolerance), whole("max_steps", max_steps, 1)
        self.cost = build_cost(cost, heads=heads, width=width)
        self.needs_fixed_alpha = order != 1

    def forward_with_bank(
        self, scores: Tensor, mask: Tensor | Mask | None = None, *, outside: int, **given: Any
    ) -> Tensor:
        """`forward` for keys of which the first `outside` are not part of the input: they are targets, but not sources.

        scores (B, H, N, A) and keys (B, H, A, D) cover all templates, and so does the mask, which must be a dense
        tensor if `outside` is not 0. log_prior, broadcastable to (B, H, N, A - outside), covers the input only. The
        result is that of `forward` with log_prior = -inf for the first templates, but only the costs of A x (A -
        outside) pairs are computed.
        """
        with without_autocast(scores):
            s = masked_scores(scores, mask)
            return self.weights(s, Given(mask, **given), outside).to(scores.dtype)

    def weights(self, s: Tensor, given: Given, outside: int = 0) -> Tensor:
        """As `Normalizer.weights`. outside: as in `forward_with_bank`."""
        keys, mask = templates("ot", s, given), given.mask
        inside = mask[..., outside:] if isinstance(mask, Tensor) and mask.shape[-1] > 1 else mask
        s = s.to(keys.dtype) if self.order == 1 else s.double()  # (B, H, N, A)
        log_u = log_preference(s[..., outside:], inside, given.log_prior)  # (B, H, N, M), or broadcastable to it
        costs = self.costs(keys, outside, None if self.order == 1 else torch.float64)  # (B, H, A targets, M sources)
        if self.order == 1:
            return self.first_order(s, log_u, costs, keys)
        T, alpha = center_on_first(keys.double()), positive_scale("ot", given.scale)
        if self.order == 2:
            return self.first_order(second_order_scores(s, log_u, costs, T, alpha, self.gamma), log_u, costs)
        return exact_weights(
            lambda s: self.first_order(s, log_u, costs),
            *(s, log_u, costs, T, alpha, self.gamma, self.tolerance, self.max_steps),
        )

    def first_order(self, s: Tensor, log_u: Tensor, costs: Tensor, keys: Tensor | None = None) -> Tensor:
        """The formula, at any size of scores and costs. In float32, `keys` must be given to repeat it in float64."""
        reach, spread = exponents(s, log_u, costs, self.gamma)
        farthest, widest = (0.0, 0.0) if s.is_meta else torch.stack((reach.max(), spread)).tolist()
        if s.dtype == torch.float32 and widest > REACH[torch.float32]:
            assert keys is not None
            outside = costs.shape[-2] - costs.shape[-1]
            s, log_u, costs = s.double(), log_u.double(), self.costs(keys, outside, torch.float64)
        beyond = reach > REACH[torch.float64] if farthest > REACH[torch.float64] else None
        return self.transport(s, log_u, costs, beyond)

    def costs(self, keys: Tensor, outside: int = 0, dtype: torch.dtype | None = None) -> Tensor:
        """Returns the costs C (B, H, A, A - outside) of all keys as targets and of those of the input as sources.

        dtype: of the result, by default the dtype of the keys.
        """
        if dtype is not None and (self.cost is squared_distance or isinstance(self.cost, LearnedDistance)):
            keys = keys.to(dtype)  # other cost functions choose their own precision
        sources = keys[..., outside:, :]
        costs = upcast(self.cost(keys, sources))
        size = (keys.shape[-2], sources.shape[-2])
        if costs.shape[-2:] != size:
            raise ValueError(
                f"cost: got {tuple(costs.shape)} for {size[0]} templates; expected (B, H, {size[0]}, {size[1]})"
            )
        return costs.to(dtype or keys.dtype).expand(*keys.shape[:-2], *size)

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
        log_u = log_u.expand(*s.shape[:-1], -1)
        s, log_u, costs = s[rows], log_u[rows], costs.flatten(0, 1)
        few = max(1, BUFFER // costs[0].numel())
        summed = [
            checkpoint(in_log_domain, *part, head_costs, use_reentrant=False, preserve_rng_state=False)
            for *head, head_costs in zip(s.split(each), log_u.split(each), costs.unbind(), strict=True)
            for part in zip(*(x.split(few) for x in head), strict=True)
            if len(part[0])
        ]
        return weights.index_put((rows,), torch.cat(summed))


def in_log_domain(s: Tensor, log_u: Tensor, costs: Tensor) -> Tensor:
    """Evaluates the formula directly for R rows of one head, with gamma = 1: (R, A), (R, M), (A, M) -> (R, A)."""
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
    cheapest, outside = costs.amin(-2, keepdim=True), costs.shape[-2] - costs.shape[-1]
    spread = (costs - cheapest).max()
    detour = costs[..., outside:, :].diagonal(dim1=-2, dim2=-1)[..., None, :] - cheapest  # (B, H, 1, M)
    top = s.amax(-1, keepdim=True)
    reach = top - (s[..., outside:] - detour).masked_fill(log_u == -torch.inf, torch.inf).amin(-1, keepdim=True)
    reach = reach.masked_fill(top == -torch.inf, 0.0).minimum(spread)
    return reach / gamma, spread / gamma
