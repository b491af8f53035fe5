"""What comes after training: opening runs, figures, and comparisons. Everything is read from run folders."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import ArrayLike

    from attnorm.analysis.arms import Places
    from attnorm.analysis.comparison import Comparison
    from attnorm.analysis.scores import SplitName
    from attnorm.analysis.verdict import Verdict

__all__ = ["Comparison", "compare", "compare_scores"]


def compare(
    baseline: "Places",
    against: "Places | None" = None,
    metric: str | None = None,
    *,
    split: "SplitName" = "auto",
    level: float = 0.95,
    grouped: bool = True,
) -> "Comparison":
    """Compares runs with the runs of a baseline, paired by seed and by example.

    Args:
        baseline: run folders, folders with runs below them, or patterns; or, if these are all in `against`, the label
            of one of the arms there, such as "softmax".
        against: the runs to compare, in the same form. Runs that differ only in their seed form an arm.
        metric: a column of the table of predictions, "loss" or "perplexity"; None: the primary metric of the task.
        split: "test", "validation" (the half that did not select the checkpoints) or "auto" (the test split if all runs
            have been scored on it).
        level: the level of the intervals.
        grouped: whether examples of one group, such as the chapters of a book, may depend on each other. False: they
            are taken as independent, and the intervals are for new examples of the same groups only.

    An arm that shares no scored seed with the baseline is left out if others do, and `Comparison.notes` says so. Raises
    RunError for folders without runs and runs that cannot be compared, and ConfigError for other arguments.
    """
    from attnorm.analysis.comparison import Terms
    from attnorm.analysis.study import study_of

    study = study_of(baseline, against, metric, Terms(split, level, grouped))
    [main] = study.comparisons
    return replace(main, notes=[*main.notes, *study.left_out])


def compare_scores(
    baseline: str,
    scores: "Mapping[str, ArrayLike] | pd.DataFrame",
    metric: str = "accuracy",
    *,
    better: Literal["higher", "lower"] | None = None,
    seeds: Sequence[int] | None = None,
    groups: Sequence[str] | None = None,
    level: float = 0.95,
) -> "list[Verdict]":
    """The verdicts of `compare` for a table of scores per arm, paired by seed and by example.

    The p-values are adjusted for all arms together. Whether the models have learned their task, whether they were
    trained alike, and whether these examples selected their checkpoints is not known here, and remains to be checked.

    Args:
        baseline: the name of an arm.
        scores: for each arm, a table (seeds, examples). A row of one arm and the same row of another have the same
            seed, and a column is the same example everywhere. Or a DataFrame with the columns arm, seed, example, score
            and, if examples depend on each other, group; without example, it has one score per arm and seed.
        metric: what the scores are.
        better: which of them are; must be given for a metric that attnorm does not know.
        seeds: the seeds of the rows; by default 1, 2, and so on.
        groups: for each example, the cluster to which it belongs, see `paired_difference`.
        level: the level of the intervals.

    Raises ConfigError for an unknown baseline, and for tables that differ in shape or are not finite, and DataError for
    a DataFrame of another form.
    """
    from attnorm.analysis.score_tables import study_of_scores

    study = study_of_scores(baseline, scores, metric, better=better, seeds=seeds, groups=groups, level=level)
    [main] = study.comparisons
    return main.verdicts


def __getattr__(name: str) -> Any:
    """Imports the class of comparisons when it is first used."""
    if name == "Comparison":
        from attnorm.analysis.comparison import Comparison

        return Comparison
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
