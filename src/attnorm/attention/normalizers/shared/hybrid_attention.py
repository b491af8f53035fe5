"""HNAS on a CPU from one matrix of exponentials, with the gradient by hand.

With e_ij = exp(s_ij), both parts only need sums of e over rows and columns. v is the hybrid weight:

    a_j = 1 / sum_i e_ij,  t_i = 1 / sum_j e_ij a_j,  u_i = 1 / sum_j e_ij,
    dnas_ij = e_ij a_j t_i,  softmax_ij = e_ij u_i,
    w_ij = v dnas_ij + (1 - v) softmax_ij = e_ij (a_j alpha_i + beta_i)  with  alpha_i = v t_i,  beta_i = (1 - v) u_i.

Let g_ij be the gradient of w_ij, r_i = sum_j dnas_ij g_ij and p_i = sum_j softmax_ij g_ij. The gradient of v is the sum
of r_i - p_i. The gradient of s_ij is

    w_ij g_ij - e_ij (a_j alpha_i r_i + beta_i p_i + a_j c_j)  with  c_j = a_j sum_i alpha_i e_ij (g_ij - r_i).
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

AT_ONCE = 2**17  # pairs for each thread: some matrices of so many stay in the cache of a core
LARGEST = 30.0  # of the exponents of 2: no product of sums leaves the range of float32


class HybridAttention(torch.autograd.Function):
    """The output (B, H, N, D) of HNAS, or None if a score is too large for its exponential.

    Takes q, k, v; the hybrid weight (1 or H, 1, 1); the mask, or None: (B, H, N, M), 1 or 0, in the dtype of the
    queries; and the scale of the scores.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, share: Tensor, mask: Tensor | None, scale: float
    ) -> Tensor | None:
        e, out = q.new_empty(*q.shape[:-1], k.shape[-2]), q.new_empty(*q.shape[:-1], v.shape[-1])
        shares, sums = share.expand(*q.shape[:2], 1, 1), []
        inverse = reciprocal if mask is not None else Tensor.reciprocal_
        for part in parts(e):
            e_, v_ = product(q[part], k[part].mT, e[part], scale / math.log(2)), shares[part]
            low, high = e_.aminmax()
            if not (low >= -LARGEST and high <= LARGEST):  # nor is NaN
                return None
            e_.exp2_()  # is faster than exp
            if mask is not None:
                e_.mul_(mask[part])
            w = torch.empty_like(e_)
            a = inverse(e_.sum(-2, keepdim=True))
            t = inverse(torch.mul(e_, a, out=w).sum(-1, keepdim=True))
            u = inverse(e_.sum(-1, keepdim=True))
            alpha, beta = v_ * t, (1 - v_) * u
            product(torch.mul(a, alpha, out=w).add_(beta).mul_(e_), v[part], out[part])
            sums.append((a, t, u, alpha, beta))
        ctx.save_for_backward(q, k, v, share, mask, e)
        ctx.scale, ctx.sums = scale, sums
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, share, mask, e = ctx.saved_tensors
        if torch.is_grad_enabled():  # for second derivatives
            needed = [x for x, needs in zip((q, k, v, share), ctx.needs_input_grad, strict=False) if needs]
            grads = iter(torch.autograd.grad(formula(q, k, v, share, mask, ctx.scale), needed, grad, create_graph=True))
            return tuple(next(grads) if needs else None for needs in ctx.needs_input_grad)
        of_q, of_k, of_v = (x.new_empty(x.shape) for x in (q, k, v))
        of_share = e.new_empty(*e.shape[:2], 1, 1)
        for part, (a, t, u, alpha, beta) in zip(parts(e), ctx.sums, strict=True):
            e_, g = e[part], grad[part]
            buffer, eg = torch.empty_like(e_), torch.empty_like(e_)
            factor = torch.mul(a, alpha).add_(beta)
            product(torch.mul(factor, e_, out=buffer).mT, g, of_v[part])
            product(g, v[part].mT, eg).mul_(e_)
            r = torch.mul(eg, a, out=buffer).sum(-1, keepdim=True).mul_(t)
            p = eg.sum(-1, keepdim=True).mul_(u)
            of_share[part] = (r - p).sum(-2, keepdim=True)
            c = torch.addcmul(eg, e_, r, value=-1, out=buffer).mul_(alpha).sum(-2, keepdim=True).mul_(a)
            torch.mul(a, alpha * r, out=buffer).add_(beta * p).add_(a * c)
            of_s = eg.mul_(factor).addcmul_(e_, buffer, value=-1)
            product(of_s, k[part], of_q[part], ctx.scale)
            product(of_s.mT, q[part], of_k[part], ctx.scale)
        return of_q, of_k, of_v, of_share.sum_to_size(share.shape), None, None


def formula(q: Tensor, k: Tensor, v: Tensor, share: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """The same for autograd."""
    e = (scale * q @ k.mT).exp()
    e = e if mask is None else e * mask
    xi = e * reciprocal(e.sum(-2, keepdim=True))
    dnas, softmax = (x * reciprocal(x.sum(-1, keepdim=True)) for x in (xi, e))
    return torch.lerp(softmax, dnas, share) @ v


def parts(e: Tensor) -> Iterator[tuple[slice, slice]]:
    """Slices of the examples and heads of (B, H, N, M): whole examples, or heads of one example."""
    batch, heads, n_queries, n_keys = e.shape
    at_once = math.ceil(AT_ONCE * torch.get_num_threads() / (n_queries * n_keys))
    examples = max(1, at_once // heads)
    for example in range(0, batch, examples):
        for head in range(0, heads, at_once):
            yield slice(example, example + examples), slice(head, head + at_once)


def product(x: Tensor, y: Tensor, out: Tensor, scale: float = 1.0) -> Tensor:
    """Writes scale x y into `out`, for each example and head."""
    out.flatten(0, 1).baddbmm_(x.flatten(0, 1), y.flatten(0, 1), beta=0, alpha=scale)
    return out


def reciprocal(total: Tensor) -> Tensor:
    """1 / total, and 1 where nothing was summed because all is masked."""
    return (total + (total == 0)).reciprocal()
