"""Single examples: outputs of the arms side by side, and the examples on which two arms differ most."""

from collections import Counter
from dataclasses import dataclass
from difflib import SequenceMatcher

import numpy as np

from attnorm.analysis.scores import ExampleTable
from attnorm.analysis.study import Study
from attnorm.analysis.table import MINUS, Cell, Column, Table
from attnorm.analysis.verdict import Verdict, decimals
from attnorm.errors import RunError
from attnorm.run.run import Run

SAMPLES, EXTREMES, PAIRS, MOST_ARMS = 4, 4, 3, 6
LONGEST = 600  # characters of a text
MOST_LABELS = 20  # of a confusion matrix

Words = list[tuple[str, bool]]  # a text in pieces, and whether each is marked as different


@dataclass(frozen=True)
class Output:
    """What an arm wrote for an example. score: of this run, or the mean over seeds, as text; may be ""."""

    label: str
    words: Words
    score: str = ""


@dataclass(frozen=True)
class Example:
    """An example with the outputs of some arms. inputs: what the model reads, "" if that was not recorded."""

    name: str
    inputs: str
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


def samples_of(study: Study) -> list[Example]:
    """Examples at equal distances in the split, with the output of one run of each arm; the first is the baseline.

    Words that the baseline did not write are marked. The run is that with the smallest seed.
    """
    tables: dict[str, ExampleTable] = {}
    for arm in study.ranked[:MOST_ARMS] if study.main else ():
        if table := next((rows for run in arm.finished.values() if (rows := _table_of(study, run)) is not None), None):
            tables[arm.label] = table
    first = tables.pop(study.arms[0].label, None)
    if first is None:
        return []
    ids = [name for name in first.rows.index if all(name in table.rows.index for table in tables.values())]
    chosen = [ids[int((number + 0.5) * len(ids) / SAMPLES)] for number in range(min(SAMPLES, len(ids)))]
    examples = []
    for name in dict.fromkeys(chosen):
        text = output_of(first, name)
        outputs = [Output(study.arms[0].label, [(text, False)] if text else [])]
        outputs += [Output(label, marked(output_of(table, name), text)) for label, table in tables.items()]
        examples.append(example_of(first, name, outputs))
    return examples


def confusions_of(study: Study) -> list[Table]:
    """For classifiers, a confusion matrix of each arm, over the examples of all seeds: a row for each true label, with
    the share of the row and the number of examples that got each label; [] for other tasks."""
    matrices = []
    for arm in study.ranked[:MOST_ARMS]:
        tables = [table for run in arm.finished.values() if (table := _table_of(study, run)) is not None]
        if not tables or not all("accuracy" in table.metrics() for table in tables):
            continue
        pairs = [pair for table in tables for pair in zip(table.rows["reference"], table.rows["output"], strict=True)]
        if not all(isinstance(text, str) for pair in pairs for text in pair):
            continue  # references of several annotators
        counts, labels = Counter(pairs), sorted({text for pair in pairs for text in pair})
        if not 2 <= len(labels) <= MOST_LABELS:
            continue
        columns, rows = [Column("true label"), *(Column(label, True) for label in labels)], []
        for true in labels:
            row = [counts[true, label] for label in labels]
            shares = [(count / max(1, sum(row)), count) for count in row]
            rows.append([Cell(true), *(Cell(f"{s:.0%} ({count:,})" if count else "0", s) for s, count in shares)])
        caption = f"Labels that {arm.label} gave, as shares of each true label, and the number of examples of all seeds"
        matrices.append(Table(caption, columns, rows, can_copy=True))
    return matrices


def contrasts_of(study: Study) -> list[Contrast]:
    """For the arms that differ most from the baseline, the examples whose scores differ most, as means over seeds."""
    verdicts = [verdict for verdict in study.comparisons[0].verdicts if not verdict.is_silent]
    rank = {arm.label: number for number, arm in enumerate(study.ranked)}
    verdicts.sort(key=lambda verdict: (-abs(verdict.difference.estimate), rank[verdict.label]))
    return [contrast for verdict in verdicts[:PAIRS] if (contrast := _contrast(study, verdict))]


