"""Hybrid attention (HNAS): a trained mixture of DNAS and softmax ("Doubly-Normalized Attention", Sec. 6)."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from attnorm.attention.call_context import in_layer, may_look
from attnorm.attention.masking import dense_mask
from attnorm.attention.normalizers.base import Given, Normalizer, being_transformed
from attnorm.attention.normalizers.dnas import DNAS
from attnorm.attention.normalizers.shared.fixed_shares import Place, fixed_value, is_fraction
from attnorm.attention.normalizers.shared.hybrid_attention import HybridAttention
from attnorm.attention.normalizers.shared.key_bias import memory_linear
from attnorm.attention.normalizers.softmax import Softmax
from attnorm.attention.option_checks import one_of

FORMS = ("sigmoid", "clamp")
NAMES = {"sigmoid": "hybrid", "clamp": "share"}  # of the parameter: a state dict of the other form does not fit
SHARES = ("layer", "head")


class HNAS(Normalizer):
    """w = v * dnas + (1 - v) * softmax, where v is the trained hybrid weight (the paper's u).

    start: the initial value of v, in [0, 1].
    form:  "sigmoid" (v is the sigmoid of the parameter) or "clamp" (v is the parameter itself, and `project_` clamps it
           to [0, 1] after each update). A start of exactly 0 or 1 requires "clamp", because a saturated sigmoid has no
           gradient.
    per:   "layer" (one weight) or "head" (one weight for each of the `heads` heads).
    fixed: a hybrid weight that is not trained: a number; a list with a number per head; or a mapping from each site to
           a list with one of these per layer. `start`, `form` and `per` have no effect then.
    place: the site and the index of the layer, which select from such a mapping.
    """

    couples_queries = "all"
    safe_form = "hnas_prefix"
    finite_scores = True
    doubly_normalized: type[Normalizer] = DNAS

    def __init__(
        self,
        start: float = 0.5,
        form: str = "sigmoid",
        per: str = "layer",
        heads: int | None = None,
        fixed: Any = None,
        place: Place | None = None,
    ):
        super().__init__()
        self.form, self.per = one_of("form", form, FORMS), one_of("per", per, SHARES)
        if not is_fraction(start):
            raise ValueError(f"start={start!r}: allowed: numbers from 0 to 1")
        if form == "sigmoid" and start in (0, 1):
            raise ValueError(f"start={start!r}: a saturated sigmoid has no gradient; use form='clamp'")
        shares = heads if per == "head" else 1
        if shares is None:
            raise ValueError("per='head': needs heads=<number of heads>")
        self.is_fixed = fixed is not None
        self.parameter_start = float(start) if form == "clamp" else math.log(start / (1 - start))
        if self.is_fixed:
            self.register_buffer("fixed", fixed_value(fixed, place, heads, self.parse), persistent=False)
        else:
            self.register_parameter(NAMES[form], nn.Parameter(torch.full((shares,), self.parameter_start)))
        self.dnas, self.softmax = in_layer(self.doubly_normalized()), Softmax()  # whose masks are judged here

    def parse(self, value: Any) -> list[float]:
        """A fixed hybrid weight as a list: one for all heads, or one per head."""
        of_heads = value if isinstance(value, list) and value else [value]
        if not all(map(is_fraction, of_heads)):
            raise ValueError(f"fixed={value!r}: allowed: a number from 0 to 1, or a list with one per head")
        return of_heads

    @property
    def trained(self) -> nn.Parameter:
        """The parameter behind the hybrid weights; AttributeError if they are fixed."""
        parameter: nn.Parameter = getattr(self, NAMES[self.form])
        return parameter

    def hybrid_weight(self) -> Tensor:
        """Returns v, the share of the doubly-normalized weights, in [0, 1]. Shape (1,) or (heads,)."""
        if self.is_fixed:
            return self.fixed  # type: ignore[return-value]  # a buffer
        return self.trained.sigmoid() if self.form == "sigmoid" else self.trained

    @property
    def least_mass(self) -> float:  # type: ignore[override]  # it changes as the hybrid weights are trained
        """Each key keeps at least v / M: v times the bound of Lemma 1 for the doubly-normalized part."""
        return self.hybrid_weight().min().item()

    def learned_scalars(self) -> dict[str, Tensor]:
        """The hybrid weights, shape (1,) or (heads,), unless they are fixed."""
        return {} if self.is_fixed else {"hybrid_weights": self.hybrid_weight()}

    def fast_parameters(self) -> list[nn.Parameter]:
        """The parameter behind the hybrid weights, unless they are fixed."""
        return [] if self.is_fixed else [self.trained]

    @torch.no_grad()
    def project_(self) -> None:
        """Clamps the weight to [0, 1] if `form` is "clamp". It is called after each optimizer update."""
        if self.form == "clamp" and not self.is_fixed:
            self.trained.clamp_(0.0, 1.0)

    def mix(self, doubly: Tensor, softmax: Tensor) -> Tensor:
        """Returns v * doubly + (1 - v) * softmax, with v along the heads axis of (B, H, ., .)."""
        v = self.hybrid_weight()[:, None, None].to(doubly.dtype)
        return torch.lerp(softmax, doubly, v)  # avoids temporary tensors for the two products

    def weights(self, s: Tensor, given: Given) -> Tensor:
        doubly, softmax = self.dnas.weights(s, given), self.softmax.weights(s, given)
        overrides = not torch.compiler.is_compiling() and type(self).mix is not HNAS.mix
        if torch.compiler.is_compiling() or being_transformed() or not torch.is_grad_enabled() or overrides:
            return self.mix(doubly, softmax)
        return Interpolation.apply(doubly, softmax, self.hybrid_weight()[:, None, None].to(s.dtype))

    def fast_attend(self, q: Tensor, k: Tensor, v: Tensor, given: Given) -> Tensor | None:
        """Mixes the outputs of both parts if neither of them needs the (N, M) weights. A clamped hybrid weight always
        mixes outputs, so that a share of 0 gives those of softmax to the bit."""
        if self.form != "clamp" and not memory_linear(q, k, given):
            return self.attend_at_once(q, k, v, given)
        mask, log_prior, scale = given.mask, given.log_prior, given.scale
        parts = (part.attend(q, k, v, mask, log_prior=log_prior, scale=scale) for part in (self.dnas, self.softmax))
        return self.mix(*parts)

    def attend_at_once(self, q: Tensor, k: Tensor, v: Tensor, given: Given) -> Tensor | None:
        """Both parts from the same exponentials, or None where only `weights` computes them."""
        own = type(self).mix is not HNAS.mix or self.doubly_normalized is not DNAS
        narrow = q.dtype not in (torch.float32, torch.float64) or torch.is_autocast_enabled("cpu")
        if own or narrow or q.device.type != "cpu" or given.log_prior is not None or not may_look(q):
            return None
        pairs = q.new_empty(()).expand(*q.shape[:-1], k.shape[-2])
        allowed = dense_mask(given.mask, pairs)
        mask = None if allowed is None else allowed.to(q.dtype).expand_as(pairs)
        share = self.hybrid_weight()[:, None, None].to(q.dtype)
        return HybridAttention.apply(q, k, v, share, mask, given.scale)


class Interpolation(torch.autograd.Function):
    """v * doubly + (1 - v) * softmax. The gradient of `torch.lerp` would write two more matrices of weights."""

    @staticmethod
    def forward(ctx: Any, doubly: Tensor, softmax: Tensor, v: Tensor) -> Tensor:
        ctx.save_for_backward(doubly, softmax, v)
        return torch.lerp(softmax, doubly, v)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        doubly, softmax, v = ctx.saved_tensors
        of_v, buffer = None, None
        if ctx.needs_input_grad[2]:
            buffer = doubly - softmax
            of_v = g.flatten().dot(buffer.flatten()).view_as(v) if v.numel() == 1 else (g * buffer).sum_to_size(v.shape)
        of_doubly = torch.mul(g, v, out=None if torch.is_grad_enabled() else buffer)  # with second derivatives, anew
        return of_doubly, g - of_doubly, of_v
