r"""Attention against gold alignments: the alignment error rate, from the attention to words with links made by hand.

With the predicted links A, the sure links S and the possible links P, which include S,

    precision = |A and P| / |A|,   recall = |A and S| / |S|,   AER = 1 - (|A and S| + |A and P|) / (|A| + |S|)

over all pairs of texts. Source: "A systematic comparison of various statistical alignment models" (Och and Ney, 2003).
For gold alignments of one kind, P = S. A link is predicted where the attention reaches a threshold, which is chosen on
other pairs than those that are scored.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from attnorm.analysis.alignment import text_task
from attnorm.attention.hooks import Observation
from attnorm.attention.multihead import observe_all
from attnorm.attention.normalizers.base import Normalizer
from attnorm.data.featurizer import pad
from attnorm.data.sources.base import SHORT
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.errors import ConfigError, Problem
from attnorm.models.generation import SpecialTokens
from attnorm.tasks.pairs import special_tokens
from attnorm.tasks.results import CorpusMetric

if TYPE_CHECKING:
    from attnorm.analysis.loaded_run import LoadedRun

ROWS = 64  # pairs that are read at a time
Links = Collection[tuple[int, int]]  # (source word, target word), counted from 0
Aligned = tuple[Sequence[np.ndarray], Sequence[Links]]
Step = Literal["predicts", "reads"]


class AlignmentErrorRate(CorpusMetric):
    """AER in percent from the sums of `link_counts` over pairs. It is 0 if neither links nor predictions exist."""

    columns = ("links_predicted", "links_sure", "links_hit_sure", "links_hit_possible")

    @staticmethod
    def of(totals: np.ndarray) -> np.ndarray:
        predicted, sure, hit_sure, hit_possible = np.moveaxis(np.asarray(totals, np.float64), -1, 0)
        both = predicted + sure
        return 100 * (both - hit_sure - hit_possible) / np.where(both > 0, both, 1)


@dataclass(frozen=True)
class AlignmentScores:
    """Predicted links against gold links.

    threshold: the smallest weight of a predicted link. counts: int64 (pairs, 4), see `link_counts`.
    """

    threshold: float
    counts: np.ndarray

    @property
    def error_rate(self) -> float:
        """AER of all pairs together, in percent."""
        return float(AlignmentErrorRate.of(self.counts.sum(0)))

    @property
    def precision(self) -> float:
        """The share of predicted links that are possible, in percent; NaN without predictions."""
        return share(self.counts[:, 3], self.counts[:, 0])

    @property
    def recall(self) -> float:
        """The share of sure links that are predicted, in percent; NaN without sure links."""
        return share(self.counts[:, 2], self.counts[:, 1])


def share(part: np.ndarray, whole: np.ndarray) -> float:
    """Of two counts per pair, the sum of one in percent of that of the other."""
    return 100 * int(part.sum()) / total if (total := int(whole.sum())) else float("nan")


def alignment_scores(
    run: "LoadedRun",
    *,
    selection: str = "validation",
    split: str = "test",
    normalizer: Normalizer | None = None,
    step: Step = "predicts",
) -> AlignmentScores:
    """The links that the attention of a run predicts for a split, with the best threshold of another split.

    normalizer, step: as in `word_attention`. Raises ConfigError for a run of another kind of task and for data without
    gold alignments.
    """
    if split == selection:
        raise ConfigError([Problem("split", "must differ from selection, where the threshold is chosen", split)])
    pairs = (
        (word_attention(run, name, normalizer=normalizer, step=step), gold_links(run, name))
        for name in (selection, split)
    )
    return scored(*pairs)


def scored(selection: Aligned, test: Aligned) -> AlignmentScores:
    """The scores of the test pairs with the threshold that is the best one for the pairs of `selection`.

    Each is a tuple: for each pair its weights, (target words, source words), and for each pair its links.
    """
    threshold = best_threshold(*selection)
    return AlignmentScores(threshold, link_counts(*test, threshold))


def gold_links(run: "LoadedRun", split: str) -> Sequence[Links]:
    """The gold links of each pair of a split. Raises ConfigError if the data of the run have none."""
    source = run.task.source()
    if not hasattr(source, "links"):
        raise ConfigError([Problem("data", "has no gold alignments; data=bible_alignments has", type(source).__name__)])
    return source.links(split)[: getattr(run.task.cfg.data, f"max_{SHORT[split]}")]


def link_counts(
    weights: Sequence[np.ndarray], sure: Sequence[Links], threshold: float, possible: Sequence[Links] | None = None
) -> np.ndarray:
    """int64 (pairs, 4): for each pair |A|, |S|, |A and S| and |A and P|, the columns of `AlignmentErrorRate`.

    weights:   for each pair, (target words, source words). Links with a weight of at least `threshold` are predicted;
               a weight of 0 never is.
    possible:  links besides the sure ones. None: there is only one kind.
    """
    rows = []
    for pair, (values, is_sure, is_possible) in enumerate(with_gold(weights, sure, possible)):
        if not np.isfinite(values).all():
            raise ValueError(f"weights: must be finite, but those of pair {pair} are not")
        found = (values >= threshold) & (values > 0)
        rows.append([it.sum() for it in (found, is_sure, found & is_sure, found & is_possible)])
    return np.array(rows, dtype=np.int64)


def best_threshold(
    weights: Sequence[np.ndarray], sure: Sequence[Links], possible: Sequence[Links] | None = None
) -> float:
    """The threshold with the smallest AER on these pairs: of all weights that occur, the largest such one.

    Choose it on pairs that are not scored. The arguments are those of `link_counts`. Raises ValueError if no weight is
    positive.
    """
    tables = list(with_gold(weights, sure, possible))
    values, is_sure, is_possible = (np.concatenate([table[part].ravel() for table in tables]) for part in range(3))
    order = np.argsort(-values, kind="stable")
    order = order[: int((values > 0).sum())]
    if not len(order):
        raise ValueError("weights: at least one must be positive")
    ends = np.flatnonzero(np.append(np.diff(values[order]) != 0, True))  # equal weights are predicted together
    hits = [np.cumsum(is_gold[order])[ends] for is_gold in (is_sure, is_possible)]
    totals = np.stack([ends + 1, np.full(len(ends), is_sure.sum()), *hits], axis=-1)
    return float(values[order][ends[AlignmentErrorRate.of(totals).argmin()]])


def with_gold(
    weights: Sequence[np.ndarray], sure: Sequence[Links], possible: Sequence[Links] | None
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """For each pair its weights, and bool tables of the same shape: the sure links, and the possible ones.

    Raises ValueError if the numbers of pairs differ or a link is outside the table.
    """
    others = [()] * len(sure) if possible is None else possible
    if not len(weights) == len(sure) == len(others):
        raise ValueError(f"sure: must have one entry for each of the {len(weights)} pairs, not {len(sure)}")
    tables = []
    for pair, (values, *links) in enumerate(zip(weights, sure, others, strict=True)):
        gold = [np.zeros(values.shape, dtype=bool) for _ in links]
        for table, pairs in zip(gold, links, strict=True):
            for source, target in pairs:
                if not (0 <= target < values.shape[0] and 0 <= source < values.shape[1]):
                    raise ValueError(f"links: pair {pair} has no words ({source}, {target})")
                table[target, source] = True
        tables.append((values, gold[0], gold[0] | gold[1]))
    return tables


# -------------------------------------------------------------------------------------------------- attention to words


def word_attention(
    run: "LoadedRun", split: str, *, normalizer: Normalizer | None = None, step: Step = "predicts"
) -> list[np.ndarray]:
    """The attention of a run between the words of each pair of a split, (target words, source words), teacher-forced.

    It is the mean over the layers and heads of the site `cross`. The model reads the reference, so all runs are judged
    on the same words. The columns of the subwords of a source word are added up, and the rows of the subwords of a
    target word are averaged. The end of the source takes part in the attention, but has no column here.

    normalizer: applied to the scores of the trained model in place of its own one. All target tokens are given, so a
                normalizer that couples all queries, such as dnas, leaks nothing here.
    step:       the row of a target token is that of the step that predicts it ("predicts"), from which the model has
                chosen it, or of the next step, which reads it ("reads").
    """
    task, tokenizer = text_task(run), run.tokenizer
    data = task.splits(tokenizer, (split,))[split]
    sources, targets = list(data.rows["source"]), list(data.rows["target"])
    with task.while_decoding(run.model):
        tables = cross_attention(run.model, sources, targets, special_tokens(tokenizer), normalizer)
    texts = zip(data.texts["source"], data.texts["target"], strict=True)
    return [
        to_words(table[:-1] if step == "predicts" else table[1:], *token_counts(tokenizer, source, target))
        for table, (source, target) in zip(tables, texts, strict=True)
    ]


def token_counts(tokenizer: Tokenizer, source: str, target: str) -> tuple[list[int], list[int]]:
    """The number of tokens of each target word, and of each source word. Texts are encoded word by word."""
    target_counts, source_counts = ([len(ids) for ids in tokenizer.encode(text.split())] for text in (target, source))
    return target_counts, source_counts


def to_words(weights: np.ndarray, target: Sequence[int], source: Sequence[int]) -> np.ndarray:
    """Weights between tokens -> float64 (target words, source words): the sum over the tokens of a source word, and the
    mean over those of a target word.

    weights: (target tokens, source tokens). target, source: the number of tokens of each word. Tokens after the last
    word, such as the end, belong to none. A word that has been truncated gets weights of 0.
    """
    rows, columns = (membership(counts, size) for counts, size in zip((target, source), weights.shape, strict=True))
    return (rows / rows.sum(1, keepdims=True).clip(1)) @ weights @ columns.T


def membership(counts: Sequence[int], tokens: int) -> np.ndarray:
    """float64 (words, tokens): 1 where a token belongs to a word. counts: the number of tokens of each word."""
    ends = np.cumsum(counts, dtype=np.int64)[:, None]
    numbers = np.arange(tokens)
    return ((numbers >= ends - np.asarray(counts)[:, None]) & (numbers < ends)).astype(np.float64)


@torch.no_grad()
def cross_attention(
    model: Any,
    sources: Sequence[list[int]],
    targets: Sequence[list[int]],
    special: SpecialTokens,
    normalizer: Normalizer | None = None,
) -> list[np.ndarray]:
    """The attention to the source for each pair, float32 (T + 1, S + 1), the mean over layers and heads.

    sources, targets: S and T token ids of each pair, without special tokens. Row k is the step that predicts target
    token k, and the last one that which predicts the end. The last column is the end of the source. normalizer: as in
    `word_attention`.
    """
    model.eval()
    device, tables = model.tokens.weight.device, []
    for start in range(0, len(sources), ROWS):
        rows = slice(start, start + ROWS)
        source = pad([[*ids, special.eos] for ids in sources[rows]], special.pad).to(device)
        target = pad([[special.bos, *ids] for ids in targets[rows]], special.pad).to(device)
        real = ((target != special.pad)[:, :, None] & (source != special.pad)[:, None])[:, None]  # (B, 1, T, S)
        found: list[torch.Tensor] = []

        def see(name: str, seen: Observation, real: torch.Tensor = real, found: list = found) -> None:
            if name.endswith("cross"):
                own = seen.weights if normalizer is None else normalizer(seen.scores, real, log_prior=seen.log_prior)
                found.append(own.float().mean(1))

        with observe_all(model, see):
            model(source, target)
        weights = torch.stack(found).mean(0).cpu().numpy()
        sizes = zip(map(len, targets[rows]), map(len, sources[rows]), strict=True)
        tables += [table[: t + 1, : s + 1] for table, (t, s) in zip(weights, sizes, strict=True)]
    return tables


# --------------------------------------------------------------------------------------------------------- null arms


def uniform(target_words: int, source_words: int) -> np.ndarray:
    """The same weight for every pair of words, float64 (target words, source words)."""
    return np.full((target_words, source_words), 1 / source_words)


def diagonal(target_words: int, source_words: int) -> np.ndarray:
    """1 - |t / T - s / S| between the centers of word t of T and word s of S, float64 (T, S).

    A threshold makes it a band along the diagonal, as wide as is best.
    """
    target, source = ((np.arange(size) + 0.5) / size for size in (target_words, source_words))
    return 1 - np.abs(target[:, None] - source)
