"""What the property suite says: a line a property, the failing case, and the comparison that words it."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

Total = float | tuple[float, float] | None  # what a row sums to, see `Normalizer.total`
OF_NAN = (
    "; NaN can be a difference of two masked scores (-inf), or a trained number times one; `logsumexp_over_queries` is "
    "finite for keys that no query may see"
)
MARKS = {"ok": "ok  ", "failed": "FAIL", "skipped": "skip", "not tested": "    "}


class Failure(Exception):
    """A property does not hold; the message names the failing case."""


class Skip(Exception):
    """A property does not apply; the message says why."""


@dataclass(frozen=True)
class Result:
    """What became of one property.

    status: "ok", "failed", "skipped" (the class does not promise it), or "not tested" (it builds on one that failed).
    detail: the failing case, the reason, or the name of the property that failed.
    """

    name: str
    status: str
    meaning: str
    detail: str = ""

    def __str__(self) -> str:
        if self.status == "ok":
            return f"{MARKS['ok']}  {self.name}: {self.meaning}"
        if self.status in ("skipped", "not tested"):
            return f"{MARKS['skipped']}  {self.name}: ({self.detail})"
        indented = "".join(f"\n      {line}" for line in self.detail.splitlines())
        return f"{MARKS['failed']}  {self.name}: {self.meaning}{indented}"


@dataclass
class Report:
    """The results of all properties of one normalizer; `str(report)` is the text."""

    title: str
    results: list[Result] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """No property failed."""
        return not self.failures

    @property
    def failures(self) -> list[Result]:
        """Those that do not hold."""
        return [result for result in self.results if result.status == "failed"]

    @property
    def not_tested(self) -> list[str]:
        """One line for each property that failed and that others build on: their names, or how many there are."""
        after: dict[str, list[str]] = {}
        for result in self.results:
            if result.status == "not tested":
                after.setdefault(result.detail, []).append(result.name)
        return [
            f"not tested, because {cause} failed: "
            + (", ".join(names) if len(names) <= 3 else f"{len(names)} other properties")
            for cause, names in after.items()
        ]

    @property
    def summary(self) -> str:
        """'24 ok, 1 failed, 3 skipped', and ', 2 not tested' if there are any."""
        counts = {status: sum(result.status == status for result in self.results) for status in MARKS}
        return ", ".join(f"{count} {status}" for status, count in counts.items() if count or status != "not tested")

    def __str__(self) -> str:
        tested = [str(result) for result in self.results if result.status != "not tested"]
        return "\n".join([self.title, *tested, *self.not_tested, self.summary])


def expect(actual: Tensor, expected: Tensor, what: str, where: object, atol: float = 1e-8, rtol: float = 1e-6) -> None:
    """Raises Failure naming the worst entry where |actual - expected| > atol + rtol |expected|, or is not a number."""
    if actual.shape != expected.shape:
        raise Failure(f"{where}\n{what}: expected the shape {tuple(expected.shape)}, got {tuple(actual.shape)}")
    actual, expected = actual.detach().double(), expected.detach().double()
    allowed = atol + rtol * expected.abs()
    excess = ((actual - expected).abs() - allowed).nan_to_num(nan=torch.inf)
    if excess.numel() == 0 or excess.max() <= 0:
        return
    worst = tuple(int(i) for i in torch.unravel_index(excess.argmax(), excess.shape))
    difference = (actual - expected).abs()[worst]
    got = f"expected {expected[worst]:.6g}, got {actual[worst]:.6g}"
    raise Failure(
        f"{where}\n{what}{list(worst)}: {got}, difference {difference:.1e} (allowed {allowed[worst]:.1e})"
        f"{OF_NAN if actual[worst].isnan() else ''}"
    )


def at_least(actual: Tensor, smallest: Tensor | float, what: str, where: object, slack: float = 1e-8) -> None:
    """Raises Failure naming the worst entry below `smallest`."""
    smallest = torch.as_tensor(smallest, dtype=actual.dtype, device=actual.device)
    expect(actual, torch.maximum(actual, smallest), what, where, atol=slack, rtol=0)


def expect_row_sums(weights: Tensor, total: Total, live: Tensor, where: object, atol: float = 1e-8) -> None:
    """Raises Failure for a live row whose weights do not sum to `total`, or another row whose weights do not sum to 0.

    weights: (B, H, N, M); total: as `Normalizer.total`; live: bool, broadcastable to (B, H, N).
    """
    low, high = bounds_of(total)
    sums = weights.sum(-1)
    live = live.expand_as(sums)
    nearest = sums.detach().nan_to_num(nan=0.0).clamp(low, high).where(live, 0.0)
    expect(sums, nearest, "row sum" if low == high else f"row sum, declared total = {total}", where, atol=atol)


def bounds_of(total: Total) -> tuple[float, float]:
    """The smallest and the largest row sum that `Normalizer.total` allows. Raises Failure for any other value."""
    if total is None:
        return -math.inf, math.inf
    pair = total if isinstance(total, tuple) else (total, total)
    numbers = len(pair) == 2 and all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in pair)
    if not numbers or not pair[0] <= pair[1]:
        raise Failure(f"total={total!r}: expected a number, a pair (smallest, largest) or None")
    return pair


def finite(tensor: Tensor, what: str, where: object) -> None:
    """Raises Failure naming the first entry that is NaN or infinite."""
    bad = (~tensor.detach().isfinite()).nonzero()
    if len(bad):
        index = tuple(bad[0].tolist())
        got = f"expected a finite number, got {tensor[index]:.6g}{OF_NAN if tensor[index].isnan() else ''}"
        raise Failure(f"{where}\n{what}{list(index)}: {got}")
