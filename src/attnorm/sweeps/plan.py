"""The jobs of a sweep, with their folders, and the plan that gives them out: a grid, or tuned arms."""

import os
import shutil
import signal
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from attnorm.errors import ConfigError, Interrupted, Problem, RunError
from attnorm.progress import console
from attnorm.run.folder import COST, EVENTS, RunState
from attnorm.run.run import Run
from attnorm.source_code import recorded
from attnorm.sweeps.check import Checked, Checker
from attnorm.sweeps.command import Overrides, SweepCommand
from attnorm.sweeps.cost import (
    MEASURING,
    ArmCost,
    check_machines,
    cost_of,
    equalized,
    recorded_costs,
    refuse_other_budget,
    refuse_other_total,
)
from attnorm.sweeps.jobs import Job, job_folder, name_of, override_key, sweep_name
from attnorm.sweeps.launchers.base import Launcher
from attnorm.sweeps.process import TRAIN
from attnorm.sweeps.scheduler import Plan, Scheduler
from attnorm.sweeps.state import Journal, is_held
from attnorm.sweeps.table import View, print_costs
from attnorm.sweeps.tuning import Choice, Tuned, TunedArm, aside_of

NAMED_JOBS = 3  # jobs that the message on a problem names


def checked(command: SweepCommand, checker: Checker, jobs: Sequence[Overrides]) -> list[Checked]:
    """What is known of these jobs. Raises ConfigError with their problems: each once, with the jobs that have it."""
    facts, settings = checker.check(jobs), command.settings
    labels: dict[tuple[str, str], list[str]] = {}
    for job, fact in zip(jobs, facts, strict=True):
        for problem in fact.problems_in(settings.launcher, settings.cost):
            labels.setdefault(problem, []).append(command.label_of(job))
    problems = []
    for (key, text), those in labels.items():
        more = f" and {len(those) - NAMED_JOBS} more" if len(those) > NAMED_JOBS else ""
        where = "" if len(those) == len(jobs) else f" (in {'; '.join(those[:NAMED_JOBS])}{more})"
        problems.append(Problem.about(key, f"{text}{where}"))
    if problems:
        raise ConfigError(problems)
    return facts


def sweep_folder(command: SweepCommand, facts: Sequence[Checked]) -> Path:
    """`dir`, or a folder whose name follows from the overrides."""
    settings = command.settings
    if settings.dir is not None:
        if Run(settings.dir).exists and not (Path(settings.dir) / EVENTS).exists():
            raise ConfigError([Problem("dir", "has a config.yaml, as a run has; choose another one", settings.dir)])
        return Path(settings.dir)
    chosen = [f"tune_seeds={settings.tune_seeds}"] if command.tuning else []
    chosen += [f"cost={settings.cost}"] if settings.cost != "updates" else []
    return Path(facts[0].log_dir) / "sweeps" / sweep_name((fact.task for fact in facts), [*command.texts(), *chosen])


def refuse_other_code(journal: Journal, facts: Iterable[Checked]) -> None:
    """Raises RunError if a run of the sweep was trained with another version of an own module than jobs import now."""
    now = {name: digest for checked in facts for name, digest in checked.modules.items()}
    for job in journal.jobs():
        run = job.run
        if run.state is not RunState.FINISHED and not run.progress.get("step"):
            continue
        for name, digests in recorded(run.environment.get("modules")).items():
            for digest in digests:
                if name in now and digest != now[name]:
                    raise RunError(
                        f"{name} was edited, and results of different versions are not mixed: {job.folder} was trained "
                        f"with the version {digest}, and the file is {now[name]} now (SHA-256). To continue, put the "
                        "earlier version back; to train all runs with the new one, type dir=<another folder>"
                    )


