"""Maximizes <p, s> - Omega(p) over the simplex, row by row, for an Omega that is given as a function or by its prox.

All functions work on the last axis of tensors (..., M) in float64. `allowed`, bool (..., M), marks the keys that take
part, at least one per row; the others have s = 0 and p = 0.
"""

from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

from attnorm.attention.normalizers.shared.solvers import conjugate_gradients

SMALLEST = 1e-20  # below this weight, a function is continued linearly: log p has no value and no gradient at p = 0
STEEPEST = 1e30  # stands for the infinite second derivative of a function at p = 0
SHRINK = 0.05  # the largest reduction of a weight per step at which Omega is steep
MEMORY = 8  # a step of `maximize_function` may end above the last objective, but not above the last MEMORY ones
EXACT = 1e-13  # the relative precision of linear systems
ENOUGH, HALVINGS = 1e-4, 50  # line search: the required share of the predicted decrease, and the maximum of halvings


def _project(x: Tensor, allowed: Tensor) -> Tensor:
    """argmin_{p in simplex} |p - x|^2 over the allowed keys."""
    return scaled_step(torch.zeros_like(x), -x, torch.ones_like(x), torch.zeros_like(x), allowed)[0]


def scaled_step(
    p: Tensor, gradient: Tensor, curvature: Tensor, lowest: Tensor, allowed: Tensor
) -> tuple[Tensor, Tensor]:
    """argmin_{q in simplex} <gradient, q> + 1/2 sum_j curvature_j (q_j - p_j)^2 over allowed keys, with q >= lowest.

    q_j = max(p_j - (gradient_j + tau) / curvature_j, lowest_j) is above lowest_j for
    tau < start_j = curvature_j (p_j - lowest_j) - gradient_j. tau is found by taking in the keys in decreasing order of
    start_j while they stay above.

    Returns q and -tau (..., 1), which is the gradient of the objective at the keys that are above.
    """
    start = (curvature * (p - lowest) - gradient).masked_fill(~allowed, -torch.inf)
    top = start.amax(-1, keepdim=True)
    start = start - top  # small differences keep their precision
    ordered, order = start.sort(-1, descending=True)
    width = (1 / curvature).gather(-1, order).masked_fill(ordered == -torch.inf, 0.0)
    filled = ordered.masked_fill(ordered == -torch.inf, 0.0) * width
    left = 1 - lowest.sum(-1, keepdim=True)
    taus = (filled.cumsum(-1) - left) / width.cumsum(-1)
    count = (ordered > taus).sum(-1, keepdim=True).clamp(min=1)
    tau = taus.gather(-1, count - 1)
    q = lowest + ((start - tau) / curvature).clamp(min=0.0)
    return q / q.sum(-1, keepdim=True), -(tau + top)


# ------------------------------------------------------------------------------------------- Omega given as a function


