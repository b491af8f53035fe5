"""How many keys each query may see, and which queries may see the same ones, read from the mask."""

from collections.abc import Iterator

import torch
from torch import Tensor

from attnorm.attention.masking import Mask, dense_mask


def visible_keys(mask: Tensor | Mask | None, scores: Tensor) -> Tensor:
    """n_i >= 1, the number of keys that query i may see, broadcastable to (B, H, N, 1), in the dtype of `scores`.

    It is counted from the mask, so that neither padding nor the future nor another segment changes it: under a causal
    mask, the first query of a text sees one key. A compact `Mask` is counted without its dense form.

    scores: (B, H, N, M), or any tensor that is expanded to this shape; only its shape, dtype and device are used.
    """
    n_queries, n_keys = scores.shape[-2:]
    if mask is None:
        return scores.new_full((1, 1, 1, 1), n_keys)
    if not isinstance(mask, Mask):
        allowed = dense_mask(mask, scores)
        assert allowed is not None  # a tensor stays one
        return allowed.expand(*allowed.shape[:-1], n_keys).sum(-1, keepdim=True).clamp(min=1).to(scores.dtype)
    mask.check_shape(scores.shape[0], n_queries, n_keys)
    real = torch.ones(1, n_keys, dtype=torch.bool, device=scores.device) if mask.keys is None else mask.keys  # (B, M)
    if mask.segments is not None:
        count = _in_segments(real.expand(mask.segments.shape) if len(real) == 1 else real, mask.segments, mask.causal)
    elif mask.causal:
        last = torch.arange(n_queries, device=scores.device) + n_keys - n_queries  # the last key that each query sees
        count = real.cumsum(1)[:, last.clamp(min=0)]
    else:
        count = real.sum(1, keepdim=True)
    return count[:, None, :, None].clamp(min=1).to(scores.dtype)


def _in_segments(real: Tensor, segments: Tensor, causal: bool) -> Tensor:
    """The number of real keys of its segment that each position sees, int (B, N): all of them, or those up to it."""
    real, segments = torch.broadcast_tensors(real, segments)
    order = segments.argsort(dim=1, stable=True)  # within a segment, positions stay in order
    names, numbers = segments.gather(1, order), real.gather(1, order).cumsum(1)
    begins, ends = torch.ones_like(real), torch.ones_like(real)
    begins[:, 1:] = ends[:, :-1] = names[:, 1:] != names[:, :-1]
    before = (numbers - real.gather(1, order).long()).masked_fill(~begins, 0).cummax(1).values
    if not causal:
        numbers = numbers.masked_fill(~ends, real.shape[1] + 1).flip(1).cummin(1).values.flip(1)
    return torch.empty_like(numbers).scatter(1, order, numbers - before)


def queries_with_the_same_keys(mask: Tensor | Mask | None, scores: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Divides the queries into sets that may see the same keys. Yields (queries, keys), bool (B, H, N) and (B, H, M).

    B or H is 1 if all are alike. Without a mask, and with padding, it is one set. In packed texts, there is one for
    each text. Examples and heads with fewer sets than others have empty ones. A query without a key may be in any set.

    scores: as in `visible_keys`.
    """
    n_queries, n_keys = scores.shape[-2:]
    is_padding = isinstance(mask, Mask) and not mask.causal and mask.segments is None
    if mask is None or is_padding or scores.is_meta:  # which has a shape, but no values that divide the queries
        queries, keys = (torch.ones(1, 1, n, dtype=torch.bool, device=scores.device) for n in (n_queries, n_keys))
        if isinstance(mask, Mask):
            mask.check_shape(scores.shape[0], n_queries, n_keys)
            queries = queries if mask.queries is None else mask.queries[:, None]
            keys = keys if mask.keys is None else mask.keys[:, None]
        yield queries, keys
        return
    allowed = dense_mask(mask, scores)
    assert allowed is not None  # only None and an empty `Mask` have no dense form
    allowed = allowed[(None,) * (4 - allowed.dim())].expand(*[-1] * 2, n_queries, n_keys)
    number = allowed.float()
    common, count = number @ number.mT, number.sum(-1)  # exact up to 2^24 keys
    first = ((common == count[..., None]) & (common == count[..., None, :])).int().argmax(-1)  # with the same keys
    leads = (first == torch.arange(n_queries, device=scores.device)) & (count > 0)
    name = (leads.cumsum(-1) - 1).gather(-1, first).masked_fill(count == 0, -1)
    for of_set in range(int(leads.sum(-1).max())):
        queries = name == of_set
        yield queries, (allowed & queries[..., None]).any(-2)
