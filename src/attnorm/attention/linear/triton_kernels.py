"""Attention with a bias per key in Triton: one kernel forward, and two backward.

With scores s_ij = scale q_i k_j + b_j over the visible keys,

    l_i = log sum_j exp(s_ij),    p_ij = exp(s_ij - l_i),    o_i = sum_j p_ij v_j.

With dO and dL the gradients of o and l, and delta_i = sum_d dO_id o_id - dL_i,

    dS_ij = p_ij (sum_d dO_id v_jd - delta_i),
    dQ_i = scale sum_j dS_ij k_j,    dK_j = scale sum_i dS_ij q_i,    dV_j = sum_i p_ij dO_i,    db_j = sum_i dS_ij.

A program computes a block of queries (`forward`, `backward_queries`) or a block of keys (`backward_keys`) of one head,
and passes over blocks of the other side. No sum is divided among programs, so results do not depend on their order.

Tensors: q, out and their gradients (B, H, N, D), k, v and their gradients (B, H, M, D), each with the strides of its
first three dimensions and consecutive numbers in the last one; bias (B, H, M) in float32 with the strides of its first
two dimensions, or None; logsumexp, grad_logsumexp, delta (B, H, N), grad_bias (B, H, M) and seen (B, H), contiguous.
seen: the position after the last key that is not masked, or None without a bias. Blocks of keys from there on are
skipped: this is how a ragged batch costs less than a full one.

Products of two blocks take the dtype of q and are summed in float32. Exponentials are powers of 2, so that scores are
multiplied by log2 e. This file is imported only where Triton is used.
"""
# mypy: ignore-errors
# (what follows @triton.jit is a language of its own, in which arguments have no types of Python)

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def load_block(matrix, stride, start, length, BLOCK: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr):
    """Rows start, start + 1, ... of a matrix (length, WIDTH) as (BLOCK, BLOCK_D), 0 outside of it."""
    rows, columns = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK_D)[None, :]
    first = matrix + tl.cast(start, tl.int64) * stride
    return tl.load(first + rows * stride + columns, mask=(start + rows < length) & (columns < WIDTH), other=0.0)


@triton.jit
def store_block(matrix, stride, start, length, x, BLOCK: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr):
    """Writes x (BLOCK, BLOCK_D) to rows start, start + 1, ... of a matrix (length, WIDTH)."""
    rows, columns = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK_D)[None, :]
    first = matrix + tl.cast(start, tl.int64) * stride
    inside = (start + rows < length) & (columns < WIDTH)
    tl.store(first + rows * stride + columns, x.to(matrix.dtype.element_ty), mask=inside)


@triton.jit
def load_vector(vector, start, length, BLOCK: tl.constexpr, outside):
    """Numbers start, start + 1, ... of a vector (length) as (BLOCK), and `outside` beyond its end."""
    positions = start + tl.arange(0, BLOCK)
    return tl.load(vector + positions, mask=positions < length, other=outside)


@triton.jit
def load_bias(bias, start, keys, BLOCK: tl.constexpr):
    """log2 e times the bias of a block of keys: 0 without a bias, and -inf beyond the last key."""
    if bias is None:
        return tl.where(start + tl.arange(0, BLOCK) < keys, 0.0, -float("inf"))
    else:  # without it, Triton would compile what follows in both cases
        return load_vector(bias, start, keys, BLOCK, -float("inf")) * LOG2_E


@triton.jit
def head(tensor, strides, batch, index):
    """The matrix of one head: the address of its first row."""
    return tensor + tl.cast(batch, tl.int64) * strides[0] + tl.cast(index, tl.int64) * strides[1]


@triton.jit
def _place(heads, length, BLOCK: tl.constexpr):
    """Where this program works: the example, its head, both as one number, and the first row of its block."""
    blocks = tl.cdiv(length, BLOCK)
    pair = tl.program_id(0) // blocks
    return pair // heads, pair % heads, pair, tl.program_id(0) % blocks * BLOCK


@triton.jit
def end_of_keys(seen, pair, start_n, keys, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr):
    """The position after the last key that some query of a block sees."""
    stop = keys
    if seen is not None:
        stop = tl.load(seen + pair)
    if CAUSAL:
        stop = tl.minimum(stop, start_n + BLOCK_N)
    return stop


