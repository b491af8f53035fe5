"""From the arguments of a command to the settings of a run.

Hydra composes the files that the arguments choose. Single keys are set afterwards: a value that Hydra's grammar cannot
read, or would misread although it names an existing file, is the text that was typed. A file name with parentheses, an
equals sign or an umlaut is a syntax error in that grammar, "a,b.json" is a sweep, and 2024 is a number.

- `model.dropout=0.1` sets a key whether a file sets it or not; `config.read` knows which keys the parts take.
- `callbacks=null` leaves the group out, as `~callbacks` does.
- `attention=package.module.Class` and `attention=[dnas,softmax]` set the default of the file softmax.
"""

import itertools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from hydra import compose, version
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.errors import HydraException
from hydra.initialize import get_gh_backup, restore_gh_from_backup
from omegaconf import DictConfig, OmegaConf, flag_override
from omegaconf.errors import OmegaConfBaseException

from attnorm.choices import CONF, choices
from attnorm.errors import ConfigError, Problem
from attnorm.imports import PATH, nearest
from attnorm.settings import not_recordable

PATH_KEYS = frozenset(  # their values are never numbers, not even 2024
    {
        *("run", "input", "predictions", "references", "questions", "null_odds"),  # of eval.py and generate.py
        *("data.train", "data.validation", "data.test", "data.dir", "data.files", "data.path", "data.features"),
        *(f"data.{split}_{part}" for split in ("train", "validation", "test") for part in ("questions", "annotations")),
        *("ckpt_path", "resume", "model.init", "tokenizer.file", "task.answers", "paths.log_dir", "paths.cache_dir"),
    }
)
SHARE_KEY = "data.validation"  # of some data, it is a share of the training rows
LONGEST, DEEPEST = 20_000, 20  # characters of an argument, and lists and mappings within each other
AUTO = "auto"  # the value of `resume` that looks for a run with the same settings
KEY = re.compile(r"[\w$][\w$./@:-]*")  # with a slash or an @, it chooses a file
_INTERPOLATION = re.compile(r"(\\*)\$\{")
_QUOTED = re.compile(r"""("[^"]*"|'[^']*')(\s*:)?""")


class Setting(NamedTuple):
    """A setting that was typed: its key without plus signs, and its value; `~key` removes what it names."""

    key: str
    value: Any = None
    removes: bool = False


def settings_of(arguments: Sequence[str]) -> list[Setting]:
    """What the arguments set, in order. Raises ConfigError for what is no setting, for several values of a key, and for
    arguments that Hydra's grammar would read for minutes, or not at all."""
    refuse_large(arguments)
    settings = []
    for argument in arguments:
        key, equals, text = argument.lstrip("+").partition("=")
        removes = key.startswith("~")
        key = key.removeprefix("~")
        if not KEY.fullmatch(key) or not (equals or removes):
            raise ConfigError([Problem.about(argument, f"{argument}: expected key=value")])
        settings.append(Setting(key, None if removes else value_of(key, text), removes))
    return settings


def values_typed(arguments: Sequence[str]) -> dict[str, Any]:
    """The values that were typed, by key: {"attention.encoder": "dnas"}, also for `attention={encoder: dnas}`."""
    values = {}
    left = settings_of(arguments)
    while left:
        key, value, removes = left.pop(0)
        if isinstance(value, dict):
            left[:0] = [Setting(f"{key}.{name}", inner) for name, inner in value.items()]
        elif not removes:
            values[key] = value
    return values


def value_of(key: str, text: str) -> Any:
    """The value that was typed for a key, as OmegaConf reads it: what Hydra's grammar makes of it, or else the text.

    A text that names an existing file is always that text. Raises ConfigError for several values.
    """
    override = parsed(f"key={text}") or parsed(f"key={mapping_text(text)}")
    if override is None and text[:1] + text[-1:] == "[]" and not os.path.exists(text):
        return [value_of("", element.strip()) for element in text[1:-1].split(",")]
    if override is None:
        return text if interpolates(text) and not os.path.exists(text) else escaped(text)
    if is_misread(override, key, text):
        return escaped(text)
    if override.is_sweep_override():
        message = f"several values start a sweep: type attnorm sweep, or add -m; a list is typed as {key}=[{text}]"
        raise ConfigError([Problem(key, message, text)])
    return override.value()


