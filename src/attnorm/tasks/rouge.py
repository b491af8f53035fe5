"""ROUGE F1 by the package rouge-score, and the lead-8 baseline."""

from collections.abc import Iterable

METRICS = ("rouge1", "rouge2", "rougeL")
NAMES = {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L"}


class Rouge:
    """Mean ROUGE-1, -2 and -L F1 in percent, by rouge-score, with or without its Porter stemmer."""

    def __init__(self, stemmer: bool):
        from rouge_score.rouge_scorer import RougeScorer

        self.stemmer = stemmer
        self.scorer = RougeScorer(list(METRICS), use_stemmer=stemmer)

    def sums(self, headlines: Iterable[str], titles: Iterable[str]) -> dict[str, float]:
        """The F1 of each headline against its title, summed: divide by their number for the mean."""
        sums = dict.fromkeys(METRICS, 0.0)
        for headline, title in zip(headlines, titles, strict=True):
            for metric, score in self.scorer.score(title, headline).items():
                sums[metric] += 100.0 * score.fmeasure
        return sums

    def __call__(self, headlines: list[str], titles: list[str]) -> dict[str, float]:
        """Mean F1 in percent; raises ValueError when the numbers of headlines and titles differ."""
        return {metric: value / len(titles) for metric, value in self.sums(headlines, titles).items()}

    def describe(self) -> str:
        """What a reader of the numbers has to know."""
        stemmer = "with Porter stemmer" if self.stemmer else "without stemmer"
        kept = "it keeps letters and digits only: '#' is dropped, 'UNK' matches '<unk>'"
        return f"ROUGE F1 by rouge-score, {stemmer}; {kept}"


def rouge_line(scores: dict[str, float]) -> str:
    """'ROUGE-1/2/L 31.2 / 12.1 / 29.8'."""
    return "ROUGE-1/2/L " + " / ".join(f"{scores[metric]:.1f}" for metric in METRICS)


def lead(article: str, words: int = 8) -> str:
    """The first words of the article: the baseline that a headline has to beat."""
    return " ".join(article.split()[:words])
