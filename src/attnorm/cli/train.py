"""What the front doors share: Hydra's errors with the nearest name, users' errors without a traceback."""

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import hydra
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from attnorm.config.arguments import readable
from attnorm.config.trust import keep_off_path
from attnorm.errors import ConfigError, Interrupted
from attnorm.imports import nearest


def register_resolvers() -> None:
    """`${attention_label:}`: the name that a run is filed under, by what was resolved."""

    def label(*, _root_: DictConfig) -> str:
        from attnorm.attention.build import check_attention
        from attnorm.config.validate import model_attention, model_sites, run_label
        from attnorm.tasks.task import completed

        groups = ("attention", "model", "data", "task")
        cfg = completed({key: OmegaConf.to_container(_root_[key], resolve=True) for key in groups})
        try:
            attention, sites = model_attention(cfg), model_sites(cfg)
        except ValueError:
            return "unknown"
        return "unknown" if check_attention(attention, sites) else run_label(cfg)

    OmegaConf.register_new_resolver("attention_label", label, replace=True)


def run_train(conf: Path) -> int:
    """`train.py`: composes the configuration from the command line, checks it, trains. Returns the exit code.

    With -m, a job that fails does not stop the others, and a signal stops them all.
    """
    register_resolvers()
    errors: list[Exception] = []
    failed: dict[int, int] = {}  # exit codes by job
    typed = sys.argv
    arguments = readable(typed[1:], multirun=not {"-m", "--multirun"}.isdisjoint(typed))

    @hydra.main(version_base="1.3", config_path=str(conf), config_name="train")
    def job(cfg: DictConfig) -> float | None:
        sys.argv = typed  # what the run records, and what Lightning starts the processes of other devices with
        hydra_cfg = HydraConfig.get()
        runtime = OmegaConf.to_container(hydra_cfg.runtime)  # unresolved: a folder may be called ${x}
        run, overrides = Path(runtime["output_dir"]), list(hydra_cfg.overrides.task)
        multirun = hydra_cfg.mode == RunMode.MULTIRUN
        if multirun:
            number = int(hydra_cfg.job.num) + 1
            print(f"job {number}/{count_jobs(hydra_cfg, arguments)}: {' '.join(overrides)}", flush=True)
        try:
            return train_in(run, cfg, multirun, overrides)
        except Exception as error:
            if multirun:
                failed[number] = explain(error, conf)  # raises a bug again, which Hydra reports after the last job
            else:
                errors.append(error)  # raised here, it would make Hydra print a line of its own
            return None

    def all_jobs() -> int:
        sys.argv = [typed[0], *arguments]
        try:
            job()
        finally:
            sys.argv = typed
        if errors:
            raise errors[0]
        if failed:
            print(f"failed jobs: {', '.join(map(str, failed))}", file=sys.stderr)
        return max(failed.values(), default=0)

    return exit_code(all_jobs, conf)


def count_jobs(hydra_cfg: DictConfig, arguments: Sequence[str]) -> int:
    """The number of jobs of a sweep, by its command line and by the file in conf/hparams_search that was chosen."""
    params = [f"{key}={value}" for key, value in (hydra_cfg.sweeper.get("params") or {}).items()]
    typed = get_args_parser().parse_args(arguments).overrides
    parsed = OverridesParser.create().parse_overrides([*params, *typed])
    [jobs] = BasicSweeper.split_arguments(parsed, None)
    return len(jobs)


def train_in(run: Path, cfg: DictConfig, multirun: bool, overrides: Sequence[str]) -> float | None:
    """Checks the configuration, trains, and draws the curves, also of a run that was stopped.

    Returns the best value of the metric that the task monitors.
    """
    from attnorm.training.console import quiet_libraries

    quiet_libraries()
    try:
        checked = check_composed(cfg, multirun, overrides)
        from pytorch_lightning.utilities import rank_zero_only

        from attnorm.analysis.figures import draw_run
        from attnorm.training.run_folder import claim_folder
        from attnorm.training.train import train

        claimed = claim_folder(run, checked["ckpt_path"])
        try:
            return train(checked, claimed, overrides).get("best_value")
        finally:
            rank_zero_only(draw_run)(claimed)
    finally:
        remove_if_empty(run)  # under torchrun every rank's Hydra makes a folder of its own


def run_door(conf: Path, name: str) -> int:
    """`eval.py` and `generate.py`: their settings are those of conf/<name>.yaml; the rest changes the run's config."""
    arguments = sys.argv[1:]
    if not arguments or {"--help", "-h"} & set(arguments):
        print((conf / f"{name}.yaml").read_text(), end="")
        return 0

    def job() -> int:
        for argument in arguments:
            if argument.startswith("run="):  # before anything else is imported
                keep_off_path(argument.removeprefix("run=").strip("'\""))
        with quiet_ends():
            from attnorm.cli import evaluate as doors

            defaults = OmegaConf.to_container(OmegaConf.load(conf / f"{name}.yaml"))
            {"eval": doors.evaluate, "generate": doors.generate}[name](arguments, defaults, conf)
        return 0

    return exit_code(job, conf)


