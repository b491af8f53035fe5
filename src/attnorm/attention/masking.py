"""Which queries may attend to which keys: the compact `Mask` and its dense form."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import reduce

import torch
from torch import Tensor

from attnorm.attention.transfer import index_by_mask, on_both, on_host, remember

FIELDS = ("queries", "keys", "segments")  # of a mask: its tensors


@dataclass(frozen=True)
class Mask:
    """A mask in compact form, so that fast paths never build the (N, M) table.

    queries:  bool (B, N), True for real queries. A padded query is a dead row and is excluded from the column step.
              None: all are real.
    keys:     bool (B, M), True for real keys.
    causal:   query i may see the keys j <= i + M - N. The diagonal is aligned to the end, so a cached step with N = 1
              sees all keys.
    segments: int (B, N) with N = M. Attention stays within each segment (several texts packed into one row).

    Raises ValueError for a tensor of another dtype or number of dimensions, and when it is used, for another length.
    """

    queries: Tensor | None = None
    keys: Tensor | None = None
    causal: bool = False
    segments: Tensor | None = None
    # caches, because every layer needs the same dense form and the same segments
    _dense: dict = field(default_factory=dict, init=False, repr=False, compare=False)
    _segments: dict = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in FIELDS:
            if (tensor := getattr(self, name)) is None:
                continue
            expected = "an int tensor" if name == "segments" else "a bool tensor, True at real positions"
            if not isinstance(tensor, Tensor):
                raise ValueError(f"Mask({name}=...): expected {expected}, got {type(tensor).__name__}")
            if tensor.is_floating_point() if name == "segments" else tensor.dtype != torch.bool:
                raise ValueError(f"Mask({name}=...): expected {expected}, got dtype {tensor.dtype}")
            if tensor.dim() != 2:
                shape = f"(B, {'M' if name == 'keys' else 'N'})"
                pairs = "; a mask of pairs of positions is a dense bool tensor, not a Mask" * (tensor.dim() > 2)
                raise ValueError(f"Mask({name}=...): expected the shape {shape}, got {tuple(tensor.shape)}{pairs}")

    def check_shape(self, batch: int, n_queries: int, n_keys: int) -> None:
        """Raises ValueError if this is not a mask for scores (batch, H, n_queries, n_keys).

        A batch of 1 is not compared, because such scores may stand for those of all examples.
        """
        for name in FIELDS:
            if (tensor := getattr(self, name)) is None:
                continue
            length = n_keys if name == "keys" else n_queries
            # the compiler does not find a size of a graph for several sizes in a tuple
            of_batch = batch == 1 or tensor.shape[0] == 1 or tensor.shape[0] == batch
            if tensor.shape[1] != length or not of_batch or (name == "segments" and n_queries != n_keys):
                sizes = f"{n_queries} queries and {n_keys} keys" + f" in a batch of {batch}" * (batch > 1)
                raise ValueError(f"Mask({name}=...): the shape {tuple(tensor.shape)} does not fit {sizes}")

    def dense(self, n_queries: int, n_keys: int, device: torch.device | None = None) -> Tensor | None:
        """Returns a bool tensor broadcastable to (B, 1, N, M), True = may attend, or None if nothing is masked."""
        # the compiler itself computes equal expressions once
        key = None if torch.compiler.is_compiling() else (n_queries, n_keys, device, torch.is_inference_mode_enabled())
        if key is not None and key in self._dense:
            return self._dense[key]
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
        allowed = reduce(torch.bitwise_and, parts) if parts else None
        if key is not None:
            self._dense[key] = allowed
        return allowed

    def each_segment(
        self, attend: Callable, q: Tensor, k: Tensor, v: Tensor, log_prior: Tensor | None, scale: float
    ) -> Tensor:
        """Applies `attend(q, k, v, mask, log_prior=, scale=)` to each segment as if it were a separate text.

        If this mask is causal, so is the mask of a segment.

        q, k (B, H, N, D), v (B, H, N, V), log_prior broadcastable to (B, H, 1, N) -> (B, H, N, V), in the original
        order. Segments of similar length are batched into one call, so that more tokens are real than padding.
        """
        batch, heads, length, _ = q.shape
        tensors = {name: tensor for name in FIELDS if (tensor := getattr(self, name)) is not None}
        if any(tensor.shape[0] != batch for tensor in tensors.values()):  # one for all examples
            tensors = {name: tensor.expand(batch, -1) for name, tensor in tensors.items()}
            return Mask(**tensors, causal=self.causal).each_segment(attend, q, k, v, log_prior, scale)
        inference = torch.is_inference_mode_enabled()  # its tensors cannot be used for training
        if inference not in self._segments:
            self._segments[inference] = list(self._find_segments())
        tokens = [x.transpose(1, 2).flatten(0, 1) for x in (q, k, v)]  # (B N, H, D)
        if log_prior is not None:
            log_prior = log_prior.expand(batch, heads, 1, length).permute(0, 3, 1, 2).flatten(0, 1)  # (B N, H, 1)
        out = torch.zeros_like(tokens[2])
        for places, mask in self._segments[inference]:

            def of_segments(x: Tensor, places: Tensor = places) -> Tensor:
                return x.index_select(0, places.flatten()).unflatten(0, places.shape).transpose(1, 2)  # (S, H, L, D)

            prior = None if log_prior is None else of_segments(log_prior).transpose(-2, -1)
            output = attend(*map(of_segments, tokens), mask, log_prior=prior, scale=scale)  # (S, H, L, D)
            real = on_both(torch.bitwise_or, mask.queries, mask.keys)
            out = out.index_copy(0, index_by_mask(places, real), index_by_mask(output.transpose(1, 2), real))
        return out.unflatten(0, (batch, length)).transpose(1, 2)

    def _find_segments(self) -> Iterator[tuple[Tensor, "Mask"]]:
        """Yields the indices of the segments' tokens, int (S, L) into B * N, and their mask, once per length class."""
        assert self.segments is not None  # only `each_segment` calls this
        device, segments = self.segments.device, on_host(self.segments)
        everywhere = torch.ones_like(segments, dtype=torch.bool)
        queries = (everywhere if self.queries is None else on_host(self.queries)).flatten()
        keys = (everywhere if self.keys is None else on_host(self.keys)).flatten()
        texts = torch.arange(len(segments))[:, None].expand_as(segments)
        real = (queries | keys).nonzero().squeeze(1)  # tokens that are neither are dead rows and masked keys
        names = torch.stack([texts.flatten(), segments.flatten()])[:, real]
        _, segment, lengths = names.unique(dim=1, return_inverse=True, return_counts=True)
        order = segment.argsort(stable=True)
        places, starts = real[order], lengths.cumsum(0) - lengths
        classes = lengths.float().log2().ceil()
        for length_class in classes.unique().tolist():
            chosen = (classes == length_class).nonzero().squeeze(1)
            offsets = torch.arange(int(lengths[chosen].max()))
            inside = offsets < lengths[chosen, None]  # (S, L)
            at = places[(starts[chosen, None] + offsets).clamp(max=len(places) - 1)]
            of_class = (at, inside & queries[at], inside & keys[at])
            at, queries_at, keys_at = (remember(x.to(device, non_blocking=True), x) for x in of_class)
            yield at, Mask(queries=queries_at, keys=keys_at, causal=self.causal)


