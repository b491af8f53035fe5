"""`search=random` and `search=optuna`: an algorithm chooses the values of each run from those of the runs before.

Only this process writes the study, and it asks and tells: the runs do not know that they belong to a search. The study
is in the sweep folder, so a search that was stopped or killed continues. What a trial is asked to try depends on the
seed, on the number of the trial and on the results so far, and on nothing else: without parallel runs, a search that
was interrupted tries the same values as one that was not.
"""

import json
import os
import shlex
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
from hydra.core.override_parser.types import IntervalSweep, Override
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from attnorm.errors import ConfigError, Problem, RunError
from attnorm.sweeps.jobs import Job, as_typed, choices
from attnorm.sweeps.scheduler import Plan
from attnorm.sweeps.state import JobState

if TYPE_CHECKING:
    from attnorm.sweeps.command import SweepCommand

STUDY = "study.jsonl"
PRUNERS: dict[str, Callable[[], BasePruner]] = {
    "none": NopPruner,
    "median": MedianPruner,
    "halving": SuccessiveHalvingPruner,
    "hyperband": HyperbandPruner,
}
MakeJob = Callable[[int, Sequence[str]], Job]  # of the number of a trial and its overrides


class Dimension:
    """One key of the search space: its distribution, and the override of each value."""

    def __init__(self, override: Override):
        self.key, value = override.get_key_element(), override.value()
        self.name = self.key.lstrip("+")
        self.texts: dict[Any, str] = {}
        self.distribution: BaseDistribution
        options: dict[str, Any] = {"log": "log" in (getattr(value, "tags", None) or ())}
        if isinstance(value, IntervalSweep):
            numbers: list[Any] = sorted([value.start, value.end])  # floats, except after a cast, int(interval(1,9))
        elif override.is_range_sweep():
            numbers = sorted(override.sweep_iterator())
            self.texts = dict(zip(numbers, map(str, numbers), strict=True))
            if not options["log"]:
                options["step"] = 1 if len(numbers) < 2 else numbers[1] - numbers[0]
        else:
            texts = [choice.partition("=")[2] for choice in choices(override)]
            self.texts = {text: text for text in texts}
            self.distribution = CategoricalDistribution(texts)
            return
        are_whole = all(isinstance(number, int) for number in numbers)
        kind: type[IntDistribution | FloatDistribution] = IntDistribution if are_whole else FloatDistribution
        self.distribution = kind(numbers[0], numbers[-1], **options)

    def suggest(self, trial: Trial) -> Any:
        """The value of the key in a trial, which is sampled unless it has been."""
        distribution = self.distribution
        if isinstance(distribution, CategoricalDistribution):
            return trial.suggest_categorical(self.name, distribution.choices)
        assert isinstance(distribution, (IntDistribution, FloatDistribution))
        suggest: Any = trial.suggest_int if isinstance(distribution, IntDistribution) else trial.suggest_float
        return suggest(self.name, distribution.low, distribution.high, step=distribution.step, log=distribution.log)

    def override(self, value: Any) -> str:
        """The override that sets the key to a value of the distribution."""
        return f"{self.key}={self.text(value)}"

    def text(self, value: Any) -> str:
        """A value of the distribution as it is typed."""
        if self.texts and value not in self.texts:  # a float that is a rounding error away from it
            value = min(self.texts, key=lambda known: abs(known - value))
        return str(self.texts.get(value, value))

    def extremes(self) -> list[str]:
        """Overrides for all choices, or for the smallest and the largest number: what is checked beforehand."""
        distribution = self.distribution
        if isinstance(distribution, CategoricalDistribution):
            return [self.override(choice) for choice in distribution.choices]
        assert isinstance(distribution, (IntDistribution, FloatDistribution))
        return list(dict.fromkeys([self.override(distribution.low), self.override(distribution.high)]))


class SeededSampler(BaseSampler):
    """Samples each trial with random numbers of its own, which depend on the seed and the number of the trial only.

    The random state of a sampler is not part of a study. With this one, nothing is lost when a search is interrupted,
    not even between two values of one trial.

    make: a sampler with a `seed`.
    """

    def __init__(self, make: Callable[..., BaseSampler], seed: int):
        self.make, self.seed = make, seed

    def sampler(self, trial: FrozenTrial, name: str) -> BaseSampler:
        """The sampler of one value; `name` is "" for the values that are sampled together."""
        return self.make(seed=zlib.crc32(f"{self.seed} {trial.number} {name}".encode()))

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self.sampler(trial, "").infer_relative_search_space(study, trial)

    def sample_relative(self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]) -> dict:
        return self.sampler(trial, "").sample_relative(study, trial, search_space)

    def sample_independent(self, study: Study, trial: FrozenTrial, name: str, distribution: BaseDistribution) -> Any:
        return self.sampler(trial, name).sample_independent(study, trial, name, distribution)


