"""Floating-point operations: how many a model needs per token, and how many a device can make per second."""

import time
from functools import cache

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from attnorm.attention.multihead import observe
from attnorm.data.loader import ResumableLoader
from attnorm.data.sampler import MicroBatch
from attnorm.tasks.module import TaskModule
from attnorm.training.callbacks.attention_stats import in_evaluation

QUANTILES = (0.1, 0.5, 0.9)  # of the lengths of the training examples that are counted
FORWARD_AND_BACKWARD = 3  # the backward pass has two products for each one of the forward pass

PEAK_TFLOPS = {  # dense matrix products in (float32, TF32, 16 bits), by the manufacturers' data sheets
    "B200": (75.0, 1125.0, 2250.0),
    "H200": (66.9, 494.7, 989.4),
    "H100 PCIe": (51.2, 378.0, 756.0),
    "H100 NVL": (60.0, 417.0, 835.0),
    "H100": (66.9, 494.7, 989.4),
    "A100": (19.5, 156.0, 312.0),
    "L40S": (91.6, 183.0, 362.0),
    "L40": (90.5, 90.5, 181.0),
    "L4": (30.3, 60.0, 121.0),
    "A40": (37.4, 74.8, 149.7),
    "A30": (10.3, 82.0, 165.0),
    "A10G": (31.5, 35.0, 70.0),
    "A10": (31.2, 62.5, 125.0),
    "RTX A6000": (38.7, 77.4, 154.8),
    "RTX 4090": (82.6, 82.6, 165.2),
    "RTX 3090": (35.6, 35.6, 71.0),
    "V100": (15.7, 15.7, 125.0),
    "T4": (8.1, 8.1, 65.0),
}
SIZE, ROUNDS = 512, 5  # of the matrix products that measure a CPU


def flops_per_token(task: TaskModule, loader: ResumableLoader) -> float | None:
    """The floating-point operations of one token in training: 3 times those of the matrix products in a forward pass.

    They are counted by `torch.utils.flop_counter` for three training examples (a short one, the median and a long one),
    without padding, and with the dense form of attention. So the number is a property of the model and the data, and
    kernels that recompute values do not look faster than they are. None if there is nothing to count.

    The random generators are left as they were.
    """
    order = np.argsort(loader.sampler.lengths.sum(1), kind="stable")
    rows = [int(order[int(quantile * len(order))]) for quantile in QUANTILES]
    device, tokens = next(task.model.parameters()).device, 0
    counter = FlopCounterMode(display=False)
    forked = torch.random.fork_rng([device] if device.type == "cuda" else [])
    with torch.no_grad(), forked, in_evaluation(task.model), observe(task.model, lambda *_: None), counter:
        for row in rows:
            batch = {name: tensor.to(device) for name, tensor in loader.dataset[MicroBatch([row], 1)].items()}
            task.loss(batch)
            tokens += int(task.tokens(batch))
    operations = FORWARD_AND_BACKWARD * counter.get_total_flops()
    return operations / tokens if tokens and operations else None


def peak_flops(device: torch.device, precision: str) -> float | None:
    """The peak of a device for matrix products, in floating-point operations per second; None if it is unknown.

    For a GPU, the value of its data sheet. For a CPU, the speed of a product of two 512 x 512 matrices with the number
    of threads that the process uses, measured once, which takes about 0.05 s.

    precision: a value of trainer.precision.
    """
    kind = "64" if precision.startswith("64") else "32" if precision.startswith("32") else precision.split("-")[0]
    if device.type == "cpu":
        dtypes = {"64": torch.float64, "32": torch.float32, "16": torch.float16, "bf16": torch.bfloat16}
        return _measured(dtypes[kind], torch.get_num_threads()) if kind in dtypes else None
    if device.type != "cuda" or kind == "64":
        return None
    return known_peak(torch.cuda.get_device_name(device), kind, torch.get_float32_matmul_precision() != "highest")


def known_peak(name: str, kind: str, tf32: bool) -> float | None:
    """The peak of a GPU by its name, in floating-point operations per second. kind: "32", "16" or "bf16"."""
    words = name.replace("-", " ").split()
    if "Laptop" in words or "MIG" in words:  # other or smaller devices under the same name
        return None
    for known, (full, tensor, half) in PEAK_TFLOPS.items():
        if all(word in words for word in known.split()):
            if kind == "bf16" and known in ("V100", "T4"):  # these have no such units
                return None
            return 1e12 * (half if kind in ("16", "bf16") else tensor if tf32 else full)
    return None


@cache
def _measured(dtype: torch.dtype, threads: int) -> float:
    first, second = torch.ones(SIZE, SIZE, dtype=dtype), torch.ones(SIZE, SIZE, dtype=dtype)
    fastest = float("inf")
    for _ in range(ROUNDS):
        started = time.perf_counter()
        first @ second
        fastest = min(fastest, time.perf_counter() - started)
    return 2 * SIZE**3 / fastest
