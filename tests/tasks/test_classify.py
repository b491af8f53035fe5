"""Classification: loss and accuracy by hand, the label that each row was given."""

import math

import numpy as np
import pandas as pd
import pytest
import runs
import torch
from builders import evaluated, gathered
from tolerance import rounding
from torch import nn

from attnorm.analysis.scores import ExampleTable
from attnorm.data.sampler import MicroBatch
from attnorm.errors import ConfigError
from attnorm.tasks.classification import ClassificationCollator, ClassificationModule
from attnorm.tasks.macro_f1 import MacroF1
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


def f1_by_hand(references, outputs):
    """The mean F1 of the labels that occur, in percent."""
    found = []
    for label in {*references, *outputs}:
        right = sum(pair == (label, label) for pair in zip(references, outputs, strict=True))
        precision, recall = (right / max(1, list(texts).count(label)) for texts in (outputs, references))
        found.append(2 * precision * recall / (precision + recall) if right else 0.0)
    return 100 * sum(found) / len(found)


def test_loss_accuracy_and_macro_f1_by_hand(made, split):
    task, batches, plan = made
    expected = [nats(plan[3], 0), nats(plan[4], 1), nats(plan[5], 2), nats(plan[6], 0)]
    summed, size, _ = task.loss(batches[MicroBatch([0, 1, 2, 3], 4)])
    assert size == 4 and summed.item() == pytest.approx(sum(expected), rel=CLOSE)
    found = evaluated(task, batches, [3, 0], [2], [1])
    assert set(found) == {"loss", "accuracy", "macro_f1"}
    references = split.texts[:4]["label"]
    assert found["macro_f1"] == pytest.approx(f1_by_hand(references, ["no", "perhaps", "perhaps", "yes"]))
    assert found["loss"] == pytest.approx(sum(expected) / 4, rel=CLOSE)
    assert found["accuracy"] == 50.0
    assert task.format_line({"accuracy": 50.0, "macro_f1": 41.68}) == "accuracy 50.0  macro F1 41.7"


def test_weights_multiply_the_loss_in_training_and_not_in_a_validation(made):
    task, batches, plan = made
    every = MicroBatch([0, 1, 2, 3], 4)
    plain, found = task.loss(batches[every]).objective.item(), evaluated(task, batches, [0, 1, 2, 3])
    task.weights = torch.tensor([0.5, 2.0, 3.0])
    weighted = task.loss(batches[every])
    expected = 0.5 * nats(plan[3], 0) + 2 * nats(plan[4], 1) + 3 * nats(plan[5], 2) + 0.5 * nats(plan[6], 0)
    assert weighted.objective.item() == pytest.approx(expected, rel=CLOSE) != plain
    assert (weighted.size, weighted.plain.item()) == (4, plain) and evaluated(task, batches, [0, 1, 2, 3]) == found


def test_balanced_weights_let_all_labels_count_alike():
    task = task_of(runs.tiny("task.class_weights=balanced", task="classify"))
    assert task.class_weights() is None  # the training split, which an evaluation does not read, decides
    train = task.splits()["train"]
    counts = [list(train.texts["label"]).count(label) for label in task.labels]
    weights = task.class_weights()
    assert [weight * count for weight, count in zip(weights, counts, strict=True)] == [
        pytest.approx(len(train) / 2)
    ] * 2
    task.train_counts = {"label no": 3, "label yes": 0}
    assert task.class_weights() == [1.0, 1.0]
    numbers = task_of(runs.tiny("task.class_weights=[1,2.5]", task="classify"))
    module = numbers.module(numbers.model(train.tokenizer), train.tokenizer, train)
    assert module.weights.tolist() == [1.0, 2.5]


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (
            "[1,2,3]",
            "task.class_weights=[1.0,2.0,3.0]: allowed: balanced, or a number for each of the labels no, yes",
        ),
        ("equal", "task.class_weights=equal: "),
        ("[1,-1]", "task.class_weights=[1,-1]: allowed: balanced or a list of numbers above 0 or null"),
    ],
)
def test_weights_that_do_not_fit_the_labels_are_refused(typed, words):
    with pytest.raises(ConfigError) as caught:
        runs.tiny(f"task.class_weights={typed}", task="classify")
    [problem] = caught.value.problems
    assert problem.startswith(words) and len(problem) < 200


def test_macro_f1_is_compared_by_pseudo_values():
    random = np.random.default_rng(0)
    references = random.choice(["a", "b", "c"], 400, p=[0.8, 0.15, 0.05])
    outputs = np.where(random.random(400) < 0.7, references, random.choice(["a", "b", "d"], 400))
    rows = pd.DataFrame({"reference": references, "output": outputs, "loss_sum": 1.0, "n_tokens": 1})
    table, ids = ExampleTable(rows, "test", {"macro_f1": MacroF1}), list(range(400))
    assert table.overall("macro_f1", ids) == pytest.approx(f1_by_hand(references.tolist(), outputs.tolist()))
    values = table.values("macro_f1", ids)
    assert values.mean() == pytest.approx(table.overall("macro_f1", ids), abs=1.0)
    drawn = [table.overall("macro_f1", random.choice(400, 400).tolist()) for _ in range(300)]  # a bootstrap
    assert values.std() / 20 == pytest.approx(np.std(drawn), rel=0.25)


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
