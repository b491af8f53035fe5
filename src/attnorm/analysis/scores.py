"""The scores of single examples in a run folder, from which arms are compared."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
import pandas as pd

from attnorm.analysis.arms import TrainedRun
from attnorm.analysis.statistics.corpus import mean_loss, perplexity, pseudo_values
from attnorm.config.checkpoint_files import BEST
from attnorm.config.run_state import read_json
from attnorm.data.readers.text import digest
from attnorm.errors import RunError
from attnorm.tasks.results import PREDICTIONS

Source = Literal["test", "half", "validation"]
SplitName = Literal["auto", "test", "validation"]
TEST, VALIDATION = "eval_test", "validation"  # stems of the tables


@dataclass(frozen=True)
class CorpusMetric:
    """A metric that is no mean over examples: the columns whose sums determine it, and how."""

    columns: tuple[str, str]
    of: Callable[[np.ndarray], np.ndarray]


CORPUS_METRICS = {
    "loss": CorpusMetric(("loss_sum", "n_tokens"), mean_loss),
    "perplexity": CorpusMetric(("loss_sum", "n_tokens"), perplexity),
    "accuracy": CorpusMetric(("correct", "n_tokens"), lambda totals: 100 * mean_loss(totals)),
}


@dataclass(frozen=True)
class ExampleTable:
    """The examples of a run on which it is compared.

    rows: the table of predictions, indexed by `id`. source: "test", "half" (the half of the validation split that did
    not select the checkpoint) or "validation" (all of it, although it selected the checkpoint).
    """

    rows: pd.DataFrame
    source: Source

    def metrics(self) -> list[str]:
        """The names of the metrics that can be compared."""
        columns = list(self.rows.columns)
        before_losses = columns[columns.index("output") + 1 : columns.index("loss_sum")]
        corpus = [name for name, it in CORPUS_METRICS.items() if set(it.columns) <= set(columns)]
        return list(dict.fromkeys((*before_losses, *corpus)))

    def values(self, metric: str, ids: Sequence[str]) -> np.ndarray:
        """The scores of examples, float64 (n,), NaN if missing; pseudo-values for a metric of the corpus."""
        rows, corpus = self.rows.loc[list(ids)], CORPUS_METRICS.get(metric)
        if corpus is not None and set(corpus.columns) <= set(rows.columns):
            sums = rows[list(corpus.columns)].to_numpy(np.float64)
            found = np.full(len(rows), np.nan)
            known = np.isfinite(sums).all(1)
            if known.sum() > 1:
                found[known] = pseudo_values(sums[known], corpus.of)
            return found
        return rows[metric].to_numpy(np.float64)

    def overall(self, metric: str, ids: Sequence[str]) -> float:
        """The metric of all these examples together; NaN if none of them has a score."""
        rows, corpus = self.rows.loc[list(ids)], CORPUS_METRICS.get(metric)
        if corpus is not None and set(corpus.columns) <= set(rows.columns):
            sums = rows[list(corpus.columns)].dropna().to_numpy(np.float64)
            return float(corpus.of(sums.sum(0))) if len(sums) else float("nan")
        return float(rows[metric].mean())

    def content(self, ids: Sequence[str]) -> str:
        """A hash of the references of these examples."""
        return digest([[str(value) for value in self.rows.loc[list(ids), "reference"]]])


def example_table(run: TrainedRun, split: SplitName) -> ExampleTable | None:
    """The examples of a run on one split; None if the run has not been scored on it.

    "auto" and "validation" take the half of the validation split that did not select the checkpoint.
    """
    if split == "test":
        rows = read_table(run, TEST)
        return None if rows is None or is_changed(run) else ExampleTable(rows, "test")
    rows = read_table(run, VALIDATION)
    if rows is None:
        return None
    if "selecting" in rows and not rows["selecting"].all():
        return ExampleTable(rows[~rows["selecting"]], "half")
    return ExampleTable(rows, "validation")


def common_split(runs: Sequence[TrainedRun], split: SplitName) -> SplitName:
    """The split on which all runs are compared. "auto": the test split if all of them have been scored on it."""
    if split != "auto":
        return split
    has_test = all((run.folder / PREDICTIONS / f"{TEST}.parquet").is_file() and not is_changed(run) for run in runs)
    return "test" if runs and has_test else "validation"


def is_changed(run: TrainedRun) -> bool:
    """Whether the test split was scored with settings other than those of the run, or not with its best checkpoint."""
    record = read_json(run.folder / f"{TEST}.json")
    return bool(record.get("typed")) or record.get("checkpoint", BEST) != BEST


def read_table(run: TrainedRun, stem: str) -> pd.DataFrame | None:
    """A table of predictions, indexed by the ids of its examples. Raises RunError if it is damaged."""
    path = run.folder / PREDICTIONS / f"{stem}.parquet"
    if not path.is_file():
        return None
    try:
        rows = pd.read_parquet(path).set_index("id")
        missing = {"group", "reference", "output", "loss_sum", "n_tokens"} - set(rows.columns)
    except (OSError, ValueError, KeyError) as error:
        raise RunError(f"{path}: cannot be read: {str(error).splitlines()[0]}") from error
    if missing or not rows.index.is_unique:
        raise RunError(f"{path}: " + (f"has no column {min(missing)}" if missing else "has several rows of one id"))
    return cast(pd.DataFrame, rows)


def primary_metric(runs: Sequence[TrainedRun]) -> str | None:
    """The metric that the task declares as its primary one, as recorded in summary.json; None if it is not recorded."""
    return next((str(run.summary["primary"]) for run in runs if run.summary.get("primary")), None)