@dataclass
class Planner:
    """Makes the jobs of a sweep, and the plan that gives them out.

    samples: the jobs that have been checked. facts: what is known of each of them.
    costs:   what the updates of each arm cost, and how many of them the budget pays for; {} with cost=updates.

    Its methods raise ConfigError for what the folder, or a job that has not been checked before, does not allow.
    """

    command: SweepCommand
    checker: Checker
    journal: Journal
    samples: Sequence[Overrides]
    facts: Sequence[Checked]
    costs: dict[Overrides, ArmCost] = field(default_factory=dict)

    def plan(self, seconds: float) -> Plan:
        """What the sweep runs, after the cost of an update has been measured if a budget is given in it.

        seconds: how long it took to check the samples.
        """
        if self.command.settings.cost != "updates":
            self.costs = self.measured_costs()
        done = f"checked {len(self.samples)} jobs in {seconds:.0f} s"
        if self.command.tuning is not None:
            console.print(done)
            return self.tuned()
        samples, facts = self.samples, self.facts
        if self.costs:
            samples = [self.with_updates(job) for job in samples]
            refuse_other_budget(self.journal, samples)
            facts = checked(self.command, self.checker, samples)
        jobs = list({job.key: job for job in self.jobs(samples, facts)}.values())
        same = f"; {len(samples) - len(jobs)} of them equal another one" if len(jobs) < len(samples) else ""
        console.print(f"{done}{same}")
        return Plan(jobs)

    def tuned(self) -> Plan:
        """The runs that tune, and those that compare."""
        tuning = self.command.tuning
        assert tuning is not None
        # arms with equal settings are one
        by_key = {fact.key: (arm, fact) for arm, fact in self.facts_by_arm().items()}
        arms = [arm for arm, _ in by_key.values()]

        def make_jobs(purpose: str, choices: Sequence[Choice]) -> list[Job]:
            typed = [self.with_updates(tuning.job(arms[arm], value, seed)) for arm, value, seed in choices]
            facts = checked(self.command, self.checker, typed)
            self.checker.close()
            jobs = self.jobs(typed, facts, purpose)
            if purpose == "compare":
                for job in jobs:
                    if (aside := aside_of(job)).exists() and not job.folder.exists():
                        aside.rename(job.folder)  # it was compared at this value before
            return jobs

        labelled = [TunedArm(self.command.label_of(arm), *fact.metric) for arm, fact in by_key.values()]
        return Tuned(tuning, labelled, self.journal, make_jobs)

    def facts_by_arm(self) -> dict[Overrides, Checked]:
        """What is known of the first sample of each arm."""
        facts: dict[Overrides, Checked] = {}
        for job, fact in zip(self.samples, self.facts, strict=True):
            facts.setdefault(self.command.arm_of(job), fact)
        return facts

    def measured_costs(self) -> dict[Overrides, ArmCost]:
        """Measures what an update of each arm costs, in short runs; what they have measured before is used again.

        Raises RunError if an arm cannot be measured or if others were measured on another machine, and Interrupted if a
        signal stops the sweep.
        """
        kind, journal = self.command.settings.cost, self.journal
        has_started = any(job.folder.exists() for job in journal.jobs() if job.purpose != COST)
        before = recorded_costs(self.journal.folder, kind) if has_started else []
        arms, set_here = self.facts_by_arm(), {override_key(override) for override in MEASURING}
        runs = [(*(override for override in arm if override_key(override) not in set_here), *MEASURING) for arm in arms]
        with closing(self.launcher(alone=True)) as launcher:
            jobs = self.jobs(runs, checked(self.command, self.checker, runs), COST)
            journal.begin()
            for job in jobs:
                if job.run.state is not RunState.FINISHED and not is_held(job):
                    shutil.rmtree(job.folder, ignore_errors=True)  # an unfinished measurement is not used
            console.print(f"measuring the cost of an update, in {len(jobs)} short runs")
            plan = Plan(list({job.key: job for job in jobs}.values()))
            with View(plan, journal) as view:
                retries = self.command.settings.retries
                code = Scheduler(plan, launcher, journal, retries, view).run()
        if code:
            raise Interrupted(code - 128, signal.Signals(code - 128).name)
        try:
            check_machines(jobs, kind)
            priced = [cost_of(job, kind) for job in jobs]
        except RunError:
            journal.add("close", code=2)  # the repeated command tries again
            raise
        costs = []
        for job, fact, (value, unit) in zip(jobs, arms.values(), priced, strict=True):
            assert fact.max_steps is not None  # otherwise `checked` has refused the command
            costs.append(ArmCost(job.arm, fact.task, fact.attention == "softmax", fact.max_steps, value, unit))
        costs = equalized(costs)
        print_costs(costs)
        refuse_other_total(self.journal.folder, before, costs)
        return dict(zip(arms, costs, strict=True))

    def with_updates(self, job: Overrides) -> Overrides:
        """The overrides of a job with the number of updates that its budget pays for, or as they are without one."""
        if not self.costs:
            return job
        others = tuple(override for override in job if override_key(override) != "trainer.max_steps")
        return (*others, f"++trainer.max_steps={self.costs[self.command.arm_of(job)].updates}")

    def jobs(self, combinations: Sequence[Overrides], facts: Sequence[Checked], purpose: str = "") -> list[Job]:
        """A job for each combination. Jobs that the folder has already keep their names.

        Raises ConfigError if a run that tunes is asked to compare, or the other way round.
        """
        journal, jobs = self.journal, []
        names = {job["key"]: job["name"] for job in journal.added()}
        for overrides, fact in zip(combinations, facts, strict=True):
            label, key = self.command.label_of(overrides), fact.key
            name = names.setdefault(key, name_of(label, key))
            known = journal.of(name, "job")
            if known and (known[-1].get("purpose") == "tune") != (purpose == "tune"):
                message = f"the run {label} is there already, to {'compare' if purpose == 'tune' else 'tune'}; "
                message += "choose other seeds, or another folder"
                raise ConfigError([Problem("dir", message, self.journal.folder)])
            if not journal.has(name) or known[-1].get("purpose", "") != purpose:
                more = {"purpose": purpose} if purpose else {}
                journal.add("job", name, key=key, label=label, overrides=overrides, **more)
            jobs.append(self.job(name, key, overrides, fact, purpose))
        return jobs

    def job(self, name: str, key: str, overrides: Overrides, fact: Checked, purpose: str = "") -> Job:
        """A job of the sweep."""
        return Job(
            name,
            key,
            self.command.label_of(overrides),
            (*self.command.options, *overrides),
            job_folder(self.journal.folder, name, purpose),
            fact.processes,
            fact.uses_gpu,
            purpose,
            self.command.label_of(self.command.arm_of(overrides)),
            tuple(fact.named),
        )

    def launcher(self, alone: bool = False) -> Launcher:
        """The launcher that the settings ask for. alone: one job at a time, on as many cores as it has among others."""
        settings = self.command.settings
        if settings.launcher == "submitit":
            from attnorm.sweeps.launchers.submitit import SubmititLauncher

            return SubmititLauncher(self.journal.folder, settings.submitit, 1 if alone else settings.jobs, TRAIN)
        if settings.launcher == "ray":
            from attnorm.sweeps.launchers.ray import RayLauncher

            return RayLauncher(settings.ray, 1 if alone else settings.jobs, TRAIN)
        from attnorm.sweeps.launchers.local import LocalLauncher, Places

        gpus = next((fact.gpus for fact in self.facts if fact.uses_gpu), [])
        most = max((fact.processes for fact in self.facts if fact.uses_gpu), default=1)
        places = Places(settings.jobs or max(1, len(gpus) // most), list(os.sched_getaffinity(0)), gpus)
        return LocalLauncher(Places(1, places.cores_of(0), gpus) if alone else places, TRAIN)
