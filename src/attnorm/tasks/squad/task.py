"""Reading comprehension on SQuAD: windows over the texts, answers, and their official scores."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from attnorm.attention.transfer import on_cpu
from attnorm.data.featurizer import Table
from attnorm.data.preprocess import Split
from attnorm.data.readers.text import digest
from attnorm.data.sources.base import QUESTIONS
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.errors import ConfigError, Problem
from attnorm.models.heads import SpanModel
from attnorm.parts import TARGET
from attnorm.schema import Count, Number
from attnorm.tasks.bert import EncoderTask
from attnorm.tasks.module import Loss, TaskModule
from attnorm.tasks.results import Predictions, Results
from attnorm.tasks.squad.metric import question_scores, references, score
from attnorm.tasks.squad.spans import Spans
from attnorm.tasks.squad.windows import SquadCollator, SquadFeaturizer
from attnorm.tasks.task import TaskConfig

SHOWN = 5  # samples


class SpanModule(TaskModule[SpanModel]):
    """The mean of the cross-entropies of start and end over windows; exact match and F1 of the answers.

    texts:  the validation questions. search: returns an empty `Spans` of them and of their windows.
    threshold: an answer is empty if the score of no answer exceeds its score by more than this. None: never.
    """

    monitor, mode = "val/f1", "max"
    counters = ("loss", "windows")
    line = "exact match {exact:.1f}  F1 {f1:.1f}"

    def __init__(
        self, model: SpanModel, tokenizer: Tokenizer, texts: Table, search: Callable[[], Spans], threshold: float | None
    ):
        super().__init__(model, tokenizer)
        self.texts, self.search, self.null_threshold = texts, search, threshold

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Scores (B, N, 2) of start and end, -inf at padding."""
        padding = batch["ids"] == self.tokenizer.pad_id
        return self.model(batch["ids"], batch["types"]).float().masked_fill(padding[..., None], -torch.inf)

    def loss(self, batch: dict[str, Tensor]) -> Loss:
        return Loss(self._loss(self(batch), batch), len(batch["rows"]))

    def _loss(self, scores: Tensor, batch: dict[str, Tensor], reduction: str = "sum") -> Tensor:
        targets = torch.stack([batch["starts"], batch["ends"]], dim=1)  # (B, 2); 0, that is [CLS], without an answer
        return F.cross_entropy(scores, targets, reduction=reduction) / 2

    def begin_validation(self, keep_examples: bool = False) -> None:
        super().begin_validation(keep_examples)
        self.spans = self.search()
        self.outputs = [self.spans.best]

    def validation_step(self, batch: dict[str, Tensor], batch_index: int) -> None:
        scores = self(batch)
        rows, read, loss = on_cpu(batch["rows"], scores, self._loss(scores, batch))
        self.spans.add(rows.tolist(), *read.unbind(-1))
        self.add(loss=loss.item(), windows=len(rows))
        if self.keep_examples:
            self.record(rows, loss_sum=self._loss(scores, batch, "none").cpu().double().sum(1))

    def metrics(self) -> dict[str, float]:
        """loss (nats), exact and f1 in percent, over the questions with at least one evaluated window."""
        everywhere = self.search()
        for spans in self.outputs:  # one per rank; several ranks may have evaluated windows of the same question
            everywhere.merge(spans)
        self.spans = everywhere
        answers, odds = everywhere.answers()
        gold = [reference for reference in references(self.texts) if reference[0] in answers]
        with_null = () if self.null_threshold is None else (odds, self.null_threshold)
        official = score(answers, gold, *with_null)
        answers, _ = everywhere.answers(self.null_threshold)
        questions = dict(zip(self.texts["id"], self.texts["question"], strict=True))
        self.samples = [
            {
                "question": questions[name],
                "gold": " | ".join(dict.fromkeys(texts)) or "(none)",
                "answer": answers[name] or "(none)",
            }
            for name, texts in gold[:SHOWN]
        ]
        kept = {name: value for name, value in official.items() if not name.endswith(("total", "missing", "extra"))}
        return {"loss": self.sums["loss"] / self.sums["windows"], **kept}


@dataclass(frozen=True, kw_only=True)
class SquadTaskConfig(TaskConfig):
    """The keys of `task`, as in conf/task/squad.yaml."""

    max_query: Count = 64
    stride: Count = 128
    n_best: Count = 20
    max_answer: Count = 30
    no_answer: bool = False
    null_threshold: Number = 0.0


