"""Starting a run whose settings have been composed, and continuing one: the run of `resume=<run folder>`, or with
`resume=auto` the unfinished run that has the same settings."""

import os
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from attnorm.cli.errors import to_the_end
from attnorm.errors import ConfigError, Problem, RunError
from attnorm.run.folder import RunState
from attnorm.run.run import Run
from attnorm.spec.compose import AUTO, hydra_config, plain_settings, run_folder
from attnorm.spec.hydra_errors import explained

if TYPE_CHECKING:
    from attnorm.spec.settings import ResolvedConfig


def start_composed(cfg: DictConfig, overrides: Sequence[str]) -> Path:
    """Checks a composed configuration, trains and returns the run folder.

    With `resume=auto`, the run may continue in the folder of another one.
    """
    from attnorm.spec.read import resolve

    with hydra_config(cfg), explained():
        settings = plain_settings(cfg)
        config = resolve(settings, overrides)
        run = run_folder(cfg, config.label)
    if config.resume == AUTO and (folder := unfinished(config)):
        config = resolve({**settings, "resume": str(folder)}, overrides, checkpoint_of(folder))
    return start(config, run, overrides)


@to_the_end()
def resume_in(folder: Path, arguments: list[str]) -> int:
    """Continues the run in a folder with its recorded configuration. Returns the exit code.

    A finished run is left alone, unless settings are changed, for example to make it longer.

    arguments: of the command. They may change some settings.
    """
    from attnorm.progress import quiet_libraries
    from attnorm.spec.read import resolve
    from attnorm.spec.recorded import recorded_settings
    from attnorm.training.environment import is_first_rank
    from attnorm.training.rendezvous import decided_by_first

    quiet_libraries()
    run = Run(folder)
    settings, changes = recorded_settings(folder, arguments, is_first=is_first_rank())
    if decided_by_first("state", lambda: run.state) == RunState.FINISHED and not changes:
        if is_first_rank():
            print(f"resume={folder}: this run is finished")
        return 0
    checkpoint = checkpoint_of(folder)
    overrides = [*(run.environment.get("overrides") or []), *changes]
    start(resolve(settings, changes, checkpoint), folder, overrides)
    return 0


def start(config: "ResolvedConfig", run: Path, overrides: Sequence[str]) -> Path:
    """Trains in the folder `run`, or in the folder of the run that continues. Returns the folder."""
    from attnorm.analysis.figures import draw_run
    from attnorm.training.train import train

    try:
        folder = Path(str(config.resume)) if config.continues else claim_folder(run)
    except OSError as error:
        message = f"paths.log_dir: the run folder {error.filename} cannot be made: {error.strerror}"
        raise ConfigError([Problem.about("paths.log_dir", message)]) from error
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


def unfinished(config: "ResolvedConfig") -> Path | None:
    """The folder of the run that `resume=auto` continues; None for a new run."""
    from attnorm.run.resume import newest_unfinished
    from attnorm.training.environment import is_first_rank
    from attnorm.training.rendezvous import decided_by_first

    folder = decided_by_first("resumed_run", lambda: str(newest_unfinished(config) or ""))
    if is_first_rank():
        none = "there is no unfinished run with these settings, so a new one starts"
        print(f"resume=auto: {f'continuing {folder}' if folder else none}", flush=True)
    return Path(folder) if folder else None
