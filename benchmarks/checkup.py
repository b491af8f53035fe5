"""Examines attention on a device: which kernels are right, how fast the normalizers are, and why one is slow.

`doctor.py` prints and stores the results.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, product, takewhile
from statistics import median
from typing import NamedTuple

import torch
from speed import Attend, make_inputs, peak, sdpa, seconds_per_step, step
from torch import Tensor

from attnorm.attention.linear import kernels
from attnorm.attention.linear.flash import head_slices
from attnorm.attention.normalizers.base import Given
from attnorm.attention.normalizers.shared.key_bias import DENSE_UP_TO, memory_linear
from attnorm.attention.registry import build_normalizer

BASE = "SDPA"
EXPECTED = {"softmax": 1.0, "dnas": 2.0, "hnas": 3.0}  # times SDPA: attention passes over all pairs
SLOW = 1.25  # times what is expected
SHORT = 0.5  # milliseconds: below it, starting the kernels takes a large part of the time


class Sizes(NamedTuple):
    """What is examined: the head widths of the self-checks, and the problems whose speed is measured.

    lengths: numbers of queries, which are those of the keys, in increasing order.
    width:   the head width of the measured problems, one of `widths`.
    rounds:  how often each of them is measured, at most.
    """

    widths: Sequence[int]
    dtypes: Sequence[torch.dtype]
    lengths: Sequence[int]
    measured_dtypes: Sequence[torch.dtype]
    batch: int
    heads: int
    width: int = 64
    rounds: int = 9


class SelfCheck(NamedTuple):
    """The outcomes of the kernels that may serve for a dtype and a head width, in the order of preference.

    kernel:   the one that is used, the first that passes.
    outcomes: the reason for which each kernel failed, or None if it passed.
    """

    dtype: str
    width: int
    causal: bool
    kernel: str
    outcomes: dict[str, str | None]

    @property
    def refused(self) -> dict[str, str]:
        """The kernels that would be preferred if they had not failed, with the reasons."""
        return {name: str(self.outcomes[name]) for name in takewhile(lambda name: name != self.kernel, self.outcomes)}


class Speed(NamedTuple):
    """Time and memory of an attention, forward and backward.

    computed_by:     the kernel, "dense" for the (N, N) weights, or the kernel of torch behind SDPA.
    milliseconds:    the median over the rounds.
    ratio:           how much longer it took than SDPA, the median over the rounds.
    lowest, highest: the range of these ratios.
    megabytes:       the peak of what torch allocated, inputs and gradients included.
    memory_ratio:    to the peak of SDPA.
    """

    dtype: str
    length: int
    attention: str
    computed_by: str
    rounds: int
    milliseconds: float
    ratio: float
    lowest: float
    highest: float
    megabytes: float
    memory_ratio: float


class LeftOut(NamedTuple):
    """An attention that was not measured at a length, nor at longer ones."""

    dtype: str
    length: int
    attention: str
    why: str


class Slow(NamedTuple):
    """A measured attention that is slower than expected."""

    dtype: str
    length: int
    attention: str
    ratio: float
    expected: float
    why: tuple[str, ...]


def default_sizes(device: str) -> Sizes:
    """The sizes for "cpu" or "cuda"."""
    widths, lengths = (32, 64, 128, 256), (512, 1024, 2048, 4096, 8192, 16384)
    dtypes = torch.float32, torch.bfloat16, torch.float16, torch.float64
    if device == "cpu":
        return Sizes(widths, dtypes, lengths, (torch.float32,), batch=1, heads=4)
    half = torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    return Sizes(widths, dtypes, lengths, (half, torch.float32), batch=4, heads=12)


def kernel_checks(device: torch.device, dtypes: Iterable[torch.dtype], widths: Iterable[int]) -> list[SelfCheck]:
    """Checks every kernel that may serve on a device, also those after the one that is used, and the last resort."""
    checks = []
    for dtype, width, causal in product(dtypes, widths, (False, True)):
        case, fallback = (device, dtype, width, causal), kernels.FALLBACK
        outcomes = {
            kernel.name: kernels.check(kernel, case) for kernel in [*kernels.candidate_kernels(*case[:3]), fallback]
        }
        used = next((name for name, reason in outcomes.items() if reason is None), fallback.name)
        checks.append(SelfCheck(str(dtype).removeprefix("torch."), width, causal, used, outcomes))
    return checks


def speeds(sizes: Sizes, dtype: torch.dtype, device: str, seconds: float) -> Iterator[Speed | LeftOut]:
    """Measures SDPA and the normalizers at increasing lengths, in about that many seconds.

    All attentions take turns, round by round. The time of a step at the next length is projected from the last one with
    the square of the length. An attention for which the time that is left is too short, or that fails, is left out from
    there on; without SDPA, all are. The first length is measured in any case.
    """
    attends: dict[str, Attend] = {BASE: sdpa} | {name: build_normalizer(name).to(device).attend for name in EXPECTED}
    end, before = time.perf_counter() + seconds, dict.fromkeys(attends, 0.0)  # seconds of a step at the last length
    dtype_name = str(dtype).removeprefix("torch.")
    for shorter, length in pairwise([sizes.lengths[0], *sizes.lengths]):
        shape, growth = (sizes.batch, sizes.heads, length, sizes.width), (length / shorter) ** 2
        megabytes, first = dict[str, float](), dict[str, float]()
        for name, last in before.items():
            left = max(0.0, end - time.perf_counter() - growth * sum(before[name] for name in first))
            if name != BASE and BASE not in first:
                why = f"{BASE} is left out"
            elif 2 * growth * last > left:  # a step for the memory, and one round
                why = f"a step would take about {growth * last:.1f} s, and {left:.0f} s are left"
            else:
                try:
                    first[name], megabytes[name] = one_step(attends[name], shape, dtype, device)
                    continue
                except Exception as error:  # of any kind: what cannot be measured is part of the result
                    why = reason(error)
            yield LeftOut(dtype_name, length, name, why)
        if not first:
            return
        rounds = max(1, min(sizes.rounds, int((end - time.perf_counter()) / 6 / sum(first.values()))))
        inputs = make_inputs(shape, dtype, device)
        try:
            seconds_of = seconds_per_step({name: attends[name] for name in first}, inputs, rounds, warmup=0)
        except Exception as error:
            yield from (LeftOut(dtype_name, length, name, reason(error)) for name in first)
            return
        for name, values in seconds_of.items():
            ratios = [a / b for a, b in zip(values, seconds_of[BASE], strict=True)]
            spread = median(ratios), min(ratios), max(ratios)
            case = dtype_name, length, name, computed_by(name, inputs[0])
            yield Speed(
                *case, rounds, 1000 * median(values), *spread, megabytes[name], megabytes[name] / megabytes[BASE]
            )
        before = {name: median(values) for name, values in seconds_of.items()}


def one_step(attend: Attend, shape: tuple[int, int, int, int], dtype: torch.dtype, device: str) -> tuple[float, float]:
    """Seconds and MB of a step, on inputs that are made for it."""
    start = time.perf_counter()
    megabytes = peak(lambda: step(attend, make_inputs(shape, dtype, device)), device)
    return time.perf_counter() - start, megabytes


def reason(error: Exception) -> str:
    """The type of an error, and the first line of its message."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def computed_by(name: str, q: Tensor) -> str:
    """What computes an attention of q (B, H, N, D) with as many keys."""
    if name in (BASE, "softmax"):  # without a mask, softmax is SDPA
        try:
            return torch.nn.attention.SDPBackend(torch._fused_sdp_choice(q, q, q)).name.lower()
        except Exception:  # a private function of torch
            return "unknown"
    return kernels.kernel_for(q, False).name if memory_linear(q, q, Given()) else "dense"


