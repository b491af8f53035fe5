"""The base classes of the tasks that map a text to a text: an encoder-decoder, trained with teacher forcing."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from attnorm.attention.transfer import on_cpu
from attnorm.data.featurizer import Table, cut
from attnorm.data.preprocess import Split
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.errors import Problem
from attnorm.models.generation import Decoding, generate
from attnorm.models.interfaces import Seq2SeqModel
from attnorm.progress import tracked
from attnorm.schema import Share
from attnorm.tasks.module import Loss, ModelT, TaskModule, sums_per_row
from attnorm.tasks.pairs import PairCollator, PairFeaturizer, real_targets, special_tokens, target_logits, write_texts
from attnorm.tasks.results import CorpusMetric, Predictions, Results
from attnorm.tasks.task import Task, TaskConfig, Tokens


class WritingModule(TaskModule[ModelT]):
    """What the modules of all tasks that write texts have in common.

    shown:        what input, target and text are called where examples are displayed.
    validation:   the texts of the validation split. Row i corresponds to row i of the validation batches.
    scorer:       what scores the generated texts.
    scored_pairs: a validation scores the greedy texts of those of so many first rows that select the checkpoint.
    max_length:   maximum number of tokens of a greedy text.
    """

    counters: tuple[str, ...] = ("loss", "tokens")
    line = "perplexity {perplexity:,.1f}"
    shown: tuple[str, str, str]

    def __init__(
        self,
        model: ModelT,
        tokenizer: Tokenizer,
        validation: Table,
        scorer: Any,
        *,
        label_smoothing: float,
        scored_pairs: int,
        max_length: int,
    ):
        super().__init__(model, tokenizer)
        self.validation, self.scorer, self.scored_rows = validation, scorer, scored_pairs
        self.label_smoothing = label_smoothing
        self.special = special_tokens(tokenizer)
        self.greedy = Decoding(max_length=max_length)

    def sample(self, source: str, target: Any, text: str) -> dict[str, str]:
        """An example for display. target: the reference, or several of them."""
        return dict(zip(self.shown, (source, target, text), strict=True))

    def metrics(self) -> dict[str, float]:
        """loss (nats per target token) and perplexity."""
        loss = self.sums["loss"] / self.sums["tokens"]
        return {"loss": loss, "perplexity": math.exp(min(loss, 700.0))}


class Seq2SeqModule(WritingModule[Seq2SeqModel]):
    """The loss of target tokens given the source and the earlier target tokens.

    A subclass implements `add_scores` and extends `metrics`.
    """

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """The decoder's states (B, T, W) under teacher forcing."""
        return self.model(batch["source"], batch["target"][:, :-1])

    def loss(self, batch: dict[str, Tensor]) -> Loss:
        """Cross-entropy summed over target tokens. The objective includes label smoothing."""
        logits, labels = target_logits(self.model, batch)
        plain, smoothed = smoothed_cross_entropy(logits, labels, self.label_smoothing)
        return Loss(smoothed, len(labels), plain if self.label_smoothing else None)

    def tokens(self, batch: dict[str, Tensor]) -> Tensor:
        """Number of source tokens and predicted target tokens."""
        pad = self.special.pad
        return (batch["source"] != pad).sum() + (batch["target"][:, 1:] != pad).sum()

    def validation_step(self, batch: dict[str, Tensor], batch_index: int) -> None:
        logits, labels = target_logits(self.model, batch)
        logits = logits.float()
        rows, loss = on_cpu(batch["rows"], F.cross_entropy(logits, labels, reduction="sum"))
        self.add(loss=loss.item(), tokens=len(labels))
        if self.keep_examples:
            losses = F.cross_entropy(logits, labels, reduction="none")
            real = real_targets(batch["target"], self.special.pad)
            self.record(rows, loss_sum=sums_per_row(losses, real), n_tokens=real.sum(1))
        [scored] = (rows < self.scored_rows).nonzero(as_tuple=True)
        if len(scored):
            source = batch["source"][scored.to(logits.device, non_blocking=True)]
            written = generate(self.model, source, self.special, self.greedy)
            sources, targets = self.validation[rows[scored].tolist()].values()
            texts = list(map(self.tokenizer.decode, written))
            self.add_scores(texts, targets)
            self.samples += map(self.sample, sources, targets, texts)

    def add_scores(self, texts: list[str], targets: list[str]) -> None:
        """Adds the scores of greedy texts to `sums` or `outputs`."""
        raise NotImplementedError


