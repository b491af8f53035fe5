"""Preferences over keys, log u: modules that work with any normalizer ("Fenchel Duality", Eq. 18-19, Sec. 7).

A prior is called as `prior(n_queries, n_keys, query_offset, key_states, mask) -> log u`. The result is broadcastable to
(B, H, N, M) and need not be normalized, because a normalizer uses u only up to a factor per row.

query_offset: the position of the first query, so that a single cached query gets the same result as in the full pass.
key_states:   (B, M, W), the states from which the keys of the whole stack are computed: the input of its first layer
              or, in cross-attention, the output of the encoder. log u is returned on the device of these states.
mask:         a `Mask`, a bool tensor broadcastable to (B, H, N, M), or None. The normalizer applies the mask, so log u
              may have any finite value at masked pairs.

A prior that depends on something else names it in the class attribute `needs`, a tuple, and is called with these facts
as keyword arguments. A model names the facts that it passes to its priors in the class attribute `provides`:

masked_positions: bool (B, M), True at the tokens that are hidden and have to be predicted, or None if there are none.
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from attnorm.attention.hooks import TrainingHooks
from attnorm.attention.masking import Mask, dense_mask
from attnorm.attention.normalizers.base import upcast
from attnorm.attention.option_checks import above_zero, one_of, whole

ACTIVATIONS = {"tanh": nn.Tanh, "gelu": nn.GELU}


class Uniform(nn.Module):
    """u_j = 1 / M: no preference."""

    def forward(
        self, n_queries: int, n_keys: int, query_offset: int, key_states: Tensor, mask: Tensor | Mask | None
    ) -> Tensor:
        return torch.zeros(1, 1, 1, 1, device=key_states.device)


def relative_positions(n_queries: int, n_keys: int, query_offset: int, device: torch.device) -> Tensor:
    """Key position minus query position, int (N, M)."""
    queries = torch.arange(query_offset, query_offset + n_queries, device=device)
    return torch.arange(n_keys, device=device)[None, :] - queries[:, None]


def positions_in(segments: Tensor, real: Tensor | None = None) -> Tensor:
    """The position of each token within its segment, int (B, M). A segment is a run of equal numbers in a row.

    real: bool (B, M). At padding, where it is False, the position is 0, so that padding does not need a larger table.
    """
    position = torch.arange(segments.shape[1], device=segments.device).expand_as(segments)
    begins = torch.ones_like(segments, dtype=torch.bool)
    begins[:, 1:] = segments[:, 1:] != segments[:, :-1]
    positions = position - position.masked_fill(~begins, 0).cummax(1).values
    return positions if real is None else positions.masked_fill(~real, 0)


class T5(nn.Module):
    """The relative position bias of T5: one trained number per head and bucket of key position minus query position.

    Half of the buckets stand for exact distances. The sizes of the others grow logarithmically up to `max_distance`. A
    bidirectional table uses half of the buckets for each direction. Raises ValueError if the table would not have both
    kinds of buckets.
    """

    def __init__(self, heads: int, bidirectional: bool = True, buckets: int = 32, max_distance: int = 128):
        super().__init__()
        whole("buckets", buckets, 4 if bidirectional else 2)
        whole("max_distance", max_distance, (buckets // 2 if bidirectional else buckets) // 2 + 1)
        self.bidirectional, self.buckets, self.max_distance = bidirectional, buckets, max_distance
        self.bias = nn.Embedding(buckets, heads)

    def bucket(self, relative: Tensor) -> Tensor:
        """The bucket of each relative position (key minus query), (N, M)."""
        buckets = self.buckets
        base: Tensor | int = 0
        if self.bidirectional:
            buckets //= 2
            base = (relative > 0) * buckets
            distance = relative.abs()
        else:
            distance = (-relative).clamp(min=0)
        exact = buckets // 2
        growth = torch.log(distance.clamp(min=1) / exact) / math.log(self.max_distance / exact)
        far = (exact + (growth * (buckets - exact)).long()).clamp(max=buckets - 1)
        return base + torch.where(distance < exact, distance, far)

    def forward(
        self, n_queries: int, n_keys: int, query_offset: int, key_states: Tensor, mask: Tensor | Mask | None
    ) -> Tensor:
        relative = relative_positions(n_queries, n_keys, query_offset, key_states.device)
        return self.bias(self.bucket(relative)).permute(2, 0, 1)[None]  # (1, H, N, M)


class Alibi(nn.Module):
    """log u = -m_h |i - j| with slopes m_h = 2 ** (-8 h / H), h = 1..H.

    of_keys: whether log u may differ from this by a number for each query, which changes nothing for a normalizer with
             `prior_scale_invariant`. Under a causal mask it is then m_h j, (1, H, 1, M), and no table of pairs is made.
    """

    slopes: Tensor
    of_keys = False

    def __init__(self, heads: int):
        super().__init__()
        slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads)
        self.register_buffer("slopes", slopes[:, None, None], persistent=False)

    def forward(
        self, n_queries: int, n_keys: int, query_offset: int, key_states: Tensor, mask: Tensor | Mask | None
    ) -> Tensor:
        if self.of_keys and isinstance(mask, Mask) and mask.causal:
            return (self.slopes * torch.arange(n_keys, device=key_states.device))[None]
        relative = relative_positions(n_queries, n_keys, query_offset, key_states.device)
        return -(self.slopes * relative.abs())[None]  # (1, H, N, M)


class Learned(nn.Module):
    """log u_j: one trained number per head and key position, initially 0 (no preference).

    If the mask has segments, positions are counted from the start of each segment.
    positions: the number of key positions. More keys raise ValueError.
    """

    def __init__(self, positions: int, heads: int):
        super().__init__()
        self.positions = whole("positions", positions, 1)
        self.log_u = nn.Parameter(torch.zeros(heads, positions))

    def forward(
        self, n_queries: int, n_keys: int, query_offset: int, key_states: Tensor, mask: Tensor | Mask | None
    ) -> Tensor:
        segments, keys = (mask.segments, mask.keys) if isinstance(mask, Mask) else (None, None)
        places = None if segments is None else positions_in(segments, keys)  # (B, M)
        last = n_keys if places is None or n_keys <= self.positions else int(places.max()) + 1
        if last > self.positions:
            raise ValueError(f"the learned prior has {self.positions} positions, got {last} keys")
        if places is None:
            # a view of a parameter requires a gradient even where none is recorded, at which FLOP counters stumble
            return self.log_u[None, :, None, :n_keys].clone()  # (1, H, 1, M)
        return self.log_u[:, places].transpose(0, 1)[:, :, None]  # (B, H, 1, M)


class Content(nn.Module):
    """u = softmax over the allowed keys of f(x_j): a distribution over the keys that does not depend on the query.

    f is Linear(width, hidden), activation, Linear(hidden, heads) without bias, applied to the state x_j of each key. If
    all queries of a segment may see the same keys, log u is (B, H, 1, M) and is normalized over each segment. If the
    mask differs between rows (a causal mask or a bool tensor), log u is (B, H, N, M) and each row is normalized over
    its own keys, so that masked keys do not influence it. At masked pairs log u is finite but meaningless: the
    normalizer's mask, not u, sets their weights to 0.

    hidden: width of the hidden layer; None means `width`. activation: "tanh" or "gelu". Raises ValueError for others.
    """

    def __init__(self, width: int, heads: int, hidden: int | None = None, activation: str = "tanh"):
        super().__init__()
        hidden = width if hidden is None else whole("hidden", hidden, 1)
        function = ACTIVATIONS[one_of("activation", activation, ACTIVATIONS)]()
        last = nn.Linear(hidden, heads, bias=False)  # normalizing would cancel a bias
        self.network = nn.Sequential(nn.Linear(width, hidden), function, last)

    def forward(
        self, n_queries: int, n_keys: int, query_offset: int, key_states: Tensor, mask: Tensor | Mask | None
    ) -> Tensor:
        logits = upcast(self.network(key_states)).transpose(1, 2)[:, :, None]  # (B, H, 1, M), float32 or wider
        if isinstance(mask, Mask) and not mask.causal:  # padded queries need no row of their own
            allowed = None if mask.keys is None else mask.keys[:, None, None, :]
            if mask.segments is not None:
                return logits - logsumexp_over_segment(logits, allowed, mask.segments)
        else:
            allowed = dense_mask(mask, logits.expand(-1, -1, n_queries, -1))
        total = (logits if allowed is None else logits.masked_fill(~allowed, -torch.inf)).logsumexp(-1, keepdim=True)
        return logits - total.masked_fill(total == -torch.inf, 0.0)  # a row may have no allowed key


class Unmasked(nn.Module):
    """u = 0 at masked words, and the same for all others ("Fenchel Duality", Eq. 18).

    Every query attends to the words that are shown. If no key of its text is shown, a row has no key with u > 0, so the
    normalizer gives weights of 0, and the layer adds nothing to the state of the query but its bias.
    """

    needs = ("masked_positions",)

    def forward(
        self,
        n_queries: int,
        n_keys: int,
        query_offset: int,
        key_states: Tensor,
        mask: Tensor | Mask | None,
        *,
        masked_positions: Tensor | None,
    ) -> Tensor:
        log_u = torch.zeros(1, 1, 1, 1, device=key_states.device)
        return log_u if masked_positions is None else log_u.masked_fill(masked_positions[:, None, None, :], -torch.inf)


def logsumexp_over_segment(logits: Tensor, allowed: Tensor | None, segments: Tensor) -> Tensor:
    """log of the sum of exp(logits) over the allowed keys in the segment of each key, int (B, M): (B, H, 1, M).

    It is 0 in a segment without allowed keys.
    """
    if allowed is not None:
        logits = logits.masked_fill(~allowed, -torch.inf)
    names, segment = segments.unique(return_inverse=True)
    segment = segment[:, None, None, :].expand_as(logits)
    largest = logits.detach().new_full((*logits.shape[:-1], len(names)), -torch.inf)
    largest = largest.scatter_reduce(-1, segment, logits.detach(), "amax").clamp(min=torch.finfo(logits.dtype).min)
    total = torch.zeros_like(largest).scatter_add(-1, segment, (logits - largest.gather(-1, segment)).exp())
    none = total == 0
    return (largest + total.masked_fill(none, 1.0).log()).masked_fill(none, 0.0).gather(-1, segment)


class Positional(TrainingHooks):
    """log u_i^(k) = -|i - k| / r_h with one learned reach r_h > 0 per head ("Fenchel Duality", Sec. 3.2).

    In translation, the k-th target word is expected to depend on source words in a similar place ("Attention as
    Inference via Fenchel Duality", the translation problem). A large reach is a weak preference. Unlike `alibi`, whose
    slopes are fixed, this prior can learn how far the orders of the two sequences agree.

    reach: the initial reach of every head, in positions. Raises ValueError if it is not a finite number above 0.
    """

    def __init__(self, heads: int, reach: float = 4.0):
        super().__init__()
        self.log_reach = nn.Parameter(torch.full((heads,), math.log(above_zero("reach", reach))))

    def fast_parameters(self) -> Iterable[nn.Parameter]:
        return [self.log_reach]

    def forward(
        self, n_queries: int, n_keys: int, query_offset: int, key_states: Tensor, mask: Tensor | Mask | None
    ) -> Tensor:
        distance = relative_positions(n_queries, n_keys, query_offset, key_states.device).abs()
        return -(distance / self.log_reach.exp()[:, None, None])[None]  # (1, H, N, M)


class Sum(nn.Module):
    """The product of several named preferences, which is the sum of their logarithms.

    needs: the names of all facts that one of them needs. Each prior is called with its own. Raises ValueError if a fact
           is not given.
    """

    def __init__(self, priors: dict[str, nn.Module]):
        super().__init__()
        self.priors = nn.ModuleDict(priors)
        self.needs = tuple(dict.fromkeys(fact for prior in priors.values() for fact in needs_of(prior)))

    def forward(
        self,
        n_queries: int,
        n_keys: int,
        query_offset: int,
        key_states: Tensor,
        mask: Tensor | Mask | None,
        **facts: Tensor | None,
    ) -> Tensor:
        if missing := [fact for fact in self.needs if fact not in facts]:
            raise ValueError(f"priors {', '.join(self.priors)}: the model does not provide {', '.join(missing)}")
        return sum(
            prior(n_queries, n_keys, query_offset, key_states, mask, **{fact: facts[fact] for fact in needs_of(prior)})
            for prior in self.priors.values()
        )


def needs_of(prior: Any) -> tuple[str, ...]:
    """The names of the facts that a prior, or its class, declares to need."""
    return tuple(getattr(prior, "needs", ()))
