"""One site of a model: the parts that the attention tables name for it, the rules for them, and its modules."""

from collections.abc import Iterator, Mapping
from typing import Any

from attnorm.attention.layer_options import LAYER_OPTIONS, LayerOptions
from attnorm.attention.multihead import MultiHeadAttention
from attnorm.attention.names import build_part, normalizers_of, problem_of_part
from attnorm.attention.normalizers._fixed import fixed_value
from attnorm.attention.normalizers.base import Normalizer
from attnorm.attention.priors import Sum
from attnorm.attention.scorers import Scorer
from attnorm.attention.tables import DEFAULT, Rule, broken
from attnorm.imports import short_name
from attnorm.wording import counted

MIXTURES = ("hnas", "hnas_prefix", "mix")  # normalizers whose shares can be fixed
# facts of the smallest model, sufficient to check whether its parts can be built
SMALLEST: dict[str, dict[str, Any]] = {
    "normalizer": {"heads": 1, "width": 1, "state_width": 1, "place": None},
    "prior": {"heads": 1, "bidirectional": True, "positions": 1, "width": 1},
    "scorer": {"heads": 1, "width": 1},
    "bank": {"width": 1},
    "gate": {"width": 1, "heads": 1},
}


class Site:
    """A place with attention in a model. Its rules are tables of what must not be, the key, and the reason.

    tables: the attention tables of the model (`attnorm.attention.tables`), as they were set or resolved.
    name:   the name of the site in them.
    autoregressive: whether a query must not depend on later ones. There, softmax replaces each normalizer of the
            default that couples all queries.
    layers, heads: their numbers at this site. Anything but an int is not compared. If `layers` is None, the model does
            not say the number, and there can be no list with one normalizer per layer.
    smallest: a table of parts that have been built as in the smallest model, which several sites share.

    key:    the key that sets the normalizers: the name of the site, or `_default_`.
    names:  the normalizers, one for all layers or one per layer. per_layer: whether they were set as a list.
    value:  one name, or a list with one per layer, as the tables set them.
    priors, scorer: the names of the other parts. chosen: the bank and the options of the layer that are set, by table.
    """

    def __init__(
        self,
        tables: Mapping[str, Any],
        name: str,
        autoregressive: bool = False,
        layers: Any = "unknown",
        heads: Any = None,
        smallest: dict[tuple[str, str], Any] | None = None,
    ):
        self.tables, self.name, self.autoregressive = tables, name, autoregressive
        self.layers, self.heads = layers, heads
        self._smallest = {} if smallest is None else smallest
        self.key = name if name in tables else DEFAULT
        value = tables.get(self.key, [])
        self.names, self.per_layer = normalizers_of(value), not isinstance(value, str)
        if self.key == DEFAULT and autoregressive:
            leaking = {other for other, part in self.normalizers() if part.couples_queries == "all"}
            self.names = ["softmax" if other in leaking else other for other in self.names]
            if {*self.names} == {"softmax"}:
                self.names, self.per_layer = ["softmax"], False
        self.value = self.names if self.per_layer else self.names[0]
        self.priors: list[str] = tables.get("prior", {}).get(name, [])
        self.scorer: str = tables.get("scorer", {}).get(name, "scaled_dot")
        by_table = {table: tables.get(table, {}).get(name) for table in ("bank", *LAYER_OPTIONS)}
        self.chosen = {table: value for table, value in by_table.items() if value not in (None, False)}

    def part(self, kind: str, name: str) -> Any:
        """A part as in the smallest model, or the ValueError that says why it cannot be built."""
        if (kind, name) not in self._smallest:
            try:
                self._smallest[kind, name] = build_part(kind, name, self.tables, **SMALLEST[kind])
            except ValueError as error:
                self._smallest[kind, name] = error
        return self._smallest[kind, name]

    def normalizers(self) -> Iterator[tuple[str, Normalizer]]:
        """Each normalizer once with its name, as in the smallest model, if it can be built."""
        for name in dict.fromkeys(self.names):
            if not isinstance(part := self.part("normalizer", name), ValueError):
                yield name, part

    def parts(self) -> Iterator[tuple[str, str, str]]:
        """(key, kind, name) of each part."""
        for name in dict.fromkeys(self.names):
            yield f"attention.{self.key}", "normalizer", name
        of_kind = {"prior": self.priors, "scorer": [self.scorer]}
        of_kind |= {kind: [self.chosen[kind]] for kind in ("bank", "gate") if kind in self.chosen}
        for kind, names in of_kind.items():
            yield from ((f"attention.{kind}.{self.name}", kind, name) for name in names)

    def problems(self) -> Iterator[str]:
        """What keeps a model with this site from being built, as messages for the user."""
        for key, kind, name in self.parts():
            if isinstance(error := self.part(kind, name), ValueError):
                yield problem_of_part(f"{key}={name}", name, self.tables, error)
        yield from broken(self.rules())

    def rules(self) -> Iterator[Rule]:
        """The rules for the parts of this site. Those for a part that cannot be built are left out."""
        at, key = self.name, f"attention.{self.key}"
        for name, part in self.normalizers():
            of_name, shares = f"{key}={name}", self.wrong_shares(name, part)
            leaks = self.autoregressive and part.couples_queries == "all" and self.key != DEFAULT
            yield not part.differentiable, of_name, f"{name} has no gradient, so a model cannot be trained with it"
            yield leaks, of_name, part.leak_message(name) if leaks else ""
            yield bool(shares), f"attention.options.{name}.fixed", shares

        layers, names = self.layers, f"[{','.join(self.names)}]"
        where = f" at {at}" if self.key == DEFAULT else ""
        reason = f"the model does not say how many layers {at} has; set one normalizer"
        yield self.per_layer and layers is None, f"{key}={names}", reason
        differ = self.per_layer and is_count(layers) and layers != len(self.names)
        lengths = f"{counted(len(self.names), 'normalizer')} for {counted(layers, 'layer')}" if differ else ""
        yield differ, key, f"{lengths}{where}"

        no_weights, no_effect = {*self.names} == {"none"}, f"has no effect, because attention.{at}=none"
        priors = f"attention.prior.{at}=[{','.join(self.priors)}]"
        yield no_weights and bool(self.priors), priors, no_effect
        for table in LAYER_OPTIONS:
            choice = self.chosen.get(table)
            of_table = f"attention.{table}.{at}={'true' if choice is True else choice}"
            yield no_weights and table in self.chosen, of_table, no_effect
        yield from self.scorer_rules()
        yield from self.bank_rules()
        yield from self.laser_rules()

    def wrong_shares(self, name: str, mixture: Any) -> str:
        """What is wrong with the fixed shares of a mixture for the layers and heads of this site; "" if nothing is."""
        fixed = (self.tables["options"].get(name) or {}).get("fixed") if name in MIXTURES else None
        if fixed is None or not is_count(self.layers):
            return ""
        heads = self.maps(self.heads) if is_count(self.heads) else None
        names = self.names * self.layers if len(self.names) == 1 else self.names
        try:
            for layer in (layer for layer, other in enumerate(names) if other == name):
                fixed_value(fixed, (self.name, layer), heads, mixture.parse)
        except ValueError as error:
            return str(error)
        if isinstance(fixed, Mapping) and len(fixed[self.name]) > self.layers:
            return f"{len(fixed[self.name])} values for the {self.layers} layers of {self.name}"
        return ""

    def scorer_rules(self) -> Iterator[Rule]:
        """Formulas that contain alpha, or dot products of their own, allow some scorers only."""
        scorer, key = self.part("scorer", self.scorer), f"attention.scorer.{self.name}={self.scorer}"
        for name, part in () if isinstance(scorer, ValueError) else self.normalizers():
            learns, chosen = scorer.learns_alpha and part.needs_fixed_alpha, f"attention.{self.name}={name}"
            because = f"because {chosen} contains alpha as a fixed number"
            if self.scorer == "dot":
                reason = f"has to be null, {because}; set alpha or tau instead"
                yield learns, "attention.options.dot.learn", reason
            else:
                yield learns, key, f"learns alpha, and must not, {because}; use scaled_dot or dot"
            reason = (
                f"not defined with {chosen}, which uses the queries and the scale of the dot products; use scaled_dot, "
                "dot or bilinear"
            )
            yield part.needs_queries and not scorer.is_dot, key, reason

    def bank_rules(self) -> Iterator[Rule]:
        """A bank needs a normalizer that gives weight to templates outside the input."""
        built, names = dict(self.normalizers()), dict.fromkeys(self.names)
        none_takes = len(built) == len(names) and not any(part.takes_bank for part in built.values())
        key, of = f"attention.bank.{self.name}={self.chosen.get('bank')}", " and ".join(map(short_name, names))
        reason = f"has no effect, because {of} gives no weight to templates outside the input; use ot"
        yield "bank" in self.chosen and none_takes, key, reason

    def laser_rules(self) -> Iterator[Rule]:
        """The logarithm of an average of exponentials needs weights that are nonnegative and sum to 1."""
        laser = "laser" in self.chosen and {*self.names} != {"none"}
        key = f"attention.laser.{self.name}=true"
        reason = (
            f"not defined with attention.differential.{self.name}=true, because the difference of two maps can be "
            "negative, and laser takes the logarithm of an average; use one of them"
        )
        yield laser and "differential" in self.chosen, key, reason
        for name, part in self.normalizers():
            weights = "may be negative" if part.total is None else "need not sum to 1"
            reason = (
                f"not defined with attention.{self.name}={name}, whose weights {weights}, because laser takes the "
                "logarithm of an average; use a normalizer whose rows sum to 1, such as softmax"
            )
            yield laser and part.total != 1, key, reason

    # -------------------------------------------------------------------------------------- the modules of a model

    def layer(self, width: int, heads: int, layer: int = 0, dropout: float = 0.0) -> MultiHeadAttention:
        """The multi-head attention of one layer, with its normalizer, scorer, bank and options.

        layer: the index of the layer at this site, from 0. width, heads, dropout: as in `MultiHeadAttention`.
        """
        return MultiHeadAttention(width, heads, dropout=dropout, **self.layer_parts(width, heads, layer))

    def layer_parts(self, width: int, heads: int, layer: int = 0) -> dict[str, Any]:
        """The arguments normalizer, scorer, bank and options of `MultiHeadAttention` for one layer, as in `layer`.

        A layer has a bank only if its normalizer gives weight to it.
        """
        normalizer = self.normalizer(heads, layer, width=width // heads, state_width=width)
        scorer: Scorer = self.build("scorer", self.scorer, heads=self.maps(heads), width=width // heads)
        of_layer = {table: value for table, value in self.chosen.items() if table != "bank"}
        if "gate" in of_layer:
            of_layer["gate"] = self.build("gate", of_layer["gate"], width=width, heads=heads)
        has_bank = "bank" in self.chosen and normalizer.takes_bank
        return {
            "normalizer": normalizer,
            "scorer": scorer,
            "bank": self.build("bank", self.chosen["bank"], width=width) if has_bank else None,
            "options": LayerOptions(width, heads, **of_layer) if of_layer else None,
        }

    def normalizer(
        self, heads: int, layer: int = 0, *, width: int | None = None, state_width: int | None = None
    ) -> Normalizer:
        """The normalizer of one layer; with differential attention, it has 2 `heads` heads.

        layer: as in `layer`. It selects from a list of normalizers.
        width, state_width: the width of a head and of the states, for normalizers with parameters that act on keys or
               on states; None if they are not known.
        """
        name = self.names[layer] if self.per_layer else self.names[0]
        widths = {"width": width, "state_width": state_width}
        known = {fact: value for fact, value in widths.items() if value is not None}
        normalizer: Normalizer = self.build(
            "normalizer", name, heads=self.maps(heads), place=(self.name, layer), **known
        )
        return normalizer

    def prior(self, *, heads: int, bidirectional: bool, positions: int, width: int) -> Sum | None:
        """The prior, which all layers of the site share; None if it has none.

        positions: the largest number of positions of the keys. width: the width of the states behind the keys.
        """
        facts = {"heads": heads, "bidirectional": bidirectional, "positions": positions, "width": width}
        # keyed by name, so that the initial parameters of a prior do not depend on the other priors
        priors = {short_name(name): self.build("prior", name, **facts) for name in self.priors}
        return Sum(priors) if priors else None

    def build(self, kind: str, name: str, **facts: Any) -> Any:
        """A part with its options. facts: as in `build_part`."""
        return build_part(kind, name, self.tables, **facts)

    def maps(self, heads: int) -> int:
        """The number of attention maps of a layer: with differential attention, each head has two."""
        return 2 * heads if "differential" in self.chosen else heads


def is_count(value: Any) -> bool:
    """Whether a number of layers or heads is known."""
    return type(value) is int
