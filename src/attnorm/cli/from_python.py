"""`attnorm.train`: a run from Python, for example in a notebook."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hydra import compose
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from hydra.initialize import get_gh_backup, restore_gh_from_backup
from omegaconf import DictConfig, flag_override
from omegaconf.errors import OmegaConfBaseException

from attnorm.choices import CONF, own_folder
from attnorm.cli.check_jobs import start_hydra
from attnorm.cli.errors import explain_hydra_error
from attnorm.cli.main import is_busy, threads_spin
from attnorm.errors import ConfigError, in_yaml
from attnorm.spec.compose import as_typed, readable, register_attention, run_to_resume, wrong_choices

if TYPE_CHECKING:
    from attnorm.analysis.run import LoadedRun as Run

SLEEPING = "GOMP_SPINCOUNT=100 KMP_BLOCKTIME=0 python ..."


def train(overrides: str | Sequence[str] = (), *, config_dir: str | Path | None = None, **settings: object) -> "Run":
    """Trains one model as `attnorm train` does, and returns the run, opened as by `load_run`.

    overrides:  arguments of the command, such as "model.dropout=0.1" or "~callbacks.attention_stats", or one of them.
    config_dir: a folder with YAML files of your own, as `--config-dir`; by default the folder conf/ in the working
                directory, if it has files for attnorm.
    settings:   groups and keys: task="gigaword", seed=3, trainer={"max_steps": 100}. They come after the overrides, and
                texts are read as on the command line. With resume=<run folder>, the run continues there.

    Raises ConfigError, with all problems in its message, before anything is read or written. An interruption finishes
    the update, saves and raises Interrupted.
    """
    from attnorm.analysis.run import load_run
    from attnorm.cli.resume import resume_in
    from attnorm.progress import quiet_libraries

    if threads_spin() and is_busy():  # too late to change it: torch may have been imported
        print("Other processes use this machine. Training beside them is faster if Python is started by", SLEEPING)
    with unchanged():
        quiet_libraries()
        arguments = readable([*([overrides] if isinstance(overrides, str) else overrides), *typed(settings)])
        folder = run_to_resume(arguments)
        if folder is None:
            folder = train_new(arguments, Path(config_dir) if config_dir else own_folder())
        else:
            resume_in(folder, arguments)
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


def typed(settings: Mapping[str, object], group: str = "") -> Iterator[str]:
    """Settings as they are typed: `seed=3`, `trainer.max_steps=100` for {"trainer": {"max_steps": 100}}."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from typed(value, f"{group}{key}.")
        else:
            yield f"{group}{key}={in_yaml(value)}"


def train_new(arguments: list[str], config_dir: Path | None) -> Path:
    """Trains with these arguments, and returns the run folder."""
    from attnorm.cli.start import start_composed

    cfg, run = composed(arguments, config_dir)
    return start_composed(cfg, run, as_typed(arguments))


def composed(arguments: list[str], config_dir: Path | None) -> tuple[DictConfig, Path]:
    """The composed configuration, and the run folder that it names. Raises ConfigError for what cannot be composed."""
    if problems := wrong_choices(arguments):
        raise ConfigError(problems)
    register_attention(arguments)
    with hydra_started([CONF, *([config_dir] if config_dir else [])]):
        try:
            cfg = compose("train", arguments, return_hydra_config=True)
            run = Path(cfg.hydra.run.dir)
        except (HydraException, OmegaConfBaseException) as error:
            raise ConfigError([explain_hydra_error(str(error))]) from error
    with flag_override(cfg, ["struct", "readonly"], False):
        del cfg["hydra"]
    return cfg, run


@contextmanager
def hydra_started(folders: Sequence[Path]) -> Iterator[None]:
    """Within this context, `hydra.compose` reads these folders. What the caller has made of Hydra is restored."""
    before = get_gh_backup()
    try:
        start_hydra(folders)
        yield
    finally:
        GlobalHydra.instance().clear()
        restore_gh_from_backup(before)
