"""Regularized maxima: attention weights from one line of mathematics.

Source: "Neural Attention Mechanisms", smoothed max operators; Niculae and Blondel 2017.
"""

import inspect
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attnorm.attention.call_context import without_autocast
from attnorm.attention.normalizers.base import Given, add_log_prior
from attnorm.attention.normalizers.shared.derivatives import once_differentiable
from attnorm.attention.normalizers.shared.row_map import RowMap, map_rows
from attnorm.attention.normalizers.shared.simplex import (
    SMALLEST,
    derivatives,
    function_response,
    maximize_function,
    maximize_prox,
    prox_response,
)
from attnorm.attention.option_checks import inside_unit_interval, whole

LOWEST = -1e6  # scores further below the best score of their row are raised to this difference


class RegularizedMax(RowMap):
    """w_i = argmax_{p in simplex} <p, s_i> - Omega(p) for an Omega of your own, with s = scores + log u.

    Omega is given in one of two ways, as an argument or as a method of a subclass:

    - `omega(p)` is any strictly convex function of p that autograd can differentiate twice. It maps weights p
      (B, H, N, M) to Omega (B, H, N), one number per row. It is solved by projected gradient.
    - `prox(x)` = argmin_p 1/2 |p - x|^2 + g(p), along the last axis of x (B, H, N, M), stands for
      Omega(p) = 1/2 |p|^2 + g(p), where g is any convex function. It need not be differentiable or finite: a bound on p
      is a g too. It is solved by FISTA. `penalty(p)`, which maps p to g (B, H, N), is only needed for `value`.

    All of them are called in float64. A masked key has p = 1e-20, the smallest p that Omega is called with, and x = 0.
    A function with a parameter named `allowed` also receives the mask, bool (B, H, N, M). It needs the mask if such p
    or x would change Omega or the prox at other keys, for example if Omega compares neighbouring keys.

    The gradients are those of the solution, by the implicit function theorem, for the scores, the prior and everything
    that Omega depends on, such as parameters of a subclass. Below p = 1e-20, Omega is replaced by its tangent, so its
    derivative may be infinite at p = 0, as that of p log p.

    tolerance, max_steps: the stopping criterion and the largest number of steps. A row has converged if no entry of the
                          residual exceeds `tolerance`. The residual is p - project(p + s - grad Omega(p)), or
                          p - prox(y + p) with the subgradient y of g at p. A RuntimeWarning reports how many rows have
                          not converged, and their largest residual.
    """

    def __init__(
        self,
        omega: Callable[..., Tensor] | None = None,
        prox: Callable[..., Tensor] | None = None,
        penalty: Callable[..., Tensor] | None = None,
        *,
        tolerance: float = 1e-12,
        max_steps: int = 1000,
    ):
        super().__init__()
        self.tolerance, self.max_steps = inside_unit_interval("tolerance", tolerance), whole("max_steps", max_steps, 1)
        self.functions = {"omega": omega, "prox": prox, "penalty": penalty}
        for name, function in self.functions.items():
            if isinstance(function, torch.nn.Module):
                self.add_module(f"given_{name}", function)  # so that its parameters are trained
        if (self.function("omega") is None) == (self.function("prox") is None):
            raise ValueError("a regularized maximum needs either omega(p) or prox(x), as an argument or as a method")

    def function(self, name: str) -> Callable[..., Tensor] | None:
        """The function `omega`, `prox` or `penalty`: the argument, else the method of a subclass, else None."""
        return self.functions[name] or getattr(self, name, None)

    def apply_to(self, name: str, p: Tensor, allowed: Tensor) -> Tensor:
        """Calls a function with p (B, H, N, M), and with `allowed` if it takes it. A prox is 0 at the other keys.

        Raises ValueError if there is no such function, or if its result has the wrong shape.
        """
        function = self.function(name)
        if function is None:
            raise ValueError(f"value: Omega is given by prox(x), so its value also needs {name}(p)")
        takes = "allowed" in inspect.signature(getattr(function, "forward", function)).parameters  # that of a module
        result = function(p, allowed=allowed) if takes else function(p)
        wanted = p.shape if name == "prox" else p.shape[:-1]
        if result.shape != wanted:
            raise ValueError(f"{name}: returned the shape {tuple(result.shape)}, expected {tuple(wanted)}")
        return result.double().masked_fill(~allowed, 0.0) if name == "prox" else result.double()

    def regularizer(self, p: Tensor, allowed: Tensor) -> Tensor:
        """Omega(p), (B, H, N)."""
        p, allowed = p.double().clamp(min=SMALLEST), allowed | ~allowed.any(-1, keepdim=True)
        if self.function("prox") is None:
            return self.apply_to("omega", p, allowed)
        return p.square().sum(-1) / 2 + self.apply_to("penalty", p, allowed)

    def weights(self, s: Tensor, given: Given) -> Tensor:
        # the compiler cannot trace the derivatives of Omega, which the gradient of the solution differentiates again
        solution = torch.compiler.disable(self.solution) if torch.compiler.is_compiling() else self.solution
        return map_rows(solution, add_log_prior(s, given.log_prior))

    def solution(self, scores: Tensor, forbidden: Tensor) -> Tensor:
        """The weights (B, H, N, M) in float64 for scores that are -inf where forbidden, as from `map_rows`."""
        allowed = ~forbidden | forbidden.all(-1, keepdim=True)  # a dead row is solved too, as a row of zeros
        s = scores.double()
        s = (s - s.detach().amax(-1, keepdim=True)).clamp(min=LOWEST).masked_fill(~allowed, 0.0)
        solve = self.solve_prox if self.function("prox") else self.solve_function
        differentiate = torch.is_grad_enabled()  # `inference_mode(False)` would enable it
        with without_autocast(s), torch.inference_mode(False):
            if s.is_inference():
                s, allowed = s.clone(), allowed.clone()  # autograd, which differentiates Omega, refuses the originals
            return solve(s, allowed, differentiate)

    def solve_function(self, s: Tensor, allowed: Tensor, differentiate: bool) -> Tensor:
        omega = partial(self.apply_to, "omega", allowed=allowed)
        p, residual = maximize_function(omega, s.detach(), allowed, self.tolerance, self.max_steps)
        self.report(residual)
        if not differentiate:
            return p
        q = p.clamp(min=SMALLEST).requires_grad_()
        (gradient,) = torch.autograd.grad(omega(q).sum(), q, create_graph=True)
        if not gradient.requires_grad:
            raise ValueError("omega: is linear in p, but must be strictly convex")
        if not s.requires_grad and not omega(q.detach()).requires_grad:
            return p  # the gradient above depends on q only, which is no input
        curvature = derivatives(omega, p)[2]

        def response(v: Tensor) -> tuple[Tensor, Tensor]:
            dp = function_response(gradient, q, curvature, p > SMALLEST, v)
            return dp, -dp  # by s, and by the gradient of Omega, which stands for the parameters of Omega

        return Implicit.apply(p, s, gradient, response)

    def solve_prox(self, s: Tensor, allowed: Tensor, differentiate: bool) -> Tensor:
        prox = partial(self.apply_to, "prox", allowed=allowed)
        p, y, residual = maximize_prox(prox, s.detach(), allowed, self.tolerance, self.max_steps)
        self.report(residual)
        if not differentiate:
            return p
        return Implicit.apply(p, s, prox(y + p), partial(prox_response, prox, p, y, p > 0, allowed))

    def report(self, residual: Tensor) -> None:
        """Emits a RuntimeWarning if some rows have not converged."""
        late = ~(residual <= self.tolerance)
        if late.any():
            warnings.warn(
                f"{type(self).__name__}: {late.sum()} of {late.numel()} rows did not converge in "
                f"max_steps={self.max_steps} steps: the largest residual is {residual.max():.1e}, "
                f"tolerance={self.tolerance}",
                RuntimeWarning,
                stacklevel=2,
            )


class Implicit(torch.autograd.Function):
    """Returns the solution p. `response` maps its gradient to those of the scores s and of the second input x."""

    @staticmethod
    def forward(
        ctx: Any, p: Tensor, s: Tensor, x: Tensor, response: Callable[[Tensor], tuple[Tensor, Tensor]]
    ) -> Tensor:
        ctx.save_for_backward(s, x)
        ctx.response = response
        return p.view_as(p)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *ctx.response(v), None)
