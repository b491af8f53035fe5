"""Opening a run folder: its recorded configuration, changed by overrides; the current defaults play no part."""

from collections.abc import Mapping, Sequence
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from attnorm.choices import CONF
from attnorm.errors import ConfigError, is_in
from attnorm.imports import nearest
from attnorm.parts import class_of, names_of
from attnorm.spec.command import cannot_be_set
from attnorm.spec.compose import escaped
from attnorm.spec.settings import CleaningConfig, DataConfig, leaves

OVERRIDABLE = ("data", "paths")  # what a finished run can be scored with anew, besides `scoring` of its task
SHARED = (*names_of(DataConfig), *names_of(CleaningConfig))


def changed(recorded: Mapping[str, Any], changes: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """The run's configuration with the overrides applied. `data=<source>` takes that source's file from conf/data, but
    keeps how the run cleaned its text and cut its batches. Raises ConfigError for a key that is not there."""
    from attnorm.tasks.task import Task

    cfg = OmegaConf.create(escaped(recorded))
    problems: list[str] = []
    allowed = [*OVERRIDABLE, *class_of("task", recorded["task"], Task).scoring]
    for key, value in sorted(changes, key=lambda change: "." in change[0]):  # groups first
        if not any(is_in(key, group) for group in allowed):
            problems.append(cannot_be_set(key, allowed))
        elif key == "data":
            kept = {name: cfg.data[name] for name in SHARED if name in cfg.data}
            cfg.data = {**compose_group("data", value), **kept}
        elif "." not in key:
            problems.append(f"{key}={value}: type single keys here, such as {key}.<name>=<value>")
        elif (
            OmegaConf.select(cfg, key, default="absent") == "absent"
            and key not in dict(leaves(plain(cfg)))
            and key not in allowed  # an older version may not have recorded it
        ):
            problems.append(f"{key}: the run's config has no such key." + nearest(key, dict(leaves(plain(cfg)))))
        else:
            OmegaConf.update(cfg, key, value)
    missing = [f"{key}: must be given, as in {key}=<value>" for key in OmegaConf.missing_keys(cfg)]
    if problems or missing:
        raise ConfigError(problems + missing)
    return {**plain(cfg), "ckpt_path": None, "resume": None}  # nothing is resumed here


def plain(cfg: Any, resolve: bool = True) -> dict[str, Any]:
    """The values of an OmegaConf mapping."""
    content: Any = OmegaConf.to_container(cfg, resolve=resolve)
    return content


def compose_group(group: str, name: str) -> dict:
    """conf/<group>/<name>.yaml with its own defaults."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return plain(compose("train", [f"{group}={name}"])[group], resolve=False)
