"""`attnorm check`: what attention needs of a normalizer, and what its class declares."""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from attnorm.config.command import read
from attnorm.errors import ConfigError
from attnorm.schema import Count, Text


@dataclass(frozen=True, kw_only=True)
class CheckKeys:
    """The keys of `attnorm check`, as in conf/check.yaml."""

    normalizer: Text
    options: dict[str, Any] = field(default_factory=dict)
    heads: Count = 2
    seed: int = 0


def run_check(arguments: list[str]) -> int:
    """Prints a line for each property, and returns the exit code: 1 if one fails."""
    from attnorm.attention.registry import build
    from attnorm.attention.testing.cases import WIDTH
    from attnorm.attention.testing.check import check_normalizer

    keys = read(arguments, CheckKeys, "attnorm check").settings
    facts = {"heads": keys.heads, "width": WIDTH, "state_width": WIDTH}
    factory = partial(build, "normalizer", keys.normalizer, keys.options, facts)
    try:
        factory()
    except ValueError as error:
        raise ConfigError([str(error)]) from error
    try:
        check_normalizer(factory, seed=keys.seed, heads=keys.heads)
    except AssertionError:  # the report has been printed
        return 1
    return 0
