"""Masked language modelling: documents in blocks, a BERT-shaped encoder, scores at the hidden tokens only."""

from collections.abc import Callable, Iterator
from functools import cache

from attnorm.data.preprocess import Split
from attnorm.models.bert import MaskedLM
from attnorm.tasks.bert import BertRecipe
from attnorm.tasks.mlm.masking import MaskedBatches, Masking
from attnorm.tasks.mlm.module import MaskedLMModule
from attnorm.tasks.mlm.packing import Blocks
from attnorm.tasks.results import Predictions, Results


class MaskedLanguageModel(BertRecipe):
    """task=mlm."""

    kind, unit, head = "documents", "documents", MaskedLM

    def layout(self) -> Blocks:
        task = self.cfg["task"]
        return Blocks(self.cfg["model"]["max_source"], task["packed"], task["share"])

    def masking(self) -> Masking:
        """What is hidden, and what stands in its place."""
        return Masking(**{name: self.cfg["task"][name] for name in Masking.__dataclass_fields__})

    def task(self, model: MaskedLM, tokenizer, validation: Split) -> MaskedLMModule:
        return MaskedLMModule(model, tokenizer, self.optim())

    def batches(self, split: Split) -> MaskedBatches:
        return MaskedBatches(split.rows, split.tokenizer, self.masking(), self.cfg["seed"])

    def score(self, task: MaskedLMModule, split: Split) -> Results:
        """Loss, perplexity and accuracy at the masked tokens; the predictions have one row per block."""
        scores, examples = super().score(task, split), task.examples
        text = cache(lambda token: split.tokenizer.decode([token]))  # a split has few different tokens
        masked, filled = ([list(map(text, row)) for row in examples[name]] for name in ("reference", "output"))
        counts = list(zip(examples["correct"], examples["n_tokens"], strict=True))
        scores.predictions = Predictions(
            ids=range(len(split)),
            references=masked,
            outputs=filled,
            scores={"accuracy": [100.0 * correct / count if count else None for correct, count in counts]},
            loss_sum=examples["loss_sum"],
            n_tokens=examples["n_tokens"],
            statistics={"correct": examples["correct"]},
        )
        return scores

    def problems(self, sound: Callable[..., bool]) -> Iterator[str]:
        yield from super().problems(sound)
        if sound(*(f"task.{name}" for name in Masking.__dataclass_fields__)):
            yield from Masking.check({name: self.cfg["task"][name] for name in Masking.__dataclass_fields__}, "task")
        if self.cfg["tokenizer"].get("name") == "sentencepiece":
            yield "tokenizer=sentencepiece: it has no mask token; task=mlm needs tokenizer=wordpiece"
