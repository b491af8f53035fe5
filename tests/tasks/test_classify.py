"""Classification: loss and accuracy by hand, the label that each row was given."""

import math

import pytest
import runs
import torch
from builders import evaluated, gathered
from tolerance import rounding
from torch import nn

from attnorm.data.sampler import MicroBatch
from attnorm.tasks.classification import ClassificationCollator, ClassificationModule
from attnorm.tasks.task import task_of

pytestmark = pytest.mark.numerical

LABELS = ["no", "yes", "perhaps"]
CLOSE = rounding(torch.float32, size=4 * len(LABELS))  # of a loss of four rows


class Planned(nn.Module):
    """Scores by the number of tokens of a row."""

    def __init__(self, plan):
        super().__init__()
        self.weight, self.plan = nn.Parameter(torch.zeros(())), plan

    def forward(self, ids, types):
        assert types.shape == ids.shape
        return torch.tensor([self.plan[int(length)] for length in (ids != 0).sum(1)]) + self.weight


@pytest.fixture(scope="module")
def split():
    """The validation texts of the shared files, relabelled 0, 1, 2, 0, ... and cut to 3, 4, 5, ... tokens."""
    recipe = task_of(runs.tiny(task="classify"))
    return recipe.splits()["validation"]


@pytest.fixture
def made(split):
    rows = split.rows.select(range(4)).to_dict()
    rows = {"ids": [ids[: 3 + n] for n, ids in enumerate(rows["ids"])], "first": [3, 4, 5, 6], "label": [0, 1, 2, 0]}
    from datasets import Dataset

    plan = {3: [2.0, 0.0, 0.0], 4: [0.0, 0.0, 1.0], 5: [0.0, 0.5, 1.0], 6: [3.0, 3.5, 3.0]}
    task = ClassificationModule(Planned(plan), split.tokenizer, split.texts, LABELS)
    return task, ClassificationCollator(Dataset.from_dict(rows), split.tokenizer.pad_id), plan


def nats(scores, label):
    return math.log(sum(map(math.exp, scores))) - scores[label]


def test_loss_and_accuracy_by_hand(made):
    task, batches, plan = made
    expected = [nats(plan[3], 0), nats(plan[4], 1), nats(plan[5], 2), nats(plan[6], 0)]
    summed, size, _ = task.loss(batches[MicroBatch([0, 1, 2, 3], 4)])
    assert size == 4 and summed.item() == pytest.approx(sum(expected), rel=CLOSE)
    found = evaluated(task, batches, [3, 0], [2], [1])
    assert set(found) == {"loss", "accuracy"}
    assert found["loss"] == pytest.approx(sum(expected) / 4, rel=CLOSE)
    assert found["accuracy"] == 50.0
    assert task.format_line(found) == "accuracy 50.0"


def test_what_another_rank_found_counts_and_predictions_are_by_row_whatever_the_order(made):
    task, batches, _ = made
    assert gathered(task, batches, [2, 3], [0, 1])["accuracy"] == 50.0
    assert list(task.predictions().items()) == [(0, "no"), (1, "perhaps"), (2, "perhaps"), (3, "yes")]


def test_samples_show_texts_label_and_prediction(made, split):
    task, batches, _ = made
    evaluated(task, batches, [3, 2])
    assert [sample["predicted"] for sample in task.samples] == ["perhaps", "yes"]
    assert [sample["text"] for sample in task.samples] == split.texts[2:4]["text"]
    assert [list(sample) for sample in task.samples] == [["text", "label", "predicted"]] * 2  # no second text


def test_tokens_are_counted_without_padding_and_an_earlier_validation_is_forgotten(made):
    task, batches, _ = made
    assert int(task.tokens(batches[MicroBatch([0, 3], 2)])) == 3 + 6
    evaluated(task, batches, [0, 1, 2])
    assert evaluated(task, batches, [1])["accuracy"] == 0.0
    assert list(task.predictions()) == [1] and len(task.samples) == 1


def test_the_best_checkpoint_is_that_of_the_highest_accuracy():
    assert (ClassificationModule.monitor, ClassificationModule.mode) == ("val/accuracy", "max")
