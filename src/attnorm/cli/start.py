"""Starting a run whose settings have been composed, or continuing the unfinished run that has the same settings."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from attnorm.config.arguments import AUTO
from attnorm.errors import ConfigError, Problem, RunError
from attnorm.resolved import ResolvedConfig
from attnorm.run.state import RunState, is_running, state_of

FINISHED = "finished"


def start_composed(cfg: DictConfig, run: Path, overrides: Sequence[str]) -> Path:
    """Checks a composed configuration, trains and returns the run folder.

    run: the folder of a new run. With `resume=auto`, the run may continue in another one.
    """
    settings = plain_settings(cfg)
    config = check_settings(settings, overrides)
    if config.resume == AUTO and (changes := continued(config)):
        config = check_settings({**settings, **changes}, overrides)
    return start(config, run, overrides)


def start(config: ResolvedConfig, run: Path, overrides: Sequence[str]) -> Path:
    """Trains in the folder `run`, or in the folder of the run that continues. Returns the folder."""
    from attnorm.analysis.figures import draw_run
    from attnorm.training.run_folder import claim_folder
    from attnorm.training.train import train

    continues = config.resume not in (None, AUTO)
    folder = Path(str(config.resume)) if continues else claim_folder(run, config.ckpt_path)
    train(config, folder, overrides, draw=draw_run)
    return folder


def plain_settings(cfg: DictConfig) -> dict[str, Any]:
    """The settings of a composed configuration. Raises ConfigError if one that must be given is missing."""
    missing = sorted(OmegaConf.missing_keys(cfg))
    if missing:
        raise ConfigError([Problem(key, f"must be given, as in {key}=<value>") for key in missing])
    settings: Any = OmegaConf.to_container(cfg, resolve=True)
    return settings


def check_settings(settings: dict[str, Any], overrides: Sequence[str] = ()) -> ResolvedConfig:
    """The checked configuration; raises ConfigError with all its problems. overrides: those of the command line."""
    from attnorm.config.resolve import resolve

    return resolve(settings, overrides)


def checkpoint_of(folder: Path, settings: Mapping[str, Any], is_changed: bool) -> str:
    """The checkpoint from which a run continues, "" to start from the beginning, or FINISHED.

    Raises RunError if the run is still going.
    """
    from attnorm.run.resume import newest_good

    if is_running(folder):
        raise RunError(f"resume={folder}: this run is still going")
    if state_of(folder) == RunState.FINISHED and not is_changed:
        return FINISHED
    return str(newest_good(folder) or settings["ckpt_path"] or "")


def continued(config: ResolvedConfig) -> Mapping[str, Any]:
    """The settings `resume` and `ckpt_path` with which `resume=auto` continues; none of them for a new run."""
    from attnorm.run.resume import newest_unfinished
    from attnorm.training.environment import is_first_rank
    from attnorm.training.rendezvous import decided_by_first

    folder = decided_by_first("resumed_run", lambda: str(newest_unfinished(config) or ""))
    if is_first_rank():
        none = "there is no unfinished run with these settings, so a new one starts"
        print(f"resume=auto: {f'continuing {folder}' if folder else none}", flush=True)
    if not folder:
        return {}
    checkpoint = decided_by_first("checkpoint", lambda: checkpoint_of(Path(folder), config.settings, is_changed=False))
    return {"resume": folder, "ckpt_path": checkpoint or None}
