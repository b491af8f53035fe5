"""What the normalizers whose keys are templates (optimal transport, Fenchel duality) have in common."""

import torch
from torch import Tensor

from attnorm.attention.masking import Mask, dense_mask
from attnorm.attention.normalizers.base import upcast


def templates(name: str, keys: Tensor | None, scores: Tensor, mask: Tensor | Mask | None) -> Tensor:
    """The keys (B, H, M, D) `without_padding`, in float32 or wider, at least as wide as the scores; ValueError where
    they are missing."""
    if keys is None:
        raise ValueError(f"{name}: its templates are the keys behind the scores; give keys=(B, H, M, D)")
    if keys.shape[-2] != scores.shape[-1]:
        raise ValueError(f"{name}: keys {tuple(keys.shape)} are not those of scores {tuple(scores.shape)}")
    return without_padding(keys.to(torch.promote_types(upcast(keys).dtype, upcast(scores).dtype)), scores, mask)


def without_padding(keys: Tensor, scores: Tensor, mask: Tensor | Mask | None) -> Tensor:
    """Keys (B, H, M, D) that no query may see replaced by the first that some query may see.

    Their weight is 0, but what they hold could still affect how others are rounded: as the origin of `center_on_first`,
    or by its size.
    """
    allowed = allowed_keys(scores, mask)
    if allowed is None:
        return keys
    seen = allowed.expand(torch.broadcast_shapes(allowed.shape, (1, 1, 1, keys.shape[-2]))).any(-2)
    seen = seen.expand(keys.shape[:-1])  # (B, H, M)
    first = keys.detach().take_along_dim(seen.byte().argmax(-1)[..., None, None], -2)
    return torch.where(seen.unsqueeze(-1), keys, first)


def center_on_first(keys: Tensor) -> Tensor:
    """The keys (B, H, M, D) as seen from the first one, where only their differences count: far from the origin they
    would round. Unlike the mean, the first key depends neither on padding nor on the future."""
    return keys - keys[..., :1, :].detach()


def log_preference(scores: Tensor, mask: Tensor | Mask | None, log_prior: Tensor | None) -> Tensor:
    """log u, normalized over the allowed keys of each row; -inf on the others and in a row without any.

    Broadcastable to scores (B, H, N, M), with N = 1 where u is the same for all queries.
    """
    allowed = allowed_keys(scores, mask)
    log_u = scores.new_zeros(()) if log_prior is None else log_prior
    log_u = log_u.to(upcast(scores).dtype)
    shapes = [log_u.shape, (1, 1, 1, scores.shape[-1])] + ([] if allowed is None else [allowed.shape])
    log_u = log_u.expand(torch.broadcast_shapes(*shapes))
    if allowed is not None:
        log_u = log_u.masked_fill(~allowed, -torch.inf)
    dead = log_u.amax(-1, keepdim=True) == -torch.inf
    return log_u.masked_fill(dead, 0.0).log_softmax(-1).masked_fill(dead, -torch.inf)


def allowed_keys(scores: Tensor, mask: Tensor | Mask | None) -> Tensor | None:
    """The mask, broadcastable to scores (B, H, N, M), with N = 1 where every real query may see the same keys: padded
    queries are left to `masked_scores`."""
    if isinstance(mask, Mask) and not mask.causal and mask.segments is None:
        return None if mask.keys is None else mask.keys[:, None, None, :]  # (B, 1, 1, M)
    return dense_mask(mask, scores)
