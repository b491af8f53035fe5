"""Classification as whole runs: what they leave, labels and accuracy by hand, the baseline, pairs of texts."""

import csv
import json
import math
import re
from collections import Counter

import pytest
import runs

from attnorm.analysis.loaded_run import load_run
from attnorm.analysis.report.content import collect
from attnorm.data.sampler import MicroBatch
from attnorm.errors import DataError, UserError
from attnorm.tasks.classification import ClassificationModule
from attnorm.tasks.task import task_of
from attnorm.training.train import train


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


def test_a_task_needs_no_loss_among_its_metrics_unless_it_selects_the_checkpoint(monkeypatch, tmp_path):
    monkeypatch.setattr(ClassificationModule, "metrics", lambda module: {"accuracy": 50.0})
    runs.tiny_run(tmp_path / "run", task="classify")
    assert set(runs.summary_of(tmp_path / "run")["validation"]["metrics"]) == {"accuracy"}
    assert re.search(r"step +4  accuracy 50\.0", (tmp_path / "run/run.log").read_text())
    monkeypatch.setattr(ClassificationModule, "monitor", "val/loss")
    with pytest.raises(UserError, match=r"ClassificationModule\.monitor=val/loss: no such metric; .* returns accuracy"):
        runs.tiny_run(tmp_path / "other", task="classify")


@pytest.mark.slow
def test_the_baseline_always_gives_the_most_frequent_label(learned):
    counts = Counter(labels_of())
    [(label, count)] = counts.most_common(1)
    assert len(counts) == 2 and count < 21
    scores, outputs = runs.summary_of(learned)["validation"], load_run(learned).predictions["output"]
    assert given(learned) == list(enumerate(outputs)) and len(set(outputs)) == 2  # the model does not always say one
    constant = {"accuracy": pytest.approx(100 * count / 21), "macro_f1": pytest.approx(100 * count / (count + 21))}
    assert scores["baselines"] == {f"always {label}": constant}
    assert scores["metrics"]["accuracy"] > 100 * count / 21


@pytest.mark.slow
def test_the_baseline_is_of_the_split_that_is_scored(monkeypatch, tmp_path):
    run = runs.copied_run(tmp_path, "classify")
    (tmp_path / "other.csv").write_text("text,label\nThe cat,no\nThe fox,yes\nThe dog,no\n")
    assert runs.call(monkeypatch, "eval", f"run={run}", "split=test", f"data.test={tmp_path}/other.csv") == 0
    record = json.loads((run / "eval_test.json").read_text())
    assert record["size"] == 3
    assert record["baselines"] == {"always no": {"accuracy": pytest.approx(200 / 3), "macro_f1": pytest.approx(40)}}
    assert len(given(run, "eval_test.labels.jsonl")) == 3


@pytest.mark.slow
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
    cfg = runs.checked(runs.composed(*groups))
    train(cfg, tmp_path / "run")
    summary = runs.summary_of(tmp_path / "run")
    counts = {name: summary["data"]["validation"][f"label {name}"] for name in cfg["data"]["labels"]}
    assert counts == {"entailment": 15, "neutral": 8, "contradiction": 7}
    constant = {"accuracy": 50.0, "macro_f1": pytest.approx(200 / 9)}
    assert summary["validation"]["baselines"] == {"always entailment": constant}
    assert (tmp_path / "run/samples/step_000003.txt").read_text().startswith("text      a ")
    assert "\nsecond    a " in (tmp_path / "run/samples/step_000003.txt").read_text()
    recipe = task_of(cfg)
    split = recipe.splits()["validation"]
    run = load_run(tmp_path / "run")
    pairs = ["\t".join(pair) for pair in zip(split.texts["text"], split.texts["second"], strict=True)]
    assert [json.loads(line)["label"] for line in run.generate(pairs)] == list(run.predictions["output"])
    with pytest.raises(DataError, match="a fox: expected two texts with a tab between them"):
        run.generate(["a fox"])
    types = recipe.collator(split)[MicroBatch([0], 1)]["types"][0].tolist()
    assert types == [0] * types.index(1) + [1] * types.count(1) and types.count(0) == types.count(1) + 1


@pytest.mark.slow
@pytest.mark.parametrize("task", ["classify", "document_classification", "image_classification", "vqa"])
def test_generate_writes_labels_and_probabilities_and_the_report_a_confusion_matrix(
    monkeypatch, tmp_path, capsys, task
):
    typed = ("task.max_steps=20", "callbacks.attention_stats.every_n_steps=0")
    runs.tiny_run(tmp_path / "run", *typed, task=task)
    run = load_run(tmp_path / "run")
    texts = run.task.splits(run.tokenizer)["validation"].texts
    columns = {"vqa": ("image", "question"), "image_classification": ("id",)}.get(task, ("text",))
    lines = ["\t".join(parts) for parts in zip(*(texts[column] for column in columns), strict=True)]
    (tmp_path / "in.txt").write_text("\n".join(lines) + "\n\n")
    capsys.readouterr()
    assert runs.call(monkeypatch, "generate", f"run={run.folder}", f"input={tmp_path}/in.txt", "chunk=7") == 0
    *written, empty = capsys.readouterr().out.splitlines()
    table, written = run.predictions, [json.loads(line) for line in written]
    assert empty == "" and [it["label"] for it in written] == list(table["output"])
    matrices, shown = collect([tmp_path]).tasks[0].confusions, table[~table["selecting"]]
    if task == "vqa":  # its probabilities are of each answer by itself, and its references are several
        assert all(len(it["probabilities"]) == 5 for it in written) and matrices == []
        return
    for it, reference, loss in zip(written, table["reference"], table["loss_sum"], strict=True):
        shares = it["probabilities"]
        assert sum(shares.values()) == pytest.approx(1, abs=1e-5) and shares[it["label"]] == max(shares.values())
        assert shares[reference] == pytest.approx(math.exp(-loss), abs=1e-5)
    pairs = Counter(zip(shown["reference"], shown["output"], strict=True))
    labels = sorted({label for pair in pairs for label in pair})
    if len(labels) == 1:  # as in the half of the documents that is compared
        assert matrices == []
        return
    [matrix] = matrices
    assert [column.name for column in matrix.columns[1:]] == [row[0].text for row in matrix.rows] == labels
    for label, (_, *cells) in zip(labels, matrix.rows, strict=True):
        counts = [pairs[label, other] for other in labels]
        expected = [f"{count / sum(counts):.0%} ({count})" if count else "0" for count in counts]
        assert [cell.text for cell in cells] == expected
