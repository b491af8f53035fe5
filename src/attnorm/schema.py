"""The options of a part are those of its constructor: their names, their types, and what the types allow.

A part (a model, a task, a data source, ...) declares its options as annotated parameters or dataclass fields:

    def __init__(self, *, size: Count = 100, path: str | None = None)

There is no other list of keys. A key is valid if and only if the part that is configured takes it.
"""

import inspect
import json
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, Literal, get_origin

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    PydanticSchemaGenerationError,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
)
from typing_extensions import TypedDict

from attnorm.errors import Problem, UnknownOption, unknown
from attnorm.imports import accepts_any, nearest, parameters

Count = Annotated[int, Field(ge=1)]
WholeNumber = Annotated[int, Field(ge=0)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1)]  # a probability that leaves something over
Level = Annotated[float, Field(gt=0, lt=1)]  # of an interval
Probability = Annotated[float, Field(ge=0, le=1)]
Text = Annotated[str, Field(min_length=1)]
FolderName = Annotated[str, Field(pattern=r"^[^/\x00]*[^/\x00.][^/\x00]*$", description="a name without /")]
PictureFormats = tuple[Literal["png", "svg", "pdf"], ...]  # of figures as files, see attnorm.analysis.paper

EMPTY = inspect.Parameter.empty
UNCHECKABLE = (PydanticSchemaGenerationError, PydanticUserError)  # raised for an annotation that cannot be checked


def is_name(value: object) -> bool:
    """Whether a value is the name of something in a folder, and not a path that leads elsewhere."""
    return isinstance(value, str) and value not in ("", ".", "..") and not {"/", "\0"} & set(value)


def defaults_of(maker: Callable) -> dict[str, Any]:
    """The options of a class with their defaults, in order; None for an option that must be given."""
    defaults = {
        name: None if parameter.default is EMPTY else parameter.default for name, parameter in parameters(maker).items()
    }
    if not is_dataclass(maker):
        return defaults
    factories = {field.name: field.default_factory for field in fields(maker)}
    return defaults | {name: factory() for name, factory in factories.items() if factory is not MISSING}


def read_options(
    group: str,
    maker: Callable,
    options: Mapping[str, Any],
    facts: Collection[str] = (),
    *,
    elsewhere: Collection[str] | None = (),
    owner: object = None,
) -> tuple[dict[str, Any], list[Problem]]:
    """The options with which `maker` can be called, and one problem for each option that it does not take, that it
    needs and was not given, or whose value its annotation does not allow.

    group:  what the keys start with, such as "model"; "" for keys at the top level.
    facts:  parameters that the program fills in; as options they are refused, and they need not be given.
    elsewhere: options that are read elsewhere; None for all that `maker` does not take.
    owner:  the class that the message names, if not `maker`.

    A list becomes a tuple, and a text a path, if the annotation says so; everything else stays as it was written.
    Values are checked for parts of this package and for dataclasses; libraries annotate their parameters for a type
    checker, not for users.
    """
    known, prefix, taken, problems = parameters(maker), f"{group}." if group else "", dict[str, Any](), list[Problem]()
    try:
        checked, wrong = _validated(_checker(maker), options), set[Any]()
    except ValidationError as error:
        wrong = {detail["loc"][0] for detail in error.errors(include_url=False)}
        right = {name: value for name, value in options.items() if name not in wrong}
        checked = _validated(_checker(maker), right)
    for name, value in options.items():
        if (name not in known) if elsewhere is None else (name in elsewhere):
            continue
        if name in facts or not (name in known or accepts_any(maker)):
            free = sorted(option for option in known if option not in facts)
            has = f"it has {', '.join(free)}.{nearest(name, free)}" if free else "it has none"
            named = getattr(owner or maker, "__qualname__", str(owner or maker)).removesuffix(".from_settings")
            message = f"{named} has no such option; {has}"
            verb = f"{owner.removeprefix('attnorm ')} " if isinstance(owner, str) else ""
            problems.append(unknown(f"{verb}{prefix}{name}", UnknownOption(prefix + name, message, value)))
        elif name in wrong:
            problems.append(refused(prefix + name, value, known[name].annotation))
        else:
            taken[name] = checked.get(name, value) if isinstance(value, (list, str)) else value
    for name, parameter in known.items():
        if parameter.default is EMPTY and name not in options and name not in facts:
            key = prefix + name
            problems.append(Problem(key, f"must be given, as in {key}=<value>"))
    return taken, problems


