"""Opening a run folder: its recorded configuration, changed by overrides; the current defaults play no part."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from attnorm.config.arguments import as_typed, escaped, readable
from attnorm.config.checkpoint_files import BEST, LAST, read_checkpoint
from attnorm.config.integrity import check_companions, check_fit, parameters_of
from attnorm.config.resolve import leaves
from attnorm.config.run_config import FILE, Recorded, read_config
from attnorm.config.trust import check_names, own_cache
from attnorm.data.tokenizers.base import Tokenizer, tokenizer_class
from attnorm.errors import ConfigError, DataError, Problem, RunError
from attnorm.imports import nearest
from attnorm.parts import class_of, names_of
from attnorm.tasks.task import CleaningConfig, DataConfig, Task, task_of

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


def read_run(folder: Path, trust_code: bool = False, typed: Collection[str] = ()) -> Recorded:
    """The configuration that a run was trained with.

    Raises ConfigError for a folder that is not a run's, and for one that names code of a package that is not trusted
    (see `trust.check_names`), unless trust_code allows it. typed: keys that the user has typed for the run.
    """
    if not folder.is_dir():
        raise RunError(f"run={folder}: no such folder")
    if not (folder / FILE).is_file():
        raise RunError(f"run={folder}: no {FILE} there, so it is not a run folder")
    cfg = read_config(folder)
    check_names(cfg, trust_code)
    cfg["paths"] = own_cache(cfg["paths"], trust_code, typed)
    return cfg


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


def open_run(run: Path, cfg: dict, checkpoint: str) -> tuple[Tokenizer, Any, int]:
    """The run's tokenizer, and its model with the parameters of `checkpoint` ("best" or "last"), on the GPU if there
    is one; and the update they are from. Raises ConfigError if one of them is missing or does not fit the others."""
    path = run / "checkpoints" / f"{checkpoint}.ckpt"
    if checkpoint not in (BEST, LAST):
        raise ConfigError([f"ckpt={checkpoint}: allowed: {BEST}, {LAST}"])
    if not path.is_file():
        there = sorted(file.name for file in (run / "checkpoints").glob("*.ckpt")) or "none"
        raise RunError(f"run={run}: no checkpoint {path.name} there (there is: {there})")
    tokenizer, content = read_tokenizer(run, cfg), read_checkpoint(path)
    check_companions(run, content, path)
    try:
        model = task_of(cfg, run).model(tokenizer)
    except (RuntimeError, MemoryError) as error:  # sizes that no machine has memory for
        raise RunError(f"{run / FILE}: the model cannot be built: {str(error).splitlines()[0]}") from error
    check_fit(model, content, path)
    model.load_state_dict(parameters_of(content))
    return tokenizer, model.to("cuda" if torch.cuda.is_available() else "cpu").eval(), content["global_step"]


def read_tokenizer(run: Path, cfg: dict) -> Tokenizer:
    """The tokenizer that a run was trained with. Raises RunError if its file is missing or cannot be read."""
    try:
        return tokenizer_class(cfg["tokenizer"]).load(run)
    except (DataError, OSError) as error:
        raise RunError(str(error).splitlines()[0]) from error
