"""Masked language modelling: which tokens of a row are masked. The masks are drawn anew in each epoch.

BERT (Devlin et al., 2019): 15% of the tokens are masked. 80% of them become [MASK], 10% become another token, and 10%
stay unchanged.
n-gram masking (SpanBERT, Joshi et al., 2020; ALBERT, Lan et al., 2020): spans of n adjacent units are masked. The
length has the distribution P(n) = w_n / (w_1 + ... + w_L), and all positions where the span fits are equally likely.
ALBERT uses w_n = 1/n and L = 3.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from attnorm.data.featurizer import Table, pad
from attnorm.data.sampler import MicroBatch
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.errors import DataError
from attnorm.schema import NonNegative, Probability
from attnorm.tasks.module import Collator

_TRIES = 16  # random positions tried for a span before all remaining positions are listed


def masked_count(tokens: int | np.ndarray, share: float) -> np.ndarray:
    """The number of masked tokens among `tokens` tokens: max(1, round(share * tokens)), int64, same shape."""
    return np.maximum(1, np.rint(share * np.asarray(tokens))).astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class Masking:
    """Which tokens are masked, and what replaces them. Raises DataError for values that do not fit each other.

    mask_prob:    share of the tokens that are masked.
    span_weights: relative frequencies of spans of 1, 2, ... units.
    whole_words:  units are words instead of tokens.
    keep_prob, random_prob: shares of the masked tokens that stay unchanged, and that become any other token.
    """

    mask_prob: Annotated[float, Field(gt=0, le=1)] = 0.15
    span_weights: tuple[NonNegative, ...] = (1.0, 0.5, 0.3333)
    whole_words: bool = False
    keep_prob: Probability = 0.1
    random_prob: Probability = 0.1

    def __post_init__(self) -> None:
        if self.keep_prob + self.random_prob > 1:
            raise DataError(f"keep_prob={self.keep_prob}, random_prob={self.random_prob}: more than 1 together")
        if not sum(self.span_weights) > 0:
            raise DataError(f"span_weights={list(self.span_weights)}: at least one must be above 0")

    def draw(self, maskable: np.ndarray, starts_word: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draws the masked tokens, bool (N,), in spans that neither overlap nor contain tokens that are not `maskable`.

        Exactly masked_count(number of maskable tokens) tokens are masked. With whole words, the number is smaller if
        all remaining words are too long (0 if the row has only longer words).

        maskable, starts_word: bool (N,).
        """
        budget = int(masked_count(maskable.sum(), self.mask_prob)) if maskable.any() else 0
        if not self.whole_words:
            return self._spans(maskable, range(len(maskable) + 1), budget, rng)
        starts = starts_word | ~maskable
        starts[1:] |= ~maskable[:-1]
        starts[:1] = True
        bounds = np.append(np.flatnonzero(starts), len(starts))
        hidden = self._spans(maskable[bounds[:-1]], bounds.tolist(), budget, rng)
        return np.repeat(hidden, np.diff(bounds))

    def _spans(self, maskable: np.ndarray, bounds: Sequence[int], budget: int, rng: np.random.Generator) -> np.ndarray:
        """Masks spans of units, bool (units,), until `budget` tokens are masked or no unit fits.

        bounds: the index of the first token of each unit, and the index after the last unit.
        """
        taken = bytearray((~maskable).tobytes() + b"\1")  # 1: already masked, not maskable, or beyond the end

        def fits(start: int, size: int) -> bool:
            return taken.find(1, start, start + size) < 0 and bounds[start + size] - bounds[start] <= budget

        cumulative = np.cumsum(self.span_weights)
        sizes = np.searchsorted(cumulative, rng.random(budget) * cumulative[-1], side="right") + 1
        starts = iter((rng.random(3 * budget) * len(maskable)).astype(np.int64).tolist())
        for size in sizes.tolist():
            size = min(size, budget)
            for start in islice(starts, _TRIES):
                if fits(start, size):
                    break
            else:  # few positions are left: list all of them, for shorter spans if necessary
                while size and not (left := [start for start in range(len(maskable)) if fits(start, size)]):
                    size -= 1
                if not size:
                    break
                start = left[int(rng.random() * len(left))]
            taken[start : start + size] = b"\1" * size
            budget -= bounds[start + size] - bounds[start]
            if not budget:
                break
        return np.frombuffer(taken, bool)[:-1] & maskable

    def replace(self, ids: np.ndarray, mask_id: int, ordinary: np.ndarray, fate: np.ndarray) -> np.ndarray:
        """Returns the replacements of the masked tokens `ids`: mask_id, one of `ordinary`, or the token itself.

        `fate`, uniform in [0, 1), decides: a value below keep_prob keeps the token, and the next `random_prob` of the
        range is divided evenly among `ordinary`.
        """
        shown = np.where(fate < self.keep_prob, ids, mask_id)
        changed = (fate >= self.keep_prob) & (fate < self.keep_prob + self.random_prob)
        which = ((fate[changed] - self.keep_prob) / self.random_prob * len(ordinary)).astype(np.int64)
        shown[changed] = ordinary[which % len(ordinary)]  # rounding can give len(ordinary)
        return shown


