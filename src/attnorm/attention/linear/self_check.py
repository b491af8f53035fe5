"""A small problem on which a kernel must agree with the dense formula, in value and in every gradient."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from attnorm.attention.linear.flash import Call, Kernel

BATCH, HEADS, QUERIES, KEYS = 2, 2, 70, 150  # no multiple of a kernel's blocks, and more than one block of each
MASKED_FIRST = 9
PARTS = ("output", "logsumexp", "gradient of q", "gradient of k", "gradient of v", "gradient of the bias")


def disagreement(
    kernel: Kernel, device: torch.device, dtype: torch.dtype, width: int, causal: bool = False
) -> str | None:
    """What is wrong with a kernel, or None if it agrees with the dense formula in float64 on the CPU.

    Compared are the output, the logsumexp and the gradients of q, k, v and the bias, from a gradient of the output and
    from those of both results: with a bias that masks some keys of one example and all keys of another one, with a
    finite bias, and without a bias. If causal, there are as many queries as keys, and the first keys are masked. The
    global random state is not used. May raise what the kernel raises.
    """
    allowed, scale = tolerance(dtype, causal), width**-0.5
    wide = torch.promote_types(dtype, torch.float32)
    for name, bias in biases(causal).items():
        q, k, v, grad_out = (x.to(device, dtype) for x in tensors(width, KEYS if causal else QUERIES))
        on_device = None if bias is None else bias.to(device, wide)
        out, logsumexp = kernel.forward(q, k, v, on_device, scale, causal)
        call = Call(q, k, v, on_device, out, logsumexp, scale, causal)
        of_logsumexp = grad_out.sum(-1, dtype=wide)
        for also, bias_needs_grad in ((None, True), (None, False), (of_logsumexp, True)):
            wanted = dense(q, k, v, grad_out, also, bias, scale, causal)
            grads = kernel.backward(grad_out, also, call, bias_needs_grad)
            results = out, logsumexp, *grads
            for part, value in zip(PARTS if bias_needs_grad else PARTS[:-1], results, strict=False):
                error = relative_error(value, wanted[part])
                if not error <= allowed:
                    which = part if also is None else f"{part} from both results"
                    return f"{which} with {name}: relative error {error:.1e} (allowed {allowed:.1e})"
    return None


def tolerance(dtype: torch.dtype, causal: bool) -> float:
    """16 eps, times the square root of the length of the sums unless they are computed in a wider dtype.

    If causal, it is twice that: the weights of the first queries are large, and their terms cancel in the gradient of
    the bias. See `relative_error`. Sound kernels stay below half of it, and a wrong row has an error of about 1.
    """
    eps = torch.finfo(dtype).eps
    return (32 if causal else 16) * eps * (math.sqrt(KEYS) if eps < 1e-5 else 1.0)


def biases(causal: bool = False) -> dict[str, Tensor | None]:
    """The biases (B, H, 1, M) of the problems, float64."""
    generator = torch.Generator().manual_seed(1)
    finite = 2 * torch.randn(BATCH, HEADS, 1, KEYS, generator=generator, dtype=torch.float64).float().double()
    masked = finite.clone()
    masked[0, :, :, ::3] = -torch.inf
    if causal:
        masked[0, :, :, :MASKED_FIRST] = -torch.inf  # the first queries see no key
    masked[1] = -torch.inf
    return {"masked keys": masked, "a bias": finite, "no bias": None}


def tensors(width: int, queries: int = QUERIES) -> Iterator[Tensor]:
    """q, k, v and the gradient of the output, (B, H, N or M, D), in memory as multi-head attention lays them out."""
    generator = torch.Generator().manual_seed(0)
    for length in (queries, KEYS, KEYS, queries):
        x = torch.randn(BATCH, length, HEADS, width, generator=generator, dtype=torch.float64)
        yield x.transpose(1, 2)


def dense(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    grad_out: Tensor,
    grad_logsumexp: Tensor | None,
    bias: Tensor | None,
    scale: float,
    causal: bool,
) -> dict[str, Tensor]:
    """The formula in float64, differentiated by autograd."""
    q, k, v, grad_out = (x.detach().cpu().double() for x in (q, k, v, grad_out))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    key_bias = torch.zeros(BATCH, HEADS, 1, KEYS, dtype=torch.float64) if bias is None else bias.clone()
    leaves.append(key_bias.requires_grad_())
    scores = scale * q @ k.mT + key_bias
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    dead = (scores == -torch.inf).all(-1, keepdim=True)
    live = scores.masked_fill(dead, 0.0)
    out = live.softmax(-1).masked_fill(dead, 0.0) @ v
    logsumexp = live.logsumexp(-1).masked_fill(dead.squeeze(-1), -torch.inf)
    if grad_logsumexp is None:
        grads = torch.autograd.grad(out, leaves, grad_out)
    else:
        grads = torch.autograd.grad([out, logsumexp], leaves, [grad_out, grad_logsumexp.cpu().double()])
    return dict(zip(PARTS, (out.detach(), logsumexp.detach(), *grads), strict=True))


def relative_error(actual: Tensor | None, wanted: Tensor) -> float:
    """The largest error of a row, where `wanted` is finite: |difference| / (|row of wanted| + mean |row of wanted|).

    Unlike the error of the whole tensor, it does not hide one wrong row among many. `actual` must be finite everywhere.
    A logsumexp, or a gradient of the bias, has one row per element. Rows of zeros, those of masked keys and of queries
    without keys, are left out of the mean, which would otherwise depend on how much is masked.
    """
    if actual is None or not actual.isfinite().all():
        return math.inf
    known = wanted.isfinite()
    difference = (actual.cpu().double() - wanted).where(known, 0.0)
    wanted = wanted.where(known, 0.0)
    if wanted.dim() == 3 or wanted.shape[-2] == 1:
        difference, wanted = difference.unsqueeze(-1), wanted.unsqueeze(-1)
    norms = wanted.norm(dim=-1)
    return (difference.norm(dim=-1) / (norms + norms[norms > 0].mean())).max().item()