def _contrast(study: Study, verdict: Verdict) -> Contrast | None:
    """The examples whose scores differ most between an arm and the baseline; None if none differs."""
    arms = {arm.label: arm for arm in study.arms}
    arm, baseline = arms[verdict.label], arms[verdict.baseline]
    pairs = {}
    for seed in verdict.by_seed:
        tables = [_table_of(study, of_arm.finished[seed]) for of_arm in (arm, baseline)]
        if tables[0] is not None and tables[1] is not None:
            pairs[seed] = tables[0], tables[1]
    if not pairs:
        return None
    indexes = [set(table.rows.index) for pair in pairs.values() for table in pair]
    first = next(iter(pairs.values()))[1]
    ids = [name for name in first.rows.index if all(name in index for index in indexes)]
    scores = np.stack([[table.values(verdict.metric, ids) for table in pair] for pair in pairs.values()])
    means = scores.mean(0)  # (2, n) of (seeds, 2, n)
    gap, sign = means[0] - means[1], study.comparisons[0].direction
    order = [row for row in np.argsort(-sign * gap, kind="stable") if np.isfinite(gap[row]) and gap[row]]
    best = [row for row in order if sign * gap[row] > 0][:EXTREMES]
    worst = [row for row in reversed(order) if sign * gap[row] < 0][:EXTREMES]
    digits = decimals(verdict.metric)

    def shown(row: int) -> Example:
        # the seed in which the two differ most, because it shows best what the difference is
        seed = max(pairs, key=lambda s: abs(np.diff(scores[list(pairs).index(s), :, row])[0]))
        texts = [output_of(table, ids[row]) for table in pairs[seed]]
        outputs = [
            Output(baseline.label, marked(texts[1], texts[0]), f"{means[1, row]:.{digits}f}"),
            Output(arm.label, marked(texts[0], texts[1]), f"{means[0, row]:.{digits}f}"),
        ]
        difference = f"{gap[row]:+.{digits}f}".replace("-", MINUS)
        return example_of(pairs[seed][1], ids[row], outputs, difference)

    if not best and not worst:
        return None
    return Contrast(arm.label, baseline.label, len(pairs), [shown(row) for row in best], [shown(row) for row in worst])


def _table_of(study: Study, run: Run) -> ExampleTable | None:
    """The examples of a run; None if it has none, or if they cannot be read, which the comparison reports."""
    try:
        return study.read_examples(run, "test" if study.main and study.main.source == "test" else "validation")
    except RunError:
        return None


def example_of(table: ExampleTable, name: str, outputs: list[Output], difference: str = "") -> Example:
    """An example with these outputs."""
    row = table.rows.loc[name]
    inputs = text_of(row["input"]) if "input" in table.rows else ""
    return Example(str(name), inputs, text_of(row["reference"], " | "), outputs, difference)


def output_of(table: ExampleTable, name: str) -> str:
    """What a run wrote for an example."""
    return text_of(table.rows.loc[name, "output"])


def text_of(value: object, separator: str = " ") -> str:
    """A text, or a list of texts, as one text that is not too long; repeated texts of a list are shown once."""
    if isinstance(value, (list, tuple, np.ndarray)):
        texts = [str(item) for item in value]
        value = separator.join(texts if separator == " " else dict.fromkeys(texts))
    return shortened("" if value is None else str(value))


def shortened(text: str) -> str:
    """A text that is cut off after LONGEST characters."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1].rstrip()}\u2026"


def marked(text: str, other: str) -> Words:
    """The words of a text; those are marked that are not at the same place in another text.

    Neighbouring words with the same mark are joined, so that marked("a b c d", "a d") is
    [("a", False), ("b c", True), ("d", False)].
    """
    words = text.split()
    steps = SequenceMatcher(None, words, other.split(), autojunk=False).get_opcodes()
    return [(" ".join(words[start:end]), kind != "equal") for kind, start, end, *_ in steps if start < end]
