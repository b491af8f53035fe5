"""Problems with options, in words that open with the config key."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from attnorm.imports import nearest, option_names


def unknown(what: str, name: object, allowed: Iterable[str]) -> str:
    """The sentence for a name that is not among `allowed`: all of them, and the nearest."""
    names = sorted(allowed)
    return f"{what}; allowed: {', '.join(names) or 'none'}.{nearest(name, names)}"


def option_problems(key: str, name: str, maker: Callable, options: Mapping[str, object]) -> list[str]:
    """One message for each option that `maker` does not have, and for each one that it needs and was not given."""
    known = option_names(maker)
    default = {parameter.name: parameter.default for parameter in inspect.signature(maker).parameters.values()}
    needed = [option for option in known if default[option] is inspect.Parameter.empty and option not in options]
    return [
        unknown(f"{key}.{option}: {name} has no such option", option, known)
        for option in options
        if option not in known
    ] + [f"{key}.{option}: {name} needs this option" for option in needed]


def whole_number(key: str, value: object, least: int = 1) -> list[str]:
    """A problem if `value` is not an int of at least `least` (True is not a number here)."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= least:
        return []
    return [f"{key}={value}: must be a whole number of at least {least}"]


def non_empty_text(key: str, value: object) -> list[str]:
    """A problem if `value` is not a string with something in it."""
    return [] if isinstance(value, str) and value else [f"{key}={value}: must be a name, not empty"]


def flag(key: str, value: object) -> list[str]:
    """A problem if `value` is neither True nor False."""
    return [] if isinstance(value, bool) else [f"{key}={value}: must be true or false"]


def split_files(
    paths: Mapping[str, object], splits: Iterable[str], problem: Callable[[str, Path], list[str]]
) -> list[str]:
    """The problems with the files of these splits: one that has no path, or what `problem(key, path)` finds."""
    problems = []
    for split in splits:
        key = f"data.{split}={'null' if paths[split] is None else paths[split]}"
        if not isinstance(paths[split], str) or not paths[split]:
            problems.append(f"{key}: the {split} split is asked for; name its file")
        else:
            problems += problem(key, Path(paths[split]))
    return problems
