"""The normalizer of a module or function, which is given by name, by class or as an instance."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch

from attnorm.attention.call_context import in_layer
from attnorm.attention.normalizers.base import Normalizer
from attnorm.attention.registry import build
from attnorm.imports import parameters

Choice = str | Mapping[str, Any] | type[Normalizer] | Normalizer


def normalizer_of(choice: Choice, **facts: Any) -> Normalizer:
    """An instance as it is; otherwise a new normalizer.

    choice: a name or a dotted path, as in `build_normalizer`; a mapping with the name and the options, such as
            {"name": "sinkhorn", "n_iters": 5}; a class; or an instance.
    facts:  what only the caller knows, such as the number of heads. A fact is passed only if the class takes it.

    Raises ValueError as `build_normalizer` does.
    """
    if isinstance(choice, Normalizer):
        return choice
    if isinstance(choice, type) and issubclass(choice, Normalizer):
        takes = parameters(choice)  # type: ignore[arg-type]  # a class is hashable
        known = {"builder": build, **facts}
        return choice(**{fact: value for fact, value in known.items() if fact in takes})
    settings: Mapping = choice if isinstance(choice, Mapping) else {"name": choice}
    if "name" not in settings:
        raise ValueError(
            f"normalizer={choice!r}: expected a name and options, such as {{'name': 'hnas', 'per': 'head'}}"
        )
    options = {option: value for option, value in settings.items() if option != "name"}
    made: Normalizer = build("normalizer", settings.get("name"), options, facts)  # type: ignore[arg-type]
    return made


def without_parameters(name: str, device: torch.device) -> Normalizer:
    """The normalizer of a name, in eval mode. Raises ValueError for one with parameters: nothing would train them."""
    if torch.compiler.is_compiling():  # the compiler can make an object of a class, but not find the class
        return _class_of(name)().to(device).eval()
    return built(name, device)


def _class_of(name: str) -> type[Normalizer]:
    return type(built(name, torch.device("cpu")))


# What torch.compiler.assume_constant_result sets. Calling it would import the compiler, which takes as long as torch.
_class_of._dynamo_marked_constant = True  # type: ignore[attr-defined]


@cache
def built(name: str, device: torch.device) -> Normalizer:
    made = normalizer_of(name)
    if any(True for _ in made.parameters()):
        raise ValueError(
            f"normalizer {name!r} has trained parameters: build it once, as a part of the model, and pass the instance"
        )
    return in_layer(made.to(device).eval())
