"""Reading the `key=value` arguments of a command. The keys of a command are the fields of a dataclass:

    @dataclass(frozen=True, kw_only=True)
    class Keys:
        run: Text                                     # must be given; taken as typed
        split: Literal["validation", "test"] = "validation"
        heads: tuple[WholeNumber, ...] | None = None  # heads=0 or heads=[0,1]

Their types say which values are allowed. Arguments with other keys change the configuration of a run, if the
command can do that.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Any, Generic, Literal, TypeVar, Union, get_args, get_origin

from pydantic import ValidationError

from attnorm.config.compose import Setting, is_misread, parsed, settings_of
from attnorm.errors import ConfigError, Problem, key_of, unknown
from attnorm.imports import nearest
from attnorm.schema import converted_value, parameters, read_options, required, value_problems

Keys = TypeVar("Keys")


@dataclass(frozen=True)
class Command(Generic[Keys]):
    """The arguments of a command that have been read.

    settings: the keys of the command. typed: the names of those that were given.
    changes:  changes to the configuration of a run, as pairs of a key and a value.
    """

    settings: Keys
    typed: frozenset[str]
    changes: tuple[tuple[str, Any], ...]


def read(
    arguments: Sequence[str],
    keys: Callable[..., Keys],
    owner: str,
    groups: Collection[str] = (),
    known: Sequence[str] = (),
    check: Callable[[Command[Keys]], Iterable[str]] = lambda command: (),
) -> Command[Keys]:
    """Reads the arguments of a command. Raises ConfigError with every problem.

    keys:   the dataclass of the command's own keys.
    owner:  the name of the command, for messages.
    groups: names of groups that can be changed; keys with a dot then belong to the configuration of a run.
    known:  problems of the command line that are known already; they are raised together with the others.
    check:  finds the problems of keys that do not go together, if each of them is right.
    """
    types = {name: parameter.annotation for name, parameter in parameters(keys).items()}
    if without := [argument for argument in arguments if "=" not in argument and not argument.startswith("~")]:
        expected = f"expected key=value; the keys are {', '.join(types)}"
        raise ConfigError([*known, *(f"{argument}: {expected}" for argument in without)])
    problems, values, typed, changes = [*known], dict[str, Any](), set(), []
    for argument in arguments:
        key, _, text = argument.partition("=")
        key = key.lstrip("+")
        # lists of names may be typed without brackets: no name has a comma
        if "," in text and text[0] != "[" and get_origin(member_of(types.get(key))) is Literal:
            text = f"[{text}]"
            argument = f"{key}={text}"
        allowed = {*alternatives(types[key])} if key in types else set()
        if str in allowed and allowed <= {str, type(None)}:  # text of any kind, and besides at most null
            if text[:1] + text[-1:] in ("[]", "{}") and value_problems(key, "", types[key]):  # a name, not any text
                problems.append(Problem(key, "expected a single value, without brackets", text))
            values[key] = unquoted(text)
            typed.add(key)
            continue
        override = parsed(f"key={text}")
        is_several = override is not None and override.is_sweep_override() and not is_misread(override, key, text)
        key, value, _ = Setting(key, text) if is_several else settings_of([argument])[0]
        group, _, name = key.partition(".")
        kinds = {get_origin(kind) or kind for kind in alternatives(types[group])} if group in types else set()
        if is_several and (key in types or group in types or groups):
            expected = "expected a single value" if key in types else "one value at a time here"
            as_list = f"type several values as a list, {key}=[{text}]"
            problems.append(Problem(key, as_list if key in types and member_of(types[key]) else expected, text))
        elif group in types and (dict not in kinds if name else kinds == {dict}):
            expected = "a single value" if name else f"{key}.<name>=<value>"
            problems.append(Problem(key, f"expected {expected}", text))
        elif key in types and isinstance(value, (list, dict)) and not member_of(types[key]):
            problems.append(Problem(key, "expected a single value", text))
        elif name and group in types:
            before = values.get(group)
            values[group] = {**(before if isinstance(before, dict) else {}), name: value}
            typed.add(group)
        elif key in types:
            values[key] = fitting(value, text, types[key])
            typed.add(key)
        elif groups and ("." in key or key in groups):
            changes.append((key, value))
        elif groups:
            problems.append(unknown(f"{owner.removeprefix('attnorm ')} {key}", cannot_be_set(key, [*types, *groups])))
        else:
            values[key] = value  # which is refused
    needed = required(keys)
    for key, value in values.items():
        if value == "" and key in types and value_problems(key, value, types[key]):
            problems.append(Problem(key, f"must be given, as in {key}=<value>"))
        elif isinstance(value, list) and key in types:
            of_member = member_of(types[key])
            problems += [problem for member in value for problem in value_problems(key, member, of_member)]
    values = {key: value for key, value in values.items() if key not in needed or value is not None}
    try:
        settings = keys(**read_options("", keys, values, owner=owner))
    except ConfigError as error:
        reported = set(map(key_of, problems))
        problems += [problem for problem in error.problems if key_of(problem) not in reported]
    if problems:
        raise ConfigError(problems)
    command = Command(settings, frozenset(typed), tuple(changes))
    if problems := list(check(command)):
        raise ConfigError(problems)
    return command


def member_of(annotation: Any) -> Any:
    """What an annotation allows as a member of a list; None if it allows no list."""
    return next((get_args(kind)[0] for kind in alternatives(annotation) if get_origin(kind) in (tuple, list)), None)


def alternatives(annotation: Any) -> tuple[Any, ...]:
    """The members of a union, or the only type, without what `Annotated` adds to them."""
    members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return tuple(get_args(kind)[0] if hasattr(kind, "__metadata__") else kind for kind in members)


def unquoted(text: str) -> str | None:
    """Text as it was typed, without quotes around it; None for null and for the ??? of a YAML file."""
    if text in ("null", "???"):
        return None
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


def fitting(value: Any, text: str, annotation: Any) -> Any:
    """The value, or else the text that was typed, or a list of one of them, if the annotation allows that.

    One of no kind that is allowed is a member of a list, where the annotation says so.
    """
    texts = list(map(str, value)) if isinstance(value, list) else text
    for candidate in (value, texts, [value], [texts]) if value is not None else ():
        try:
            converted_value(candidate, annotation)
        except ValidationError:
            continue
        return candidate
    return value if value is None or isinstance(value, list) or member_of(annotation) is None else [value]


def cannot_be_set(key: str, allowed: Sequence[str]) -> Problem:
    """The problem with a key that a command cannot change."""
    return unknown(key, Problem(key, f"cannot be set here; allowed: {', '.join(allowed)}.{nearest(key, allowed)}"))
