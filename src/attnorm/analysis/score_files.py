"""Scores of single examples in the files of other programs: tables in CSV, the samples of lm-evaluation-harness
(`--log_samples`, samples_*.jsonl), and the logs of inspect_ai (.eval, .json), which its own library reads.

What is read is never imported: the files may come from anyone.
"""

import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, isinf, isnan
from pathlib import Path
from typing import Any

import numpy as np

from attnorm.analysis.arms import expanded
from attnorm.errors import ConfigError, DataError, Problem, UserError
from attnorm.imports import nearest
from attnorm.wording import listed

ScorePlaces = str | Sequence[str] | Mapping[str, str | Sequence[str]]
ARM, SEED = "{arm}", "{seed}"
UNNAMED = "score"  # the metric of a table in CSV
GIVE_ARMS = (
    "which arm the scores are of must be given: by scores.<arm>=[<a file for each seed>], or by {arm} in the path, as "
    "in 'out/{arm}_{seed}/**/samples_*.jsonl'"
)
WORDS = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0, "yes": 1.0, "no": 0.0, "true": 1.0, "false": 0.0}  # of inspect_ai


@dataclass(frozen=True)
class ScoreFile:
    """A file, and the arm and the seed of its scores; None if it says so itself."""

    path: Path
    arm: str | None
    seed: int | None


@dataclass(frozen=True)
class ExampleScore:
    """The scores of an example by metric, NaN where the program has given none.

    task: what its id belongs to; "" if there is one task. content: what must be equal for equal ids, such as a hash of
    the input; "" if not known. where: the file and the line.
    """

    arm: str
    seed: int
    example: str
    values: Mapping[str, float]
    where: str
    task: str = ""
    group: str = ""
    content: str = ""


@dataclass(frozen=True)
class ExampleScores:
    """All scores in some files on one metric.

    values: by arm, seed and example. groups: of the examples; None if every one is on its own. source: in words.
    """

    metric: str
    values: dict[str, dict[int, dict[str, float]]]
    groups: dict[str, str] | None
    source: str


def read_scores(scores: ScorePlaces, metric: str | None = None) -> ExampleScores:
    """The scores in files.

    scores: a file, a pattern, or several of them, in which {arm} and {seed} stand for what a path says; or, by arm,
    a file or a pattern for each seed. metric: which one; None: the only one. In a table in CSV it is a name.

    Several scores of an example in one log, those of epochs, are averaged. Raises DataError, with file and line, for
    what is no score, and ConfigError for another metric.
    """
    files = list(score_files(scores))
    if not files:
        raise DataError(f"scores={scores}: no such file")
    values: dict[str, dict[int, dict[str, float]]] = {}
    groups, contents, tasks = dict[str, str](), dict[str, tuple[str, str]](), dict[str, None]()
    lines = dict[tuple[str, int, str], str]()
    for file in files:
        if (read_file := READERS.get(file.path.suffix)) is None:
            allowed = "a table (.csv), samples of lm-evaluation-harness (.jsonl) or a log of inspect_ai (.eval, .json)"
            found = ", found a folder; name its files by a pattern, such as <folder>/**/samples_*.jsonl"
            raise DataError(f"{file.path}: expected {allowed}{found * file.path.is_dir()}")
        if not file.path.is_file():
            raise DataError(f"{file.path}: no such file")
        try:
            read = list(read_file(file))
        except (UnicodeDecodeError, csv.Error) as error:
            raise DataError(f"{file.path}: {error}") from error
        for score in read:
            metric = _chosen(metric, score)
            key = f"{score.task}/{score.example}" if score.task else score.example
            of_run = values.setdefault(score.arm, {}).setdefault(score.seed, {})
            if first := lines.get((score.arm, score.seed, key)):
                who = f"{score.arm}, seed {score.seed}"
                raise DataError(f"{score.where}: a second score of example {key} of {who}; the first is in {first}")
            content, first = contents.setdefault(key, (score.content, score.where))
            is_other = "" not in (content, score.content) and content != score.content
            if is_other or groups.setdefault(key, score.group) != score.group:
                what = "another input" if is_other else "another group"
                raise DataError(f"{score.where}: example {key} has {what} than in {first}")
            lines[score.arm, score.seed, key], tasks[score.task] = score.where, None
            value = next(iter(score.values.values())) if file.path.suffix == ".csv" else score.values[metric]
            if isinf(value):
                raise DataError(f"{score.where}: {metric}={value}: expected a finite number")
            if not isnan(value):
                of_run[key] = value
    names = [task for task in tasks if task]
    typed = f" ({scores})" * isinstance(scores, str)
    about = str(files[0].path) if len(files) == 1 else f"{len(files):,} files{typed}"
    if metric is None:
        raise DataError(f"{about}: no scores")
    about += f" with examples of {listed(names)}" * bool(names)
    return ExampleScores(metric, values, groups if any(groups.values()) else None, about)


