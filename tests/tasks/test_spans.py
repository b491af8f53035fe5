"""From scores to answers: against loops over all spans, whatever order and company the windows come in."""

import json
import pickle
import random

import pytest
import torch
from builders import Words
from datasets import Dataset

from attnorm.tasks.squad.spans import Spans, best_spans
from attnorm.tasks.squad.windows import SquadFeaturizer

pytestmark = pytest.mark.numerical

CLS = 0
LETTERS = Words("[^ ]", ord)


def tables(contexts, max_length=14, stride=4):
    texts = {
        "id": [f"q{i}" for i in range(len(contexts))],
        "context": contexts,
        "question": ["why"[: 1 + i % 3] for i in range(len(contexts))],
        "answers": [json.dumps({"texts": [], "starts": []})] * len(contexts),
    }
    windows, _ = SquadFeaturizer(max_length, 3, stride, True).encode(texts, 0, LETTERS)
    return Dataset.from_dict(windows), Dataset.from_dict(texts)


def contexts(count, seed):
    rng = random.Random(seed)
    return ["".join(rng.choice("abcdef  ") for _ in range(rng.randint(1, 40))) + "z" for _ in range(count)]


def scores(windows, seed, width=14):
    return torch.randn(2, len(windows), width, generator=torch.Generator().manual_seed(seed))


def by_loops(windows, texts, start, end, n_best, max_answer):
    """id -> (best text, best score - null) over all spans of all windows, by loops."""
    found = {}
    for row, window in enumerate(windows):
        head, size = window["question"], len(window["starts"])
        may_start = [head + i for i in range(size) if window["context_best"][i]]
        may_start = sorted(may_start, key=lambda i, row=row: -start[row, i])[:n_best]
        may_end = sorted(range(head, head + size), key=lambda j, row=row: -end[row, j])[:n_best]
        spans = [(i, j) for i in may_start for j in may_end if i <= j <= i + max_answer - 1]
        name = texts["id"][window["example"]]
        best, text, null = found.get(name, (-torch.inf, "", torch.inf))
        for i, j in spans:
            total = (start[row, i] + end[row, j]).item()
            if total > best:
                context = texts["context"][window["example"]]
                best, text = total, context[window["starts"][i - head] : window["ends"][j - head]]
        found[name] = (best, text, min(null, (start[row, CLS] + end[row, CLS]).item()))
    return found


@pytest.mark.long
@pytest.mark.parametrize(("n_best", "max_answer"), [(20, 30), (3, 5), (2, 2), (1, 1), (50, 3)])
def test_the_answers_are_those_of_loops_over_all_spans(n_best, max_answer):
    for seed in range(4):
        windows, texts = tables(contexts(12, seed))
        start, end = scores(windows, seed)
        spans = Spans(windows, texts, n_best=n_best, max_answer=max_answer)
        spans.add(range(len(windows)), start, end)
        answers, odds = spans.answers()
        expected = by_loops(windows, texts, start, end, n_best, max_answer)
        assert answers == {name: text for name, (_, text, _) in expected.items()}
        assert odds == pytest.approx({name: null - best for name, (best, _, null) in expected.items()})
        assert len(windows) > 24 and len(answers) == 12
        for threshold in (-1.0, 0.5):
            blank, same = spans.answers(null_threshold=threshold)
            assert same == odds
            assert blank == {name: "" if odds[name] > threshold else text for name, text in answers.items()}
        assert n_best == 1 or 0 < sum(map(bool, spans.answers(null_threshold=-4.0)[0].values())) < 12


def test_batches_order_padding_precision_and_devices_change_nothing():
    windows, texts = tables(contexts(10, 9))
    start, end = scores(windows, 3)
    whole = Spans(windows, texts, n_best=4, max_answer=6)
    whole.add(range(len(windows)), start, end)
    order = random.Random(0).sample(range(len(windows)), len(windows))
    parts = [Spans(windows, texts, n_best=4, max_answer=6) for _ in range(2)]
    for at in range(0, len(order), 5):
        rows = order[at : at + 5]
        width = max(len(ids) for ids in windows[rows]["ids"])  # a batch is as wide as its longest window
        wide = torch.full((len(rows), 3), 1e6)  # the model's padding may hold anything
        parts[at % 2].add(
            torch.tensor(rows).tolist(),
            torch.cat([start[rows, :width], wide], 1).double().requires_grad_(),
            torch.cat([end[rows, :width], wide], 1).double(),
        )
    parts[0].merge(pickle.loads(pickle.dumps(parts[1].best)))
    assert parts[0].answers() == whole.answers()
    assert parts[0].best == whole.best


def test_equal_scores_are_decided_whatever_the_order():
    windows, texts = tables(["abcdefghijklmnopqrstuvwxyz"])
    start, end = torch.zeros(2, len(windows), 14)
    answers = set()
    for order in (range(len(windows)), reversed(range(len(windows)))):
        spans = Spans(windows, texts)
        for row in order:
            spans.add([row], start[[row]], end[[row]])
        answers.add(spans.answers()[0]["q0"])
    assert answers == {"a"}


def test_the_text_is_cut_from_the_context_as_it_is_written():
    context = "x \u00c9  e\u0301\n \U0001f600 y"
    windows, texts = tables([context], max_length=30)
    start, end = torch.zeros(2, 1, 30)
    start[0, 4], end[0, 8] = 3.0, 3.0
    spans = Spans(windows, texts)
    spans.add([0], start, end)
    offsets = LETTERS.encode_with_offsets(context)[1]
    assert spans.answers()[0]["q0"] == context[offsets[1][0] : offsets[5][1]]


def test_a_question_whose_context_has_no_token_gets_the_empty_answer():
    windows, texts = tables([" ", "ab"])
    spans = Spans(windows, texts)
    spans.add([0, 1], torch.zeros(2, 14), torch.zeros(2, 14))
    answers, odds = spans.answers()
    assert answers == {"q0": "", "q1": "a"} and odds == {"q0": torch.inf, "q1": 0.0}


def test_only_questions_that_had_a_window_are_answered():
    windows, texts = tables(["ab", "cd", "ef"])
    spans = Spans(windows, texts)
    assert spans.answers() == ({}, {})
    spans.add([1], torch.zeros(1, 14), torch.zeros(1, 14))
    assert spans.answers()[0] == {"q1": "c"}


def test_scores_that_are_not_finite_are_refused_where_they_count():
    windows, texts = tables(["ab", "cdef"])
    spans = Spans(windows, texts)
    for value in (float("nan"), float("inf")):
        for place in (0, 3):
            start = torch.zeros(2, 14)
            start[0, place] = value
            with pytest.raises(ValueError, match=r"scores of windows 0, 1 .*finite"):
                spans.add([0, 1], torch.zeros(2, 14), start)
    start[0] = float("nan")
    start[0, [0, 3, 4]] = 0.0
    spans.add([0, 1], start, start)
    assert spans.answers()[0]["q0"] == "a"


def test_no_valid_span_scores_minus_infinity():
    nowhere = torch.zeros(2, 4, dtype=torch.bool)
    score, _, _ = best_spans(torch.ones(2, 4), torch.ones(2, 4), nowhere, ~nowhere, 3, 3)
    assert score.tolist() == [-torch.inf] * 2
    backwards = torch.tensor([[False, False, True, False]]), torch.tensor([[True, True, False, False]])
    assert best_spans(torch.ones(1, 4), torch.ones(1, 4), *backwards, 3, 3)[0].item() == -torch.inf
