"""`attnorm eval`: scores a run folder, or a file of predictions, by anyone, by the official rules."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from attnorm import progress
from attnorm.config.command import Command, read
from attnorm.config.recorded import OVERRIDABLE
from attnorm.data.sources.vqa_v2 import annotations_by_question, read_vqa_questions
from attnorm.errors import DataError, Problem
from attnorm.parts import TARGET, names_of
from attnorm.schema import Number, Text
from attnorm.tasks import rouge
from attnorm.tasks.results import Results
from attnorm.tasks.squad import metric as squad_metric
from attnorm.tasks.vqa import metric as vqa_metric
from attnorm.training import console
from attnorm.training.baselines import unbeaten, undefined

if TYPE_CHECKING:
    from attnorm.data.sources.base import Source
    from attnorm.run.run import Run
    from attnorm.settings import Settings

NEEDED = ("predictions", "references")
FILES = (*NEEDED, "questions", "null_odds")  # keys that name files
CheckpointName = Literal["best", "last"]


@dataclass(frozen=True, kw_only=True)
class FileKeys:
    """The keys of `attnorm eval` about files of predictions, as in conf/eval.yaml."""

    metric: Literal["squad", "vqa", "rouge"] | None = None
    predictions: Text | None = None
    references: tuple[Text, ...] | None = None
    questions: Text | None = None
    null_odds: Text | None = None
    null_threshold: Number = 1.0
    stemmer: bool = True
    rouge_words: rouge.Words | None = None
    rouge_lsum: bool = False


@dataclass(frozen=True, kw_only=True)
class RunKeys:
    """The keys of `attnorm eval` about runs, as in conf/eval.yaml."""

    run: Text | None = None
    split: Literal["validation", "test"] = "validation"
    ckpt: CheckpointName = "best"
    trust_code: bool = False


@dataclass(frozen=True, kw_only=True)
class EvalKeys(FileKeys, RunKeys):
    """The keys of `attnorm eval`."""


def evaluate(arguments: list[str]) -> None:
    """Scores a run on a split, see `score_run`; or, with `metric`, a file of predictions."""
    progress.quiet_libraries()
    command = read(arguments, EvalKeys, "attnorm eval", OVERRIDABLE, check=key_problems)
    if (metric := command.settings.metric) is None:
        return score_run(command)
    scores = METRICS[metric].score(command.settings)
    console.show_scores(scores, metric)
    console.show_warnings(undefined(scores))


def key_problems(command: Command[EvalKeys]) -> Iterator[Problem]:
    """Keys that are missing, or not for what is scored: a run, or a file."""
    if command.settings.metric is not None:
        yield from file_problems(command)
        return
    metrics = f"metric={'|'.join(METRICS)}"
    if command.settings.run is None:
        yield Problem("run", f"must be given, as in run=<run folder>, or {metrics} with files to score")
    else:
        for key in (key for key in names_of(FileKeys) if key in command.typed):
            yield Problem(key, f"it is for {metrics}, which score a file, not a run")


def score_run(command: Command[Any]) -> None:
    """Scores a run on a split and writes eval_<split>.json, and what the model wrote, into its folder."""
    from attnorm.run.checkpoint import digest_of
    from attnorm.run.folder import RunState, find_folder
    from attnorm.run.opening import open_run
    from attnorm.run.writing import RunWriter
    from attnorm.tasks.data_notes import data_notes
    from attnorm.tasks.task import task_of

    keys = command.settings
    run, split = RunWriter(find_folder(str(keys.run), "run")), keys.split
    trained, cfg = configurations(run, command, (split,))
    tokenizer, model, step = open_run(run.folder, cfg, keys.ckpt)
    task = task_of(cfg, run.folder)
    data = task.splits(tokenizer, (split,), cleaner(trained, cfg))[split]
    scores = task.score(task.module(model, tokenizer, data), data)
    if scores.predictions is not None:
        scores.predictions.input_hashes = task.input_hashes(data)
        scores.predictions.checkpoint = {"update": step, "sha256": digest_of(run.checkpoint_file(keys.ckpt))}
    notes = data_notes(task, {split: data}, run.summary.get("data_fingerprints"))
    name = run.free_name(f"eval_{split}")
    written = run.write_results(scores, name)
    made_by = {"checkpoint": keys.ckpt, "step": step, "typed": dict(command.changes), "data": cfg.settings["data"]}
    run.write(name, {**made_by, "data_notes": notes, **scores.record()})
    console.show_scores(scores, cfg.label)
    unfinished = [] if run.state is RunState.FINISHED else [f"the training is {run.state}; this is its update {step:,}"]
    console.show_warnings([*undefined(scores), *unbeaten(scores, task.monitors()), *notes, *unfinished])
    progress.console.print(f"written to {', '.join([f'{run.folder / name}.json', *written])}")


def cleaner(trained: dict[str, Any], cfg: "Settings") -> "Source":
    """The source whose cleaning a run keeps: its own, also with `data=<another source>`; its options may be changed.

    trained: the configuration of the run; cfg: that of the evaluation.
    """
    from attnorm.config.read import read_recorded
    from attnorm.tasks.task import task_of

    same = cfg.settings["data"][TARGET] == trained["data"][TARGET]
    return task_of(cfg if same else read_recorded(trained)).source()


def configurations(
    run: "Run", command: Command[Any], splits: tuple[str, ...] = ()
) -> "tuple[dict[str, Any], Settings]":
    """A run's configuration, as it was trained and with the overrides applied. splits: as in `read_recorded`."""
    from attnorm.config.read import read_recorded
    from attnorm.config.recorded import changed
    from attnorm.run.opening import read_run

    recorded = read_run(run.folder, command.settings.trust_code, [key for key, _ in command.changes])
    return recorded, read_recorded(changed(recorded, command.changes), splits)


