"""`attnorm train`: composes a configuration, checks it and trains. With `resume=<run folder>`, or `resume=auto` and an
unfinished run with the same settings, that run continues. `attnorm.train` does the same from Python."""

import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig, OmegaConf

from attnorm.choices import CONF, own_folder, split_options
from attnorm.cli.errors import exit_code, no_early_exit
from attnorm.cli.main import is_busy, threads_spin
from attnorm.cli.options import COMPLETION, completing, dashed
from attnorm.config.compose import (
    AUTO,
    composed,
    hydra_config,
    normalizers_as_defaults,
    plain_settings,
    run_folder,
    run_to_resume,
)
from attnorm.config.hydra_errors import explained
from attnorm.errors import ConfigError, Problem, RunError, in_yaml
from attnorm.imports import starting_processes
from attnorm.run.folder import RunState, find_folder
from attnorm.run.run import Run
from attnorm.sweeps.jobs import as_typed, override_key, readable
from attnorm.wording import printable

if TYPE_CHECKING:
    from attnorm.analysis.loaded_run import LoadedRun
    from attnorm.settings import Settings

IGNORED = ("--run", "-r")  # options of Hydra that change nothing here
SLEEPING = "GOMP_SPINCOUNT=0 KMP_BLOCKTIME=0 python ..."
MULTIRUN = {"-m", "--multirun"}  # what starts several runs in other Hydra programs
SHOWING = {"--cfg", "-c", "--info", "-i", "--hydra-help", "--version", *COMPLETION}


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
    if name := run_to_resume(settings):
        return resume_in(named_run(name, "resume"), arguments)
    if problems := [*dashed(arguments), *completing(arguments)]:
        raise ConfigError(problems)
    if not SHOWING.isdisjoint(argument.partition("=")[0] for argument in arguments):
        if names := [word.partition("=")[2] for word in settings if override_key(word) == "from"]:
            message = "the settings of a run are in its config.yaml, and not shown"
            raise ConfigError([Problem("from", message, names[-1])])
        return show_composed(arguments)
    options = [word for word in arguments if word.startswith("-") and not word.startswith(("--config-dir", "-cd"))]
    if others := [option for option in options if option not in IGNORED]:
        allowed = "not available here; allowed: --config-dir, --cfg"
        raise ConfigError([Problem.about(option, f"{option}: {allowed}") for option in others])
    train_new(settings, folders)
    return 0


@no_early_exit()
def train_new(arguments: Sequence[str], folders: Sequence[Path]) -> Path:
    """Composes and checks the settings of a new run, trains and returns the run folder. With `resume=auto`, that may be
    the folder of an unfinished run, which continues. With `from=<run>`, the settings are those of another run, but for
    what is typed. folders: as in `composed`."""
    from attnorm.progress import quiet_libraries

    quiet_libraries()
    before, of_files = list[str](), None
    if names := [argument.partition("=")[2] for argument in arguments if override_key(argument) == "from"]:
        from attnorm.config.recorded import from_run, without_unused

        other = named_run(Path(names[-1]), "from")
        arguments = [argument for argument in arguments if override_key(argument) != "from"]
        of_files, before = from_run(other, arguments), Run(other).recorded.get("overrides", [])
        arguments = [argument for argument in arguments if override_key(argument) != "trust_code"]
    if ladders := [argument.partition("=")[2] for argument in arguments if override_key(argument) == "ladder"]:
        raise ConfigError([Problem("ladder", "the rungs of a ladder are trained by attnorm sweep", ladders[0])])
    with explained():
        cfg = composed(arguments, folders, of_files)
    if cfg.hydra.mode is not None and cfg.hydra.mode.name == "MULTIRUN":
        raise ConfigError([Problem("hydra.mode", "-m or attnorm sweep starts several runs", "MULTIRUN")])
    overrides = as_typed(arguments)
    with hydra_config(cfg), explained():
        settings = without_unused(plain_settings(cfg), arguments) if names else plain_settings(cfg)
        from attnorm.config.read import read_settings  # needs torch

        config = read_settings(settings, overrides)
        run = run_folder(cfg, config.label)
    if config.resume == AUTO and (folder := unfinished(config)):
        config = read_settings({**settings, "resume": str(folder)}, overrides, checkpoint_of(folder))
    return start(config, run, [*before, *overrides])


