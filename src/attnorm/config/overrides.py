"""Opening a run folder: its recorded configuration, changed by overrides; the current defaults play no part."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from attnorm.config.arguments import as_typed, escaped, readable
from attnorm.errors import ConfigError, Problem
from attnorm.imports import nearest
from attnorm.parts import class_of, names_of
from attnorm.resolved import CleaningConfig, DataConfig, leaves
from attnorm.run.config_file import Recorded
from attnorm.tasks.task import Task

OVERRIDABLE = ("data", "paths")  # what a finished run can be scored with anew, besides `scoring` of its task
SHARED = (*names_of(DataConfig), *names_of(CleaningConfig))
FILES = ("predictions", "references", "questions", "null_odds")
# Settings that are taken as typed, and settings that may be lists.
PATHS = ("run", "runs", "baseline", "against", "input", "out", "model", "text", *FILES)
LISTS = ("references", "runs", "baseline", "against", "model", "layers", "heads", "formats")


@dataclass(frozen=True)
class EvalCommand:
    """The arguments of a command: its settings, the names of those that were typed, and changes to the run's config."""

    settings: dict[str, Any]
    asked: set[str]
    typed: list[tuple[str, Any]]


def read_command(arguments: list[str], defaults: dict[str, Any], *, changes: bool = True) -> EvalCommand:
    """Sorts `key=value` arguments into the command's own keys (those of `defaults`) and changes to the run's config.

    changes: whether the command can change the config of a run; otherwise it has no keys but its own.
    """
    settings, asked, typed = dict(defaults), set(), []
    several_values: set[str] = set()
    problems: list[str] = [
        f"{argument}: expected key=value; the keys are {', '.join(defaults)}"
        for argument in arguments
        if "=" not in argument and not argument.startswith("~")
    ]
    if problems:
        raise ConfigError(problems)
    for override in OverridesParser.create().parse_overrides(readable(arguments)):
        key, value, [line] = override.key_or_group, override.value(), as_typed([override.input_line or ""])
        if override.is_sweep_override():
            several = f"type several values as a list, {key}=[{line.partition('=')[2]}]"
            problems.append(f"{line}: {several if key in LISTS else 'one value at a time here'}")
            several_values.add(key)
        elif key in defaults:  # a folder may be called 1
            if isinstance(value, dict) or (isinstance(value, list) and key not in LISTS):
                problems.append(f"{line}: expected a single value")
            is_path = key in PATHS and value is not None and not isinstance(value, (str, list))
            settings[key] = (override.input_line or "").partition("=")[2] if is_path else value
            asked.add(key)
        elif changes and ("." in key or key in OVERRIDABLE):
            typed.append((key, value))
        else:
            problems.append(cannot_be_set(key, [*defaults, *(OVERRIDABLE if changes else ())]))
    for key, value in settings.items():
        is_missing = value == "???" or (value in (None, "") and defaults[key] == "???")
        if is_missing and key not in several_values:  # a problem already
            problems.append(f"{key}: must be given, as in {key}=<value>")
    if not isinstance(settings.get("trust_code", False), bool):
        problems.append(f"trust_code={settings['trust_code']}: allowed: true, false")
    if problems:
        raise ConfigError(problems)
    return EvalCommand(plain(OmegaConf.create(settings)), asked, typed)


def changed(recorded: Recorded, typed: list[tuple[str, Any]], conf: Path) -> Recorded:
    """The run's configuration with the overrides applied. `data=<source>` takes that source's file from conf/data, but
    keeps how the run cleaned its text and cut its batches. Raises ConfigError for a key that is not there."""
    cfg = OmegaConf.create(escaped(recorded.plain()))
    problems: list[str] = []
    allowed = [*OVERRIDABLE, *class_of("task", recorded["task"], Task).scoring]
    for key, value in sorted(typed, key=lambda change: "." in change[0]):  # groups first
        if not any(key == it or key.startswith(f"{it}.") for it in allowed):
            problems.append(cannot_be_set(key, allowed))
        elif key == "data":
            kept = {name: cfg.data[name] for name in SHARED if name in cfg.data}
            cfg.data = {**compose_group(conf, "data", value), **kept}
        elif "." not in key:
            problems.append(f"{key}={value}: type single keys here, such as {key}.<name>=<value>")
        elif OmegaConf.select(cfg, key, default="absent") == "absent" and key not in dict(leaves(plain(cfg))):
            problems.append(f"{key}: the run's config has no such key." + nearest(key, dict(leaves(plain(cfg)))))
        else:
            OmegaConf.update(cfg, key, value)
    missing = [f"{key}: must be given, as in {key}=<value>" for key in OmegaConf.missing_keys(cfg)]
    if problems or missing:
        raise ConfigError(problems + missing)
    return Recorded({**plain(cfg), "ckpt_path": None, "resume": None}, recorded.path)  # nothing is resumed here


def cannot_be_set(key: str, allowed: list[str]) -> Problem:
    """The problem with a key that an evaluation cannot change."""
    return Problem(key, f"cannot be set here; allowed: {', '.join(allowed)}.{nearest(key, allowed)}")


def plain(cfg: Any, resolve: bool = True) -> dict[str, Any]:
    """The values of an OmegaConf mapping."""
    content: Any = OmegaConf.to_container(cfg, resolve=resolve)
    return content


def compose_group(conf: Path, group: str, name: str) -> dict:
    """conf/<group>/<name>.yaml with its own defaults."""
    with initialize_config_dir(str(conf), version_base="1.3"):
        return plain(compose("train", [f"{group}={name}"])[group], resolve=False)