def squad(keys: FileKeys) -> Results:
    """Exact match and F1; with odds of no answer, at the threshold and at the best one."""
    path, reference = files_to_score(keys)
    predictions, gold = squad_metric.read_predictions(path), squad_metric.read_references(reference)
    odds = None if keys.null_odds is None else squad_metric.read_null_odds(keys.null_odds)
    scores = naming_files(keys, lambda: squad_metric.score(predictions, gold, odds, keys.null_threshold))
    note = "best_*: of the answers that are not yet empty (a run's are in .spans.json)" if odds is not None else ""
    return Results(Path(path).name, "questions", scores.pop("total"), scores, note=note)


def vqa(keys: FileKeys) -> Results:
    """The official accuracy, overall and by answer type."""
    path, reference = files_to_score(keys)
    if keys.questions is not None:
        questions = Path(keys.questions)
        # raises where they do not go together
        annotations_by_question(read_vqa_questions(questions), questions, Path(reference))
    gold, predictions = vqa_metric.read_references(Path(reference)), vqa_metric.read_predictions(path)
    outcome = naming_files(keys, lambda: vqa_metric.score(predictions, gold))
    refused = "the official evaluation refuses this file: it needs exactly one answer to each question"
    scores = {name: outcome[name] for name in ("accuracy", "missing", "extra")} | outcome["answer_types"]
    note = refused if outcome["missing"] or outcome["extra"] else ""
    return Results(Path(path).name, "questions", outcome["total"], scores, note=note)


def lines(keys: FileKeys) -> Results:
    """ROUGE-1, -2 and -L of texts, one per line, against one file of references or several."""
    path, *references = files_to_score(keys)
    texts = rouge.read_texts(path)
    if not texts:
        raise DataError(f"{path}: there are no lines to score")
    golds = rouge.read_references(references, path, len(texts))
    words = keys.rouge_words or rouge.words_for(gold for golds_of_text in golds for gold in golds_of_text)
    scorer = rouge.Rouge(keys.stemmer, words, keys.rouge_lsum)
    scores = scorer.detailed(progress.tracked(texts, "ROUGE"), golds)
    best = f"; the best F1 over {len(references)} references counts" if len(references) > 1 else ""
    extra = {"undefined": scorer.undefined(golds)}
    return Results(Path(path).name, "texts", len(texts), scores, note=scorer.describe() + best, extra=extra)


def files_to_score(keys: FileKeys) -> list[str]:
    """The file of predictions, and those of references."""
    return [str(keys.predictions), *(keys.references or ())]


def naming_files(keys: FileKeys, score: Callable[[], dict]) -> dict:
    """What `score` gives; its errors name the files."""
    try:
        return score()
    except ValueError as error:
        raise DataError(f"{', '.join(files_to_score(keys))}: {error}") from error


class Metric(NamedTuple):
    """How a file is scored, the keys that this reads, and whether there may be several files of references."""

    score: Callable[[FileKeys], Results]
    reads: tuple[str, ...]
    several: bool = False


METRICS = {
    "squad": Metric(squad, ("predictions", "references", "null_odds", "null_threshold")),
    "vqa": Metric(vqa, ("predictions", "references", "questions")),
    "rouge": Metric(lines, ("predictions", "references", "stemmer", "rouge_words", "rouge_lsum"), several=True),
}


def file_problems(command: Command[EvalKeys]) -> Iterator[Problem]:
    """What keys about files are missing, not read, or do not go together."""
    keys = command.settings
    metric = METRICS[str(keys.metric)]
    for key in (key for key in names_of(RunKeys) if key in command.typed):
        yield Problem(key, "metric scores a file, not a run; type one of them")
    for key, _ in command.changes:
        yield Problem(key, "a file has no run to change")
    for key in (key for key in names_of(FileKeys) if key in command.typed - {"metric", *metric.reads}):
        yield Problem(key, f"metric={keys.metric} does not read it")
    if keys.references and len(keys.references) > 1 and not metric.several:
        yield Problem("references", f"metric={keys.metric} reads one file", keys.references)
    for key in (key for key in FILES if key in metric.reads):
        value = getattr(keys, key)
        if not value and key in NEEDED:
            yield Problem(key, f"must be given, as in {key}=<file>")
        for path in value if isinstance(value, tuple) else [value] if value else []:
            if not Path(path).is_file():
                yield Problem(key, "no such file", path)
    if "null_threshold" in command.typed & {*metric.reads} and keys.null_odds is None:
        message = "it says which null_odds are too high; type null_odds=<file> too"
        yield Problem("null_threshold", message, keys.null_threshold)
