"""One site of a model: the parts that the attention tables name for it, the rules for them, and its modules."""

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from attnorm.attention.layer_options import LAYER_OPTIONS, LayerOptions
from attnorm.attention.multihead import MultiHeadAttention
from attnorm.attention.normalizers.base import Normalizer
from attnorm.attention.normalizers.shared.fixed_shares import fixed_value
from attnorm.attention.priors import Sum
from attnorm.attention.registry import build, normalizers_of
from attnorm.attention.scorers import Scorer
from attnorm.attention.table_form import BY_SITE, DEFAULT
from attnorm.errors import in_yaml
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
    """A place with attention in a model.

    tables: the attention tables of the model (`attnorm.attention.table_form`), as they were set or resolved.
    name:   the name of the site in them.
    autoregressive: whether a query must not depend on later ones. There, softmax replaces each normalizer of the
            default that couples all queries.
    layers, heads: their numbers at this site. Anything but an int is not compared. If `layers` is None, the model does
            not say the number, and there can be no list with one normalizer per layer.
    smallest: a table of parts that have been built as in the smallest model, which several sites share.

    key:    the key that sets the normalizers: the name of the site, or `_default_`.
    names:  the normalizers, one for all layers or one per layer. per_layer: whether they were set as a list.
    value:  one name, or a list with one per layer, as the tables set them.
    chosen: what the other tables set for the site: its priors and its scorer, which may be the defaults, and the bank
            and the options of the layer that are set.
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
            for leaking, part in self.normalizers():
                if part.couples_queries == "all":
                    self.names = ["softmax" if other == leaking else other for other in self.names]
            if {*self.names} == {"softmax"}:
                self.names, self.per_layer = ["softmax"], False
        self.value = self.names if self.per_layer else self.names[0]
        self.chosen: dict[str, Any] = {"prior": [], "scorer": "scaled_dot"}
        for table in BY_SITE:
            if (choice := tables.get(table, {}).get(name)) not in (None, False):
                self.chosen[table] = choice
        self.priors: list[str] = self.chosen["prior"]
        self.scorer: str = self.chosen["scorer"]

    def part(self, kind: str, name: str) -> Any:
        """A part as in the smallest model, or the ValueError that says why it cannot be built."""
        if (kind, name) not in self._smallest:
            try:
                self._smallest[kind, name] = self.build(kind, name, **SMALLEST[kind])
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
        for kind in ("prior", "scorer", "bank", "gate"):
            names = self.chosen.get(kind, [])
            for name in names if isinstance(names, list) else [names]:
                yield f"attention.{kind}.{self.name}", kind, name

    def problems(self) -> Iterator[str]:
        """What keeps a model with this site from being built, as messages for the user."""
        for key, kind, name in self.parts():
            if isinstance(error := self.part(kind, name), ValueError):
                option, message = short_name(name), str(error.__cause__ or error)
                is_of_option = message.partition("=")[0] in (self.tables["options"].get(option) or {})
                yield f"attention.options.{option}.{message}" if is_of_option else f"{key}={name}: {error}"
        yield from self.rules()

    def rules(self) -> Iterator[str]:
        """The rules that are broken: a condition, the key, and the reason. Parts that cannot be built have no rules."""
        at, key, layers, chosen = self.name, f"attention.{self.key}", self.layers, self.chosen
        names, built, scorer = dict.fromkeys(self.names), dict(self.normalizers()), self.part("scorer", self.scorer)

        for name, part in built.items():
            if not part.differentiable:
                yield f"{key}={name}: {name} has no gradient, so a model cannot be trained with it"
            if self.autoregressive and part.couples_queries == "all" and self.key != DEFAULT:
                yield f"{key}={name}: {part.leak_message(name)}"
            if name in MIXTURES and (shares := self.wrong_shares(name, part)):
                yield f"attention.options.{name}.fixed: {shares}"

        if self.per_layer and layers is None:
            reason = f"the model does not say how many layers {at} has; set one normalizer"
            yield f"{key}={in_yaml(self.names)}: {reason}"
        if self.per_layer and type(layers) is int and layers != len(self.names):
            lengths = f"{counted(len(self.names), 'normalizer')} for {counted(layers, 'layer')}"
            yield f"{key}: {lengths}{f' at {at}' if self.key == DEFAULT else ''}"

        no_weights = {*names} == {"none"}
        for table in ("prior", *LAYER_OPTIONS) if no_weights else ():
            if chosen.get(table):
                yield f"attention.{table}.{at}={in_yaml(chosen[table])}: has no effect, because attention.{at}=none"

        # formulas that contain alpha, or dot products of their own, allow some scorers only
        for name, part in built.items() if isinstance(scorer, Scorer) else ():
            of_scorer, alpha = f"attention.scorer.{at}={self.scorer}", f"attention.{at}={name} contains alpha"
            learns = scorer.learns_alpha and part.needs_fixed_alpha
            if learns and self.scorer == "dot":
                reason = f"has to be null, because {alpha} as a fixed number; set alpha or tau instead"
                yield f"attention.options.dot.learn: {reason}"
            elif learns:
                reason = f"learns alpha, and must not, because {alpha} as a fixed number; use scaled_dot or dot"
                yield f"{of_scorer}: {reason}"
            if part.needs_queries and not scorer.is_dot:
                uses = "which uses the queries and the scale of the dot products; use scaled_dot, dot or bilinear"
                yield f"{of_scorer}: not defined with attention.{at}={name}, {uses}"

        if "bank" in chosen and len(built) == len(names) and not any(part.takes_bank for part in built.values()):
            of = " and ".join(map(short_name, names))
            reason = f"has no effect, because {of} gives no weight to templates outside the input; use ot"
            yield f"attention.bank.{at}={chosen['bank']}: {reason}"

        # the logarithm of an average of exponentials needs weights that are nonnegative and sum to 1
        laser = "laser" in chosen and not no_weights
        if laser and "differential" in chosen:
            reason = "the difference of two maps can be negative, and laser takes the logarithm of an average"
            others = f"not defined with attention.differential.{at}=true, because {reason}; use one of them"
            yield f"attention.laser.{at}=true: {others}"
        for name, part in built.items() if laser else ():
            if part.total != 1:
                weights = "may be negative" if part.total is None else "need not sum to 1"
                reason = f"whose weights {weights}, because laser takes the logarithm of an average"
                instead = "use a normalizer whose rows sum to 1, such as softmax"
                yield f"attention.laser.{at}=true: not defined with attention.{at}={name}, {reason}; {instead}"

    def wrong_shares(self, name: str, mixture: Any) -> str:
        """What is wrong with the fixed shares of a mixture for the layers and heads of this site; "" if nothing is."""
        fixed = (self.tables["options"].get(name) or {}).get("fixed")
        if fixed is None or type(self.layers) is not int:
            return ""
        heads = self.maps(self.heads) if type(self.heads) is int else None
        names = self.names * self.layers if len(self.names) == 1 else self.names
        try:
            for layer in (layer for layer, other in enumerate(names) if other == name):
                fixed_value(fixed, (self.name, layer), heads, mixture.parse)
        except ValueError as error:
            return str(error)
        if isinstance(fixed, Mapping) and len(fixed[self.name]) > self.layers:
            return f"{len(fixed[self.name])} values for the {self.layers} layers of {self.name}"
        return ""

    @property
    def label(self) -> str:
        """A short name for the normalizers: 'hnas', or 'hnas*6+softmax*6' for one name per layer."""
        runs = []
        for name, layers in groupby(map(short_name, self.names)):
            count = len([*layers])
            runs.append(name if count == 1 else f"{name}*{count}")
        return "+".join(runs)

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
        of_layer = {table: choice for table, choice in self.chosen.items() if table in LAYER_OPTIONS}
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
        normalizer.site = self.name
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
        """A part with the options that the tables have for it. facts: as in `build` of `attnorm.attention.registry`."""
        return build(kind, name, self.tables["options"].get(short_name(name)) or {}, facts)

    def maps(self, heads: int) -> int:
        """The number of attention maps of a layer: with differential attention, each head has two."""
        return 2 * heads if "differential" in self.chosen else heads
