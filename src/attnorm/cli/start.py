"""Starting a run whose settings have been composed, or continuing the unfinished run that has the same settings."""

import os
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from attnorm.errors import ConfigError, Problem, RunError
from attnorm.run.folder import RunState
from attnorm.run.run import Run
from attnorm.spec.compose import AUTO
from attnorm.spec.settings import ResolvedConfig


def start_composed(cfg: DictConfig, run: Path, overrides: Sequence[str]) -> Path:
    """Checks a composed configuration, trains and returns the run folder.

    run: the folder of a new run. With `resume=auto`, the run may continue in another one.
    """
    settings = plain_settings(cfg)
    config = check_settings(settings, overrides)
    if config.resume == AUTO and (folder := unfinished(config)):
        config = check_settings({**settings, "resume": str(folder)}, overrides, checkpoint_of(folder))
    return start(config, run, overrides)


def start(config: ResolvedConfig, run: Path, overrides: Sequence[str]) -> Path:
    """Trains in the folder `run`, or in the folder of the run that continues. Returns the folder."""
    from attnorm.analysis.figures import draw_run
    from attnorm.training.train import train

    folder = Path(str(config.resume)) if config.continues else claim_folder(run)
    train(config, folder, overrides, draw=draw_run)
    return folder


def claim_folder(folder: Path) -> Path:
    """`folder`, or the first free one of `<folder>_2`, `<folder>_3`, ...: no two runs ever share one.

    Folders are named after the second in which a run starts, so two runs can ask for the same one. Ranks other
    than 0 get the folder of rank 0, also on other machines.
    """
    from attnorm.run.writing import RunWriter
    from attnorm.training.rendezvous import decided_by_first

    def free() -> str:
        names = (folder.with_name(f"{folder.name}_{number}") if number > 1 else folder for number in count(1))
        return str(next(name for name in names if RunWriter(name).claim()).absolute())

    claimed = Path(decided_by_first("run_folder", free))
    return claimed if folder.is_absolute() else Path(os.path.relpath(claimed))


def plain_settings(cfg: DictConfig) -> dict[str, Any]:
    """The settings of a composed configuration. Raises ConfigError if one that must be given is missing."""
    missing = sorted(OmegaConf.missing_keys(cfg))
    if missing:
        raise ConfigError([Problem(key, f"must be given, as in {key}=<value>") for key in missing])
    settings: Any = OmegaConf.to_container(cfg, resolve=True)
    return settings


def check_settings(
    settings: dict[str, Any], overrides: Sequence[str] = (), checkpoint: Path | None = None
) -> ResolvedConfig:
    """The checked configuration; raises ConfigError with all its problems.

    overrides: those of the command line. checkpoint: the one in the folder `resume` from which the run continues.
    """
    from attnorm.spec.read import resolve

    return resolve(settings, overrides, checkpoint)


def checkpoint_of(folder: Path) -> Path | None:
    """The checkpoint from which the run in a folder continues; None for the beginning. The first rank decides.

    Raises RunError if the run is still going, or has lost its checkpoints.
    """
    from attnorm.run.resume import newest_good
    from attnorm.training.rendezvous import decided_by_first

    def decide() -> str:
        if Run(folder).state is RunState.RUNNING:
            raise RunError(f"resume={folder}: this run is still going")
        return str(newest_good(folder) or "")

    checkpoint = decided_by_first("checkpoint", decide)
    return Path(checkpoint) if checkpoint else None


def unfinished(config: ResolvedConfig) -> Path | None:
    """The folder of the run that `resume=auto` continues; None for a new run."""
    from attnorm.run.resume import newest_unfinished
    from attnorm.training.environment import is_first_rank
    from attnorm.training.rendezvous import decided_by_first

    folder = decided_by_first("resumed_run", lambda: str(newest_unfinished(config) or ""))
    if is_first_rank():
        none = "there is no unfinished run with these settings, so a new one starts"
        print(f"resume=auto: {f'continuing {folder}' if folder else none}", flush=True)
    return Path(folder) if folder else None
