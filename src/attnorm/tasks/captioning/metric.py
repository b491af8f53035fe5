"""The scores of captions against several references per image: CIDEr-D, BLEU-4 and ROUGE-L, in percent.

All of them see captions in the form of `plain`: lower-case words without punctuation. BLEU-4 is computed by sacrebleu,
with the closest length of a reference and without smoothing. It is a score of all captions together; the sums that
determine it are kept for each image. ROUGE-L is the F1 by rouge-score, that of the best reference, without stemming. It
compares the same words as the others; by itself, rouge-score would drop letters with accents.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from attnorm.data.captions import plain
from attnorm.tasks.bleu import Bleu, sacrebleu
from attnorm.tasks.captioning.cider import CiderD
from attnorm.tasks.results import CorpusMetric


class UnsmoothedBleu(Bleu):
    """Corpus BLEU in percent. It is 0 if no 4-gram matches."""

    smoothing = "none"


CORPUS_METRICS: dict[str, type[CorpusMetric]] = {"BLEU-4": UnsmoothedBleu}


class Words:
    """The tokenizer of ROUGE for captions in the form of `plain`."""

    def tokenize(self, text: str) -> list[str]:
        return text.split()


class CaptionMetric:
    """Scores one caption for each of a fixed set of images.

    references: the captions of each image, one or more.
    """

    def __init__(self, references: Sequence[Sequence[str]]):
        from rouge_score.rouge_scorer import RougeScorer

        self.references = [[plain(text) for text in texts] for texts in references]
        self.cider = CiderD(self.references)
        self.rouge = RougeScorer(["rougeL"], tokenizer=Words())
        self.bleu = sacrebleu().metrics.BLEU(tokenize="none", smooth_method="none")

    def each(self, captions: Sequence[str]) -> dict[str, list[float]]:
        """CIDEr-D and rougeL of each caption, in percent. Their means are the scores of all captions."""
        captions = [plain(caption) for caption in captions]
        rouge = [
            100.0 * self.rouge.score_multi(texts, caption)["rougeL"].fmeasure
            for texts, caption in zip(self.references, captions, strict=True)
        ]
        return {"CIDEr-D": self.cider.each(captions), "rougeL": rouge}

    def sums(self, captions: Sequence[str]) -> dict[str, list[int]]:
        """The columns of `UnsmoothedBleu`, with one number for each caption."""
        rows = []
        for texts, caption in zip(self.references, captions, strict=True):
            rows.append(Bleu.counts(self.bleu.corpus_score([plain(caption)], [[text] for text in texts])))
        return {name: [row[column] for row in rows] for column, name in enumerate(Bleu.columns)}

    def __call__(self, captions: Sequence[str]) -> dict[str, float]:
        """CIDEr-D, BLEU-4 and rougeL of all captions, in percent."""
        return overall(self.each(captions), self.sums(captions))

    def wordless(self) -> float:
        """The share of images of which no reference has a word, so that no metric is defined for them."""
        return sum(not any(texts) for texts in self.references) / len(self.references)

    def describe(self) -> str:
        """What a reader of the numbers needs to know."""
        version = f"sacrebleu {sacrebleu().__version__}"
        bleu = f"BLEU-4 by {version} with several references, tok:none and smooth:none"
        return f"lower-case words without punctuation; CIDEr-D x 100; {bleu}; ROUGE-L F1 of the best reference"


def overall(each: Mapping[str, Sequence[float]], sums: Mapping[str, Sequence[int]]) -> dict[str, float]:
    """CIDEr-D, BLEU-4 and rougeL of all captions, from what `CaptionMetric.each` and `CaptionMetric.sums` return."""
    means = {name: sum(values) / len(values) for name, values in each.items()}
    totals = np.array([sum(sums[name]) for name in Bleu.columns], np.float64)
    return {"CIDEr-D": means["CIDEr-D"], "BLEU-4": float(UnsmoothedBleu.of(totals)), "rougeL": means["rougeL"]}
