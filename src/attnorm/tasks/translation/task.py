"""Translation: pairs of sentences, an encoder-decoder, BLEU and chrF."""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from attnorm.data.preprocess import Split
from attnorm.data.sources.parallel import PARALLEL
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.schema import Text
from attnorm.tasks.results import Predictions, Results
from attnorm.tasks.seq2seq.base import Seq2SeqTask, Seq2SeqTaskConfig
from attnorm.tasks.translation.module import TranslationModule, sample
from attnorm.tasks.translation.scores import CORPUS_METRICS, Scorer, corpus_scores, sentence_chrf


@dataclass(frozen=True, kw_only=True)
class TranslationTaskConfig(Seq2SeqTaskConfig):
    """The keys of `task`, as in conf/task/translation.yaml."""

    scored_pairs: Annotated[int, Field(ge=0, le=1000)] = 200
    detokenize: Text | None = "en"


class TranslationTask(Seq2SeqTask):
    """task=translation."""

    Config, schema, names = TranslationTaskConfig, PARALLEL, ("sources", "translations")
    primary = "BLEU"
    scoring, monitoring = ("task.detokenize", "decoding"), ("task.scored_pairs",)

    def scorer(self) -> Scorer:
        """BLEU and chrF, with the configured detokenisation."""
        return Scorer(self.config.detokenize)

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

    def score(self, module: TranslationModule, split: Split) -> Results:
        """Loss, and BLEU and chrF of beam-searched translations of the whole split, compared to copying the source."""
        module.scored_pairs = 0  # greedy translations are for monitoring only
        loss = self.evaluate(module, split)["loss"]
        losses, n_tokens = module.examples["loss_sum"], module.examples["n_tokens"]
        translations, seconds = self.write_split(module.model, split)
        sources, targets = list(split.texts["source"]), list(split.texts["target"])
        scorer = module.scorer
        statistics = scorer.statistics(scorer.plain(translations), scorer.plain(targets))
        return Results(
            split.name,
            self.unit,
            len(targets),
            {**corpus_scores(statistics), "loss": loss},
            baselines={"copy": scorer(sources, targets)},
            note=scorer.describe(targets),
            settings=vars(self.decoding()),
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
            extra={"sentences_per_second": round(len(targets) / seconds, 1), "seconds": round(seconds, 1)},
        )
