"""Checkpoints: a save that fails leaves the old file whole, nothing else behind, and says what survives."""

import errno
import fcntl
import os
import re
import shutil
import stat
from pathlib import Path

import pytest
import runs
import torch

from attnorm.errors import CheckpointError, ConfigError
from attnorm.files import write_text
from attnorm.run.checkpoint import read_checkpoint, replace_by_copy
from attnorm.run.csv_files import CsvTable
from attnorm.run.folder import LOCK, FolderLock
from attnorm.training.callbacks.checkpointing import AtomicCheckpointIO

OLD, NEW = ({"state_dict": {"w": fill(1000)}, "global_step": 1} for fill in (torch.zeros, torch.ones))


def disk_full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def torn_by_an_oserror(content, file):
    file.write(b"half a checkpoint")
    disk_full()


def torn_by_torch(content, file):
    """torch reports a failed write as a RuntimeError of its own."""
    file.write(b"half a checkpoint")
    raise RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed")


FAULTS = {
    "torch.save fails in mid-file": lambda patch: patch.setattr(torch, "save", torn_by_an_oserror),
    "torch.save fails with its own error": lambda patch: patch.setattr(torch, "save", torn_by_torch),
    "fsync fails": lambda patch: patch.setattr(os, "fsync", disk_full),
    "the rename fails": lambda patch: patch.setattr(os, "replace", disk_full),
}


def loaded(path):
    return torch.load(path, weights_only=True)["state_dict"]["w"]


def test_what_is_saved_is_read_back_and_the_old_file_replaced(tmp_path):
    path = tmp_path / "made/last.ckpt"
    for content in (OLD, NEW):
        AtomicCheckpointIO().save_checkpoint(content, path)
        assert torch.equal(loaded(path), content["state_dict"]["w"])
    assert sorted(os.listdir(path.parent)) == ["last.ckpt", "previous.ckpt"]
    assert torch.equal(loaded(path.with_name("previous.ckpt")), OLD["state_dict"]["w"])


def test_the_file_is_flushed_before_it_is_renamed_and_the_folder_after(monkeypatch, tmp_path):
    calls = []
    replace, fsync = os.replace, os.fsync
    monkeypatch.setattr(os, "replace", lambda *paths: calls.append("replace") or replace(*paths))
    monkeypatch.setattr(os, "fsync", lambda number: calls.append("fsync") or fsync(number))
    AtomicCheckpointIO().save_checkpoint(NEW, tmp_path / "last.ckpt")
    assert calls == ["fsync", "replace", "fsync"]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_save_that_fails_leaves_the_old_checkpoint_and_nothing_else(monkeypatch, tmp_path, fault):
    path = tmp_path / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint(OLD, path)
    before = path.read_bytes()
    with monkeypatch.context() as patch:
        FAULTS[fault](patch)
        with pytest.raises(OSError, match=r"could not save the checkpoint .*last\.ckpt: .*still good .*: last\.ckpt\)"):
            AtomicCheckpointIO().save_checkpoint(NEW, path)
    assert path.read_bytes() == before
    assert torch.equal(loaded(path), OLD["state_dict"]["w"])
    assert os.listdir(tmp_path) == ["last.ckpt"]


@pytest.mark.parametrize(
    ("there", "words"),
    [
        ([], r"there was none before"),
        (["best"], r"still good in that folder: best\.ckpt"),
        (["best", "last"], r"still good in that folder: last\.ckpt, best\.ckpt"),
    ],
)
def test_a_save_that_fails_names_what_survives(monkeypatch, tmp_path, there, words):
    for name in there:
        AtomicCheckpointIO().save_checkpoint(OLD, tmp_path / f"{name}.ckpt")
    monkeypatch.setattr(torch, "save", torn_by_an_oserror)
    with pytest.raises(OSError, match=words):
        AtomicCheckpointIO().save_checkpoint(NEW, tmp_path / "last.ckpt")


