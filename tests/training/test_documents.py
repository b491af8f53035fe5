"""Document classification as whole runs: what they leave, and their attention by words and sentences."""

import pandas
import pytest
import runs

from attnorm.analysis.loaded_run import load_run
from attnorm.experiments.hierarchical.passages import Passages
from attnorm.tasks.task import selection_half

TASK = "document_classification"
KINDS = ("hierarchical_tiny", "flat_tiny")


@pytest.fixture(scope="module", params=KINDS)
def learned(request, tmp_path_factory):
    """(model, a run of it that has learned something)."""
    folder = tmp_path_factory.mktemp("learned") / "run"
    typed = ("task.max_steps=30", "callbacks.attention_stats.every_n_steps=0", f"model={request.param}")
    runs.tiny_run(folder, "attention=dnas", *typed, task=TASK)
    return request.param, folder


def rows(split="validation"):
    made = Passages(folder=str(runs.text_folder()), words=20, parts=8, validation=[3, 6], test=[1], gap=5)
    return list(made.rows(split))


def table(run):
    return pandas.read_parquet(run / "predictions/validation.parquet")


def test_predictions_hold_every_passage_with_its_text_and_part(learned):
    _, run = learned
    found, expected = table(run), rows()
    assert list(zip(found["id"], found["group"], found["reference"], strict=True)) == [
        (name, part, label) for _, part, label, name in expected
    ]
    right = found["reference"] == found["output"]
    assert list(found["accuracy"]) == [100.0 * it for it in right]
    summary = runs.summary_of(run)
    assert summary["validation"]["metrics"]["accuracy"] == pytest.approx(100 * right.mean())
    assert right.mean() > 0.9  # which animals it is about says it
    assert summary["primary"] == "accuracy" and summary["monitor"] == "val/accuracy"
    half = selection_half({part for _, part, _, _ in expected})  # whole parts, not single passages
    assert list(found["selecting"]) == [part in half for _, part, _, _ in expected]
    assert 0 < found["selecting"].mean() < 1


def test_attention_is_named_by_words_and_sentences(learned):
    model_name, run = learned
    layers = load_run(run).attention("The red cat likes fish. The owl sleeps.")
    word = layers["word"]
    assert "".join(word.keys).replace("##", "").startswith("theredcatlikesfish.theowl")
    if model_name == "flat_tiny":
        assert set(layers) == {"word"} and word.queries == [f"query {number}" for number in range(4)]
        return
    assert set(layers) == {"word", "sentence"}
    assert word.queries[3:5] == ["s0, query 3", "s1, query 0"]
    end = word.keys.index(".") + 1  # of the first sentence
    assert not word.weights[:, :4, end:].any() and not word.weights[:, 4:, :end].any()
    assert layers["sentence"].keys == ["sentence 0", "sentence 1"]
