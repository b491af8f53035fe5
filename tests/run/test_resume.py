"""Resuming: exact wherever a run stopped, refused when the checkpoint belongs to another run."""

import multiprocessing
import re
from pathlib import Path

import pytest
import runs
from marks import slow

from attnorm.cli import train as front
from attnorm.errors import ConfigError, RunError
from attnorm.run import writing
from attnorm.tasks.task import Task

SHORT = ("attention=hnas", "data.train_size=60")  # 6 updates per epoch
LENGTHS = {
    "max_epochs": ("trainer.max_epochs=3",),
    "max_steps": ("trainer.max_steps=14",),
    "both": ("trainer.max_epochs=3", "trainer.max_steps=14"),
}


def last(run: Path) -> str:
    return f"ckpt_path={run}/checkpoints/last.ckpt"


def in_mid_update(trainer, index):
    return trainer.global_step == 3 and index % 4 == 1


@pytest.mark.parametrize(
    ("length", "step", "extra"),
    [
        ("max_epochs", 3, ()),
        slow("max_epochs", 4, ("trainer.val_check_interval=4",)),
        slow("max_epochs", 6, ()),
        slow("max_epochs", 7, ()),
        slow("max_epochs", 9, ("trainer.accumulate_grad_batches=2",)),
        slow("max_steps", in_mid_update, ("trainer.accumulate_grad_batches=4",)),
        slow("max_epochs", 8, ("data.num_workers=1", "data.prefetch_factor=3")),
        slow("max_steps", 9, ("data.num_workers=1", "trainer.accumulate_grad_batches=2")),
        slow("both", 3, ()),
        slow("both", 13, ()),
        slow("both", 12, ("trainer.val_check_interval=4",)),
        slow("both", 14, ()),  # during the last validation
        slow("max_epochs", 5, ("trainer.limit_train_batches=0.5",)),
        slow("max_steps", 8, ("trainer.log_every_n_steps=5",)),  # between two rows, which hold means
        slow("max_steps", 3, ("trainer.val_check_interval=2", "data.batch_tokens=300")),  # several validation batches
        slow("max_steps", 5, ("optimizer.freeze=[encoder]", "optimizer.lr_factors={decoder: 0.5, cross: 0.1}")),
    ],
)
def test_a_run_resumed_after_any_update_equals_one_that_never_stopped(monkeypatch, tmp_path, length, step, extra):
    overrides = (*SHORT, *LENGTHS[length], *extra)
    first = runs.stopped(monkeypatch, tmp_path / "first", step, *overrides)
    assert runs.load(first)["global_step"] == (4 if step is in_mid_update else step)
    runs.tiny_run(tmp_path / "second", *overrides, last(first))
    assert runs.same_run(runs.uninterrupted(*overrides), tmp_path / "second")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("length", "longer", "extra"),
    [
        ("trainer.max_steps=3", "trainer.max_steps=8", ("trainer.limit_train_batches=3",)),
        ("trainer.max_steps=4", "trainer.max_steps=8", ("trainer.val_check_interval=10",)),  # before any validation
        ("trainer.max_steps=4", "trainer.max_steps=8", ("trainer.val_check_interval=3",)),  # between validations
        ("trainer.max_epochs=1", "trainer.max_epochs=3", ("trainer.limit_train_batches=4",)),
        ("trainer.max_epochs=1", "trainer.max_epochs=2", ()),
    ],
)
def test_a_finished_run_that_goes_on_equals_one_that_never_stopped(tmp_path, length, longer, extra):
    overrides = (*SHORT, "scheduler=constant", "trainer.val_check_interval=2", *extra)
    runs.tiny_run(tmp_path / "first", *overrides, length)
    runs.tiny_run(tmp_path / "second", *overrides, longer, last(tmp_path / "first"))
    whole = runs.uninterrupted(*overrides, longer)
    assert runs.different_ends(whole, tmp_path / "second") == []


@pytest.mark.slow
def test_a_checkpoint_without_its_best_one_beside_it_can_be_resumed(tmp_path):
    overrides = (*SHORT, *LENGTHS["both"])
    alone = tmp_path / "last.ckpt"
    alone.write_bytes((runs.uninterrupted(*overrides) / "checkpoints/last.ckpt").read_bytes())
    summary = runs.tiny_run(tmp_path / "second", *overrides, "run.keep_best=2", f"ckpt_path={alone}")
    assert (summary["best_step"], summary["state"]) == (14, "finished")


