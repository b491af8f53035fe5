"""The fused kernels of `attnorm.attention.linear.triton_kernels`: when they can be used, and how they are launched.

They are used on request alone, `ATTNORM_KERNEL=triton`. Unlike the kernels of torch, they take the bias and return its
gradient themselves, without extra channels, and skip masked keys at the end of a sequence.
"""

from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnorm.attention.linear.flash import SIXTEEN_BITS, Call, Gradients, consecutive

HIP = torch.version.hip is not None
WIDEST = 128  # the widest head: the blocks of wider ones do not fit into registers


class Blocks(NamedTuple):
    """How many queries and keys a program takes at a time, and its warps and stages of the pipeline of its loop."""

    queries: int
    keys: int
    warps: int
    stages: int


def blocks_of(kernel: str, dtype: torch.dtype, width: int, hip: bool = HIP) -> Blocks:
    """The blocks of a kernel, `forward`, `backward_queries` or `backward_keys`, for heads of a width.

    They compile without spilled registers for the GPUs that `benchmarks/kernel_compile.py` knows. They are not the
    fastest ones, because no GPU was at hand to measure them. In float32, a product is computed as three in tf32, whose
    parts take up registers.
    """
    if hip:
        return Blocks(64, 64, 4, 1) if dtype in SIXTEEN_BITS else Blocks(32, 32, 4, 1)
    if width <= 64:
        return Blocks(64, 64, 4, 2) if dtype in SIXTEEN_BITS else Blocks(32, 32, 8, 2)
    if dtype in SIXTEEN_BITS:
        wide = {"forward": (128, 64, 8), "backward_queries": (64, 64, 8), "backward_keys": (32, 64, 8)}
    else:
        wide = {"forward": (32, 32, 8), "backward_queries": (16, 32, 4), "backward_keys": (32, 16, 8)}
    return Blocks(*wide[kernel], 2)


class Triton:
    """Attention with a bias per key in Triton, for float32 and 16 bits and heads up to WIDEST."""

    name = "triton"

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, causal: bool
    ) -> tuple[Tensor, Tensor]:
        q, k, v = map(consecutive, (q, k, v))
        out, logsumexp = torch.empty_like(q), q.new_empty(q.shape[:-1], dtype=torch.float32)
        bias, seen = with_seen(bias)
        tensors = (q, k, v, bias, seen, out, logsumexp)
        launch("forward", q, k, scale, causal, *tensors, strides=(q, k, v, bias, out))
        return out, logsumexp

    def backward(self, grad_out: Tensor, grad_logsumexp: Tensor | None, call: Call, bias_needs_grad: bool) -> Gradients:
        q, k, v, out, grad_out = map(consecutive, (call.q, call.k, call.v, call.out, grad_out))
        (bias, seen), logsumexp, scale, causal = with_seen(call.bias), call.logsumexp.contiguous(), *call[-2:]
        grad_logsumexp = None if grad_logsumexp is None else grad_logsumexp.float().contiguous()
        grad_q, grad_k, grad_v = map(torch.empty_like, (q, k, v))
        grad_bias = logsumexp.new_empty(*k.shape[:2], 1, k.shape[-2]) if bias_needs_grad else None
        delta, inputs = torch.empty_like(logsumexp), (q, k, v, bias, seen)
        of_queries = (*inputs, out, logsumexp, grad_out, grad_logsumexp, delta, grad_q)
        rows = (q, k, v, bias, out, grad_out, grad_q)
        launch("backward_queries", q, k, scale, causal, *of_queries, strides=rows)
        of_keys = (*inputs, logsumexp, grad_out, delta, grad_k, grad_v, grad_bias)
        launch("backward_keys", q, k, scale, causal, *of_keys, strides=(q, k, v, bias, grad_out, grad_k, grad_v))
        return grad_q, grad_k, grad_v, grad_bias


def launch(
    kernel: str, q: Tensor, k: Tensor, scale: float, causal: bool, *tensors: Tensor | None, strides: tuple
) -> None:
    """Runs a kernel on tensors, followed by the strides of some of them, one program per head and block."""
    (batch, heads, queries, width), keys = q.shape, k.shape[-2]
    size = blocks_of(kernel, q.dtype, width)
    blocks = -(-keys // size.keys) if kernel == "backward_keys" else -(-queries // size.queries)
    if batch * heads * blocks == 0:
        return
    of_rows = [None if x is None else x.stride()[:3] for x in strides]
    sizes = scale, heads, queries, keys
    compiled_for = constants(kernel, q.dtype, width, causal) | compiler_options(size)
    program = getattr(load_kernels(q.device), kernel)
    with torch.cuda.device_of(q):
        program[(batch * heads * blocks,)](*tensors, *of_rows, *sizes, **compiled_for)


def constants(kernel: str, dtype: torch.dtype, width: int, causal: bool, hip: bool = HIP) -> dict[str, Any]:
    """The arguments that a kernel is compiled for."""
    size = blocks_of(kernel, dtype, width, hip)
    return {
        "WIDTH": width,
        "BLOCK_D": max(16, 1 << (width - 1).bit_length()),
        "BLOCK_N": size.queries,
        "BLOCK_M": size.keys,
        "CAUSAL": causal,
        # tensor cores compute a product in float32 as three in tf32; those of AMD have float32 itself
        "PRECISION": "ieee" if hip else "tf32x3",
    }


def compiler_options(size: Blocks) -> dict[str, Any]:
    """The options of the compiler. Its default for fused multiply-adds changes between versions."""
    return {"num_warps": size.warps, "num_stages": size.stages, "enable_fp_fusion": True}


def load_kernels(device: torch.device) -> ModuleType:
    """The module of the kernels. Raises ImportError without Triton, and RuntimeError where it does not run."""
    try:
        from attnorm.attention.linear import triton_kernels
    except ModuleNotFoundError as error:
        raise ImportError("Triton is not installed (pip install triton)") from error
    if device.type == "cpu" and isinstance(triton_kernels.forward, triton_kernels.triton.JITFunction):
        raise RuntimeError("Triton has no compiler for CPUs; TRITON_INTERPRET=1 interprets its kernels, for tests")
    return triton_kernels


def with_seen(bias: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """The bias (B, H, 1, M), and the position (B, H) after the last key that it does not mask."""
    if bias is None:
        return None, None
    positions = torch.arange(1, bias.shape[-1] + 1, dtype=torch.int32, device=bias.device)
    bias = consecutive(bias)
    return bias, torch.where(bias[..., 0, :] != -torch.inf, positions, 0).amax(-1)
