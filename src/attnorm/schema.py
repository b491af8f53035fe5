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
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, NotRequired

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    PydanticSchemaGenerationError,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from attnorm.errors import ConfigError, Problem, UnknownOption, unknown
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
ColumnWidth = Annotated[float, Field(ge=2, le=8)]  # inches of a column of a paper
PictureFormats = tuple[Literal["png", "svg", "pdf"], ...]  # of figures as files, see attnorm.analysis.paper

EMPTY = inspect.Parameter.empty
UNCHECKABLE = (PydanticSchemaGenerationError, PydanticUserError)  # raised for an annotation that cannot be checked


def is_name(value: object) -> bool:
    """Whether a value is the name of something in a folder, and not a path that leads elsewhere."""
    return isinstance(value, str) and value not in ("", ".", "..") and not {"/", "\0"} & set(value)


def required(maker: Callable) -> set[str]:
    """The names of the parameters of a class or function that have no default."""
    return {name for name, parameter in parameters(maker).items() if parameter.default is EMPTY}


def defaults_of(maker: Callable) -> dict[str, Any]:
    """The options of a class with their defaults, in order; None for an option that must be given."""
    given = {name: parameter.default for name, parameter in parameters(maker).items()}
    defaults = {name: None if default is EMPTY else default for name, default in given.items()}
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
) -> dict[str, Any]:
    """The options with which `maker` can be called. Raises ConfigError with one problem for each option that it does
    not take, that it needs and was not given, or whose value its annotation does not allow.

    group:  what the keys start with, such as "model"; "" for keys at the top level.
    facts:  parameters that the program fills in; as options they are refused, and they need not be given.
    elsewhere: options that are read elsewhere; None for all that `maker` does not take.
    owner:  the class that the message names, if not `maker`.

    A list becomes a tuple, and a text a path, if the annotation says so; everything else stays as it was written.
    """
    model, known = options_model(maker, tuple(sorted(facts))), parameters(maker)
    ignored = options.keys() - known.keys() if elsewhere is None else elsewhere
    read = {name: value for name, value in options.items() if name not in ignored}
    try:
        checked = _validated(model, read)
    except ValidationError as error:
        free = {option: parameter for option, parameter in known.items() if option not in facts}
        of = owner or getattr(maker, "__self__", maker)  # the class of `from_settings`, which it may have inherited
        named = str(getattr(of, "__qualname__", of))
        raise ConfigError(problems_in(error, read, free, named, group)) from error
    kinds = (list, tuple, str, Path, NoneType)  # not the iterator that pydantic makes of any iterable
    return {name: to if isinstance(to := checked[name], kinds) else value for name, value in read.items()}


def problems_in(
    error: ValidationError,
    values: Mapping[str, Any],
    known: Mapping[str, inspect.Parameter],
    owner: str,
    group: str = "",
) -> list[str]:
    """One sentence for each key that pydantic refuses: what its type of error means, or else what is allowed.

    values: what was checked. known: the parameters of what was to be made, whose name is `owner`. group: as in
    `read_options`.
    """
    problems, prefix, free = list[str](), f"{group}." if group else "", sorted(known)
    details = {str(detail["loc"][0] if detail["loc"] else ""): detail for detail in error.errors(include_url=False)}
    for name, detail in sorted(details.items(), key=lambda item: [*values, *known, item[0]].index(item[0])):
        key, value = prefix + name, values.get(name)
        if isinstance(cause := detail.get("ctx", {}).get("error"), ConfigError):
            problems += cause.problems
        elif detail["type"] == "missing" and len(detail["loc"]) == 1:
            problems.append(Problem(key, f"must be given, as in {key}=<value>"))
        elif detail["type"] == "extra_forbidden":
            has = f"it has {', '.join(free)}.{nearest(name, free)}" if free else "it has none"
            problem = UnknownOption(key, f"{owner} has no such option; {has}", value)
            verb = f"{owner.removeprefix('attnorm ')} " if owner.startswith("attnorm ") else ""
            problems.append(unknown(f"{verb}{key}", problem))
        else:  # a union has an error for each of its members
            problems.append(refused(key, value, known[name].annotation))
    return problems


def refused(key: str, value: Any, annotation: Any) -> Problem:
    """The problem with a value that an annotation does not allow. Says so if it is text that spells an allowed one, as
    the value of an environment variable is."""
    message = f"allowed: {allowed(annotation)}"
    with suppress(ValueError, TypeError, *UNCHECKABLE):  # ValidationError is a ValueError
        converted_value(json.loads(value), annotation)
        message += "; this value is text: leave out its quotes, or type ${oc.decode:${oc.env:NAME}}"
    return Problem(key, message, value)


@cache
def options_model(maker: Callable, facts: tuple[str, ...] = ()) -> TypeAdapter:
    """The model of the options of a class or function: its parameters without `facts`, each with its annotation.

    An annotation that cannot be checked allows any value.
    """
    fields: dict[str, Any] = {name: NotRequired[Annotated[Any, BeforeValidator(_refuse)]] for name in facts}
    for name, parameter in parameters(maker).items():
        if name not in facts:
            annotation = parameter.annotation if is_checkable(parameter.annotation) else Any
            fields[name] = annotation if parameter.default is EMPTY else NotRequired[annotation]
    table = TypedDict("table", fields)  # type: ignore[misc]  # its fields are known only here
    config = ConfigDict(arbitrary_types_allowed=True, extra="allow" if accepts_any(maker) else "forbid")
    setattr(table, "__pydantic_config__", config)  # noqa: B010
    return TypeAdapter(table)


def _refuse(value: Any) -> Any:
    raise PydanticCustomError("extra_forbidden", "the program fills it in")


def is_checkable(annotation: Any) -> bool:
    """Whether values can be checked by an annotation, and not one that only a type checker understands."""
    if annotation is EMPTY or isinstance(annotation, str):
        return False
    try:
        return bool(_adapter(annotation).pydantic_complete)
    except UNCHECKABLE:
        return False


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
