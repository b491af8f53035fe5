"""Single examples: outputs of the arms side by side, and the examples on which two arms differ most."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

import numpy as np

from attnorm.analysis.arms import Arm
from attnorm.analysis.comparison import Comparison
from attnorm.analysis.report.runs import shortened
from attnorm.analysis.scores import ExampleTable, SplitName, example_table
from attnorm.analysis.verdict import decimals
from attnorm.errors import RunError
from attnorm.run.run import Run

SAMPLES, EXTREMES, PAIRS, MOST_ARMS = 4, 4, 3, 6
LONGEST = 600  # characters of a text

Words = list[tuple[str, bool]]  # a text in pieces, and whether each is marked as different


@dataclass(frozen=True)
class Output:
    """What an arm wrote for an example. score: of this run, or the mean over seeds, as text; may be ""."""

    label: str
    words: Words
    score: str = ""


@dataclass(frozen=True)
class Example:
    """An example with the outputs of some arms. given: what the model reads, "" if that was not recorded."""

    name: str
    given: str
    reference: str
    outputs: list[Output]
    difference: str = ""


@dataclass(frozen=True)
class Contrast:
    """The examples on which an arm is better than the baseline by most, and those on which it is worse by most."""

    label: str
    baseline: str
    seeds: int
    better: list[Example]
    worse: list[Example]


def samples_of(comparison: Comparison, arms: Sequence[Arm], split: SplitName) -> list[Example]:
    """Examples at equal distances in the split, with the output of one run of each arm; the first is the baseline.

    Words that the baseline did not write are marked. The run is that with the smallest seed.
    """
    tables = {arm.label: table for arm in arms[:MOST_ARMS] if (table := first_table(arm, split)) is not None}
    if comparison.baseline not in tables:
        return []
    first = tables[comparison.baseline]
    ids = [name for name in first.rows.index if all(name in table.rows.index for table in tables.values())]
    chosen = [ids[int((number + 0.5) * len(ids) / SAMPLES)] for number in range(min(SAMPLES, len(ids)))]
    examples = []
    for name in dict.fromkeys(chosen):
        there = output_of(first, name)
        outputs = [Output(comparison.baseline, [(there, False)] if there else [])]
        for label, table in tables.items():
            if label != comparison.baseline:
                outputs.append(Output(label, marked(output_of(table, name), there)))
        examples.append(example_of(first, name, outputs))
    return examples


def contrasts_of(comparison: Comparison, baseline: Arm, arms: Sequence[Arm], split: SplitName) -> list[Contrast]:
    """For the arms that differ most from the baseline, the examples whose scores differ most, as means over seeds."""
    sizes = {
        verdict.label: abs(verdict.difference.estimate) for verdict in comparison.verdicts if not verdict.is_silent
    }
    chosen = sorted((arm for arm in arms if arm.label in sizes), key=lambda arm: -sizes[arm.label])[:PAIRS]
    return [result for arm in chosen if (result := contrast(comparison, baseline, arm, split))]


def contrast(comparison: Comparison, baseline: Arm, arm: Arm, split: SplitName) -> Contrast | None:
    """The examples whose scores differ most between two arms; None if none differs."""
    counted = next(verdict.by_seed for verdict in comparison.verdicts if verdict.label == arm.label)
    pairs = {
        seed: (ours, theirs)
        for seed, run in arm.finished.items()
        if seed in counted
        and (ours := _table_of(run, split)) is not None
        and (theirs := _table_of(baseline.finished[seed], split)) is not None
    }
    if not pairs:
        return None
    indexes = [set(table.rows.index) for pair in pairs.values() for table in pair]
    first = next(iter(pairs.values()))[1]
    ids = [name for name in first.rows.index if all(name in index for index in indexes)]
    metric = comparison.metric
    scores = np.stack([[table.values(metric, ids) for table in pair] for pair in pairs.values()])  # (seeds, 2, n)
    ours, theirs = scores.mean(0)
    gap = ours - theirs
    sign = comparison.direction
    order = [row for row in np.argsort(-sign * gap, kind="stable") if np.isfinite(gap[row]) and gap[row]]
    best = [row for row in order if sign * gap[row] > 0][:EXTREMES]
    worst = [row for row in reversed(order) if sign * gap[row] < 0][:EXTREMES]
    digits = decimals(metric)

    def shown(row: int) -> Example:
        # the seed in which the two differ most, because it shows best what the difference is
        seed = max(pairs, key=lambda s: abs(np.diff(scores[list(pairs).index(s), :, row])[0]))
        mine, other = pairs[seed]
        texts = output_of(mine, ids[row]), output_of(other, ids[row])
        outputs = [
            Output(baseline.label, marked(texts[1], texts[0]), f"{theirs[row]:.{digits}f}"),
            Output(arm.label, marked(*texts), f"{ours[row]:.{digits}f}"),
        ]
        difference = f"{gap[row]:+.{digits}f}".replace("-", "\u2212")
        return example_of(other, ids[row], outputs, difference)

    if not best and not worst:
        return None
    return Contrast(arm.label, baseline.label, len(pairs), [shown(row) for row in best], [shown(row) for row in worst])


def first_table(arm: Arm, split: SplitName) -> ExampleTable | None:
    """The table of the finished run with the smallest seed that has one."""
    for run in arm.finished.values():
        if (table := _table_of(run, split)) is not None:
            return table
    return None


def _table_of(run: Run, split: SplitName) -> ExampleTable | None:
    """The examples of a run; None if it has none, or if they cannot be read, which the comparison reports."""
    try:
        return example_table(run, split)
    except RunError:
        return None


def example_of(table: ExampleTable, name: str, outputs: list[Output], difference: str = "") -> Example:
    """An example with these outputs."""
    row = table.rows.loc[name]
    given = text_of(row["input"]) if "input" in table.rows else ""
    return Example(str(name), given, text_of(row["reference"], " | "), outputs, difference)


def output_of(table: ExampleTable, name: str) -> str:
    """What a run wrote for an example."""
    return text_of(table.rows.loc[name, "output"])


def text_of(value: object, separator: str = " ") -> str:
    """A text, or a list of texts, as one text that is not too long; repeated texts of a list are shown once."""
    if isinstance(value, (list, tuple, np.ndarray)):
        texts = [str(item) for item in value]
        value = separator.join(texts if separator == " " else dict.fromkeys(texts))
    return shortened("" if value is None else str(value), LONGEST)


def marked(text: str, other: str) -> Words:
    """The words of a text; those are marked that are not at the same place in another text.

    Neighbouring words with the same mark are joined, so that marked("a b c d", "a d") is
    [("a", False), ("b c", True), ("d", False)].
    """
    ours, theirs = text.split(), other.split()
    pieces: Words = []
    for kind, start, end, _, _ in SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes():
        if start < end:
            pieces.append((" ".join(ours[start:end]), kind != "equal"))
    return pieces
