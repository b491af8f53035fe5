"""The transport problem of `ot`, solved to second order and exactly.

Source: "Attention as Inference via Fenchel Duality", Eq. 37-45. With evidence z, the targets t (rows of T), the
preference u of the sources i, their smoothed preference u~ (Prop. 1) and its mean mu~ = T'u~, the problem is

    lambda* = argmax <mu~ + z, l> - |l|^2 / (2 alpha) - gamma sum_i u_i log sum_t exp((<t, l> - C_ti) / gamma)

(Eq. 38), and the weights are w(T lambda*), where w(s) is the first-order formula of `ot` (Eq. 37). With the scores
s = alpha T z and r = lambda*/alpha - z, everything is expressed in scores: w = w(s + alpha T r). In the optimum,
r = mu~ - T'w.

The derivative of w(s) is J(s) = (diag w - P diag(u) P') / gamma, where P_ti is the share of source i that arrives at
target t. T'J(s)T is therefore sum_i u_i Sigma_i / gamma, with the covariance Sigma_i of the targets under P_.i.
"""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from attnorm.attention.normalizers.shared.covariance import roundoff, solve_iteratively
from attnorm.attention.normalizers.shared.derivatives import ThroughGradient
from attnorm.attention.normalizers.shared.solvers import climb

WIDEST = 300.0  # the largest range of C / gamma for which 1 / Z^2 does not overflow
BUFFER = 2**24  # elements of the largest temporary tensor beyond it: 128 MiB


class Shares:
    """P_ti = exp((s_t - C_ti) / gamma) / Z_i, the share of source i that arrives at target t, for every row of scores.

    If the range of C / gamma allows it, P is kept as the product of E = exp(s / gamma), K = exp(-C / gamma) and 1 / Z,
    so that no (N, A, M) tensor is built.

    Shapes: s (B, H, N, A), -inf at masked targets; u broadcastable to (B, H, N, M); costs (B, H, A, M).
    """

    def __init__(self, s: Tensor, u: Tensor, costs: Tensor, gamma: float):
        self.u, self.gamma = u, gamma
        top = s.detach().amax(-1, keepdim=True)
        top = top.masked_fill(top == -torch.inf, 0.0)
        s, costs = (s - top) / gamma, relative(costs) / gamma
        self.P: Tensor | None = None
        if fits(costs):
            self.E, self.K = s.exp(), (-costs).exp()
            Z = self.E @ self.K
            self.Z = Z.masked_fill(Z == 0, 1.0)  # in dead rows
            log_Z = self.Z.log()
        else:
            logits = s.unsqueeze(-1) - costs.unsqueeze(-3)  # (B, H, N, A, M)
            dead = logits.detach().amax(-2, keepdim=True) == -torch.inf
            logits = logits.masked_fill(dead, 0.0)
            log_Z, self.P = logits.logsumexp(-2), logits.softmax(-2).masked_fill(dead, 0.0)
        self.potential = top + gamma * (u * log_Z).sum(-1, keepdim=True)  # gamma sum_i u_i log Z_i, up to a constant

    def of_sources(self, y: Tensor) -> Tensor:
        """P y: y, broadcastable to (B, H, N, M), one number per source -> (B, H, N, A)."""
        if self.P is None:
            return self.E * ((y / self.Z) @ self.K.mT)
        return (self.P @ y.unsqueeze(-1)).squeeze(-1)

    def of_targets(self, x: Tensor) -> Tensor:
        """P'x: x (B, H, N, A), one number per target -> its mean for each source, (B, H, N, M)."""
        if self.P is None:
            return ((self.E * x) @ self.K) / self.Z
        return (self.P.mT @ x.unsqueeze(-1)).squeeze(-1)

    def weights(self) -> Tensor:
        """w = P u, (B, H, N, A)."""
        return self.of_sources(self.u)

    def derivative(self, x: Tensor) -> Tensor:
        """J x = (w * x - P (u * P'x)) / gamma for x (B, H, N, A)."""
        return (self.weights() * x - self.of_sources(self.u * self.of_targets(x))) / self.gamma


def relative(costs: Tensor) -> Tensor:
    """The costs without a constant per source, which cancels: the cheapest target of a source costs 0."""
    return costs - costs.detach().amin(-2, keepdim=True)


def fits(costs: Tensor) -> bool:
    """Whether the exponentials of these relative costs, divided by gamma, may be multiplied and divided."""
    return bool(costs.detach().max() <= WIDEST)


def without_scores(s: Tensor) -> Tensor:
    """Scores of 0 at allowed targets, and -inf at the others."""
    return torch.zeros_like(s).masked_fill(s == -torch.inf, -torch.inf)


def curvature(shares: Shares, T: Tensor, alpha: float | Tensor) -> Callable[[Tensor], Tensor]:
    """The function p -> (I + alpha T'JT) p, row by row, for p (B, H, N, D)."""
    return lambda p: p + alpha * (shares.derivative(p @ T.mT) @ T)


# ------------------------------------------------------------------------------------------------------------- order 2


