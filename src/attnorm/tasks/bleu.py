"""BLEU of a corpus (Papineni et al., 2002), by the package sacrebleu.

    BLEU = 100 min(1, exp(1 - r / c)) (p_1 p_2 p_3 p_4)^(1/4)

where p_n is the share of n-grams that match a reference, c the length of all texts, and r that of the references that
are closest in length.
"""

from typing import Any

import numpy as np

from attnorm.errors import UserError
from attnorm.tasks.results import CorpusMetric

NGRAMS = 4  # in words


def sacrebleu() -> Any:
    """The package sacrebleu. Raises UserError with the command that installs it."""
    try:
        import sacrebleu
    except ImportError as error:
        raise UserError("BLEU needs the package sacrebleu: pip install sacrebleu") from error
    return sacrebleu


class Bleu(CorpusMetric):
    """Corpus BLEU in percent, with exponential smoothing, as sacrebleu computes it by default.

    smoothing: the smoothing of p_n if no n-gram matches, as in sacrebleu.
    """

    columns = (
        "bleu_hypothesis",
        "bleu_reference",
        *(f"bleu_correct_{n}" for n in range(1, NGRAMS + 1)),
        *(f"bleu_total_{n}" for n in range(1, NGRAMS + 1)),
    )
    smoothing = "exp"

    @staticmethod
    def counts(score: Any) -> list[int]:
        """The columns of one text, from its BLEUScore by sacrebleu."""
        return [score.sys_len, score.ref_len, *score.counts, *score.totals]

    @classmethod
    def of(cls, totals: np.ndarray) -> np.ndarray:
        return np.apply_along_axis(cls._of_corpus, -1, totals)

    @classmethod
    def _of_corpus(cls, totals: np.ndarray) -> float:
        length, reference, *counts = totals.round().astype(int).tolist()
        compute = sacrebleu().metrics.BLEU.compute_bleu
        return compute(counts[:NGRAMS], counts[NGRAMS:], length, reference, smooth_method=cls.smoothing).score