def show_composed(arguments: Sequence[str]) -> int:
    """Lets Hydra show what its options ask for."""
    import hydra

    @hydra.main(version_base="1.3", config_path=str(CONF), config_name="train")
    def job(cfg: DictConfig) -> None:
        raise RuntimeError("Hydra has been asked to show something, and runs a job")

    OmegaConf.register_new_resolver("attention_label", lambda: "attention", replace=True)
    rewritten = normalizers_as_defaults(arguments)
    if (own_config := own_folder()) and not any(word.startswith(("--config-dir", "-cd")) for word in arguments):
        rewritten = ["--config-dir", str(own_config), *rewritten]
    typed, sys.argv = sys.argv, [sys.argv[0], *(readable(rewritten) if COMPLETION.isdisjoint(rewritten) else rewritten)]
    try:
        with starting_processes(HYDRA_FULL_ERROR="1"):  # Hydra raises its errors; the nearest name is added to them
            job()
    finally:
        sys.argv = typed
    return 0


def named_run(name: Path, key: str) -> Path:
    """The folder of the run that a setting names. Raises RunError for what is no run."""
    folder = find_folder(name, key)
    if not folder.is_dir():
        Run(folder).check(key)  # before libraries are imported, which takes seconds
    if folder == name:
        return folder
    from attnorm.training.processes import decided_by_first_rank

    # a run of this command may be the last one now
    return Path(decided_by_first_rank(f"named_{key}", lambda: str(folder)))


@no_early_exit()
def resume_in(folder: Path, arguments: list[str]) -> int:
    """Continues the run in a folder with its recorded configuration. Returns the exit code.

    A finished run is left alone, unless settings are changed, for example to make it longer.

    arguments: of the command. They may change some settings.
    """
    run = Run(folder)
    from attnorm.config.read import read_settings
    from attnorm.config.recorded import recorded_settings
    from attnorm.progress import quiet_libraries
    from attnorm.training.processes import decided_by_first_rank, is_first_rank

    quiet_libraries()
    settings, changes = recorded_settings(folder, arguments, is_first=is_first_rank())
    if decided_by_first_rank("state", lambda: run.state) == RunState.FINISHED and not changes:
        if is_first_rank():
            print(printable(f"resume={folder}: this run is finished"))
        return 0
    checkpoint = checkpoint_of(folder)
    start(read_settings(settings, changes, checkpoint), folder, [*(run.recorded.get("overrides", ())), *changes])
    return 0


def start(config: "Settings", run: Path, overrides: Sequence[str]) -> Path:
    """Trains in the folder `run`, or in the folder of the run that continues. Returns the folder."""
    from attnorm.analysis.run_figures import draw_run
    from attnorm.training.train import train

    try:
        folder = Path(str(config.resume)) if config.continues else claim_folder(run)
    except OSError as error:
        message = f"paths.log_dir: the run folder {error.filename} cannot be made: {error.strerror}"
        raise ConfigError([Problem.about("paths.log_dir", message)]) from error
    train(config, folder, overrides, draw=partial(draw_run, formats=config.run.formats))
    return folder


def claim_folder(folder: Path) -> Path:
    """`folder`, or the first free one of `<folder>_2`, `<folder>_3`, ...: no two runs ever share one.

    Folders are named after the second in which a run starts, so two runs can ask for the same one. Ranks other
    than 0 get the folder of rank 0, also on other machines.
    """
    from attnorm.run.writing import RunWriter
    from attnorm.training.processes import decided_by_first_rank

    def free() -> str:
        names = (folder.with_name(f"{folder.name}_{number}") if number > 1 else folder for number in count(1))
        return str(next(name for name in names if RunWriter(name).claim()).absolute())

    claimed = Path(decided_by_first_rank("run_folder", free))
    return claimed if folder.is_absolute() else Path(os.path.relpath(claimed))


