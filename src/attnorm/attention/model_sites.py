"""The attention of a whole model: what its tables set at every site, the problems of them, and a name for the result.

`Sites` reads attention tables (`attnorm.attention.table_form`) once. `Site` builds models from the resolved tables.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any

from attnorm.attention.layer_options import LAYER_OPTIONS
from attnorm.attention.priors import needs_of
from attnorm.attention.registry import PARTS, normalizers_of
from attnorm.attention.site import Site
from attnorm.attention.table_form import BY_SITE, DEFAULT, TABLES, is_normalizer, names_in, wrong_names, wrong_values
from attnorm.errors import in_yaml
from attnorm.imports import find, nearest, short_name


def resolve_attention(attention: Mapping, sites: Mapping[str, bool]) -> dict[str, Any]:
    """`Sites.resolved`, for tables in which `check_attention` finds no problem."""
    return Sites(attention, sites).resolved


def check_attention(
    attention: Mapping,
    sites: Mapping[str, bool],
    layers: Mapping[str, Any] | None = None,
    typed: Collection[str] | None = None,
    heads: Mapping[str, Any] | None = None,
) -> list[str]:
    """Returns all problems of the attention tables as messages for the user. The list is empty if a model can be built.

    The arguments are those of `Sites`.
    """
    return Sites(attention, sites, layers, typed, heads).problems


class Sites(dict[str, Site]):
    """The sites of a model by name, as the attention tables set them. Each part that they name is built at most once.

    tables: the attention tables, as they were set.
    autoregressive: the model's sites, each with whether it is autoregressive.
    layers: the number of layers at each site, which the length of a list of normalizers must match. A number that is
            not an int is not compared. None means not known yet.
    typed:  the keys that the user typed, such as "attention.encoder". All other keys come from files that several
            models share, so a site that this model does not have is not a problem there. None means that all keys were
            typed.
    heads:  the number of heads at each site, which the numbers of values per head must match; as for `layers`.
    self_sites: the sites whose queries are their keys. token_sites: those with token embeddings. facts: what the model
            tells its priors. None means that they are not checked.
    remedy: what to use instead, as the end of a sentence, if a prior needs these facts and does not get them.
    """

    def __init__(
        self,
        tables: Mapping[str, Any],
        autoregressive: Mapping[str, bool],
        layers: Mapping[str, Any] | None = None,
        typed: Collection[str] | None = None,
        heads: Mapping[str, Any] | None = None,
        *,
        self_sites: Collection[str] | None = None,
        token_sites: Collection[str] | None = None,
        facts: Collection[str] | None = None,
        remedy: Callable[[Collection[str]], str] = lambda facts: "",
    ):
        self.tables: dict[str, Any] = {**{table: {} for table in TABLES}, **tables}
        self.autoregressive, self.layers, self.typed, self.heads = autoregressive, layers, typed, heads or {}
        self.self_sites, self.token_sites, self.facts, self.remedy = self_sites, token_sites, facts, remedy
        values = [*wrong_values(self.tables, autoregressive)]
        self.malformed = [*wrong_names(self.tables, autoregressive, self.was_typed), *values]
        smallest: dict[tuple[str, str], Any] = {}
        self.default = Site(self.tables, DEFAULT, smallest=smallest) if DEFAULT in tables and not values else None
        for name, is_autoregressive in autoregressive.items() if not values else ():
            if name in tables or DEFAULT in tables:
                of_layers = "unknown" if layers is None else layers.get(name)
                self[name] = Site(self.tables, name, is_autoregressive, of_layers, self.heads.get(name), smallest)

    @classmethod
    def of_model(
        cls,
        model: Any,
        options: Mapping[str, Any],
        tables: Mapping[str, Any],
        typed: Collection[str] | None = None,
        facts: Collection[str] | None = None,
        remedy: Callable[[Collection[str]], str] = lambda facts: "",
    ) -> "Sites":
        """The sites of a class of models with these options. The other arguments are those of the class.

        A model may say how many layers and heads each site has, by optional methods `site_layers` and `site_heads`;
        without the latter it is `n_heads`. It declares its sites of self-attention in `self_sites`, or returns them
        from `self_sites_of`, and those with token embeddings in `token_sites`.
        """
        sites = model.sites_of(options) if hasattr(model, "sites_of") else model.sites
        of_self = model.self_sites_of(options) if hasattr(model, "self_sites_of") else getattr(model, "self_sites", ())
        return cls(
            tables,
            sites,
            model.site_layers(options) if hasattr(model, "site_layers") else {},
            typed,
            model.site_heads(options) if hasattr(model, "site_heads") else dict.fromkeys(sites, options.get("n_heads")),
            self_sites=[*filter(sites.__contains__, of_self)],
            token_sites=getattr(model, "token_sites", ()),
            facts=facts,
            remedy=remedy,
        )

    @cached_property
    def resolved(self) -> dict[str, Any]:
        """The tables with an explicit entry for every site of the model, and for no other site.

        A site that is not set gets `_default_`, with softmax in place of what would leak the future. A site without an
        entry in `prior` or `scorer` gets no prior, or the scaled dot product. Of the other tables, only the entries
        that have an effect are kept. Sites that the model does not have are removed, and so are options of parts that
        it does not use. Resolving the result again does not change it.
        """
        tables: dict[str, Any] = {name: site.value for name, site in self.items()}
        for table in BY_SITE:
            chosen = {name: site.chosen[table] for name, site in self.items() if table in site.chosen}
            if chosen or table in ("prior", "scorer"):
                tables[table] = chosen
        tables["options"] = {name: options for name, options in self.tables["options"].items() if name in self.used}
        return tables

    @cached_property
    def used(self) -> set[str]:
        """The names under which `options` lists the parts of the sites."""
        return {short_name(name) for site in self.values() for _, _, name in site.parts()}

    @cached_property
    def problems(self) -> list[str]:
        """All problems, as messages for the user; empty if a model can be built."""
        if self.malformed:
            return self.malformed
        problems: list[str] = []
        for site in (*([self.default] if self.default else []), *self.values()):
            problems += site.problems()
        problems += (*self.model_rules(), *self.default_rules(), *self.file_rules(), *self.option_rules())
        return [*dict.fromkeys(problems)]  # several sites may use the same wrong option

    # ---------------------------------------------------------- rules; what is yielded is the key and the reason

    def model_rules(self) -> Iterator[str]:
        """The model provides what the parts of its sites need."""
        causal = [name for name in self.self_sites or () if self.autoregressive.get(name)]
        for at, site in self.items():
            for name, part in site.normalizers() if self.self_sites is not None else ():
                if part.needs_causal and at not in causal:
                    reason = f"{name} is defined for causal self-attention only, which {at} is not"
                    yield f"attention.{site.key}={name}: {reason}{allowed_at(causal)}"
            if "exclusive" in site.chosen and self.self_sites is not None and at not in self.self_sites:
                reason = "the queries of this site are not its keys, so that they have no value that could be excluded"
                yield f"attention.exclusive.{at}=true: {reason}{allowed_at(self.self_sites)}"
            if site.chosen.get("bank") == "vocabulary" and self.token_sites is not None and at not in self.token_sites:
                reason = "the model has no token embeddings at this site; use templates"
                yield f"attention.bank.{at}=vocabulary: {reason}"
            for name in site.priors if self.facts is not None else ():
                with suppress(ValueError):  # that there is no such prior is a problem of its own
                    needs = needs_of(find("prior", name, *PARTS["prior"]))
                    if missing := [fact for fact in needs if fact not in (self.facts or ())]:
                        reason = f"needs {', '.join(missing)}, which the model of this task does not provide"
                        yield f"attention.prior.{at}={name}: {reason}{self.remedy(missing)}"

    def default_rules(self) -> Iterator[str]:
        """A default has an effect."""
        if self.default is None or not self:
            return
        key, left = f"attention.{DEFAULT}", [name for name, site in self.items() if site.key == DEFAULT]
        if not left and self.typed is not None and self.was_typed(key):
            reason = f"has no effect, because every site of the model is set ({', '.join(self)})"
            yield f"{key}={in_yaml(self.tables[DEFAULT])}: {reason}"
        default = dict(self.default.normalizers())
        default.pop("softmax", None)
        if left and default and {name for site in self.values() for name in site.names}.isdisjoint(default):
            instead = [part.safe_form for part in default.values() if part.safe_form]
            instead.append("attention=softmax with attention.<site>=<normalizer>")
            reason = (
                "no site uses it. It couples queries and would leak the future at the autoregressive sites that are "
                f"not set ({', '.join(left)}); use {', or '.join(instead)}"
            )
            yield f"{key}={in_yaml(self.tables[DEFAULT])}: {reason}"

    def file_rules(self) -> Iterator[str]:
        """The file that was chosen with `attention=` names sites of the model. A file that leaves the model as it is,
        with softmax everywhere, names no other normalizer."""
        if not (self.typed and "attention" in self.typed and self):
            return
        has_only, of_other_sites = f"the model has only {', '.join(self)}", True
        for table in BY_SITE:
            named = [name for name, value in self.tables[table].items() if value]
            if named and self.keys().isdisjoint(named):
                yield f"attention.{table}: has no effect, because it is set for {', '.join(named)}, and {has_only}"
            of_other_sites = of_other_sites and self.keys().isdisjoint(named)
        plain = of_other_sites and {name for site in self.values() for name in site.names} == {"softmax"}
        if not plain or any(self.was_typed(f"attention.{name}") for name in self):
            return
        for name, value in self.tables.items():
            if name in (*TABLES, *self) or not is_normalizer(value) or {*normalizers_of(value)} == {"softmax"}:
                continue
            if name != DEFAULT:
                yield f"attention.{name}={in_yaml(value)}: has no effect, because {has_only}"
            elif self.keys() <= self.tables.keys():
                reason = f"has no effect, because softmax is set for {', '.join(self)}"
                yield f"attention.{name}={in_yaml(value)}: {reason}"

    def option_rules(self) -> Iterator[str]:
        """Options that were typed are of a part that a site uses, and those of a file of a part that the file names."""
        for name in self.tables["options"]:
            key, used = f"attention.options.{name}", ", ".join(sorted(self.used)) or "nothing"
            if name not in self.used and (self.was_typed(key) or name not in names_in(self.tables)):
                reason = f"has no effect, because no site uses {name!r}; in use: {used}.{nearest(name, self.used)}"
                yield f"{key}: {reason}"

    def was_typed(self, key: str) -> bool:
        """Whether the user typed this key or a key below it."""
        typed = self.typed
        return typed is None or any(other == key or other.startswith(f"{key}.") for other in typed)

    # -------------------------------------------------------------------------------------- names for people

    @property
    def label(self) -> str:
        """The name of a run's attention, used in the path of the run folder; "" without a site.

        It starts with the normalizer of the first site, followed by each other site that is not plain softmax, or by
        'all' if every site has that normalizer, then by the priors, banks, options of the layer and scorers. Examples:
        'hnas', 'entmax_all', 'softmax_cross-dnas_prefix', 'dnas_prior-encoder-t5', 'dnas_gate-encoder-headwise'.
        """
        labels = {name: site.label for name, site in self.items()}
        parts, others = [*labels.values()][:1], [*labels][1:]
        if others and {*labels.values()} == {*parts} != {"softmax"}:
            parts.append("all")
        else:
            parts += [f"{name}-{labels[name]}" for name in others if labels[name] != "softmax"]
        for table in ("prior", "bank", *LAYER_OPTIONS, "scorer"):
            for name, site in self.items():
                choice = site.chosen.get(table)
                if choice is True:
                    parts.append(f"{table}-{name}")
                elif choice and choice != "scaled_dot":
                    names = choice if isinstance(choice, list) else [choice]
                    parts.append(f"{table}-{name}-{'+'.join(map(short_name, names))}")
        return "_".join(parts)

    @property
    def description(self) -> str:
        """The normalizer of every site, such as 'encoder hnas; decoder, cross softmax (autoregressive)'."""
        groups: dict[str, list[str]] = {}
        for name, site in self.items():
            groups.setdefault(f"{site.label}{' (autoregressive)' * site.autoregressive}", []).append(name)
        return "; ".join(f"{', '.join(names)} {label}" for label, names in groups.items())


def allowed_at(sites: Collection[str]) -> str:
    """Where a part is allowed, as the end of a sentence."""
    return f"; allowed at {', '.join(sites)}" if sites else ""