class MaskedLMCollator(Collator):
    """Rows of `PackedFeaturizer` -> tensors with masked tokens, padded to the longest row of the batch.

    The masks depend only on `seed`, the epoch and the row number. Raises ValueError for a tokenizer without a mask
    token.
    """

    def __init__(self, rows: Table, tokenizer: Tokenizer, masking: Masking, seed: int):
        if tokenizer.mask_id is None:
            raise DataError(
                "tokenizer: it has no [MASK], which masked language modelling needs; use tokenizer=wordpiece, either "
                "trained or with the vocabulary of a BERT model"
            )
        super().__init__(rows, tokenizer.pad_id)
        self.mask_id, self.tokenizer, self.masking, self.seed = tokenizer.mask_id, tokenizer, masking, seed
        everything = np.arange(tokenizer.vocab_size)
        self.starts_word = tokenizer.starts_word(everything)
        outer = [tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id]
        self.maskable = ~np.isin(everything, outer)
        self.ordinary = np.setdiff1d(everything, [*outer, tokenizer.unk_id, tokenizer.mask_id])

    def tensors(self, table: dict[str, list], part: MicroBatch) -> dict[str, Tensor]:
        """Returns the tensors:

        ids:              int64 (B, N), with masked tokens replaced.
        labels:           int64 (K,), the original tokens at the masked positions, row by row.
        masked_positions: bool (B, N).
        segments:         int64 (B, N), the index of the document in its row, plus one more index for padding.
        """
        ids = pad(table["ids"], self.pad_id)
        shown = ids.numpy()
        maskable, starts_word = self.maskable[shown], self.starts_word[shown]
        masked, fates = np.zeros(shown.shape, bool), []
        for i, (row, tokens) in enumerate(zip(part.rows, table["ids"], strict=True)):
            rng = np.random.Generator(np.random.PCG64([self.seed, part.epoch, row]))
            end = len(tokens)
            masked[i, :end] = self.masking.draw(maskable[i, :end], starts_word[i, :end], rng)
            fates.append(rng.random(np.count_nonzero(masked[i])))
        labels = shown[masked]
        shown[masked] = self.masking.replace(labels, self.mask_id, self.ordinary, np.concatenate(fates))
        return {
            "ids": ids,
            "labels": torch.from_numpy(labels),
            "masked_positions": torch.from_numpy(masked),
            "segments": segments(table["documents"], shown.shape),
        }


def segments(documents: list[list[int]], shape: tuple[int, int]) -> Tensor:
    """Document indices, int64 of this shape: 0 for the first document of a row, 1 for the second, and so on.

    `documents` holds the lengths of the documents in each row. Padding gets the next index.
    """
    numbers = [number for lengths in documents for number in range(len(lengths) + 1)]
    sizes = [size for lengths in documents for size in (*lengths, shape[1] - sum(lengths))]
    return torch.from_numpy(np.repeat(numbers, sizes).reshape(shape))
