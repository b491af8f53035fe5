"""`train.py`: composes a configuration, checks it and trains, once or once per job of a sweep."""

import sys
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import hydra
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import get_args_parser
from hydra.conf import HydraConf
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from attnorm.choices import own_folder
from attnorm.cli.errors import completing, dashed, exit_code, explain, to_the_end
from attnorm.cli.resume import continued, resume_in
from attnorm.config.arguments import AUTO, as_typed, readable, register_attention, run_to_resume, wrong_choices
from attnorm.config.renamed import renamed
from attnorm.errors import ConfigError, Problem
from attnorm.resolved import ResolvedConfig


def register_resolvers() -> None:
    """`${attention_label:}`: the name that a run is filed under, by what was resolved."""

    def label(*, _root_: DictConfig) -> str:
        from attnorm.attention.tables import check_attention
        from attnorm.config.resolve import model_sites, run_label, with_defaults

        groups = ("attention", "model", "data", "task")
        cfg = {key: OmegaConf.to_container(_root_[key], resolve=True) for key in groups if key in _root_}
        try:
            cfg = completed(with_defaults(cfg))
            problems = check_attention(cfg["attention"], model_sites(cfg), typed=())
        except ConfigError:
            return "unknown"
        return "unknown" if problems else run_label(cfg)

    OmegaConf.register_new_resolver("attention_label", label, replace=True)


def run_train(conf: Path, arguments: Sequence[str]) -> int:
    """`train.py`: composes the configuration from its arguments, checks it and trains. Returns the exit code.

    With -m, a job that fails does not stop the others, and a signal stops them all. With `resume=<run folder>`, the
    configuration is the one that the folder has recorded.
    """
    arguments = readable(arguments, multirun=not {"-m", "--multirun"}.isdisjoint(arguments))
    if folder := run_to_resume(arguments):
        return exit_code(partial(resume_in, folder, conf, list(arguments)), conf)
    if (own := own_folder()) and not any(it.startswith(("--config-dir", "-cd")) for it in arguments):
        arguments = ["--config-dir", str(own), *arguments]
    register_resolvers()
    errors: list[Exception] = []
    failed: dict[int, int] = {}  # exit codes by job
    began = False
    typed, started = sys.argv, f"{datetime.now():%Y-%m-%d_%H-%M-%S}"
    register_attention(arguments)

    @hydra.main(version_base="1.3", config_path=str(conf), config_name="train")
    def job(cfg: DictConfig) -> float | None:
        nonlocal began
        began = True
        sys.argv = typed  # what the run records, and what Lightning starts the processes of other devices with
        hydra_cfg = HydraConfig.get()
        runtime: Any = OmegaConf.to_container(hydra_cfg.runtime)  # unresolved: a folder may be called ${x}
        run, overrides = Path(runtime["output_dir"]), as_typed(hydra_cfg.overrides.task)
        multirun = hydra_cfg.mode == RunMode.MULTIRUN
        if multirun:
            number = int(hydra_cfg.job.num) + 1
            print(f"job {number}/{count_jobs(hydra_cfg, arguments)}: {' '.join(overrides)}", flush=True)
        try:
            return train_in(run, cfg, multirun, overrides, f"sweep {started}" if multirun else None)
        except Exception as error:
            if multirun:
                failed[number] = explain(error, conf)  # raises a bug again, which Hydra reports after the last job
            else:
                errors.append(error)  # raised here, it would make Hydra print a line of its own
            return None

    def all_jobs() -> int:
        early = [dashed(arguments, conf), renamed(arguments), completing(arguments), wrong_choices(arguments)]
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
        if failed:
            print(f"failed jobs: {', '.join(map(str, failed))}", file=sys.stderr)
        return max(failed.values(), default=0)

    return exit_code(all_jobs, conf)


def count_jobs(hydra_cfg: HydraConf, arguments: Sequence[str]) -> int:
    """The number of jobs of a sweep, by its command line and by the file in conf/hparams_search that was chosen."""
    params = [f"{key}={value}" for key, value in (hydra_cfg.sweeper.get("params") or {}).items()]
    typed = get_args_parser().parse_args(arguments).overrides
    parsed = OverridesParser.create().parse_overrides([*params, *typed])
    [jobs] = BasicSweeper.split_arguments(parsed, None)
    return len(jobs)


@to_the_end()
def train_in(
    run: Path, cfg: DictConfig, multirun: bool, overrides: Sequence[str], group: str | None = None
) -> float | None:
    """Checks the configuration and trains. group: the sweep that the run belongs to.

    Returns the best value of the metric that the task monitors.
    """
    from attnorm.training.console import quiet_libraries

    quiet_libraries()
    try:
        settings = plain_settings(cfg)
        checked = check_settings(settings, multirun, overrides)
        if checked["resume"] == AUTO and (changes := continued(checked)):
            checked = check_settings({**settings, **changes}, multirun, overrides)
        return start(checked, run, overrides, group)
    finally:
        remove_if_empty(run)  # under torchrun every rank's Hydra makes a folder of its own


def start(checked: ResolvedConfig, run: Path, overrides: Sequence[str], group: str | None = None) -> float | None:
    """Trains in the folder `run`, or in the folder of the run that continues."""
    from attnorm.analysis.figures import draw_run
    from attnorm.training.run_folder import claim_folder
    from attnorm.training.train import train

    continues = checked["resume"] not in (None, AUTO)
    folder = Path(checked["resume"]) if continues else claim_folder(run, checked["ckpt_path"])
    return train(checked, folder, overrides, draw=draw_run, group=group)


def check_composed(cfg: DictConfig, multirun: bool = False, overrides: Sequence[str] = ()) -> ResolvedConfig:
    """The checked configuration; raises ConfigError with all its problems. overrides: those of the command line."""
    return check_settings(plain_settings(cfg), multirun, overrides)


def plain_settings(cfg: DictConfig) -> dict[str, Any]:
    """The settings of a composed configuration. Raises ConfigError if one that must be given is missing."""
    missing = sorted(OmegaConf.missing_keys(cfg))
    if missing:
        raise ConfigError([Problem(key, f"must be given, as in {key}=<value>") for key in missing])
    settings: Any = OmegaConf.to_container(cfg, resolve=True)
    return settings


def check_settings(settings: dict[str, Any], multirun: bool = False, overrides: Sequence[str] = ()) -> ResolvedConfig:
    """The checked configuration; raises ConfigError with all its problems. overrides: those of the command line."""
    from attnorm.config.resolve import resolve, with_defaults
    from attnorm.config.validate import check
    from attnorm.run.warm_start import resolve_init

    plain = resolve_init(completed(with_defaults(settings)))
    if problems := check(plain, multirun, overrides):
        raise ConfigError(problems)
    return resolve(plain)


def completed(cfg: dict) -> dict:
    """The configuration with what follows from it for its task; as it is if there is no such task.

    Raises ConfigError if shares are to be those of a run that has none.
    """
    from attnorm.parts import class_of
    from attnorm.tasks.task import Task
    from attnorm.training.fixed_shares import with_fixed_shares

    cfg = {**cfg, "attention": with_fixed_shares(cfg["attention"])}
    try:
        return class_of("task", cfg["task"], Task).completed(cfg)
    except ConfigError:
        return cfg


def remove_if_empty(folder: Path) -> None:
    """Takes back the folder <log_dir>/<task>/<attention>/<time> that Hydra made for a run that never started."""
    for level in (folder, *folder.parents[:3]):
        try:
            level.rmdir()
        except OSError:  # it holds something, or another run that failed has just removed it
            return