def smoothed_cross_entropy(logits: Tensor, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """The cross-entropy summed over tokens, and the same with label smoothing (Szegedy et al., 2016, Sec. 7):

        (1 - smoothing) * sum_i -log p_i(y_i) + smoothing * sum_i mean_v -log p_i(v)

    Both are computed from the same log-probabilities. The second one equals
    `F.cross_entropy(..., label_smoothing=smoothing)` bit for bit, because it uses the same operations.
    logits: (tokens, V). labels: int64 (tokens,).
    """
    log_p = logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
    plain = F.nll_loss(log_p, labels, reduction="sum")
    if not smoothing:
        return plain, plain
    return plain, (1.0 - smoothing) * plain + -log_p.sum(-1).sum() * (smoothing / logits.shape[-1])


@dataclass(frozen=True, kw_only=True)
class Seq2SeqTaskConfig(TaskConfig):
    """Options of every task of this kind.

    label_smoothing: the share of the target's probability that is spread over the vocabulary.
    """

    label_smoothing: Share = 0.0


@dataclass
class TextScores:
    """The scores of the texts that a model has written for a split.

    metrics:    of the whole split.
    examples:   of each text, by name, in percent.
    baselines, note: as in `Results`. statistics, corpus_metrics: as in `Predictions`.
    extra:      further entries of the JSON file of the results.
    """

    metrics: dict[str, float]
    examples: dict[str, list[float]]
    baselines: dict[str, dict[str, float]]
    note: str
    statistics: dict[str, list[int]] = field(default_factory=dict)
    corpus_metrics: dict[str, type[CorpusMetric]] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)


WriterT = TypeVar("WriterT", bound=WritingModule)


class WritingTask(Task[ModelT, WriterT]):
    """A task whose models write a text for each row. A subclass implements `module`, `write_split` and `text_scores`.

    names:       what a row and such a text are called, in the plural.
    reads_texts: whether a row is what the model reads, and not its name, such as the id of an image.
    """

    groups: ClassVar[dict[str, type]] = {"decoding": Decoding}
    scoring: ClassVar[tuple[str, ...]] = ("decoding",)
    names: ClassVar[tuple[str, str]] = ("sources", "targets")
    reads_texts: ClassVar[bool] = True
    measured: ClassVar[dict[str, str]] = {"perplexity": "min"}

    def module_options(self, scored_pairs: int) -> dict[str, Any]:
        """The keyword arguments of the module."""
        lengths = {"scored_pairs": scored_pairs, "max_length": self.cfg.groups["decoding"].max_length}
        return {"label_smoothing": self.config.label_smoothing, **lengths}

    def rows_of(self, split: Split) -> tuple[list[str], list]:
        """The rows of a split as they are shown, and their references."""
        sources, targets = (list(split.texts[column]) for column in self.schema.columns)
        return sources, targets

    def write_split(self, model: ModelT, split: Split, progress: Callable) -> list[str]:
        """One text for each row of a split. `progress` wraps the list of batches."""
        raise NotImplementedError

    def text_scores(self, module: WriterT, split: Split, texts: list[str]) -> TextScores:
        """The scores of the texts that a model has written for all rows of a split."""
        raise NotImplementedError

    def problems(self) -> Iterator[str]:
        """Problems with the lengths of the texts that a model may generate, and with those that it reads."""
        decoding, model = self.cfg.groups["decoding"], self.cfg.model
        if decoding.max_length >= model.max_target:
            message = f"must be below model.max_target={model.max_target}, because the begin token takes a position"
            yield Problem("decoding.max_length", message, decoding.max_length)
        if decoding.min_length > decoding.max_length:
            message = f"must be at most decoding.max_length={decoding.max_length}"
            yield Problem("decoding.min_length", message, decoding.min_length)
        yield from super().problems()

    def score(self, module: WriterT, split: Split) -> Results:
        """Loss, and the scores of the texts that the model writes for the whole split, with the options `decoding`."""
        module.scored_rows = 0  # greedy texts are for monitoring only
        loss, what = self.evaluate(module, split)["loss"], self.names[1]
        started = time.perf_counter()
        texts = self.write_split(module.model, split, lambda items: tracked(items, f"{split.name} {what}"))
        seconds = time.perf_counter() - started
        scores, (rows, targets) = self.text_scores(module, split, texts), self.rows_of(split)
        return Results(
            split.name,
            self.unit,
            len(texts),
            {**scores.metrics, "loss": loss},
            baselines=scores.baselines,
            note=scores.note,
            settings={name: value for name, value in vars(self.cfg.groups["decoding"]).items() if value is not None},
            files={".txt": "\n".join(texts) + "\n"},
            predictions=Predictions(
                self.example_ids(split, range(len(texts))),
                targets,
                texts,
                scores.examples,
                module.examples["loss_sum"],
                module.examples["n_tokens"],
                statistics=scores.statistics,
                corpus_metrics=scores.corpus_metrics,
                inputs=rows if self.reads_texts else None,
            ),
            samples=list(map(module.sample, rows, targets, texts)),
            extra={
                **scores.extra,
                f"{what}_per_second": round(len(texts) / seconds, 1),
                "seconds": round(seconds, 1),
            },
        )


