"""The scores of captions against several references per image: CIDEr-D, BLEU-4 and ROUGE-L, in percent.

All of them see captions in the form of `plain`: lower-case words without punctuation. BLEU-4 is computed by sacrebleu,
with the closest length of a reference and without smoothing. It is a score of all captions together; the sums that
determine it are kept for each image. ROUGE-L is the F1 by rouge-score, that of the best reference, without stemming. It
compares the same words as the others; by itself, rouge-score would drop letters with accents.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from attnorm.data.captions import plain
from attnorm.tasks.bleu import sacrebleu
from attnorm.tasks.captioning.cider import LONGEST, CiderD
from attnorm.tasks.results import CorpusMetric


class Bleu(CorpusMetric):
    """BLEU-4 in percent ("BLEU: a Method for Automatic Evaluation of Machine Translation", Papineni et al., 2002):

        100 min(1, exp(1 - r / c)) (p_1 p_2 p_3 p_4)^(1/4)

    where p_n is the share of n-grams that match a reference, c the length of all captions, and r that of the references
    that are closest in length. It is 0 if no 4-gram matches.
    """

    columns = (
        *(f"bleu_correct_{n}" for n in range(1, LONGEST + 1)),
        *(f"bleu_total_{n}" for n in range(1, LONGEST + 1)),
        "bleu_length",
        "bleu_reference_length",
    )

    @staticmethod
    def of(totals: np.ndarray) -> np.ndarray:
        correct, total = totals[..., :LONGEST], totals[..., LONGEST : 2 * LONGEST]
        length, closest = totals[..., -2], totals[..., -1]
        with np.errstate(divide="ignore"):  # log 0
            log_p = np.log(correct / np.maximum(total, 1)).mean(-1)
        return 100 * np.exp(log_p + np.minimum(0, 1 - closest / np.maximum(length, 1)))


EXTRA = "captioning"  # the extra of this package with what scoring needs

CORPUS_METRICS: dict[str, type[CorpusMetric]] = {"BLEU-4": Bleu}


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
        self.bleu = sacrebleu(EXTRA).metrics.BLEU(tokenize="none", smooth_method="none")

    def each(self, captions: Sequence[str]) -> dict[str, list[float]]:
        """CIDEr-D and rougeL of each caption, in percent. Their means are the scores of all captions."""
        captions = [plain(caption) for caption in captions]
        rouge = [
            100.0 * self.rouge.score_multi(texts, caption)["rougeL"].fmeasure
            for texts, caption in zip(self.references, captions, strict=True)
        ]
        return {"CIDEr-D": self.cider.each(captions), "rougeL": rouge}

    def sums(self, captions: Sequence[str]) -> dict[str, list[int]]:
        """The columns of `Bleu`, with one number for each caption."""
        rows = []
        for texts, caption in zip(self.references, captions, strict=True):
            found = self.bleu.corpus_score([plain(caption)], [[text] for text in texts])
            rows.append([*found.counts, *found.totals, found.sys_len, found.ref_len])
        return {name: [row[place] for row in rows] for place, name in enumerate(Bleu.columns)}

    def __call__(self, captions: Sequence[str]) -> dict[str, float]:
        """CIDEr-D, BLEU-4 and rougeL of all captions, in percent."""
        return overall(self.each(captions), self.sums(captions))

    def describe(self) -> str:
        """What a reader of the numbers needs to know."""
        version = f"sacrebleu {sacrebleu(EXTRA).__version__}"
        bleu = f"BLEU-4 by {version} with several references, tok:none and smooth:none"
        return f"lower-case words without punctuation; CIDEr-D x 100; {bleu}; ROUGE-L F1 of the best reference"


def overall(each: Mapping[str, Sequence[float]], sums: Mapping[str, Sequence[int]]) -> dict[str, float]:
    """CIDEr-D, BLEU-4 and rougeL of all captions, from what `CaptionMetric.each` and `CaptionMetric.sums` return."""
    means = {name: sum(values) / len(values) for name, values in each.items()}
    totals = np.array([sum(sums[name]) for name in Bleu.columns], np.float64)
    return {"CIDEr-D": means["CIDEr-D"], "BLEU-4": float(Bleu.of(totals)), "rougeL": means["rougeL"]}