@triton.jit
def _scores_of(
    q_block, k_block, bias, scale, i, start_m, keys,
    BLOCK_M: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """log2 e times the scores of the queries i and a block of keys, -inf where a query does not see a key."""
    s = tl.dot(q_block, tl.trans(k_block), input_precision=PRECISION) * (scale * LOG2_E)
    s += load_bias(bias, start_m, keys, BLOCK_M)[None, :]
    if CAUSAL:
        s = tl.where(i[:, None] >= (start_m + tl.arange(0, BLOCK_M))[None, :], s, -float("inf"))
    return s


@triton.jit(do_not_specialize=["heads", "queries", "keys"])
def forward(
    q, k, v, bias, seen, out, logsumexp,
    q_strides, k_strides, v_strides, bias_strides, out_strides,
    scale, heads, queries, keys,
    WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr,
    CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """o and l of BLOCK_N queries, from sums over the keys so far that are relative to their largest score."""
    batch, index, pair, start_n = _place(heads, queries, BLOCK_N)
    q, k, v = head(q, q_strides, batch, index), head(k, k_strides, batch, index), head(v, v_strides, batch, index)
    out, logsumexp = head(out, out_strides, batch, index), logsumexp + tl.cast(pair, tl.int64) * queries
    if bias is not None:
        bias = head(bias, bias_strides, batch, index)
    stop = end_of_keys(seen, pair, start_n, keys, BLOCK_N, CAUSAL)

    i = start_n + tl.arange(0, BLOCK_N)
    q_block = load_block(q, q_strides[2], start_n, queries, BLOCK_N, WIDTH, BLOCK_D)
    largest = tl.full((BLOCK_N,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_N,), tl.float32)
    mean = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    for start_m in range(0, stop, BLOCK_M):
        k_block = load_block(k, k_strides[2], start_m, keys, BLOCK_M, WIDTH, BLOCK_D)
        v_block = load_block(v, v_strides[2], start_m, keys, BLOCK_M, WIDTH, BLOCK_D)
        s = _scores_of(q_block, k_block, bias, scale, i, start_m, keys, BLOCK_M, CAUSAL, PRECISION)
        larger = tl.maximum(largest, tl.max(s, 1))
        base = tl.where(larger == -float("inf"), 0.0, larger)
        p = tl.exp2(s - base[:, None])
        shrink = tl.exp2(largest - base)
        total = total * shrink + tl.sum(p, 1)
        mean = mean * shrink[:, None]
        mean = tl.dot(p.to(v_block.dtype), v_block, mean, input_precision=PRECISION)
        largest = larger

    dead = total == 0.0
    total = tl.where(dead, 1.0, total)
    store_block(out, out_strides[2], start_n, queries, mean / total[:, None], BLOCK_N, WIDTH, BLOCK_D)
    row_logsumexp = tl.where(dead, 0.0, (largest + tl.log2(total)) / LOG2_E)
    tl.store(logsumexp + i, row_logsumexp, mask=i < queries)


@triton.jit(do_not_specialize=["heads", "queries", "keys"])
def backward_queries(
    q, k, v, bias, seen, out, logsumexp, grad_out, grad_logsumexp, delta, grad_q,
    q_strides, k_strides, v_strides, bias_strides, out_strides, grad_out_strides, grad_q_strides,
    scale, heads, queries, keys,
    WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr,
    CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dQ of BLOCK_N queries, and their delta, which `backward_keys` reads."""
    batch, index, pair, start_n = _place(heads, queries, BLOCK_N)
    q, k, v = head(q, q_strides, batch, index), head(k, k_strides, batch, index), head(v, v_strides, batch, index)
    out, grad_out = head(out, out_strides, batch, index), head(grad_out, grad_out_strides, batch, index)
    grad_q, vectors = head(grad_q, grad_q_strides, batch, index), tl.cast(pair, tl.int64) * queries
    if bias is not None:
        bias = head(bias, bias_strides, batch, index)
    stop = end_of_keys(seen, pair, start_n, keys, BLOCK_N, CAUSAL)

    i = start_n + tl.arange(0, BLOCK_N)
    q_block = load_block(q, q_strides[2], start_n, queries, BLOCK_N, WIDTH, BLOCK_D)
    out_block = load_block(out, out_strides[2], start_n, queries, BLOCK_N, WIDTH, BLOCK_D)
    grad_block = load_block(grad_out, grad_out_strides[2], start_n, queries, BLOCK_N, WIDTH, BLOCK_D)
    row_delta = tl.sum(grad_block.to(tl.float32) * out_block.to(tl.float32), 1)
    if grad_logsumexp is not None:
        row_delta -= load_vector(grad_logsumexp + vectors, start_n, queries, BLOCK_N, 0.0)
    tl.store(delta + vectors + i, row_delta, mask=i < queries)
    row_logsumexp = load_vector(logsumexp + vectors, start_n, queries, BLOCK_N, float("inf")) * LOG2_E
    grad = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    for start_m in range(0, stop, BLOCK_M):
        k_block = load_block(k, k_strides[2], start_m, keys, BLOCK_M, WIDTH, BLOCK_D)
        v_block = load_block(v, v_strides[2], start_m, keys, BLOCK_M, WIDTH, BLOCK_D)
        s = _scores_of(q_block, k_block, bias, scale, i, start_m, keys, BLOCK_M, CAUSAL, PRECISION)
        p = tl.exp2(s - row_logsumexp[:, None])
        grad_p = tl.dot(grad_block, tl.trans(v_block), input_precision=PRECISION)
        grad_s = p * (grad_p - row_delta[:, None])
        grad = tl.dot(grad_s.to(k_block.dtype), k_block, grad, input_precision=PRECISION)
    store_block(grad_q, grad_q_strides[2], start_n, queries, scale * grad, BLOCK_N, WIDTH, BLOCK_D)


@triton.jit(do_not_specialize=["heads", "queries", "keys"])
def backward_keys(
    q, k, v, bias, seen, logsumexp, grad_out, delta, grad_k, grad_v, grad_bias,
    q_strides, k_strides, v_strides, bias_strides, grad_out_strides, grad_k_strides, grad_v_strides,
    scale, heads, queries, keys,
    WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr,
    CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dK, dV and, if its tensor is given, the gradient of the bias of BLOCK_M keys. Blocks are (keys, queries)."""
    batch, index, pair, start_m = _place(heads, keys, BLOCK_M)
    q, k, v = head(q, q_strides, batch, index), head(k, k_strides, batch, index), head(v, v_strides, batch, index)
    grad_out, vectors = head(grad_out, grad_out_strides, batch, index), tl.cast(pair, tl.int64) * queries
    grad_k, grad_v = head(grad_k, grad_k_strides, batch, index), head(grad_v, grad_v_strides, batch, index)
    first, stop = 0, queries
    if CAUSAL:
        first = start_m // BLOCK_N * BLOCK_N
    if bias is not None:
        bias = head(bias, bias_strides, batch, index)
        stop = tl.where(start_m < tl.load(seen + pair), queries, 0)  # all keys of the block are masked

    j = start_m + tl.arange(0, BLOCK_M)
    k_block = load_block(k, k_strides[2], start_m, keys, BLOCK_M, WIDTH, BLOCK_D)
    v_block = load_block(v, v_strides[2], start_m, keys, BLOCK_M, WIDTH, BLOCK_D)
    b = load_bias(bias, start_m, keys, BLOCK_M)
    sum_k = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    sum_v = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    sum_bias = tl.zeros((BLOCK_M,), tl.float32)
    for start_n in range(first, stop, BLOCK_N):
        q_block = load_block(q, q_strides[2], start_n, queries, BLOCK_N, WIDTH, BLOCK_D)
        grad_block = load_block(grad_out, grad_out_strides[2], start_n, queries, BLOCK_N, WIDTH, BLOCK_D)
        row_logsumexp = load_vector(logsumexp + vectors, start_n, queries, BLOCK_N, float("inf")) * LOG2_E
        row_delta = load_vector(delta + vectors, start_n, queries, BLOCK_N, 0.0)
        s = tl.dot(k_block, tl.trans(q_block), input_precision=PRECISION) * (scale * LOG2_E) + b[:, None]
        if CAUSAL:
            s = tl.where((start_n + tl.arange(0, BLOCK_N))[None, :] >= j[:, None], s, -float("inf"))
        p = tl.exp2(s - row_logsumexp[None, :])
        sum_v = tl.dot(p.to(grad_block.dtype), grad_block, sum_v, input_precision=PRECISION)
        grad_p = tl.dot(v_block, tl.trans(grad_block), input_precision=PRECISION)
        grad_s = p * (grad_p - row_delta[None, :])
        sum_k = tl.dot(grad_s.to(q_block.dtype), q_block, sum_k, input_precision=PRECISION)
        if grad_bias is not None:
            sum_bias += tl.sum(grad_s, 1)
    store_block(grad_k, grad_k_strides[2], start_m, keys, scale * sum_k, BLOCK_M, WIDTH, BLOCK_D)
    store_block(grad_v, grad_v_strides[2], start_m, keys, sum_v, BLOCK_M, WIDTH, BLOCK_D)
    if grad_bias is not None:
        tl.store(grad_bias + tl.cast(pair, tl.int64) * keys + j, sum_bias, mask=j < keys)
