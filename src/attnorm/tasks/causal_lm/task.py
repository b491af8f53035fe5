"""Language modelling: predicting the next token of packed documents, with scores of single documents.

The baselines are a unigram and a bigram model of the tokens of the training split: a unigram model with add-one
smoothing, and a bigram model that is interpolated with it by the method of Witten and Bell ("The zero-frequency
problem", 1991, method C), where T(v) is the number of different tokens seen after v:

    p(w)     = (c(w) + 1) / (n + V)
    p(w | v) = (c(v, w) + T(v) p(w)) / (c(v) + T(v)),  and p(w) after a token v that was not seen
"""

import math
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from attnorm.data.featurizer import Table
from attnorm.data.preprocess import Split
from attnorm.data.sources.base import DOCUMENTS, Source
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.errors import RunError
from attnorm.models.generation import SpecialTokens
from attnorm.models.interfaces import CausalLM
from attnorm.models.sampling import Sampling, sample
from attnorm.settings import Settings
from attnorm.tasks.causal_lm.features import (
    WINDOW,
    DocumentWindows,
    LanguageFeaturizer,
    PackedCollator,
    PackedDocuments,
    WindowCollator,
)
from attnorm.tasks.causal_lm.module import BANDS, SHOWN_ROWS, SHOWN_TOKENS, BitsPerByte, LanguageModule
from attnorm.tasks.results import CorpusMetric, Predictions, Results
from attnorm.tasks.task import Task, TaskConfig, Tokens

FILE = "bigrams.npz"
MOST = 20_000_000  # tokens that are counted: the first ones of the split


def flat(rows: Table, column: str) -> np.ndarray:
    """All numbers in a column of lists, int64."""
    import pyarrow.compute as pc

    return pc.list_flatten(rows.data.column(column)).to_numpy().astype(np.int64)


