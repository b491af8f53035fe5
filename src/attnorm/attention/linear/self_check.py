"""A small problem on which a kernel must agree with the dense formula, in value and in every gradient."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from attnorm.attention.linear.flash import Call, Kernel

BATCH, HEADS, QUERIES, KEYS = 2, 2, 70, 150  # no multiple of a kernel's blocks, and more than one block of each
PARTS = ("output", "logsumexp", "gradient of q", "gradient of k", "gradient of v", "gradient of the bias")


def disagreement(kernel: Kernel, device: torch.device, dtype: torch.dtype, width: int) -> str | None:
    """What is wrong with a kernel, or None if it agrees with the dense formula in float64 on the CPU.

    Compared are the output, the logsumexp and the gradients of q, k, v and the bias: with a bias that masks some keys
    of one example and all keys of another one, with a finite bias, and without a bias. The global random state is not
    used. May raise what the kernel raises.
    """
    allowed = tolerance(dtype)
    for name, bias in biases().items():
        q, k, v, grad_out = (x.to(device, dtype) for x in tensors(width))
        scale = width**-0.5
        on_device = None if bias is None else bias.to(device, torch.promote_types(dtype, torch.float32))
        out, logsumexp = kernel.forward(q, k, v, on_device, scale)
        call = Call(q, k, v, on_device, out, logsumexp, scale)
        grads = kernel.backward(grad_out, call, bias_needs_grad=True)
        without = kernel.backward(grad_out, call, bias_needs_grad=False)
        wanted = dense(q, k, v, grad_out, bias, scale)
        found = [*zip(PARTS, (out, logsumexp, *grads), strict=True), *zip(PARTS[2:5], without[:3], strict=True)]
        for part, value in found:
            error = relative_error(value, wanted[part])
            if not error <= allowed:
                return f"{part} with {name}: relative error {error:.1e} (allowed {allowed:.1e})"
    return None


def tolerance(dtype: torch.dtype) -> float:
    """16 eps, times the square root of the length of the sums unless they are computed in a wider dtype.

    See `relative_error`. Sound kernels stay below half of it, and a wrong row has an error of about 1.
    """
    eps = torch.finfo(dtype).eps
    return 16 * eps * (math.sqrt(KEYS) if eps < 1e-5 else 1.0)


def biases() -> dict[str, Tensor | None]:
    """The biases (B, H, 1, M) of the problems, float64."""
    generator = torch.Generator().manual_seed(1)
    finite = 2 * torch.randn(BATCH, HEADS, 1, KEYS, generator=generator, dtype=torch.float64).float().double()
    masked = finite.clone()
    masked[0, :, :, ::3] = -torch.inf
    masked[1] = -torch.inf
    return {"masked keys": masked, "a bias": finite, "no bias": None}


def tensors(width: int) -> Iterator[Tensor]:
    """q, k, v and the gradient of the output, (B, H, N or M, D), in memory as multi-head attention lays them out."""
    generator = torch.Generator().manual_seed(0)
    for length in (QUERIES, KEYS, KEYS, QUERIES):
        x = torch.randn(BATCH, length, HEADS, width, generator=generator, dtype=torch.float64)
        yield x.transpose(1, 2)


def dense(q: Tensor, k: Tensor, v: Tensor, grad_out: Tensor, bias: Tensor | None, scale: float) -> dict[str, Tensor]:
    """The formula in float64, differentiated by autograd."""
    q, k, v, grad_out = (x.cpu().double() for x in (q, k, v, grad_out))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    key_bias = torch.zeros(BATCH, HEADS, 1, KEYS, dtype=torch.float64) if bias is None else bias.clone()
    leaves.append(key_bias.requires_grad_())
    scores = scale * q @ k.mT + key_bias
    dead = (key_bias == -torch.inf).all(-1, keepdim=True)
    weights = scores.masked_fill(dead, 0.0).softmax(-1).masked_fill(dead, 0.0)
    out = weights @ v
    grads = torch.autograd.grad(out, leaves, grad_out)
    return dict(zip(PARTS, (out.detach(), scores.logsumexp(-1).detach(), *grads), strict=True))


def relative_error(found: Tensor | None, wanted: Tensor) -> float:
    """The largest error of a row, where `wanted` is finite: |difference| / (|row of wanted| + mean |row of wanted|).

    Unlike the error of the whole tensor, it does not hide one wrong row among many. `found` must be finite everywhere.
    A logsumexp, or a gradient of the bias, has one row per element.
    """
    if found is None or not found.isfinite().all():
        return math.inf
    known = wanted.isfinite()
    difference = (found.cpu().double() - wanted).where(known, 0.0)
    wanted = wanted.where(known, 0.0)
    if wanted.dim() == 3 or wanted.shape[-2] == 1:
        difference, wanted = difference.unsqueeze(-1), wanted.unsqueeze(-1)
    norms = wanted.norm(dim=-1)
    return (difference.norm(dim=-1) / (norms + norms.mean())).max().item()
