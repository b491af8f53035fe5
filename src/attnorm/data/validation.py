"""Checks of options. Each message starts with the config key."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from attnorm.errors import Problem
from attnorm.imports import nearest


def unknown_name(what: str, name: object, allowed: Iterable[str]) -> str:
    """The message for a name that is not in `allowed`, with all allowed names and the closest match."""
    names = sorted(allowed)
    return f"{what}; allowed: {', '.join(names) or 'none'}.{nearest(name, names)}"


def whole_number(key: str, value: object, least: int = 1) -> list[str]:
    """A problem if `value` is not an int >= `least`. A bool is not a number here."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= least:
        return []
    return [Problem(key, f"must be a whole number of at least {least}", value)]


def split_files(
    paths: Mapping[str, str | None], splits: Iterable[str], problem: Callable[[str, Path], list[str]]
) -> list[str]:
    """Problems with the files of these splits: a missing path, or the problems returned by `problem(key, path)`."""
    problems = []
    for split in splits:
        key = f"data.{split}={'null' if paths[split] is None else paths[split]}"
        path = paths[split]
        if not path:
            problems.append(f"{key}: the {split} split is asked for; name its file")
        else:
            problems += problem(key, Path(path))
    return problems
