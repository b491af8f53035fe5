"""A disk that is full, or becomes read-only, ends a run with a message. Later the run continues as if undisturbed."""

import ctypes
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import runs
from faulty import SETTINGS, check_nothing_lost, fork, straight

from attnorm.cli.errors import exit_code
from attnorm.cli.train import resume_in
from attnorm.training.callbacks.checkpointing import Checkpoints

pytestmark = pytest.mark.slow
NEW_MOUNTS = 0x00020000  # CLONE_NEWNS: what is mounted is seen by this process only
UNAVAILABLE = 77
CAPABILITIES_VERSION, OVERRIDE_PERMISSIONS = 0x20080522, 1  # _LINUX_CAPABILITY_VERSION_3, CAP_DAC_OVERRIDE


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True)


def in_own_mounts(work: Callable[[], None]) -> None:
    """Runs `work` in a process with mounts of its own. Skips the test where this is not allowed."""

    def isolated() -> None:
        if ctypes.CDLL(None).unshare(NEW_MOUNTS):
            os._exit(UNAVAILABLE)
        try:
            mount("--make-rprivate", "/")
        except (OSError, subprocess.CalledProcessError):
            os._exit(UNAVAILABLE)
        work()

    child = fork.Process(target=isolated)
    child.start()
    child.join()
    if child.exitcode == UNAVAILABLE:
        pytest.skip("needs the right to mount")
    assert child.exitcode == 0


def fill(folder: Path) -> None:
    """Leaves no free byte on the disk of a folder."""
    with open(folder / "filler", "wb", buffering=0) as file:
        try:
            while file.write(b"0" * 4096):
                pass
        except OSError:
            return


def fails_at_the_third_save(action: Callable[[], None]) -> None:
    """Calls `action` before the third checkpoint is saved."""
    saved, calls = Checkpoints._save, []

    def save(self, trainer) -> None:
        calls.append(1)
        if len(calls) == 3:
            action()
        saved(self, trainer)

    Checkpoints._save = save


def disturbed(folder: Path, happens: Callable[[], None], ends: Callable[[], None]) -> None:
    """A run whose third save fails; it continues when the fault has ended, and equals an undisturbed one."""
    whole, _ = straight("gigaword")
    fails_at_the_third_save(happens)
    assert exit_code(lambda: bool(runs.tiny_run(folder, *SETTINGS)) and 0) == 1
    ends()
    check_nothing_lost(folder)
    assert resume_in(folder, [f"resume={folder}"]) == 0
    assert runs.same_run(whole, folder)


def check_message(printed: str, folder: Path, reason: str) -> None:
    assert f"error: could not save the checkpoint {folder}/checkpoints/last.ckpt" in printed and reason in printed
    assert "still good in that folder: last.ckpt" in printed
    assert "Traceback" not in printed


def test_a_full_disk(tmp_path, capfd):
    straight("gigaword")

    def work() -> None:
        mount("-t", "tmpfs", "-o", "size=8m", "tmpfs", str(tmp_path))
        disturbed(tmp_path / "run", lambda: fill(tmp_path), (tmp_path / "filler").unlink)

    in_own_mounts(work)
    check_message(capfd.readouterr().err, tmp_path / "run", "No space left on device")


def obey_permissions() -> None:
    """Makes this process obey the permissions of files even if it is root: it gives up the right to override them."""
    libc, header = ctypes.CDLL(None, use_errno=True), (ctypes.c_uint32 * 2)(CAPABILITIES_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)()
    assert libc.capget(header, sets) == 0
    for number in range(3):  # effective, permitted and inheritable ones
        sets[number] &= ~(1 << OVERRIDE_PERMISSIONS)
    assert libc.capset(header, sets) == 0


def test_a_folder_that_becomes_read_only(tmp_path, capfd):
    straight("gigaword")

    def allow(mode: int) -> None:
        for folder in (tmp_path / "run/checkpoints", tmp_path / "run"):
            folder.chmod(mode)

    def work() -> None:
        obey_permissions()
        disturbed(tmp_path / "run", lambda: allow(0o555), lambda: allow(0o755))

    child = fork.Process(target=work)
    child.start()
    child.join()
    assert child.exitcode == 0
    check_message(capfd.readouterr().err, tmp_path / "run", "Permission denied")
