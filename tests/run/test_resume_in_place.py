"""`resume=`: a run continues in its own folder, from its newest good checkpoint, as if it had never stopped."""

import functools
import hashlib
import itertools
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import probe_parts
import pytest
import runs
import sentencepiece
import yaml
from marks import slow

from attnorm.analysis.arms import arms_of, find_runs
from attnorm.analysis.loaded_run import load_run
from attnorm.cli.train import resume_in
from attnorm.config.compose import plain_settings
from attnorm.config.read import read_settings
from attnorm.config.recorded import recorded_settings
from attnorm.errors import SIGNALS, ConfigError, RunError
from attnorm.run import writing
from attnorm.run.csv_files import read_csv
from attnorm.run.folder import LOCK, FolderLock, RunState, folder_lock
from attnorm.run.record import modules_in, run_key
from attnorm.run.resume import newest_good
from attnorm.run.run import Run
from attnorm.sweeps.state import holders
from attnorm.tasks.task import Task
from attnorm.testing.records import without
from attnorm.training import processes
from attnorm.training.callbacks import checkpointing
from attnorm.training.callbacks.checkpointing import Checkpoints
from attnorm.training.callbacks.graceful_stop import GracefulStop
from attnorm.training.train import train

SHORT = ("attention=hnas", "data.train_size=60", "trainer.max_steps=14")  # 6 updates per epoch


class Crash(Exception):
    """Planted: a run ends at once, without saving."""


@pytest.fixture(scope="module")
def straight() -> Path:
    """A run that was never interrupted."""
    return runs.uninterrupted(*SHORT)


@functools.cache
def _stopped(step: int, *overrides: str) -> Path:
    folder = runs.scratch("resume-in-place") / "-".join(("stopped", str(step), *overrides))
    with pytest.MonkeyPatch.context() as patch:
        return runs.stopped(patch, folder, step, *SHORT, *overrides)


def stopped_at_5(folder: Path) -> Path:
    """A copy of a run that was stopped before its first validation, which comes after update 7."""
    return Path(shutil.copytree(_stopped(5), folder))


def stopped_at_9(folder: Path) -> Path:
    """A copy of a run that was stopped after its first validation, with a checkpoint from after it."""
    return Path(shutil.copytree(_stopped(9, "run.save_every_steps=4"), folder))


def resume(folder: Path, *arguments: str) -> dict:
    """`train.py resume=<folder> <arguments>`; the summary."""
    assert resume_in(folder, [f"resume={folder}", *arguments]) == 0
    return runs.summary_of(folder)


def crashed(monkeypatch, folder: Path, owner: type, name: str, call: int, *overrides: str, task="gigaword") -> Path:
    """A run that ends at once at the `call`-th call of `owner.name`, and leaves no summary, as after kill -9."""
    calls = []

    def crash(*_, **__) -> None:
        calls.append(1)
        if len(calls) == call:
            raise Crash

    with monkeypatch.context() as patch, pytest.raises(Crash):
        runs.before(patch, owner, name, crash)
        runs.tiny_run(folder, *overrides, task=task)
    (folder / "summary.json").unlink()
    return folder


# where it continues


@pytest.mark.parametrize("step", [slow(1), 5, slow(7), slow(13)])
def test_a_stopped_run_continues_in_its_folder(monkeypatch, tmp_path, straight, step):
    run = runs.stopped(monkeypatch, tmp_path / "run", step, *SHORT)
    settings = Run(run).config
    assert Run(run).state == RunState.INTERRUPTED
    assert resume(run)["state"] == "finished"
    assert runs.same_run(straight, run)
    cost = runs.summary_of(straight)["checkpoints"]
    assert cost["saved"] == 3 and 0 < cost["seconds"] < 5
    assert Run(run).config == settings == yaml.safe_load((run / "config.yaml").read_text())
    [change] = Run(run).recorded["resumed"]
    assert change.keys() <= {"started", "command", "modules.runs"}
    if "started" in change:  # both starts may be in one second
        assert change["started"][1] == Run(run).recorded["started"]
    assert {it for it in runs.files_of(run) if not it.startswith("figures/")} == runs.files_of(straight)


