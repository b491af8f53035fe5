"""Opening a run folder again: its own configuration, never today's defaults; only what is typed changes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from attnorm.data.tokenizer import load_tokenizer
from attnorm.registry import nearest
from attnorm.training.checkpoints import BEST, LAST
from attnorm.training.errors import ConfigError
from attnorm.training.overrides import escaped, readable
from attnorm.training.recipes.base import recipe_of
from attnorm.training.rules import SHARED_DATA_KEYS, leaves
from attnorm.training.run import load_weights

CHANGEABLE = (  # what a finished run can be scored with anew
    *("data", "decoding", "paths"),
    *("task.stemmer", "task.n_best", "task.max_answer", "task.null_threshold"),
)


@dataclass(frozen=True)
class Rerun:
    """What a front door was asked: its own settings, those of them that were typed, and changes to the run's config."""

    settings: dict[str, Any]
    asked: set[str]
    typed: list[tuple[str, Any]]


def read_command(arguments: list[str], defaults: dict[str, Any]) -> Rerun:
    """Sorts `key=value` arguments into the door's own keys (those of `defaults`) and changes to the run's config."""
    settings, asked, typed, problems = dict(defaults), set(), [], []
    for override in OverridesParser.create().parse_overrides(readable(arguments)):
        key, value = override.key_or_group, override.value()
        if override.is_sweep_override():
            problems.append(f"{override.input_line}: one value at a time here")
        elif key in defaults:
            settings[key] = value
            asked.add(key)
        elif any(key == allowed or key.startswith(f"{allowed}.") for allowed in CHANGEABLE):
            typed.append((key, value))
        else:
            allowed = [*defaults, *CHANGEABLE]
            problems.append(f"{key}: cannot be set here; what can: {', '.join(allowed)}." + nearest(key, allowed))
    problems += [f"{key}: has to be given, as {key}=<value>" for key, value in settings.items() if value == "???"]
    if problems:
        raise ConfigError(problems)
    return Rerun(plain(OmegaConf.create(settings)), asked, typed)


def read_run(folder: Path) -> dict:
    """The configuration that a run was trained with. Raises ConfigError for a folder that is no run's."""
    path = folder / "config.yaml"
    if not folder.is_dir():
        raise ConfigError([f"run={folder}: no such folder"])
    if not path.is_file():
        raise ConfigError([f"run={folder}: no config.yaml there, so it is not a run folder"])
    return yaml.safe_load(path.read_text())


def changed(cfg: dict, typed: list[tuple[str, Any]], conf: Path) -> dict:
    """The run's configuration with what was typed. `data=<source>` takes that source's file from conf/data, but keeps
    how the run cleaned its text and cut its batches. Raises ConfigError for a key that is not there."""
    cfg, problems = OmegaConf.create(escaped(cfg)), []
    for key, value in sorted(typed, key=lambda change: "." in change[0]):  # groups first
        if key == "data":
            kept = {name: cfg.data[name] for name in SHARED_DATA_KEYS if name in cfg.data}
            cfg.data = {**compose_group(conf, "data", value), **kept}
        elif "." not in key:
            problems.append(f"{key}={value}: type single keys here, such as {key}.<name>=<value>")
        elif OmegaConf.select(cfg, key, default="absent") == "absent" and key not in dict(leaves(plain(cfg))):
            problems.append(f"{key}: the run's config has no such key." + nearest(key, dict(leaves(plain(cfg)))))
        else:
            OmegaConf.update(cfg, key, value)
    missing = [f"{key}: has to be given, as {key}=<value>" for key in OmegaConf.missing_keys(cfg)]
    if problems or missing:
        raise ConfigError(problems + missing)
    return plain(cfg)


def plain(cfg) -> dict:
    return OmegaConf.to_container(cfg, resolve=True)


def compose_group(conf: Path, group: str, name: str) -> dict:
    """conf/<group>/<name>.yaml with its own defaults."""
    with initialize_config_dir(str(conf), version_base="1.3"):
        return OmegaConf.to_container(compose("train", [f"{group}={name}"])[group])


def open_run(run: Path, cfg: dict, checkpoint: str):
    """The run's tokenizer, and its model with the parameters of `checkpoint` ("best" or "last"), on the GPU if there
    is one; and the update they are from. Raises ConfigError when there is no such checkpoint."""
    path = run / "checkpoints" / f"{checkpoint}.ckpt"
    if checkpoint not in (BEST, LAST):
        raise ConfigError([f"ckpt={checkpoint}: allowed are {BEST}, {LAST}"])
    if not path.is_file():
        there = sorted(file.name for file in (run / "checkpoints").glob("*.ckpt")) or "none"
        raise ConfigError([f"run={run}: no checkpoint {path.name} there (there is: {there})"])
    tokenizer = load_tokenizer(run)
    model = recipe_of(cfg, run).model(tokenizer)
    step = load_weights(model, path)
    return tokenizer, model.to("cuda" if torch.cuda.is_available() else "cpu").eval(), step
