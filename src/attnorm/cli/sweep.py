"""`attnorm sweep`: checks all jobs of a sweep, runs them, and says what has become of them."""

import shlex
import time
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

from attnorm.choices import CONF
from attnorm.cli.errors import exit_code
from attnorm.cli.report import write_report_of_sweep
from attnorm.cli.verbs import is_help
from attnorm.errors import UserError
from attnorm.progress import console
from attnorm.run.folder import FolderLock, check_links
from attnorm.sweeps.check import Checker
from attnorm.sweeps.command import SweepCommand, read_sweep
from attnorm.sweeps.job_record import SweepRecord
from attnorm.sweeps.plan import Plan
from attnorm.sweeps.planner import Planner, checked, refuse_other_code, sweep_folder
from attnorm.sweeps.rungs import with_rungs
from attnorm.sweeps.scheduler import Scheduler
from attnorm.sweeps.state import SWEEP_LOCK, JobState, Journal, state_of_job
from attnorm.sweeps.tuning import Tuned
from attnorm.sweeps.view import View, print_results, print_tuning
from attnorm.wording import counted


def run_sweep(arguments: list[str]) -> int:
    """`attnorm sweep <arguments>`. Returns the exit code: 0 only if all jobs have finished."""
    if is_help(arguments):
        print((CONF / "sweep.yaml").read_text(), end="")
        print("\n# The keys of the runs: attnorm train --help")
        return 0
    return exit_code(lambda: sweep(read_sweep(arguments)))


def sweep(command: SweepCommand) -> int:
    """Checks the jobs and runs them."""
    with ExitStack() as stack:
        checker = stack.enter_context(closing(Checker(command.folders)))
        is_dry = command.settings.dry
        if command.ladder is not None and not is_dry:  # data are prepared to size them
            command = with_rungs(command, checker)
        started = time.monotonic()
        samples = command.samples()
        checks = checked(command, checker, samples)
        seconds, folder = time.monotonic() - started, sweep_folder(command, checks)
        if folder.exists():
            check_links(folder)
            for job in (journal := Journal(folder)).jobs():
                check_links(job.folder)
            refuse_other_code(journal, checks)
        if is_dry:
            journal = Journal(folder, deferred=True)  # which is never written
            planner = Planner(command, checker, journal, samples, checks)
            print_plan(planner.plan(seconds), journal, command.ladder is None)
            console.print(f"nothing was written; the sweep folder would be {folder}", markup=False)
            return 0
        lock = FolderLock(folder, SWEEP_LOCK)
        console.print(f"sweep folder: {folder}", markup=False)
        take_over(folder, lock)
        stack.callback(lock.release, unchanged=True)
        journal = Journal(folder, deferred=True)
        journal.add("open", command=command.arguments)
        planner = Planner(command, checker, journal, samples, checks)
        plan = planner.plan(seconds)
        checker.close()
        launcher = planner.launcher()
        journal.begin()

        record = SweepRecord(shlex.join(["attnorm", "sweep", *command.arguments]), plan, journal, checks[0].mode)
        record.write(record.results())
        if isinstance(plan, Tuned):
            plan.further = partial(values_to_try, folder, record)
        try:
            with View(plan, journal, record) as view:
                settings = command.settings
                code = Scheduler(plan, launcher, journal, settings.retries, view, settings.fail_fast).run()
        finally:
            launcher.close()
        code = close(folder, record, code)
        journal.add("close", code=code)
        return code


def print_plan(plan: Plan, journal: Journal, is_sized: bool) -> None:
    """A line for each job that is known, with its state. Until the rungs of a ladder are sized, its jobs are known by
    nothing but their labels."""
    for job in plan.jobs:
        state = f": {state_of_job(job, journal)}" if is_sized else ""
        console.print(f"{job.label}{state}", markup=False)
    if isinstance(plan, Tuned):
        console.print(f"and then {counted(plan.total - len(plan.jobs), 'run')} at the best values of the arms")


def take_over(folder: Path, lock: FolderLock) -> None:
    """Takes the lock of the sweep folder. While another sweep holds it, shows how far that one has come."""
    if lock.acquire(patience=0.3):
        return
    console.print(f"another sweep (process {lock.holder()}) is at work in this folder; waiting for it to end")
    journal, plan = Journal(folder), Plan()
    with View(plan, journal) as view:
        while not lock.acquire(patience=0.2):
            journal.reload()
            plan.jobs = journal.jobs()
            view.show()


def values_to_try(folder: Path, record: SweepRecord) -> list[tuple[int, str]]:
    """The numbers of arms and their further values to train, for verdicts that would be shown at the best values."""
    from attnorm.analysis.study import further_values

    record.write(record.results())  # which runs compare
    try:
        choices = further_values(folder)
    except UserError as error:  # as long as arms cannot be compared, no verdict depends on further values
        console.print(f"no further values: {' '.join(str(error).splitlines())}", markup=False)
        return []
    if choices:
        console.print(f"verdicts depend on {counted(len(choices), 'further value')}, which are trained now")
    return choices


def close(folder: Path, record: SweepRecord, code: int) -> int:
    """Records the state, prints the closing table and how to continue, and returns the exit code.

    code: that of a sweep that was stopped, or else 0.
    """
    results = record.results()
    left = record.unfinished(results)
    code = code or int(left > 0)
    record.write(results, code)
    print_results(results)
    if isinstance(record.plan, Tuned):
        print_tuning(record.plan.record(), results)
    if left:
        saved = "saved; " if any(result.state is JobState.INTERRUPTED for result in results) else ""
        sentence = f"{left} of {record.plan.total} jobs are unfinished"
        console.print(f"{sentence}; {saved}repeat the command to continue: {record.command}", markup=False)
    write_report_of_sweep(folder)
    console.print(f"sweep folder: {folder}", markup=False)
    return code
