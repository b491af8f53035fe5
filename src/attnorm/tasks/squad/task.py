"""Reading comprehension on SQuAD: windows over the texts, answers and their official scores."""

import json
import math
from collections.abc import Callable, Iterator

from attnorm.data.preprocess import Split
from attnorm.data.readers.text import digest
from attnorm.models.heads import SpanModel
from attnorm.tasks.bert import BertRecipe
from attnorm.tasks.results import Predictions, Results
from attnorm.tasks.squad import metric as squad_metric
from attnorm.tasks.squad.module import SpanModule
from attnorm.tasks.squad.windows import WindowBatches, Windows


class Questions(BertRecipe):
    """task=squad."""

    kind, unit, head = "questions", "questions", SpanModel

    def layout(self) -> Windows:
        task = self.cfg["task"]
        return Windows(self.cfg["model"]["max_source"], task["max_query"], task["stride"], task["no_answer"])

    def task(self, model: SpanModel, tokenizer, validation: Split) -> SpanModule:
        task = self.cfg["task"]
        return SpanModule(
            model,
            tokenizer,
            self.optim(),
            validation.rows,
            validation.texts,
            n_best=task["n_best"],
            max_answer=task["max_answer"],
            null_threshold=task["null_threshold"] if task["no_answer"] else None,
        )

    def batches(self, split: Split) -> WindowBatches:
        return WindowBatches(split.rows, split.tokenizer.pad_id)

    def problems(self, sound: Callable[..., bool]) -> Iterator[str]:
        yield from super().problems(sound)
        if sound("model.max_source", "task.max_query", "task.stride", "task.no_answer"):
            try:
                self.layout()
            except ValueError as error:
                yield from str(error).splitlines()
        task = self.cfg["task"]
        if sound("task.no_answer", "task.null_threshold") and task["null_threshold"] and not task["no_answer"]:
            yield f"task.null_threshold={task['null_threshold']}: it is for task.no_answer=true"
        if self.cfg["tokenizer"].get("name") == "sentencepiece":
            yield "tokenizer=sentencepiece: it does not tell where in a text a token is; task=squad needs wordpiece"

    def score(self, task: SpanModule, split: Split) -> Results:
        """The official scores; answers, and for SQuAD 2.0 the odds of none, in the official format. Beside them the
        best spans, also where the odds are too high: what other thresholds are to be tried on. The baseline of 2.0 is
        to give no answer to any question."""
        scores = super().score(task, split)
        answers, odds = task.spans.answers(task.null_threshold)
        scores.files = {".predictions.json": json.dumps(answers, ensure_ascii=False, indent=1) + "\n"}
        if task.null_threshold is not None:
            finite = {name: min(value, 1e9) for name, value in odds.items()}  # JSON has no infinity
            scores.files[".null_odds.json"] = json.dumps(finite, indent=1) + "\n"
            spans, _ = task.spans.answers()
            scores.files[".spans.json"] = json.dumps(spans, ensure_ascii=False, indent=1) + "\n"
            gold = squad_metric.references(split.texts)
            silent = squad_metric.score({name: "" for name, _ in gold}, gold)
            scores.baselines = {"never an answer": {name: silent[name] for name in ("f1", "exact")}}
            scores.settings = {"null_threshold": task.null_threshold}
        scores.predictions = self.predictions(task, split)
        scores.note = "official rules: lower case, no punctuation, no articles; best of the gold answers"
        return scores

    def predictions(self, task: SpanModule, split: Split) -> Predictions:
        """One row per question. With task.no_answer=true also what the best thresholds follow from: the odds of no
        answer, the best span, and its scores."""
        gold = squad_metric.references(split.texts)
        spans, odds = task.spans.answers()
        answers, _ = task.spans.answers(task.null_threshold)
        losses, windows, statistics = [0.0] * len(gold), [0] * len(gold), {}
        for question, loss in zip(split.rows["example"], task.examples["loss_sum"], strict=True):
            losses[question] += loss
            windows[question] += 1
        if task.null_threshold is None:
            scores = squad_metric.question_scores(spans, gold)
        else:
            scores = squad_metric.question_scores(spans, gold, odds, task.null_threshold)
            of_spans = squad_metric.question_scores(spans, gold, odds, threshold=math.inf)
            statistics = {
                "has_answer": [bool(texts) for _, texts in gold],
                "null_odds": list(odds.values()),
                "span": list(spans.values()),
                **{f"span_{name}": values for name, values in of_spans.items()},
            }
        return Predictions(
            ids=[name for name, _ in gold],
            groups=[digest(context) for context in split.texts["context"]],
            inputs=list(split.texts["question"]),
            references=[texts for _, texts in gold],
            outputs=list(answers.values()),
            scores=scores,
            loss_sum=losses,
            n_tokens=windows,
            statistics=statistics,
        )
