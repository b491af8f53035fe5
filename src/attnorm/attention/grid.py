"""Attention on images, videos and other arrays: an array is unfolded into a sequence, and the result is folded back.

Source: "A Mathematical View of Attention Models", Sec. 5. The paper unfolds a third-order tensor (h, w, c) along its
last mode, which gives one column per cell. The output has the grid of the queries, which may be of another size, and
even of another number of dimensions, than that of the keys.
"""

from collections.abc import Sequence

from torch import Tensor

from attnorm.attention.masking import Mask
from attnorm.attention.multihead import MultiHeadAttention


def unfold(array: Tensor) -> Tensor:
    """(B, *grid, W) -> (B, N, W), where N is the number of cells. The last axis of the grid varies fastest."""
    return array.flatten(1, -2)


def fold(states: Tensor, grid: Sequence[int]) -> Tensor:
    """(B, N, W) -> (B, *grid, W), the inverse of `unfold`."""
    return states.unflatten(1, tuple(grid))


def attend_over_grid(
    attention: MultiHeadAttention,
    queries: Tensor,
    memory: Tensor,
    real_queries: Tensor | None = None,
    real_keys: Tensor | None = None,
    *,
    log_prior: Tensor | None = None,
) -> Tensor:
    """The cells of `queries` (B, *grid, W) attend to those of `memory` (B, *other_grid, W) -> (B, *grid, W).

    Self-attention over the cells of an array is `attend_over_grid(attention, x, x)`.

    real_queries: bool (B, *grid), real_keys: bool (B, *other_grid), False at padding. None: there is no padding.
    log_prior:    log u, broadcastable to (B, H, N, M), for the unfolded cells.
    """
    query_mask, key_mask = (None if real is None else real.flatten(1) for real in (real_queries, real_keys))
    mask = None if query_mask is None and key_mask is None else Mask(queries=query_mask, keys=key_mask)
    output = attention(unfold(queries), unfold(memory), mask, log_prior=log_prior)
    return fold(output, queries.shape[1:-1])