class OneWriter(JournalFileOpenLock):
    """No lock: the sweep holds one on its folder. Optuna's own would be left behind by a process that is killed."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


class Search(Plan):
    """The trials of a study as the jobs of a sweep.

    folder:   the sweep folder.
    command:  its overrides and its settings. A study is not continued with others.
    metric:   the metric, and whether "min" or "max" of it is best.
    make_job: the job of a trial.
    """

    def __init__(self, folder: Path, command: "SweepCommand", metric: tuple[str, str], make_job: MakeJob):
        super().__init__()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        settings, (self.monitor, self.mode) = command.settings, metric
        self.space, self.make_job = command.dimensions(), make_job
        path = folder / STUDY
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        torn = lines.pop() if lines and not lines[-1].endswith(b"\n") else b""
        try:
            list(map(json.loads, lines))
        except ValueError as error:
            raise RunError(f"{path}: cannot be read: {error}; choose another dir, or remove the file") from error
        if torn:  # it was being written when the process was killed; Optuna cannot append to it
            os.truncate(path, sum(map(len, lines)))
        storage = JournalStorage(JournalFileBackend(str(path), OneWriter(STUDY)))
        options: dict[str, Any] = {"storage": storage, "study_name": "sweep", "pruner": PRUNERS[settings.pruner]()}
        tpe = partial(TPESampler, multivariate=True, constant_liar=(settings.jobs or 1) > 1)  # trials at the same time
        sampler = RandomSampler if settings.search == "random" else tpe
        options |= {"sampler": SeededSampler(sampler, settings.search_seed)}
        if storage.get_all_studies():  # with load_if_exists, creating it would write into the file
            self.study = optuna.load_study(**options)
        else:
            self.study = optuna.create_study(direction="maximize" if self.mode == "max" else "minimize", **options)
        about = [*command.texts(), f"search={settings.search}", f"search_seed={settings.search_seed}"]
        about.sort()
        if (known := self.study.user_attrs.get("about", about)) != about:
            message = f"holds a search over other values ({' '.join(known)}); choose another folder"
            raise ConfigError([Problem("dir", message, folder)])
        self.study.set_user_attr("about", about)
        self.trials: dict[str, int] = {}  # numbers of trials by the names of their jobs
        self.first: dict[str, int] = {}  # the first trial of each key
        before = self.study.get_trials(deepcopy=False)
        self.asked = len(before)
        self.most = max(settings.trials or 0, self.asked)
        self.open = [trial.number for trial in before if not trial.state.is_finished()]  # left by a stopped sweep
        for trial in before:
            if trial.state.is_finished():
                self.job_of(trial.number)

    @property
    def total(self) -> int:
        return self.most

    def next(self) -> Job | None:
        while self.open or self.asked < self.most:
            if self.open:
                number = self.open.pop(0)
            else:
                self.asked, number = self.asked + 1, self.study.ask().number
            if job := self.job_of(number):
                return job
        return None

    def job_of(self, number: int) -> Job | None:
        """The job of a trial, whose values are sampled unless they have been. None if an earlier trial tried the same
        values: its result is also that of this trial."""
        trial = self.trial(number)
        job = self.make_job(number, [dimension.override(dimension.suggest(trial)) for dimension in self.space])
        twin = self.frozen(self.first.setdefault(job.key, number))
        if twin.number != number and twin.state in (TrialState.COMPLETE, TrialState.PRUNED):
            if not self.frozen(number).state.is_finished():
                is_complete = twin.state is TrialState.COMPLETE
                self.study.tell(number, twin.value if is_complete else None, None if is_complete else twin.state)
            self.repeated += 1
            return None
        self.trials[job.name] = number
        self.jobs.append(job)
        return job

    def trial(self, number: int) -> Trial:
        """A trial, also one that an earlier process has begun."""
        return Trial(self.study, self.frozen(number)._trial_id)

    def frozen(self, number: int) -> FrozenTrial:
        """What the study knows of a trial."""
        return self.study.get_trials(deepcopy=False)[number]

    def unpromising(self, job: Job) -> bool:
        """Reports new validations of a run to the study. Whether its pruner would stop the run."""
        trial = self.trial(self.trials[job.name])
        known = self.frozen(trial.number).intermediate_values
        for step, value in job.run.validations(self.monitor):
            if step not in known and value == value:
                trial.report(value, step)
                if trial.should_prune():
                    return True
        return False

    def ended(self, job: Job, state: JobState) -> None:
        """Tells the study the result of a trial, unless it has been told."""
        number = self.trials[job.name]
        if self.frozen(number).state.is_finished():
            return
        self.unpromising(job)  # reports what has come since the last look
        value = job.run.best_value
        if state is JobState.FINISHED and isinstance(value, (int, float)) and value == value:
            self.study.tell(number, value)
        elif state is JobState.PRUNED:
            self.study.tell(number, state=TrialState.PRUNED)
        elif state is JobState.FINISHED:  # without a value; one that failed stays open, for the repeated command
            self.study.tell(number, state=TrialState.FAIL)

    def record(self) -> dict[str, Any]:
        """The trials with the value of each parameter, and the best one, for sweep.json."""
        names: dict[int, str] = {number: job for job, number in self.trials.items()}
        trials: list[dict[str, Any]] = []
        for frozen in self.study.get_trials(deepcopy=False):
            values = {dim.name: dim.text(frozen.params[dim.name]) for dim in self.space if dim.name in frozen.params}
            value = frozen.value if frozen.state is TrialState.COMPLETE else None
            job = names.get(frozen.number, "")
            state = frozen.state.name.lower()
            trials.append({"number": frozen.number, "job": job, "state": state, "value": value, "values": values})
        sign, jobs = 1 if self.mode == "min" else -1, {job.name: job for job in self.jobs}
        complete = [trial for trial in trials if trial["value"] is not None and trial["job"] in jobs]
        best = min(complete, key=lambda trial: sign * trial["value"], default=None)
        overrides = [] if best is None else as_typed(jobs[best["job"]].overrides)
        return {
            "monitor": self.monitor,
            "mode": self.mode,
            "logarithmic": [dim.name for dim in self.space if getattr(dim.distribution, "log", False)],
            "best": best and best["number"],
            "command": shlex.join(["attnorm", "train", *overrides]) if overrides else None,
            "trials": trials,
        }