@contextmanager
def quiet_ends() -> Iterator[None]:
    """Exits without a traceback: with code 143 on SIGTERM, also while libraries are being imported, and with code 141
    (128 + SIGPIPE) when the reader of standard output has closed it. (`exit_code` returns 130 on SIGINT.)"""

    def stop(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except BrokenPipeError:
        # What is still in the buffer must go somewhere when Python flushes it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(128 + signal.SIGPIPE) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def check_composed(cfg: DictConfig, multirun: bool = False, overrides: Sequence[str] = ()) -> dict:
    """The configuration as plain values; raises ConfigError with all its problems. overrides: what was typed."""
    missing = sorted(OmegaConf.missing_keys(cfg))
    if missing:
        raise ConfigError([f"{key}: has to be given, as {key}=<value>" for key in missing])
    from attnorm.config.validate import check, removed
    from attnorm.config.warm_start import complete
    from attnorm.tasks.task import completed

    if problems := removed(overrides):
        raise ConfigError(problems)
    plain = complete(completed(OmegaConf.to_container(cfg, resolve=True)))
    if problems := check(plain, multirun, overrides):
        raise ConfigError(problems)
    return plain


def exit_code(job: Callable[[], int], conf: Path) -> int:
    """Runs a job and returns its exit code; what a user got wrong is a message and 2, a signal is 128 + its number.

    With HYDRA_FULL_ERROR=1 in the environment every error shows its traceback.
    """
    typed = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # lets Hydra's exceptions through to here, to add the nearest name
    try:
        return job()
    except Exception as error:
        if typed == "1":
            raise
        return explain(error, conf)
    except Interrupted as stopped:
        if os.environ.get("LOCAL_RANK", "0") == "0":
            advice = "to resume, repeat the command with ckpt_path=<run folder>/checkpoints/last.ckpt"
            print(f"{stopped}; {advice}", file=sys.stderr)
        return 128 + stopped.signal_number
    except KeyboardInterrupt:
        return 130
    finally:
        os.environ.pop("HYDRA_FULL_ERROR")
        if typed is not None:
            os.environ["HYDRA_FULL_ERROR"] = typed


def explain(error: Exception, conf: Path) -> int:
    """Says what a user got wrong and returns the exit code; an error that is ours is raised again."""
    if isinstance(error, ConfigError):
        for problem in error.problems:
            print(f"error: {problem}", file=sys.stderr)
        return 2
    if isinstance(error, (HydraException, OmegaConfBaseException)):
        print(f"error: {in_our_words(str(error), conf)}", file=sys.stderr)
        return 2
    if not is_users(error):
        raise error
    print(f"error: {error}\n(HYDRA_FULL_ERROR=1 in the environment shows where)", file=sys.stderr)
    return 1


def is_users(error: Exception) -> bool:
    """Whether the message alone says what to do: bad data, a full disk, a loss that left the numbers."""
    return isinstance(error, (ValueError, OSError)) or type(error).__name__ == "NonFiniteLoss"


def in_our_words(message: str, conf: Path) -> str:
    """What Hydra said, and what was meant where that can be told."""
    found = re.search(r"(?:Could not override|overriding|full_key:|Key) '?([\w./]+)'?", message)
    if found and (owners := known_keys(conf).get(found[1])):  # Hydra would advise to append the key
        return f"{message.splitlines()[0]}\n{found[1]} is a key of {' and '.join(owners)}."
    return "\n".join(filter(None, [message, near_key(message, found and found[1], conf)]))


def near_key(message: str, key: str | None, conf: Path) -> str:
    """A line with the name nearest to the one that Hydra did not find, or ''."""
    if found := re.search(r"Could not find '([\w/]+)/([\w.-]+)'", message):
        group, name = found.groups()
        return nearest(name, (file.stem for file in (conf / group).glob("*.yaml"))).strip()
    if not key:
        return ""
    groups = [] if "." in key else [folder.name for folder in conf.iterdir() if folder.is_dir()]
    return nearest(key, [name for name in (*known_keys(conf), *groups) if not name.startswith("hydra")]).strip()


def known_keys(conf: Path) -> dict[str, list[str]]:
    """Every key of every file in conf/, as it is typed, and the choices that it comes with, such as data=vqa_v2."""

    def keys(node, prefix: str):
        for name, value in node.items():
            if name != "defaults":
                yield f"{prefix}{name}"
                if isinstance(value, dict):
                    yield from keys(value, f"{prefix}{name}.")

    found: dict[str, list[str]] = {}
    for file in sorted(conf.rglob("*.yaml")):
        content = OmegaConf.to_container(OmegaConf.load(file)) or {}
        is_global = file.parent == conf or "@package _global_" in file.read_text()
        for key in keys(content, "" if is_global else f"{file.parent.name}."):
            found.setdefault(key, []).extend([] if is_global else [f"{file.parent.name}={file.stem}"])
    return dict(sorted(found.items()))


def remove_if_empty(folder: Path) -> None:
    """Takes back the folder <log_dir>/<task>/<attention>/<time> that Hydra made for a run that never started."""
    for level in (folder, *folder.parents[:3]):
        if not level.is_dir() or any(level.iterdir()):
            return
        level.rmdir()
