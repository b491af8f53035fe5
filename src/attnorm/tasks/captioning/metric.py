r"""The scores of captions against several references per image: CIDEr-D, BLEU-4 and ROUGE-L, in percent.

All of them see captions in the form of `plain`: lower-case words without punctuation. BLEU-4 is computed by sacrebleu,
with the closest length of a reference and without smoothing. It is a score of all captions together; the sums that
determine it are kept for each image. ROUGE-L is the F1 by rouge-score, that of the best reference, without stemming. It
compares the same words as the others; by itself, rouge-score would drop letters with accents.

CIDEr-D: how well a caption agrees with the consensus of several references ("CIDEr: Consensus-based Image
Description Evaluation", Vedantam et al., 2015, Sec. 5 and 8).

For n = 1, ..., 4, the vector g^n(c) of a caption c has one entry per n-gram w, its count times its inverse document
frequency over the images I:

    g_w^n(c) = h_w(c) log( |I| / max(1, number of images with w in one of their references) )

The score of a caption c with the references s_1, ..., s_m compares the vectors, clipped so that repeating a word does
not help, and penalizes a different length:

    CIDEr-D_n = 10/m sum_j exp( -(l(c) - l(s_j))^2 / (2 sigma^2) ) min(g^n(c), g^n(s_j)) . g^n(s_j)
                                                                   / ( |g^n(c)| |g^n(s_j)| )
    CIDEr-D = mean over n of CIDEr-D_n,        sigma = 6

l is the number of words. With one image, all inverse document frequencies and therefore all scores are 0.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from attnorm.data.caption_rows import plain_words
from attnorm.errors import refuse_one_text
from attnorm.tasks.bleu import Bleu, sacrebleu
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

        for texts in references:
            refuse_one_text("CaptionMetric, for each image,", texts)
        self.references = [[plain_words(text) for text in texts] for texts in references]
        self.cider = CiderD(self.references)
        self.rouge = RougeScorer(["rougeL"], tokenizer=Words())
        self.bleu = sacrebleu().metrics.BLEU(tokenize="none", smooth_method="none")

    def each(self, captions: Sequence[str]) -> dict[str, list[float]]:
        """CIDEr-D and rougeL of each caption, in percent. Their means are the scores of all captions."""
        refuse_one_text("CaptionMetric", captions)
        captions = [plain_words(caption) for caption in captions]
        rouge = [
            100.0 * self.rouge.score_multi(texts, caption)["rougeL"].fmeasure
            for texts, caption in zip(self.references, captions, strict=True)
        ]
        return {"CIDEr-D": self.cider.each(captions), "rougeL": rouge}

    def sums(self, captions: Sequence[str]) -> dict[str, list[int]]:
        """The columns of `UnsmoothedBleu`, with one number for each caption."""
        refuse_one_text("CaptionMetric", captions)
        rows = []
        for texts, caption in zip(self.references, captions, strict=True):
            rows.append(Bleu.counts(self.bleu.corpus_score([plain_words(caption)], [[text] for text in texts])))
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


LONGEST = 4  # words of an n-gram
SIGMA = 6.0

Ngram = tuple[str, ...]


class Vectors(NamedTuple):
    """of[n - 1]: the entries of g^n by n-gram. norms: the lengths of these vectors. words: l."""

    of: list[dict[Ngram, float]]
    norms: list[float]
    words: int


class CiderD:
    """The CIDEr-D of captions of a fixed set of images.

    references: for each image, its captions as words separated by spaces. They define the document frequencies, so the
                score of one caption depends on the references of all images.
    """

    def __init__(self, references: Sequence[Sequence[str]]):
        for captions in references:
            refuse_one_text("CiderD, for each image,", captions)
        counted = [[ngrams(text) for text in texts] for texts in references]
        documents: Counter[Ngram] = Counter()
        for texts in counted:
            documents.update({ngram for text in texts for ngram in text})
        images = math.log(max(1, len(references)))
        self.idf = {ngram: images - math.log(count) for ngram, count in documents.items()}
        self.unseen = images  # of an n-gram that occurs in no reference
        self.references = [[self._vectors(text) for text in texts] for texts in counted]

    def each(self, captions: Sequence[str]) -> list[float]:
        """The score of one caption for each image, in the order of the references.

        Scores are in percent as in papers: 100 times the value of the COCO evaluation. The score of a set of captions
        is their mean. Raises ValueError if there are not as many captions as images.
        """
        refuse_one_text("CiderD", captions)
        vectors = (self._vectors(ngrams(caption)) for caption in captions)
        return [
            100.0 * sum(similarity(caption, reference) for reference in texts) / len(texts)
            for caption, texts in zip(vectors, self.references, strict=True)
        ]

    def _vectors(self, counts: Counter[Ngram]) -> Vectors:
        of: list[dict[Ngram, float]] = [{} for _ in range(LONGEST)]
        for ngram, count in counts.items():
            of[len(ngram) - 1][ngram] = count * self.idf.get(ngram, self.unseen)
        norms = [math.sqrt(sum(value * value for value in vector.values())) for vector in of]
        return Vectors(of, norms, sum(count for ngram, count in counts.items() if len(ngram) == 1))


def similarity(caption: Vectors, reference: Vectors) -> float:
    """The mean over n of CIDEr-D_n for one reference."""
    total = 0.0
    norms = zip(caption.norms, reference.norms, strict=True)
    for g, s, (g_norm, s_norm) in zip(caption.of, reference.of, norms, strict=True):
        if g_norm and s_norm:
            shared = sum(min(value, s.get(ngram, 0.0)) * s.get(ngram, 0.0) for ngram, value in g.items())
            total += shared / (g_norm * s_norm)
    penalty = math.exp(-((caption.words - reference.words) ** 2) / (2 * SIGMA**2))
    return 10.0 * penalty * total / LONGEST


def ngrams(text: str) -> Counter[Ngram]:
    """The number of occurrences of each n-gram of 1 to LONGEST words."""
    words = text.split()
    return Counter(
        tuple(words[start : start + n]) for n in range(1, LONGEST + 1) for start in range(len(words) - n + 1)
    )