def test_a_run_continues_with_the_tokenizer_that_it_has_trained(monkeypatch, tmp_path):
    """Another version of a library may train another one: here, without a text for unknown characters."""
    cache, trained = tmp_path / "cache", sentencepiece.SentencePieceTrainer.train
    overrides = (*SHORT[:2], "trainer.max_steps=3", f"paths.cache_dir={cache}")
    with monkeypatch.context() as patch:
        older = staticmethod(lambda **options: trained(**without(options, "unk_surface")))
        patch.setattr(sentencepiece.SentencePieceTrainer, "train", older)
        runs.tiny_run(tmp_path / "straight", *overrides)
        run = runs.stopped(patch, tmp_path / "run", 1, *overrides)
    shutil.rmtree(cache)
    model = (run / "sentencepiece.model").read_bytes()
    assert resume(run)["state"] == "finished" and model == (run / "sentencepiece.model").read_bytes()
    assert runs.same_run(tmp_path / "straight", run)


@pytest.mark.slow
def test_a_run_that_is_resumed_after_an_edit_has_both_versions(monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("ATTNORM_TRUST", "probe_parts")
    run = runs.stopped(monkeypatch, tmp_path / "run", 5, *SHORT[1:], "attention.encoder=probe_parts.Slopes")
    record, digest = runs.record_of(run), hashlib.sha256(Path(probe_parts.__file__).read_bytes()).hexdigest()[:16]
    assert record["modules"]["probe_parts"] == digest
    record["modules"]["probe_parts"] = "0" * 16
    (run / "run.json").write_text(json.dumps(record))
    resume(run)
    record = runs.record_of(run)
    assert record["modules"]["probe_parts"] == digest
    assert record["resumed"][0]["modules.probe_parts"] == ["0" * 16, digest]
    assert modules_in(record)["probe_parts"] == [digest, "0" * 16] and "probe_parts was edited" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "call"),
    [*(("gigaword", call) for call in (1, 4, 9)), ("mlm", 9), ("squad", 4), ("classify", 1), ("vqa", 4)],
)
def test_a_killed_run_continues_from_its_last_checkpoint(monkeypatch, tmp_path, task, call):
    overrides = ("attention=hnas", "trainer.max_epochs=2", "task.validations=2", "run.save_every_steps=2")
    whole = runs.uninterrupted(*overrides, task=task)
    steps = runs.summary_of(whole)["steps"]
    killed = (tmp_path / "run", Checkpoints, "on_train_batch_end", min(call, steps))
    run = crashed(monkeypatch, *killed, *overrides, task=task)
    assert Run(run).state == RunState.KILLED
    resume(run)
    assert runs.same_run(whole, run)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "call", "saved", "overrides"),  # saved: the update of the last checkpoint; None: there is none
    [
        (Checkpoints, "on_train_start", 1, None, ()),
        (Checkpoints, "on_train_batch_end", 1, 0, ()),  # the start of the run is saved before the first update
        (Checkpoints, "on_train_batch_end", 1, 0, ("trainer.log_every_n_steps=2",)),
        (checkpointing, "replace_by_copy", 1, 7, ()),  # a best checkpoint was saved and not copied
        (checkpointing, "replace_by_copy", 2, 14, ()),
        (GracefulStop, "on_validation_batch_end", 3, ..., ("data.batch_tokens=300",)),  # in mid-validation
        (GracefulStop, "on_validation_end", 2, ..., ("data.batch_tokens=300",)),  # before the checkpoint of the second
        (GracefulStop, "on_train_batch_start", 6, ..., ("trainer.accumulate_grad_batches=2", "run.save_every_steps=1")),
        (GracefulStop, "on_train_epoch_end", 1, ..., ("run.save_every_steps=1", "data.num_workers=1")),
        (GracefulStop, "on_train_epoch_end", 2, ..., ("trainer.max_epochs=3",)),
        (GracefulStop, "on_train_end", 1, ..., ("trainer.max_epochs=2",)),
    ],
)
def test_a_run_continues_exactly_wherever_it_was_killed(monkeypatch, tmp_path, owner, name, call, saved, overrides):
    run = crashed(monkeypatch, tmp_path / "run", owner, name, call, *SHORT, *overrides)
    found = runs.load(run)["global_step"] if (run / "checkpoints").exists() else None
    assert saved in (found, ...)
    resume(run)
    assert runs.same_run(runs.uninterrupted(*SHORT, *overrides), run)


