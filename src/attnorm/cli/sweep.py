"""`attnorm sweep`: checks all jobs of a sweep, runs them, and says what has become of them."""

import hashlib
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnorm.choices import CONF
from attnorm.cli.check_jobs import Checked, Checker
from attnorm.cli.errors import exit_code
from attnorm.cli.measure_cost import measure
from attnorm.cli.read_sweep import SweepCommand, read_sweep
from attnorm.cli.report import write_report_of_sweep
from attnorm.cli.sweep_jobs import (
    Overrides,
    arm_of,
    count_devices,
    dimensions,
    grid_jobs,
    job_of,
    metric_of,
    problems_of,
    refuse_other_budget,
    refuse_other_code,
    sample_jobs,
    tuned,
    values_to_try,
    with_updates,
    with_values,
)
from attnorm.errors import ConfigError
from attnorm.progress import console
from attnorm.run.folder import COST, FolderLock, opened
from attnorm.sweeps.cost import ArmCost, record_of, recorded_costs, refuse_other_total
from attnorm.sweeps.jobs import Job, label_of, name_of, sweep_name
from attnorm.sweeps.launchers.base import Launcher
from attnorm.sweeps.process import TRAIN
from attnorm.sweeps.record import SweepRecord
from attnorm.sweeps.scheduler import Grid, Plan, Scheduler, both
from attnorm.sweeps.state import SWEEP_LOCK, JobState, Journal
from attnorm.sweeps.table import View, print_costs, print_results, print_tuning
from attnorm.sweeps.tuning import Choice, Tuned, TunedArm, put_back

if TYPE_CHECKING:
    from attnorm.sweeps.search import Search


def run_sweep(arguments: Sequence[str]) -> int:
    """`attnorm sweep <arguments>`. Returns the exit code: 0 only if all jobs have finished."""
    if not arguments or {"--help", "-h"} & set(arguments):
        print((CONF / "sweep.yaml").read_text(), end="")
        print("\n# The keys of the runs: attnorm train --help")
        return 0
    return exit_code(lambda: sweep(read_sweep(arguments)))


def sweep(command: SweepCommand) -> int:
    """Checks the jobs and runs them."""
    with ExitStack() as stack:
        checker = stack.enter_context(Checker(command.folders))
        started = time.monotonic()
        samples = sample_jobs(command)
        facts = checker.check(samples)
        if problems := problems_of(command, samples, facts):
            raise ConfigError(problems)
        seconds, folder = time.monotonic() - started, sweep_folder(command, facts)
        if folder.exists():
            refuse_other_code(Journal(opened(folder)), facts)
        lock = FolderLock(folder, SWEEP_LOCK)
        console.print(f"sweep folder: {folder}", markup=False)
        take_over(folder, lock)
        stack.callback(lock.release, unchanged=True)
        journal = Journal(folder, deferred=True)
        journal.add("open", command=command.arguments)
        costs, search = arm_costs(command, folder, journal, checker, samples, facts), None
        if command.settings.is_search:
            plan: Plan = (search := search_plan(command, folder, journal, checker, facts))
            keys = ", ".join(override.key_or_group for override in command.space)
            console.print(f"checked the values of {keys} in {seconds:.0f} s", markup=False)
        elif command.tuning is not None:
            console.print(f"checked {len(samples)} jobs in {seconds:.0f} s")
            plan = tuning_plan(command, folder, journal, checker, costs, samples, facts)
        else:
            if costs:
                samples = [with_updates(job, updates_of(command, costs, job)) for job in samples]
                refuse_other_budget(folder, journal, samples)
                facts = checker.check(samples)
                if problems := problems_of(command, samples, facts):
                    raise ConfigError(problems)
            jobs = list({job.key: job for job in grid_jobs(command, folder, journal, samples, facts)}.values())
            same = f"; {len(samples) - len(jobs)} of them equal another one" if len(jobs) < len(samples) else ""
            console.print(f"checked {len(samples)} jobs in {seconds:.0f} s{same}")
            plan = Grid(jobs)
        checker.close()
        launcher = make_launcher(command, folder, facts)
        journal.begin()

        def about() -> dict[str, Any]:
            chosen = {"tuning": plan.record()} if isinstance(plan, Tuned) else {}
            chosen |= {"search": search.record()} if search else {}
            return {**chosen, **({"cost": record_of(command.settings.cost, list(costs.values()))} if costs else {})}

        typed, mode = shlex.join(["attnorm", "sweep", *command.arguments]), facts[0].mode
        record = SweepRecord(folder, typed, plan, journal, mode, about)
        record.write(record.results())
        if isinstance(plan, Tuned):
            plan.further = partial(values_to_try, folder, record)
        try:
            with View(plan, journal) as view:
                show, said = both(view.show, record.refresh), both(view.said, record.note)
                stopped_by = Scheduler(plan, launcher, journal, command.settings.retries, show, said, view.stops).run()
        finally:
            launcher.close()
        code = close(folder, record, stopped_by)
        journal.add("close", code=code)
        return code


