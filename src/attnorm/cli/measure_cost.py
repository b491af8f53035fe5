"""Measures what an update of each arm costs, in short runs, before the jobs of `cost=time` and `cost=flops` start."""

import shutil
import signal
from collections.abc import Mapping
from pathlib import Path

from attnorm.cli.check_jobs import Checked, Checker
from attnorm.cli.read_sweep import SweepCommand
from attnorm.cli.sweep_jobs import Overrides, grid_jobs, problems_of
from attnorm.errors import ConfigError, Interrupted, RunError
from attnorm.progress import console
from attnorm.run.folder import COST, RunState
from attnorm.sweeps.cost import MEASURING, ArmCost, check_machines, cost_of, equalized
from attnorm.sweeps.jobs import override_key
from attnorm.sweeps.launchers.base import Launcher
from attnorm.sweeps.scheduler import Grid, Scheduler
from attnorm.sweeps.state import Journal, is_held
from attnorm.sweeps.table import View


def measure(
    command: SweepCommand,
    folder: Path,
    journal: Journal,
    checker: Checker,
    arms: Mapping[Overrides, Checked],
    launcher: Launcher,
) -> dict[Overrides, ArmCost]:
    """Measures the cost of an update of each arm, and computes how many updates the budget pays for.

    Measurements that have finished are reused.

    arms: the checked facts of each arm. launcher: starts one run at a time.

    Raises RunError if an arm cannot be measured or if others were measured on another machine, and Interrupted if a
    signal stops the sweep.
    """
    kind, ours = command.settings.cost, {override_key(it) for it in MEASURING}
    runs = [(*(it for it in arm if override_key(it) not in ours), *MEASURING) for arm in arms]
    facts = checker.check(runs)
    if problems := problems_of(command, runs, facts):
        raise ConfigError(problems)
    jobs = grid_jobs(command, folder, journal, runs, facts, COST)
    journal.begin()
    for job in jobs:
        if job.run.state is not RunState.FINISHED and not is_held(job):
            shutil.rmtree(job.folder, ignore_errors=True)  # an unfinished measurement is not used
    console.print(f"measuring the cost of an update, in {len(jobs)} short runs")
    plan = Grid(list({job.key: job for job in jobs}.values()))
    with View(plan, journal) as view:
        retries = command.settings.retries
        stopped_by = Scheduler(plan, launcher, journal, retries, view.show, view.said, view.stops).run()
    if stopped_by:
        raise Interrupted(stopped_by, signal.Signals(stopped_by).name)
    try:
        check_machines(jobs, kind)
        priced = [cost_of(job, kind) for job in jobs]
    except RunError:
        journal.add("close", code=2)  # the repeated command tries again
        raise
    costs = []
    for job, checked, (value, unit) in zip(jobs, arms.values(), priced, strict=True):
        assert checked.max_steps is not None  # otherwise `problems_of` has refused the command
        costs.append(ArmCost(job.arm, checked.task, checked.attention == "softmax", checked.max_steps, value, unit))
    return dict(zip(arms, equalized(costs), strict=True))
