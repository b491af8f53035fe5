"""Classification as whole runs: what they leave, labels and accuracy by hand, the baseline, pairs of texts."""

import csv
import json
from collections import Counter

import pytest
import runs
import torch
from tolerance import rounding
from torch.testing import assert_close

from attnorm.cli import train as front
from attnorm.data.sampler import MicroBatch
from attnorm.tasks.task import task_of
from attnorm.training.module import TrainingModule
from attnorm.training.run_folder import load_weights
from attnorm.training.train import train

EXACT = ("model.dropout=0", "trainer.precision=64-true")  # so that only rounding can differ
FILES = {*runs.FILES, "tokenizer.json", "samples/validation.labels.jsonl"}


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """A run that has learned something."""
    folder = tmp_path_factory.mktemp("learned") / "run"
    typed = ("task.max_steps=30", "task.validations=5", "callbacks.attention_stats.every_n_steps=0")
    runs.tiny_run(folder, *typed, task="classify")
    return folder


def labels_of(split="validation"):
    """The labels in a file, line by line."""
    paths = dict(key.split("=") for key in runs.labelled_files())
    with open(paths[f"data.{split}"], newline="") as file:
        return [row["label"] for row in csv.DictReader(file)]


def given(run, file="samples/validation.labels.jsonl"):
    """[(row, label)] that a run wrote."""
    return [tuple(json.loads(line).values()) for line in (run / file).read_text().splitlines()]


def test_a_run_leaves_exactly_the_promised_files():
    assert runs.files_of(runs.finished_run("classify")) == FILES


def test_accuracy_is_that_of_the_written_labels(learned):
    gold, found = labels_of(), given(learned)
    assert [row for row, _ in found] == list(range(21))
    right = sum(label == wanted for (_, label), wanted in zip(found, gold, strict=True))
    scores = runs.summary_of(learned)["validation"]
    assert (scores["split"], scores["unit"], scores["size"]) == ("validation", "rows", 21)
    assert set(scores["metrics"]) == {"loss", "accuracy"}
    assert scores["metrics"]["accuracy"] == pytest.approx(100 * right / 21)
    assert len({label for _, label in found}) == 2  # or it always says one


def test_the_baseline_always_gives_the_most_frequent_label(learned):
    counts = Counter(labels_of())
    [(label, count)] = counts.most_common(1)
    assert len(counts) == 2 and count < 21
    scores = runs.summary_of(learned)["validation"]
    assert scores["baselines"] == {f"always {label}": {"accuracy": pytest.approx(100 * count / 21)}}
    assert scores["metrics"]["accuracy"] > 100 * count / 21


def test_the_baseline_is_of_the_split_that_is_scored(monkeypatch, tmp_path):
    run = runs.copied_run(tmp_path, "classify")
    (tmp_path / "other.csv").write_text("text,label\nThe cat,no\nThe fox,yes\nThe dog,no\n")
    assert runs.call(monkeypatch, "eval", f"run={run}", "split=test", f"data.test={tmp_path}/other.csv") == 0
    record = json.loads((run / "eval_test.json").read_text())
    assert record["size"] == 3
    assert record["baselines"] == {"always no": {"accuracy": pytest.approx(200 / 3)}}
    assert len(given(run, "eval_test.labels.jsonl")) == 3


@pytest.mark.numerical
def test_the_loss_is_that_of_the_rows_one_by_one(learned):
    recipe = task_of(runs.tiny(task="classify"))
    split = recipe.splits()["validation"]
    model = recipe.model(split.tokenizer).eval()
    load_weights(model, learned / "checkpoints/best.ckpt")
    loss, labels = 0.0, {"no": 0, "yes": 1}
    with torch.no_grad():
        for row, label in enumerate(labels_of()):
            batch = recipe.collator(split)[MicroBatch([row], 1)]
            loss -= model(batch["ids"], batch["types"])[0].log_softmax(-1)[labels[label]].item()
    close = rounding(torch.float32, depth=2, size=32)  # a layer, 32 wide within, and the scores of the labels
    assert runs.summary_of(learned)["validation"]["metrics"]["loss"] == pytest.approx(loss / 21, rel=close)


def test_the_best_model_is_that_of_the_highest_accuracy(monkeypatch, tmp_path, learned):
    accuracy = runs.logged(learned, "val/accuracy")
    assert list(accuracy) == [6, 12, 18, 24, 30]
    assert runs.summary_of(learned)["best_step"] == max(accuracy, key=accuracy.get)
    planned = {"val/accuracy": {2: 40.0, 4: 30.0}, "val/loss": {2: 5.0, 4: 1.0}}
    original = TrainingModule.log

    def log(self, name, value, *arguments, **options):
        value = planned.get(name, {}).get(self.trainer.global_step, value)
        return original(self, name, value, *arguments, **options)

    monkeypatch.setattr(TrainingModule, "log", log)
    assert runs.tiny_run(tmp_path, task="classify")["best_step"] == 2


