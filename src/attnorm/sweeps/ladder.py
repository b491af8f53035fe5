"""`ladder=<file>`: every arm is trained on each rung of a ladder, a model of one shape in several sizes.

A file of the group `ladder` has the number of training tokens per parameter, and for each rung the keys that it sets.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from attnorm.errors import ConfigError, Problem, in_yaml
from attnorm.imports import nearest
from attnorm.schema import Positive, read_options
from attnorm.sweeps.jobs import override_key

RECORD = "run.ladder"  # the key with which a run records its rung
UPDATES = "trainer.max_steps"  # the key that says how long a rung trains
LENGTH = (UPDATES, "trainer.max_epochs", "task.max_steps")  # keys that would say it, too
GROUPS = ("model", "optimizer", "trainer")  # a rung may set their keys
FIXED = ("model.max_target", "model.max_source", *LENGTH)  # but not these: losses would not be comparable
SWEPT = ("attention", "optimizer", "scheduler")  # groups in whose keys arms may differ, and that may be tuned
BEYOND = "beyond"  # marks a rung that checks a projection from the others


@dataclass(frozen=True, kw_only=True)
class LadderFile:
    """What the file of a ladder says. rungs: the keys of each, and `beyond: true` for one that is held out."""

    tokens_per_parameter: Positive
    rungs: list[dict[str, Any]]


@dataclass(frozen=True)
class Rung:
    """A rung. number: from 1. values: what it sets, by key. is_beyond: whether it is held out to check a projection."""

    number: int
    values: Mapping[str, Any]
    is_beyond: bool

    def overrides(self, without: str | None = None, **record: Any) -> tuple[str, ...]:
        """The overrides that put a job on this rung. without: a key that is tuned. record: what else a run records."""
        values = {key: value for key, value in self.values.items() if key != without}
        values[RECORD] = {"rung": self.number, BEYOND: self.is_beyond, **record}
        return tuple(f"++{key}={in_yaml(value)}" for key, value in values.items())


@dataclass(frozen=True)
class Ladder:
    """A ladder. name: of its file. tokens_per_parameter: of training."""

    name: str
    tokens_per_parameter: float
    rungs: tuple[Rung, ...]

    @property
    def keys(self) -> list[str]:
        """The keys in which rungs differ, besides the number of updates."""
        return list(dict.fromkeys(key for rung in self.rungs for key in rung.values))

    def problems(self, typed: Mapping[str, bool], tuned: str | None) -> Iterator[Problem]:
        """What is wrong with the overrides of a command that has this ladder.

        typed: the keys of all overrides, and whether they have several values. tuned: the key that is tuned.
        """
        for key, is_swept in typed.items():
            if key in LENGTH:
                yield Problem(key, f"the rungs of ladder={self.name} set the number of updates; leave it out")
            elif key in self.keys and key != tuned:
                yield Problem(key, f"is set by the rungs of ladder={self.name}; leave it out, or write another ladder")
            elif is_swept and key not in ("seed", tuned) and key.partition(".")[0] not in SWEPT:
                yield Problem(key, f"with a ladder, arms differ in keys of {', '.join(SWEPT)} only")
        if tuned is not None and tuned.partition(".")[0] not in SWEPT:
            yield Problem("tune", f"with a ladder, keys of {', '.join(SWEPT)} are tuned", tuned)


def read_ladder(name: str, folders: Sequence[Path]) -> Ladder:
    """The ladder in a file. folders: the configuration folder, and those of `--config-dir`; the last file counts.

    Raises ConfigError for a file that is not there, or is no ladder.
    """
    files = {path.stem: path for folder in folders for path in sorted((folder / "ladder").glob("*.yaml"))}
    if name not in files:
        raise ConfigError([Problem("ladder", f"allowed: {', '.join(files)}.{nearest(name, files)}", name)])
    try:
        content = yaml.safe_load(files[name].read_text())
        if not isinstance(content, dict):
            raise ValueError("expected tokens_per_parameter and rungs")
        found = LadderFile(**read_options("", LadderFile, content, owner="a ladder"))
        rungs = tuple(
            Rung(number, {key: value for key, value in rung.items() if key != BEYOND}, rung.get(BEYOND) is True)
            for number, rung in enumerate(found.rungs, start=1)
        )
        if problems := [*_problems_of(rungs, found.rungs)]:
            raise ConfigError(problems)
    except (OSError, ValueError, yaml.YAMLError, ConfigError) as error:
        problems = error.problems if isinstance(error, ConfigError) else [" ".join(str(error).split())]
        raise ConfigError([Problem("ladder", f"{files[name]}: {problem}", name) for problem in problems]) from error
    return Ladder(name, found.tokens_per_parameter, rungs)


def _problems_of(rungs: Sequence[Rung], written: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What is wrong with the rungs of a ladder."""
    if all(rung.is_beyond for rung in rungs):
        yield f"rungs: expected at least one that is not {BEYOND}"
    for rung, values in zip(rungs, written, strict=True):
        if not isinstance(values.get(BEYOND, False), bool):
            yield f"rung {rung.number}: {BEYOND}={in_yaml(values[BEYOND])}: allowed: true, false"
        for key in rung.values:
            group, dot, _ = key.partition(".")
            if key in FIXED or not ((dot and group in GROUPS) or key == "data.batch_tokens"):
                allowed = f"keys of {', '.join(GROUPS)}, without {', '.join(FIXED)}, and data.batch_tokens"
                yield f"rung {rung.number}: {key} may not differ between rungs; allowed: {allowed}"
        for other in rungs[: rung.number - 1]:
            if other.values == rung.values:
                yield f"rungs {other.number} and {rung.number} are equal"


def rung_in(job: Sequence[str]) -> str:
    """The number of the rung of a job as a text, from its overrides; "" without a ladder."""
    record = next((override for override in job if override_key(override) == RECORD), "")
    return record.partition("rung:")[2].partition(",")[0]
