"""Composing and checking the jobs of a sweep, in a process of its own.

`python -m attnorm.cli.check_jobs <configuration folder>...` reads a line of JSON with the overrides of a job from
standard input, writes a line with what it found to standard output, and ends when its input ends. The sweep itself
thereby needs neither PyTorch nor the parts that the jobs name, and several of these processes check many jobs faster.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from attnorm.errors import Problem, key_of

PER_PROCESS = 40  # jobs; starting a process takes as long as checking about this many


@dataclass
class Checked:
    """What the sweep has to know of a job.

    problems: pairs of a key and a sentence.
    key:      `run_key` of its configuration.
    monitor:  the metric that selects its best model, and mode whether "min" or "max" of it is best, as far as known.
    devices:  `trainer.devices` as it is set.
    gpus:     the GPUs of this machine that PyTorch sees if the job uses GPUs; [] if it runs on the CPU.
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


class Checker:
    """Processes that check jobs, used as a context manager.

    folders: the configuration folder, and those of `--config-dir`.
    """

    def __init__(self, folders: Sequence[Path]):
        self.command = [sys.executable, "-P", "-m", "attnorm.cli.check_jobs", *map(str, folders)]
        self.processes: list[subprocess.Popen] = []
        self.lock = threading.Lock()

    def __enter__(self) -> "Checker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the processes; they start again when they are needed."""
        processes, self.processes = self.processes, []
        for process in processes:
            with suppress(BrokenPipeError):
                process.stdin.close()  # type: ignore[union-attr]
            process.wait()

    def check(self, jobs: Sequence[Sequence[str]]) -> list[Checked]:
        """What is found out about each of these lists of overrides. Raises RuntimeError if a process dies."""
        wanted = min(len(os.sched_getaffinity(0)), 1 + len(jobs) // PER_PROCESS)
        while len(self.processes) < wanted:
            self.processes.append(
                subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
        free = list(self.processes)

        def one(overrides: Sequence[str]) -> Checked:
            with self.lock:
                process = free.pop()
            try:
                process.stdin.write(json.dumps(list(overrides)) + "\n")  # type: ignore[union-attr]
                process.stdin.flush()  # type: ignore[union-attr]
                line = process.stdout.readline()  # type: ignore[union-attr]
            finally:
                with self.lock:
                    free.append(process)
            if not line:
                raise RuntimeError(f"checking {' '.join(overrides)}: the process died with code {process.wait()}")
            found = Checked(**json.loads(line))
            found.problems = [(key, text) for key, text in found.problems]
            return found

        with ThreadPoolExecutor(len(self.processes)) as threads:
            return list(threads.map(one, jobs))


def main(folders: Sequence[str]) -> int:
    """Answers line after line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the sweep, and thereby the input of this process
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries and parts print must not mix with the answers
    from attnorm.run.trust import find_own_parts
    from attnorm.training.console import quiet_libraries

    find_own_parts("sweep", ())
    start_hydra(list(map(Path, folders)))
    quiet_libraries()
    for line in sys.stdin:
        print(json.dumps(asdict(check_job(json.loads(line), Path(folders[0])))), file=answers, flush=True)
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


def check_job(overrides: Sequence[str], conf: Path) -> Checked:
    """Composes one job and checks it."""
    from hydra import compose
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from attnorm.cli.errors import explain_hydra_error
    from attnorm.cli.train import check_composed
    from attnorm.config.arguments import as_typed, register_attention
    from attnorm.errors import ConfigError

    register_attention(overrides)
    try:
        return facts(check_composed(compose("train", list(overrides)), overrides=as_typed(overrides)).settings)
    except ConfigError as error:
        return Checked([(key_of(problem), str(problem)) for problem in error.problems])
    except (HydraException, OmegaConfBaseException) as error:
        return Checked([("", str(Problem.about("", explain_hydra_error(str(error), conf))))])


def facts(cfg: dict[str, Any]) -> Checked:
    """What a sweep has to know of a checked configuration."""
    import torch

    from attnorm.parts import class_of
    from attnorm.run.key import run_key
    from attnorm.tasks.task import Task

    trainer = cfg["trainer"]
    accelerator, devices = trainer.get("accelerator", "auto"), trainer.get("devices", "auto")
    uses_gpu = accelerator in ("gpu", "cuda") or (accelerator == "auto" and torch.cuda.is_available())
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    named = visible.split(",") if visible else [str(number) for number in range(torch.cuda.device_count())]
    objective = class_of("task", cfg["task"], Task).objective()
    monitor, mode = objective or (None, None)
    return Checked(
        key=run_key(cfg),
        task=cfg["task"]["name"],
        log_dir=cfg["paths"]["log_dir"],
        monitor=monitor,
        mode=mode,
        devices=devices,
        nodes=trainer.get("num_nodes") or 1,
        uses_gpu=uses_gpu,
        gpus=named if uses_gpu else [],
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
