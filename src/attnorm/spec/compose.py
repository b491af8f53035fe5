"""Command-line arguments whose value is plain text, such as a path, in a form that Hydra's grammar reads as that text.

Hydra parses the value of every `key=value`. A file name with parentheses, an equals sign or an umlaut is a syntax error
there, "a,b.json" is a sweep, and 2024 is a number. The commands therefore rewrite their arguments before Hydra sees
them: a value that Hydra cannot parse, or would misread although it names an existing file, becomes a quoted string.
Everything that Hydra reads correctly stays as it was typed.

Three more things are rewritten:

- `model.dropout=0.1` becomes `++model.dropout=0.1`, which Hydra accepts whether a file sets the key or not. Which keys
  are valid depends on the parts that are used; `resolve` checks that, and knows better names than Hydra.
- `callbacks=null` becomes `~callbacks`, because Hydra has no such value for a group.
- `attention=package.module.Class` and `attention=[dnas,softmax]` become choices of the group like its files.
"""

import itertools
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, Quote, QuotedString
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from attnorm.choices import CONF, choices
from attnorm.errors import ConfigError, Problem
from attnorm.imports import PATH

PATH_KEYS = frozenset(  # their values are never numbers, not even 2024
    {
        *("run", "input", "predictions", "references", "questions", "null_odds"),  # of eval.py and generate.py
        *("data.train", "data.validation", "data.test", "data.dir", "data.files", "data.path", "data.features"),
        *(f"data.{split}_{part}" for split in ("train", "validation", "test") for part in ("questions", "annotations")),
        *("ckpt_path", "resume", "model.init", "tokenizer.file", "task.answers", "paths.log_dir", "paths.cache_dir"),
    }
)
COMPLETION = frozenset({"-sc", "--shell-completion"})  # options of Hydra
LONGEST, DEEPEST = 20_000, 20  # characters of an argument, and lists and mappings within each other
AUTO = "auto"  # the value of `resume` that looks for a run with the same settings
_ARGUMENT = re.compile(r"(\+{0,2}[\w$][\w$./@:-]*)=(.*)", re.DOTALL)
_INTERPOLATION = re.compile(r"(\\*)\$\{")


def readable(arguments: Sequence[str], is_sweep: bool = False) -> list[str]:
    """The arguments with values that Hydra parses as they were typed; in a sweep, commas separate values.

    Raises ConfigError for arguments that Hydra would parse for minutes, or not at all.
    """
    if problems := [problem for argument in arguments if (problem := too_large(argument))]:
        raise ConfigError(problems)
    if not COMPLETION.isdisjoint(arguments):
        return list(arguments)  # `install=bash` is not a setting
    return [_readable(argument, is_sweep) for argument in arguments]


def too_large(argument: str) -> Problem | None:
    """A problem if an argument is longer than LONGEST, or has more than DEEPEST brackets within each other."""
    key, _, value = argument.partition("=")
    steps, key = {"[": 1, "{": 1, "]": -1, "}": -1}, key[:100].lstrip("+")
    if len(argument) > LONGEST:
        return Problem(key, f"allowed: at most {LONGEST:,} characters; write longer values into a YAML file", value)
    if max(itertools.accumulate(steps.get(it, 0) for it in value), default=0) > DEEPEST:
        return Problem(key, f"allowed: at most {DEEPEST} brackets within each other", value)
    return None


def run_to_resume(arguments: Sequence[str]) -> Path | None:
    """The run folder that `resume=<folder>` names; None without it, and for `resume=auto`."""
    parsed = [_parsed(argument) for argument in arguments if argument.lstrip("+").startswith("resume=")]
    values = [it.value() for it in parsed if it is not None]
    chosen = values[-1].text if values and isinstance(values[-1], QuotedString) else (values or [None])[-1]
    return Path(chosen) if isinstance(chosen, str) and chosen not in ("", AUTO) else None


def _readable(argument: str, is_sweep: bool) -> str:
    if not (found := _ARGUMENT.fullmatch(argument)):
        return argument
    key, value = found.groups()
    override, name = _parsed(argument), key.lstrip("+")
    if value == "null" and (CONF / name).is_dir():
        return f"~{name}"
    if is_sweep and (CONF / name).is_dir():  # of several values, null would be one that Hydra cannot have
        value = re.sub(r"(?<![^,])null(?![^,])", "'null'", value)
    if override is None or _misread(override, name, value, is_sweep):
        value = _rewritten(value, is_sweep)
    if name == "attention":
        return f"{key}={_choices_quoted(value)}"
    is_group = "." not in name and (argument.startswith("+") or (CONF / name).is_dir())
    is_key = not is_group and "/" not in name and not name.startswith("hydra.")
    return f"++{name}={value}" if is_key else f"{key}={value}"