@pytest.mark.slow
def test_an_update_that_was_saved_but_not_logged_is_logged(monkeypatch, tmp_path, straight):
    """Lightning logs an update after the hook in which it is saved."""
    saved = Checkpoints._save

    def save(self, trainer):
        saved(self, trainer)
        if trainer.global_step == 3:
            raise Crash

    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(Checkpoints, "_save", save)
        runs.tiny_run(tmp_path / "run", *SHORT, "run.save_every_steps=3")
    assert max(int(row["step"]) for row in read_csv(tmp_path / "run/metrics.csv") if row["train/loss"]) == 2
    resume(tmp_path / "run")
    assert runs.same_run(straight, tmp_path / "run")


EQUAL = (*SHORT, "run.keep_best=2", "task.validations=4", "optimizer.lr=1e-30")  # the first two validations are best


@pytest.fixture(scope="module")
def copied_from(tmp_path_factory) -> tuple[Path, Path]:
    """A run whose validations are all equal, and one that was stopped, to be copied."""
    place = tmp_path_factory.mktemp("equal")
    runs.tiny_run(place / "whole", *EQUAL)
    with pytest.MonkeyPatch.context() as patch:
        return place / "whole", runs.stopped(patch, place / "first", 9, *EQUAL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "call"),
    [slow("replace_by_copy", 1), slow("replace_by_copy", 3), slow("write_json", 1), ("cut_history", 1)],
)
def test_a_run_killed_while_it_copies_another_is_none_yet_or_can_be_resumed(
    monkeypatch, tmp_path, copied_from, name, call
):
    whole, first = copied_from[0], Path(shutil.copytree(copied_from[1], tmp_path / "first"))
    before = {path: (first / path).read_bytes() for path in runs.files_of(first)}
    alone = f"ckpt_path={first}/checkpoints/last.ckpt"
    run = crashed(monkeypatch, tmp_path / "run", writing, name, call, *EQUAL, alone)
    if name == "cut_history":  # its settings are recorded, and so it has all copies
        shutil.move(first, tmp_path / "elsewhere")
        resume(run)
        assert runs.record_of(run)["settings"]["ckpt_path"] == alone.removeprefix("ckpt_path=")
    else:
        assert Run(run).state == RunState.ABSENT
        assert {path: (first / path).read_bytes() for path in runs.files_of(first)} == before
        run = tmp_path / "again"
        runs.tiny_run(run, *EQUAL, alone)
    assert runs.different_ends(whole, run) == []
    assert runs.metric_rows(run) == runs.metric_rows(whole)
    for name in ("best", "best_2"):
        assert runs.load(run, name)["global_step"] == runs.load(whole, name)["global_step"]


@pytest.mark.slow
def test_a_run_that_failed_while_it_was_scored_is_scored_again(monkeypatch, tmp_path, straight):
    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(Task, "evaluate", lambda *_: (_ for _ in ()).throw(Crash()))
        runs.tiny_run(tmp_path / "run", *SHORT)
    assert Run(tmp_path / "run").state == RunState.FAILED
    assert resume(tmp_path / "run")["validation"]["metrics"] == runs.summary_of(straight)["validation"]["metrics"]
    assert runs.same_run(straight, tmp_path / "run")


def test_a_finished_run_is_left_alone(straight, capsys):
    before = (straight / "summary.json").read_text()
    assert resume_in(straight, [f"resume={straight}"]) == 0
    assert "this run is finished" in capsys.readouterr().out
    assert (straight / "summary.json").read_text() == before


@pytest.mark.slow
@pytest.mark.parametrize("frequency", [1, 2])
@pytest.mark.parametrize(("hook", "steps"), [("on_validation_end", (3, 6)), ("on_train_batch_end", (4,))])
def test_a_scheduler_that_watches_a_metric_is_resumed_exactly(monkeypatch, tmp_path, frequency, hook, steps):
    """Lightning would leave out a step that is due when the checkpoint is saved."""
    plateau = "_target_: torch.optim.lr_scheduler.ReduceLROnPlateau, factor: 0.1, patience: 0, threshold: 10.0"
    scheduler = yaml.safe_load(f"{{{plateau}, monitor: val/loss, frequency: {frequency}}}")
    settings = runs.tiny(*SHORT, "trainer.val_check_interval=3", "run.save_every_steps=1").settings
    settings = {**settings, "scheduler": scheduler}
    train(read_settings(settings), tmp_path / "whole")
    rates = [row["train/lr"] for row in read_csv(tmp_path / "whole/metrics.csv") if row["train/lr"]]
    assert len(set(rates)) > 1
    for step in steps:  # 6 is also the end of an epoch

        def crash(self, trainer, *_, step=step):
            if trainer.global_step == step:
                raise Crash

        folder = tmp_path / str(step)
        with monkeypatch.context() as patch, pytest.raises(Crash):
            patch.setattr(Checkpoints, hook, followed(getattr(Checkpoints, hook), crash))
            train(read_settings(settings), folder)
        (folder / "summary.json").unlink()
        resume(folder)
        assert runs.same_run(tmp_path / "whole", folder), step


