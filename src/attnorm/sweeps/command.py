"""The command line of `attnorm sweep`: its own keys, and the overrides of its runs."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, Literal

from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override

from attnorm.choices import split_options
from attnorm.config.command import Command, read
from attnorm.config.compose import hydra_started
from attnorm.errors import Problem, unknown
from attnorm.imports import nearest
from attnorm.parts import names_of
from attnorm.removed import REMOVED
from attnorm.schema import Count, Text, WholeNumber
from attnorm.settings import RunConfig
from attnorm.sweeps.jobs import as_typed, choices_in, expand, override_key, parse, readable
from attnorm.sweeps.ladder import Ladder, read_ladder, rung_in
from attnorm.sweeps.tuning import Tuning

Overrides = tuple[str, ...]  # of a job
EXPECTED = "expected <key>=<value>,<value>,..."  # of tune
REFUSED = {  # keys of a single run
    "resume": "a sweep resumes its runs by itself; repeat its command",
    "from": "each job of a sweep is composed of the settings that are typed; only attnorm train has from=<run>",
    "ckpt_path": "a sweep resumes its runs by itself; repeat its command",
    "run.ladder": "the rungs of a ladder set it; use ladder=<file>",
    "hydra.run.dir": "the run folders are in the sweep folder; use out=<sweep folder>",
    "hydra.sweep.dir": "the run folders are in the sweep folder; use out=<sweep folder>",
    "hydra.mode": "each job of a sweep is a single run",
    "hydra/sweeper": "attnorm sweep trains all combinations; docs/sweeps.md#search has a recipe for a search",
    "hydra/launcher": "attnorm sweep has launchers of its own; use launcher=submitit or launcher=ray",
}


@dataclass(frozen=True, kw_only=True)
class SweepSettings:
    """The keys of `attnorm sweep`.

    out:         the sweep folder; None for one that is named after the overrides.
    jobs:        number of jobs at once; None for one per GPU, or one on a CPU.
    retries:     how many more times a job that failed is tried.
    dry:         whether the jobs are only checked and printed.
    fail_fast:   whether the other jobs save and exit once a job is not tried again.
    launcher:    where jobs run: on this machine, or as jobs of SLURM or Ray.
    ladder:      a file of the group `ladder`; every arm is trained on each of its rungs.
    tune:        a key and the values that every arm tries before it is compared at its best one.
    tune_seeds:  the seeds of these runs.
    submitit:    parameters of submitit's AutoExecutor.
    ray:         arguments of `ray.init`.
    """

    out: Text | None = None
    jobs: Count | None = None
    retries: WholeNumber = 1
    dry: bool = False
    fail_fast: bool = False
    launcher: Literal["local", "submitit", "ray"] = "local"
    ladder: Text | None = None
    tune: Text | None = None
    tune_seeds: Text | None = None
    submitit: dict[str, Any] = field(default_factory=dict)
    ray: dict[str, Any] = field(default_factory=dict)


OWN = names_of(SweepSettings)


@dataclass(frozen=True)
class SweepCommand:
    """A command line that has been read.

    arguments: as they were typed.
    settings:  the keys of the sweep itself.
    overrides: all other overrides.
    options:   `--config-dir` and its values, which every run gets.
    folders:   the configuration folder, and those of `--config-dir`.
    tuning:    what is tuned, if anything is; its key is then one of the overrides, with all its values.
    ladder:    the rungs on which every arm is trained, if there are any.
    sized:     by arm, the overrides of each rung, once it is known how long the rungs train.
    """

    arguments: list[str]
    settings: SweepSettings
    overrides: list[Override]
    options: tuple[str, ...]
    folders: list[Path]
    tuning: Tuning | None = None
    ladder: Ladder | None = None
    sized: Mapping[Overrides, Sequence[Overrides]] = field(default_factory=dict)

    @property
    def space(self) -> list[Override]:
        """The overrides that differ between the runs."""
        differing = ["seed"] if self.tuning else []  # between those that tune and those that compare
        return [typed for typed in self.overrides if typed.is_sweep_override() or plain_key(typed) in differing]

    @property
    def varied(self) -> list[str]:
        """The keys that differ between the jobs of an arm: its seed, and what is tuned."""
        return ["seed", *([self.tuning.key] if self.tuning else [])]

    def arm_of(self, job: Overrides) -> Overrides:
        """The overrides of the arm of a job: without its seed, and what is tuned."""
        return tuple(override for override in job if override_key(override) not in self.varied)

    def label_of(self, job: Overrides) -> str:
        """Those overrides of a job that differ between the jobs, as they are typed."""
        keys = {override.get_key_element() for override in self.space}
        differing = as_typed([text for text in job if text.partition("=")[0] in keys])
        return " ".join([*differing, *([f"rung={rung}"] if (rung := rung_in(job)) else [])]) or "the only job"

    def on_rungs(self, arm: Overrides) -> Sequence[Overrides]:
        """An arm on each rung of the ladder, if there is one."""
        if self.ladder is None:
            return [arm]
        unsized = [rung.overrides(self.tuning.key if self.tuning else None) for rung in self.ladder.rungs]
        return [(*arm, *rung) for rung in self.sized.get(self.arm_of(arm), unsized)]

    def samples(self) -> list[Overrides]:
        """The jobs that are checked before the first one starts: all of them. Of a sweep that tunes, all that tune, and
        the comparison at the first value."""
        if tuning := self.tuning:
            combinations = expand(override for override in self.overrides if plain_key(override) not in self.varied)
            arms = [on_rung for arm in combinations for on_rung in self.on_rungs(arm)]
            pairs = [(value, seed) for value in tuning.values for seed in tuning.seeds]
            pairs += [(tuning.values[0], seed) for seed in tuning.compare]
            return [tuning.job(arm, *pair) for arm in arms for pair in pairs]
        jobs = expand(self.overrides)
        seeds = list(dict.fromkeys(seed_of(job) for job in jobs))
        # The arms of a seed are trained one after the other, so that other work on the machine falls on all of them.
        jobs.sort(key=lambda job: seeds.index(seed_of(job)))
        return [on_rung for job in jobs for on_rung in self.on_rungs(job)]

    def texts(self) -> list[str]:
        """All overrides as they were typed."""
        return as_typed([override.input_line or "" for override in self.overrides])


def seed_of(job: Overrides) -> str | None:
    """The override of the seed of a job, if there is one."""
    return next((override for override in job if override_key(override) == "seed"), None)


def read_sweep(arguments: Sequence[str]) -> SweepCommand:
    """Reads the arguments. Raises ConfigError with everything that is wrong with the keys of the sweep itself."""
    options, folders, rest, problems = split_options(arguments)
    of_sweep = [override for override in rest if override_key(override).partition(".")[0] in OWN]
    of_runs = [override for override in rest if override not in of_sweep]
    for argument in of_runs:
        key = override_key(argument)
        if key in REFUSED:
            problems.append(Problem.about(key, f"{argument}: {REFUSED[key]}"))
        elif "." in key or key in RunConfig.model_fields or any((folder / key).is_dir() for folder in folders):
            continue  # a key of the runs
        elif (suggestion := nearest(key, OWN, cutoff=0.7)) or f"sweep {key}" in REMOVED:
            misspelt = Problem.about(key, f"{argument}: attnorm sweep has no such key.{suggestion}")
            problems.append(unknown(f"sweep {key}", misspelt))
    if sum(override_key(argument) == "tune" for argument in of_sweep) > 1:
        problems.append(Problem("tune", "is given more than once; a sweep tunes one key"))
    overrides: list[Override] = []

    def check(command: Command[SweepSettings]) -> Iterator[Problem]:
        for name in ("submitit", "ray"):
            if name in command.typed and name != (launcher := command.settings.launcher):
                yield Problem(name, f"has no effect with launcher={launcher}; it is for launcher={name}")
        with hydra_started(folders):
            overrides.extend(parse(readable(of_runs, is_sweep=True), GlobalHydra.instance().config_loader()))
        for override in overrides:
            if override.is_interval_sweep():
                typed = as_typed([override.input_line or ""])[0]
                yield Problem.about(override.key_or_group, f"{typed}: a sweep needs single values, not an interval")
        tuning, _, wrong = read_tuning(command.settings, overrides)
        yield from wrong
        if command.settings.ladder is not None:
            swept = {plain_key(override): override.is_sweep_override() for override in overrides}
            ladder = read_ladder(command.settings.ladder, folders)
            yield from ladder.problems(swept, tuning.key if tuning else None)

    settings = read(of_sweep, SweepSettings, "attnorm sweep", known=problems, check=check).settings
    tuning, tuned, _ = read_tuning(settings, overrides)
    ladder = None if settings.ladder is None else read_ladder(settings.ladder, folders)
    return SweepCommand(list(arguments), settings, [*overrides, *tuned], options, folders, tuning, ladder)


def plain_key(override: Override) -> str:
    """The key of an override as it is typed."""
    return override.get_key_element().lstrip("+")


def read_tuning(
    settings: SweepSettings, overrides: Sequence[Override]
) -> tuple[Tuning | None, list[Override], list[Problem]]:
    """What `tune` and `tune_seeds` ask for, the override with all values, and what is wrong with them.

    overrides: those of the runs, among them the seeds that compare.
    """
    if settings.tune is None:
        message = "has no effect without tune=<key>=<values>, as in tune=optimizer.lr=1e-3,2e-3,4e-3"
        problem = Problem("tune_seeds", message, settings.tune_seeds)
        return None, [], [problem] if settings.tune_seeds is not None else []
    problems = []
    compared = [typed for typed in overrides if plain_key(typed) == "seed" and not typed.is_interval_sweep()]
    seeds = [choice.partition("=")[2] for typed in compared for choice in choices_in(typed)]
    if not seeds:
        problems.append(Problem("seed", "must be given with tune: the seeds that compare the arms, as in seed=110,111"))
    tune_seeds = []
    if settings.tune_seeds is None:
        problems.append(Problem("tune_seeds", "must be given with tune, as in tune_seeds=100,101"))
    else:
        [typed] = parse(readable([f"seed={settings.tune_seeds}"], is_sweep=True))
        tune_seeds = [choice.partition("=")[2] for choice in ([] if typed.is_interval_sweep() else choices_in(typed))]
        if not tune_seeds or not all(seed.isdigit() and int(seed) < 2**32 for seed in tune_seeds):
            message = "allowed: whole numbers from 0 to 4294967295, as in tune_seeds=100,101 or range(100,103)"
            problems.append(Problem("tune_seeds", message, settings.tune_seeds))
        elif both := [seed for seed in dict.fromkeys(tune_seeds) if seed in seeds]:
            message = f"must differ from the seeds that compare; seed has {', '.join(both)} as well"
            problems.append(Problem("tune_seeds", message, settings.tune_seeds))
    tuned = parse(readable([settings.tune], is_sweep=True)) if "=" in settings.tune else []
    numbers: dict[float, str] = {}
    if not tuned or not tuned[0].is_sweep_override() or tuned[0].is_interval_sweep():
        problems.append(Problem("tune", f"{EXPECTED}, as in tune=optimizer.lr=1e-3,2e-3,4e-3", settings.tune))
        return None, [], problems
    for text in (choice.partition("=")[2] for choice in choices_in(tuned[0])):
        with suppress(ValueError):
            numbers[float(text)] = text
    if len(numbers) < 2 or len(numbers) < len(choices_in(tuned[0])) or not all(0 < number < inf for number in numbers):
        problems.append(Problem("tune", f"{EXPECTED}; the values are different numbers above 0", settings.tune))
    key = plain_key(tuned[0])
    if key == "seed":
        problems.append(Problem("tune", "seeds are not tuned; give them as seed=... and tune_seeds=...", settings.tune))
    elif key in map(plain_key, overrides):
        problems.append(Problem(key, f"is set by tune={settings.tune}; leave it out"))
    values = tuple(numbers[number] for number in sorted(numbers))
    return Tuning(key, values, tuple(dict.fromkeys(tune_seeds)), tuple(dict.fromkeys(seeds))), tuned, problems
