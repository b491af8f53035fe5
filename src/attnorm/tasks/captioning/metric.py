"""The scores of captions against several references per image: CIDEr-D, BLEU-4 and ROUGE-L, in percent.

All of them see captions in the form of `plain`: lower-case words without punctuation. BLEU-4 is computed by sacrebleu,
with the closest length of a reference and without smoothing. It is a score of all captions together; the sums that
determine it are kept for each image. ROUGE-L is the F1 by rouge-score, that of the best reference, without stemming.
"""

from collections.abc import Sequence

from attnorm.data.captions import plain
from attnorm.tasks.captioning.cider import LONGEST, CiderD

BLEU_SUMS = (
    *(f"bleu_correct_{n}" for n in range(1, LONGEST + 1)),
    *(f"bleu_total_{n}" for n in range(1, LONGEST + 1)),
    "bleu_length",
    "bleu_reference_length",
)


class CaptionMetric:
    """Scores one caption for each of a fixed set of images.

    references: the captions of each image, one or more.
    """

    def __init__(self, references: Sequence[Sequence[str]]):
        from rouge_score.rouge_scorer import RougeScorer
        from sacrebleu.metrics.bleu import BLEU

        self.references = [[plain(text) for text in texts] for texts in references]
        self.cider = CiderD(self.references)
        self.rouge = RougeScorer(["rougeL"], use_stemmer=False)
        self.bleu = BLEU(tokenize="none", smooth_method="none", effective_order=True)  # the order is that of sentences

    def each(self, captions: Sequence[str]) -> dict[str, list[float]]:
        """cider_d and rougeL of each caption, in percent. Their means are the scores of all captions."""
        captions = [plain(caption) for caption in captions]
        rouge = [
            100.0 * self.rouge.score_multi(texts, caption)["rougeL"].fmeasure
            for texts, caption in zip(self.references, captions, strict=True)
        ]
        return {"cider_d": self.cider.each(captions), "rougeL": rouge}

    def bleu_sums(self, captions: Sequence[str]) -> dict[str, list[int]]:
        """For each caption, its matching and its total n-grams, its length, and that of the closest reference."""
        rows = []
        for texts, caption in zip(self.references, captions, strict=True):
            found = self.bleu.sentence_score(plain(caption), texts)
            rows.append([*found.counts, *found.totals, found.sys_len, found.ref_len])
        return {name: [row[place] for row in rows] for place, name in enumerate(BLEU_SUMS)}

    def __call__(self, captions: Sequence[str]) -> dict[str, float]:
        """cider_d, bleu and rougeL of all captions, in percent."""
        scores = {name: sum(values) / len(values) for name, values in self.each(captions).items()}
        return {"cider_d": scores["cider_d"], "bleu": bleu(self.bleu_sums(captions)), "rougeL": scores["rougeL"]}

    def describe(self) -> str:
        """What a reader of the numbers needs to know."""
        import sacrebleu

        bleu = f"BLEU-4 by sacrebleu {sacrebleu.__version__} (several references, tok:none, smooth:none)"
        return f"lower-case words without punctuation; CIDEr-D x 100; {bleu}; ROUGE-L F1 of the best reference"


def bleu(sums: dict[str, list[int]]) -> float:
    """BLEU-4 of all captions in percent, from the sums of `CaptionMetric.bleu_sums`."""
    from sacrebleu.metrics.bleu import BLEU

    totals = [sum(sums[name]) for name in BLEU_SUMS]
    correct, total, (length, closest) = totals[:LONGEST], totals[LONGEST : 2 * LONGEST], totals[2 * LONGEST :]
    return BLEU.compute_bleu(correct, total, length, closest, smooth_method="none").score
