"""Translation: pairs of sentences, an encoder-decoder, BLEU and chrF."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from attnorm.attention.build import normalizers_of
from attnorm.attention.tables import at_site, with_tables
from attnorm.data.featurizer import Table
from attnorm.data.preprocess import Split
from attnorm.data.sources.parallel import PARALLEL
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.errors import Problem
from attnorm.tasks.results import Predictions, Results
from attnorm.tasks.seq2seq.base import Seq2SeqModule, Seq2SeqTask, Seq2SeqTaskConfig
from attnorm.tasks.seq2seq.generate import special_tokens
from attnorm.tasks.translation.fertility import (
    WITH_FERTILITY,
    TranslationDecoding,
    coverage,
    describe,
    limited,
    summary,
)
from attnorm.tasks.translation.scores import CORPUS_METRICS, Scorer, corpus_scores, sentence_chrf


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


AUTO = "auto"
# sacremoses applies its general rules to any other text, without a word
Language = Annotated[str, Field(pattern="^[a-z]{2}$", description="the two-letter code of a language")]


@dataclass(frozen=True, kw_only=True)
class TranslationTaskConfig(Seq2SeqTaskConfig):
    """The keys of `task`, as in conf/task/translation.yaml."""

    scored_pairs: Annotated[int, Field(ge=0, le=1000)] = 200
    detokenize: Literal["auto"] | Language | None = AUTO


def language_of(cfg: Mapping[str, Any]) -> Any:
    """The value of task.detokenize: for "auto" data.target_language, or English if the data do not say it."""
    value = cfg["task"].get("detokenize", AUTO)
    return cfg["data"].get("target_language", "en") if value == AUTO else value


class TranslationTask(Seq2SeqTask):
    """task=translation."""

    Config, schema, names = TranslationTaskConfig, PARALLEL, ("sources", "translations")
    groups: ClassVar[dict[str, type]] = {"decoding": TranslationDecoding}
    primary = "BLEU"
    scoring, monitoring = ("task.detokenize", "decoding"), ("task.scored_pairs",)

    @staticmethod
    def completed(cfg: dict) -> dict:
        """With task.detokenize=auto, the language is that of the targets."""
        return {**cfg, "task": {**cfg["task"], "detokenize": language_of(cfg)}}

    def scorer(self) -> Scorer:
        """BLEU and chrF, with the configured detokenization."""
        return Scorer(language_of(self.cfg))

    def module(self, model: Any, tokenizer: Tokenizer, validation: Split) -> TranslationModule:
        return TranslationModule(
            model,
            tokenizer,
            validation.texts,
            self.scorer(),
            label_smoothing=self.config.label_smoothing,
            scored_pairs=self.config.scored_pairs,
            max_length=self.cfg["decoding"]["max_length"],
        )

    def decoding(self) -> TranslationDecoding:
        return self.group("decoding")

    def cross_normalizers(self) -> list[str]:
        """The normalizers of the attention to the source."""
        return normalizers_of(at_site(with_tables(self.cfg["attention"]), "cross", autoregressive=True))

    def while_decoding(self, model: Any) -> AbstractContextManager:
        return limited(model, self.decoding().fertility, self.cross_normalizers())

    def problems(self, is_valid: Callable[..., bool]) -> Iterator[str]:
        yield from super().problems(is_valid)
        fertility = self.cfg["decoding"].get("fertility")
        if fertility is not None and is_valid("attention"):
            wrong = [name for name in self.cross_normalizers() if name not in WITH_FERTILITY]
            if wrong:
                message = f"{wrong[0]} has no form with fertility; it needs attention.cross={'|'.join(WITH_FERTILITY)}"
                yield Problem("decoding.fertility", message, fertility)

    def coverage_of(self, model: Any, split: Split, translations: list[str]) -> dict[str, float]:
        """How much attention the source tokens of a split receive while the model writes the translations."""
        tokenizer, limit = split.tokenizer, self.cfg["model"]["max_target"] - 1
        written = [ids[:limit] for ids in tokenizer.encode(translations)]
        with self.while_decoding(model):
            return summary(coverage(model, list(split.rows["source"]), written, special_tokens(tokenizer)))

    def score(self, module: TranslationModule, split: Split) -> Results:
        """Loss, and BLEU and chrF of beam-searched translations of the whole split, compared to copying the source."""
        module.scored_pairs = 0  # greedy translations are for monitoring only
        loss = self.evaluate(module, split)["loss"]
        losses, n_tokens = module.examples["loss_sum"], module.examples["n_tokens"]
        translations, seconds = self.write_split(module.model, split)
        sources, targets = list(split.texts["source"]), list(split.texts["target"])
        scorer, covered = module.scorer, self.coverage_of(module.model, split, translations)
        statistics = scorer.statistics(scorer.plain(translations), scorer.plain(targets))
        return Results(
            split.name,
            self.unit,
            len(targets),
            {**corpus_scores(statistics), "loss": loss},
            baselines={"copy": scorer(sources, targets)},
            note=f"{scorer.describe(targets)}\n{describe(covered)}",
            settings={name: value for name, value in vars(self.decoding()).items() if value is not None},
            files={".txt": "\n".join(translations) + "\n"},
            predictions=Predictions(
                range(len(targets)),
                targets,
                translations,
                {"sentence_chrF": sentence_chrf(statistics)},
                losses,
                n_tokens,
                statistics=statistics,
                corpus_metrics=CORPUS_METRICS,
                inputs=sources,
            ),
            samples=list(map(sample, sources, targets, translations)),
            extra={
                "coverage": covered,
                "sentences_per_second": round(len(targets) / seconds, 1),
                "seconds": round(seconds, 1),
            },
        )
