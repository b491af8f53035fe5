"""A trained mixture of any normalizers, which generalizes the hybrid of "Doubly-Normalized Attention", Sec. 6."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from entmax import sparsemax
from torch import Tensor, nn

from attnorm.attention.call_context import in_layer
from attnorm.attention.masking import Mask
from attnorm.attention.normalizers.base import Given, Normalizer, upcast
from attnorm.attention.normalizers.hnas import SHARES
from attnorm.attention.normalizers.shared.fixed_shares import Place, fixed_value, on_simplex
from attnorm.attention.normalizers.shared.key_bias import memory_linear
from attnorm.attention.option_checks import one_of

Member = str | Mapping[str, Any]  # a name, or its name and its options
Builder = Callable[[str, str, Mapping[str, Any], Mapping[str, Any]], Any]  # `attnorm.attention.registry.build`
MEMBERS = ("softmax", "dnas", "sinkhorn")
FORMS = ("softmax", "project")
NAMES = {"softmax": "hybrid", "project": "shares"}  # of the parameter: a state dict of the other form does not fit
COUPLINGS = ("none", "past", "all")  # from the weakest to the strongest
KEPT_BY_ALL = (  # promises that the mixture keeps if all of its members do
    *("differentiable", "key_equivariant", "query_equivariant"),
    *("key_shift_invariant", "prior_scale_invariant"),
)
NEEDED_BY_ANY = ("needs_keys", "needs_queries", "needs_fixed_alpha", "needs_causal", "couples_heads")


class Mix(Normalizer):
    """w = sum_m v_m w^(m), where w^(m) are the weights of the members and v is a trained point of the simplex.

    With the members dnas and softmax, it is `hnas`, and the share of dnas is its hybrid weight. The mixture promises
    what all of its members promise, and it couples queries as strongly as the strongest of them.

    members: at least two normalizers, each a name, a dotted path 'package.module.Class', or a mapping with its name and
             its options, such as {"name": "sinkhorn", "n_iters": 5}.
    start:   the initial shares of the members, nonnegative numbers with the sum 1. None: the same for all members.
    form:    "softmax" (v is the softmax of the parameter) or "project" (v is the parameter itself, and `project_`
             projects it onto the simplex after each update). A start of exactly 0 requires "project", because the
             softmax of finite numbers is positive.
    per:     "layer" (one v) or "head" (one v for each of the `heads` heads).
    fixed:   shares that are not trained: a list like `start`; a list with one such list per head; or a mapping from
             each site to a list with one of these per layer. `start`, `form` and `per` have no effect then.
    place:   the site and the index of the layer, which select from such a mapping.
    heads, width, state_width: the number of heads, the width of a head and of the states, for members that need them.
    builder: builds the members. `build_normalizer` passes it.
    """

    each: list[Normalizer]
    state_rows: list[int]
    feature_sizes: list[int] | None = None  # of the members that need features

    def __init__(
        self,
        members: Sequence[Member] = MEMBERS,
        start: Sequence[float] | None = None,
        form: str = "softmax",
        per: str = "layer",
        heads: int | None = None,
        width: int | None = None,
        state_width: int | None = None,
        fixed: Any = None,
        place: Place | None = None,
        *,
        builder: Builder,
    ):
        super().__init__()
        self.form = one_of("form", form, FORMS)
        if one_of("per", per, SHARES) == "head" and heads is None:
            raise ValueError("per='head': needs heads=<number of heads>")
        facts = {"heads": heads, "width": width, "state_width": state_width, "place": place}
        self.state_width = state_width
        self.members = nn.ModuleDict(build_members(members, builder, **facts))
        self.promise(list(self.members.values()))  # type: ignore[arg-type]  # all of them are normalizers
        if any(member.remainder_value() is not None for member in self.each):
            raise ValueError(f"members={members!r}: a mix gives what its members leave to no value of its own")
        of_states = {member.needs_states for member in self.each} - {"none"}
        if len(of_states) > 1:
            raise ValueError(f"members={members!r}: some need the states of the queries, and others those of the keys")
        self.needs_states = of_states.pop() if of_states else "none"
        count = len(self.members)
        shares = [1 / count] * count if start is None else on_simplex("start", start, count)
        if form == "softmax" and 0 in shares:
            raise ValueError(f"start={start!r}: the softmax of finite numbers is positive; use form='project'")
        self.is_fixed = fixed is not None
        if self.is_fixed:
            self.register_buffer("fixed", fixed_value(fixed, place, heads, self.parse), persistent=False)
            return
        first = torch.tensor(shares, dtype=torch.float64)
        first = (first.log() if form == "softmax" else first).float()
        first = first.repeat(heads if per == "head" and heads else 1, 1)  # (1 or H, members)
        self.register_parameter(NAMES[form], nn.Parameter(first))

    def promise(self, members: list[Normalizer]) -> None:
        """Sets what the mixture promises, from what its members do."""
        self.each = members  # a list registers nothing: the modules are those of `self.members`
        self.couples_queries = max((member.couples_queries for member in members), key=COUPLINGS.index)
        for need in NEEDED_BY_ANY:
            setattr(self, need, any(getattr(member, need) for member in members))
        for promise in KEPT_BY_ALL:
            setattr(self, promise, all(getattr(member, promise) for member in members))
        totals = [member.total for member in members]
        bounds = [total if isinstance(total, tuple) else (total, total) for total in totals if total is not None]
        least, most = min((low for low, _ in bounds), default=0.0), max((high for _, high in bounds), default=0.0)
        self.total = None if len(bounds) < len(totals) else least if least == most else (least, most)
        # the rows of each member's state, see `step`
        past = [member for member in members if member.couples_queries == "past"]
        self.state_rows = [sum(member.state_rows) if isinstance(member, Mix) else 1 for member in past]

    def parse(self, value: Any) -> list[list[float]]:
        """Fixed shares as a list: the shares for all heads, or those of each head."""
        of_heads = value if isinstance(value, list) and value and isinstance(value[0], list) else [value]
        return [on_simplex("fixed", shares, len(self.members)) for shares in of_heads]

    @property
    def trained(self) -> nn.Parameter:
        """The parameter behind the shares; AttributeError if they are fixed."""
        parameter: nn.Parameter = getattr(self, NAMES[self.form])
        return parameter

    def mixture(self) -> Tensor:
        """Returns v, the shares of the members, in [0, 1] with the sum 1. Shape (1 or heads, members)."""
        if self.is_fixed:
            return self.fixed  # type: ignore[return-value]  # a buffer
        return self.trained.softmax(-1) if self.form == "softmax" else self.trained

    @property
    def least_mass(self) -> float:  # type: ignore[override]  # it changes as the shares are trained
        """Each key keeps at least sum_m v_m least_mass_m / M, in every head."""
        least = self.mixture().new_tensor([member.least_mass for member in self.each])
        return (self.mixture() * least).sum(-1).min().item()

    def learned_scalars(self) -> dict[str, Tensor]:
        """The share of each member, ``mix_<member>``, (1,) or (heads,), and the learned scalars of the members."""
        shares = {} if self.is_fixed else dict(zip(self.members, self.mixture().unbind(-1), strict=True))
        scalars = {f"mix_{label}": share for label, share in shares.items()}
        for label, member in zip(self.members, self.each, strict=True):
            scalars |= {f"{label}_{name}": scalar for name, scalar in member.learned_scalars().items()}
        return scalars

    def fast_parameters(self) -> list[nn.Parameter]:
        """The parameter behind the shares."""
        return [] if self.is_fixed else [self.trained]

    @torch.no_grad()
    def project_(self) -> None:
        """Projects the shares onto the simplex if `form` is "project". It is called after each optimizer update."""
        if self.form == "project" and not self.is_fixed:
            self.trained.copy_(sparsemax(self.trained, -1))  # the Euclidean projection

    def mix(self, of_members: Iterable[Tensor]) -> Tensor:
        """Returns sum_m v_m x^(m) in float32 or wider, for one tensor (B, H, ., .) per member."""
        shares = self.mixture()[:, :, None, None].unbind(1)  # (1 or H, 1, 1) for each member
        first, *others = (share * upcast(x) for share, x in zip(shares, of_members, strict=True))
        return sum(others, first)

    def features(self, states: Tensor) -> Tensor:
        """The features of the members that need some, one after the other."""
        features = [member.features(states) for member in self.each if member.needs_states != "none"]
        self.feature_sizes = [each.shape[-1] for each in features]
        return torch.cat(features, -1)

    def split(self, features: Tensor | None) -> list[dict[str, Any]]:
        """The argument `features` of each member; nothing for a member that needs none."""
        if features is not None and self.feature_sizes is None:  # another instance has made them
            self.features(features.new_zeros(1, 1, self.state_width or 1))
        parts = iter(() if features is None else features.split(self.feature_sizes, -1))
        return [{} if member.needs_states == "none" else {"features": next(parts)} for member in self.each]

    def forward(
        self,
        scores: Tensor,
        mask: Tensor | Mask | None = None,
        *,
        queries: Tensor | None = None,
        features: Tensor | None = None,
        **given: Any,
    ) -> Tensor:
        s = upcast(scores)
        of_queries: Iterable[dict[str, Any]] = (
            {"queries": queries} if member.needs_queries else {} for member in self.each
        )
        calls = zip(self.each, of_queries, self.split(features), strict=True)
        return self.mix(member(s, mask, **given, **a, **b) for member, a, b in calls).to(scores.dtype)

    def fast_attend(self, q: Tensor, k: Tensor, v: Tensor, given: Given) -> Tensor | None:
        """Mixes the outputs of the members where a fast path pays. Otherwise, they share one table of scores."""
        if not memory_linear(q, k, given):
            return None
        mask, log_prior, scale = given.mask, given.log_prior, given.scale
        calls = zip(self.each, self.split(given.features), strict=True)
        each = (m.attend(q, k, v, mask, log_prior=log_prior, scale=scale, **features) for m, features in calls)
        return self.mix(each).to(v.dtype)

    def step(
        self,
        scores: Tensor,
        mask: Tensor | Mask | None = None,
        state: Tensor | None = None,
        *,
        log_prior: Tensor | None = None,
        keys: Tensor | None = None,
        scale: float | None = None,
        queries: Tensor | None = None,
        features: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Adds one query, as `DNASPrefix.step`. The state (B, H, S, M') stacks those of the members that have one."""
        s, mask, weights, new = upcast(scores), self._mask_of(scores, mask), [], []
        states = iter([None] * len(self.state_rows) if state is None else state.split(self.state_rows, -2))
        for member, of_features in zip(self.each, self.split(features), strict=True):
            given: dict[str, Any] = {**of_features}
            given |= {"keys": keys, "scale": scale} if member.needs_keys else {}
            given |= {"queries": queries} if member.needs_queries else {}
            if member.couples_queries == "past":
                of_member, after = member.step(s, mask, next(states), log_prior=log_prior, **given)
                new.append(after)
            else:
                of_member = member(s, mask, log_prior=log_prior, **given)
            weights.append(of_member)
        return self.mix(weights).to(scores.dtype), torch.cat(new, -2)