def refused(key: str, value: Any, annotation: Any) -> Problem:
    """The problem with a value that an annotation does not allow. Says so if it is text that spells an allowed one, as
    the value of an environment variable is."""
    message = f"allowed: {allowed(annotation)}"
    with suppress(ValueError, TypeError, *UNCHECKABLE):  # ValidationError is a ValueError
        converted_value(json.loads(value), annotation)
        message += "; this value is text: leave out its quotes, or type ${oc.decode:${oc.env:NAME}}"
    return Problem(key, message, value)


@cache
def _checker(maker: Callable) -> TypeAdapter:
    """What checks all options of a class or function at once, each by its annotation. For those of libraries, it only
    makes a list a tuple."""
    is_checked = maker.__module__.startswith("attnorm.") or is_dataclass(maker)
    annotations: dict[str, Any] = {}
    for name, parameter in parameters(maker).items():
        annotations[name] = Any
        if not is_checked and _is_tuple(parameter.annotation):
            annotations[name] = Annotated[
                Any, AfterValidator(lambda value: tuple(value) if isinstance(value, list) else value)
            ]
        elif is_checked and parameter.annotation is not EMPTY:
            with suppress(*UNCHECKABLE):
                _adapter(parameter.annotation)
                annotations[name] = parameter.annotation
    table = TypedDict("table", annotations, total=False)  # type: ignore[misc]  # its fields are known only here
    setattr(table, "__pydantic_config__", ConfigDict(arbitrary_types_allowed=True))  # noqa: B010
    return TypeAdapter(table)


def value_problems(key: str, value: Any, annotation: Any) -> list[Problem]:
    """A problem if `value` is not what `annotation` allows; nothing for an annotation that cannot be checked."""
    try:
        converted_value(value, annotation)
    except ValidationError:
        return [refused(key, value, annotation)]
    except UNCHECKABLE:
        return []
    return []


def converted_value(value: Any, annotation: Any) -> Any:
    """A value of a YAML file as its annotation says: a list becomes a tuple, text a path, a whole number a float.

    Raises ValidationError for a value of another type: text is not a number, and a number is not text.
    """
    return _validated(_adapter(annotation), value)


def _validated(adapter: TypeAdapter, value: Any) -> Any:
    try:
        text = json.dumps(value)
    except TypeError:  # not a value of a YAML file
        return adapter.validate_python(value, strict=True)
    return adapter.validate_json(text, strict=True)


def _is_tuple(annotation: Any) -> bool:
    return get_origin(annotation) is tuple or any(map(_is_tuple, getattr(annotation, "__args__", ())))


@cache
def _adapter(annotation: Any) -> TypeAdapter:
    return TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True))


# what an annotation allows, in words


def allowed(annotation: Any) -> str:
    """What a value may be, in words that an error message can quote: "whole numbers from 1 or null"."""
    try:
        return _describe(_adapter(annotation).json_schema())
    except PydanticUserError:  # a class that is not for YAML files
        return inspect.formatannotation(annotation)


def _describe(schema: Mapping[str, Any]) -> str:
    """A JSON schema of a plain value in words. A description in the schema is used as it is."""
    if "description" in schema:
        return schema["description"]
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(_describe, schema["anyOf"])))
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
            return f"a list of {count}{' and '.join(dict.fromkeys(map(_describe, items)))}"
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