def second_order_scores(
    s: Tensor, log_u: Tensor, costs: Tensor, T: Tensor, alpha: float | Tensor, gamma: float
) -> Tensor:
    """s - alpha T (I + alpha T'JT)^-1 T'J s with J = J(0): T lambda for lambda = (I + alpha/gamma sum_i u_i Sigma_i)^-1
    alpha z, the last equation before Eq. 46. s (B, H, N, A) is -inf where masked."""
    shares = Shares(without_scores(s), log_u.exp(), costs, gamma)
    y = shares.derivative(s.masked_fill(s == -torch.inf, 0.0)) @ T
    multiply = curvature(shares, T, alpha)
    with torch.no_grad():
        x = solve_iteratively(multiply, y, roundoff(y))
    # the residual is 0 up to rounding, and its gradient reaches y and everything that the matrix depends on
    residual = ThroughGradient.apply(y - multiply(x), lambda g: solve_iteratively(multiply, g, roundoff(g)))
    return s - alpha * (x + residual) @ T.mT


# --------------------------------------------------------------------------------------------------------------- exact


def exact_weights(
    weights_of: Callable[[Tensor], Tensor],
    s: Tensor,
    log_u: Tensor,
    costs: Tensor,
    T: Tensor,
    alpha: float | Tensor,
    gamma: float,
    tolerance: float,
    max_steps: int,
) -> Tensor:
    """The solution of Eq. 38 by Newton's method, with the gradients of the solution: weights (B, H, N, A).

    weights_of: the first-order formula w(s) for these preferences and costs. All tensors are float64.
    """
    u = log_u.exp()
    mean = weights_of(without_scores(s)) @ T  # mu~
    with torch.no_grad():
        # None: all rows at once, because `Shares` needs no (N, A, M) tensor
        rows = None if fits(relative(costs) / gamma) else max(1, BUFFER // costs.numel())
        r = in_parts(
            lambda s, u, mean: _newton_residual(s, u, mean, costs, T, alpha, gamma, tolerance, max_steps),
            *(rows, s, u, mean),
        )
        w = weights_of(s + alpha * r @ T.mT)
    stationary = mean - w @ T  # r, with a gradient through everything but w
    logits = s + alpha * (stationary + (r - stationary).detach()) @ T.mT

    def adjoint(g: Tensor) -> Tensor:
        """(I + alpha T T'J)^-1 g, because dw = J (d explicit - alpha T T'dw)."""

        def of_part(logits: Tensor, u: Tensor, g: Tensor) -> Tensor:
            shares = Shares(logits, u, costs, gamma)
            y = solve_iteratively(curvature(shares, T, alpha), shares.derivative(g) @ T, tolerance)
            return g - alpha * y @ T.mT

        with torch.no_grad():
            return in_parts(of_part, rows, logits.detach(), u, g)

    return ThroughGradient.apply(weights_of(logits), adjoint)


def _newton_residual(
    s: Tensor,
    u: Tensor,
    mean: Tensor,
    costs: Tensor,
    T: Tensor,
    alpha: float | Tensor,
    gamma: float,
    tolerance: float,
    max_steps: int,
) -> Tensor:
    """Returns r = lambda*/alpha - z, (B, H, N, D): argmax_r alpha (mu~.r - |r|^2 / 2) - gamma sum_i u_i log Z_i.

    Z_i is taken at the scores s + alpha T r. Converged rows no longer move. Emits a RuntimeWarning if some rows have
    not converged, which is when |mu~ - r - T'w| exceeds `tolerance` times the longest template.
    """
    longest = T.norm(dim=-1)[..., None, :].masked_fill(s == -torch.inf, 0.0).amax(-1, keepdim=True)

    def objective(r: Tensor) -> tuple[Tensor, Shares]:
        shares = Shares(s + alpha * r @ T.mT, u, costs, gamma)
        return alpha * (mean * r - r.square() / 2).sum(-1, keepdim=True) - shares.potential, shares

    r = torch.zeros_like(mean)
    value, shares = objective(r)
    for step in range(max_steps + 1):
        gradient = mean - r - shares.weights() @ T  # divided by alpha
        residual = (gradient.norm(dim=-1, keepdim=True) / longest).masked_fill(longest == 0, 0.0)
        going = residual > tolerance
        if step == max_steps or not going.any():
            break
        gradient = gradient.masked_fill(~going, 0.0)
        # a looser tolerance saves steps, and Newton's method still converges quadratically
        direction = solve_iteratively(curvature(shares, T, alpha), gradient, residual.clamp(max=0.1))
        gain = alpha * (gradient * direction).sum(-1, keepdim=True)
        r, value, shares = climb(objective, r, value, direction, gain)
    if going.any():
        warnings.warn(
            f"ot: {going.sum()} of {going.numel()} rows did not converge in max_steps={max_steps} steps: the largest "
            f"residual relative to the longest template is {residual.max():.1e}, tolerance={tolerance}",
            RuntimeWarning,
            stacklevel=2,
        )
    return r


def in_parts(function: Callable[..., Tensor], rows: int | None, s: Tensor, u: Tensor, x: Tensor) -> Tensor:
    """function(s, u, x) for some rows at a time: s (B, H, N, A), u (B, H, 1 or N, M) and x (B, H, N, .)."""
    if rows is None:
        return function(s, u, x)
    starts = range(0, s.shape[-2], rows)
    each = [u if u.shape[-2] == 1 else u[..., start : start + rows, :] for start in starts]
    parts = zip(s.split(rows, -2), each, x.split(rows, -2), strict=True)
    return torch.cat([function(*part) for part in parts], -2)
