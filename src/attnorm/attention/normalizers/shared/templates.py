"""Functions shared by the normalizers whose keys are templates (optimal transport and Fenchel duality)."""

import torch
from torch import Tensor

from attnorm.attention.masking import Mask, dense_mask
from attnorm.attention.normalizers.base import Given, upcast


def templates(name: str, s: Tensor, given: Given) -> Tensor:
    """Returns the keys (B, H, M, D) `without_padding`, in float32 or wider and at least as wide as the scores s.

    Raises ValueError if the keys are missing or do not match the scores.
    """
    keys = given.keys
    if keys is None:
        raise ValueError(f"{name}: the templates are the keys that gave the scores; pass keys=(B, H, M, D)")
    if keys.shape[-2] != s.shape[-1]:
        raise ValueError(f"{name}: keys of shape {tuple(keys.shape)} do not match scores {tuple(s.shape)}")
    return without_padding(keys.to(torch.promote_types(upcast(keys).dtype, s.dtype)), s, given.mask)


def positive_scale(name: str, scale: float | Tensor | None) -> float | Tensor:
    """Returns alpha, the scale of the scores. Raises ValueError if it is missing or not above 0."""
    above = False if scale is None else scale > 0
    if scale is None or not (above.all() if isinstance(above, Tensor) else above):
        advice = "alpha is the scale of the scores; pass a number above 0, for example D ** -0.5"
        raise ValueError(f"{name}: scale={scale}: {advice}")
    return scale


def without_padding(keys: Tensor, scores: Tensor, mask: Tensor | Mask | None) -> Tensor:
    """Replaces the keys (B, H, M, D) that no query may see by the first key that some query may see.

    Their weight is 0, but their values could still affect how the other keys are rounded, either as the origin of
    `center_on_first` or by their magnitude.
    """
    allowed = allowed_keys(scores, mask)
    if allowed is None:
        return keys
    seen = allowed.expand(torch.broadcast_shapes(allowed.shape, (1, 1, 1, keys.shape[-2]))).any(-2)
    seen = seen.expand(keys.shape[:-1])  # (B, H, M)
    first = keys.detach().take_along_dim(seen.byte().argmax(-1)[..., None, None], -2)
    return torch.where(seen.unsqueeze(-1), keys, first)


def center_on_first(keys: Tensor) -> Tensor:
    """Subtracts the first key from the keys (B, H, M, D), so that keys far from the origin do not lose precision.

    Only the differences of the keys matter. Unlike the mean, the first key depends neither on padding nor on the
    future.
    """
    return keys - keys[..., :1, :].detach()


def log_preference(scores: Tensor, mask: Tensor | Mask | None, log_prior: Tensor | None) -> Tensor:
    """Returns log u normalized over the allowed keys of each row.

    It is -inf at the other keys and in a row without allowed keys. The result is broadcastable to scores (B, H, N, M),
    with N = 1 if u is the same for all queries.
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
    """Returns the mask, broadcastable to scores (B, H, N, M), with N = 1 if all real queries may see the same keys.

    Padded queries are not masked here; `masked_scores` masks them.
    """
    if isinstance(mask, Mask) and not mask.causal and mask.segments is None:
        mask.check_shape(scores.shape[0], *scores.shape[-2:])
        return None if mask.keys is None else mask.keys[:, None, None, :]  # (B, 1, 1, M)
    return dense_mask(mask, scores)
