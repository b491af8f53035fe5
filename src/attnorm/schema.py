"""The options of a part are those of its constructor: their names, their types, and what the types allow.

A part (a model, a task, a data source, ...) declares its options as annotated parameters or dataclass fields:

    def __init__(self, *, size: Count = 100, path: str | None = None)

There is no other list of keys. A key is valid if and only if the part that is configured takes it.
"""

import inspect
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, get_origin

from pydantic import ConfigDict, Field, PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError

from attnorm.errors import ConfigError, Problem, UnknownOption
from attnorm.imports import nearest

Count = Annotated[int, Field(ge=1)]
WholeNumber = Annotated[int, Field(ge=0)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1)]  # a probability that leaves something over
Probability = Annotated[float, Field(ge=0, le=1)]
Text = Annotated[str, Field(min_length=1)]
FolderName = Annotated[str, Field(pattern=r"^[^/\x00]*[^/\x00.][^/\x00]*$", description="a name without /")]

EMPTY = inspect.Parameter.empty


@cache
def parameters(maker: Callable) -> dict[str, inspect.Parameter]:
    """The named parameters of a class or function, with evaluated annotations, in order."""
    try:
        signature = inspect.signature(maker, eval_str=True)
    except (NameError, TypeError):  # an annotation that is only valid for a type checker
        signature = inspect.signature(maker)
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name: it for name, it in signature.parameters.items() if it.kind in named}


def defaults_of(maker: Callable) -> dict[str, Any]:
    """The options of a class with their defaults, in order; None for an option that must be given."""
    defaults = {name: None if it.default is EMPTY else it.default for name, it in parameters(maker).items()}
    if not is_dataclass(maker):
        return defaults
    return defaults | {it.name: it.default_factory() for it in fields(maker) if it.default_factory is not MISSING}


def accepts_any(maker: Callable) -> bool:
    """Whether a class or function has a **kwargs parameter."""
    kinds = [it.kind for it in inspect.signature(maker).parameters.values()]
    return inspect.Parameter.VAR_KEYWORD in kinds


def option_problems(
    group: str,
    maker: Callable,
    options: Mapping[str, Any],
    facts: Collection[str] = (),
    *,
    owner: object = None,
) -> list[Problem]:
    """One problem for each option that `maker` does not take, that it needs and was not given, or whose value its
    annotation does not allow.

    group:  what the keys start with, such as "model"; "" for keys at the top level.
    facts:  parameters that the program fills in; as options they are refused, and they need not be given.
    owner:  the class that the message names, if not `maker`.

    Values are checked for parts of this package and for dataclasses; libraries annotate their parameters for a type
    checker, not for users.
    """
    known = {name: it for name, it in parameters(maker).items() if name not in facts and name != "self"}
    problems: list[Problem] = []
    for name, value in options.items():
        key = f"{group}.{name}" if group else name
        if name not in known:
            if name in facts or not accepts_any(maker):
                message = f"{_name(owner or maker)} has no such option{_choices(name, known)}"
                problems.append(UnknownOption(key, message, value))
        elif is_checked(maker) and known[name].annotation is not EMPTY:
            problems += value_problems(key, value, known[name].annotation)
    needed = (name for name, it in known.items() if it.default is EMPTY and name not in options)
    keys = (f"{group}.{name}" if group else name for name in needed)
    return problems + [Problem(key, f"must be given, as in {key}=<value>") for key in keys]


def is_checked(maker: Callable) -> bool:
    """Whether values are checked against the annotations of a class or function."""
    return maker.__module__.partition(".")[0] == "attnorm" or hasattr(maker, "__dataclass_fields__")


def value_problems(key: str, value: Any, annotation: Any) -> list[Problem]:
    """A problem if `value` is not what `annotation` allows; nothing for an annotation that cannot be checked."""
    try:
        convert(value, annotation)
    except ValidationError:
        return [Problem(key, f"allowed: {allowed(annotation)}", value)]
    except (PydanticSchemaGenerationError, PydanticUserError):
        return []
    return []


def convert(value: Any, annotation: Any) -> Any:
    """A value of a YAML file as its annotation says: a list becomes a tuple, text a path, a whole number a float.

    Raises ValidationError for a value of another type: text is not a number, and a number is not text.
    """
    try:
        text = json.dumps(value)
    except TypeError:  # not a value of a YAML file
        return _adapter(annotation).validate_python(value, strict=True)
    return _adapter(annotation).validate_json(text, strict=True)


def build(group: str, maker: Callable, options: Mapping[str, Any], /, **facts: Any) -> Any:
    """`maker(**options, **facts)`, with those facts that it takes. Raises ConfigError that names each wrong key."""
    if problems := option_problems(group, maker, options, facts):
        raise ConfigError(problems)
    taken = facts if accepts_any(maker) else {name: it for name, it in facts.items() if name in parameters(maker)}
    return maker(**{name: _converted(maker, name, value) for name, value in options.items()}, **taken)


def _converted(maker: Callable, name: str, value: Any) -> Any:
    """Lists become tuples, and texts paths, if the annotation says so; everything else stays as it was written."""
    parameter = parameters(maker).get(name)
    if parameter is None or parameter.annotation is EMPTY or not isinstance(value, (list, str)):
        return value
    if not is_checked(maker):
        return tuple(value) if isinstance(value, list) and _is_tuple(parameter.annotation) else value
    try:
        return convert(value, parameter.annotation)
    except (PydanticSchemaGenerationError, PydanticUserError):
        return value


def _is_tuple(annotation: Any) -> bool:
    return get_origin(annotation) is tuple or any(map(_is_tuple, getattr(annotation, "__args__", ())))


@cache
def _adapter(annotation: Any) -> TypeAdapter:
    return TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True))


def _name(maker: object) -> str:
    return getattr(maker, "__qualname__", str(maker)).removesuffix(".from_settings")


def _choices(name: str, known: Iterable[str]) -> str:
    known = sorted(known)
    return f"; it has {', '.join(known)}.{nearest(name, known)}" if known else "; it has none"


# what an annotation allows, in words


def allowed(annotation: Any) -> str:
    """What a value may be, in words that an error message can quote: "whole numbers from 1 or null"."""
    try:
        return describe(_adapter(annotation).json_schema())
    except PydanticUserError:  # a class that is not for YAML files
        return inspect.formatannotation(annotation)


def describe(schema: Mapping[str, Any]) -> str:
    """A JSON schema of a plain value in words. A description in the schema is used as it is."""
    if "description" in schema:
        return schema["description"]
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(describe, schema["anyOf"])))
    if "enum" in schema:
        return ", ".join(map(str, schema["enum"]))
    if "const" in schema:
        return str(schema["const"])
    match schema.get("type"):
        case "integer":
            return f"whole numbers{_bounds(schema)}"
        case "number":
            return f"numbers{_bounds(schema)}"
        case "array":
            items = schema.get("prefixItems") or [schema.get("items", {})]
            count = f"{len(items)} " if "prefixItems" in schema else ""
            return f"a list of {count}{' and '.join(dict.fromkeys(map(describe, items)))}"
        case "string" if schema.get("minLength"):
            return "text that is not empty"
        case kind:
            words = {"boolean": "true, false", "null": "null", "string": "text", "object": "settings by name"}
            return words.get(str(kind), "any value")


def _bounds(schema: Mapping[str, Any]) -> str:
    words = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}
    bounds = [f"{word} {_number(schema[name])}" for name, word in words.items() if name in schema]
    return f" {' and '.join(bounds)}".replace(" and to ", " to ") if bounds else ""


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)
