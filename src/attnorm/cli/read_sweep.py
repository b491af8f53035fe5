"""The command line of `attnorm sweep`: its own keys, and the overrides of its runs."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from hydra.core.override_parser.types import Override

from attnorm.choices import own_folder
from attnorm.config.arguments import as_typed, readable, register_attention, wrong_choices
from attnorm.config.command import read
from attnorm.errors import ConfigError, Problem
from attnorm.imports import nearest
from attnorm.parts import names_of
from attnorm.sweeps.jobs import parse
from attnorm.sweeps.settings import SweepSettings

OWN = tuple(field.name for field in fields(SweepSettings))
REFUSED = {  # keys of a single run
    "resume": "a sweep resumes its runs by itself; repeat its command",
    "ckpt_path": "a sweep resumes its runs by itself; repeat its command",
    "hydra.run.dir": "the run folders are in the sweep folder; use dir=<sweep folder>",
    "hydra.sweep.dir": "the run folders are in the sweep folder; use dir=<sweep folder>",
    "hydra.mode": "each job of a sweep is a single run",
}


@dataclass(frozen=True)
class SweepCommand:
    """A command line that has been read.

    arguments: as they were typed.
    settings:  the keys of the sweep itself.
    overrides: all other overrides.
    options:   `--config-dir` and its values, which every run gets.
    folders:   the configuration folder, and those of `--config-dir`.
    """

    arguments: list[str]
    settings: SweepSettings
    overrides: list[Override]
    options: tuple[str, ...]
    folders: list[Path]

    @property
    def space(self) -> list[Override]:
        """The overrides that differ between the runs."""
        return [override for override in self.overrides if override.is_sweep_override()]

    def texts(self) -> list[str]:
        """All overrides as they were typed."""
        return as_typed([override.input_line or "" for override in self.overrides])


def read_sweep(conf: Path, arguments: Sequence[str]) -> SweepCommand:
    """Reads the arguments. Raises ConfigError with everything that is wrong with the keys of the sweep itself."""
    options, folders, rest, problems = split_options(conf, arguments)
    own = [it for it in rest if it.partition("=")[0].lstrip("+").partition(".")[0] in OWN]
    theirs = [it for it in rest if it not in own]
    for argument in theirs:
        key = argument.partition("=")[0].lstrip("+")
        if key in REFUSED:
            problems.append(Problem.about(key, f"{argument}: {REFUSED[key]}"))
        elif "." not in key and (suggestion := nearest(key, OWN, cutoff=0.7)) and not is_of_runs(key, folders):
            problems.append(Problem.about(key, f"{argument}: attnorm sweep has no such key.{suggestion}"))
    problems += wrong_choices(readable(theirs, is_sweep=True))
    command = read(own, SweepSettings, "attnorm sweep", known=problems)
    settings, overrides = command.settings, parse_overrides(folders, theirs)
    problems += settings.problems(command.typed)
    for override in overrides:
        if override.is_interval_sweep() and not settings.is_search:
            message = "an interval is for search=random and search=optuna; search=grid needs single values"
            problems.append(
                Problem.about(override.key_or_group, f"{as_typed([override.input_line or ''])[0]}: {message}")
            )
    if settings.is_search and not any(override.is_sweep_override() for override in overrides):
        problems.append(Problem("search", "needs at least one key with several values", settings.search))
    if problems:
        raise ConfigError(problems)
    return SweepCommand(list(arguments), settings, overrides, options, folders)


def is_of_runs(key: str, folders: Sequence[Path]) -> bool:
    """Whether a key without a dot is one of the runs: a group, or one of the keys at the top level."""
    from attnorm.resolved import RunConfig

    return key in names_of(RunConfig) or any((folder / key).is_dir() for folder in folders)


def split_options(conf: Path, arguments: Sequence[str]) -> tuple[tuple[str, ...], list[Path], list[str], list[str]]:
    """`--config-dir` options, all configuration folders, the other arguments, and problems with other options."""
    options, folders, rest, problems = [], [conf], [], []
    left = list(arguments)
    while left:
        argument = left.pop(0)
        name, equals, value = argument.partition("=")
        if name in ("--config-dir", "-cd"):
            value = value if equals else (left.pop(0) if left else "")
            options += ["--config-dir", value]
            folders.append(Path(value))
        elif argument in ("-m", "--multirun"):
            problems.append(f"{argument}: attnorm sweep always starts several runs; leave it out")
        elif argument.startswith("-"):
            problems.append(f"{argument}: no such option; allowed: --config-dir, --help, and key=value")
        else:
            rest.append(argument)
    if not options and (own := own_folder()):
        options, folders = ["--config-dir", str(own)], [conf, own]
    return tuple(options), folders, rest, problems


def parse_overrides(folders: Sequence[Path], arguments: Sequence[str]) -> list[Override]:
    """The overrides of the runs, in Hydra's grammar."""
    from hydra.core.global_hydra import GlobalHydra

    from attnorm.cli.check_jobs import start_hydra

    start_hydra(folders)
    rewritten = readable(arguments, is_sweep=True)
    register_attention(rewritten)
    try:
        return parse(rewritten, GlobalHydra.instance().config_loader())
    finally:
        GlobalHydra.instance().clear()
