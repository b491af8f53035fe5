"""ROUGE, computed by the package rouge-score, and the lead-8 baseline."""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from attnorm.data.readers.text import read_lines
from attnorm.data.sentences import split_sentences
from attnorm.errors import DataError, refuse_one_text

Words = Literal["ascii", "unicode"]
METRICS = ("rouge1", "rouge2", "rougeL")
LSUM = "rougeLsum"
LENGTHS = {"rouge1": 1, "rouge2": 2, "rougeL": 1, LSUM: 1}  # words that a text must have for a metric to be defined
FOREIGN = 0.01  # the share of letters beyond ASCII from which the words are those of Unicode
SAMPLE = 100_000  # references that decide about the words
# A letter of a script that puts no spaces between words is a word by itself, with its marks. All other words consist of
# letters, their marks, digits, and the invisible characters that join or separate letters within words.
_SPACELESS = r"[[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}]&&\p{L}]"
WORD = rf"{_SPACELESS}[\p{{M}}ー]*|(?:(?!{_SPACELESS})[\p{{L}}\p{{M}}\p{{N}}\u200c\u200d])+"
_END = re.compile(r"[。！？｡।॥؟۔።]")  # ends of sentences beside those of `split_sentences`
PARTS = {"": "fmeasure", "_recall": "recall", "_precision": "precision"}  # ending of a metric's name -> attribute


class UnicodeWords:
    """The tokenizer of ROUGE for all scripts: lower-case words in the form NFKC, see `WORD`.

    Words of ASCII are those of rouge-score, and so is their stemming, which is for English.
    """

    def __init__(self, stemmer: bool):
        from rouge_score.tokenizers import DefaultTokenizer
        from tokenizers import Regex
        from tokenizers.pre_tokenizers import Split

        self.ascii = DefaultTokenizer(stemmer)
        self.words = Split(Regex(WORD), "removed", invert=True)

    def tokenize(self, text: str) -> list[str]:
        words = self.words.pre_tokenize_str(unicodedata.normalize("NFKC", text.lower()))
        return [part for word, _ in words for part in (self.ascii.tokenize(word) if word.isascii() else [word])]


def words_for(references: Iterable[str]) -> Words:
    """The words with which texts like these are scored: "unicode" if a share FOREIGN of their letters is not ASCII."""
    refuse_one_text("words_for", references)
    letters = [character for text in references for character in text if character.isalpha()]
    foreign = sum(not character.isascii() for character in letters)
    return "unicode" if foreign > FOREIGN * len(letters) else "ascii"


class Rouge:
    """Mean ROUGE-1, -2 and -L in percent, computed by rouge-score with or without its Porter stemmer.

    words: "ascii": those of rouge-score, which are runs of ASCII letters and digits. "unicode": `UnicodeWords`.
    lsum:  whether there is ROUGE-Lsum too, for which texts are divided into sentences.
    """

    def __init__(self, stemmer: bool, words: Words = "ascii", lsum: bool = False):
        from rouge_score.rouge_scorer import RougeScorer
        from rouge_score.tokenizers import DefaultTokenizer

        self.stemmer, self.words, self.metrics = stemmer, words, (*METRICS, *[LSUM] * lsum)
        self.tokenizer = UnicodeWords(stemmer) if words == "unicode" else DefaultTokenizer(stemmer)
        self.scorer = RougeScorer(list(self.metrics), tokenizer=self.tokenizer)

    def each(self, headlines: Iterable[str], titles: Iterable[str]) -> dict[str, list[float]]:
        """The F1 of each headline against its title, in percent, by metric."""
        refuse_one_text("Rouge", titles)
        scores = list(self._each(headlines, ((title,) for title in titles)))
        return {metric: [score[metric] for score in scores] for metric in self.metrics}

    def __call__(self, headlines: list[str], titles: list[str]) -> dict[str, float]:
        """Mean F1 in percent. Raises ValueError if the numbers of headlines and titles differ."""
        return means(self.each(headlines, titles))

    def detailed(self, texts: Iterable[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
        """Mean F1, recall and precision of texts with one or more references each: rouge1, rouge1_recall, ...

        If a text has several references, the one with the best F1 counts, separately for each of ROUGE-1, -2 and -L, as
        in rouge-score. Raises ValueError if the numbers of texts and references differ.
        """
        scores = list(self._each(texts, references))
        names = [f"{metric}{ending}" for ending in PARTS for metric in self.metrics]
        return means({name: [score[name] for score in scores] for name in names})

    def _each(self, texts: Iterable[str], references: Iterable[Sequence[str]]) -> Iterator[dict[str, float]]:
        refuse_one_text("Rouge", texts)
        by_lines = _sentences if LSUM in self.metrics else str  # rouge-score reads a sentence per line
        for text, golds in zip(texts, references, strict=True):
            refuse_one_text("Rouge.detailed, for each text,", golds)
            text, golds = by_lines(text), list(map(by_lines, golds))
            scores = self.scorer.score_multi(golds, text)
            yield {
                f"{metric}{ending}": 100.0 * getattr(score, part)
                for metric, score in scores.items()
                for ending, part in PARTS.items()
            }

    def describe(self) -> str:
        """What a reader of the numbers needs to know."""
        stemmer = "with Porter stemmer" if self.stemmer else "without stemmer"
        letters = "letters" if self.words == "ascii" else "letters of all scripts"
        kept = f"it keeps {letters} and digits only: '#' is dropped, 'UNK' matches '<unk>'"
        return f"ROUGE F1 by rouge-score, {stemmer}; {kept}"

    def undefined(self, references: Iterable[Sequence[str]]) -> dict[str, float]:
        """The share of texts of which no reference has enough words for a metric, by metric."""
        counts = [max(len(self.tokenizer.tokenize(text)) for text in texts) for texts in references]
        return {metric: sum(count < LENGTHS[metric] for count in counts) / len(counts) for metric in self.metrics}


def _sentences(text: str) -> str:
    """The text with a sentence per line."""
    return "\n".join(sentence for part in _END.sub("\\g<0>\n", text).splitlines() for sentence in split_sentences(part))


def means(scores: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The mean of each metric."""
    return {metric: sum(values) / len(values) for metric, values in scores.items()}


def read_texts(path: str | Path) -> list[str]:
    """The lines of a file, plain or gzipped, without their line ends. Raises ValueError if the file is not UTF-8."""
    return [line.rstrip("\r\n") for line in read_lines(Path(path))]


def read_references(paths: Sequence[str | Path], predictions: str | Path, count: int) -> list[tuple[str, ...]]:
    """The references of each line, one from each file.

    Raises ValueError for a file that does not have `count` lines, the number of lines of the file `predictions`.
    """
    files = [read_texts(path) for path in paths]
    for path, lines in zip(paths, files, strict=True):
        if len(lines) != count:
            raise DataError(f"{predictions} has {count:,} lines, but {path} has {len(lines):,}")
    return list(zip(*files, strict=True))


def lead(article: str, words: int = 8) -> str:
    """The first words of the article. This is the baseline that a headline should beat."""
    return " ".join(article.split()[:words])
