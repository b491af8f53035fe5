"""Properties of the arithmetic: shapes and dtypes, extreme scores, 16 bits."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from attnorm.attention.masking import Mask
from attnorm.attention.testing.cases import Case, Subject
from attnorm.attention.testing.report import Failure, Skip, expect, expect_row_sums, finite

ROUNDOFF = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}  # of one rounding, relative
SMALLEST = {torch.bfloat16: 0.0, torch.float16: 2.0**-24}  # float16 rounds tiny weights to its subnormals


def results_have_the_shape_and_dtype_of_the_inputs(subject: Subject) -> None:
    """weights look like the scores, `attend` like the queries with the width of the values, in every dtype"""
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        for case in subject.cases(("no", "key"), dtype):
            for name, result, like in (
                ("weights", subject.weights(case), case.scores),
                ("attend", subject.attend(case), case.q),
            ):
                for what in ("shape", "dtype", "device"):
                    got, expected = getattr(result, what), getattr(like, what)
                    if got != expected:
                        raise Failure(f"{case}\n{name}: expected the {what} {expected}, got {got}")


def extreme_scores_stay_finite(subject: Subject) -> None:
    """scores of 1e4 of either sign leave weights and gradients finite and row sums at `total`"""
    for dtype, prior, tolerance in ((torch.float64, "no", 1e-6), (torch.float32, "key", 1e-4)):
        for case in subject.cases((prior,), dtype):
            scores = case.scores
            alternating = torch.ones_like(scores)
            alternating[..., ::2, ::2] = -1
            cases = {
                "times 1e4": scores * 1e4,
                "plus 1e4": scores + 1e4,
                "minus 1e4": scores - 1e4,
                "+-1e4 in turns": scores + 1e4 * alternating,
                "of the first query plus 1e4": torch.cat([scores[..., :1, :] + 1e4, scores[..., 1:, :]], -2),
            }
            changes: dict[str, dict[str, Any]] = {name: {"own_scores": extreme} for name, extreme in cases.items()}
            if subject.normalizer.needs_queries:
                changes["of queries times 1e4"] = {"q": case.q * 1e4}
            for name, change in changes.items():
                changed, where = replace(case, **change).leaves(), f"{case}\nscores {name}"
                w = subject.weights(changed)
                live = case.allowed.any(-1)
                finite(w, "weights", where)
                expect_row_sums(w, subject.normalizer.total, live, where, atol=tolerance)
                for of, gradient in subject.gradients(w, changed).items():
                    finite(gradient, f"gradient of the weights by {of}", where)


class NoSixteenBits(TorchFunctionMode):
    """Failure where an operation on wider inputs makes a 16-bit tensor: even if all calls are rounded alike."""

    def __init__(self, where: Case):
        super().__init__()
        self.where = where

    def __torch_function__(
        self, function: Callable, types: Any, arguments: tuple = (), options: dict | None = None
    ) -> Any:
        result = function(*arguments, **(options or {}))
        if isinstance(result, Tensor) and result.dtype in ROUNDOFF:
            raise Failure(f"{self.where}\ncomputed in 16 bits: {function.__name__} gave a {result.dtype} tensor")
        return result


def weights_are_computed_in_float32_or_wider(subject: Subject) -> None:
    """float32 agrees with float64, autocast changes nothing, and 16-bit weights are those of float32 rounded once"""
    for factor, prior in ((1, "no"), (4, "key")):
        for case in subject.cases((prior,)):
            single = case.at(torch.float32)
            single = replace(single, own_scores=factor * single.scores)
            w = subject.weights(single)
            scaled = f"scores times {factor}"
            where = f"{single}\n{scaled}, float32 against float64"
            with NoSixteenBits(single):
                subject.weights(single)
            expect(w, subject.weights(single.at(torch.float64)), "weights", where, atol=3e-5, rtol=1e-4)
            with torch.autocast(case.q.device.type, torch.bfloat16):
                cast = subject.weights(single)
            expect(cast, w, "weights", f"{single}\n{scaled}, under bfloat16 autocast", atol=1e-5, rtol=1e-4)
            for dtype, roundoff in ROUNDOFF.items():
                narrow = single.at(dtype)
                where = f"{narrow}\n{scaled}, against float32 on the same rounded inputs"
                expected, smallest = subject.weights(narrow.at(torch.float32)), SMALLEST[dtype]
                expect(subject.weights(narrow), expected, "weights", where, atol=2 * smallest + 1e-9, rtol=2 * roundoff)


def sixteen_bit_attend_is_as_accurate_as_softmax(subject: Subject) -> None:
    """`attend` in bfloat16 and float16 is finite, its error at most 1.5 times that of torch's own softmax attention"""
    if subject.normalizer.total == 0:
        raise Skip("declared total = 0: `attend` is 0, which has no relative error")
    for dtype, roundoff in ROUNDOFF.items():
        for n, m in subject.lengths if subject.has_own_attend else subject.lengths[:1]:
            queries, keys = subject.lengths_mask(n, n, n - n // 5), subject.lengths_mask(m, m - m // 4, m)
            for prior in ("no", "key"):
                for name, mask in (("no mask", None), ("padded (Mask)", Mask(queries=queries, keys=keys))):
                    case = subject.case(name, n, m, mask, prior, dtype=dtype, salt=890)
                    exact, out = case.at(torch.float64), subject.attend(case)
                    finite(out, "attend", case)
                    error = _relative_error(out, subject.attend(exact))
                    stock = _relative_error(softmax(case), softmax(exact))
                    allowed = 1.5 * stock + roundoff / 4
                    if not error <= allowed:
                        raise Failure(
                            f"{case}\nattend: relative error {error:.2%} against float64; torch's softmax attention "
                            f"makes {stock:.2%} on the same inputs (allowed {allowed:.2%})"
                        )


def softmax(case: Case) -> Tensor:
    """Torch's attention, 0 at dead rows."""
    dead = ~case.allowed.any(-1, keepdim=True)
    bias = case.allowed | dead
    if case.log_prior is not None:
        bias = torch.where(bias, case.log_prior, -torch.inf)
    out = F.scaled_dot_product_attention(case.q, case.k, case.v, attn_mask=bias, scale=case.scale)
    return out.masked_fill(dead, 0.0)


def _relative_error(actual: Tensor, exact: Tensor) -> float:
    """|actual - exact| / |exact|, Euclidean."""
    return float((actual.detach().double() - exact.detach()).norm() / exact.detach().norm())


PROPERTIES = [
    results_have_the_shape_and_dtype_of_the_inputs,
    extreme_scores_stay_finite,
    weights_are_computed_in_float32_or_wider,
    sixteen_bit_attend_is_as_accurate_as_softmax,
]
