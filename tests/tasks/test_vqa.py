"""Visual question answering: loss and accuracy by hand, the answer that each question was given, views of a batch."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import runs
import torch
from builders import evaluated, gathered
from datasets import Dataset
from tolerance import rounding
from torch import nn

from attnorm.data.sampler import MicroBatch
from attnorm.errors import DataError
from attnorm.tasks.task import task_of
from attnorm.tasks.vqa.module import SHOWN, VqaCollator, VqaModule, views_of

pytestmark = pytest.mark.numerical

PAD = 0
ANSWERS = ["yes", "no", "red"]
SCORES = [[2.0, 0.0, -1.0], [0.5, 0.0, 1.0], [-1.0, 3.0, 0.0], [4.0, 3.5, 3.0]]  # of each question
TARGETS = [{0: 1.0}, {1: 0.9, 2: 0.3}, {}, {1: 0.6, 2: 1.0}]  # the second best, none in the list, none right
QUESTIONS = 4
CLOSE = rounding(torch.float32, size=QUESTIONS * len(ANSWERS))  # of a loss of all questions


class Planned(nn.Module):
    """Scores by the number of tokens of a question."""

    def __init__(self):
        super().__init__()
        self.weight, self.views = nn.Parameter(torch.zeros(())), None

    def forward(self, ids, views):
        self.views = views
        return torch.tensor([SCORES[int(length) - 1] for length in (ids != PAD).sum(1)]) + self.weight


@pytest.fixture
def made():
    """A task and batches of four questions of 1, 2, 3 and 4 tokens."""
    rows = {
        "ids": [[7] * (1 + n) for n in range(QUESTIONS)],
        "answers": [list(targets) for targets in TARGETS],
        "scores": [list(targets.values()) for targets in TARGETS],
    }
    texts = {
        "id": ["q3", "q1", "q2", "q0"],
        "image": ["a", "a", "b", "c"],
        "question": [f"what is {n}?" for n in range(QUESTIONS)],
        "answers": [json.dumps([f"gold {n}"]) for n in range(QUESTIONS)],
    }
    rows, texts = Dataset.from_dict(rows), Dataset.from_dict(texts)
    task = VqaModule(Planned(), SimpleNamespace(pad_id=PAD), texts, ANSWERS)
    return task, VqaCollator(rows, texts, None, PAD, len(ANSWERS))


def nats(question):
    """- sum over the answers of t ln s + (1 - t) ln (1 - s), s the sigmoid of the score."""
    total = 0.0
    for number, score in enumerate(SCORES[question]):
        target, sigmoid = TARGETS[question].get(number, 0.0), 1 / (1 + math.exp(-score))
        total -= target * math.log(sigmoid) + (1 - target) * math.log(1 - sigmoid)
    return total


def test_the_loss_moves_scores_towards_their_targets(made):
    task, batches = made
    summed, *_ = task.loss(batches[MicroBatch([1], 1)])
    summed.backward()
    expected = sum(1 / (1 + math.exp(-score)) for score in SCORES[1]) - sum(TARGETS[1].values())
    assert task.model.weight.grad.item() == pytest.approx(expected, rel=CLOSE)


@pytest.mark.parametrize("parts", [([0, 1, 2, 3],), ([3, 0], [2], [1])], ids=str)
def test_loss_and_accuracy_by_hand(made, parts):
    task, batches = made
    found = evaluated(task, batches, *parts)
    assert found == {
        "loss": pytest.approx(sum(map(nats, range(QUESTIONS))) / QUESTIONS, rel=CLOSE),
        "accuracy": pytest.approx(100 * (1.0 + 0.3 + 0.0 + 0.0) / QUESTIONS, rel=CLOSE),
    }
    assert task.format_line(found) == "accuracy 32.50"


def test_tokens_are_counted_without_padding_and_an_earlier_validation_is_forgotten(made):
    task, batches = made
    assert int(task.tokens(batches[MicroBatch([0, 3], 2)])) == 1 + 4
    evaluated(task, batches, [0, 1, 2, 3])
    assert evaluated(task, batches, [1])["accuracy"] == pytest.approx(30.0)
    assert task.predictions() == {"q1": "red"} and len(task.samples) == 1


def test_what_another_rank_found_counts_and_predictions_are_in_the_order_of_the_questions(made):
    task, batches = made
    assert gathered(task, batches, [2, 3], [0, 1])["accuracy"] == pytest.approx(32.5)
    assert list(task.predictions().items()) == [("q3", "yes"), ("q1", "red"), ("q2", "no"), ("q0", "yes")]
    assert [sample["given"] for sample in task.samples] == ["yes", "red", "no", "yes"]


def test_samples_show_image_question_answers_and_what_was_given(made):
    task, batches = made
    evaluated(task, batches, [2, 1])
    assert task.samples == [
        {"image": "a", "question": "what is 1?", "annotators": "gold 1", "given": "red"},
        {"image": "b", "question": "what is 2?", "annotators": "gold 2", "given": "no"},
    ]
    evaluated(task, batches, [0, 1, 2, 3] * 2)
    assert len(task.samples) == SHOWN


def test_views_go_to_the_model_in_order_with_geometry_where_there_is_one(made):
    task, batches = made
    batch = batches[MicroBatch([0, 1], 2)]
    task(batch)
    assert task.model.views == []
    parts = {
        name: torch.full((2, 3, width), float(number))
        for number, (name, width) in enumerate({"view0": 5, "geometry0": 4, "view1": 6, "view2": 7}.items())
    }
    present = {f"present{number}": torch.ones(2, 3, dtype=torch.bool) for number in range(3)}
    batch = {**present, **dict(reversed(parts.items())), **batch}
    task(batch)
    widths = [[None if part is None else part.shape[-1] for part in view] for view in task.model.views]
    assert widths == [[5, 3, 4], [6, 3, None], [7, 3, None]]
    assert all(view[0] is batch[f"view{number}"] for number, view in enumerate(views_of(batch)))


def test_views_are_given_in_the_precision_of_the_model(made):
    task, batches = made
    view = {"view0": torch.ones(1, 3, 5), "present0": torch.ones(1, 3).bool(), "geometry0": torch.ones(1, 3, 4)}
    task.model.to(torch.bfloat16)
    task({**batches[MicroBatch([0], 1)], **view})
    assert [part.dtype for part in task.model.views[0]] == [torch.bfloat16, torch.bool, torch.bfloat16]


def test_the_missing_images_of_all_splits_are_named_together(tmp_path):
    np.savez(tmp_path / "0.npz", features=np.ones((2, 3)))
    typed = ("task=vqa", "data=vqa_v2", *runs.vqa_files(), f"data.features=[{tmp_path}]", "model.fusion=single")
    cfg = runs.checked(
        runs.composed(*typed, "model.geometry=false", f"paths.cache_dir={tmp_path}/cache", "task.min_count=1")
    )
    with pytest.raises(DataError) as error:
        task_of(cfg).splits()
    train, validation = str(error.value).splitlines()
    assert train.startswith(f"train: {tmp_path}: no features of 19 images: 1, 2, ")
    assert validation.startswith(f"validation: {tmp_path}: no features of 8 images: 20, 21, ")
