"""Which query may attend to which key: the compact `Mask` and its dense form."""

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Mask:
    """A mask kept as its causes, so that fast paths never build the (N, M) table.

    queries:  bool (B, N), True = a real query; a padded one is a dead row and takes no part in a column step.
    keys:     bool (B, M), True = a real key.
    causal:   query i may see keys j <= i + M - N (aligned to the end, so a cached step with N = 1 sees everything).
    segments: int (B, N) with N = M; attention stays inside each segment (several texts packed in one row).
    """

    queries: Tensor | None = None
    keys: Tensor | None = None
    causal: bool = False
    segments: Tensor | None = None
    # every layer asks for the same dense form
    _dense: dict = field(default_factory=dict, init=False, repr=False, compare=False)

    def dense(self, n_queries: int, n_keys: int, device: torch.device | None = None) -> Tensor | None:
        """The same mask as a bool tensor broadcastable to (B, 1, N, M), True = may attend; None when all are."""
        key = (n_queries, n_keys, str(device), torch.is_inference_mode_enabled())
        if key not in self._dense:
            self._dense[key] = self._build(n_queries, n_keys, device)
        return self._dense[key]

    def _build(self, n_queries: int, n_keys: int, device: torch.device | None) -> Tensor | None:
        parts = []
        if self.queries is not None:
            parts.append(self.queries[:, None, :, None])  # (B, 1, N, 1)
        if self.keys is not None:
            parts.append(self.keys[:, None, None, :])  # (B, 1, 1, M)
        if self.segments is not None:
            parts.append((self.segments[:, :, None] == self.segments[:, None, :])[:, None])  # (B, 1, N, N)
        if self.causal:
            square = torch.ones(n_queries, n_keys, dtype=torch.bool, device=parts[0].device if parts else device)
            parts.append(square.tril(n_keys - n_queries)[None, None])  # (1, 1, N, M)
        if not parts:
            return None
        allowed = parts[0]
        for part in parts[1:]:
            allowed = allowed & part
        return allowed

    @property
    def only_causal(self) -> bool:
        return self.causal and self.queries is None and self.keys is None and self.segments is None


def dense_mask(mask: Tensor | Mask | None, scores: Tensor) -> Tensor | None:
    """`mask` in either form as a bool tensor broadcastable to `scores` (B, H, N, M), or None."""
    if isinstance(mask, Mask):
        return mask.dense(scores.shape[-2], scores.shape[-1], scores.device)
    if mask is not None and mask.dtype != torch.bool:
        raise ValueError(f"mask: expected a bool tensor (True = may attend) or a Mask, got dtype {mask.dtype}")
    return mask