def followed(method, action):
    """A method after which `action` is called."""

    def both(self, *arguments):
        method(self, *arguments)
        action(self, *arguments)

    return both


def auto(monkeypatch, folder: Path, *overrides: str) -> int:
    typed = (*runs.tiny_overrides(), *SHORT, *overrides, f"paths.log_dir={folder}", "resume=auto")
    return runs.call(monkeypatch, "train", *typed)


@pytest.mark.slow
def test_auto_continues_the_newest_unfinished_run_of_the_same_settings(monkeypatch, tmp_path, straight, capsys):
    parent = tmp_path / "gigaword/hnas"
    for number, overrides in enumerate([(), (), ("seed=2",)]):
        runs.stopped(monkeypatch, parent / str(number), 5, *SHORT, *overrides)
        os.utime(parent / str(number) / "run.json", (number, number))
    assert auto(monkeypatch, tmp_path) == 0
    assert f"continuing {parent / '1'}" in capsys.readouterr().out
    assert [Run(parent / str(number)).state for number in range(3)] == ["interrupted", "finished", "interrupted"]
    assert runs.same_run(straight, parent / "1")
    assert auto(monkeypatch, tmp_path) == 0  # the next older one
    assert [Run(parent / str(number)).state for number in range(3)] == ["finished", "finished", "interrupted"]
    assert auto(monkeypatch, tmp_path, "trainer.max_steps=1") == 0
    assert "no unfinished run with these settings, so a new one starts" in capsys.readouterr().out
    assert len(list(parent.iterdir())) == 4


@pytest.mark.slow
def test_the_key_of_a_run_is_that_of_its_folder_and_leaves_out_what_does_not_train(straight):
    recorded = runs.record_of(straight)["settings"]
    assert run_key(recorded) == run_key(
        runs.tiny(*SHORT, "tags=[a]", "paths.log_dir=/elsewhere", "run.keep_best=2").settings
    )
    different = ("seed=2", "model.dropout=0.2", "trainer.max_steps=15", "task.rouge_pairs=5", "attention=dnas")
    keys = {
        run_key(runs.tiny(*SHORT[1:], "attention=hnas" if change != different[-1] else change, change).settings)
        for change in different
    }
    assert len(keys | {run_key(recorded)}) == len(different) + 1


