"""Looking things up by name or by path, "package.module.Class", and the parameters that they take."""

import difflib
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any

from attnorm.source_code import own_modules

SYNONYMS = {  # names of settings in other libraries -> the names here
    "learning_rate": "lr",
    **dict.fromkeys(("batch_size", "per_device_train_batch_size", "train_batch_size"), "batch_tokens"),
    **dict.fromkeys(("epochs", "num_epochs", "n_epochs", "num_train_epochs"), "max_epochs"),
    "output_dir": "log_dir",
    "gradient_accumulation_steps": "accumulate_grad_batches",
    "max_grad_norm": "gradient_clip_val",
    "freeze": "optimizer.freeze",  # a key that no file sets
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
LABORATORY = {  # the modules of the packages of the extra `train` in pyproject.toml
    *("datasets", "hydra", "jinja2", "matplotlib", "numpy", "omegaconf", "pandas", "pyarrow", "pydantic"),
    *("pytorch_lightning", "rich", "rouge_score", "safetensors", "scipy", "sentencepiece", "tensorboard"),
    *("tokenizers", "tqdm", "wandb", "yaml"),
}
PATH = re.compile(r"([^\W\d]\w*(?:\.[^\W\d]\w*)*)[.:]([^\W\d]\w*)")  # only what matches is ever imported
TRUST = "ATTNORM_TRUST"  # environment variable: top-level packages that may be imported, separated by commas
_ABSENT = object()
own_folders: list[str] = []  # where `locate` looks for modules that are nowhere else


def nearest(name: object, allowed: Iterable[object], cutoff: float = 0.5) -> str:
    """' Did you mean ...?' with the allowed name that has the same meaning, or else with the closest one, or ''."""
    names, synonym = [str(a) for a in allowed], SYNONYMS.get(str(name), "")
    if synonym and synonym.partition("=")[0] in names:
        return did_you_mean([synonym])
    cutoff = max(cutoff, 0.85) if synonym else cutoff  # the word has another meaning, unless it is misspelt
    return did_you_mean(difflib.get_close_matches(str(name), names, n=1, cutoff=cutoff))


def did_you_mean(names: Iterable[str]) -> str:
    """' Did you mean ...?' with these names; '' without one."""
    quoted = " or ".join(map(repr, names))
    return f" Did you mean {quoted}?" if quoted else ""


def laboratory_is_missing(error: ModuleNotFoundError) -> str:
    """How to install the laboratory, if an import failed because a package of it is not there; '' otherwise."""
    if error.name not in LABORATORY:
        return ""
    return f'needs the package {error.name}; install it in a clone of attnorm with: pip install ".[train]"'


def trusted_packages() -> set[str]:
    """The packages whose code files of others may name: this one, and those of the environment variable TRUST."""
    return {"attnorm", *filter(None, map(str.strip, os.environ.get(TRUST, "").split(",")))}


def package_of(path: str) -> str:
    """The top-level package of "package.module.Class" or "package:Class"."""
    return re.split("[.:]", path)[0]


def short_name(name: str) -> str:
    """The key of a part's options: its name, or the class name if it is a dotted path."""
    return name.replace(":", ".").rpartition(".")[2]


def texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Every text inside a value, with its key."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from texts(inner, f"{key}.{name}" if key else name)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from texts(inner, f"{key}[{number}]")


@contextmanager
def starting_processes(**variables: str) -> Iterator[None]:
    """Within this context, processes are started with these environment variables. An interpreter that is started with
    -c or -m does not look into the working directory, whose files could take the place of libraries."""
    variables = {"PYTHONSAFEPATH": "1"} | variables
    before = {name: os.environ.get(name) for name in variables}
    os.environ |= variables
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def import_named(name: str) -> ModuleType:
    """Imports a module that a setting names. The folder of own modules joins the search path only when it is needed,
    and as the last one, so that a file there never takes the place of a library."""
    if name in sys.modules:
        return sys.modules[name]
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        further = [folder for folder in own_folders if folder not in sys.path]
        if not further or error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        sys.path += further
        module = importlib.import_module(name)
    if package_of(name) != "attnorm":
        own_modules()  # reads the files that were just imported, before they are edited
    return module


def locate(path: str, base: type | None = None) -> Any:
    """The object behind a path, "package.module.Class". A colon before the last name is accepted.

    base: the class that it must extend; None accepts any object.

    Raises ValueError for anything but such a path, for one that cannot be imported, with the import's own error, and
    for anything that is not a concrete subclass of `base`.
    """
    if not (match := PATH.fullmatch(path)):
        raise ValueError("a dotted path has the form package.module.Class")
    try:
        module = import_named(match[1])
    except ImportError as error:
        raise ValueError(f"cannot import {match[1]}: {error}") from error
    if (located := getattr(module, match[2], _ABSENT)) is _ABSENT:
        raise ValueError(f"{match[1]} has no {match[2]}.{nearest(match[2], dir(module))}")
    is_subclass = isinstance(located, type) and issubclass(located, base or object) and located is not base
    if base is not None and (not is_subclass or inspect.isabstract(located)):
        raise ValueError(f"must be a subclass of {base.__module__}.{base.__qualname__}")
    return located


def find(kind: str, name: object, names: Mapping[str, str], base: type | None = None) -> Any:
    """What a name of `names`, a table of paths, stands for, or what a path leads to.

    Raises ValueError as `locate` does, starting with the kind and the name; for an unknown name, the message lists the
    allowed ones and the nearest.
    """
    path = names.get(name, name) if isinstance(name, str) else ""
    if "." not in path and ":" not in path:
        allowed = f"allowed: {', '.join(names)}, or a path package.module.Class"
        raise ValueError(f"{kind} {name!r} is unknown; {allowed}.{nearest(name, names)}")
    try:
        return locate(path, base)
    except ValueError as error:
        raise ValueError(f"{kind} {name!r}: {error}") from error


@cache
def parameters(maker: Callable) -> dict[str, inspect.Parameter]:
    """The named parameters of a class or function, with evaluated annotations, in order."""
    try:
        signature = inspect.signature(maker, eval_str=True)
    except (NameError, TypeError):  # an annotation that is only valid for a type checker
        signature = inspect.signature(maker)
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name: each for name, each in signature.parameters.items() if each.kind in named and name != "self"}


@cache
def accepts_any(maker: Callable) -> bool:
    """Whether a class or function has a **kwargs parameter."""
    kinds = {parameter.kind for parameter in inspect.signature(maker).parameters.values()}
    return inspect.Parameter.VAR_KEYWORD in kinds
