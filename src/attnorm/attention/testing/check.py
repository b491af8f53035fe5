"""`check_normalizer`: all properties of one normalizer, a line each."""

import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from attnorm.attention.normalizers.base import Normalizer
from attnorm.attention.testing import agreement, coupling, precision, preference, rows
from attnorm.attention.testing.cases import Case, Subject
from attnorm.attention.testing.report import Failure, Report, Result, Skip
from attnorm.imports import nearest

FOUNDATIONS = ("results_have_the_shape_and_dtype_of_the_inputs", "masked_entries_are_zero", "dead_rows_give_zero")
_ALL: dict[str, Callable[[Subject], None]] = {
    check.__name__: check for part in (rows, coupling, preference, agreement, precision) for check in part.PROPERTIES
}
PROPERTIES = {name: _ALL[name] for name in (*FOUNDATIONS, *_ALL)}  # those that all others build on come first
BUILDS_ON = {  # the properties that build on one of the others
    "no_leak_in_causal_use": "couples_queries_as_declared",
    "step_equals_full_pass": "couples_queries_as_declared",
    "self_attention_is_permutation_equivariant": "keys_may_be_reordered",
    "learned_queries_are_permutation_invariant": "keys_may_be_reordered",
    "no_prior_no_weight": "rows_sum_to_total",
    "extreme_scores_stay_finite": "rows_sum_to_total",
}
OTHERWISE = {  # what a class declares that does not have the property by intention
    "weights_are_not_negative": "total = None",
    "keys_may_be_reordered": "key_equivariant = False",
    "queries_may_be_reordered": "query_equivariant = False",
    "a_key_shift_changes_nothing": "key_shift_invariant = False",
    "every_key_keeps_its_least_mass": "least_mass = 0.0",
    "a_row_constant_prior_changes_nothing": "prior_scale_invariant = False",
    "the_prior_multiplies_the_weights": "proportional_to_prior = False",
    "keys_are_used_only_if_declared": "needs_keys = True",
    "examples_and_heads_are_independent": "couples_heads = True (if it is heads that are coupled, not examples)",
}


def check_normalizer(
    factory: Callable[..., Normalizer],
    *,
    properties: Sequence[str] | None = None,
    seed: int = 0,
    device: str = "cpu",
    heads: int = 2,
    lengths: Sequence[tuple[int, int]] = ((33, 65), (128, 128), (300, 300)),
    print_report: bool = True,
) -> Report:
    """Holds a normalizer to what attention needs and to what its class declares (see `Normalizer`).

    Every property is tried on masks of all kinds (padding, causal, segments, random pairs, dead rows and columns;
    dense and compact), with and without priors, and prints a line: "ok", "FAIL" with the failing case (which mask,
    shapes, indices, the expected and the actual number, and what to declare if the class is right), or "skip" with the
    reason. Properties that build on one that failed are not tested, so that the first cause comes first.

    factory:    makes a normalizer when called without arguments: a class, or `lambda: MyNormalizer(p=2)`. If it has a
                parameter `heads`, `width` or `state_width` without a default, it is called with the number or the width
                of the heads, or the width of the states, as in a model.
    properties: names to try only some of PROPERTIES.
    seed:       of the random inputs.
    heads:      number of heads of the inputs.
    lengths:    (queries, keys) at which `attend` is compared with `forward` besides the short ones, so that fast
                paths are met too.

    Returns the report if nothing failed. Raises AssertionError otherwise: its message names the properties that failed
    if the report has been printed, and is the report if it has not. Raises ValueError for an unknown property or a
    factory that makes something else.
    """
    chosen = list(PROPERTIES) if properties is None else [properties] if isinstance(properties, str) else properties
    for name in chosen:
        if name not in PROPERTIES:
            allowed = ", ".join(PROPERTIES)
            raise ValueError(f"properties={name!r}: allowed: {allowed}.{nearest(name, PROPERTIES)}")
    say = print if print_report else lambda *_, **__: None
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(seed)
        subject = Subject(factory, seed, device, heads, tuple(lengths))
        title = f"{subject.normalizer!r}".splitlines()[0].rstrip("(")
        report = Report(f"{title}: {len(chosen)} properties, seed {seed}")
        say(report.title)
        for name in chosen:
            failed = {failure.name for failure in report.failures}
            cause = next((other for other in (*FOUNDATIONS, BUILDS_ON.get(name)) if other in failed), None)
            if cause is None:
                report.results.append(_result_of(name, subject))
                say(report.results[-1], flush=True)
            else:
                report.results.append(Result(name, "not tested", meaning_of(name), cause))
    say(*report.not_tested, report.summary, sep="\n")
    if not report.passed:
        names = ", ".join(failure.name for failure in report.failures)
        short = f"{report.title}: {report.summary}; failed: {names} (see the report printed above)"
        raise AssertionError(short if print_report else str(report))
    return report


def meaning_of(name: str) -> str:
    """The sentence of a property."""
    return (PROPERTIES[name].__doc__ or "").strip()


def _result_of(name: str, subject: Subject) -> Result:
    """Tries one property; whatever the normalizer raises is a failure of it, not of the suite."""
    check, subject.current = PROPERTIES[name], None
    meaning = meaning_of(name)
    try:
        check(subject)
    except Failure as failure:
        otherwise = f"\nIf this is intended, declare {OTHERWISE[name]}." if name in OTHERWISE else ""
        return Result(name, "failed", meaning, f"{failure}{otherwise}")
    except Skip as reason:
        return Result(name, "skipped", meaning, str(reason))
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        frame = [frame for frame in frames if "site-packages" not in frame.filename][-1]
        raised = f"raised {type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}: {error}"
        detail = f"{subject.current}\n{raised}{likely_cause(subject)}" if subject.current else raised
        return Result(name, "failed", meaning, detail)
    return Result(name, "ok", meaning)


def likely_cause(subject: Subject) -> str:
    """The form of the mask or the missing keys, if `forward` raises only because of them. "" otherwise."""
    case = subject.current
    assert case is not None
    form = "None" if case.mask is None else "a compact Mask"
    short = type(subject.normalizer).forward is Normalizer.forward
    advice = "the scores of `weights` are masked already." if short else "use masked_scores(scores, mask)."
    dense = replace(case, mask=case.allowed)
    keys = {"keys": case.k, "scale": case.scale}
    attempts: list[tuple[Case, dict[str, Any], str]] = [
        (case, {}, ""),  # another call than `forward` raised
        (dense, {}, f"The mask is {form} here, and a dense mask works; {advice}"),
        (case, keys, "With `keys` and `scale` it works; declare needs_keys = True."),
    ]
    for attempt, changes, words in attempts:
        try:
            subject.weights(attempt, **changes)
        except Exception:
            continue
        return f"\n{words}" if words else ""
    return ""