def as_typed(overrides: Sequence[str]) -> list[str]:
    """Overrides of a job without what `readable` and Hydra's sweeps add to them."""
    return [_as_typed(override) for override in overrides]


def _as_typed(override: str) -> str:
    key, equals, value = override.partition("=")
    if not equals:
        return override
    name = key.lstrip("+")
    value = value.strip("'") if name == "attention" else value
    return f"{name}={value}".replace("\\:", ":") if name.startswith("attention") else f"{name}={value}"


def wrong_choices(arguments: Sequence[str]) -> list[Problem]:
    """A problem for each argument whose value cannot be a file of its group, such as `task=1`, for which Hydra raises
    an error of its own. arguments: as `readable` returns them."""
    parsed = [it for it in map(_parsed, arguments) if it is not None and not it.is_delete()]
    return [
        Problem(it.key_or_group, f"allowed: {', '.join(choices(it.key_or_group))}, or leave the key out", value)
        for it in parsed
        if choices(it.key_or_group)
        for value in _elements(it)
        if value == "" or not isinstance(value, (str, list, dict))
    ]


def register_attention(arguments: Sequence[str]) -> None:
    """Registers values of `attention=` that are not files as choices of the group, also in a sweep.

    `attention=package.module.Class` means `attention=softmax attention._default_=package.module.Class`, and so does a
    list with one normalizer per layer. arguments: as `readable` returns them.
    """
    for argument in arguments:
        override = _parsed(argument) if argument.startswith("attention=") else None
        for choice in _elements(override) if override is not None else ():
            if isinstance(choice, str) and (choice.startswith("[") or PATH.fullmatch(choice)):
                default = _parsed(f"attention={choice}")
                node = {"defaults": ["softmax", "_self_"], "_default_": default.value() if default else choice}
                ConfigStore.instance().store(group="attention", name=choice, node=node, provider="attnorm")


def _choices_quoted(value: str) -> str:
    """The value of `attention=` with each list as text: of a list of choices, Hydra would merge the files."""
    override = _parsed(f"attention={value}")
    if override is None or not any(isinstance(choice, list) for choice in _elements(override)):
        return value
    texts = (f"[{','.join(map(str, it))}]" if isinstance(it, list) else str(it) for it in _elements(override))
    return ",".join(quoted(text) if text.startswith("[") else text for text in texts)


def _elements(override: Override) -> Iterator[object]:
    """The value of an override, or the values that it sweeps over; quoted ones without their quotes."""

    def unquoted(value: object) -> object:
        if isinstance(value, list):
            return [unquoted(inner) for inner in value]
        return value.text if isinstance(value, QuotedString) else value

    value = override.value()
    if isinstance(value, ChoiceSweep):
        yield from map(unquoted, value.list)
    elif not override.is_sweep_override():
        yield value


def _misread(override: Override, key: str, value: str, is_sweep: bool) -> bool:
    """Whether Hydra parses the value, but as something else than the text or the path that it is."""
    if override.is_sweep_override():
        return not is_sweep and os.path.exists(value)
    read = override.value()
    if isinstance(read, (bool, int, float)):
        return key in PATH_KEYS
    unchanged = read is None or (read == value and "${" not in value)
    return not unchanged and os.path.exists(value)


def _rewritten(value: str, is_sweep: bool) -> str:
    """The value as quoted text. A list, and a sweep, keeps its commas: only its elements are quoted."""
    if os.path.exists(value):
        return quoted(value)
    if value.startswith("[") and value.endswith("]"):
        return f"[{','.join(map(_element, value[1:-1].split(',')))}]"
    return ",".join(map(_element, value.split(","))) if is_sweep else _text(value)


def _element(text: str) -> str:
    return text if _parsed(f"key={text}") else _text(text.strip())


def _text(text: str) -> str:
    """The text, quoted. A well-formed `${...}` in it stays an interpolation unless the text names an existing file."""
    if not os.path.exists(text) and _interpolates(text):
        return QuotedString(text, Quote.single).with_quotes()
    return quoted(text)


def quoted(text: str) -> str:
    """A quoted string that Hydra and then OmegaConf read as exactly this text."""
    return QuotedString(escaped(text), Quote.single).with_quotes()


def escaped(value: Any) -> Any:
    """A value, or lists and dicts of values, in which OmegaConf resolves no `${...}`: they are plain text."""
    if isinstance(value, dict):
        return {key: escaped(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [escaped(inner) for inner in value]
    return _INTERPOLATION.sub(r"\1\1\\${", value) if isinstance(value, str) else value


def _interpolates(text: str) -> bool:
    try:
        return OmegaConf.is_interpolation(OmegaConf.create({"text": text}), "text")
    except OmegaConfBaseException:
        return False


def _parsed(argument: str) -> Override | None:
    try:
        return OverridesParser.create().parse_override(argument)
    except (HydraException, ValueError):  # ValueError: a number of more digits than Python reads
        return None
