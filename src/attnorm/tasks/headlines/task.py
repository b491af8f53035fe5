"""Headline generation: articles and headlines, the encoder-decoder, ROUGE beside the lead-8 baseline."""

import time
from collections.abc import Callable, Iterator

from attnorm.data.preprocess import Split
from attnorm.models.generation import Decoding
from attnorm.models.seq2seq import Seq2Seq
from attnorm.progress import tracked
from attnorm.tasks.headlines.features import PairBatches, PairLayout
from attnorm.tasks.headlines.generate import write_headlines
from attnorm.tasks.headlines.module import HeadlineModule, sample
from attnorm.tasks.headlines.rouge import Rouge, lead, means
from attnorm.tasks.results import Predictions, Results
from attnorm.tasks.task import Recipe, build_settings


class Headlines(Recipe):
    """task=gigaword."""

    models = ("seq2seq",)
    kind, unit = "pairs", "pairs"

    def layout(self) -> PairLayout:
        return PairLayout(self.cfg["model"]["max_source"], self.cfg["model"]["max_target"])

    def model(self, tokenizer) -> Seq2Seq:
        vocabulary = tokenizer.vocab_size, tokenizer.pad_id
        return Seq2Seq(self.shape(), self.cfg["attention"], *vocabulary, seed=self.cfg["seed"])

    def task(self, model: Seq2Seq, tokenizer, validation: Split) -> HeadlineModule:
        return HeadlineModule(
            model,
            tokenizer,
            self.optim(),
            validation.texts,
            label_smoothing=self.cfg["task"]["label_smoothing"],
            rouge_pairs=self.cfg["task"]["rouge_pairs"],
            stemmer=self.cfg["task"]["stemmer"],
            max_length=self.cfg["decoding"]["max_length"],
        )

    def batches(self, split: Split) -> PairBatches:
        tokenizer = split.tokenizer
        return PairBatches(split.rows, tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id)

    def decoding(self) -> Decoding:
        """How final headlines are generated."""
        return build_settings(Decoding, "decoding", self.cfg)

    def problems(self, sound: Callable[..., bool]) -> Iterator[str]:
        model, decoding, data = self.cfg["model"], self.cfg["decoding"], self.cfg["data"]
        if sound("decoding.max_length", "model.max_target") and decoding["max_length"] >= model["max_target"]:
            yield (
                f"decoding.max_length={decoding['max_length']}: allowed are whole numbers below "
                f"model.max_target={model['max_target']}, for the begin token takes a position"
            )
        if sound("decoding.min_length", "decoding.max_length") and decoding["min_length"] > decoding["max_length"]:
            yield f"decoding.min_length={decoding['min_length']}: above decoding.max_length={decoding['max_length']}"
        if sound("data.batch_tokens", "model.max_source", "model.max_target"):
            longest = model["max_source"] + model["max_target"]
            if data["batch_tokens"] < longest:
                yield f"data.batch_tokens={data['batch_tokens']}: a pair can have {longest} tokens; type more"

    def score(self, task: HeadlineModule, split: Split) -> Results:
        """Loss and ROUGE of beam-searched headlines on the whole split, beside the lead-8 baseline."""
        task.rouge_pairs = 0  # greedy headlines are for watching only
        loss = self.evaluate(task, split)["loss"]
        decoding, rouge = self.decoding(), Rouge(self.cfg["task"]["stemmer"])
        started = time.perf_counter()
        headlines = write_headlines(
            task.model,
            split.tokenizer,
            split.rows["source"],
            decoding,
            self.cfg["data"]["batch_tokens"],
            lambda items: tracked(items, f"{split.name} headlines"),
        )
        seconds = time.perf_counter() - started
        articles, titles = list(split.texts["article"]), list(split.texts["title"])
        scores = rouge.each(headlines, titles)
        return Results(
            split.name,
            self.unit,
            len(titles),
            {**means(scores), "loss": loss},
            baselines={"lead-8": rouge([lead(article) for article in articles], titles)},
            note=rouge.describe(),
            settings=vars(decoding),
            files={".txt": "\n".join(headlines) + "\n"},
            predictions=Predictions(range(len(titles)), titles, headlines, scores, **task.examples, inputs=articles),
            samples=list(map(sample, articles, titles, headlines)),
            extra={"headlines_per_second": round(len(titles) / seconds, 1), "seconds": round(seconds, 1)},
        )