@pytest.mark.slow
def test_the_previous_checkpoint_replaces_a_damaged_one_and_the_user_is_told(tmp_path, straight, caplog):
    run = stopped_at_9(tmp_path / "run")
    content = (run / "checkpoints/last.ckpt").read_bytes()
    (run / "checkpoints/last.ckpt").unlink()  # the file may be linked to another name
    (run / "checkpoints/last.ckpt").write_bytes(content[: len(content) // 2])
    assert newest_good(run) == run / "checkpoints/previous.ckpt"
    [message] = [it.getMessage() for it in caplog.records if it.levelname == "WARNING"]
    assert f"{run}/checkpoints/last.ckpt" in message and message.endswith("; continuing from previous.ckpt")
    resume(run)
    assert runs.same_run(straight, run)


@pytest.mark.slow
def test_a_checkpoint_of_another_run_is_not_continued_from(tmp_path, caplog):
    run = stopped_at_9(tmp_path / "run")
    other = runs.tiny_run(tmp_path / "other", *SHORT, "model.dropout=0.3", "trainer.max_steps=1")
    assert other["state"] == "finished"
    (run / "checkpoints/last.ckpt").unlink()
    os.link(tmp_path / "other/checkpoints/last.ckpt", run / "checkpoints/last.ckpt")
    assert newest_good(run) == run / "checkpoints/previous.ckpt"
    assert "this is a checkpoint of another run: model.dropout" in caplog.text


# what may change


@pytest.mark.slow
def test_settings_may_change_if_they_do_not_decide_the_training(tmp_path, straight):
    run = stopped_at_5(tmp_path / "run")
    resume(run, "++data.num_workers=1", "++callbacks.progress.samples=1", "~callbacks.early_stopping", "logger=csv")
    recorded = runs.record_of(run)["settings"]
    assert (recorded["data"]["num_workers"], recorded["callbacks"]["progress"]["samples"]) == (1, 1)
    assert "early_stopping" not in recorded["callbacks"]
    assert runs.different_ends(straight, run) == []


@pytest.mark.slow
def test_a_finished_run_can_be_made_longer(tmp_path):
    typed = ("attention=hnas", "data.train_size=60", "scheduler=constant")
    runs.tiny_run(tmp_path / "long", *typed, "trainer.max_steps=8", "trainer.val_check_interval=4")
    runs.tiny_run(tmp_path / "run", *typed, "trainer.max_steps=4", "trainer.val_check_interval=4")
    assert resume(tmp_path / "run", "++trainer.max_steps=8")["steps"] == 8
    assert runs.same_run(tmp_path / "long", tmp_path / "run")


@pytest.mark.slow
def test_a_run_can_be_made_longer_before_its_decay(monkeypatch, tmp_path):
    """The decay of 10 updates begins after the fifth, that of 14 after the seventh."""
    typed = ("attention=hnas", "data.train_size=60", "scheduler=wsd", "scheduler.warmup=2", "scheduler.decay_share=0.5")
    typed = (*typed, "trainer.val_check_interval=4")
    runs.tiny_run(tmp_path / "long", *typed, "trainer.max_steps=14")
    stable, late = (
        runs.stopped(monkeypatch, tmp_path / f"{step}", step, *typed, "trainer.max_steps=10") for step in (5, 6)
    )
    assert resume(stable, "++trainer.max_steps=14")["steps"] == 14
    assert runs.same_run(tmp_path / "long", stable)
    with pytest.raises(ConfigError, match=r"rates before update 7 .* and before its decay with scheduler=wsd"):
        resume(late, "++trainer.max_steps=14")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("group", "name", "value"),
    [
        ("attention", "encoder", "someones_module:Normalizer"),
        ("callbacks", "mine", {"_target_": "someones_module.Callback"}),
        ("logger", "mine", {"_target_": "someones_module.Logger"}),
        ("optimizer", "_target_", "someones_module.Optimizer"),
        ("scheduler", "_target_", "torch.hub.load"),
    ],
)
def test_code_of_other_packages_needs_trust(monkeypatch, tmp_path, group, name, value):
    run = runs.copied_run(tmp_path)
    (run / "summary.json").unlink()
    runs.edit(run, f"{group}.{name}", value)
    with pytest.raises(ConfigError, match="this run folder names code outside attnorm"):
        resume(run)
    with pytest.raises(BaseException) as caught:  # it is imported now
        resume(run, "trust_code=true")
    assert "names code" not in str(caught.value)


def test_a_run_that_was_extended_twice_is_that_of_the_last_settings(monkeypatch, tmp_path):
    """Whole numbers of any size, and texts that YAML would read as something else, come back as they were."""
    texts, typed = ["2020-01-01", "1e3", "null", "12:30:00"], ("scheduler=constant", f"data.corpus_seed={2**63}")
    run, tags = tmp_path / "run", f"tags=[{','.join(map(repr, texts))}]"
    config = runs.tiny(*typed, tags, "task.max_steps=2", "task.validations=1")
    train(config, run)
    assert Run(run).config == {**config.settings, "resume": None} and Run(run).config["tags"] == texts
    assert recorded_settings(run, [])[0]["tags"] == texts
    for steps in (3, 4):
        assert resume(run, f"task.max_steps={steps}")["steps"] == steps
    record = Run(run).recorded
    assert [start["settings.task.max_steps"] for start in record["resumed"]] == [[2, 3], [3, 4]]
    straight = runs.tiny(*typed, "task.max_steps=4", "task.validations=1")
    assert record["key"] == run_key(Run(run).config) == run_key(straight.settings)
    assert recorded_settings(run, [])[0]["task"]["max_steps"] == load_run(run).resolved.task.max_steps == 4
    assert runs.call(monkeypatch, "eval", f"run={run}") == 0
    assert json.loads((run / "eval_validation.json").read_text())["step"] in (1, 2, 3, 4)
    train(straight, tmp_path / "straight")
    assert [arm.runs[0].settings for arm in arms_of(find_runs([tmp_path]))] == [Run(tmp_path / "straight").settings]


@pytest.mark.parametrize("typed", ["attention.options.hnas={0:2}", "attention.options={hnas:{0:2}}"])
def test_a_mapping_with_keys_that_are_no_text_is_refused_before_training(typed):
    with pytest.raises(ConfigError, match=r"^attention.options.hnas=.*: the key 0 must be text, as in '0'$"):
        plain_settings(runs.composed("attention=hnas", typed))


# the lock


@pytest.mark.slow
def test_a_run_that_is_going_is_not_trained_again(tmp_path):
    run = stopped_at_5(tmp_path / "run")
    with folder_lock(run):
        assert Run(run).state == RunState.RUNNING
        code = "import sys; from attnorm.run.run import Run; print(Run(sys.argv[1]).state)"
        ended = subprocess.run([sys.executable, "-c", code, str(run)], capture_output=True, text=True)
        assert ended.stdout == "running\n"
        with pytest.raises(RunError, match=f"still going, in process {os.getpid()}"):
            runs.tiny_run(run, *SHORT)
    assert Run(run).state == RunState.INTERRUPTED


@pytest.mark.slow
def test_auto_starts_no_second_run_while_one_with_these_settings_is_going(monkeypatch, tmp_path, straight, capsys):
    run = tmp_path / "gigaword/hnas/1"
    run.mkdir(parents=True)
    shutil.copy(straight / "run.json", run)
    with folder_lock(run):
        assert auto(monkeypatch, tmp_path) == 2
    assert f"error: resume=auto: {run} is still going" in capsys.readouterr().err
    assert list(run.parent.iterdir()) == [run]


@pytest.mark.slow
def test_data_workers_do_not_hold_the_lock(monkeypatch, tmp_path):
    """They outlive the process of a killed run by some seconds."""
    seen = []

    def look(self, trainer, *_):
        loaded = (trainer.train_dataloader.prefetch_factor, len(multiprocessing.active_children()))
        seen.append((*loaded, holders(tmp_path / "run" / LOCK)))

    monkeypatch.setattr(GracefulStop, "on_train_batch_end", look)
    runs.tiny_run(tmp_path / "run", "data.num_workers=1", "data.prefetch_factor=3", "trainer.max_steps=1")
    assert seen == [(3, 1, [])]


def test_the_lock_ends_with_its_process_however_it_ends(tmp_path):
    code = (
        "import time, sys; from pathlib import Path; from attnorm.run.folder import FolderLock\n"
        "assert FolderLock(Path(sys.argv[1])).acquire(); print('held', flush=True); time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "held\n"
    assert FolderLock(tmp_path).holder() == child.pid and not FolderLock(tmp_path).acquire(patience=0)
    child.kill()
    child.wait()
    assert FolderLock(tmp_path).holder() is None and FolderLock(tmp_path).acquire(patience=0)


def test_a_run_whose_folder_is_moved_ends_and_makes_no_second_one(monkeypatch, tmp_path, straight):
    def move(self, trainer, *_):
        if trainer.global_step == 9:
            (tmp_path / "run").rename(tmp_path / "moved")

    with monkeypatch.context() as patch, pytest.raises(RunError, match="was moved or removed while its run was going"):
        runs.before(patch, Checkpoints, "on_train_batch_end", move)
        runs.tiny_run(tmp_path / "run", *SHORT, "run.save_every_steps=4")
    assert not (tmp_path / "run").exists() and Run(tmp_path / "moved").state == RunState.KILLED
    resume(tmp_path / "moved")
    assert runs.same_run(straight, tmp_path / "moved")


def test_a_folder_may_have_a_name_that_is_no_utf8(monkeypatch, tmp_path, capsys):
    name = os.fsdecode(b"caf\xe9")
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / name)
    typed = (*runs.tiny_overrides(), *SHORT, "trainer.max_steps=1", f"hydra.run.dir={tmp_path}/{name}/typed")
    assert runs.call(monkeypatch, "train", *typed) == 0 == runs.call(monkeypatch, "eval", "run=typed")
    assert "ATTNORM_RUN_FOLDER" not in os.environ
    assert len(load_run("typed").predictions)
    assert name in runs.record_of(Path("typed"))["command"][-1]
    assert runs.call(monkeypatch, "eval", f"run={tmp_path}/{name}/typed") == 2
    assert "is not UTF-8; enter the folder" in capsys.readouterr().err


# what is kept


@pytest.mark.slow
def test_as_many_best_checkpoints_are_kept_as_asked_for(tmp_path):
    runs.tiny_run(tmp_path, *SHORT, "run.keep_best=3", "task.validations=7")
    losses = {int(row["step"]): float(row["val/loss"]) for row in read_csv(tmp_path / "metrics.csv") if row["val/loss"]}
    best = sorted(losses, key=losses.__getitem__)[:3]
    assert [runs.load(tmp_path, name)["global_step"] for name in ("best", "best_2", "best_3")] == best
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        *("best.ckpt", "best_2.ckpt", "best_3.ckpt", "last.ckpt", "previous.ckpt")
    ]
    assert runs.summary_of(tmp_path)["best_step"] == best[0]