class SquadTask(EncoderTask[SpanModel, SpanModule]):
    """task=squad."""

    Config, schema, unit, head = SquadTaskConfig, QUESTIONS, "questions", SpanModel
    measured: ClassVar[dict[str, str]] = {"exact": "max"}
    scoring = ("task.n_best", "task.max_answer", "task.null_threshold")

    def featurizer(self) -> SquadFeaturizer:
        config = self.config
        return SquadFeaturizer(self.cfg.model.max_source, config.max_query, config.stride, config.no_answer)

    def module(self, model: SpanModel, tokenizer: Tokenizer, validation: Split) -> SpanModule:
        config = self.config
        options = {"n_best": config.n_best, "max_answer": config.max_answer}
        search = partial(Spans, validation.rows, validation.texts, **options)
        threshold = config.null_threshold if config.no_answer else None
        return SpanModule(model, tokenizer, validation.texts, search, threshold)

    def collator(self, split: Split) -> SquadCollator:
        return SquadCollator(split.rows, split.tokenizer.pad_id)

    def row_groups(self, split: Split) -> Sequence[object]:
        passages = passages_of(split)
        return [passages[question] for question in split.rows["example"]]

    def example_ids(self, split: Split, rows: Sequence[int]) -> list[str]:
        """The ids of the questions whose windows the rows are."""
        return list(split.texts[split.rows[list(rows)]["example"]]["id"])

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        try:
            self.featurizer()
        except ConfigError as error:
            yield from error.problems
        task = self.config
        if task.null_threshold and not task.no_answer:
            yield Problem("task.null_threshold", "has no effect without task.no_answer=true", task.null_threshold)
        if not self.cfg.tokenizer.cls.has_offsets:
            message = "does not return the character offsets of tokens, which this task needs; use tokenizer=wordpiece"
            yield Problem(f"tokenizer.{TARGET}", message, self.cfg.settings["tokenizer"][TARGET])

    def score(self, module: SpanModule, split: Split) -> Results:
        """The official scores, with the answers and, for SQuAD 2.0, the odds of no answer in the official format.

        For SQuAD 2.0, the best spans are also written, even if the odds of no answer exceed the threshold, so that
        other thresholds can be tried. The baseline of 2.0 gives no answer to any question.
        """
        scores = super().score(module, split)
        answers, odds = module.spans.answers(module.null_threshold)
        scores.files = {".predictions.json": json.dumps(answers, ensure_ascii=False, indent=1) + "\n"}
        if module.null_threshold is not None:
            finite = {name: min(value, 1e9) for name, value in odds.items()}  # JSON has no infinity
            scores.files[".null_odds.json"] = json.dumps(finite, indent=1) + "\n"
            spans, _ = module.spans.answers()
            scores.files[".spans.json"] = json.dumps(spans, ensure_ascii=False, indent=1) + "\n"
            gold = references(split.texts)
            silent = score({name: "" for name, _ in gold}, gold)
            scores.baselines = {"never an answer": {name: silent[name] for name in ("f1", "exact")}}
            scores.settings = {"null_threshold": module.null_threshold}
        scores.predictions = self.predictions(module, split)
        scores.note = "official rules: lower case, no punctuation, no articles; best of the gold answers"
        return scores

    def predictions(self, task: SpanModule, split: Split) -> Predictions:
        """One row per question.

        With task.no_answer=true, the table also contains the values from which the best thresholds can be computed: the
        odds of no answer, the best span, and its scores.
        """
        gold = references(split.texts)
        spans, odds = task.spans.answers()
        answers, _ = task.spans.answers(task.null_threshold)
        losses, windows = [0.0] * len(gold), [0] * len(gold)
        statistics: dict[str, list] = {}
        for question, loss in zip(split.rows["example"], task.examples["loss_sum"], strict=True):
            losses[question] += loss
            windows[question] += 1
        if task.null_threshold is None:
            scores = question_scores(spans, gold)
        else:
            scores = question_scores(spans, gold, odds, task.null_threshold)
            of_spans = question_scores(spans, gold, odds, threshold=math.inf)
            statistics = {
                "has_answer": [bool(texts) for _, texts in gold],
                "null_odds": list(odds.values()),
                "span": list(spans.values()),
                **{f"span_{name}": values for name, values in of_spans.items()},
            }
        return Predictions(
            ids=[name for name, _ in gold],
            groups=passages_of(split),
            inputs=list(split.texts["question"]),
            references=[texts for _, texts in gold],
            outputs=list(answers.values()),
            scores=scores,
            loss_sum=losses,
            n_tokens=windows,
            statistics=statistics,
        )


def passages_of(split: Split) -> list[str]:
    """A name for the passage of each question."""
    return [digest(context) for context in split.texts["context"]]
