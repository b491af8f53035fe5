"""Macro F1, for labels of which some are rare."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from attnorm.tasks.results import CorpusMetric


class MacroF1(CorpusMetric):
    """The mean of the F1 of all labels, in percent, as f1_score(average="macro") of scikit-learn.

    F1 is 2 r / (a + b), where a references and b outputs are the label, r of them in the same examples. A label that is
    neither a reference nor an output does not count.
    """

    columns = ("reference", "output")

    @classmethod
    def sums(cls, rows: Any) -> np.ndarray:
        references, outputs = (np.asarray(rows[name], dtype=str)[:, None] for name in cls.columns)
        labels = np.union1d(references, outputs)
        given, guessed = references == labels, outputs == labels
        return np.concatenate([given & guessed, given, guessed], axis=1).astype(np.float64)

    @staticmethod
    def of(totals: np.ndarray) -> np.ndarray:
        right, given, guessed = np.split(totals, 3, axis=-1)
        either = given + guessed
        return 100.0 * (2 * right / np.maximum(either, 1)).sum(-1) / np.maximum((either > 0).sum(-1), 1)


def macro_f1(references: Sequence[str], outputs: Sequence[str]) -> float:
    """`MacroF1` of labels."""
    return float(MacroF1.of(MacroF1.sums({"reference": references, "output": outputs}).sum(0)))
