"""The calls agree with each other: attend with forward, gradients with differences, a call with the same again."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attnorm.attention.masking import Mask
from attnorm.attention.testing.cases import PRIORS, Case, Subject
from attnorm.attention.testing.report import Failure, Skip, expect

STEP = 1e-5  # of the finite differences
KINK = 1e-3  # one-sided differences further apart than this: the point lies on a kink


def attend_equals_forward_times_values(subject: Subject) -> None:
    """`attend` is forward(scale q k') v, in value and in every gradient, at every mask, prior, scale and length"""
    for salt, case in enumerate(subject.cases(PRIORS)):
        same_as_forward(subject, replace(case, scale=(0.3, case.scale, 1.0)[salt // 3 % 3]), 1e-8)
    case = subject.case("no mask", 5, 7)
    features = subject.features(case, subject.module())
    with_features: dict[str, Any] = {} if features is None else {"features": features}
    default = subject.module().attend(case.q, case.k, case.v, **with_features)
    expect(default, subject.attend(case), "attend", f"{case}\nwithout a scale: the default is D ** -0.5")
    if not subject.has_own_attend:
        return  # it calls forward at any length
    for n, m in subject.lengths:
        queries, keys = subject.lengths_mask(n, n, n - n // 5), subject.lengths_mask(m, m - m // 4, m)
        masks = {
            "no mask": None,
            "padded queries and keys (Mask)": Mask(queries=queries, keys=keys),
            "padded queries and keys (dense)": queries[:, None, :, None] & keys[:, None, None, :],
            "causal (Mask)": Mask(causal=True),
        }
        if n == m:
            texts = (torch.arange(n, device=subject.device) % 8 > 0).long()[None]  # of all examples; one with gaps
            masks["padded, segments (Mask)"] = Mask(queries=keys, keys=keys, segments=texts)
        for prior in ("no", "key"):
            for name, mask in masks.items():
                same_as_forward(subject, subject.case(name, n, m, mask, prior, salt=790), 1e-7)
            name = "padded queries and keys (Mask)"
            case = subject.case(name, n, m, masks[name], prior, dtype=torch.float32, salt=790)
            same_as_forward(subject, case, 2e-5)  # single precision, hundreds of terms
        same_as_forward(subject, subject.case(name, n, m, masks[name], "pairwise", salt=790), 1e-7)


def same_as_forward(subject: Subject, case: Case, tolerance: float) -> None:
    """`attend` against `forward`, to `tolerance` times the largest entry (at least 1)."""
    case = case.leaves()
    expected, actual = subject.weights(case).to(case.v.dtype) @ case.v, subject.attend(case)
    where = f"{case}\nattend against forward, scale {case.scale:.3g}"
    expect(actual, expected, "attend", where, atol=tolerance)
    expected_gradients, actual_gradients = subject.gradients(expected, case), subject.gradients(actual, case)
    for of, gradient in actual_gradients.items():
        atol = tolerance * max(1.0, float(expected_gradients[of].abs().max()))
        expect(gradient, expected_gradients[of], f"gradient of attend by {of}", where, atol=atol)


def gradients_equal_finite_differences(subject: Subject) -> None:
    """the gradients by scores, log_prior, parameters (and q and k, if needed) are what central differences show"""
    if not subject.normalizer.differentiable:
        raise Skip("declared differentiable = False")
    for salt, (name, n, m, mask) in enumerate(subject.masks()):
        for attempt in range(5):
            case = subject.case(name, n, m, mask, "pairwise", salt=800 + 20 * salt + 500 * attempt)
            if not kinked(subject, case):
                break
        else:
            raise Failure(f"{case}\nthe weights have a kink at each of 5 random points")


def kinked(subject: Subject, case: Case) -> bool:
    """Whether the case lies on a kink; Failure where it does not and autograd is still wrong."""
    case = replace(case, own_scores=case.scores.detach()).leaves()
    w = subject.weights(case)
    cotangent = subject.randn(*w.shape, salt=999)
    inputs = {**case.inputs(), **subject.parameters()}
    gradients = subject.gradients(w, case)
    for name in inputs:
        used = {"q": subject.normalizer.needs_queries, "k": subject.normalizer.needs_keys, "v": False}
        if not used.get(name, True):
            continue  # forward sees scores, and queries and keys if they are declared
        direction = subject.randn(*inputs[name].shape, salt=998)
        left, center, right = (inner(subject, case, cotangent, name, d * STEP * direction) for d in (-1, 0, 1))
        central, by_autograd = (right - left) / (2 * STEP), float((gradients[name] * direction).sum())
        if abs(central - by_autograd) <= 1e-5 * (1 + abs(central)):
            continue
        if abs((right - center) - (center - left)) > KINK * STEP * (1 + abs(central)):
            return True
        raise Failure(f"{case}\n{worst_entry(subject, case, cotangent, name, gradients[name])}")
    return False


@torch.no_grad()
def inner(subject: Subject, case: Case, cotangent: Tensor, name: str, change: Tensor) -> float:
    """<weights, cotangent> with one input or parameter changed."""
    module = subject.module()
    if name in subject.parameters():
        module = copy.deepcopy(module)
        dict(module.named_parameters())[name].add_(change)
    else:
        field = "own_scores" if name == "scores" else name
        case = replace(case, **{field: getattr(case, field) + change})
    return float((subject.weights(case, module) * cotangent).sum())


def worst_entry(subject: Subject, case: Case, cotangent: Tensor, name: str, gradient: Tensor) -> str:
    """The entry of a gradient that is furthest from its central difference, in words."""
    differences = torch.zeros(gradient.numel(), dtype=torch.float64)
    for i in range(gradient.numel()):
        one = torch.zeros_like(gradient).flatten()
        one[i] = STEP
        right, left = (inner(subject, case, cotangent, name, d * one.view_as(gradient)) for d in (1, -1))
        differences[i] = (right - left) / (2 * STEP)
    differences = differences.view(gradient.shape).to(gradient.device)
    worst = (differences - gradient).abs().nan_to_num(nan=torch.inf)
    index = tuple(int(i) for i in torch.unravel_index(worst.argmax(), worst.shape))
    return (
        f"gradient of the weights by {name}{list(index)}: expected {differences[index]:.6g} (central "
        f"difference), got {gradient[index]:.6g} (autograd), difference {worst[index]:.1e}"
    )


def second_derivatives_are_right_or_refused(subject: Subject) -> None:
    """the derivative of a gradient is what differences of gradients show, or an error says that there is none"""
    if not subject.normalizer.differentiable:
        raise Skip("declared differentiable = False")
    for salt, (name, n, m, mask) in enumerate(subject.masks()):
        for what, call in (("weights", subject.weights), ("attend", subject.attend)):
            for attempt in range(5):
                case = subject.case(name, n, m, mask, "key", salt=1400 + 20 * salt + 500 * attempt)
                if not bent(subject, case, what, call):
                    break
            else:
                raise Failure(f"{case}\nthe gradient of {what} jumps at each of 5 random points")


def bent(subject: Subject, case: Case, what: str, call: Callable[[Case], Tensor]) -> bool:
    """Whether the gradient jumps at the case; Failure where it does not and its derivative is still wrong."""
    directions = {name: subject.randn(*x.shape, salt=997) for name, x in case.inputs().items()}

    def slope(change: float) -> tuple[Tensor, Case]:
        """The derivative of a sum of the outputs along the directions, at a point on the line through the case."""
        moved: dict[str, Any] = {name: x + change * directions[name] for name, x in case.inputs().items()}
        at = replace(case, **moved).leaves()
        output, inputs = call(at), at.inputs()
        if not output.requires_grad:
            return output.new_zeros(()), at
        gradients = torch.autograd.grad(
            output, list(inputs.values()), subject.randn(*output.shape, salt=999), create_graph=True, allow_unused=True
        )
        pairs = zip(gradients, directions.values(), strict=True)
        return sum(((g * d).sum() for g, d in pairs if g is not None), output.new_zeros(())), at

    center, at = slope(0.0)
    if not center.requires_grad:
        return False  # linear
    try:
        second = torch.autograd.grad(center, list(at.inputs().values()), allow_unused=True)
    except RuntimeError as error:
        if "implemented" in str(error):
            return False
        raise
    by_autograd = sum(float((g * d).sum()) for g, d in zip(second, directions.values(), strict=True) if g is not None)
    left, right = (float(slope(change)[0].detach()) for change in (-STEP, STEP))
    central, middle = (right - left) / (2 * STEP), float(center.detach())
    if abs(central - by_autograd) <= 1e-4 * (1 + abs(central)):
        return False
    if abs((right - middle) - (middle - left)) > KINK * STEP * (1 + abs(central)):
        return True
    found = f"expected {central:.6g} (central difference), got {by_autograd:.6g} (autograd)"
    raise Failure(f"{case}\nsecond derivative of {what}: {found}")


def the_same_call_gives_the_same_bits(subject: Subject) -> None:
    """two calls, and a copy of the module in the other of train and eval mode, give bit-equal results"""
    for dtype in (torch.float64, torch.float32):
        for case in subject.cases(("key",), dtype):
            module = subject.module(dtype)
            other = copy.deepcopy(module).train(subject.normalizer.differentiable and not module.training)
            for name, call in (("weights", subject.weights), ("attend", subject.attend)):
                first = call(case)
                expect(call(case), first, name, f"{case}\nthe same call twice", atol=0, rtol=0)
                modes = f"{case}\nin eval against in train mode"
                expect(call(case, other), first, name, modes, atol=0, rtol=0)


def inputs_are_left_alone(subject: Subject) -> None:
    """neither call writes into the tensors it is given"""
    for case in subject.cases(PRIORS):
        case = replace(case, own_scores=case.scores)
        inputs = {**case.inputs(), **({"mask": case.mask} if isinstance(case.mask, Tensor) else {})}
        before = {name: x.clone() for name, x in inputs.items()}
        for name, call in (("forward", subject.weights), ("attend", subject.attend)):
            call(case)
            for of, x in inputs.items():
                expect(x, before[of], of, f"{case}\n{name} wrote into its input", atol=0, rtol=0)


PROPERTIES = [
    attend_equals_forward_times_values,
    gradients_equal_finite_differences,
    second_derivatives_are_right_or_refused,
    the_same_call_gives_the_same_bits,
    inputs_are_left_alone,
]
