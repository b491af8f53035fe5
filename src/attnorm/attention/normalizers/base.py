"""Base class of all normalizers. A normalizer turns scores into attention weights."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnorm.attention.call_context import being_transformed, may_look, without_autocast
from attnorm.attention.hooks import TrainingHooks
from attnorm.attention.judging import look, problem_of, questions_about
from attnorm.attention.masking import Mask, allowed_in, dense_mask
from attnorm.attention.normalizers.scores import Given as Given  # own normalizers import these here
from attnorm.attention.normalizers.scores import add_log_prior as add_log_prior
from attnorm.attention.normalizers.scores import dot_scores, masked_scores, upcast
from attnorm.attention.normalizers.scores import logsumexp_over_queries as logsumexp_over_queries
from attnorm.attention.normalizers.scores import softmax_over_keys as softmax_over_keys
from attnorm.attention.normalizers.shared.head_number import HeadNumber
from attnorm.attention.normalizers.shared.shortcuts import give_up_shortcuts

AT_MOST_ONE = (0.0, 1.0)  # a value for `Normalizer.total`, for example for sigmoid attention divided by M
LOWEST = -1e30  # is added to the score of a masked pair where -inf would give NaN


class Normalizer(TrainingHooks):
    """Turns scores (B, H, N, M) into attention weights of the same shape.

    A subclass implements `weights`, the paper's formula, or overrides `forward`. A model calls `attend`, q, k, v ->
    outputs. It asks `fast_attend` for a way without the weights. If there is none, it averages the values with the
    weights of the scores `scale` q k', which `weights_of` returns for dropout. A layer with other scores calls the
    normalizer itself, scores -> weights, which calls `forward`. All of them call `weights`; with `finite_scores`, they
    let `finite_weights` prepare the masked scores. The class attributes below declare which properties the weights
    have, and `attnorm.attention.testing.check_normalizer` verifies them. A subclass overrides the methods of
    `TrainingHooks` for parameters that should be recorded, need a higher learning rate, or need a projection.

    couples_queries: whether a row of weights depends on other queries. One of "none", "past" (only on earlier queries,
                     which is safe at autoregressive sites) and "all" (not accepted at autoregressive sites, see
                     `refuse_mask`).
    finite_scores:   whether `weights` takes masked scores that are LOWEST instead of -inf. A formula that consists of
                     softmaxes then needs no guards against NaN; see `finite_weights`.
    safe_form:       the name of a normalizer with the same formula over earlier queries only, for messages; "" if there
                     is none.
    needs_keys:      whether the formula requires `keys` and `scale`.
    needs_queries:   whether it also requires `queries`.
    needs_states:    "queries" or "keys" if the formula requires a few numbers per query or per key, such as a scale or
                     a gate, that the method `features` computes from the hidden states. "none" otherwise.
    couples_heads:   whether the weights of a head depend on other heads.
    needs_causal:    whether the formula is defined for causal self-attention only. It is refused at other sites.
    needs_fixed_alpha: whether the formula contains alpha, the scale of the scores, apart from the scores. A scorer must
                     not learn it then.
    differentiable:  whether the weights have a gradient. Training requires it.
    key_equivariant, query_equivariant: reordering the keys (queries) reorders the columns (rows) of the weights.
    total:           the sum of each row that is not dead. A number; a pair (smallest, largest) if the sum may vary,
                     such as AT_MOST_ONE; or None if neither the sum nor the sign of the weights is guaranteed. If the
                     smallest allowed sum is at least 0, the weights are nonnegative.
    key_shift_invariant: adding one number per key to the scores does not change the weights.
    least_mass:      m such that, without a prior, every key that some query may see has sum_i w_ij >= m / M (Lemma 1 of
                     "Doubly-Normalized Attention"). 0 means no guarantee.
    prior_scale_invariant: adding one number per query to log u does not change the weights, because u is defined only
                     up to a factor.
    proportional_to_prior: in each row, the weights under the prior u are proportional to u times those without it.
    site:            the name of the attention site of which it is; "" outside a model.
    """

    couples_queries = "none"
    safe_form = ""
    finite_scores = False
    needs_keys = False
    needs_queries = False
    needs_states = "none"
    couples_heads = False
    needs_causal = False
    needs_fixed_alpha = False
    differentiable = True
    key_equivariant = True
    query_equivariant = True
    total: float | tuple[float, float] | None = 1.0
    key_shift_invariant = False
    least_mass: float = 0.0
    prior_scale_invariant = True
    proportional_to_prior = False
    site = ""
    step: Callable[..., tuple[Tensor, Tensor]]  # of a class with couples_queries = "past"; the others have none
    forward_with_bank: Callable[..., Tensor]  # of a class that gives weight to keys outside the input, such as `ot`
    features: Callable[[Tensor], Tensor]  # of a class with needs_states: see `features_of`
    _has_plain_forward = True  # that of this class, in which scores are only masked
    _has_fast_way = False  # whether `fast_attend` may be asked
    _in_layer = False  # whether only a layer calls it, see `in_layer`

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        give_up_shortcuts(cls, Normalizer)
        # the compiler cannot compare functions
        cls._has_plain_forward = cls.forward is Normalizer.forward
        cls._has_fast_way = cls.fast_attend is not Normalizer.fast_attend

    @property
    def takes_bank(self) -> bool:
        """Whether a layer with this normalizer may have a bank of templates outside the input."""
        return hasattr(self, "forward_with_bank")

    def learned_scalars(self) -> dict[str, Tensor]:
        """As `TrainingHooks.learned_scalars`; by default, the trained numbers of each `HeadNumber` of the class."""
        numbers = [part.learned_scalars() for part in self.children() if isinstance(part, HeadNumber)]
        return {name: scalar for scalars in numbers for name, scalar in scalars.items()}

    def weights(self, s: Tensor, given: Given) -> Tensor:
        """The formula: maps scores to weights (B, H, N, M), both in float32 or wider.

        s is -inf at masked pairs, where the weight must be 0, or LOWEST with `finite_scores`. Autocast is off.
        """
        raise NotImplementedError(f"{type(self).__name__}: has neither weights(s, given), the formula, nor forward")

    def forward(
        self,
        scores: Tensor,
        mask: Tensor | Mask | None = None,
        *,
        log_prior: Tensor | None = None,
        keys: Tensor | None = None,
        scale: float | None = None,
        queries: Tensor | None = None,
        features: Tensor | None = None,
    ) -> Tensor:
        """Computes the weights (B, H, N, M) in float32 or wider and returns them in the dtype of `scores`.

        scores:    (B, H, N, M), already scaled.
        mask:      bool, broadcastable to `scores`, True where a query may attend to a key; or a compact `Mask`. All
                   weights of a row without an allowed key are 0. Without a mask, scores of at most -1e9, such as -inf,
                   are those of forbidden pairs.
        log_prior: log u, broadcastable to `scores`, where u is the preference distribution. It is -inf where u = 0.
        keys:      (B, H, M, D), the keys that gave the scores. `keys` and `scale`, the scale of the scores, are used
                   only by normalizers whose formula contains them (the templates of optimal transport and Fenchel
                   duality).
        queries:   (B, H, N, D), the queries that gave the scores; only with `needs_queries`.
        features:  (B, H, N or M, F), those of `features_of` for the queries or keys; only with `needs_states`.

        A subclass overrides it instead of `weights` if it needs the scores before they are masked.
        """
        given = Given(mask, log_prior, keys, scale, queries, features)
        with without_autocast(scores):
            s = masked_scores(scores, mask)
            if self.finite_scores:
                allowed = s != -torch.inf
                weights, live = self.finite_weights(s.masked_fill(~allowed, 0.0), allowed, given)
                assert live is not None  # because there is a mask
                return (weights * live).to(scores.dtype)
            return self.weights(s, given).to(scores.dtype)

    def __call__(
        self, scores: Tensor, mask: Tensor | Mask | None = None, *, ordered: bool = True, **given: Any
    ) -> Tensor:
        """Calls `forward`, unless there is no weight. Scores that are masked already need no mask, see
        `masking.allowed_in`. Raises ValueError as `refuse_mask` does, which explains `ordered`.
        """
        mask = self._mask_of(scores, mask, ordered)
        self.refuse_mask(mask, scores.shape[-2], scores.shape[-1], ordered)
        return super().__call__(scores, mask, **given) if scores.numel() else scores

    def _mask_of(self, scores: Tensor, mask: Tensor | Mask | None, ordered: bool = True) -> Tensor | Mask | None:
        """The mask, or the one that the scores contain if there is none."""
        if mask is not None or self._in_layer:
            return mask
        allowed = allowed_in(scores)
        # solvers of formulas with keys look at values anyway, and are much faster without a mask
        if not (self.couples_queries == "all" or self.needs_keys) or not may_look(scores):
            return allowed
        questions = questions_about(allowed, self.couples_queries, scores.shape[-2], scores.shape[-1], ordered)
        questions["allows all"] = allowed.all
        return None if "allows all" in look(allowed, questions) else allowed

    def refuse_mask(self, mask: Tensor | Mask | None, n_queries: int, n_keys: int, ordered: bool = True) -> None:
        """Raises ValueError for a mask with which the weights would depend on what it hides, if queries are coupled.

        If each row depends on all queries, it must not hide the future (`masking.about_order`). Keys that are hidden
        from all queries are padding, whose queries must be hidden, too. With couples_queries = "past", the queries must
        not be the last ones of a text, as beside the keys of a cache, but all of them: see `step`.

        ordered: whether the positions have an order. False, for masks of neighbours or random pairs, accepts masks of
                 any pairs. The weights of a query then depend on queries that it does not see, wherever both see a key.

        A dense mask is looked at once, which waits for the device, unless a layer of attnorm or compiled code calls.
        """
        if problem := problem_of(self, mask, n_queries, n_keys, ordered):
            raise ValueError(problem)

    def leak_message(self, name: str = "") -> str:
        """Why it is not accepted at an autoregressive site, if it couples all queries, and what to use instead.

        name: by which it was chosen; by default, that of its class.
        """
        instead = " or ".join(filter(None, ("softmax", self.safe_form)))
        reason = "couples queries and would leak the future at an autoregressive site"
        return f"{name or type(self).__name__} {reason}; use {instead}"

    def cache_message(self, name: str = "") -> str:
        """Why a query alone has no weights, if they depend on earlier queries. name: as in `leak_message`."""
        return (
            f"{name or type(self).__name__} depends on earlier queries, which are missing beside the keys of a cache; "
            "pass all queries, or use its method `step`, which keeps what it needs of them"
        )

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | Mask | None = None,
        *,
        log_prior: Tensor | None = None,
        scale: float | None = None,
        features: Tensor | None = None,
        ordered: bool = True,
    ) -> Tensor:
        """Averages the values with the attention weights: q (B, H, N, D), k and v (B, H, M, D) -> (B, H, N, D).

        The scores are `scale` q k'. `scale` defaults to D ** -0.5. `features` is as in `forward`. Raises ValueError as
        `__call__` does.
        """
        self.refuse_mask(mask, q.shape[-2], k.shape[-2], ordered)
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        alike = q.dtype == k.dtype == v.dtype and k.shape[-2] == v.shape[-2]  # kernels would not notice
        if self._has_fast_way and alike and q.numel() and k.numel() and not being_transformed():
            wide_q, wide_k, wide_v = q, k, v
            if not q.shape[:2] == k.shape[:2] == v.shape[:2]:  # kernels take the same batch and heads for granted
                shape = torch.broadcast_shapes(q.shape[:2], k.shape[:2], v.shape[:2])
                wide_q, wide_k, wide_v = (x.expand(*shape, -1, -1) for x in (q, k, v))
            output = self.fast_attend(wide_q, wide_k, wide_v, Given(mask, log_prior, wide_k, scale, wide_q, features))
            if output is not None:
                return output
        weights, live = self._weights_and_live(Given(mask, log_prior, k, scale, q, features))
        output = weights.to(v.dtype) @ v
        return output if live is None else output * live  # fewer numbers than the weights

    def fast_attend(self, q: Tensor, k: Tensor, v: Tensor, given: Given) -> Tensor | None:
        """The result of `attend` without the (N, M) weights, or None to have these computed. The scale is given."""
        return None

    def weights_of(self, q: Tensor, k: Tensor, mask: Tensor | Mask | None = None, **given: Any) -> Tensor:
        """The weights (B, H, N, M) for the scores `scale` q k', which are finite, in float32 or wider.

        given: log_prior, features and scale, as in `attend`; the scale has no default.
        """
        weights, live = self._weights_and_live(Given(mask, keys=k, queries=q, **given))
        return weights if live is None else weights * live

    def _weights_and_live(self, given: Given) -> tuple[Tensor, Tensor | None]:
        """The weights for the scores `scale` q k', and the rows that are not to be set to 0, see `finite_weights`."""
        q, k, scale = given.queries, given.keys, given.scale
        assert q is not None and k is not None and scale is not None
        s = dot_scores(q, k, scale)
        if not s.numel():
            return s, None
        if self.finite_scores and self._has_plain_forward:
            with without_autocast(s):
                return self.finite_weights(s, dense_mask(given.mask, s), given)
        options = {"log_prior": given.log_prior, "keys": k, "scale": scale, **self.declared(q, given.features)}
        return super().__call__(s, given.mask, **options), None

    def finite_weights(self, s: Tensor, allowed: Tensor | None, given: Given) -> tuple[Tensor, Tensor | None]:
        """Calls `weights` with finite scores s (B, H, N, M), which it changes. Returns the weights and `live`: the rows
        that have an allowed key, bool (B, H, N, 1). The others are to be set to 0. None: all have one.

        allowed: bool, broadcastable to s, or None if nothing is masked. LOWEST is added to the scores of masked pairs,
                 and is their prior. The prior excludes a key that no query may see, whose column is otherwise uniform.
        """
        log_prior = given.log_prior
        if allowed is None and log_prior is None:
            return self.weights(s, given), None
        if repeats := log_prior is None:
            live = allowed
        else:
            log_prior, live = log_prior.to(s.dtype).clamp(min=LOWEST), log_prior != -torch.inf
            live = live if allowed is None else live & allowed
        if allowed is not None:
            bias = torch.zeros_like(allowed, dtype=s.dtype).masked_fill_(~allowed, LOWEST)
            s = s + bias if being_transformed() else s.add_(bias)  # without another matrix
            log_prior = bias if log_prior is None else torch.where(allowed, log_prior, LOWEST)
        assert live is not None  # the mask, the prior, or both
        given = given.with_prior(log_prior, repeats)
        return self.weights(s, given), live.any(-1, keepdim=True)

    def remainder_value(self) -> Tensor | None:
        """The value (H, D) that a layer, but not `attend`, gives the weight 1 - sum_j w_ij. None: there is no value."""
        return None

    def features_of(self, states: Tensor) -> Tensor:
        """What the formula uses of the states (B, L, W) of the queries or keys, (B, H, L, F), in float32 or wider.

        A class with `needs_states` implements it as `features`, which is called with states in float32 or wider, and
        with autocast off. The numbers of a position may depend on the state of this position only.
        """
        with without_autocast(states):
            return self.features(upcast(states))

    def declared(self, q: Tensor, features: Tensor | None) -> dict[str, Any]:
        """Those of the arguments `queries` and `features` that only a class which declares them is called with."""
        queries = {"queries": q} if self.needs_queries else {}
        return queries if features is None else {**queries, "features": features}