def slower(measured: Sequence[Speed], checks: Iterable[SelfCheck], sizes: Sizes, device: str) -> list[Slow]:
    """What is slower than expected in the results of `speeds`, given those of `kernel_checks`, with likely reasons."""
    by_case = {(speed.dtype, speed.length, speed.attention): speed for speed in measured}
    by_dtype = {speed.dtype: speed for speed in checks if speed.width == sizes.width and not speed.causal}
    slow = []
    for speed in measured:
        expected = EXPECTED.get(speed.attention, 1.0)
        if speed.ratio > SLOW * expected:
            base = by_case[speed.dtype, speed.length, BASE]
            control = by_case.get((speed.dtype, speed.length, "softmax"))
            why = reasons(speed, base, control, by_dtype[speed.dtype], sizes, device)
            slow.append(Slow(*speed[:3], speed.ratio, expected, tuple(why) or ("no reason is known",)))
    return slow


def reasons(
    speed: Speed, base: Speed, control: Speed | None, check: SelfCheck, sizes: Sizes, device: str
) -> Iterator[str]:
    """Why an attention may be slower than expected; the last ones are signs that other programs have disturbed it."""
    if speed.computed_by == "dense":
        most = int(DENSE_UP_TO.get(device, 0) ** 0.5)
        yield f"the dense form computes it: on {device}, kernels are used above {most} x {most} pairs"
    elif speed.computed_by != kernels.FALLBACK.name and not speed.computed_by.startswith(base.computed_by):
        yield f"{speed.computed_by} computes it, and {base.computed_by} computes {BASE}"
    if speed.computed_by == check.kernel and speed.attention != "softmax":
        yield from (f"{name} failed its self-check: {why}" for name, why in check.refused.items())
        if check.kernel == kernels.FALLBACK.name:
            yield f"{check.kernel} computes it: no fused kernel {'passed' if check.refused else 'serves this dtype'}"
    if device == "cpu" and speed.computed_by not in ("dense", base.computed_by):
        x = torch.empty(()).expand(sizes.batch, sizes.heads, speed.length, sizes.width)
        at_once, threads = next(head_slices(x, x)).stop, torch.get_num_threads()
        if sizes.batch * at_once < min(threads, sizes.batch * sizes.heads):
            yield f"the backward pass takes {at_once} of {sizes.heads} heads at a time, for {threads} threads"
    if base.milliseconds < SHORT:
        yield f"{BASE} takes {base.milliseconds:.2f} ms, so that starting the kernels counts"

    if control is not None and not 1 / SLOW <= control.ratio <= SLOW:
        yield f"noise: softmax, which calls {BASE}, took {control.ratio:.2f} times as long as {BASE}"
    if speed.rounds == 1:
        yield "noise: a single round"
    elif speed.highest > 2 * speed.lowest:
        yield f"noise: the rounds range from {speed.lowest:.2f}x to {speed.highest:.2f}x"