@pytest.mark.slow
def test_a_run_that_was_killed_before_its_settings_were_recorded_passes_its_curves_on(monkeypatch, tmp_path):
    overrides = (*SHORT, *LENGTHS["both"])

    def kill(path, content):
        raise KeyboardInterrupt

    first = runs.stopped(monkeypatch, tmp_path / "first", 9, *overrides)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(writing, "write_json", kill)
        runs.tiny_run(tmp_path / "second", *overrides, last(first))
    runs.tiny_run(tmp_path / "third", *overrides, last(tmp_path / "second"))
    assert runs.metric_rows(tmp_path / "third") == runs.metric_rows(runs.uninterrupted(*overrides))


def refused(*overrides: str, folder: Path, task: str = "gigaword") -> list[str]:
    """The problems of a run that must not start."""
    with pytest.raises(ConfigError) as caught:
        runs.tiny_run(folder, *overrides, task=task)
    assert "model.init=" in caught.value.problems[-1]  # what to do instead
    return caught.value.problems[:-1]


CHANGED = {
    "seed=2": "1",
    "scheduler.decay=constant": "linear",
    "optimizer.betas=[0.9,0.99]": r"\[0.9, 0.98\]",
    "data.batch_tokens=900": "1000",
    "data.train_size=50": "60",
    "data.lowercase=false": "True",
    "model.dropout=0.2": "0.1",
    "attention.encoder=dnas": "hnas",
    "tokenizer.vocab_size=310": "300",
    "task.label_smoothing=0.0": "0.1",
    "trainer.gradient_clip_val=null": "1.0",
    "trainer.precision=64-true": "32-true",
}


@pytest.mark.slow
def test_a_setting_that_decides_the_training_has_to_be_that_of_the_run(monkeypatch, tmp_path):
    run = runs.uninterrupted(*SHORT, *LENGTHS["both"])
    monkeypatch.setattr(Task, "splits", lambda *_: pytest.fail("data was read"))
    problems = refused(*SHORT, *LENGTHS["both"], "attention=dnas", *CHANGED, last(run), folder=tmp_path)
    for change, had in CHANGED.items():
        key = change.split("=")[0]
        [problem] = [problem for problem in problems if problem.startswith(f"{key}=")]
        assert re.fullmatch(rf"{key}=.*: the run being resumed has {had}", problem)


def test_what_does_not_decide_the_training_may_change():
    run = runs.uninterrupted(*SHORT, *LENGTHS["both"])
    changed = "trainer.max_steps=15 callbacks.progress.samples=1 data.num_workers=1 task.rouge_pairs=3 tags=[again]"
    assert runs.tiny(*SHORT, *LENGTHS["both"], *changed.split(), last(run))


@pytest.mark.slow
def test_two_runs_of_the_same_second_get_a_folder_each(tmp_path):
    asked = tmp_path / "hnas/2026-01-01_00-00-00"
    with multiprocessing.get_context("fork").Pool(8) as pool:
        claimed = pool.map(front.claim_folder, [asked] * 16)
    assert len(set(claimed)) == 16
    assert all((folder / "config.yaml").is_file() for folder in claimed)
    assert asked in claimed and asked.with_name(f"{asked.name}_16") in claimed


def test_a_new_run_leaves_the_files_of_a_sweep_and_of_a_run_without_settings_alone(tmp_path):
    for name in ("sweep/jobs.jsonl", "curves/metrics.csv", "saved/checkpoints/last.ckpt"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    assert front.claim_folder(tmp_path / "sweep") == tmp_path / "sweep_2"
    for name in ("curves", "saved"):
        with pytest.raises(RunError, match="has files of a run, but no config"):
            front.claim_folder(tmp_path / name)
    assert sorted(path.name for path in tmp_path.rglob("config.yaml")) == ["config.yaml"]


@pytest.mark.slow
def test_a_second_run_in_a_typed_folder_leaves_the_first_one_alone(monkeypatch, tmp_path):
    typed = (*runs.tiny_overrides(), "task.max_steps=1", f"hydra.run.dir={tmp_path}/run")
    for seed in (1, 2):
        assert runs.call(monkeypatch, "train", *typed, f"seed={seed}") == 0
    assert [runs.summary_of(tmp_path / name)["seed"] for name in ("run", "run_2")] == [1, 2]
