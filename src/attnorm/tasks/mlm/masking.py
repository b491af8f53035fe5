"""Masked language modelling: what a row of tokens hides, drawn anew in each epoch.

BERT (Devlin et al., 2019): hide 15% of the tokens; 80% of them become [MASK], 10% another token, 10% stay.
n-gram masking (SpanBERT, Joshi et al., 2020; ALBERT, Lan et al., 2020): hide spans of n units next to each other,
P(n) = w_n / (w_1 + ... + w_L), each as likely anywhere as it fits; ALBERT has w_n = 1/n, L = 3.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from attnorm.data.featurizer import Table, pad
from attnorm.data.sampler import MicroBatch
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.errors import DataError, Problem

_TRIES = 16  # places that are tried for a span before all that are left are listed


def masked_count(tokens: int | np.ndarray, share: float) -> np.ndarray:
    """How many of so many tokens are masked: max(1, round(share * tokens)); int64, in the shape of `tokens`."""
    return np.maximum(1, np.rint(share * np.asarray(tokens))).astype(np.int64)


@dataclass(frozen=True)
class Masking:
    """What is masked, and what stands in its place. Raises ValueError for impossible values, all at once.

    mask_prob: share of the tokens that are masked. span_weights: of spans of 1, 2, ... units. whole_words: units are
    words, not tokens. keep_prob, random_prob: the shares of the masked tokens that keep their token and that become
    any other token.
    """

    mask_prob: float = 0.15
    span_weights: tuple[float, ...] = (1.0, 0.5, 0.3333)
    whole_words: bool = False
    keep_prob: float = 0.1
    random_prob: float = 0.1

    def __post_init__(self) -> None:
        if problems := self.check(vars(self)):
            raise DataError("\n".join(problems))
        object.__setattr__(self, "span_weights", tuple(map(float, self.span_weights)))

    @classmethod
    def check(cls, options: Mapping[str, object], key: str = "masking") -> list[str]:
        """Problems with the values of these options, each opening with `key`.option."""
        values: dict[str, Any] = {name: options.get(name, getattr(cls, name)) for name in cls.__dataclass_fields__}
        problems = []
        for name in ("mask_prob", "keep_prob", "random_prob"):
            value = values[name]
            if not _is_number(value) or not 0 <= value <= 1 or (name == "mask_prob" and value == 0):
                least = "above 0" if name == "mask_prob" else "at least 0"
                problems.append(f"{key}.{name}={value}: must be a share, {least} and at most 1")
        if not problems and values["keep_prob"] + values["random_prob"] > 1:
            shares = f"{key}.keep_prob={values['keep_prob']}, {key}.random_prob={values['random_prob']}"
            problems.append(Problem.about(f"{key}.keep_prob", f"{shares}: more than 1 together"))
        weights = values["span_weights"]
        if not (
            isinstance(weights, (list, tuple))
            and all(_is_number(weight) and 0 <= weight < float("inf") for weight in weights)
            and sum(weights) > 0
        ):
            problems.append(f"{key}.span_weights={weights}: must be a list of numbers of at least 0, one above 0")
        if not isinstance(values["whole_words"], bool):
            problems.append(f"{key}.whole_words={values['whole_words']}: must be true or false")
        return problems

    def draw(self, maskable: np.ndarray, starts_word: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Where tokens are masked, bool (N,): spans without overlap, none across a place that is not `maskable`.

        maskable, starts_word: bool (N,). Exactly masked_count(maskable places) tokens; with whole words fewer, where
        no word that is left is small enough for the rest (none at all in a row with only longer words).
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
        """Hide spans of units, bool (units,), until `budget` tokens are masked or no unit fits.

        bounds: the first token of each unit, and of what would follow the last.
        """
        taken = bytearray((~maskable).tobytes() + b"\1")  # 1: hidden, cannot be, or beyond the end

        def fits(start: int, size: int) -> bool:
            return taken.find(1, start, start + size) < 0 and bounds[start + size] - bounds[start] <= budget

        cumulative = np.cumsum(self.span_weights)
        sizes = np.searchsorted(cumulative, rng.random(budget) * cumulative[-1], side="right") + 1
        places = iter((rng.random(3 * budget) * len(maskable)).astype(np.int64).tolist())
        for size in sizes.tolist():
            size = min(size, budget)
            for start in islice(places, _TRIES):
                if fits(start, size):
                    break
            else:  # places are rare: list them all, and those of shorter spans if there are none
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
        """What stands in the place of masked tokens `ids`: mask_id, one of `ordinary`, or the token itself, as `fate`
        decides, uniform in [0, 1): below keep_prob, the token; in the next `random_prob`, all of `ordinary` evenly."""
        shown = np.where(fate < self.keep_prob, ids, mask_id)
        changed = (fate >= self.keep_prob) & (fate < self.keep_prob + self.random_prob)
        which = ((fate[changed] - self.keep_prob) / self.random_prob * len(ordinary)).astype(np.int64)
        shown[changed] = ordinary[which % len(ordinary)]  # rounding can give the number after the last
        return shown


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


class MaskedLMCollator(Dataset):
    """`MicroBatch` -> tensors with masked tokens, padded to the longest row. What is masked depends on `seed`, the
    epoch and the row's number alone.

    rows: a table with the columns `ids`, special tokens included, and `documents`, the lengths of the documents in a
    row. Raises ValueError for a tokenizer without a mask token.
    """

    def __init__(self, rows: Table, tokenizer: Tokenizer, masking: Masking, seed: int):
        if tokenizer.mask_id is None:
            raise DataError(
                "tokenizer: it has no [MASK], which masked language modelling needs; use tokenizer=wordpiece, trained "
                "or with the vocabulary of a BERT model"
            )
        self.mask_id = tokenizer.mask_id
        self.rows, self.tokenizer, self.masking, self.seed = rows, tokenizer, masking, seed
        everything = np.arange(tokenizer.vocab_size)
        self.starts_word = tokenizer.starts_word(everything)
        outer = [tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id]
        self.maskable = ~np.isin(everything, outer)
        self.ordinary = np.setdiff1d(everything, [*outer, tokenizer.unk_id, tokenizer.mask_id])

    def __getitem__(self, part: MicroBatch) -> dict[str, Tensor]:
        """ids, int64 (B, N), what is shown; labels, int64 (K,), the masked tokens, row after row; places, bool (B, N),
        where they are; segments, int64 (B, N), the number of the document within its row, one more for padding;
        rows (B,) row numbers; divisor () the update's."""
        table = self.rows[part.rows]
        ids = pad(table["ids"], self.tokenizer.pad_id)
        shown = ids.numpy()
        maskable, starts_word = self.maskable[shown], self.starts_word[shown]
        places, fates = np.zeros(shown.shape, bool), []
        for i, (row, tokens) in enumerate(zip(part.rows, table["ids"], strict=True)):
            rng = np.random.Generator(np.random.PCG64([self.seed, part.epoch, row]))
            end = len(tokens)
            places[i, :end] = self.masking.draw(maskable[i, :end], starts_word[i, :end], rng)
            fates.append(rng.random(np.count_nonzero(places[i])))
        labels = shown[places]
        shown[places] = self.masking.replace(labels, self.mask_id, self.ordinary, np.concatenate(fates))
        return {
            "ids": ids,
            "labels": torch.from_numpy(labels),
            "masked_positions": torch.from_numpy(places),
            "segments": segments(table["documents"], shown.shape),
            "rows": torch.tensor(part.rows),
            "divisor": torch.tensor(part.divisor),
        }


def segments(documents: list[list[int]], shape: tuple[int, int]) -> Tensor:
    """int64, of this shape: 0 for the first document of a row, whose lengths these are, 1 for the next, ..., and one
    more for the padding behind them."""
    numbers = [number for lengths in documents for number in range(len(lengths) + 1)]
    sizes = [size for lengths in documents for size in (*lengths, shape[1] - sum(lengths))]
    return torch.from_numpy(np.repeat(numbers, sizes).reshape(shape))
