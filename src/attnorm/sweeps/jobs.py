"""The jobs of a sweep: which there are, what they are called, and in which folder each of them runs."""

import hashlib
import itertools
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, Quote, QuotedString

from attnorm.choices import CONF
from attnorm.config.compose import interpolates, is_misread, mapping_text, parsed, quoted, refuse_large
from attnorm.run.folder import FURTHER, TUNE
from attnorm.run.run import Run

LONGEST = 80  # characters of the readable part of a folder's name
DIGITS = 8  # of a key in the name of a folder
_ARGUMENT = re.compile(r"(\+{0,2}[\w$][\w$./@:-]*)=(.*)", re.DOTALL)


@dataclass(frozen=True)
class Job:
    """One run of a sweep.

    name:      name of the run folder in the sweep folder.
    key:       `run_key` of the configuration; jobs with the same key are the same job.
    label:     the swept overrides, as they are typed.
    overrides: all overrides and options, as arguments of `attnorm train`.
    folder:    the run folder.
    devices:   number of processes of the run (`trainer.devices`).
    uses_gpu:  whether each of these processes needs a GPU.
    purpose:   "tune", "compare", or "further" (as "compare", at another value than the best one); "" in a sweep that
               does not tune.
    arm:       the part of the label that all jobs of its arm share.
    named:     what `run.trust.in_need_of_trust` finds in its configuration.
    """

    name: str
    key: str
    label: str
    overrides: tuple[str, ...]
    folder: Path
    devices: int = 1
    uses_gpu: bool = False
    purpose: str = ""
    arm: str = ""
    named: tuple[tuple[str, str], ...] = ()

    @property
    def run(self) -> Run:
        """Its run, as far as it has come now."""
        return Run(self.folder)

    @property
    def gpus(self) -> int:
        """The number of GPUs that the run needs."""
        return self.devices if self.uses_gpu else 0


def job_folder(sweep: Path, name: str, purpose: str) -> Path:
    """The run folder of a job. Runs that tune have a folder of their own, see `analysis.arms`."""
    return sweep / TUNE / name if purpose in (TUNE, FURTHER) else sweep / name


def parse(arguments: Sequence[str], loader: ConfigLoader | None = None) -> list[Override]:
    """The overrides, in Hydra's grammar. Of two for the same key the later one counts, in the place of the first.

    arguments: as `readable` returns them. loader: finds the files that glob(...) matches.
    """
    parsed = OverridesParser.create(loader).parse_overrides(list(arguments))
    return list({override.get_key_element(): override for override in parsed}.values())


def choices_in(override: Override) -> list[str]:
    """The overrides "key=value" that an override stands for: one, or one for each value that it sweeps over."""
    if not override.is_sweep_override():
        return [override.input_line or ""]
    return [f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()]


def expand(overrides: Iterable[Override]) -> list[tuple[str, ...]]:
    """Every combination of the values, in the order of Hydra: the values of the last override change fastest."""
    return list(itertools.product(*map(choices_in, overrides)))


def override_key(override: str) -> str:
    """The key of an override: "seed" of "++seed=1"."""
    return override.partition("=")[0].lstrip("+")


def folder_name(label: str, key: str) -> str:
    """A readable name for a folder: "attention-hnas_seed-1_0123abcd"."""
    words = ("" if label == "the only job" else label).split()
    short = (word.partition("=")[0].rpartition(".")[2] + "-" + word.partition("=")[2] for word in words)
    readable = re.sub(r"[^\w.+-]+", "-", "_".join(short)).strip("-")[:LONGEST]
    return "_".join(filter(None, [readable, key[:DIGITS]]))


def sweep_name(tasks: Iterable[str], overrides: Iterable[str]) -> str:
    """The name of the default sweep folder, which depends on the tasks and on the set of the overrides only."""
    text = "\n".join(sorted(overrides))
    return f"{'_'.join(dict.fromkeys(tasks))}_{hashlib.sha256(text.encode()).hexdigest()[:DIGITS]}"


# ------------------------------------------------------------------------ several values, as Hydra's grammar reads them


def readable(arguments: Sequence[str], is_sweep: bool = False) -> list[str]:
    """The arguments with values that Hydra parses as they were typed; in a sweep, commas separate values.

    Raises ConfigError for arguments that Hydra would parse for minutes, or not at all.
    """
    refuse_large(arguments)
    return [_readable(argument, is_sweep) for argument in arguments]


def _readable(argument: str, is_sweep: bool) -> str:
    if not (match := _ARGUMENT.fullmatch(argument)):
        return argument
    key, value = match.groups()
    override, name = parsed(argument), key.lstrip("+")
    if value == "null" and (CONF / name).is_dir():
        return f"~{name}"
    if is_sweep and (CONF / name).is_dir():  # of several values, null would be one that Hydra cannot have
        value = re.sub(r"(?<![^,])null(?![^,])", "'null'", value)
    if override is None or is_misread(override, name, value, is_sweep):
        value = _rewritten(value, is_sweep)
    if name == "attention":
        return f"{key}={_choices_quoted(value)}"
    is_group = "." not in name and (argument.startswith("+") or (CONF / name).is_dir())
    is_key = not is_group and "/" not in name and not name.startswith("hydra.")
    return f"++{name}={value}" if is_key else f"{key}={value}"


def as_typed(overrides: Sequence[str]) -> list[str]:
    """Overrides of a job without what `readable` and Hydra's sweeps add to them."""
    typed = []
    for override in overrides:
        key, equals, value = override.partition("=")
        name = key.lstrip("+")
        value = value.strip("'") if name == "attention" else value
        text = f"{name}={value}".replace("\\:", ":") if name.startswith("attention") else f"{name}={value}"
        typed.append(text if equals else override)
    return typed


def _choices_quoted(value: str) -> str:
    """The value of `attention=` with each list as text: of a list of choices, Hydra would merge the files."""

    def unquoted(value: object) -> object:
        if isinstance(value, list):
            return [unquoted(inner) for inner in value]
        return value.text if isinstance(value, QuotedString) else value

    content = override.value() if (override := parsed(f"attention={value}")) else None
    elements = [*map(unquoted, content.list)] if isinstance(content, ChoiceSweep) else [content]
    if not any(isinstance(choice, list) for choice in elements):
        return value
    texts = (f"[{','.join(map(str, item))}]" if isinstance(item, list) else str(item) for item in elements)
    return ",".join(quoted(text) if text.startswith("[") else text for text in texts)


def _rewritten(value: str, is_sweep: bool) -> str:
    """The value as quoted text. A list, and a sweep, keeps its commas: only its elements are quoted."""
    if os.path.exists(value):
        return quoted(value)
    if (mapping := mapping_text(value)) != value and parsed(f"key={mapping}"):
        return mapping
    if value.startswith("[") and value.endswith("]"):
        return f"[{','.join(map(_element, value[1:-1].split(',')))}]"
    return ",".join(map(_element, value.split(","))) if is_sweep else _text(value)


def _element(text: str) -> str:
    return text if parsed(f"key={text}") else _text(text.strip())


def _text(text: str) -> str:
    """The text, quoted. A well-formed `${...}` in it stays an interpolation unless the text names an existing file."""
    if not os.path.exists(text) and interpolates(text):
        return QuotedString(text, Quote.single).with_quotes()
    return quoted(text)
