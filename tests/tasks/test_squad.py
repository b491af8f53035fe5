"""Reading comprehension: the loss, and answers and metrics from planned scores, all by hand."""

import json
from functools import partial

import pytest
import torch
from builders import Words, evaluated, gathered
from datasets import Dataset
from tolerance import rounding
from torch import nn

from attnorm.data.sampler import MicroBatch
from attnorm.tasks.squad.spans import Spans
from attnorm.tasks.squad.task import SpanModule
from attnorm.tasks.squad.windows import SquadCollator, SquadFeaturizer

pytestmark = pytest.mark.numerical

WORDS = Words(number=lambda word: sum(map(ord, word)))
FIRST, SECOND, NONE = "ab cd ef gh", "ij kl mn", "op qr"
TEXTS = {
    "id": ["one", "two", "none"],
    "context": [FIRST, SECOND, NONE],
    "question": ["x y", "z", "w"],
    "answers": [
        json.dumps({"texts": ["cd ef", "cd"], "starts": [3, 3]}),
        json.dumps({"texts": ["mn"], "starts": [6]}),
        json.dumps({"texts": [], "starts": []}),
    ],
}
CLOSE = rounding(torch.float32, size=3 * 20)  # of a loss of three windows of at most 20 tokens


class Planned(nn.Module):
    """Scores that were planned: a table (rows, N, 2), by the row's first id behind [CLS] and its length."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.plan = {}

    def forward(self, ids, types):
        assert types.shape == ids.shape
        scores = torch.full((*ids.shape, 2), -5.0)
        for row, sequence in enumerate(ids.tolist()):
            for (place, which), value in self.plan.get(tuple(token for token in sequence if token), {}).items():
                scores[row, place, which] = value
        return scores + self.weight


def made(null_threshold, texts=TEXTS, max_length=20, stride=2):
    windows, _ = SquadFeaturizer(max_length, 2, stride, True).encode(texts, 0, WORDS)
    rows, table = Dataset.from_dict(windows), Dataset.from_dict(texts)
    search = partial(Spans, rows, table, n_best=3, max_answer=2)
    task = SpanModule(Planned(), WORDS, table, search, null_threshold)
    task.rows = rows
    return task, SquadCollator(rows, WORDS.pad_id)


def plan(task, row, **scores):
    """Plans scores of a window: start_<word of the context>=..., end_<word>=..., null=(start and end of [CLS])."""
    window = task.rows[row]
    context = task.texts[window["example"]]["context"]
    words = [context[a:b] for a, b in zip(window["starts"], window["ends"], strict=True)]
    places = {word: window["question"] + number for number, word in enumerate(words)} | {"null": 0}
    planned = task.model.plan.setdefault(tuple(window["ids"]), {})
    for name, value in scores.items():
        which, _, word = name.partition("_")
        planned[places[word], ["start", "end"].index(which)] = value


@pytest.fixture
def answered():
    """One is answered "ef" (half of "cd ef"), two rightly "mn", none "qr" with odds 1."""
    task, batches = made(None)
    plan(task, 0, start_ef=3.0, end_ef=2.0, start_null=1.0, end_null=1.0)
    plan(task, 1, start_mn=4.0, end_mn=4.0)
    plan(task, 2, start_qr=1.0, end_qr=1.0, start_null=2.0, end_null=1.0)
    return task, batches


def test_scores_are_minus_infinity_at_padding_and_nowhere_else(answered):
    task, batches = answered
    batch = batches[MicroBatch([0, 2], 2)]
    scores = task(batch)
    padding = batch["ids"] == 0
    assert padding.any() and torch.equal(scores == -torch.inf, padding[..., None].expand(scores.shape))
    assert int(task.tokens(batch)) == len(task.rows[0]["ids"]) + len(task.rows[2]["ids"])


def test_the_loss_is_the_mean_of_two_cross_entropies_over_real_places(answered):
    task, batches = answered
    summed, size, _ = task.loss(batches[MicroBatch([0, 1, 2], 3)])
    expected = 0.0
    for row in range(3):
        window = task.rows[row]
        scores = torch.full((len(window["ids"]), 2), -5.0)
        for (place, which), value in task.model.plan[tuple(window["ids"])].items():
            scores[place, which] = value
        for which, target in enumerate((window["start"], window["end"])):
            expected -= scores[:, which].log_softmax(0)[target].item() / 2
    assert size == 3 and summed.item() == pytest.approx(expected, rel=CLOSE)
    assert (task.rows[0]["start"], task.rows[0]["end"]) == (4 + 1, 4 + 2)  # [CLS] x y [SEP] ab "cd ef" gh
    assert (task.rows[2]["start"], task.rows[2]["end"]) == (0, 0)


def test_exact_match_and_f1_by_hand(answered):
    task, batches = answered
    found = evaluated(task, batches, [0, 1])
    assert set(found) == {"loss", "exact", "f1"}
    assert found["exact"] == pytest.approx(50) and found["f1"] == pytest.approx(100 * (2 / 3 + 1) / 2)
    assert task.spans.answers(None)[0] == {"one": "ef", "two": "mn"}
    batch = batches[MicroBatch([0, 1], 2)]
    assert found["loss"] == pytest.approx(task.loss(batch)[0].item() / 2, rel=CLOSE)


@pytest.mark.parametrize(
    ("threshold", "emptied", "exact"),
    [(-9.0, {"one", "none"}, 200 / 3), (0.99, {"none"}, 200 / 3), (1.0, set(), 100 / 3)],
)
def test_answers_above_the_null_threshold_are_empty(answered, threshold, emptied, exact):
    """Odds: one -3, two -18, none 1; only above the threshold, not at it."""
    task, batches = answered
    task.null_threshold = threshold
    found = evaluated(task, batches, [0, 1, 2])
    answers, odds = task.spans.answers(threshold)
    assert odds == pytest.approx({"one": -3.0, "two": -18.0, "none": 1.0})
    assert {name for name, text in answers.items() if text == ""} == emptied
    assert found["exact"] == pytest.approx(exact)
    assert found["NoAns_exact"] == (100.0 if "none" in emptied else 0.0)
    assert found["HasAns_f1"] == pytest.approx(100 * (1 + (0 if "one" in emptied else 2 / 3)) / 2)
    assert found["best_exact"] == pytest.approx(200 / 3) and found["best_f1"] == pytest.approx(100 * (8 / 3) / 3)
    assert not any(name.endswith(("total", "missing")) for name in found)


def test_windows_of_a_question_judged_in_two_places_are_put_together():
    """As after a gathering over ranks: the second has the better answer, the first the smaller null score."""
    long = {name: column[:1] for name, column in TEXTS.items()}
    task, batches = made(0.0, long, max_length=7, stride=1)
    assert len(task.rows) > 2
    plan(task, 0, start_ab=1.0, end_ab=1.0, start_null=-2.0, end_null=-2.0)
    last = len(task.rows) - 1
    plan(task, last, start_gh=4.0, end_gh=4.0, start_null=5.0, end_null=5.0)
    for row in range(1, last):
        plan(task, row, start_null=0.0, end_null=0.0)
    whole = evaluated(task, batches, list(range(len(task.rows))))
    assert task.spans.answers(None) == ({"one": "gh"}, {"one": pytest.approx(-12.0)})
    assert gathered(task, batches, list(range(last)), [last]) == pytest.approx(whole)
    assert task.spans.answers(None) == ({"one": "gh"}, {"one": pytest.approx(-12.0)})


def test_samples_show_question_gold_and_answer(answered):
    task, batches = answered
    task.null_threshold = 0.5
    evaluated(task, batches, [0, 1, 2])
    assert task.samples == [
        {"question": "x y", "gold": "cd ef | cd", "answer": "ef"},
        {"question": "z", "gold": "mn", "answer": "mn"},
        {"question": "w", "gold": "(none)", "answer": "(none)"},
    ]
    assert task.format_line({"exact": 12.34, "f1": 56.78, "loss": 1.0}) == "exact match 12.3  F1 56.8"
