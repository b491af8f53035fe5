"""The jobs of a sweep, with their folders, and the plan that gives them out: a grid, or tuned arms."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from attnorm.errors import ConfigError, Problem, RunError
from attnorm.progress import console
from attnorm.run.folder import EVENTS, RunState
from attnorm.run.record import modules_in
from attnorm.run.run import Run
from attnorm.sweeps.check import CheckedJob, Checker
from attnorm.sweeps.command import Overrides, SweepCommand
from attnorm.sweeps.jobs import Job, folder_name, job_folder, sweep_name
from attnorm.sweeps.launchers.base import Launcher
from attnorm.sweeps.plan import Plan
from attnorm.sweeps.process import TRAIN
from attnorm.sweeps.state import Journal
from attnorm.sweeps.tuning import Choice, Tuned, TunedArm, aside_of

NAMED_JOBS = 3  # jobs that the message on a problem names


def checked(command: SweepCommand, checker: Checker, jobs: Sequence[Overrides]) -> list[CheckedJob]:
    """What is known of these jobs. Raises ConfigError with their problems: each once, with the jobs that have it."""
    checks = checker.check(jobs)
    labels: dict[tuple[str, str], list[str]] = {}
    for job, check in zip(jobs, checks, strict=True):
        for problem in check.problems_in(command.settings.launcher):
            labels.setdefault(problem, []).append(command.label_of(job))
    problems = []
    every = {command.label_of(job) for job in jobs}
    for (key, text), those in ((problem, list(dict.fromkeys(jobs))) for problem, jobs in labels.items()):
        more = f" and {len(those) - NAMED_JOBS} more" if len(those) > NAMED_JOBS else ""
        where = "" if len(those) == len(every) else f" (in {'; '.join(those[:NAMED_JOBS])}{more})"
        problems.append(Problem.about(key, f"{text}{where}"))
    if problems:
        raise ConfigError(problems)
    return checks


def sweep_folder(command: SweepCommand, checks: Sequence[CheckedJob]) -> Path:
    """`out`, or a folder whose name follows from the overrides."""
    settings = command.settings
    if settings.out is not None:
        if Run(settings.out).exists and not (Path(settings.out) / EVENTS).exists():
            raise ConfigError([Problem("out", "is the folder of a run; choose another one", settings.out)])
        return Path(settings.out)
    chosen = [f"tune_seeds={settings.tune_seeds}"] if command.tuning else []
    chosen += [f"ladder={settings.ladder}"] if command.ladder else []
    tasks = (check.task for check in checks)
    return Path(checks[0].log_dir) / "sweeps" / sweep_name(tasks, [*command.texts(), *chosen])


def refuse_other_code(journal: Journal, checks: Iterable[CheckedJob]) -> None:
    """Raises RunError if a run of the sweep was trained with another version of an own module than jobs import now."""
    now = {name: digest for checked in checks for name, digest in checked.modules.items()}
    for job in journal.jobs():
        run = job.run
        if run.state is not RunState.FINISHED and not run.progress.get("step"):
            continue
        for name, digests in modules_in(run.recorded).items():
            for digest in digests:
                if name in now and digest != now[name]:
                    raise RunError(
                        f"{name} was edited, and results of different versions are not mixed: {job.folder} was trained "
                        f"with the version {digest}, and the file is {now[name]} now (SHA-256). To continue, put the "
                        "earlier version back; to train all runs with the new one, type out=<another folder>"
                    )


@dataclass
class Planner:
    """Makes the jobs of a sweep, and the plan that gives them out.

    samples: the jobs that have been checked. checks: what is known of each of them.

    Its methods raise ConfigError for what the folder, or a job that has not been checked before, does not allow.
    """

    command: SweepCommand
    checker: Checker
    journal: Journal
    samples: Sequence[Overrides]
    checks: Sequence[CheckedJob]

    def plan(self, seconds: float) -> Plan:
        """What the sweep runs. seconds: how long it took to check the samples."""
        done = f"checked {len(self.samples)} jobs in {seconds:.0f} s"
        if self.command.tuning is not None:
            console.print(done)
            return self.tuned()
        jobs = list({job.key: job for job in self.jobs(self.samples, self.checks)}.values())
        same = f"; {len(self.samples) - len(jobs)} of them equal another one" if len(jobs) < len(self.samples) else ""
        console.print(f"{done}{same}")
        return Plan(jobs)

    def tuned(self) -> Plan:
        """The runs that tune, and those that compare."""
        tuning = self.command.tuning
        assert tuning is not None
        first: dict[Overrides, CheckedJob] = {}  # what is known of the first sample of each arm
        for sample, check in zip(self.samples, self.checks, strict=True):
            first.setdefault(self.command.arm_of(sample), check)
        by_key = {check.key: (arm, check) for arm, check in first.items()}  # arms with equal settings are one
        arms = [arm for arm, _ in by_key.values()]

        def make_jobs(purpose: str, choices: Sequence[Choice]) -> list[Job]:
            typed = [tuning.job(arms[arm], value, seed) for arm, value, seed in choices]
            checks = checked(self.command, self.checker, typed)
            self.checker.close()
            jobs = self.jobs(typed, checks, purpose)
            if purpose == "compare":
                for job in jobs:
                    if (aside := aside_of(job)).exists() and not job.folder.exists():
                        aside.rename(job.folder)  # it was compared at this value before
            return jobs

        labelled = [TunedArm(self.command.label_of(arm), *check.metric) for arm, check in by_key.values()]
        return Tuned(tuning, labelled, self.journal, make_jobs)

    def jobs(self, combinations: Sequence[Overrides], checks: Sequence[CheckedJob], purpose: str = "") -> list[Job]:
        """A job for each combination. Jobs that the folder has already keep their names.

        Raises ConfigError if a run that tunes is asked to compare, or the other way round.
        """
        journal, jobs = self.journal, []
        names = {job["key"]: job["name"] for job in journal.added()}
        for overrides, check in zip(combinations, checks, strict=True):
            label, key = self.command.label_of(overrides), check.key
            name = names.setdefault(key, folder_name(label, key))
            known = journal.of(name, "job")
            if known and (known[-1].get("purpose") == "tune") != (purpose == "tune"):
                message = f"the run {label} is there already, to {'compare' if purpose == 'tune' else 'tune'}; "
                message += "choose other seeds, or another folder"
                raise ConfigError([Problem("out", message, self.journal.folder)])
            if not journal.has(name) or known[-1].get("purpose", "") != purpose:
                more = {"purpose": purpose} if purpose else {}
                journal.add("job", name, key=key, label=label, overrides=overrides, **more)
            typed, arm = (*self.command.options, *overrides), self.command.label_of(self.command.arm_of(overrides))
            folder, devices, named = job_folder(journal.folder, name, purpose), check.processes, tuple(check.named)
            jobs.append(Job(name, key, label, typed, folder, devices, check.uses_gpu, purpose, arm, named))
        return jobs

    def launcher(self) -> Launcher:
        """The launcher that the settings ask for."""
        settings = self.command.settings
        if settings.launcher == "submitit":
            from attnorm.sweeps.launchers.submitit import SubmititLauncher

            return SubmititLauncher(self.journal.folder, settings.submitit, settings.jobs, TRAIN)
        if settings.launcher == "ray":
            from attnorm.sweeps.launchers.ray import RayLauncher

            return RayLauncher(settings.ray, settings.jobs, TRAIN)
        from attnorm.sweeps.launchers.local import LocalLauncher, Places

        gpus = next((check.gpus for check in self.checks if check.uses_gpu), [])
        most = max((check.processes for check in self.checks if check.uses_gpu), default=1)
        places = Places(settings.jobs or max(1, len(gpus) // most), list(os.sched_getaffinity(0)), gpus)
        return LocalLauncher(places, TRAIN)