@pytest.mark.slow
def test_checkpoints_are_saved_at_the_updates_asked_for(monkeypatch, tmp_path):
    saved = []
    monkeypatch.setattr(Checkpoints, "_save", followed(Checkpoints._save, lambda _, it: saved.append(it.global_step)))
    runs.tiny_run(tmp_path / "steps", *SHORT, "run.save_every_steps=3")
    assert saved == [0, 3, 6, 7, 10, 13, 14]  # 7 and 14: the validations
    saved.clear()
    clock = iter(range(0, 10_000, 20))
    monkeypatch.setattr(checkpointing.time, "monotonic", lambda: next(clock))
    runs.tiny_run(tmp_path / "minutes", *SHORT, "run.save_every_minutes=1", "trainer.log_every_n_steps=0")  # no rows
    assert len(saved) > 4 and saved == sorted(set(saved))


@pytest.mark.slow
def test_progress_is_written_for_programs_that_watch(tmp_path):
    run = stopped_at_9(tmp_path / "run")
    progress = Run(run).progress
    validations = [float(row["val/loss"]) for row in read_csv(run / "metrics.csv") if row["val/loss"]]
    assert (progress["updates"], progress["monitor"]) == (14, "val/loss")
    assert progress["value"] == pytest.approx(validations[-1]) and progress["seconds_left"] >= 0
    killed = {"state": "running", "wall_seconds": 1000.0, "progress": progress}  # after so long a time
    (run / "summary.json").write_text(json.dumps(killed))
    assert Run(run).state is RunState.KILLED and Run(run).summary == {} and Run(run).progress == progress
    resume(run)
    progress = Run(run).progress
    assert (progress["step"], progress["seconds_left"]) == (14, 0)
    summary = runs.summary_of(run)
    assert progress["best_value"] == pytest.approx(summary["best_value"])
    assert 1000 < summary["wall_seconds"] < 1100


def test_a_job_of_slurm_is_requeued_after_it_has_been_saved_or_a_warning_is_given(monkeypatch, tmp_path, caplog):
    calls = tmp_path / "calls"
    (tmp_path / "scontrol").write_text(f'#!/bin/sh\necho "$@" >> {calls}\nls {tmp_path}/run/checkpoints >> {calls}\n')
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    requeuing, cases = (signal.SIGUSR1, signal.SIGUSR2), itertools.product(SIGNALS, (True, False))
    for number, resumes in cases:
        calls.unlink(missing_ok=True)
        with (
            pytest.raises(BaseException, match="stopped by"),
            processes.slurm_requeue(resumes),
            GracefulStop(Run(tmp_path)),
        ):
            os.kill(os.getpid(), number)
            time.sleep(1)
        assert calls.exists() == (resumes and number in requeuing)
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "5")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "2")
    processes.requeue()
    assert calls.read_text().startswith("requeue 5_2")
    caplog.clear()
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    processes.requeue()
    assert "could not requeue the SLURM job 5_2" in caplog.text