def _chosen(metric: str | None, score: ExampleScore) -> str:
    """The metric to read. Raises ConfigError if the scores have no such metric, or several and none was chosen."""
    names = [*score.values]
    if names == [UNNAMED] or metric in names:
        return metric or UNNAMED
    short = [name for name in names if name.partition(",")[0] == metric]  # without a filter
    if len(short) == 1 or (metric is None and len(names) == 1):
        return (short or names)[0]
    message = f"{score.where} has {', '.join(names) or 'no number'}; choose one before you see the scores."
    value = () if metric is None else (metric,)
    raise ConfigError([Problem("metric", f"{message}{nearest(metric or '', names)}", *value)])


# ---------------------------------------------------------------------------------------------------------- which files


def score_files(scores: ScorePlaces) -> Iterator[ScoreFile]:
    """The files that `read_scores` reads."""
    by_arm: Mapping[Any, str | Sequence[str]] = scores if isinstance(scores, Mapping) else {None: scores}
    for arm, places in by_arm.items():
        for number, place in enumerate([places] if isinstance(places, str) else places, start=1):
            yield from _matching(place, arm, None if arm is None else number)


def _matching(place: str, arm: str | None, seed: int | None) -> Iterator[ScoreFile]:
    """The files of a path or pattern, with the arm and the seed that their paths say."""
    kinds = {ARM: "(?P<arm>[^/]+?)", SEED: r"(?P<seed>\d+)", "**/": "(?:.*/)?", "*": "[^/]*", "?": "[^/]"}
    pattern = ""
    for part in re.split(r"(\{arm\}|\{seed\}|\*\*/|\*|\?|\[[^]]*\])", place):
        name = part.strip("{}")
        again = part in (ARM, SEED) and f"(?P<{name}>" in pattern
        pattern += f"(?P={name})" if again else kinds.get(part, part if part.startswith("[") else re.escape(part))
    for path in expanded(place.replace(ARM, "*").replace(SEED, "*")):
        if match := re.fullmatch(pattern, str(path)):
            said = match.groupdict()
            number = int(said["seed"]) if "seed" in said else seed
            yield ScoreFile(path, said.get("arm", arm), number)


# -------------------------------------------------------------------------------------------------------------- readers


def _read_table(file: ScoreFile) -> Iterator[ExampleScore]:
    """The columns arm, seed, example, score, and group if there is one; without what the path says."""
    known = {"arm": file.arm, "seed": None if file.seed is None else str(file.seed)}
    with open(file.path, newline="", encoding="utf-8-sig") as content:
        rows = csv.DictReader(content)
        header = list(rows.fieldnames or ())
        for name in ("arm", "seed", "example", "score"):
            if name not in header and known.get(name) is None:
                has = f"has {listed(header)}" if header else "is empty"
                raise DataError(f"{file.path}, line 1: no column {name}; the file {has}")
        for row in rows:
            where = f"{file.path}, line {rows.line_num}"
            row = {name: (text or "").strip() for name, text in row.items() if name}
            row |= {name: text for name, text in known.items() if text is not None}
            for name in ("arm", "example"):
                if not row[name]:
                    raise DataError(f"{where}: {name} is empty")
            if not re.fullmatch(r"\d+", row["seed"]):
                raise DataError(f"{where}: seed={row['seed']!r}: expected a whole number")
            try:
                score = float(row["score"])
            except ValueError:
                raise DataError(f"{where}: score={row['score']!r}: expected a number") from None
            if not isfinite(score):
                raise DataError(f"{where}: score={row['score']}: expected a finite number; leave out what has no score")
            of_run = (row["arm"], int(row["seed"]), row["example"])
            yield ExampleScore(*of_run, {UNNAMED: score}, where, group=row.get("group", ""))