def checkpoint_of(folder: Path) -> Path | None:
    """The checkpoint from which the run in a folder continues; None for the beginning. The first rank decides.

    Raises RunError if the run is still going, or has lost its checkpoints.
    """
    from attnorm.run.resume import newest_good
    from attnorm.training.processes import decided_by_first_rank

    def decide() -> str:
        if Run(folder).state is RunState.RUNNING:
            raise RunError(f"resume={folder}: this run is still going")
        return str(newest_good(folder) or "")

    checkpoint = decided_by_first_rank("checkpoint", decide)
    return Path(checkpoint) if checkpoint else None


def unfinished(config: "Settings") -> Path | None:
    """The folder of the run that `resume=auto` continues; None for a new run."""
    from attnorm.run.resume import newest_unfinished
    from attnorm.training.processes import decided_by_first_rank, is_first_rank

    folder = decided_by_first_rank("resumed_run", lambda: str(newest_unfinished(config) or ""))
    if is_first_rank():
        none = "there is no unfinished run with these settings, so a new one starts"
        print(printable(f"resume=auto: {f'continuing {folder}' if folder else none}"), flush=True)
    return Path(folder) if folder else None


def train(
    overrides: str | Sequence[str] = (), *, config_dir: str | Path | None = None, **settings: object
) -> "LoadedRun":
    """Trains one model as `attnorm train` does, and returns the run, opened as by `load_run`.

    overrides:  arguments of the command, such as "model.dropout=0.1" or "~callbacks.attention_stats", or one of them.
    config_dir: a folder with YAML files of your own, as `--config-dir`; by default the folder conf/ in the working
                directory, if it has files for attnorm.
    settings:   groups and keys: task="gigaword", seed=3, trainer={"max_steps": 100}. They come after the overrides, and
                texts are read as on the command line. With resume=<run folder>, the run continues there.

    Raises ConfigError, with all problems in its message, before anything is read or written. An interruption finishes
    the update, saves and raises Interrupted.
    """
    from attnorm.analysis.loaded_run import load_run
    from attnorm.progress import quiet_libraries

    if threads_spin() and is_busy():  # too late to change it: torch may have been imported
        print("Other processes use this machine. Training beside them is faster if Python is started by", SLEEPING)
    with unchanged():
        quiet_libraries()
        arguments = [*([overrides] if isinstance(overrides, str) else overrides), *arguments_of(settings)]
        config_folder = Path(config_dir) if config_dir else own_folder()
        if name := run_to_resume(arguments):
            resume_in(folder := named_run(name, "resume"), arguments)
        else:
            folder = train_new(arguments, [CONF, *([config_folder] if config_folder else [])])
        return load_run(folder, trust_code=True)  # the code of its parts has just run


@contextmanager
def unchanged() -> Iterator[None]:
    """Restores the random state and the environment variables of the caller, if no further processes take part."""
    from lightning_fabric.utilities.seed import _collect_rng_states, _set_rng_states

    variables, states = dict(os.environ), _collect_rng_states()
    try:
        yield
    finally:
        _set_rng_states(states)
        if "LOCAL_RANK" in variables or "LOCAL_RANK" not in os.environ:  # the others take part in the next run, too
            for name in os.environ.keys() - variables.keys():
                del os.environ[name]
            os.environ |= variables


def arguments_of(settings: Mapping[str, object], group: str = "") -> Iterator[str]:
    """Settings as they are typed: `seed=3`, `trainer.max_steps=100` for {"trainer": {"max_steps": 100}}."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from arguments_of(value, f"{group}{key}.")
        else:
            yield f"{group}{key}={in_yaml(value)}"
