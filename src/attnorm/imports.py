"""Looking things up by name: a plain dict name -> "module:Class", imported when asked for."""

import difflib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

SYNONYMS = {  # names of settings in other libraries -> the names here
    "learning_rate": "lr",
    "batch_size": "batch_tokens",
    **dict.fromkeys(("epochs", "num_epochs", "n_epochs"), "max_epochs"),
    **dict.fromkeys(("steps", "num_steps", "updates", "max_updates", "iterations"), "max_steps"),
    **dict.fromkeys(("gpus", "gpu", "n_gpus", "num_gpus"), "devices"),
    "device": "accelerator",
    "dataset": "data",
    "normalizer": "attention",
    **dict.fromkeys(("layers", "n_layers", "num_layers"), "encoder_layers"),
    **dict.fromkeys(("heads", "num_heads"), "n_heads"),
    **dict.fromkeys(("hidden_size", "width", "dim"), "d_model"),
    **dict.fromkeys(("beams", "num_beams"), "beam_size"),
    "workers": "num_workers",
    "warmup_steps": "warmup",
    "offline": "mode=offline",
}
_own_folders: list[str] = []  # of modules that are not installed


def nearest(name: object, allowed: Iterable[object], cutoff: float = 0.5) -> str:
    """' Did you mean ...?' with the allowed name that has the same meaning, or else with the closest one, or ''."""
    names, synonym = [str(a) for a in allowed], SYNONYMS.get(str(name), "")
    if synonym:
        return did_you_mean([synonym] if synonym.partition("=")[0] in names else [])
    return did_you_mean(difflib.get_close_matches(str(name), names, n=1, cutoff=cutoff))


def did_you_mean(names: Iterable[str]) -> str:
    """' Did you mean ...?' with these names; '' without one."""
    quoted = " or ".join(map(repr, names))
    return f" Did you mean {quoted}?" if quoted else ""


def look_last_in(folder: str) -> None:
    """Makes `find` and `locate` look for modules in a folder, too, if they are nowhere else."""
    _own_folders.append(folder)


def import_named(name: str) -> ModuleType:
    """Imports a module that a setting names. The folder of own modules joins the search path only when it is needed,
    and as the last one, so that a file there never takes the place of a library."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        further = [folder for folder in _own_folders if folder not in sys.path]
        if not further or error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        sys.path += further
        return importlib.import_module(name)


def find(kind: str, name: str, table: Mapping[str, str], base: type | None = None) -> type:
    """The class behind a name of `table`, or behind a dotted path "package.module:Class".

    base: the class that it must extend, checked before it is called; None accepts any object.

    Raises ValueError for an unknown name (the right ones listed, the nearest suggested), for a path that does not
    import (its real error kept), and for anything that is not a concrete subclass of `base`.
    """
    path = table.get(name) if isinstance(name, str) else None
    if path is None and not (isinstance(name, str) and ":" in name):
        raise ValueError(
            f"{kind} {name!r} is unknown; allowed: {', '.join(table)}, or a dotted path 'package.module:Class'."
            + nearest(name, table)
        )
    module_name, _, class_name = (path or name).partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), class_name)):
        raise ValueError(f"{kind} {name!r}: a dotted path has the form 'package.module:Class'")
    try:
        found = getattr(import_named(module_name), class_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{kind} {name!r}: cannot import {class_name!r} from {module_name!r}: {error}") from error
    if base is not None and not is_concrete(found, base):
        raise ValueError(f"{kind} {name!r}: expected a subclass of {base.__module__}.{base.__qualname__}")
    return found


def locate(path: str) -> Any:
    """The object behind a dotted path, "package.module.Class" or "package.module:Class".

    Raises ValueError for anything but such a path, and for one that cannot be imported, with the import's own error.
    """
    module_name, _, name = path.rpartition(":" if ":" in path else ".")
    if not all(part.isidentifier() for part in (*module_name.split("."), name)):
        raise ValueError("a dotted path has the form package.module.Class")
    try:
        module = import_named(module_name)
    except ImportError as error:
        raise ValueError(f"cannot import {module_name}: {error}") from error
    if not hasattr(module, name):
        raise ValueError(f"{module_name} has no {name}.{nearest(name, dir(module))}")
    return getattr(module, name)


def is_concrete(found: object, base: type) -> bool:
    """Whether an object is a class that extends `base` and leaves no abstract method."""
    return isinstance(found, type) and issubclass(found, base) and found is not base and not inspect.isabstract(found)


def option_names(maker: Callable) -> list[str]:
    """The options that a class (or a function with keyword-only options) takes."""
    return [parameter.name for parameter in option_parameters(maker)]


def required_options(maker: Callable) -> list[str]:
    """Those of them without a default."""
    return [parameter.name for parameter in option_parameters(maker) if parameter.default is parameter.empty]


def option_parameters(maker: Callable) -> list[inspect.Parameter]:
    if isinstance(maker, type) and inspect.getattr_static(maker, "__init__") is object.__init__:
        return []
    parameters = list(inspect.signature(maker).parameters.values())
    keyword_only = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    return keyword_only or [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]


def construct(kind: str, name: str, table: Mapping[str, str], options: Mapping[str, Any], base: type) -> Any:
    """An instance of the class behind `name`; ValueError names a wrong option, the allowed ones and the nearest."""
    cls = find(kind, name, table, base)
    allowed = option_names(cls)
    for option in options:
        if option not in allowed:
            takes = f"allowed: {', '.join(allowed)}" if allowed else "it takes none"
            raise ValueError(f"{kind} {name!r} has no option {option!r}; {takes}." + nearest(option, allowed))
    missing = [option for option in required_options(cls) if option not in options]
    if missing:
        raise ValueError(f"{kind} {name!r} needs a value for {', '.join(missing)}")
    try:
        return cls(**options)
    except ValueError as error:
        raise ValueError(f"{kind} {name!r}: {error}") from error
