"""`train.py`: composes a configuration, checks it and trains."""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from attnorm.choices import CONF, own_folder
from attnorm.cli.errors import completing, dashed, exit_code, to_the_end
from attnorm.cli.resume import resume_in
from attnorm.cli.start import check_settings, plain_settings, start_composed
from attnorm.errors import ConfigError, Problem
from attnorm.spec.compose import as_typed, readable, register_attention, run_to_resume, wrong_choices
from attnorm.spec.settings import ResolvedConfig


def register_resolvers() -> None:
    """`${attention_label:}`: the name that a run is filed under, by what was resolved."""

    def label(*, _root_: DictConfig) -> str:
        from attnorm.spec.read import label_of

        groups = ("attention", "model", "data", "task")
        return label_of({key: OmegaConf.to_container(_root_[key], resolve=True) for key in groups if key in _root_})

    OmegaConf.register_new_resolver("attention_label", label, replace=True)


def run_train(arguments: Sequence[str]) -> int:
    """`train.py`: composes the configuration from its arguments, checks it and trains. Returns the exit code.

    With `resume=<run folder>`, the configuration is the one that the folder has recorded.
    """
    return exit_code(partial(compose_and_train, arguments))


def compose_and_train(arguments: Sequence[str]) -> int:
    """What `run_train` does; raises what goes wrong."""
    arguments = readable(arguments)
    if folder := run_to_resume(arguments):
        return resume_in(folder, list(arguments))
    if (own := own_folder()) and not any(it.startswith(("--config-dir", "-cd")) for it in arguments):
        arguments = ["--config-dir", str(own), *arguments]
    register_resolvers()
    errors: list[Exception] = []
    began, typed = False, sys.argv
    register_attention(arguments)

    @hydra.main(version_base="1.3", config_path=str(CONF), config_name="train")
    def job(cfg: DictConfig) -> None:
        nonlocal began
        began = True
        sys.argv = typed  # what the run records, and what Lightning starts the processes of other devices with
        hydra_cfg = HydraConfig.get()
        given: Any = OmegaConf.to_container(hydra_cfg)  # unresolved: a folder may be called ${x}
        run, overrides = Path(given["runtime"]["output_dir"]), as_typed(given["overrides"]["task"])
        try:
            if hydra_cfg.mode == RunMode.MULTIRUN:
                raise ConfigError([Problem("hydra.mode", "-m or attnorm sweep starts several runs", "MULTIRUN")])
            train_in(run, cfg, overrides)
        except Exception as error:
            errors.append(error)  # raised here, it would make Hydra print a line of its own

    early = [dashed(arguments), completing(arguments), wrong_choices(arguments)]
    if problems := [problem for found in early for problem in found]:
        raise ConfigError(problems)
    sys.argv = [typed[0], *arguments]
    try:
        job()
    except OSError as error:
        if began or isinstance(error, HydraException):  # some of Hydra's exceptions are an OSError
            raise
        message = f"paths.log_dir: the run folder {error.filename} cannot be made: {error.strerror}"
        raise ConfigError([Problem.about("paths.log_dir", message)]) from error
    finally:
        sys.argv = typed
    if errors:
        raise errors[0]
    return 0


@to_the_end()
def train_in(run: Path, cfg: DictConfig, overrides: Sequence[str]) -> None:
    """Checks the configuration and trains."""
    from attnorm.progress import quiet_libraries

    quiet_libraries()
    try:
        start_composed(cfg, run, overrides)
    finally:
        remove_if_empty(run)  # under torchrun every rank's Hydra makes a folder of its own


def check_composed(cfg: DictConfig, overrides: Sequence[str] = ()) -> ResolvedConfig:
    """The checked configuration; raises ConfigError with all its problems. overrides: those of the command line."""
    return check_settings(plain_settings(cfg), overrides)


def remove_if_empty(folder: Path) -> None:
    """Takes back the folder <log_dir>/<task>/<attention>/<time> that Hydra made for a run that never started."""
    for level in (folder, *folder.parents[:3]):
        try:
            level.rmdir()
        except OSError:  # it holds something, or another run that failed has just removed it
            return
