"""Attention as inference, solved to first order, to second order or exactly.

Source: "Attention as Inference via Fenchel Duality", Eq. 3, 8, 10 and 14.
"""

import warnings

import torch
from torch import Tensor

from attnorm.attention.call_context import without_autocast
from attnorm.attention.masking import Mask
from attnorm.attention.normalizers.base import (
    Given,
    Normalizer,
    add_log_prior,
    dot_scores,
    masked_scores,
    softmax_over_keys,
    upcast,
)
from attnorm.attention.normalizers.shared.covariance import covariance_solve, row_solve
from attnorm.attention.normalizers.shared.derivatives import ThroughGradient
from attnorm.attention.normalizers.shared.solvers import climb
from attnorm.attention.normalizers.shared.templates import (
    center_on_first,
    log_preference,
    positive_scale,
    templates,
    without_padding,
)
from attnorm.attention.normalizers.softmax import Softmax
from attnorm.attention.option_checks import inside_unit_interval, whole

ORDERS = (1, 2, "exact")
TOLERANCE, MAX_STEPS = 1e-10, 100  # the defaults of the stopping criterion of Newton's method


class Fenchel(Normalizer):
    """The weights that solve the inference problem that attention approximates.

    With evidence z, templates t_j (the keys, rows of T), preference u (normalized over the allowed keys), mu = T'u and
    alpha > 0 (the scale of the scores s = alpha T z):

    lambda* = argmax <mu + z, l> - |l|^2 / (2 alpha) - log sum_j u_j exp<t_j, l>,   w_j ~ u_j exp<t_j, lambda*>.

    In score space, w = softmax(log u + s + alpha T T'(u - w)). Equivalently, w maximizes
    w's - KL(w|u) - alpha/2 |T'(w - u)|^2.

    Orders 2 and "exact" require `keys` and `scale` > 0 (a number or a 0-dim tensor).

    order: 1 is the first-order solution in the evidence, softmax(log u + s), which is standard attention;
           2 is the second-order solution (Eq. 14), in which s is replaced by
           s - alpha T (I + alpha Sigma)^-1 T'(diag u - u u') s with Sigma = Cov_u(T);
           "exact" solves the problem by Newton's method in float64 and returns the gradients of the solution.
    tolerance, max_steps: the stopping criterion of Newton's method, |mu - r - T'w| <= tolerance * max_j |t_j|, and the
           largest number of steps. A RuntimeWarning reports how many rows have not converged.
    """

    def __init__(self, order: int | str = 2, tolerance: float = TOLERANCE, max_steps: int = MAX_STEPS):
        super().__init__()
        if type(order) not in (int, str) or order not in ORDERS:  # True == 1
            raise ValueError(f"order={order!r}: allowed: 1, 2 and 'exact'")
        self.order = order
        self.tolerance, self.max_steps = inside_unit_interval("tolerance", tolerance), whole("max_steps", max_steps, 1)
        self.needs_keys = self.needs_fixed_alpha = order != 1
        self.proportional_to_prior = order == 1
        self.softmax = Softmax()

    def weights(self, s: Tensor, given: Given) -> Tensor:
        if self.order == 1:
            return softmax_over_keys(add_log_prior(s, given.log_prior))
        T, alpha = center_on_first(templates("fenchel", s, given)), positive_scale("fenchel", given.scale)
        if self.order == 2:
            return softmax_over_keys(second_order_logits(s, given, T, alpha))
        T, s = T.double(), s.double()
        log_u = log_preference(s, given.mask, given.log_prior)
        r = _newton_residual(log_u + s, log_u, T, alpha, self.tolerance, self.max_steps)
        with torch.no_grad():
            w = softmax_over_keys(log_u + s + alpha * r @ T.mT)
        stationary = log_u.exp() @ T - w @ T  # r, with a gradient through everything but w
        logits = log_u + s + alpha * (stationary + (r - stationary).detach()) @ T.mT
        weights = softmax_over_keys(logits)

        def adjoint(g: Tensor) -> Tensor:
            """(I + alpha K C)^-1 g with K = T T' and C = diag w - w w', by g - alpha T (I + alpha Cov_w(T))^-1 T'C g.

            This follows from d logits = d explicit - alpha K dw and dw = C d logits.
            """
            Cg = weights * (g - (weights * g).sum(-1, keepdim=True))
            return g - alpha * row_solve(T, weights, alpha, Cg @ T, self.tolerance) @ T.mT

        return ThroughGradient.apply(weights, adjoint)

    def fast_attend(self, q: Tensor, k: Tensor, v: Tensor, given: Given) -> Tensor | None:
        """Order 2 is softmax attention with transformed queries: with s = alpha T z, Eq. 14 becomes
        s2 = alpha T (I + alpha Sigma)^-1 z.
        """
        if self.order == "exact":
            return None
        if self.order == 2:
            q, given = second_order_queries(q, k, given), given._replace(scale=1.0)
        return self.softmax.fast_attend(q, k, v, given)


def solve(
    q: Tensor,
    k: Tensor,
    mask: Tensor | Mask | None = None,
    *,
    log_prior: Tensor | None = None,
    scale: float | Tensor | None = None,
) -> Tensor:
    """Returns lambda* (B, H, N, D) for the evidence z = q (B, H, N, D) and the templates k (B, H, M, D).

    It is used for figures. mask and log_prior are as in `Normalizer.forward`. scale is alpha and defaults to D ** -0.5.
    The result has the dtype of q and no gradient. It is 0 for a query that may see no key.
    """
    alpha = positive_scale("fenchel", q.shape[-1] ** -0.5 if scale is None else scale)
    with torch.no_grad(), without_autocast(q):
        s = masked_scores(dot_scores(q.double(), k.double(), alpha), mask)
        log_u = log_preference(s, mask, log_prior)
        T = center_on_first(without_padding(k.double(), s, mask))
        r = _newton_residual(log_u + s, log_u, T, alpha, TOLERANCE, MAX_STEPS)
        dead = (log_u + s).amax(-1, keepdim=True) == -torch.inf
        return (alpha * (q + r)).masked_fill(dead, 0.0).to(q.dtype)


