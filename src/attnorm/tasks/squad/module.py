"""Reading comprehension ("BERT", Sec. 4.2, 4.3): predicts where in a text the answer to a question starts and ends."""

from itertools import islice

import torch
import torch.nn.functional as F
from torch import Tensor

from attnorm.data.featurizer import Table
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.models.heads import SpanModel
from attnorm.tasks.module import Loss, TaskModule
from attnorm.tasks.squad.metric import references, score
from attnorm.tasks.squad.spans import Spans

SHOWN = 5  # samples


class SpanModule(TaskModule):
    """The mean of the cross-entropies of start and end over windows; exact match and F1 of the answers.

    rows, texts: the validation windows, and the questions from which they were made.
    null_threshold: an answer is empty if the score of no answer exceeds its score by more than this. None: never.
    """

    monitor, mode = "val/f1", "max"
    counters = ("loss", "windows")

    def __init__(
        self,
        model: SpanModel,
        tokenizer: Tokenizer,
        rows: Table,
        texts: Table,
        *,
        n_best: int,
        max_answer: int,
        null_threshold: float | None,
    ):
        super().__init__(model, tokenizer)
        self.rows, self.texts, self.null_threshold = rows, texts, null_threshold
        self.search = {"n_best": n_best, "max_answer": max_answer}

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Scores (B, N, 2) of start and end, -inf at padding."""
        padding = batch["ids"] == self.tokenizer.pad_id
        return self.model(batch["ids"], batch["types"]).float().masked_fill(padding[..., None], -torch.inf)

    def loss(self, batch: dict[str, Tensor]) -> Loss:
        return Loss(self._loss(self(batch), batch), len(batch["rows"]))

    def _loss(self, scores: Tensor, batch: dict[str, Tensor], reduction: str = "sum") -> Tensor:
        targets = torch.stack([batch["starts"], batch["ends"]], dim=1)  # (B, 2); 0, that is [CLS], without an answer
        return F.cross_entropy(scores, targets, reduction=reduction) / 2

    def tokens(self, batch: dict[str, Tensor]) -> Tensor:
        return (batch["ids"] != self.tokenizer.pad_id).sum()

    def begin_validation(self, keep_examples: bool = False) -> None:
        super().begin_validation(keep_examples)
        self.spans = Spans(self.rows, self.texts, **self.search)
        self.outputs = [self.spans.found]

    def validation_step(self, batch: dict[str, Tensor], batch_index: int) -> None:
        scores = self(batch)
        self.spans.add(batch["rows"].tolist(), *scores.unbind(-1))
        self.add(loss=self._loss(scores, batch).item(), windows=len(batch["rows"]))
        if self.keep_examples:
            self.record(batch["rows"], loss_sum=self._loss(scores, batch, "none").cpu().double().sum(1))

    def metrics(self) -> dict[str, float]:
        """loss (nats), exact and f1 in percent, over the questions with at least one evaluated window."""
        everywhere = Spans(self.rows, self.texts, **self.search)
        for found in self.outputs:  # one per rank; several ranks may have evaluated windows of the same question
            everywhere.merge(found)
        self.spans = everywhere
        answers, odds = everywhere.answers()
        gold = [reference for reference in references(self.texts) if reference[0] in answers]
        with_null = () if self.null_threshold is None else (odds, self.null_threshold)
        found = score(answers, gold, *with_null)
        self._show(gold)
        kept = {name: value for name, value in found.items() if not name.endswith(("total", "missing", "extra"))}
        return {"loss": self.sums["loss"] / self.sums["windows"], **kept}

    def _show(self, gold: list[tuple[str, list[str]]]) -> None:
        answers, _ = self.spans.answers(self.null_threshold)
        questions = dict(zip(self.texts["id"], self.texts["question"], strict=True))
        self.samples = [
            {
                "question": questions[name],
                "gold": " | ".join(dict.fromkeys(texts)) or "(none)",
                "answer": answers[name] or "(none)",
            }
            for name, texts in islice(gold, SHOWN)
        ]

    def format_line(self, metrics: dict[str, float]) -> str:
        return f"exact match {metrics['exact']:.1f}  F1 {metrics['f1']:.1f}"
