"""Composing and checking the jobs of a sweep, in a process of its own.

`python -m attnorm.cli.check_jobs <configuration folder>...` reads lines from standard input, each a JSON list of jobs
(the overrides of each), writes a line with what it found out about them, and ends when its input ends. The sweep itself
thereby needs neither PyTorch nor the parts that the jobs name.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from attnorm.errors import Problem, key_of
from attnorm.spec.settings import ResolvedConfig
from attnorm.sweeps.jobs import override_key


@dataclass
class Checked:
    """What the sweep has to know of a job.

    problems: pairs of a key and a sentence.
    key:      `run_key` of its configuration.
    monitor:  the metric that selects its best model, and mode whether "min" or "max" of it is best, as far as known.
    attention: the label of its attention.
    max_steps: its number of updates; None if it is not set as a number of updates.
    devices:  `trainer.devices` as it is set.
    named:    what `run.trust.in_need_of_trust` finds in it.
    gpus:     the GPUs of this machine that PyTorch sees if the job uses GPUs; [] if it runs on the CPU.
    modules:  the digests of the own modules on which it depends, by name.
    """

    problems: list[tuple[str, str]] = field(default_factory=list)
    key: str = ""
    task: str = ""
    log_dir: str = ""
    monitor: str | None = None
    mode: str | None = None
    attention: str = ""
    max_steps: int | None = None
    devices: Any = 1
    nodes: Any = 1
    uses_gpu: bool = False
    gpus: list[str] = field(default_factory=list)
    named: list[tuple[str, str]] = field(default_factory=list)
    modules: dict[str, str] = field(default_factory=dict)


class Checker:
    """A process that checks jobs, used as a context manager.

    folders: the configuration folder, and those of `--config-dir`.
    """

    def __init__(self, folders: Sequence[Path]):
        self.command = [sys.executable, "-P", "-m", "attnorm.cli.check_jobs", *map(str, folders)]
        self.process: subprocess.Popen[str] | None = None

    def __enter__(self) -> "Checker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the process; it starts again when it is needed."""
        if self.process is not None:
            with suppress(BrokenPipeError):
                self.process.communicate()
            self.process = None

    def check(self, jobs: Sequence[Sequence[str]]) -> list[Checked]:
        """What is found out about each of these lists of overrides. Raises RuntimeError if the process dies."""
        if self.process is None:
            self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdin is not None and self.process.stdout is not None  # both are pipes
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps([list(job) for job in jobs]) + "\n")
            self.process.stdin.flush()
        if not (line := self.process.stdout.readline()):
            raise RuntimeError(f"the process that checks jobs died with code {self.process.wait()}")
        pairs = ("problems", "named")
        return [Checked(**job | {name: list(map(tuple, job[name])) for name in pairs}) for job in json.loads(line)]


def main(folders: Sequence[str]) -> int:
    """Answers line after line."""
    for ignored in (signal.SIGINT, signal.SIGHUP):  # the terminal ends the sweep, and thereby the input of this process
        signal.signal(ignored, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries and parts print must not mix with the answers
    from attnorm.progress import quiet_libraries
    from attnorm.run.trust import find_own_parts

    find_own_parts("sweep", ())
    start_hydra(list(map(Path, folders)))
    quiet_libraries()
    for line in sys.stdin:
        found = [asdict(check_job(job)) for job in json.loads(line)]
        print(json.dumps(found), file=answers, flush=True)
    return 0


def start_hydra(folders: Sequence[Path]) -> None:
    """Prepares Hydra's `compose`. folders: the configuration folder, and those of `--config-dir`."""
    from hydra import version
    from hydra._internal.hydra import Hydra
    from hydra._internal.utils import create_config_search_path
    from hydra.core.config_search_path import SearchPathQuery
    from hydra.core.global_hydra import GlobalHydra

    from attnorm.cli.train import register_resolvers

    register_resolvers()
    version.setbase("1.3")
    conf, *more = folders
    search_path = create_config_search_path(str(conf))
    for folder in more:
        search_path.prepend("command-line", f"file://{folder.absolute()}", SearchPathQuery(provider="schema"))
    GlobalHydra.instance().clear()
    Hydra.create_main_hydra2("train", search_path)


def check_job(overrides: Sequence[str]) -> Checked:
    """Composes one job and checks it."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from attnorm.cli.errors import explain_hydra_error
    from attnorm.cli.train import check_composed
    from attnorm.errors import ConfigError
    from attnorm.spec.compose import as_typed, register_attention

    register_attention(overrides)
    try:
        return facts(check_composed(composed(overrides), overrides=as_typed(overrides)))
    except ConfigError as error:
        return Checked([(key_of(problem), str(problem)) for problem in error.problems])
    except (HydraException, OmegaConfBaseException) as error:
        return Checked([("", str(Problem.about("", explain_hydra_error(str(error)))))])


def composed(overrides: Sequence[str]) -> DictConfig:
    """The composed configuration of a job: what its files give, with single keys set as Hydra sets them.

    The jobs of a sweep share few choices of files, and composing files takes most of the time of a check.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser

    keys = []
    for override in overrides:
        name = override_key(override)
        if name not in groups() and not name.startswith(("~", "hydra.")) and not {"/", "@"} & set(name):
            keys.append(override)
    cfg = of_files(*[override for override in overrides if override not in keys]).copy()
    for parsed in OverridesParser.create().parse_overrides(keys):
        OmegaConf.update(cfg, parsed.key_or_group, parsed.value(), force_add=True)
    return cfg


@cache
def groups() -> set[str]:
    """The groups of files at the top level."""
    from hydra.core.global_hydra import GlobalHydra

    return set(GlobalHydra.instance().config_loader().list_groups(""))


@cache
def of_files(*overrides: str) -> DictConfig:
    """What the files that these overrides choose give."""
    from hydra import compose

    return compose("train", list(overrides))


def facts(config: ResolvedConfig) -> Checked:
    """What a sweep has to know of a checked configuration."""
    import torch

    from attnorm.run.key import code_of, run_key
    from attnorm.run.trust import in_need_of_trust

    accelerator = config.trainer.accelerator
    uses_gpu = accelerator in ("gpu", "cuda") or (accelerator == "auto" and torch.cuda.is_available())
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    named = visible.split(",") if visible else [str(number) for number in range(torch.cuda.device_count())]
    monitor, mode = config.task_class.objective() or (None, None)
    return Checked(
        key=run_key(config.settings),
        task=config.task.name,
        log_dir=config.paths.log_dir,
        monitor=monitor,
        mode=mode,
        attention=config.label,
        max_steps=None if config.trainer.max_epochs or config.trainer.fast_dev_run else config.max_steps,
        devices=config.trainer.devices,
        nodes=config.trainer.num_nodes or 1,
        uses_gpu=uses_gpu,
        gpus=named if uses_gpu else [],
        named=sorted(in_need_of_trust(config.settings)),
        modules=code_of(config.settings),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
