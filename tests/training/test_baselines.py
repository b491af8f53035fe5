"""A model that does not beat its baseline: who is told, and what to raise."""

from types import SimpleNamespace

import pytest
import runs

from attnorm.settings import TrainerConfig
from attnorm.tasks.results import Results
from attnorm.training import baselines


def scores(metrics, **found):
    return Results("validation", "pairs", 9, metrics, baselines=found)


def cfg(max_steps=None, max_epochs=None):
    return SimpleNamespace(trainer=TrainerConfig(max_steps=max_steps, max_epochs=max_epochs))


@pytest.mark.parametrize(
    ("metrics", "found", "told"),
    [
        ({"rouge1": 13.2, "loss": 4.0}, {"rouge1": 29.0}, "below the simple baseline b: ROUGE-1 F1 13.20 a"),
        ({"rouge1": 29.1, "rouge2": 1.0}, {"rouge1": 29.0, "rouge2": 9.0}, None),  # the first metric is the main one
        ({"loss": 1.0, "accuracy": 50.0}, {"accuracy": 50.0}, "no better than the simple baseline b: accuracy 50.00"),
        ({"loss": 1.5}, {"loss": 1.25}, "below the simple baseline b: loss 1.500 against 1.250."),
        ({"loss": 1.0}, {"loss": 1.25}, None),
        ({"perplexity": 3.0}, {"perplexity": 2.0}, "perplexity 3.00 against 2.00"),
        ({"f1": float("nan")}, {"f1": 2.0}, None),
        ({}, {"accuracy": 2.0}, None),  # nothing was scored
    ],
)
def test_a_baseline_that_is_not_beaten_is_told_once(metrics, found, told):
    sentences = baselines.unbeaten(scores(metrics, b=found))
    assert len(sentences) == (told is not None)
    assert told is None or told in sentences[0]
    assert baselines.unbeaten(scores(metrics)) == []  # no baseline, no message
    assert baselines.unbeaten(scores({"wer": 9.0}, b={"wer": 5.0}), {"wer": "min"})  # as the task declares it


@pytest.mark.parametrize(
    ("limits", "steps", "epoch", "named"),
    [
        ({}, 800, 1000, "task.max_steps"),
        ({}, 801, 1, "task.max_steps"),
        ({"max_steps": 900}, 900, 1, "trainer.max_steps"),
        ({"max_epochs": 1}, 9, 9, "trainer.max_epochs"),
        ({"max_epochs": 100, "max_steps": 900}, 900, 9, "trainer.max_epochs and trainer.max_steps"),
    ],
)
def test_the_limits_that_count_are_to_be_raised(limits, steps, epoch, named):
    [warning] = baselines.warnings_of(scores({"f1": 1.0}, b={"f1": 2.0}), cfg(**limits), steps, steps, epoch)
    assert warning.endswith(f"To train longer, raise {named}.")
    assert f"{steps:,} updates = {steps / epoch:.1f} epochs over the training data" in warning
    assert ("The likely cause is too few updates" in warning) == (steps < 10 * epoch)


def test_a_run_that_stopped_early_needs_another_remedy():
    [warning] = baselines.warnings_of(scores({"f1": 1.0}, b={"f1": 2.0}), cfg(), 300, 800, 100)
    assert "before the 800 planned updates, after 300 updates = 3.0 epochs" in warning
    assert "callbacks.early_stopping.patience" in warning and "max_steps" not in warning


@pytest.mark.slow
@pytest.mark.parametrize("task", ["mlm", "squad", "classify", "vqa"])
def test_each_task_records_whether_it_beats_its_baseline(task):
    summary = runs.summary_of(runs.finished_run(task))
    validation = summary["validation"]
    expected = baselines.unbeaten(Results("", "", 0, validation["metrics"], baselines=validation["baselines"]))
    assert all(warning.startswith(text) for warning, text in zip(summary["warnings"], expected, strict=True))


def test_eval_tells_that_a_model_is_below_its_baseline(monkeypatch, tmp_path, capsys):
    run = runs.copied_run(tmp_path)
    assert runs.call(monkeypatch, "eval", f"run={run}") == 0
    assert "The model scores below the simple baseline lead-8: ROUGE-1 F1" in capsys.readouterr().out
