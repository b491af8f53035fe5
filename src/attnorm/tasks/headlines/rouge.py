"""ROUGE, computed by the package rouge-score, and the lead-8 baseline."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from attnorm.data.readers.text import read_lines
from attnorm.errors import DataError

METRICS = ("rouge1", "rouge2", "rougeL")
PARTS = {"": "fmeasure", "_recall": "recall", "_precision": "precision"}  # ending of a metric's name -> attribute


class Rouge:
    """Mean ROUGE-1, -2 and -L in percent, computed by rouge-score with or without its Porter stemmer."""

    def __init__(self, stemmer: bool):
        from rouge_score.rouge_scorer import RougeScorer

        self.stemmer = stemmer
        self.scorer = RougeScorer(list(METRICS), use_stemmer=stemmer)

    def each(self, headlines: Iterable[str], titles: Iterable[str]) -> dict[str, list[float]]:
        """The F1 of each headline against its title, in percent, by metric."""
        scores = list(self._each(headlines, ((title,) for title in titles)))
        return {metric: [score[metric] for score in scores] for metric in METRICS}

    def sums(self, headlines: Iterable[str], titles: Iterable[str]) -> dict[str, float]:
        """The sums of the F1 of each headline against its title. Divide by the number of headlines for the mean."""
        return {metric: sum(values) for metric, values in self.each(headlines, titles).items()}

    def __call__(self, headlines: list[str], titles: list[str]) -> dict[str, float]:
        """Mean F1 in percent. Raises ValueError if the numbers of headlines and titles differ."""
        return means(self.each(headlines, titles))

    def detailed(self, texts: Iterable[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
        """Mean F1, recall and precision of texts with one or more references each: rouge1, rouge1_recall, ...

        If a text has several references, the one with the best F1 counts, separately for each of ROUGE-1, -2 and -L, as
        in rouge-score. Raises ValueError if the numbers of texts and references differ.
        """
        scores = list(self._each(texts, references))
        names = [f"{metric}{ending}" for ending in PARTS for metric in METRICS]
        return means({name: [score[name] for score in scores] for name in names})

    def _each(self, texts: Iterable[str], references: Iterable[Sequence[str]]) -> Iterator[dict[str, float]]:
        for text, golds in zip(texts, references, strict=True):
            scores = self.scorer.score_multi(golds, text)
            yield {
                f"{metric}{ending}": 100.0 * getattr(score, part)
                for metric, score in scores.items()
                for ending, part in PARTS.items()
            }

    def describe(self) -> str:
        """What a reader of the numbers needs to know."""
        stemmer = "with Porter stemmer" if self.stemmer else "without stemmer"
        kept = "it keeps letters and digits only: '#' is dropped, 'UNK' matches '<unk>'"
        return f"ROUGE F1 by rouge-score, {stemmer}; {kept}"


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


def rouge_line(scores: dict[str, float]) -> str:
    """'ROUGE-1/2/L 31.2 / 12.1 / 29.8'."""
    return "ROUGE-1/2/L " + " / ".join(f"{scores[metric]:.1f}" for metric in METRICS)


def lead(article: str, words: int = 8) -> str:
    """The first words of the article. This is the baseline that a headline should beat."""
    return " ".join(article.split()[:words])
