"""Composing and checking the jobs of a sweep, in a process of its own.

`python -m attnorm.sweeps.check <configuration folder>...` reads lines from standard input, each with a question and the
jobs that it is about (the overrides of each) in JSON, writes a line with what it found out about them, and ends when
its input ends. The sweep itself thereby needs neither PyTorch nor the parts that the jobs name.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from attnorm.choices import CONF
from attnorm.config.compose import compose_files, composed, plain_settings
from attnorm.config.hydra_errors import explained
from attnorm.errors import ConfigError, Problem, UserError, key_of
from attnorm.sweeps.jobs import as_typed

if TYPE_CHECKING:
    from attnorm.settings import Settings


@dataclass
class CheckedJob:
    """What the sweep has to know of a job.

    problems: pairs of a key and a sentence.
    key:      `run_key` of its configuration.
    monitor:  the metric that selects its best model, and mode whether "min" or "max" of it is best, as far as known.
    devices:  `trainer.devices` as it is set.
    named:    what `run.trust.in_need_of_trust` finds in it.
    gpus:     the GPUs of this machine that PyTorch sees if the job uses GPUs; [] if it runs on the CPU.
    modules:  the digests of the own modules that are loaded after the check, by name.
    """

    problems: list[tuple[str, str]] = field(default_factory=list)
    key: str = ""
    task: str = ""
    log_dir: str = ""
    monitor: str | None = None
    mode: str | None = None
    devices: Any = 1
    nodes: Any = 1
    uses_gpu: bool = False
    gpus: list[str] = field(default_factory=list)
    named: list[tuple[str, str]] = field(default_factory=list)
    modules: dict[str, str] = field(default_factory=dict)

    @property
    def metric(self) -> tuple[str, str]:
        """The metric that selects its best model, and whether "min" or "max" of it is best. Raises ConfigError if they
        are not known."""
        if self.monitor is None or self.mode is None:
            message = "tuning needs to know the metric: annotate the return type of its method `module`"
            raise ConfigError([Problem("task._target_", message)])
        return self.monitor, self.mode

    @property
    def processes(self) -> int:
        """The number of its processes."""
        if self.devices in (-1, "-1"):
            return max(1, len(self.gpus))
        return 1 if self.devices in (None, "auto") else int(self.devices)

    def problems_in(self, launcher: str) -> list[tuple[str, str]]:
        """Its own problems, or else what keeps a sweep from giving it its devices. launcher: as in `SweepSettings`."""
        key, devices = "trainer.devices", self.devices
        if self.problems:
            return self.problems
        if self.nodes != 1:
            return [("trainer.num_nodes", f"trainer.num_nodes={self.nodes}: each job of a sweep runs on one machine")]
        if isinstance(devices, list) or (isinstance(devices, str) and "," in devices):
            return [(key, f"{key}={devices}: a sweep chooses the devices; give their number")]
        if launcher == "local" and self.uses_gpu and self.processes > len(self.gpus):
            return [(key, f"{key}={devices}: this machine has {len(self.gpus)} GPUs")]
        return []


@dataclass
class Sized:
    """The size of a job, see `attnorm.training.size.Size`. problem: why it is not known."""

    parameters: int = 0
    flops_per_token: float = 0.0
    tokens: float = 0.0
    updates_per_epoch: int = 0
    validation: int = 1
    problem: str = ""


class Checker:
    """A process that checks jobs, used with `closing`.

    folders: the configuration folder, and those of `--config-dir`.
    """

    def __init__(self, folders: Sequence[Path]):
        self.command = [sys.executable, "-P", "-m", "attnorm.sweeps.check", *map(str, folders)]
        self.process: subprocess.Popen[str] | None = None

    def close(self) -> None:
        """Ends the process; it starts again when it is needed."""
        if self.process is not None:
            with suppress(BrokenPipeError):
                self.process.communicate()
            self.process = None

    def check(self, jobs: Sequence[Sequence[str]]) -> list[CheckedJob]:
        """What is found out about each of these lists of overrides. Raises RuntimeError if the process dies."""
        pairs = ("problems", "named")
        answers = self._answers("check", jobs)
        return [CheckedJob(**job | {name: list(map(tuple, job[name])) for name in pairs}) for job in answers]

    def sizes(self, jobs: Sequence[Sequence[str]]) -> list[Sized]:
        """The sizes of jobs whose settings are right. Their data are prepared for it.

        Raises UserError for data that cannot be used, and RuntimeError if the process dies.
        """
        sizes = [Sized(**job) for job in self._answers("size", jobs)]
        if problems := [size.problem for size in sizes if size.problem]:
            raise UserError(problems[0])
        return sizes

    def _answers(self, question: str, jobs: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
        if self.process is None:
            self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdin is not None and self.process.stdout is not None  # both are pipes
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps([question, [list(job) for job in jobs]]) + "\n")
            self.process.stdin.flush()
        if not (line := self.process.stdout.readline()):
            raise RuntimeError(f"the process that checks jobs died with code {self.process.wait()}")
        return json.loads(line)


def main(folders: Sequence[str]) -> int:
    """Answers line after line."""
    for ignored in (signal.SIGINT, signal.SIGHUP):  # the terminal ends the sweep, and thereby the input of this process
        signal.signal(ignored, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries and parts print must not mix with the answers
    from attnorm.progress import quiet_libraries
    from attnorm.run.trust import find_own_parts

    find_own_parts("sweep", ())
    quiet_libraries()
    places, of_files = [*map(Path, folders)], cache(compose_files)  # the jobs of a sweep share few choices of files
    for line in sys.stdin:
        question, jobs = json.loads(line)
        answer = check_job if question == "check" else size_job
        print(json.dumps([asdict(answer(job, places, of_files)) for job in jobs]), file=answers, flush=True)
    return 0


def check_job(
    overrides: Sequence[str], folders: Sequence[Path] = (CONF,), of_files: Callable[..., DictConfig] = compose_files
) -> CheckedJob:
    """Composes one job and checks it. folders, of_files: as in `composed`."""
    from attnorm.run.record import run_key
    from attnorm.run.trust import in_need_of_trust
    from attnorm.source_code import own_modules
    from attnorm.training.environment import gpus_for

    try:
        config = config_of(overrides, folders, of_files)
    except ConfigError as error:
        return CheckedJob([(key_of(problem), str(problem)) for problem in error.problems])
    gpus = gpus_for(config.trainer.accelerator)
    monitor, mode = config.task_class(config).selector or (None, None)
    return CheckedJob(
        key=run_key(config.settings),
        task=config.task.name,
        log_dir=config.paths.log_dir,
        monitor=monitor,
        mode=mode,
        devices=config.trainer.devices,
        nodes=config.trainer.num_nodes or 1,
        uses_gpu=gpus is not None,
        gpus=gpus or [],
        named=sorted(in_need_of_trust(config.settings)),
        modules=own_modules(),
    )


def size_job(overrides: Sequence[str], folders: Sequence[Path], of_files: Callable[..., DictConfig]) -> Sized:
    """The size of a job. The arguments are those of `check_job`."""
    from attnorm.training.size import size_of

    try:
        return Sized(**asdict(size_of(config_of(overrides, folders, of_files))))
    except UserError as error:
        return Sized(problem=str(error))


def config_of(overrides: Sequence[str], folders: Sequence[Path], of_files: Callable[..., DictConfig]) -> "Settings":
    """Composes one job. Raises ConfigError for what is wrong with it."""
    from attnorm.config.read import read_settings

    with explained():
        settings = plain_settings(composed(overrides, folders, of_files))
    return read_settings(settings, as_typed(overrides), trains=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