def sweep_folder(command: SweepCommand, facts: Sequence[Checked]) -> Path:
    """`dir`, or a folder whose name follows from the overrides."""
    settings = command.settings
    if settings.dir is not None:
        return Path(settings.dir)
    own = [f"search={settings.search}", f"search_seed={settings.search_seed}"] if settings.is_search else []
    own += [f"tune_seeds={settings.tune_seeds}"] if command.tuning else []
    own += [f"cost={settings.cost}"] if settings.cost != "updates" else []
    name = sweep_name((checked.task for checked in facts), [*command.texts(), *own])
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
            plan.jobs = journal.jobs()
            plan.total = len(plan.jobs)
            view.show()


def search_plan(
    command: SweepCommand, folder: Path, journal: Journal, checker: Checker, facts: Sequence[Checked]
) -> "Search":
    """The trials of a search."""
    from attnorm.sweeps.search import Search

    settings = command.settings
    first = replace(facts[0], named=[it for checked in facts for it in checked.named])  # those of all values
    monitor, mode = metric_of(first)

    def make_job(number: int, values: Sequence[str]) -> Job:
        overrides = with_values(command, {value.partition("=")[0]: value for value in values})
        if known := journal.trials.get(number):
            return job_of(command, folder, known["name"], known["key"], overrides, first)
        [checked] = checker.check([overrides])
        # a combination that is wrong although each of its values is not: the run says why
        key = checked.key or hashlib.sha256(" ".join(overrides).encode()).hexdigest()
        label = label_of(overrides, command.space)
        name = f"trial-{number:04}_{name_of(label, key)}"
        journal.add("job", name, key=key, label=label, overrides=overrides, trial=number)
        return job_of(command, folder, name, key, overrides, first)

    return Search(
        folder,
        dimensions(command),
        make_job,
        about=[*command.texts(), f"search={settings.search}", f"search_seed={settings.search_seed}"],
        total=settings.trials or 0,
        algorithm=settings.search,
        seed=settings.search_seed,
        pruner=settings.pruner,
        monitor=monitor,
        mode=mode,
        parallel=(settings.jobs or 1) > 1,
    )


def arm_costs(
    command: SweepCommand,
    folder: Path,
    journal: Journal,
    checker: Checker,
    samples: Sequence[Overrides],
    facts: Sequence[Checked],
) -> dict[Overrides, ArmCost]:
    """What the updates of each arm cost, and how many of them the budget pays for; {} with cost=updates."""
    if command.settings.cost == "updates":
        return {}
    has_started = any(job.folder.exists() for job in journal.jobs() if job.purpose != COST)
    before = recorded_costs(folder, command.settings.cost) if has_started else []
    arms = {arm_of(command, job): checked for job, checked in zip(samples, facts, strict=True)}
    with closing(make_launcher(command, folder, facts, alone=True)) as launcher:
        costs = measure(command, folder, journal, checker, arms, launcher)
    print_costs(list(costs.values()))
    refuse_other_total(folder, before, list(costs.values()))
    return costs