def composed(
    arguments: Sequence[str],
    folders: Sequence[Path] = (CONF,),
    of_files: Callable[[tuple[str, ...], tuple[Path, ...]], DictConfig] | None = None,
) -> DictConfig:
    """The composed configuration, with the node `hydra`: what the chosen files give, and then the keys that were typed.

    folders: the configuration folder, and those of `--config-dir`. of_files: in place of `compose_files`.

    Raises ConfigError, and the exceptions of Hydra and OmegaConf for what cannot be composed.
    """
    files, keys = list[str](), list[Setting]()
    arguments = normalizers_as_defaults(arguments)
    for argument, setting in zip(arguments, settings_of(arguments), strict=True):
        key, value, removes = setting
        group, (name, _, text) = key.partition("@")[0], argument.partition("=")
        is_group = any((folder / group).is_dir() for folder in folders)
        if "/" in group or key == "hydra.searchpath" or (is_group and removes):
            files.append(argument)
        elif is_group and isinstance(value, str) and value:
            choice = override.value() if (override := parsed(argument)) else None
            files.append(argument if isinstance(choice, str) else f"{name}={quoted(text)}")
        elif is_group and value is None:
            files.append(f"~{key}")
        elif is_group and not isinstance(value, dict):
            allowed = f"allowed: {', '.join(choices(group))}, or leave the key out"
            raise ConfigError([Problem(key, allowed, value)])
        else:
            keys.append(setting)
    cfg = (of_files or compose_files)(tuple(files), tuple(folders)).copy()
    with flag_override(cfg, "readonly", False):
        for key, value, removes in keys:
            if removes:
                remove(cfg, key)
                continue
            try:
                OmegaConf.update(cfg, key, value, force_add=not key.startswith("hydra."))
            except (ValueError, TypeError, IndexError) as error:
                for above in itertools.accumulate(key.split("."), "{}.{}".format):
                    if OmegaConf.is_list(OmegaConf.select(cfg, above)):
                        message = f"{above} is a list, which has no such entry; type {above}=[...]"
                        raise ConfigError([Problem(key, message, value)]) from error
                raise
    return cfg


def compose_files(files: tuple[str, ...], folders: tuple[Path, ...]) -> DictConfig:
    """What conf/train.yaml gives with these choices of files."""
    with hydra_started(folders):
        return compose("train", list(files), return_hydra_config=True)


@contextmanager
def hydra_started(folders: Sequence[Path]) -> Iterator[None]:
    """Within this context, Hydra reads the files of these folders. What the caller has made of Hydra is restored."""
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError([Problem.about("--config-dir", f"--config-dir={folder}: no such folder")])
    before = get_gh_backup()
    try:
        version.setbase("1.3")
        conf, *more = folders
        search_path = create_config_search_path(str(conf))
        for folder in more:
            search_path.prepend("command-line", f"file://{folder.absolute()}", SearchPathQuery(provider="schema"))
        GlobalHydra.instance().clear()
        Hydra.create_main_hydra2("train", search_path)
        yield
    finally:
        GlobalHydra.instance().clear()
        restore_gh_from_backup(before)


def remove(cfg: DictConfig, key: str) -> None:
    """Removes an entry. Raises ConfigError if it is not there."""
    group, _, entry = key.rpartition(".")
    node = OmegaConf.select(cfg, group) if group else cfg
    if not isinstance(node, DictConfig) or entry not in node:
        names = [str(name) for name in node] if isinstance(node, DictConfig) else []
        raise ConfigError([Problem.about(key, f"~{key}: there is no such entry to remove.{nearest(entry, names)}")])
    with flag_override(node, "struct", False):
        del node[entry]


