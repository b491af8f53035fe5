"""Metrics of a language model that are computed from sums over documents."""

import numpy as np

from attnorm.tasks.results import CorpusMetric


class BitsPerByte(CorpusMetric):
    """The loss of all tokens in bits, divided by the number of UTF-8 bytes of the text.

    It does not depend on the tokenizer, so models with different tokenizers can be compared.
    """

    columns = ("loss_sum", "bytes")

    @staticmethod
    def of(totals: np.ndarray) -> np.ndarray:
        return totals[..., 0] / totals[..., 1] / np.log(2)


class BandLoss(CorpusMetric):
    """The mean loss of the tokens in a band of positions."""

    @staticmethod
    def of(totals: np.ndarray) -> np.ndarray:
        return totals[..., 0] / totals[..., 1]


class FirstBand(BandLoss):
    """Positions [0, L), where L is the length in training."""

    columns = ("loss_sum_1x", "n_tokens_1x")


class SecondBand(BandLoss):
    """Positions [L, 2L)."""

    columns = ("loss_sum_2x", "n_tokens_2x")


class ThirdBand(BandLoss):
    """Positions [2L, 4L)."""

    columns = ("loss_sum_4x", "n_tokens_4x")


class FourthBand(BandLoss):
    """Positions [4L, 8L)."""

    columns = ("loss_sum_8x", "n_tokens_8x")


# the band that ends at this multiple of L -> its metric
BANDS: dict[int, type[BandLoss]] = {1: FirstBand, 2: SecondBand, 4: ThirdBand, 8: FourthBand}