def dense_mask(mask: Tensor | Mask | None, scores: Tensor) -> Tensor | None:
    """Converts a mask in either form to a bool tensor broadcastable to `scores` (B, H, N, M), or None."""
    if isinstance(mask, Mask):
        mask.check_shape(scores.shape[0], *scores.shape[-2:])
        return mask.dense(scores.shape[-2], scores.shape[-1], scores.device)
    if mask is None:
        return None
    if mask.dtype != torch.bool:
        raise ValueError(f"mask: expected a bool tensor (True = may attend) or a Mask, got dtype {mask.dtype}")
    # a batch of 1 and a single head may stand for all, as in `Mask.check_shape`
    full = [size if size > 1 else None for size in scores.shape[:-2]] + [*scores.shape[-2:]]
    fits = zip(reversed(mask.shape), reversed(full), strict=False)
    if mask.dim() > len(full) or not all(size == 1 or whole is None or whole == size for size, whole in fits):
        shapes = f"{tuple(scores.shape)}, got {tuple(mask.shape)}"
        raise ValueError(f"mask: expected a shape that is broadcastable to {shapes}; for padding, use Mask(keys=...)")
    return mask


LOWEST = -1e9


def allowed_in(scores: Tensor) -> Tensor:
    """Which pairs are allowed in scores that are masked already, bool, of their shape.

    -inf, the smallest number of the dtype and numbers of at most LOWEST stand for forbidden pairs; so do sums of such a
    number and a score, and what 16 bits make of them. A number such as -1e4 is a score like any other, and so is NaN.
    """
    return ~(scores <= 0.99 * max(LOWEST, torch.finfo(scores.dtype).min))
