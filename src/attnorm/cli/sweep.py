"""`attnorm sweep`: checks all jobs of a sweep, runs them, and says what has become of them."""

import hashlib
import os
import shlex
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from attnorm.cli.check_jobs import Checked, Checker
from attnorm.cli.errors import exit_code
from attnorm.cli.read_sweep import SweepCommand, read_sweep
from attnorm.cli.report import write_report_of_sweep
from attnorm.errors import ConfigError, Problem
from attnorm.progress import console
from attnorm.run.opened_folder import opened
from attnorm.run.state import FolderLock
from attnorm.sweeps.jobs import Job, expand, label_of, name_of, sweep_name
from attnorm.sweeps.launchers.base import Launcher
from attnorm.sweeps.process import TRAIN
from attnorm.sweeps.record import SweepRecord
from attnorm.sweeps.scheduler import Grid, Plan, Scheduler
from attnorm.sweeps.state import SWEEP_LOCK, JobState, Journal
from attnorm.sweeps.table import View, print_results

NAMED_JOBS = 3  # jobs that the message on a problem names


def run_sweep(conf: Path, arguments: Sequence[str]) -> int:
    """`attnorm sweep <arguments>`. Returns the exit code: 0 only if all jobs have finished."""
    if not arguments or {"--help", "-h"} & set(arguments):
        print((conf / "sweep.yaml").read_text(), end="")
        print("\n# The keys of the runs: attnorm train --help")
        return 0
    return exit_code(lambda: sweep(read_sweep(conf, arguments)), conf)


def sweep(command: SweepCommand) -> int:
    """Checks the jobs and runs them."""
    with ExitStack() as stack:
        checker = stack.enter_context(Checker(command.folders))
        started = time.monotonic()
        samples = sample_jobs(command)
        facts = checker.check(samples)
        if problems := problems_of(command, samples, facts):
            raise ConfigError(problems)
        seconds = time.monotonic() - started
        folder = sweep_folder(command, facts)
        if folder.exists():
            opened(folder)
        lock = FolderLock(folder, SWEEP_LOCK)
        console.print(f"sweep folder: {folder}", markup=False)
        take_over(folder, lock)
        stack.callback(lock.release)
        journal = Journal(folder)
        journal.add("open", command=command.arguments)
        if command.settings.is_search:
            plan: Plan = search_plan(command, folder, journal, checker, facts)
            keys = ", ".join(override.key_or_group for override in command.space)
            console.print(f"checked the values of {keys} in {seconds:.0f} s", markup=False)
        else:
            checker.close()
            jobs = grid_jobs(command, folder, journal, samples, facts)
            same = f"; {len(samples) - len(jobs)} of them equal another one" if len(jobs) < len(samples) else ""
            console.print(f"checked {len(samples)} jobs in {seconds:.0f} s{same}")
            plan = Grid(jobs)
        launcher = make_launcher(command, folder, facts)
        record = SweepRecord(folder, shlex.join(["attnorm", "sweep", *command.arguments]), plan, journal, facts[0].mode)
        record.write(record.results())
        try:
            with View(plan, journal) as view:
                show, said = both(view.show, record.refresh), both(view.said, record.note)
                stopped_by = Scheduler(plan, launcher, journal, command.settings.retries, show, said, view.stops).run()
        finally:
            launcher.close()
        code = close(folder, record, stopped_by)
        journal.add("close", code=code)
        return code


def both(first: Callable[..., None], second: Callable[..., None]) -> Callable[..., None]:
    """A function that calls two functions."""

    def call(*arguments: Any) -> None:
        first(*arguments)
        second(*arguments)

    return call


def sample_jobs(command: SweepCommand) -> list[tuple[str, ...]]:
    """The jobs that are checked before the first one starts: all of a grid. Of a search, one for each choice and for
    both ends of each interval, with the first value of the other keys."""
    if not command.settings.is_search:
        return expand(command.overrides)
    space = dimensions(command)
    first = {it.key: it.extremes()[0] for it in space}
    varied = [first] + [{**first, it.key: value} for it in space for value in it.extremes()[1:]]
    return [with_values(command, values) for values in varied]