def _read_samples(file: ScoreFile) -> Iterator[ExampleScore]:
    """A line per example and filter. The metrics are named as in the results: acc, or exact_match,strict-match."""
    if file.arm is None:
        raise DataError(f"{file.path}: {GIVE_ARMS}")
    named = re.fullmatch(r"samples_(.+?)_\d{4}-\d\d-\d\dT.*", file.path.stem)
    values: dict[str, dict[str, float]] = {}
    seen: dict[str, tuple[str, str]] = {}
    with open(file.path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            where = f"{file.path}, line {number}"
            try:
                row = json.loads(line)
                example, kind = str(row["doc_id"]), str(row.get("filter", "none"))
                names = row.get("metrics", [name for name, cell in row.items() if isinstance(cell, (int, float))])
                numbers = {str(name): row.get(name) for name in names if name != "doc_id"}
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                raise DataError(f"{where}: expected a sample of lm-evaluation-harness, with its doc_id") from None
            of_example = values.setdefault(example, {})
            for name, value in numbers.items():
                key = name if kind == "none" else f"{name},{kind}"
                if key in of_example:
                    raise DataError(f"{where}: a second {key} of example {example}; the first is in {seen[example][0]}")
                if value is None or isinstance(value, (int, float)):  # a list has what metrics of a corpus sum up
                    of_example[key] = float("nan") if value is None else float(value)
            seen.setdefault(example, (where, str(row.get("doc_hash", ""))))
    task = named[1] if named else ""
    for example, (where, content) in seen.items():
        yield ExampleScore(file.arm, file.seed or 1, example, values[example], where, task, "", content)


def _read_inspect_log(file: ScoreFile) -> Iterator[ExampleScore]:
    """A sample and its epochs, of which the mean counts. The metrics are the scorers, or <scorer>/<name>."""
    try:
        from inspect_ai.log import read_eval_log
    except ImportError as error:
        raise UserError(f"{file.path}: logs of inspect_ai need its package: pip install inspect_ai") from error
    try:
        log: Any = read_eval_log(str(file.path))
    except Exception as error:  # whatever it raises for a file that is no log
        raise DataError(f"{file.path}: no log of inspect_ai: {error}") from error
    if log.status != "success":
        raise DataError(f"{file.path}: the evaluation has the status {log.status}, so it is not compared")
    epochs: dict[str, dict[str, list[float]]] = {}
    contents: dict[str, str] = {}
    for sample in log.samples or ():
        where = f"{file.path}, sample {sample.id}, epoch {sample.epoch}"
        of_sample = epochs.setdefault(str(sample.id), {})
        contents.setdefault(str(sample.id), f"{sample.input} {sample.target}")
        for scorer, score in (sample.scores or {}).items():
            several = score.value if isinstance(score.value, dict) else {"": score.value}
            for name, value in several.items():
                key = f"{scorer}/{name}" if name else scorer
                of_sample.setdefault(key, []).append(_number(value, f"{where}, {key}"))
    names = dict.fromkeys(name for of_sample in epochs.values() for name in of_sample)
    for example, of_sample in epochs.items():
        scored = {name: [number for number in of_sample.get(name, ()) if not isnan(number)] for name in names}
        means = {name: float(np.mean(each)) if each else float("nan") for name, each in scored.items()}
        arm, where, task = file.arm or str(log.eval.model), f"{file.path}, sample {example}", str(log.eval.task)
        yield ExampleScore(arm, file.seed or 1, example, means, where, task, "", contents[example])


def _number(value: Any, where: str) -> float:
    """A value of inspect_ai as a number: C, I, P and N are 1, 0, 0.5 and 0. NaN for None, which is not scored."""
    known = WORDS.get(value, WORDS.get(value.lower())) if isinstance(value, str) else value
    try:
        return float("nan") if value is None else float(value if known is None else known)
    except (TypeError, ValueError):
        raise DataError(f"{where}: {value!r} is no number") from None


READERS: dict[str, Callable[[ScoreFile], Iterator[ExampleScore]]] = {
    ".csv": _read_table,
    ".jsonl": _read_samples,
    ".eval": _read_inspect_log,
    ".json": _read_inspect_log,
}