# ------------------------------------------------------------------------------------------------------------- order 2


def second_order_logits(s: Tensor, given: Given, T: Tensor, alpha: float | Tensor) -> Tensor:
    """Eq. 14: log u + s - alpha T (I + alpha Sigma)^-1 T'(diag u - u u') s; s (B, H, N, M) is -inf where masked."""
    s = s.to(T.dtype)
    log_u = log_preference(s, given.mask, given.log_prior)
    u = log_u.exp()
    us = u * s.masked_fill(s == -torch.inf, 0.0)
    y = us @ T - us.sum(-1, keepdim=True) * (u @ T)  # T'(diag u - u u') s
    return log_u + s - alpha * covariance_solve(T, u, alpha, y) @ T.mT


def second_order_queries(q: Tensor, k: Tensor, given: Given) -> Tensor:
    """Returns alpha (I + alpha Sigma)^-1 q in the dtype of q."""
    alpha = positive_scale("fenchel", given.scale)
    with without_autocast(q):
        n_queries, n_keys = q.shape[-2], k.shape[-2]
        scores = upcast(q).new_empty(()).expand(1, 1, n_queries, n_keys)  # only the shape and dtype are used
        u = log_preference(scores, given.mask, given.log_prior).exp()
        T = center_on_first(without_padding(upcast(k), scores, given.mask))
        return (alpha * covariance_solve(T, u, alpha, upcast(q))).to(q.dtype)


# --------------------------------------------------------------------------------------------------------------- exact


@torch.no_grad()
def _newton_residual(
    log_w: Tensor, log_u: Tensor, T: Tensor, alpha: float | Tensor, tolerance: float, max_steps: int
) -> Tensor:
    """Returns r = lambda* / alpha - z, (B, H, N, D), without a gradient. It is 0 in dead rows.

    Emits a RuntimeWarning if some rows have not converged.

    log_w: log u + s, (B, H, N, M). log_u is broadcastable to it, and T is (B, H, M, D). All are float64.
    """
    mu = (log_u.exp() @ T).expand(*log_w.shape[:-1], -1)
    longest = T.norm(dim=-1)[..., None, :].masked_fill(log_u == -torch.inf, 0.0).amax(-1, keepdim=True)
    longest = longest.expand(*log_w.shape[:-1], 1)
    number = alpha.item() if isinstance(alpha, Tensor) else alpha
    r, residual = newton(log_w, T, mu, longest, number, tolerance, max_steps)
    late = residual > tolerance
    if late.any():
        warnings.warn(
            f"fenchel: {late.sum()} of {late.numel()} rows did not converge in max_steps={max_steps} steps: the "
            f"largest residual relative to the longest template is {residual.max():.1e}, tolerance={tolerance}",
            RuntimeWarning,
            stacklevel=3,
        )
    return r


def newton(
    log_w: Tensor, T: Tensor, mu: Tensor, longest: Tensor, alpha: float, tolerance: float, max_steps: int
) -> tuple[Tensor, Tensor]:
    """Solves argmax_r alpha (mu.r - |r|^2 / 2) - log sum_j exp(log_w + alpha T r)_j in each row, starting at r = 0.

    Shapes: log_w (B, H, N, M), T (B, H, M, D), mu (B, H, N, D), longest (B, H, N, 1) -> r (B, H, N, D) and the residual
    |mu - r - T'w| / longest (B, H, N, 1), which is at most `tolerance` in converged rows. Converged rows are removed
    from the iteration, the same number in every head.
    """
    top = log_w.amax(-1, keepdim=True)
    dead = top == -torch.inf
    log_w = torch.where(dead, 0.0, log_w - top)
    row = torch.arange(mu.shape[-2], device=mu.device)[:, None].expand(top.shape)  # index of each remaining row
    solution, residuals, r = torch.zeros_like(mu), torch.zeros_like(top), torch.zeros_like(mu)

    def objective(r: Tensor) -> tuple[Tensor, Tensor]:
        logits = log_w + alpha * r @ T.mT
        lse = logits.logsumexp(-1, keepdim=True)
        return alpha * (mu * r - r.square() / 2).sum(-1, keepdim=True) - lse, (logits - lse).exp()

    value, w = objective(r)
    for step in range(max_steps + 1):
        gradient = mu - r - w @ T  # divided by alpha
        residual = (gradient.norm(dim=-1, keepdim=True) / longest).masked_fill(dead | (longest == 0), 0.0)
        solution.scatter_(-2, row.expand(r.shape), r)
        residuals.scatter_(-2, row, residual)
        going = residual > tolerance
        gradient = gradient.masked_fill(~going, 0.0)  # converged rows do not move
        remaining = int(going.sum(-2).max())
        if remaining == 0 or step == max_steps:
            break
        if remaining < r.shape[-2]:
            keep = going.byte().argsort(-2, descending=True)[..., :remaining, :]
            log_w, mu, longest, dead, row, r, value, w, gradient, residual = (
                x.take_along_dim(keep, -2) for x in (log_w, mu, longest, dead, row, r, value, w, gradient, residual)
            )
        # a looser tolerance saves steps, and Newton's method still converges quadratically
        direction = row_solve(T, w, alpha, gradient, residual.clamp(max=0.1))
        gain = alpha * (gradient * direction).sum(-1, keepdim=True)
        r, value, w = climb(objective, r, value, direction, gain)
    return solution, residuals
