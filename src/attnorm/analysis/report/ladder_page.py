"""What the report says about the ladder of one task."""

from collections.abc import Sequence

from attnorm.analysis.chart import Chart
from attnorm.analysis.ladder.ladder_charts import charts_of_ladder
from attnorm.analysis.ladder.ladder_comparison import compare_ladder
from attnorm.analysis.ladder.ladder_files import ladder_sentences, table_of
from attnorm.analysis.ladder.ladder_runs import scores_of_runs
from attnorm.analysis.scores import SplitName
from attnorm.analysis.table import Table
from attnorm.errors import RunError
from attnorm.run.folder import RunState
from attnorm.run.run import Run
from attnorm.wording import counted


class LadderPage:
    """What the page says about a ladder. pending: runs that are still to come.

    name: that of the task. refused: why it is not compared, as a sentence; "" if it is. sentences: what is shown of
    each arm. notes: what a reader has to know. table: the differences. charts: see `charts_of_ladder`.
    """

    def __init__(
        self,
        anchor: str,
        runs: Sequence[Run],
        baseline: str | None,
        metric: str | None,
        split: SplitName,
        level: float,
        pending: Sequence[str],
    ):
        self.anchor, self.name, self.refused = anchor, str(runs[0].settings["task.name"]), ""
        self.sentences, self.notes, self.charts = list[str](), list[str](), list[Chart]()
        self.table: Table | None = None
        if pending := [*pending, *(str(run.folder) for run in runs if run.state is RunState.RUNNING)]:
            verb = "is" if len(pending) == 1 else "are"
            self.refused = f"No verdict yet: {counted(len(pending), 'planned run')} {verb} not finished."
            return
        try:
            scores = scores_of_runs(runs, metric, split)
        except RunError as error:
            self.refused = f"The ladder is not compared: {error}."
            return
        if len(scores.arms) == 1:
            self.refused = f"There is nothing to compare with {scores.arms[0]}, the only arm of the ladder."
            return
        comparison = compare_ladder(scores, baseline, level=level)
        self.sentences = [line for arm in comparison.arms for line in ladder_sentences(comparison, arm)]
        self.notes = [*(note for arm in comparison.arms for note in arm.notes), *scores.notes]
        self.table = table_of(comparison).filled()
        self.charts = charts_of_ladder(anchor, comparison)
