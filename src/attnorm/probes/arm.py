"""An arm of a probe: a normalizer by its name, its options, and a preference over keys."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attnorm.attention.call_context import in_layer
from attnorm.attention.normalizers.base import Normalizer
from attnorm.attention.registry import NORMALIZERS, PARTS, build
from attnorm.imports import find, parameters, short_name

NULLS = ("uniform", "none")
CONTENT = "content"  # the prior u that is computed from the states of the keys
ALIASES = {"dnas_slack_u": "dnas_slack+content", "softmax_u": "softmax+content", "dnas_u": "dnas+content"}


@dataclass(frozen=True)
class Arm:
    """A normalizer as it is typed: "hnas", "package.module.Class", or "dnas_slack+content", with a content prior.

    Raises ValueError for an unknown name or option, with the allowed ones.
    """

    label: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _, plus, prior = self.spelled.partition("+")
        if plus and prior != CONTENT:
            raise ValueError(f"{self.label}: {prior!r} is no preference over keys here; allowed: {CONTENT}")
        self.normalizer(1, 1)

    @property
    def spelled(self) -> str:
        return ALIASES.get(self.label, self.label)

    @property
    def name(self) -> str:
        """The name or the path of the normalizer."""
        return self.spelled.partition("+")[0]

    @property
    def has_prior(self) -> bool:
        return "+" in self.spelled

    @property
    def short(self) -> str:
        """The label without the module of an own class."""
        return self.label if "." not in self.name and ":" not in self.name else short_name(self.label)

    def normalizer(self, heads: int, width: int) -> Normalizer:
        """Builds the normalizer for a number of heads of a width. A weight per layer becomes one per head."""
        facts = {"heads": heads, "width": width, "state_width": width}
        per_head = {"per": "head"} if "per" in parameters(find("normalizer", self.name, *PARTS["normalizer"])) else {}
        return in_layer(build("normalizer", self.name, {**per_head, **self.options}, facts))

    def unfit(self, site: str) -> str | None:
        """Why the normalizer is not defined at a site ("cross", "bidirectional", "causal"); None if it is."""
        normalizer = self.normalizer(1, 1)
        if not normalizer.differentiable:
            return "it has no gradient"
        if normalizer.needs_causal and site != "causal":
            return "it is defined for causal self-attention only"
        if normalizer.couples_queries == "all" and site == "causal":
            return "each of its rows depends on all queries, and so on the future"
        return None


def every_arm() -> Sequence[str]:
    """The names of all normalizers that need no further ones, and those with a content prior that are compared."""
    return [*(name for name in NORMALIZERS if name != "mix"), *ALIASES]
