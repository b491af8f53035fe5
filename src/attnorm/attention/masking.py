"""Which query may attend to which key: the compact `Mask` and its dense form."""

from collections.abc import Callable, Iterator
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
    # every layer asks for the same dense form, the same segments
    _dense: dict = field(default_factory=dict, init=False, repr=False, compare=False)
    _segments: list = field(default_factory=list, init=False, repr=False, compare=False)

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

    def each_segment(
        self, attend: Callable, q: Tensor, k: Tensor, v: Tensor, log_prior: Tensor | None, scale: float
    ) -> Tensor:
        """`attend(q, k, v, mask, log_prior=, scale=)` on each segment as a text of its own, put back in place.

        q, k, v (B, H, N, D), log_prior broadcastable to (B, H, 1, N) -> (B, H, N, D). Segments of about equal length
        share a call, so what is padded to the longest of a call is less than what there is.
        """
        if not self._segments:
            self._segments.extend(self._find_segments())
        batch, heads, length, _ = q.shape
        tokens = [x.transpose(1, 2).flatten(0, 1) for x in (q, k, v)]  # (B N, H, D)
        if log_prior is not None:
            log_prior = log_prior.expand(batch, heads, 1, length).permute(0, 3, 1, 2).flatten(0, 1)  # (B N, H, 1)
        out = torch.zeros_like(tokens[0])
        for places, mask in self._segments:

            def of_segments(x: Tensor, places: Tensor = places) -> Tensor:
                return x.index_select(0, places.flatten()).unflatten(0, places.shape).transpose(1, 2)  # (S, H, L, D)

            prior = None if log_prior is None else of_segments(log_prior).transpose(-2, -1)
            found = attend(*map(of_segments, tokens), mask, log_prior=prior, scale=scale)  # (S, H, L, D)
            real = mask.queries | mask.keys
            out = out.index_copy(0, places[real], found.transpose(1, 2)[real])
        return out.unflatten(0, (batch, length)).transpose(1, 2)

    def _find_segments(self) -> Iterator[tuple[Tensor, "Mask"]]:
        """Where the tokens of each segment are, int (S, L) into B * N, with their mask; one pair a class of lengths."""
        assert self.segments is not None  # only `each_segment` calls this
        everywhere = torch.ones_like(self.segments, dtype=torch.bool)
        queries = (everywhere if self.queries is None else self.queries).flatten()
        keys = (everywhere if self.keys is None else self.keys).flatten()
        texts = torch.arange(len(self.segments), device=self.segments.device)[:, None].expand_as(self.segments)
        real = (queries | keys).nonzero().squeeze(1)  # tokens that are neither are dead rows that nobody sees
        names = torch.stack([texts.flatten(), self.segments.flatten()])[:, real]
        _, segment, lengths = names.unique(dim=1, return_inverse=True, return_counts=True)
        order = segment.argsort(stable=True)
        places, starts = real[order], lengths.cumsum(0) - lengths
        classes = lengths.float().log2().ceil()
        for length_class in classes.unique().tolist():
            chosen = (classes == length_class).nonzero().squeeze(1)
            offsets = torch.arange(int(lengths[chosen].max()), device=places.device)
            inside = offsets < lengths[chosen, None]  # (S, L)
            at = places[(starts[chosen, None] + offsets).clamp(max=len(places) - 1)]
            yield at, Mask(queries=inside & queries[at], keys=inside & keys[at])

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