def derivatives(omega: Callable[[Tensor], Tensor], p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Omega (...), its gradient (..., M), and the row sums of its Hessian (..., M).

    The row sums are the exact second derivatives of an Omega that is a sum over keys. For others they are a guess that
    only affects the speed of `maximize_function`, so they are made positive.
    """
    with torch.enable_grad():
        q = p.clamp(min=SMALLEST).requires_grad_()
        value = omega(q)
        (gradient,) = torch.autograd.grad(value.sum(), q, create_graph=True)
        curvature = torch.ones_like(p)
        if gradient.requires_grad:
            (second,) = torch.autograd.grad(gradient.sum(), q, allow_unused=True)
            curvature = curvature if second is None else second.detach().abs().nan_to_num(STEEPEST).clamp(max=STEEPEST)
    gradient = gradient.detach()
    mean = (p * curvature).sum(-1, keepdim=True)
    value = value.detach() + ((p - q.detach()) * gradient).sum(-1)
    return value, gradient, torch.maximum(curvature, 1e-3 * mean + SMALLEST)


@torch.no_grad()
def maximize_function(
    omega: Callable[[Tensor], Tensor], s: Tensor, allowed: Tensor, tolerance: float, max_steps: int
) -> tuple[Tensor, Tensor]:
    """argmax_{p in simplex} <p, s> - Omega(p) by spectral projected gradient (Birgin, Martinez and Raydan 2000).

    Each step minimizes a quadratic model of Omega(p) - <p, s> over the simplex, whose Hessian is diagonal: the row sums
    of the Hessian of Omega times a factor per row, which the change of the gradient along the last step determines. If
    Omega is a sum over keys, this is Newton's method. A line search halves the step until the objective decreases.

    If Omega is steep at 0, as p log p is, the model may move a weight to 0 although the gradient there points back.
    Such a weight is only reduced by the factor SHRINK.

    omega: maps p (..., M) to Omega (...).

    Returns p and the residual (..., 1), max_j |p - project(p + s - grad Omega(p))|_j, which is at most `tolerance` in
    rows that have converged.
    """

    def objective(p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        value, gradient, curvature = derivatives(omega, p)
        return value[..., None] - (p * s).sum(-1, keepdim=True), gradient - s, curvature

    p = allowed / allowed.sum(-1, keepdim=True).to(s.dtype)
    value, gradient, curvature = objective(p)
    recent, factor = deque([value], MEMORY), torch.ones_like(value)
    for step in range(max_steps + 1):
        target = _project(p - gradient, allowed)
        residual = (p - target).abs().amax(-1, keepdim=True)
        going = residual > tolerance
        if step == max_steps or not going.any():
            break
        q, level = scaled_step(p, gradient, factor * curvature, torch.zeros_like(p), allowed)
        new = objective(torch.where(going, q, p))  # rows that have converged do not move
        back = allowed & (q == 0) & (p > SMALLEST) & (new[1] < level)
        if back.any():
            q, _ = scaled_step(p, gradient, factor * curvature, SHRINK * p * back, allowed)
            new = objective(torch.where(going, q, p))
        direction = (q - p).masked_fill(~going, 0.0)
        slope = (gradient * direction).sum(-1, keepdim=True)
        highest = torch.stack([*recent]).amax(0) + 1e-13 * (1 + value.abs())
        length = torch.ones_like(value)
        for _ in range(HALVINGS):
            enough = new[0] <= highest + ENOUGH * length * slope
            if enough.all():
                break
            length = torch.where(enough, length, length / 2)
            new = objective(p + length * direction)
        new_value, new_gradient, new_curvature = new
        change = length * direction
        bend = (change * (new_gradient - gradient)).sum(-1, keepdim=True)
        factor = (bend / (change * new_curvature * change).sum(-1, keepdim=True)).nan_to_num(1.0).clamp(1e-3, 1e6)
        p, value, gradient, curvature = p + change, new_value, new_gradient, new_curvature
        recent.append(value)
    p = p * ((target > 0) | (p > tolerance))  # exact zeros where the solution has them
    return p / p.sum(-1, keepdim=True), residual


def function_response(gradient: Tensor, p: Tensor, curvature: Tensor, support: Tensor, v: Tensor) -> Tensor:
    """dp for ds = v at the solution p of `maximize_function`: H dp = v - tau on the support, with sum_j dp_j = 0.

    gradient: grad Omega(p), with a graph back to p, by which products with the Hessian H are computed. curvature is the
    preconditioner of the conjugate gradients, so that one step suffices if Omega is a sum over keys.
    """
    inverse = (1 / curvature).masked_fill(~support, 0.0)

    def center(x: Tensor) -> Tensor:
        """Subtracts the tau for which the preconditioned x sums to 0."""
        tau = (inverse * x).sum(-1, keepdim=True) / inverse.sum(-1, keepdim=True)
        return (x - tau).masked_fill(~support, 0.0)

    def multiply(x: Tensor) -> Tensor:
        return center(torch.autograd.grad(gradient, p, x, retain_graph=True)[0])

    return conjugate_gradients(multiply, center(v), _rounding(inverse * v.square()), lambda r: inverse * r)


def _rounding(size_of_b: Tensor) -> Tensor:
    """`enough` of the conjugate gradients for b, a difference of terms of this size (..., M): smaller is rounding."""
    return EXACT**2 * size_of_b.sum(-1, keepdim=True)


# -------------------------------------------------------------------------------------------- Omega given by its prox


@torch.no_grad()
def maximize_prox(
    prox: Callable[[Tensor], Tensor], s: Tensor, allowed: Tensor, tolerance: float, max_steps: int
) -> tuple[Tensor, Tensor, Tensor]:
    """argmax_{p in simplex} <p, s> - 1/2 |p|^2 - g(p) by FISTA on the dual problem (Beck and Teboulle 2009).

    prox: x -> argmin_p 1/2 |p - x|^2 + g(p), for any convex g, which may be infinite; 0 at the other keys.

    With a subgradient y of g at the solution, p = project(s - y) and p = prox(y + p). The dual objective has Lipschitz
    constant 1 and its gradient is p, so a step of length 1 is y <- z - prox(z) with z = y + p. It is accelerated, and
    restarted in each row whose momentum points uphill (O'Donoghue and Candes 2015).

    Returns p, y, and the residual (..., 1), max_j |p - prox(y + p)|_j, which is at most `tolerance` in rows that have
    converged. The start y = s - prox(s) is already the solution if project(prox(s)) is, as for fusedmax.
    """

    # adding a number to a row of scores changes nothing, so let the threshold of sparsemax be 0
    highest = s.masked_fill(~allowed, -torch.inf).amax(-1, keepdim=True)
    s = (s - highest + _project(s, allowed).amax(-1, keepdim=True)).masked_fill(~allowed, 0.0)
    last = y = s - prox(s)
    momentum = torch.ones_like(s[..., :1])
    for step in range(max_steps + 1):
        p = _project(s - y, allowed)
        z = y + p
        q = prox(z)
        residual = (p - q).abs().amax(-1, keepdim=True)
        going = residual > tolerance
        if step == max_steps or not going.any():
            break
        new = z - q
        uphill = ((y - new) * (new - last)).sum(-1, keepdim=True) > 0
        momentum = momentum.masked_fill(uphill, 1.0)
        next_momentum = (1 + (1 + 4 * momentum.square()).sqrt()) / 2
        y = torch.where(going, new + (momentum - 1) / next_momentum * (new - last), y)
        last, momentum = new, next_momentum
    return p, y, residual


def prox_response(
    prox: Callable[[Tensor], Tensor], p: Tensor, y: Tensor, support: Tensor, allowed: Tensor, v: Tensor
) -> tuple[Tensor, Tensor]:
    """dp for ds = v at the solution of `maximize_prox`, and the response beta that a change of the prox itself has.

    With A and B, the Jacobians of the projection and of the prox, the fixed point gives dp = A (v - dy) and
    dp = B (dy + dp). A is the projection onto the directions on the support that sum to 0, and B is symmetric with
    eigenvalues in [0, 1], as the Jacobian of every prox. With C = I - B and dy = C w, this is
    (C A C + C B) w = C A v, which is symmetric, positive semidefinite and solvable even if y is not unique.

    If the values of the prox change by e, then <v, dp> changes by <beta, e> with beta = dp + dy.
    """
    with torch.enable_grad():
        z = (y + p).requires_grad_()
        q = prox(z)

    def A(x: Tensor) -> Tensor:
        x = x.masked_fill(~support, 0.0)
        return (x - x.sum(-1, keepdim=True) / support.sum(-1, keepdim=True)).masked_fill(~support, 0.0)

    def C(x: Tensor) -> Tensor:
        if not q.requires_grad:
            return x
        return (x - torch.autograd.grad(q, z, x, retain_graph=True)[0]).masked_fill(~allowed, 0.0)

    def multiply(w: Tensor) -> Tensor:
        Cw = C(w)
        return C(A(Cw) - Cw) + Cw  # C B = C - C C

    dy = C(conjugate_gradients(multiply, C(A(v)), _rounding(v.square())))
    dp = A(v - dy)
    return dp, dp + dy
