"""Translation: pairs of sentences, an encoder-decoder, BLEU and chrF.

Decoding may have a fertility: a bound on the attention that a source word receives over all target words.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from attnorm.attention.call_context import in_layer
from attnorm.attention.multihead import attention_layers, observe
from attnorm.attention.normalizers.fertility import Fertility, FertilitySoftmax, FertilitySparsemax
from attnorm.attention.registry import normalizers_of
from attnorm.data.featurizer import cut, pad
from attnorm.data.preprocess import Split
from attnorm.data.sources.parallel import PARALLEL
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.errors import Problem
from attnorm.models.generation import Decoding, SpecialTokens
from attnorm.models.interfaces import Seq2SeqModel
from attnorm.schema import Positive
from attnorm.tasks.bleu import (
    CORPUS_METRICS,
    BleuTokenizer,
    Scorer,
    bleu_tokenizer,
    corpus_scores,
    missing_tokenizer,
    sentence_chrf,
    words_of,
)
from attnorm.tasks.pairs import special_tokens
from attnorm.tasks.seq2seq import Seq2SeqModule, Seq2SeqTask, Seq2SeqTaskConfig, TextScores

WITH_FERTILITY: dict[str, type[Fertility]] = {  # the constrained form of the normalizers that have one
    "softmax": FertilitySoftmax,
    "fertility_softmax": FertilitySoftmax,
    "sparsemax": FertilitySparsemax,
    "fertility_sparsemax": FertilitySparsemax,
}
LITTLE = 0.2  # a source token with less attention than this counts as not covered
ROWS = 64  # sentences that are read at a time


@dataclass(frozen=True)
class TranslationDecoding(Decoding):
    """Options of generation, and of its attention.

    fertility: the largest attention that a source token may receive over all target tokens, except the end of the
               source; None: no bound.
    """

    fertility: Positive | None = None


@contextmanager
def limited(model: nn.Module, fertility: float | None, normalizers: Sequence[str]) -> Iterator[None]:
    """Within this context, the cross-attention of a model has a fertility. None changes nothing.

    normalizers: the names of the normalizers at the site, one per layer, or one for all layers.
    """
    layers = [layer for name, layer in attention_layers(model).items() if name.endswith("cross")]
    kept = [layer.normalizer for layer in layers]
    names = list(normalizers) * (len(layers) if len(normalizers) == 1 else 1)
    try:
        if fertility is not None:
            for layer, name in zip(layers, names, strict=True):
                width = layer.query.out_features // layer.heads
                layer.normalizer = in_layer(WITH_FERTILITY[name](layer.maps, width, fertility=fertility, sink=True))
        yield
    finally:
        for layer, normalizer in zip(layers, kept, strict=True):
            layer.normalizer = normalizer


@torch.no_grad()
def coverage(
    model: Seq2SeqModel, sources: Sequence[list[int]], targets: Sequence[list[int]], special: SpecialTokens
) -> list[Tensor]:
    """The attention that each source token receives in total while the model writes the target: float32 (tokens,) each.

    It is the column sum of the cross-attention, the mean over layers and heads. sources, targets: token ids without
    special tokens. The end of the source is not included.
    """
    model.eval()
    masses, device = [], model.tokens.weight.device
    for start in range(0, len(sources), ROWS):
        rows = slice(start, start + ROWS)
        source = pad(sources[rows], special.pad, end=special.eos).to(device)
        target = pad(targets[rows], special.pad, special.bos).to(device)
        mass = source_mass(model, source, target)
        masses += [row[: len(ids)] for row, ids in zip(mass, sources[rows], strict=True)]
    return masses


def source_mass(model: Seq2SeqModel, source: Tensor, target: Tensor) -> Tensor:
    """The column sums of the cross-attention, float32 (B, M) on the CPU: the mean over layers and heads."""
    masses: list[Tensor] = []

    def keep(name: str, weights: Tensor, allowed: Tensor | None) -> None:
        if name.endswith("cross"):
            masses.append(weights.float().sum(-2).mean(1))

    assert isinstance(model, nn.Module)
    with observe(model, keep):
        model(source, target)
    return torch.stack(masses).mean(0).cpu()


def summary(masses: Sequence[Tensor]) -> dict[str, float]:
    """mean and largest attention of a source token, and the percentage of tokens with less than `LITTLE`."""
    every = torch.cat(list(masses)).double()
    return {
        "mean": every.mean().item(),
        "largest": every.max().item(),
        "little": 100 * (every < LITTLE).double().mean().item(),
    }


class TranslationModule(Seq2SeqModule):
    """Loss, validation loss, and BLEU and chrF of greedy translations. scorer: a `Scorer`."""

    shown = ("source", "reference", "translation")
    sampled_line = "  BLEU {BLEU:.1f} chrF {chrF:.1f} (greedy)"

    def add_scores(self, texts: list[str], targets: list[str]) -> None:
        self.outputs.append(self.scorer.statistics(self.scorer.plain(texts), self.scorer.plain(targets)))

    def metrics(self) -> dict[str, float]:
        """loss (nats per target token), perplexity, and BLEU and chrF if translations were generated."""
        metrics, tables = super().metrics(), self.outputs
        if tables:
            columns = {name: [value for table in tables for value in table[name]] for name in tables[0]}
            metrics |= corpus_scores(columns)
        return metrics


AUTO = "auto"
CODE = "^[a-z]{2}$"
# sacremoses applies its general rules to any other text, without a word
Language = Annotated[str, Field(pattern=CODE, description="the two-letter code of a language")]


@dataclass(frozen=True, kw_only=True)
class TranslationTaskConfig(Seq2SeqTaskConfig):
    """The keys of `task`, as in conf/task/translation.yaml."""

    scored_pairs: Annotated[int, Field(ge=0, le=1000)] = 200
    detokenize: Literal["auto"] | Language | None = AUTO
    bleu_tokenizer: Literal["auto"] | BleuTokenizer = "auto"


class TranslationTask(Seq2SeqTask[TranslationModule]):
    """task=translation."""

    Config, schema, names = TranslationTaskConfig, PARALLEL, ("sources", "translations")
    groups: ClassVar[dict[str, type]] = {"decoding": TranslationDecoding}
    primary, sampled = "BLEU", tuple(CORPUS_METRICS)
    scoring, monitoring = ("task.detokenize", "task.bleu_tokenizer", "decoding"), ("task.scored_pairs",)

    @staticmethod
    def completed(cfg: dict) -> dict:
        """With auto, the language is that of the targets, or English if the data do not say it."""
        task, language = dict(cfg["task"]), str(cfg["data"].get("target_language", "en"))
        if task["detokenize"] == AUTO and re.match(CODE, language):
            task["detokenize"] = language
        if task["bleu_tokenizer"] == AUTO:
            task["bleu_tokenizer"] = bleu_tokenizer(language)
        return {**cfg, "task": task}

    def scorer(self) -> Scorer:
        """BLEU and chrF, with the configured detokenization and tokenizer."""
        return Scorer(self.config.detokenize, self.config.bleu_tokenizer)

    def notes(self) -> str:
        """Whether BLEU is of characters for want of a package."""
        language = str(self.cfg.settings["data"].get("target_language", "en"))
        return missing_tokenizer(words_of(language)) if self.config.bleu_tokenizer == "char" else ""

    def module(self, model: Seq2SeqModel, tokenizer: Tokenizer, validation: Split) -> TranslationModule:
        options = self.module_options(self.config.scored_pairs)
        return TranslationModule(model, tokenizer, validation.texts, self.scorer(), **options)

    def while_decoding(self, model: Seq2SeqModel) -> AbstractContextManager:
        assert isinstance(model, nn.Module)
        return limited(model, self.cfg.groups["decoding"].fertility, normalizers_of(self.cfg.attention["cross"]))

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.config.detokenize == AUTO:
            sentence = "task.detokenize=auto needs a two-letter code; type task.detokenize=<code>, or null"
            yield Problem("data.target_language", sentence, self.cfg.source.options["target_language"])
        fertility = self.cfg.groups["decoding"].fertility
        if fertility is not None:
            wrong = [name for name in normalizers_of(self.cfg.attention["cross"]) if name not in WITH_FERTILITY]
            if wrong:
                message = f"{wrong[0]} has no form with fertility; it needs attention.cross={'|'.join(WITH_FERTILITY)}"
                yield Problem("decoding.fertility", message, fertility)

    def text_scores(self, module: TranslationModule, split: Split, texts: list[str]) -> TextScores:
        """BLEU and chrF, those of copying the source, and the coverage of the source."""
        scorer, tokenizer = module.scorer, split.tokenizer
        sources, targets = list(split.texts["source"]), list(split.texts["target"])
        written, _ = cut(tokenizer.encode(texts), self.cfg.model.max_target - 1)
        with self.while_decoding(module.model):
            masses = coverage(module.model, list(split.rows["source"]), written, special_tokens(tokenizer))
        covered = summary(masses)
        attended = (
            f"coverage: over all target tokens, a source token receives {covered['mean']:.2f} of attention on average "
            f"and at most {covered['largest']:.2f}; {covered['little']:.1f} % receive less than {LITTLE}"
        )
        statistics = scorer.statistics(scorer.plain(texts), scorer.plain(targets))
        return TextScores(
            corpus_scores(statistics),
            {"sentence_chrF": sentence_chrf(statistics)},
            {"copy": scorer(sources, targets)},
            f"{scorer.describe(targets)}\n{attended}",
            statistics,
            CORPUS_METRICS,
            {"coverage": covered},
        )