def build_members(members: Sequence[Member], builder: Builder, **facts: Any) -> dict[str, Normalizer]:
    """The members by label. Raises ValueError for a list that is not one of normalizers.

    builder: `attnorm.attention.registry.build`. facts: what is known of the model, as there; None for what is not.
    """
    if isinstance(members, str) or not isinstance(members, Sequence) or len(members) < 2:
        raise ValueError(f"members={members!r}: allowed: a list of at least two normalizers, such as [softmax,dnas]")
    for member in members:
        if not isinstance(member, str) and not (isinstance(member, Mapping) and isinstance(member.get("name"), str)):
            raise ValueError(f"members={members!r}: {member!r} is neither a name nor {{name: <name>, <option>: ...}}")
    known = {fact: value for fact, value in facts.items() if value is not None}
    built: dict[str, Normalizer] = {}
    for label, member in zip(_labels_of(members), members, strict=True):
        options = {} if isinstance(member, str) else {key: value for key, value in member.items() if key != "name"}
        try:
            built[label] = in_layer(builder("normalizer", _name_of(member), options, known))  # the mix judges masks
        except ValueError as error:
            raise ValueError(f"members={members!r}: {error}") from error
    return built


def _labels_of(members: Sequence[Member]) -> list[str]:
    """A label per member: its name, or the class name of a dotted path, with a number from the second one on."""
    names = [_name_of(member).replace(":", ".").rpartition(".")[2] for member in members]
    counts = [names[: index + 1].count(name) for index, name in enumerate(names)]
    return [name if count == 1 else f"{name}_{count}" for name, count in zip(names, counts, strict=True)]


def _name_of(member: Member) -> str:
    return member if isinstance(member, str) else member["name"]
