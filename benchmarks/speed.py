"""Measures the time and the memory of attention, forward and backward, for the other scripts."""

import gc
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor

Attend = Callable[..., Tensor]  # (q, k, v), each (B, H, N, D) -> (B, H, N, D)
Inputs = tuple[Tensor, Tensor, Tensor, Tensor]  # q, k, v and the gradient of the output


sdpa: Attend = F.scaled_dot_product_attention  # the fused softmax attention of torch


def make_inputs(shape: tuple[int, int, int, int], dtype: torch.dtype, device: str) -> Inputs:
    """Random q, k, v of the shape (B, H, N, D) that require gradients, and the gradient of the output."""
    generator = torch.Generator(device).manual_seed(shape[2])
    q, k, v, grad = (torch.randn(shape, generator=generator, device=device).to(dtype) for _ in range(4))
    return q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), grad


def step(attend: Attend, inputs: Inputs, _round: int = 0) -> int:
    """One forward pass, and one backward pass if the output has a gradient. Returns 1, the unit of work of `rates`."""
    *qkv, grad = inputs
    out = attend(*qkv)
    if out.requires_grad:
        out.backward(grad)
    for x in qkv:
        x.grad = None
    return 1


def rates(
    contestants: dict[str, Callable[[int], int]],
    rounds: int,
    device: str,
    warmup: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Measures the units of work per second of each contestant in each round.

    Contestants take turns, in reverse order in every other round. A contestant is called with the number
    of the round, and returns the units of work that it has done. The first `warmup` rounds are not counted. With one
    thread and the clock `time.process_time`, other processes disturb less.
    """
    synchronize = torch.cuda.synchronize if device.startswith("cuda") else lambda: None
    rates_of: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(warmup + rounds):
        for name in list(contestants)[:: 1 if number % 2 else -1]:
            gc.collect()
            synchronize()
            start = clock()
            units = contestants[name](number)
            synchronize()
            rates_of[name].append(units / (clock() - start))
    return {name: values[warmup:] for name, values in rates_of.items()}


def seconds_per_step(
    attends: dict[str, Attend], inputs: Inputs, rounds: int, warmup: int = 1
) -> dict[str, list[float]]:
    """Seconds of a `step` of each attention in each round."""
    steps: dict[str, Callable[[int], int]] = {name: partial(step, attend, inputs) for name, attend in attends.items()}
    rates_of = rates(steps, rounds, inputs[0].device.type, warmup)
    return {name: [1 / rate for rate in values] for name, values in rates_of.items()}


def ratio(seconds: dict[str, list[float]], name: str, base: str) -> float:
    """The time of `name` divided by that of `base`: the median over the rounds."""
    return median(a / b for a, b in zip(seconds[name], seconds[base], strict=True))


def peak(work: Callable[[], object], device: str) -> float:
    """The most MB (10^6 bytes) that torch's allocator held during `work`, in addition to those held before."""
    gc.collect()  # so that nothing older is freed during `work`
    if device.startswith("cuda"):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        return (torch.cuda.max_memory_allocated() - before) / 1e6
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        work()
    held = most = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most / 1e6
