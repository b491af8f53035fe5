"""Tables of name -> "module:Class", imported when a name is asked for, with errors that say what to type instead."""

import difflib
import importlib
import inspect
from collections.abc import Iterable, Mapping


def unknown(what: str, name: object, allowed: Iterable[str]) -> str:
    """The sentence for a name that is not among `allowed`: the nearest one first, then all of them."""
    names = sorted(allowed)
    near = difflib.get_close_matches(str(name), names, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"{what}{hint} (allowed: {', '.join(names) or 'none'})"


def find(key: str, name: str, table: Mapping[str, str]) -> type:
    """The class that `table` names, or a user's own one by its dotted path "package.module:Class".

    `key` is the config group ("data"), for the message. Raises ValueError for a name that is not there.
    """
    path = table.get(name) or (name if isinstance(name, str) and ":" in name else None)
    if path is None:
        raise ValueError(unknown(f"{key}.name={name}: no such name", name, table))
    module, _, attribute = path.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{key}.name={name}: {path} cannot be imported: {error}") from error


def options_of(cls: type) -> dict[str, inspect.Parameter]:
    """The keyword-only options of a class's constructor, by name."""
    parameters = inspect.signature(cls).parameters.values()
    return {p.name: p for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


def option_problems(key: str, name: str, cls: type, options: Mapping[str, object]) -> list[str]:
    """One message for each option that `cls` does not have, and for each one that it needs and was not given."""
    known = options_of(cls)
    wrong = [option for option in options if option not in known]
    needed = [o for o, parameter in known.items() if parameter.default is inspect.Parameter.empty and o not in options]
    return [unknown(f"{key}.{option}: {name} has no such option", option, known) for option in wrong] + [
        f"{key}.{option}: {name} needs this option" for option in needed
    ]


def build(key: str, name: str, table: Mapping[str, str], options: Mapping[str, object]) -> object:
    """`table[name](**options)`. Raises ValueError with every wrong option, one a line."""
    cls = find(key, name, table)
    if problems := option_problems(key, name, cls, options):
        raise ValueError("\n".join(problems))
    return cls(**options)


def whole_number(key: str, value: object, least: int = 1) -> list[str]:
    """A problem if `value` is not an int of at least `least` (True is not a number here)."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= least:
        return []
    return [f"{key}={value}: must be a whole number of at least {least}"]


def non_empty_text(key: str, value: object) -> list[str]:
    """A problem if `value` is not a string with something in it."""
    return [] if isinstance(value, str) and value else [f"{key}={value}: must be a name, not empty"]