@dataclass(frozen=True)
class Bigrams:
    """Counts of pairs of adjacent tokens.

    pairs:  int64 (k,), v * size + w for the different pairs (v, w), sorted. counts: int64 (k,), how often each occurs.
    size:   the number of tokens in the vocabulary.
    """

    pairs: np.ndarray
    counts: np.ndarray
    size: int

    @classmethod
    def of(cls, rows: Table, size: int) -> "Bigrams":
        """Counts the pairs of `ids` and `labels` in the rows of a split."""
        first, second = (flat(rows, column)[:MOST] for column in ("ids", "labels"))
        return cls(*np.unique(first * size + second, return_counts=True), size)

    def log_p(self, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """log p(w) and log p(w | v) in nats for tokens w = `second` that follow v = `first`, float64."""
        before, after = np.divmod(self.pairs, self.size)
        of_after = np.bincount(after, self.counts, self.size)
        p = (of_after + 1) / (of_after.sum() + self.size)
        of_before, different = np.bincount(before, self.counts, self.size), np.bincount(before, minlength=self.size)
        wanted = first * self.size + second
        index = np.searchsorted(self.pairs, wanted).clip(max=len(self.pairs) - 1)
        together = np.where(self.pairs[index] == wanted, self.counts[index], 0)
        total = of_before[first] + different[first]
        interpolated = (together + different[first] * p[second]) / np.maximum(total, 1)
        return np.log(p[second]), np.log(np.where(total > 0, interpolated, p[second]))


class CausalLMTask(Task[CausalLM, LanguageModule]):
    """task=causal_lm.

    The model is trained on pieces of at most `model.max_target` tokens.
    """

    Config, interface, schema, unit = TaskConfig, "causal_lm", DOCUMENTS, "documents"
    groups: ClassVar[dict[str, type]] = {"decoding": Sampling}
    primary, scoring = "perplexity", ("decoding",)
    budget = (("model.max_target",), "the tokens of the longest possible row")
    measured: ClassVar[dict[str, str]] = {"perplexity": "min", "bits_per_byte": "min"}

    def __init__(self, cfg: Settings):
        super().__init__(cfg)
        self.train: Split | None = None  # once it is prepared

    @property
    def length(self) -> int:
        """The number of tokens of the longest piece in training."""
        return self.cfg.model.max_target

    def featurizer(self) -> LanguageFeaturizer:
        return PackedDocuments(self.length)

    def splits(
        self,
        tokenizer: Tokenizer | None = None,
        names: tuple[str, ...] = ("train", "validation"),
        cleaner: Source | None = None,
    ) -> dict[str, Split]:
        """The splits: packed pieces for training, and windows of single documents for evaluation."""
        splits = {}
        if "train" in names:
            self.train = splits["train"] = super().splits(tokenizer, ("train",), cleaner)["train"]
        if others := tuple(name for name in names if name != "train"):
            splits |= _InWindows(self.cfg).splits(tokenizer, others, cleaner)
        return splits

    @cached_property
    def bigrams(self) -> Bigrams:
        """The counts of the training split."""
        train = self.train or self.splits(names=("train",))["train"]
        return Bigrams.of(train.rows, train.tokenizer.vocab_size)

    def save(self, folder: Path) -> None:
        np.savez_compressed(folder / FILE, **vars(self.bigrams))

    def load(self, folder: Path) -> None:
        path = folder / FILE
        try:
            with np.load(path) as arrays:
                self.bigrams = Bigrams(arrays["pairs"], arrays["counts"], int(arrays["size"]))
        except Exception as error:  # a damaged archive raises errors of many kinds
            raise RunError(f"{path}: cannot be read: {error}") from error

    def module(self, model: CausalLM, tokenizer: Tokenizer, validation: Split) -> LanguageModule:
        return LanguageModule(model, tokenizer, self.length)

    def collator(self, split: Split) -> PackedCollator | WindowCollator:
        if split.name == "train":
            return PackedCollator(split.rows, split.tokenizer.pad_id)
        return WindowCollator(split.rows, split.tokenizer.pad_id, self.length)

    def row_groups(self, split: Split) -> Sequence[object]:
        """The group of the document of each window."""
        groups = groups_of(split)
        return [groups[document] for document in split.rows["document"]]

    def example_ids(self, split: Split, rows: Sequence[int]) -> list[str]:
        """The numbers of the documents whose windows the rows are. Packed rows have their own numbers."""
        if split.name == "train":
            return super().example_ids(split, rows)
        return list(map(str, split.rows[list(rows)]["document"]))

    def score(self, module: LanguageModule, split: Split) -> Results:
        """Loss, perplexity, bits per byte and the loss by position. The predictions have one row per document."""
        scores = super().score(module, split)
        scores.baselines = self.baselines(split)
        scores.predictions = self.predictions(module, split)
        scores.note = self.note(module, scores.metrics)
        scores.samples = self.samples(module.model, split)
        return scores

    def baselines(self, split: Split) -> dict[str, dict[str, float]]:
        """The metrics of the bigram and the unigram model on the same tokens."""
        n_bytes, metrics = sum(split.rows["bytes"]), {}
        log_p = self.bigrams.log_p(flat(split.rows, "ids"), flat(split.rows, "labels"))
        for name, of_tokens in zip(("unigram", "bigram"), log_p, strict=True):
            loss = -float(of_tokens.mean())
            bits = loss * len(of_tokens) / math.log(2) / n_bytes
            metrics[name] = {"perplexity": math.exp(loss), "loss": loss, "bits_per_byte": bits}
        return {"bigram": metrics["bigram"], "unigram": metrics["unigram"]}

    def predictions(self, module: LanguageModule, split: Split) -> Predictions:
        """The sums over the windows of each document, and the first tokens of the document beside those predicted."""
        examples, documents = module.examples, np.asarray(split.rows["document"])
        size, first = len(split.texts), np.flatnonzero(np.diff(documents, prepend=-1))

        def summed(values: Sequence) -> list:
            return np.bincount(documents, np.asarray(values, np.float64), size).tolist()

        statistics: dict[str, list] = {"bytes": list(map(int, summed(split.rows["bytes"])))}
        metrics: dict[str, type[CorpusMetric]] = {"bits_per_byte": BitsPerByte}
        for end in BANDS:
            name = f"loss_sum_{end}x"
            if name not in examples:
                continue
            values = np.asarray(examples[name])
            known, width = np.isfinite(values), self.length * (end - end // 2)
            statistics[name] = [total or None for total in summed(np.nan_to_num(values))]
            statistics[f"n_tokens_{end}x"] = [count * width or None for count in summed(known)]
            metrics[f"loss_{end}x"] = BANDS[end]
        texts = [[split.tokenizer.decode(examples[column][row]) for row in first] for column in ("reference", "output")]
        return Predictions(
            ids=range(size),
            groups=groups_of(split),
            references=texts[0],
            outputs=texts[1],
            scores={},
            loss_sum=summed(examples["loss_sum"]),
            n_tokens=list(map(int, summed(examples["n_tokens"]))),
            statistics=statistics,
            corpus_metrics=metrics,
        )

    def samples(self, model: CausalLM, split: Split) -> list[dict[str, str]]:
        """Continuations of the first tokens of the first documents."""
        texts = list(split.texts[:SHOWN_ROWS]["text"])
        length = SHOWN_TOKENS if model.longest is None else min(SHOWN_TOKENS, model.longest // 2)
        prompts = [split.tokenizer.decode(ids[:length]) for ids in split.tokenizer.encode(texts)]
        written = self.generate(model, split.tokenizer, prompts)
        return [{"prompt": prompt, "continuation": text} for prompt, text in zip(prompts, written, strict=True)]

    def generate(self, model: CausalLM, tokenizer: Tokenizer, texts: list[str]) -> list[str]:
        """Samples a continuation of each text.

        The random numbers of a text depend on the seed of `decoding` and on the text, not on the other texts. Equal
        texts have different ones.
        """
        special = SpecialTokens(tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id)
        prompts, decoding = [[special.bos, *ids] for ids in tokenizer.encode(texts)], self.cfg.groups["decoding"]
        seen: Counter[str] = Counter()
        numbers = []
        for text in texts:
            numbers.append(zlib.crc32(f"{text}/{seen[text]}".encode()))
            seen[text] += 1
        order = sorted(range(len(texts)), key=lambda row: len(prompts[row]))  # prompts of like lengths advance together
        written = [""] * len(texts)
        while order:
            longest = len(prompts[order[-1]]) + decoding.max_length
            rows = order[-max(1, self.cfg.data.batch_tokens // longest) :]
            del order[-len(rows) :]
            chosen, of_rows = [prompts[row] for row in rows], [numbers[row] for row in rows]
            for row, new in zip(rows, sample(model, chosen, special, decoding, of_rows), strict=True):
                prompt = tokenizer.decode(prompts[row])
                written[row] = tokenizer.decode([*prompts[row], *new]).removeprefix(prompt).strip()
        return written

    def note(self, module: LanguageModule, metrics: dict[str, float]) -> str:
        """A note on how the loss by position was measured, or on why it is missing."""
        length, most = self.length, WINDOW * self.length
        if "loss_1x" not in metrics:
            return f"no loss by position: no document has {most:,} tokens"
        bands = f"loss by position: L = {length:,}, in one pass over windows of {most:,} tokens"
        if "loss_8x" not in metrics:
            return f"{bands}; beyond L: not applicable with model.positions=learned"
        return bands

    def attended(self, model: CausalLM, tokenizer: Tokenizer, text: str) -> tuple[tuple[Tensor, ...], Tokens]:
        """The model reads [begin] text, cut to the length in training."""
        [ids] = tokenizer.encode([text])
        ids = [tokenizer.bos_id, *ids][: self.length]
        read = [tokenizer.token(number) for number in ids]
        return (torch.tensor([ids]),), lambda layer: (read, read)


def groups_of(split: Split) -> Sequence[object]:
    """The group of each document, such as its book; its number if the source has no groups."""
    return list(split.texts["group"]) if "group" in split.texts.column_names else range(len(split.texts))


class _InWindows(CausalLMTask):
    """The same task with all splits in windows."""

    splits = Task.splits

    def featurizer(self) -> LanguageFeaturizer:
        return DocumentWindows(self.length)
