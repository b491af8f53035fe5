"""Suggestions for keys that no part of a run reads."""

from collections.abc import Mapping
from typing import Any

from attnorm.choices import files_with
from attnorm.errors import Problem, UnknownOption, key_of
from attnorm.imports import SYNONYMS, did_you_mean
from attnorm.spec.settings import leaves


def with_owners(problem: str, cfg: Mapping[str, Any]) -> str:
    """A problem with a suggestion, if it is about an unknown option: the files of its group that have this option, or
    else the key with this meaning."""
    key = key_of(problem)
    if not isinstance(problem, UnknownOption):
        return problem
    if owners := files_with(key):
        return Problem.about(key, f"{problem} {key} is a key of {', '.join(owners)}.")
    if "Did you mean" in problem:
        return problem
    return Problem.about(key, f"{problem}{did_you_mean(keys_named(key, cfg))}")


def keys_named(key: str, cfg: Mapping[str, Any]) -> list[str]:
    """Other keys with the same last part, or with its name in attnorm: ["optimizer.lr"] for "lr" or "learning_rate"."""
    last = key.rpartition(".")[2]
    name, equals, value = SYNONYMS.get(last, last).partition("=")
    same = (it for it, _ in leaves(cfg) if it.endswith((f".{last}", f".{name}")) and it != key)
    return [f"{it}{equals}{value}" for it in same]
