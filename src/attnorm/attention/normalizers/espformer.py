"""ESPFormer, "ESPFormer: Doubly-Stochastic Attention with Expected Sliced Transport Plans" (arXiv 2502.07962)."""

import torch
from torch import Tensor

from attnorm.attention.normalizers.base import Given, Normalizer, softmax_over_keys, upcast
from attnorm.attention.normalizers.shared.transport_plans import plan_of_all
from attnorm.attention.option_checks import above_zero, finite_number


class ESPFormer(Normalizer):
    """w = sum_l p_l P_l, an average of transport plans P_l between the queries and the keys, sorted by channel l.

    With x = alpha q and y = alpha k, P_l = A_l' T B_l. A_l is the soft sort of the queries by channel l: its row for
    rank a is the softmax over i of -(x_il - x_(a)l)^2 / tau, where x_(a)l is the value of this rank. B_l is that of the
    keys. T is the plan between ranks, the identity if there are as many queries as keys, see `plan_of_ranks`. The
    shares p_l are the softmax over l of -temperature sum_ij |x_i - y_j| (P_l)_ij, so that cheap plans count most.

    Only positions that are not masked take part: queries that may see the same keys have a plan of their own. The
    rows sum to 1 approximately, and to 1 in the limit of tau = 0 if all values differ. With a prior u, each row is
    multiplied by u and scaled back to its sum.

    tau:         how soft the sort is, > 0.
    temperature: the inverse temperature of the shares, >= 0. 0 is the mean of the plans.
    """

    couples_queries = "all"
    needs_keys = True
    needs_queries = True
    needs_fixed_alpha = True
    total = (0.0, float("inf"))
    proportional_to_prior = True

    def __init__(self, tau: float = 0.1, temperature: float = 10.0):
        super().__init__()
        if not finite_number(temperature) or temperature < 0:
            raise ValueError(f"temperature={temperature!r}: allowed: numbers from 0")
        self.tau, self.temperature = above_zero("tau", tau), float(temperature)

    def weights(self, s: Tensor, given: Given) -> Tensor:
        assert given.queries is not None and given.keys is not None and given.scale is not None, (
            "needs queries and keys"
        )
        x, y = upcast(given.queries) * given.scale, upcast(given.keys) * given.scale

        def plan(queries: Tensor, keys: Tensor) -> Tensor:
            sorts = self.soft_sort(x, queries), self.soft_sort(y, keys)
            of_ranks = plan_of_ranks(queries.sum(-1), keys.sum(-1), s)
            plans = sorts[0].mT @ of_ranks[..., None, :, :] @ sorts[1]  # (B, H, D, N, M)
            # without the cancellation of |x|^2 - 2 x'y + |y|^2
            distances = torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")
            costs = (distances[..., None, :, :] * plans).sum((-2, -1))  # (B, H, D)
            shares = (-self.temperature * costs).softmax(-1)
            return (shares[..., None, None] * plans).sum(-3)

        return plan_of_all(s, given, plan)

    def soft_sort(self, x: Tensor, real: Tensor) -> Tensor:
        """Ranks by positions, from the largest value on: x (B, H, L, D) -> (B, H, D, L, L).

        Only the `real` positions, bool (B, 1 or H, L), are sorted. The rows of further ranks are to be ignored.
        """
        real = real[..., None, :]
        x = x.mT  # (B, H, D, L)
        ranked = x.masked_fill(~real, -torch.inf).sort(-1, descending=True).values
        ranked = ranked.masked_fill(ranked == -torch.inf, 0.0)
        near = -(x.masked_fill(~real, 0.0)[..., None, :] - ranked[..., None]).square() / self.tau
        return softmax_over_keys(near.masked_fill(~real[..., None, :], -torch.inf))


def plan_of_ranks(n: Tensor, m: Tensor, like: Tensor) -> Tensor:
    """The transport plan between n and m sorted points, (..., N, M), times n: its rows for the n ranks sum to 1.

    The rank a of n covers the interval from a / n to (a + 1) / n, and b of m that from b / m to (b + 1) / m. Their plan
    is the length of the overlap. It is the best plan for every convex cost, and the identity if n = m.

    like: (..., N, M), of which the last two sizes and the dtype are used.
    """
    n, m = n[..., None, None], m[..., None, None]
    a, b = (torch.arange(size, device=n.device) for size in like.shape[-2:])
    a = a[:, None]
    overlap = torch.minimum((a + 1) * m, (b + 1) * n) - torch.maximum(a * m, b * n)  # times n m, without rounding
    return torch.where((a < n) & (b < m), overlap, 0).clamp(min=0).to(like.dtype) / m.clamp(min=1)