def dimensions(command: SweepCommand) -> list:
    """The keys that a search varies. Raises ConfigError if Optuna is missing."""
    try:
        from attnorm.sweeps.search import Dimension
    except ImportError as error:
        if error.name != "optuna":
            raise
        message = "needs the package optuna; install it with: pip install attnorm[optuna]"
        raise ConfigError([Problem("search", message, command.settings.search)]) from error
    return [Dimension(override) for override in command.space]


def with_values(command: SweepCommand, values: dict[str, str]) -> tuple[str, ...]:
    """The overrides of a job, given those of the searched keys."""
    keys = [override.get_key_element() for override in command.overrides]
    return tuple(values.get(key, it.input_line or "") for key, it in zip(keys, command.overrides, strict=True))


def problems_of(command: SweepCommand, jobs: Sequence[tuple[str, ...]], facts: Sequence[Checked]) -> list[Problem]:
    """The problems of all jobs: each once, with the jobs that have it."""
    found: dict[tuple[str, str], list[str]] = {}
    local = command.settings.launcher == "local"
    for job, checked in zip(jobs, facts, strict=True):
        there = checked.problems if checked.problems else device_problems(checked, local)
        for key, text in there:
            found.setdefault((key, text), []).append(label_of(job, command.space))
    problems = []
    for (key, text), labels in found.items():
        more = f" and {len(labels) - NAMED_JOBS} more" if len(labels) > NAMED_JOBS else ""
        where = "" if len(labels) == len(jobs) else f" (in {'; '.join(labels[:NAMED_JOBS])}{more})"
        problems.append(Problem.about(key, f"{text}{where}"))
    return problems


def device_problems(checked: Checked, local: bool) -> list[tuple[str, str]]:
    """What keeps a sweep from giving a job the devices that it asks for."""
    key, devices, there = "trainer.devices", checked.devices, len(checked.gpus)
    if checked.nodes != 1:
        return [("trainer.num_nodes", f"trainer.num_nodes={checked.nodes}: each job of a sweep runs on one machine")]
    if isinstance(devices, list) or (isinstance(devices, str) and "," in devices):
        return [(key, f"{key}={devices}: a sweep chooses the devices; give their number")]
    if local and checked.uses_gpu and count_devices(checked) > there:
        return [(key, f"{key}={devices}: this machine has {there} GPUs")]
    return []


def count_devices(checked: Checked) -> int:
    """The number of processes of a job."""
    if checked.devices in (-1, "-1"):
        return max(1, len(checked.gpus))
    return 1 if checked.devices in (None, "auto") else int(checked.devices)


def sweep_folder(command: SweepCommand, facts: Sequence[Checked]) -> Path:
    """`dir`, or a folder whose name follows from the overrides."""
    settings = command.settings
    if settings.dir is not None:
        return Path(settings.dir)
    of_search = [f"search={settings.search}", f"search_seed={settings.search_seed}"] if settings.is_search else []
    name = sweep_name((checked.task for checked in facts), [*command.texts(), *of_search])
    return Path(facts[0].log_dir) / "sweeps" / name


def take_over(folder: Path, lock: FolderLock) -> None:
    """Takes the lock of the sweep folder. While another sweep holds it, shows how far that one has come."""
    if lock.acquire(patience=0.3):
        return
    console.print(f"another sweep (process {lock.holder()}) is at work in this folder; waiting for it to end")
    journal, plan = Journal(folder), Grid([])
    with View(plan, journal) as view:
        while not lock.acquire(patience=0.2):
            journal.reload()
            plan.jobs = [
                Job(it["name"], it["key"], it["label"], tuple(it["overrides"]), folder / it["name"])
                for it in journal.added()
            ]
            plan.total = len(plan.jobs)
            view.show()