def test_eval_repeats_scores_and_labels_exactly(monkeypatch, tmp_path):
    run = runs.copied_run(tmp_path, "classify")
    assert runs.call(monkeypatch, "eval", f"run={run}") == 0
    record = json.loads((run / "eval_validation.json").read_text())
    for name, value in runs.summary_of(run)["validation"].items():
        assert record[name] == value
    assert given(run, "eval_validation.labels.jsonl") == given(run)


def test_a_stopped_run_goes_on_bit_for_bit(monkeypatch, tmp_path):
    long = ("attention=hnas", "task.max_steps=8")
    runs.tiny_run(tmp_path / "straight", *long, task="classify")
    runs.stopped(monkeypatch, tmp_path / "first", 3, *long, task="classify")
    runs.tiny_run(tmp_path / "second", *long, f"ckpt_path={tmp_path}/first/checkpoints/last.ckpt", task="classify")
    assert runs.different_ends(tmp_path / "straight", tmp_path / "second") == []
    assert given(tmp_path / "straight") == given(tmp_path / "second")


def test_accumulation_changes_memory_and_not_the_result(tmp_path):
    for pieces in (1, 3):
        runs.tiny_run(tmp_path / str(pieces), *EXACT, f"trainer.accumulate_grad_batches={pieces}", task="classify")
    ends = [runs.parameters(tmp_path / pieces) for pieces in ("1", "3")]
    assert_close(*ends, rtol=1e-7, atol=1e-9)
    assert runs.unequal(*ends) != []


@pytest.mark.slow
def test_two_processes_give_the_result_of_one(tmp_path):
    runs.tiny_run(tmp_path / "one", *EXACT, "data.batch_tokens=100", task="classify")
    two = ("trainer.strategy=ddp_fork", "trainer.devices=2")
    runs.tiny_run(tmp_path / "two", *EXACT, "data.batch_tokens=100", *two, task="classify")
    assert_close(*(runs.parameters(tmp_path / folder) for folder in ("one", "two")), rtol=1e-7, atol=1e-9)
    for column in ("val/loss", "val/accuracy"):
        assert_close(runs.logged(tmp_path / "one", column), runs.logged(tmp_path / "two", column), rtol=1e-6, atol=1e-6)
    assert (tmp_path / "one/samples/step_000004.txt").read_text() == (
        tmp_path / "two/samples/step_000004.txt"
    ).read_text()


def test_pairs_of_texts_with_the_labels_of_inference(tmp_path):
    """task=mnli: the label says whether both texts are equal, which only a model that reads both can learn."""
    places = {"train": (0, 120), "validation": (120, 30)}
    for name, (first, count) in places.items():
        lines = []
        for number, (colour, animal, *_) in enumerate(runs.sentences(first, count)):
            other = colour if number % 2 else "green"
            label = "entailment" if number % 2 else number % 4 // 2 + 1  # by name, or by number
            lines.append({"premise": f"a {colour} {animal}", "hypothesis": f"a {other} {animal}", "label": label})
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    files = [f"data.{name}={tmp_path}/{name}.jsonl" for name in places]
    groups = ("task=mnli", *runs.ENCODER, *files, "task.max_steps=3", f"paths.cache_dir={tmp_path}/cache")
    cfg = front.check_composed(runs.composed(*groups))
    train(cfg, tmp_path / "run")
    summary = runs.summary_of(tmp_path / "run")
    counts = {name: summary["data"]["validation"][f"label {name}"] for name in cfg["data"]["labels"]}
    assert counts == {"entailment": 15, "neutral": 8, "contradiction": 7}
    assert summary["validation"]["baselines"] == {"always entailment": {"accuracy": 50.0}}
    assert (tmp_path / "run/samples/step_000003.txt").read_text().startswith("text      a ")
    assert "\nsecond    a " in (tmp_path / "run/samples/step_000003.txt").read_text()
    recipe = task_of(cfg)
    split = recipe.splits()["validation"]
    types = recipe.collator(split)[MicroBatch([0], 1)]["types"][0].tolist()
    assert types == [0] * types.index(1) + [1] * types.count(1) and types.count(0) == types.count(1) + 1


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (("data.labels=[no]",), "data.labels=['no']: must have at least two names"),
        (("data.labels=[no,no]",), "data.labels: repeated names: no"),
        (("data.validation=null",), "data.validation=null"),
        (("data.train=nowhere.csv",), "data.train=nowhere.csv: "),
        (
            ("data.batch_tokens=50",),
            "data.batch_tokens=50: must be at least 64, the tokens of the longest",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_is_said(overrides, problem):
    with pytest.raises(front.ConfigError) as caught:
        runs.tiny(*overrides, task="classify")
    assert [text[: len(problem)] for text in caught.value.problems] == [problem]


def test_a_label_that_is_not_known_is_said_with_its_line(tmp_path):
    (tmp_path / "bad.csv").write_text("text,label\nThe cat,no\nThe fox,yess\n")
    with pytest.raises(ValueError, match=r"bad\.csv:3: label is .*yess"):
        train(runs.tiny(f"data.train={tmp_path}/bad.csv", task="classify"), tmp_path / "run")