def test_a_copy_that_fails_leaves_the_target_as_it_was(monkeypatch, tmp_path):
    (tmp_path / "source").write_bytes(b"new")
    (tmp_path / "target").write_bytes(b"old")
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", disk_full)
        with pytest.raises(OSError, match="No space left"):
            replace_by_copy(tmp_path / "source", tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == b"old"
    replace_by_copy(tmp_path / "source", tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == b"new"


def test_a_file_system_that_cannot_flush_a_folder_is_good_enough(monkeypatch, tmp_path):
    fsync = os.fsync

    def of_files(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", of_files)
    AtomicCheckpointIO().save_checkpoint(NEW, tmp_path / "last.ckpt")
    assert torch.equal(read_checkpoint(tmp_path / "last.ckpt")["state_dict"]["w"], NEW["state_dict"]["w"])


def no_locks(*_):
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


class TooMuch:
    """A value that does not fit on the disk."""

    __str__ = disk_full


@pytest.mark.parametrize(
    ("name", "fails"),
    [
        (LOCK, lambda file: FolderLock(file.parent).acquire()),
        ("a.csv", lambda file: CsvTable(file).append({"step": TooMuch()})),
        ("a.txt", lambda file: write_text(file, "a")),
    ],
)
def test_an_error_of_the_machine_names_its_file(monkeypatch, tmp_path, name, fails):
    """The system names none where a file is known by its descriptor."""
    monkeypatch.setattr(fcntl, "flock", no_locks)
    monkeypatch.setattr(Path, "write_bytes", disk_full)
    with pytest.raises(OSError, match=f"No .*{re.escape(str(tmp_path / name))}"):
        fails(tmp_path / name)


@pytest.mark.slow
def test_a_dry_run_keeps_no_checkpoint_and_sweeps_what_a_killed_save_has_left(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/last.ckpt.unfinished").write_bytes(b"torn")
    summary = runs.tiny_run(tmp_path, "debug=fdr")
    assert (summary["state"], summary["steps"]) == ("finished", 1)
    assert os.listdir(tmp_path / "checkpoints") == []


def tear(path):
    """Leaves the first half of a file."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("damage", ["torn", "not finite"])
@pytest.mark.parametrize("reader", ["eval", "generate", "resume", "warm start"])
def test_every_reader_refuses_a_damaged_checkpoint_and_names_the_intact_one(
    monkeypatch, tmp_path, capsys, reader, damage
):
    run = runs.copied_run(tmp_path, "mlm" if reader == "warm start" else "gigaword")
    name, other = ("last", "best") if reader == "resume" else ("best", "last")
    path = run / f"checkpoints/{name}.ckpt"
    if damage == "torn":
        tear(path)
    else:
        content = runs.load(run, name)
        tensor = next(iter(content["state_dict"].values()))
        tensor.view(-1)[0] = torch.nan
        AtomicCheckpointIO().save_checkpoint(content, path)
    monkeypatch.chdir(tmp_path)
    typed = {
        "eval": ("eval", f"run={run}"),
        "generate": ("generate", f"run={run}", "input=-"),
        "resume": ("train", *runs.tiny_overrides(), "attention=hnas", f"ckpt_path={path}"),
        "warm start": ("train", *runs.tiny_overrides("mlm"), f"model.init={run}"),
    }
    assert runs.call(monkeypatch, *typed[reader]) == 2
    [line] = [line for line in capsys.readouterr().err.splitlines() if line]
    words = r"damaged.*intact in that folder: .*{other}\.ckpt" if damage == "torn" else r"not finite.*\(1 of "
    assert line.startswith("error: ") and re.search(words.format(other=other), line)
    assert f"{path}: " in line or (reader, damage) == ("warm start", "not finite")


@pytest.mark.slow
def test_a_run_is_not_resumed_beside_a_best_checkpoint_that_could_not_be_scored_at_its_end(tmp_path):
    run = runs.copied_run(tmp_path)
    tear(run / "checkpoints/best.ckpt")
    typed = ("attention=hnas", f"ckpt_path={run}/checkpoints/last.ckpt")
    with pytest.raises(ConfigError, match=r"best\.ckpt: damaged.*intact in that folder: last\.ckpt"):
        runs.tiny_run(tmp_path / "resumed", *typed)
    shutil.copy(runs.finished_run("mlm") / "checkpoints/best.ckpt", run / "checkpoints")
    with pytest.raises(ConfigError, match=r"the run being resumed (?s:.*)best\.ckpt: resuming repeats"):
        runs.tiny_run(tmp_path / "resumed", *typed)
    assert not (tmp_path / "resumed").exists()
    (run / "checkpoints/best.ckpt").unlink()
    assert runs.tiny_run(tmp_path / "resumed", *typed)["steps"] == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda content: content.pop("loops"), "cannot be resumed from: it has no loops"),
        (lambda content: content.pop("pytorch-lightning_version"), "it has no pytorch-lightning_version"),
        (lambda content: content.update(optimizer_states=3), "it has no optimizer_states"),
        (lambda content: content.pop("run"), "it has no run"),
        (lambda content: content["run"].pop("settings"), "its record of the run is incomplete"),
        (lambda content: content["state_dict"].popitem(), "does not fit the model and the tokenizer: "),
    ],
)
def test_what_cannot_be_resumed_from_is_said(tmp_path, change, words):
    content = runs.load(runs.finished_run())
    change(content)
    AtomicCheckpointIO().save_checkpoint(content, tmp_path / "alone.ckpt")
    with pytest.raises(ConfigError, match=words):
        runs.tiny_run(tmp_path / "run", "attention=hnas", f"ckpt_path={tmp_path}/alone.ckpt")


def test_another_checkpoint_is_named_if_one_is_damaged(tmp_path):
    AtomicCheckpointIO().save_checkpoint(NEW, tmp_path / "last.ckpt")
    replace_by_copy(tmp_path / "last.ckpt", tmp_path / "best.ckpt")
    tear(tmp_path / "last.ckpt")
    assert torch.equal(read_checkpoint(tmp_path / "best.ckpt")["state_dict"]["w"], NEW["state_dict"]["w"])
    with pytest.raises(CheckpointError, match=r"last\.ckpt: damaged.*\(intact in that folder: best\.ckpt\)"):
        read_checkpoint(tmp_path / "last.ckpt")
