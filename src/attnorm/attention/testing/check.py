"""`check_normalizer`: all properties of one normalizer, a line each."""

import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from attnorm.attention.normalizers.base import Normalizer
from attnorm.attention.testing import agreement, coupling, precision, preference, rows, symmetry
from attnorm.attention.testing.cases import Subject
from attnorm.attention.testing.report import Failure, Report, Result, Skip
from attnorm.imports import nearest

PROPERTIES: dict[str, Callable[[Subject], None]] = {
    check.__name__: check
    for part in (rows, coupling, symmetry, preference, agreement, precision)
    for check in part.PROPERTIES
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
    shapes, indices, the expected and the found number), or "skip" with the reason.

    factory:    makes a normalizer when called without arguments: a class, or `lambda: MyNormalizer(p=2)`. If it has a
                parameter `heads` or `width` without a default, it is called with the number or the width of the heads,
                as in a model.
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
        report = Report(
            f"{subject.normalizer!r}".splitlines()[0].rstrip("(") + f": {len(chosen)} properties, seed {seed}"
        )
        say(report.title)
        for name in chosen:
            report.results.append(result_of(name, subject))
            say(report.results[-1], flush=True)
    say(report.summary)
    if not report.passed:
        names = ", ".join(failure.name for failure in report.failures)
        short = f"{report.title}: {report.summary}; failed: {names} (see the report printed above)"
        raise AssertionError(short if print_report else str(report))
    return report


def result_of(name: str, subject: Subject) -> Result:
    """Tries one property; whatever the normalizer raises is a failure of it, not of the suite."""
    check, subject.current = PROPERTIES[name], None
    meaning = (check.__doc__ or "").strip()
    try:
        check(subject)
    except Failure as failure:
        return Result(name, "failed", meaning, str(failure))
    except Skip as reason:
        return Result(name, "skipped", meaning, str(reason))
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        frame = [frame for frame in frames if "site-packages" not in frame.filename][-1]
        raised = f"raised {type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}: {error}"
        return Result(name, "failed", meaning, f"{subject.current}\n{raised}" if subject.current else raised)
    return Result(name, "ok", meaning)
