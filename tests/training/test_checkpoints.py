"""Checkpoints: a save that fails leaves the old file whole, nothing else behind, and says what survives."""

import errno
import os

import pytest
import runs
import torch

from attnorm.training import checkpoints
from attnorm.training.checkpoints import AtomicCheckpointIO, replace_by_copy, sweep_unfinished

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
    assert os.listdir(path.parent) == ["last.ckpt"]


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


@pytest.mark.parametrize("fault", ["torch.save fails in mid-file", "fsync fails"])
def test_a_run_whose_disk_fills_up_keeps_a_checkpoint_that_loads(monkeypatch, tmp_path, fault):
    """The first save after the first validation's two fails."""
    saves = []
    original = torch.save

    def save(content, file):
        saves.append(file)
        if len(saves) == 3:
            FAULTS[fault](monkeypatch)
        return torch.save(content, file) if torch.save is not save else original(content, file)

    monkeypatch.setattr(torch, "save", save)
    with pytest.raises(OSError, match=r"No space left.*still good in that folder: last\.ckpt, best\.ckpt"):
        runs.tiny_run(tmp_path)
    monkeypatch.undo()
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["best.ckpt", "last.ckpt"]
    assert runs.load(tmp_path)["global_step"] == runs.load(tmp_path, "best")["global_step"] == 2
    assert '"finished": false' in (tmp_path / "summary.json").read_text()
    assert "No space left" in (tmp_path / "summary.json").read_text()


def test_a_copy_that_fails_leaves_the_target_as_it_was(monkeypatch, tmp_path):
    (tmp_path / "source").write_bytes(b"new")
    (tmp_path / "target").write_bytes(b"old")
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints.os, "replace", disk_full)
        with pytest.raises(OSError, match="No space left"):
            replace_by_copy(tmp_path / "source", tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == b"old"
    replace_by_copy(tmp_path / "source", tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == b"new"


def test_leftovers_of_a_killed_save_are_swept_and_checkpoints_stay(tmp_path):
    for name in ("last.ckpt", "best.ckpt", "last.ckpt.unfinished", "best.ckpt.unfinished"):
        (tmp_path / name).write_text(name)
    sweep_unfinished(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["best.ckpt", "last.ckpt"]
    sweep_unfinished(tmp_path / "not there")


def test_a_run_sweeps_its_folder_at_its_start(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/last.ckpt.unfinished").write_bytes(b"torn")
    runs.tiny_run(tmp_path, "debug=fdr")
    assert os.listdir(tmp_path / "checkpoints") == []


def test_checkpoints_load_without_running_code():
    """weights_only: nothing in them but tensors and plain values."""
    for name in ("best", "last"):
        content = torch.load(runs.finished_run() / f"checkpoints/{name}.ckpt", weights_only=True)
        assert content["global_step"] == 4
        assert set(content["random_streams"][0]) >= {"cpu"}
