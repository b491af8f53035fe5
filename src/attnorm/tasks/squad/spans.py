"""Finds answers from the scores of their first and last tokens (Devlin et al., 2019, sections 4.2 and 4.3).

    answer = argmax over windows, i <= j < i + max_answer of   start_i + end_j
    null   = min over windows of                               start_[CLS] + end_[CLS]
    no answer if                                               null - max > threshold

i and j are tokens of the context, and token i must have the most context in this window. The search combines the
`n_best` best i of a window with its `n_best` best j.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from attnorm.data.featurizer import Table
from attnorm.errors import DataError


class Answer(NamedTuple):
    """The best answer to a question so far.

    score: -inf if no window has a valid answer. start, end: the characters of the answer.
    """

    score: float
    null: float
    window: int
    start: int
    end: int


class Spans:
    """Collects the scores of windows, in any order, and returns an answer for each question with an evaluated window.

    windows: the table of ids of `SquadFeaturizer`. texts: the table of texts from which it was made. max_answer: the
    maximum length of an answer in tokens.
    """

    def __init__(self, windows: Table, texts: Table, *, n_best: int = 20, max_answer: int = 30):
        self.windows = windows.select_columns(["question", "example", "starts", "ends", "context_best"])
        self.texts, self.n_best, self.max_answer = texts, n_best, max_answer
        self.best: dict[int, Answer] = {}  # row of the texts -> answer

    def add(self, rows: Sequence[int], start: Tensor, end: Tensor) -> None:
        """Adds the scores (B, N) of the windows in these rows. Raises ValueError if they are not finite."""
        table = self.windows[list(rows)]
        start, end = start.detach().float().cpu(), end.detach().float().cpu()
        may_start, may_end = torch.zeros(2, *start.shape, dtype=torch.bool)
        for at, (question, best) in enumerate(zip(table["question"], table["context_best"], strict=True)):
            may_start[at, question : question + len(best)] = torch.tensor(best, dtype=torch.bool)
            may_end[at, question : question + len(best)] = True
        used = may_end | (torch.arange(start.shape[1]) == 0)
        if not (torch.isfinite(start) & torch.isfinite(end) | ~used).all():
            raise DataError(f"the scores of windows {', '.join(map(str, list(rows)[:8]))} ... are not all finite")
        spans = best_spans(start, end, may_start, may_end, self.n_best, self.max_answer)
        nulls = (start[:, 0] + end[:, 0]).tolist()
        for at, (score, first, last) in enumerate(zip(*(values.tolist() for values in spans), strict=True)):
            begin = stop = 0
            if score > -torch.inf:
                begin = table["starts"][at][first - table["question"][at]]
                stop = table["ends"][at][last - table["question"][at]]
            self._keep(table["example"][at], Answer(score, nulls[at], int(rows[at]), begin, stop))

    def merge(self, best: Mapping[int, Answer]) -> None:
        """Adds the answers that are `best` in another instance, for example on another device, in other windows."""
        for example, answer in best.items():
            self._keep(example, Answer(*answer))

    def _keep(self, example: int, new: Answer) -> None:
        old = self.best.get(example, new)
        better = max(old, new, key=lambda one: (one.score, -one.window))  # independent of the order
        self.best[example] = better._replace(null=min(old.null, new.null))

    def answers(self, null_threshold: float | None = None) -> tuple[dict[str, str], dict[str, float]]:
        """Returns id -> answer, and id -> null odds, the score of no answer minus the score of the answer.

        The answer is an exact substring of the context. It is empty if the odds exceed `null_threshold` (None: never),
        or if no window has a valid answer (odds inf).
        """
        examples = sorted(self.best)
        rows = self.texts.select_columns(["id", "context"])[examples]
        answers, odds = {}, {}
        for name, context, example in zip(rows["id"], rows["context"], examples, strict=True):
            best = self.best[example]
            odds[name] = best.null - best.score
            none = null_threshold is not None and odds[name] > null_threshold
            answers[name] = "" if none else context[best.start : best.end]
        return answers, odds


def best_spans(
    start: Tensor, end: Tensor, may_start: Tensor, may_end: Tensor, n_best: int, max_answer: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The best span of each row: its score (B,), and the indices of its first and last tokens (B,).

    The score is -inf if there is no span. start, end: scores (B, N). may_start, may_end: bool (B, N), where a span may
    start and end. Of several spans with the same score, the one with the better start is chosen, then the earlier one.
    """
    kept = min(n_best, start.shape[1])
    starts, first = _best(start, may_start, kept)  # (B, K)
    ends, last = _best(end, may_end, kept)
    length = last[:, None, :] - first[:, :, None] + 1  # (B, K, K)
    scores = starts[:, :, None] + ends[:, None, :]
    scores = scores.masked_fill((length < 1) | (length > max_answer), -torch.inf).flatten(1)
    score, pair = scores.max(1)
    return score, first.gather(1, pair[:, None] // kept)[:, 0], last.gather(1, pair[:, None] % kept)[:, 0]


def _best(scores: Tensor, allowed: Tensor, kept: int) -> tuple[Tensor, Tensor]:
    """The best scores and their indices, (B, kept) each. It sorts, because the order of ties in topk is not defined."""
    values, indices = scores.masked_fill(~allowed, -torch.inf).sort(dim=1, descending=True, stable=True)
    return values[:, :kept], indices[:, :kept]
