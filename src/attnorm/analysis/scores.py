"""The scores of single examples in a run folder, from which arms are compared."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

import numpy as np
import pandas as pd

from attnorm.analysis.statistics.corpus import mean_loss, perplexity, pseudo_values
from attnorm.errors import RunError
from attnorm.imports import TRUST, find, trusted_packages
from attnorm.run.run import VALIDATION, Run
from attnorm.tasks.results import CHECKPOINT, CORPUS_METRICS, CorpusMetric, direction
from attnorm.wording import counted

log = logging.getLogger(__name__)

Source = Literal["test", "half", "validation"]
SplitName = Literal["auto", "test", "validation"]
TEST = "eval_test"  # stem of the tables of the test split


class MeanLoss(CorpusMetric):
    """The mean loss per token."""

    columns = ("loss_sum", "n_tokens")
    of = staticmethod(mean_loss)


class Perplexity(CorpusMetric):
    """exp of the mean loss per token."""

    columns = ("loss_sum", "n_tokens")
    of = staticmethod(perplexity)


class TokenAccuracy(CorpusMetric):
    """The share of correct tokens, in percent."""

    columns = ("correct", "n_tokens")

    @staticmethod
    def of(totals: np.ndarray) -> np.ndarray:
        return 100 * mean_loss(totals)


COMMON_METRICS: dict[str, type[CorpusMetric]] = {"loss": MeanLoss, "perplexity": Perplexity, "accuracy": TokenAccuracy}


@dataclass(frozen=True)
class ExampleTable:
    """The examples of a run on which it is compared.

    rows: the table of predictions, indexed by `id`. source: "test", "half" (the half of the validation split that did
    not select the checkpoint) or "validation" (all of it, although it selected the checkpoint).
    corpus_metrics: metrics of the task that are no means over examples; those in `COMMON_METRICS` are always included.
    """

    rows: pd.DataFrame
    source: Source
    corpus_metrics: Mapping[str, type[CorpusMetric]] = field(default_factory=dict)

    def metrics(self) -> list[str]:
        """The names of the metrics that can be compared."""
        columns = list(self.rows.columns)
        before_losses = columns[columns.index("output") + 1 : columns.index("loss_sum")]
        return list(dict.fromkeys((*self.corpus_metrics, *before_losses, *self.corpus())))

    def corpus(self) -> dict[str, type[CorpusMetric]]:
        """The metrics that are computed from sums over examples."""
        every = {**COMMON_METRICS, **self.corpus_metrics}
        return {name: metric for name, metric in every.items() if {*metric.columns} <= {*self.rows.columns}}

    def values(self, metric: str, ids: Sequence[str]) -> np.ndarray:
        """The scores of examples, float64 (n,), NaN if missing; pseudo-values for a metric of the corpus."""
        rows, corpus = self.rows.loc[list(ids)], self.corpus().get(metric)
        if corpus is not None:
            sums = corpus.sums(rows)
            values = np.full(len(rows), np.nan)
            known = np.isfinite(sums).all(1)
            if known.sum() > 1 and np.isfinite(corpus.of(sums[known].sum(0))):
                values[known] = pseudo_values(sums[known], corpus.of)
            return values
        return rows[metric].to_numpy(np.float64)

    def overall(self, metric: str, ids: Sequence[str]) -> float:
        """The metric of all these examples together; NaN if none of them has a score."""
        rows, corpus = self.rows.loc[list(ids)], self.corpus().get(metric)
        if corpus is not None:
            sums = corpus.sums(rows)
            sums = sums[~np.isnan(sums).any(1)]
            return float(corpus.of(sums.sum(0))) if len(sums) else float("nan")
        return float(rows[metric].mean())

    def groups(self, ids: Sequence[str]) -> list[str] | None:
        """The group of each example, such as its book; None if every example is a group of its own."""
        labels = list(self.rows.loc[list(ids), "group"])
        return labels if len(set(labels)) < len(labels) else None

    def texts(self, column: str, ids: Sequence[str]) -> list[str]:
        """The references or outputs of examples; a list of texts as one text."""
        values = self.rows.loc[list(ids), column]
        return [value if isinstance(value, str) else repr(list(value)) for value in values]

    def input_hashes(self, ids: Sequence[str]) -> tuple[list[str], list[str] | None] | None:
        """The hashes of what the model was given, and of the images among that; None where they are not recorded."""
        if "input_hash" not in self.rows:
            return None
        parts = [str(value).partition("-") for value in self.rows.loc[list(ids), "input_hash"]]
        images = [image for _, _, image in parts]
        return [text for text, _, _ in parts], images if all(images) else None


def example_table(run: Run, split: SplitName) -> ExampleTable | None:
    """The examples of a run on one split; None if the run has not been scored on it.

    "auto" and "validation" take the half of the validation split that did not select the checkpoint.
    """
    stem = test_table(run) if split == "test" else VALIDATION
    rows = read_table(run, stem) if stem else None
    if stem is None or rows is None:
        return None
    corpus_metrics = corpus_metrics_of(run, stem)
    if split == "test":
        return ExampleTable(rows, "test", corpus_metrics)
    if "selecting" in rows and not rows["selecting"].all():
        return ExampleTable(rows[~rows["selecting"]], "half", corpus_metrics)
    return ExampleTable(rows, "validation", corpus_metrics)


def scores_of_run(run: Run, split: SplitName, metric: str, ids: Sequence[str]) -> np.ndarray | None:
    """The scores of these examples, see `ExampleTable.values`; None if the run has not been scored on all of them."""
    table = example_table(run, split)
    return None if table is None or not {*ids} <= {*table.rows.index} else table.values(metric, ids)


def common_split(runs: Sequence[Run], split: SplitName) -> SplitName:
    """The split on which all runs are compared. "auto": the test split if all of them have been scored on it."""
    if split != "auto":
        return split
    return "test" if runs and all(test_table(run) for run in runs) else "validation"


def common_metrics(tables: Sequence[ExampleTable]) -> list[str]:
    """The metrics that all tables have, those of the task before the losses."""
    names = [table.metrics() for table in tables]
    return [name for name in (names[0] if names else []) if all(name in each for each in names)]


def shared_examples(tables: Mapping[str, ExampleTable], metric: str) -> tuple[list[str], list[str]]:
    """The ids of the examples that all runs have a score for, in order, and notes about those that they have not.

    tables: by the name of the run. Raises RunError if the runs have no such example.
    """
    ids = list(next(iter(tables.values())).rows.index)
    common = set(ids).intersection(*(table.rows.index for table in tables.values()))
    notes = list[str]()
    if len(common) < max(len(table.rows) for table in tables.values()):
        notes = [f"The runs have {len(common):,} examples in common; those that only some of them have are left out."]
    ids = [name for name in ids if name in common]
    scored = {name: np.isfinite(table.values(metric, ids)) for name, table in tables.items()} if ids else {}
    if none := [name for name, known in scored.items() if not known.any()]:
        raise RunError(f"no example has a finite {metric} in the scores of {'; '.join(none)}")
    known = np.all([*scored.values()], axis=0) if ids else np.zeros(0, bool)
    if not known.all():
        notes.append(f"Left out for want of a score in some run: {counted(int((~known).sum()), 'example')}.")
    if not known.any():
        raise RunError("the runs have no example in common that all of them were scored on")
    return [name for name, is_known in zip(ids, known, strict=True) if is_known], notes


def test_tables(run: Run) -> list[str]:
    """The stems of the tables of the test split with the settings and the best checkpoint of the run, newest first."""
    records = {stem: run.evaluation(stem) for stem in run.repeated(TEST)}
    best = {stem: record for stem, record in records.items() if record.get("checkpoint", "best") == "best"}
    return [stem for stem, record in best.items() if not record.get("typed")]


def test_table(run: Run) -> str | None:
    """The newest of `test_tables` that scores the checkpoint that is the best one of the run now; None without one."""
    now = run.about_examples(CHECKPOINT)
    for stem in test_tables(run):
        then = run.about_examples(CHECKPOINT, stem)
        if not then or not now or then == now:  # otherwise training was continued after this evaluation
            return stem
    return None


def check_current(runs: Sequence[Run], split: SplitName) -> None:
    """Raises RunError if the test split is to be compared and a run has only scores of an earlier checkpoint on it."""
    if split == "validation" or (split == "auto" and not all(test_tables(run) for run in runs)):
        return
    for run in runs:
        if test_table(run) is None and (stems := test_tables(run)):
            then, now = (run.about_examples(CHECKPOINT, stem).get("update", "?") for stem in (stems[0], VALIDATION))
            raise RunError(
                f"{run.folder}: its scores on the test split are of update {then}, but training was continued, and its "
                f"best checkpoint is of update {now}. Score it again: attnorm eval run={run.folder} split=test"
            )


def corpus_metrics_of(run: Run, stem: str = VALIDATION) -> dict[str, type[CorpusMetric]]:
    """The metrics that a table of predictions names, as far as their code is from this package or trusted.

    Raises RunError if one of them is not a `CorpusMetric`.
    """
    metrics, path = {}, run.predictions_file(stem)
    for name, where in run.about_examples(CORPUS_METRICS, stem).items():
        package = str(where).partition(":")[0].partition(".")[0]
        if package not in trusted_packages():
            log.warning("%s: %s is computed by %s; to include it, add %r to %s", path, name, where, package, TRUST)
            continue
        try:
            metrics[name] = find("metric", where, {}, CorpusMetric)
        except ValueError as error:
            raise RunError(f"{path}: {name} cannot be computed: {error}") from error
    return metrics


def read_table(run: Run, stem: str = VALIDATION) -> pd.DataFrame | None:
    """A table of predictions, indexed by the ids of its examples. Raises RunError if it is damaged."""
    path, rows = run.predictions_file(stem), run.examples(stem)
    if rows is None:
        return None
    if missing := {"id", "group", "reference", "output", "loss_sum", "n_tokens"} - set(rows.columns):
        raise RunError(f"{path}: has no column {min(missing)}")
    columns = list(rows.columns)
    scores = [*columns[columns.index("output") + 1 : columns.index("loss_sum")], "loss_sum", "n_tokens"]
    wrong = [name for name in ("id", "group") if not all(isinstance(value, str) for value in rows[name])]
    wrong += [name for name in scores if not pd.api.types.is_numeric_dtype(rows[name])]
    wrong += ["selecting"] if "selecting" in rows and not pd.api.types.is_bool_dtype(rows["selecting"]) else []
    if wrong:
        raise RunError(f"{path}: the column {wrong[0]} has values of another kind")
    if not rows["id"].is_unique:
        raise RunError(f"{path}: has several rows of one id")
    return cast(pd.DataFrame, rows.set_index("id"))


def direction_of(runs: Sequence[Run], metric: str) -> int:
    """1 if a higher value of the metric is better, -1 if a lower one is, as the task of the runs declares it."""
    recorded = (run.summary.get("directions") for run in runs)
    return direction(metric, next((known for known in recorded if isinstance(known, dict) and metric in known), None))


def primary_metric(runs: Sequence[Run]) -> str | None:
    """The metric that the task declares as its primary one, as recorded in summary.json; None if it is not recorded."""
    return next((str(run.summary["primary"]) for run in runs if run.summary.get("primary")), None)