def updates_of(command: SweepCommand, costs: Mapping[Overrides, ArmCost], job: Overrides) -> int | None:
    """The number of updates of a job if the budget sets it."""
    return costs[arm_of(command, job)].updates if costs else None


def tuning_plan(
    command: SweepCommand,
    folder: Path,
    journal: Journal,
    checker: Checker,
    costs: Mapping[Overrides, ArmCost],
    samples: Sequence[Overrides],
    facts: Sequence[Checked],
) -> Plan:
    """The runs that tune, and those that compare."""
    tuning = command.tuning
    assert tuning is not None
    by_arm: dict[Overrides, Checked] = {}
    for job, checked in zip(samples, facts, strict=True):
        by_arm.setdefault(arm_of(command, job), checked)
    by_key = {checked.key: (arm, checked) for arm, checked in by_arm.items()}  # arms with equal settings are one
    arms = [arm for arm, _ in by_key.values()]

    def make_jobs(purpose: str, choices: Sequence[Choice]) -> list[Job]:
        typed = [tuned(arms[arm], tuning.key, value, seed) for arm, value, seed in choices]
        typed = [with_updates(job, updates_of(command, costs, job)) for job in typed]
        found = checker.check(typed)
        checker.close()
        if problems := problems_of(command, typed, found):
            raise ConfigError(problems)
        jobs = grid_jobs(command, folder, journal, typed, found, purpose)
        if purpose == "compare":
            for job in jobs:
                put_back(job)
        return jobs

    labelled = [TunedArm(label_of(arm, command.space), *metric_of(checked)) for arm, checked in by_key.values()]
    return Tuned(tuning, labelled, journal, make_jobs)


def make_launcher(command: SweepCommand, folder: Path, facts: Sequence[Checked], alone: bool = False) -> Launcher:
    """The launcher that the settings ask for. alone: one job at a time, on as many cores as it has among others."""
    settings = command.settings
    if settings.launcher == "submitit":
        from attnorm.sweeps.launchers.submitit import SubmititLauncher

        return SubmititLauncher(folder, settings.submitit, 1 if alone else settings.jobs, TRAIN)
    if settings.launcher == "ray":
        from attnorm.sweeps.launchers.ray import RayLauncher

        return RayLauncher(settings.ray, 1 if alone else settings.jobs, TRAIN)
    from attnorm.sweeps.launchers.local import LocalLauncher, Places

    gpus = next((checked.gpus for checked in facts if checked.uses_gpu), [])
    most = max((count_devices(checked) for checked in facts if checked.uses_gpu), default=1)
    jobs = settings.jobs or max(1, len(gpus) // most)
    places = Places(jobs, list(os.sched_getaffinity(0)), gpus)
    return LocalLauncher(Places(1, places.cores_of(0), gpus) if alone else places, TRAIN)


def close(folder: Path, record: SweepRecord, stopped_by: int) -> int:
    """Writes sweep.json, prints the closing table and how to continue, and returns the exit code."""
    results = record.results()
    left = record.unfinished(results)
    code = 128 + stopped_by if stopped_by else int(left > 0)
    record.write(results, code)
    print_results(results)
    if isinstance(record.plan, Tuned):
        print_tuning(record.plan.record(), results)
    if content := record.about().get("search"):
        from attnorm.analysis.report.search import search_of
        from attnorm.training.console import show_lines

        search = search_of("search", content)  # as `attnorm compare` and the report show it
        show_lines(search.headline, search.command)
    if left:
        saved = "saved; " if any(result.state is JobState.INTERRUPTED for result in results) else ""
        sentence = f"{left} of {record.plan.total} jobs are unfinished"
        console.print(f"{sentence}; {saved}repeat the command to continue: {record.command}", markup=False)
    write_report_of_sweep(folder)
    console.print(f"sweep folder: {folder}", markup=False)
    return code
