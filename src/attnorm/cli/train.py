"""`attnorm train`: composes a configuration, checks it and trains. With `resume=<run folder>`, or `resume=auto` and an
unfinished run with the same settings, that run continues."""

import os
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig, OmegaConf

from attnorm.choices import CONF, own_folder
from attnorm.cli.errors import exit_code, to_the_end
from attnorm.errors import ConfigError, Problem, RunError
from attnorm.run.folder import RunState
from attnorm.run.run import Run
from attnorm.spec.compose import (
    AUTO,
    composed,
    hydra_config,
    normalizers_typed,
    plain_settings,
    run_folder,
    run_to_resume,
)
from attnorm.spec.hydra_errors import explained
from attnorm.spec.options import COMPLETION, completing, dashed, split_options
from attnorm.sweeps.jobs import as_typed, readable

if TYPE_CHECKING:
    from attnorm.spec.settings import ResolvedConfig

IGNORED = ("--run", "-r")  # options of Hydra that change nothing here
MULTIRUN = {"-m", "--multirun"}  # what starts several runs in other Hydra programs
SHOWING = {"--cfg", "-c", "--info", "-i", "--hydra-help", "--version", "-sc", "--shell-completion"}


def run_train(arguments: list[str]) -> int:
    """Trains, continues a run or starts a sweep, or shows the help. Returns the exit code."""
    if {"--help", "-h"} & set(arguments):
        from attnorm.cli.help import train_help

        return exit_code(lambda: print(train_help(arguments)) or 0)
    if MULTIRUN & set(arguments):
        from attnorm.cli.sweep import run_sweep

        arguments = ["jobs=1", *(argument for argument in arguments if argument not in MULTIRUN)]
        print(f"-m is attnorm sweep with one job at a time: {shlex.join(['attnorm', 'sweep', *arguments])}", flush=True)
        return run_sweep(arguments)
    return exit_code(partial(train_typed, arguments))


def train_typed(arguments: list[str]) -> int:
    """Trains what the arguments say. Options of Hydra that show something, such as `--cfg job`, are left to it."""
    _, folders, settings, _ = split_options(arguments)
    if folder := run_to_resume(settings):
        return resume_in(folder, arguments)
    if problems := [*dashed(arguments), *completing(arguments)]:
        raise ConfigError(problems)
    if not SHOWING.isdisjoint(argument.partition("=")[0] for argument in arguments):
        return show_composed(arguments)
    options = [it for it in arguments if it.startswith("-") and not it.startswith(("--config-dir", "-cd"))]
    if others := [it for it in options if it not in IGNORED]:
        allowed = "not available here; allowed: --config-dir, --cfg"
        raise ConfigError([Problem.about(it, f"{it}: {allowed}") for it in others])
    train_new(settings, folders)
    return 0


@to_the_end()
def train_new(arguments: Sequence[str], folders: Sequence[Path]) -> Path:
    """Composes and checks the settings of a new run, trains and returns the run folder. With `resume=auto`, that may be
    the folder of an unfinished run, which continues. folders: as in `composed`."""
    from attnorm.progress import quiet_libraries

    quiet_libraries()
    with explained():
        cfg = composed(arguments, folders)
    if cfg.hydra.mode is not None and cfg.hydra.mode.name == "MULTIRUN":
        raise ConfigError([Problem("hydra.mode", "-m or attnorm sweep starts several runs", "MULTIRUN")])
    from attnorm.spec.read import resolve  # needs torch

    overrides = as_typed(arguments)
    with hydra_config(cfg), explained():
        settings = plain_settings(cfg)
        config = resolve(settings, overrides)
        run = run_folder(cfg, config.label)
    if config.resume == AUTO and (folder := unfinished(config)):
        config = resolve({**settings, "resume": str(folder)}, overrides, checkpoint_of(folder))
    return start(config, run, overrides)


def show_composed(arguments: Sequence[str]) -> int:
    """Lets Hydra show what its options ask for."""
    import hydra

    @hydra.main(version_base="1.3", config_path=str(CONF), config_name="train")
    def job(cfg: DictConfig) -> None:
        raise RuntimeError("Hydra has been asked to show something, and runs a job")

    OmegaConf.register_new_resolver("attention_label", lambda: "attention", replace=True)
    rewritten = []
    for argument in arguments:
        key, _, text = argument.partition("=")
        if key == "attention" and (normalizers := normalizers_typed(text)):
            rewritten += ["attention=softmax", f"attention._default_={normalizers}"]
        else:
            rewritten.append(argument)
    if (own := own_folder()) and not any(it.startswith(("--config-dir", "-cd")) for it in arguments):
        rewritten = ["--config-dir", str(own), *rewritten]
    typed, sys.argv = sys.argv, [sys.argv[0], *(readable(rewritten) if COMPLETION.isdisjoint(rewritten) else rewritten)]
    full = os.environ.get("HYDRA_FULL_ERROR", "")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra lets its exceptions through, so that the nearest name can be added
    try:
        job()
    finally:
        sys.argv, os.environ["HYDRA_FULL_ERROR"] = typed, full
    return 0


@to_the_end()
def resume_in(folder: Path, arguments: list[str]) -> int:
    """Continues the run in a folder with its recorded configuration. Returns the exit code.

    A finished run is left alone, unless settings are changed, for example to make it longer.

    arguments: of the command. They may change some settings.
    """
    from attnorm.progress import quiet_libraries
    from attnorm.spec.read import resolve
    from attnorm.spec.recorded import recorded_settings
    from attnorm.training.processes import decided_by_first, is_first_rank

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
    from attnorm.training.processes import decided_by_first

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
    from attnorm.training.processes import decided_by_first

    def decide() -> str:
        if Run(folder).state is RunState.RUNNING:
            raise RunError(f"resume={folder}: this run is still going")
        return str(newest_good(folder) or "")

    checkpoint = decided_by_first("checkpoint", decide)
    return Path(checkpoint) if checkpoint else None


def unfinished(config: "ResolvedConfig") -> Path | None:
    """The folder of the run that `resume=auto` continues; None for a new run."""
    from attnorm.run.resume import newest_unfinished
    from attnorm.training.processes import decided_by_first, is_first_rank

    folder = decided_by_first("resumed_run", lambda: str(newest_unfinished(config) or ""))
    if is_first_rank():
        none = "there is no unfinished run with these settings, so a new one starts"
        print(f"resume=auto: {f'continuing {folder}' if folder else none}", flush=True)
    return Path(folder) if folder else None