def grid_jobs(
    command: SweepCommand, folder: Path, journal: Journal, combinations: Sequence[tuple[str, ...]], facts: list[Checked]
) -> list[Job]:
    """The jobs of a grid, each once. Jobs that the folder has already keep their names."""
    names, jobs = journal.names(), {}
    for overrides, checked in zip(combinations, facts, strict=True):
        label, key = label_of(overrides, command.space), checked.key
        if key not in jobs:
            name = names.get(key) or name_of(label, key)
            jobs[key] = job_of(command, folder, name, key, label, overrides, checked)
            if key not in names:
                journal.add("job", name, key=key, label=label, overrides=overrides)
    return list(jobs.values())


def job_of(
    command: SweepCommand, folder: Path, name: str, key: str, label: str, overrides: Sequence[str], checked: Checked
) -> Job:
    """A job of the sweep in `folder`."""
    arguments = (*command.options, *overrides)
    return Job(name, key, label, arguments, folder / name, count_devices(checked), checked.uses_gpu)


def search_plan(
    command: SweepCommand, folder: Path, journal: Journal, checker: Checker, facts: Sequence[Checked]
) -> Plan:
    """The trials of a search."""
    from attnorm.sweeps.search import Search

    settings, [first, *_] = command.settings, facts
    if first.monitor is None or first.mode is None:
        message = "a search needs to know the metric: annotate the return type of its method `module`"
        raise ConfigError([Problem("task._target_", message)])

    def make_job(number: int, values: Sequence[str]) -> Job:
        overrides = with_values(command, {value.partition("=")[0]: value for value in values})
        label = label_of(overrides, command.space)
        if number in journal.trials:
            known = journal.trials[number]
            return job_of(command, folder, known["name"], known["key"], label, overrides, first)
        [checked] = checker.check([overrides])
        # a combination that is wrong although each of its values is not: the run says why
        key = checked.key or hashlib.sha256(" ".join(overrides).encode()).hexdigest()
        name = f"trial-{number:04}_{name_of(label, key)}"
        journal.add("job", name, key=key, label=label, overrides=overrides, trial=number)
        return job_of(command, folder, name, key, label, overrides, first)

    return Search(
        folder,
        dimensions(command),
        make_job,
        about=[*command.texts(), f"search={settings.search}", f"search_seed={settings.search_seed}"],
        total=settings.trials or 0,
        algorithm=settings.search,
        seed=settings.search_seed,
        pruner=settings.pruner,
        monitor=first.monitor,
        mode=first.mode,
        parallel=(settings.jobs or 1) > 1,
    )


def make_launcher(command: SweepCommand, folder: Path, facts: Sequence[Checked]) -> Launcher:
    """The launcher that the settings ask for."""
    settings = command.settings
    if settings.launcher == "submitit":
        from attnorm.sweeps.launchers.submitit import SubmititLauncher

        return SubmititLauncher(folder, settings.submitit, settings.jobs, TRAIN)
    if settings.launcher == "ray":
        from attnorm.sweeps.launchers.ray import RayLauncher

        return RayLauncher(settings.ray, settings.jobs, TRAIN)
    from attnorm.sweeps.launchers.local import LocalLauncher, Places

    gpus = next((checked.gpus for checked in facts if checked.uses_gpu), [])
    most = max((count_devices(checked) for checked in facts if checked.uses_gpu), default=1)
    jobs = settings.jobs or max(1, len(gpus) // most)
    return LocalLauncher(Places(jobs, list(os.sched_getaffinity(0)), gpus), TRAIN)


def close(folder: Path, record: SweepRecord, stopped_by: int) -> int:
    """Writes sweep.json, prints the closing table and how to continue, and returns the exit code."""
    results = record.results()
    left = record.unfinished(results)
    code = 128 + stopped_by if stopped_by else int(left > 0)
    record.write(results, code)
    print_results(results)
    if left:
        saved = "saved; " if any(result.state is JobState.INTERRUPTED for result in results) else ""
        sentence = f"{left} of {record.plan.total} jobs are unfinished"
        console.print(f"{sentence}; {saved}repeat the command to continue: {record.command}", markup=False)
    write_report_of_sweep(folder)
    console.print(f"sweep folder: {folder}", markup=False)
    return code
