"""Translation: trained with teacher forcing and evaluated with BLEU and chrF."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from attnorm.data.featurizer import Table
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.tasks.seq2seq.module import Seq2SeqModule
from attnorm.tasks.translation.scores import Scorer, corpus_scores


def sample(source: str, reference: str, translation: str) -> dict[str, str]:
    """A source, its reference and the translation, for display."""
    return {"source": source, "reference": reference, "translation": translation}


class TranslationModule(Seq2SeqModule):
    """Loss, validation loss, and BLEU and chrF of greedy translations of the first `scored_pairs` validation pairs.

    validation: a table with the columns source and target. Row i corresponds to row i of the validation batches.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Tokenizer,
        validation: Table,
        scorer: Scorer,
        *,
        label_smoothing: float,
        scored_pairs: int,
        max_length: int,
    ):
        super().__init__(model, tokenizer, label_smoothing=label_smoothing, max_length=max_length)
        self.validation, self.scorer, self.scored_pairs = validation, scorer, scored_pairs

    def validation_step(self, batch: dict[str, Tensor], batch_index: int) -> None:
        super().validation_step(batch, batch_index)
        scored = batch["rows"] < self.scored_pairs
        if scored.any():
            table = self.validation[batch["rows"][scored].tolist()]
            translations = self.write_greedy(batch["source"][scored])
            written, wanted = self.scorer.plain(translations), self.scorer.plain(table["target"])
            self.outputs.append(self.scorer.statistics(written, wanted))
            self.samples += map(sample, table["source"], table["target"], translations)

    def metrics(self) -> dict[str, float]:
        """loss (nats per target token), perplexity, and BLEU and chrF if translations were generated."""
        return {**super().metrics(), **(corpus_scores(joined(self.outputs)) if self.outputs else {})}

    def format_line(self, metrics: dict[str, float]) -> str:
        scores = f"  BLEU {metrics['BLEU']:.1f} chrF {metrics['chrF']:.1f} (greedy)" if "BLEU" in metrics else ""
        return f"perplexity {metrics['perplexity']:,.1f}{scores}"


def joined(tables: Sequence[dict[str, list[int]]]) -> dict[str, list[int]]:
    """Tables with the same columns, one below the other."""
    return {name: [value for table in tables for value in table[name]] for name in tables[0]}