class Seq2SeqTask(WritingTask[Seq2SeqModel, WriterT]):
    """Pairs of texts and an encoder-decoder. A subclass implements `module` and `text_scores`."""

    Config: ClassVar[type[TaskConfig]] = Seq2SeqTaskConfig
    interface, unit = "seq2seq", "pairs"
    budget = (("model.max_source", "model.max_target"), "the tokens of the longest possible pair")

    def featurizer(self) -> PairFeaturizer:
        model = self.cfg.model
        return PairFeaturizer(model.max_source, model.max_target, self.schema, self.names)

    def collator(self, split: Split) -> PairCollator:
        tokenizer = split.tokenizer
        return PairCollator(split.rows, tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id)

    def generate(self, model: Seq2SeqModel, tokenizer: Tokenizer, texts: list[str]) -> list[str]:
        return self.write(model, tokenizer, cut(tokenizer.encode(texts), self.cfg.model.max_source - 1)[0])

    def write_split(self, model: Seq2SeqModel, split: Split, progress: Callable) -> list[str]:
        return self.write(model, split.tokenizer, split.rows["source"], progress)

    def write(
        self, model: Seq2SeqModel, tokenizer: Tokenizer, sources: Sequence[list[int]], progress: Callable = iter
    ) -> list[str]:
        """One text for each source, token ids without special tokens. `progress` wraps the list of batches."""
        with self.while_decoding(model):
            return write_texts(
                model, tokenizer, sources, self.cfg.groups["decoding"], self.cfg.data.batch_tokens, progress
            )

    def attended(self, model: Seq2SeqModel, tokenizer: Tokenizer, text: str) -> tuple[tuple[Tensor, ...], Tokens]:
        """The model reads the source and the target that it has generated."""
        [source], _ = cut(tokenizer.encode([text]), self.cfg.model.max_source - 1)
        source, special = [*source, tokenizer.eos_id], special_tokens(tokenizer)
        device = next(model.parameters()).device
        with self.while_decoding(model):
            [written] = generate(model, torch.tensor([source], device=device), special, self.cfg.groups["decoding"])
        target = [tokenizer.bos_id, *written]
        read, wrote = ([tokenizer.token(number) for number in ids] for ids in (source, target))

        def tokens(layer: str) -> tuple[list[str], list[str]]:
            of_decoder, to_source = layer.startswith("decoder"), layer.endswith("cross")
            return wrote if of_decoder else read, wrote if of_decoder and not to_source else read

        return (torch.tensor([source]), torch.tensor([target])), tokens