def normalizers_as_defaults(arguments: Sequence[str]) -> list[str]:
    """The arguments, where `attention=` with a normalizer or a list of them sets the default of a file."""
    spelled = []
    for argument in arguments:
        name, _, text = argument.partition("=")
        text = text.replace("\\:", ":")  # as Hydra writes the values of a sweep
        text = text[1:-1] if text[:1] + text[-1:] in ("''", '""') else text
        is_file = name != "attention" or not (text.startswith("[") or PATH.fullmatch(text))
        spelled += [argument] if is_file else ["attention=softmax", f"attention._default_={text}"]
    return spelled


@contextmanager
def hydra_config(cfg: DictConfig) -> Iterator[None]:
    """Within this context, `${hydra:...}` in the settings refers to this configuration."""
    instance: Any = HydraConfig.instance()
    before, instance.cfg = instance.cfg, cfg
    try:
        yield
    finally:
        instance.cfg = before


def run_folder(cfg: DictConfig, label: str) -> Path:
    """The folder of a new run, as a composed configuration names it. label: the name of its attention."""
    OmegaConf.register_new_resolver("attention_label", lambda: label, replace=True)
    return Path(cfg.hydra.run.dir).absolute()


def plain_settings(cfg: DictConfig) -> dict[str, Any]:
    """The settings of a composed configuration. Raises ConfigError if one that must be given is missing, and for those
    that run.json cannot hold."""
    cfg = cfg.copy()
    with flag_override(cfg, ["struct", "readonly"], False):
        cfg.pop("hydra", None)
    if missing := sorted(OmegaConf.missing_keys(cfg)):
        raise ConfigError([Problem(key, f"must be given, as in {key}=<value>") for key in missing])
    settings: Any = OmegaConf.to_container(cfg, resolve=True)
    if problems := [*not_recordable(settings)]:
        raise ConfigError(problems)
    return settings


def refuse_large(arguments: Sequence[str]) -> None:
    """Raises ConfigError for arguments longer than LONGEST, or with more than DEEPEST brackets within each other."""
    problems, steps = [], {"[": 1, "{": 1, "]": -1, "}": -1}
    for argument in arguments:
        key, _, value = argument.partition("=")
        key, brackets = key[:100].lstrip("+"), value.count("[") + value.count("{")
        if len(argument) > LONGEST:
            message = f"allowed: at most {LONGEST:,} characters; write longer values into a YAML file"
            problems.append(Problem(key, message, value))
        elif brackets > DEEPEST and max(itertools.accumulate(steps.get(sign, 0) for sign in value)) > DEEPEST:
            problems.append(Problem(key, f"allowed: at most {DEEPEST} brackets within each other", value))
    if problems:
        raise ConfigError(problems)


def run_to_resume(arguments: Sequence[str]) -> Path | None:
    """The run folder that `resume=<folder>` names; None without it, and for `resume=auto`."""
    typed = [argument for argument in arguments if argument.lstrip("+").startswith("resume=")]
    chosen = settings_of(typed[-1:])[0].value if typed else None
    return Path(OmegaConf.create([chosen])[0]) if isinstance(chosen, str) and chosen not in ("", AUTO) else None


def is_misread(override: Override, key: str, value: str, is_sweep: bool = False) -> bool:
    """Whether Hydra parses the value, but as something else than the text or the path that it is."""
    if override.is_sweep_override():
        return not is_sweep and os.path.exists(value)
    read = override.value()
    if isinstance(read, (bool, int, float)):
        return key in PATH_KEYS and (key != SHARE_KEY or os.path.exists(value))
    unchanged = read is None or (read == value and "${" not in value)
    return not unchanged and os.path.exists(value)


def mapping_text(text: str) -> str:
    """A mapping as Hydra's grammar reads it: Python, JSON and wandb write its keys in quotes, as in {'lr': 0.01}."""
    is_mapping = text.startswith("{") and not os.path.exists(text)
    return _QUOTED.sub(lambda match: f"{match[1][1:-1]}:" if match[2] else match[0], text) if is_mapping else text


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


def interpolates(text: str) -> bool:
    try:
        return OmegaConf.is_interpolation(OmegaConf.create({"text": text}), "text")
    except OmegaConfBaseException:
        return False


def parsed(argument: str) -> Override | None:
    try:
        return OverridesParser.create().parse_override(argument)
    except (HydraException, ValueError):  # ValueError: a number of more digits than Python reads
        return None
