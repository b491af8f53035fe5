"""Folders that are made once: built aside, renamed when whole, under a lock."""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger(__name__)


def cached(folder: Path, build: Callable[[Path], None]) -> Path:
    """`folder`, made by `build(empty folder)` unless it is there.

    A build that fails or is killed leaves no `folder`; of processes that want the same one at once, one builds and
    the others wait. Raises what `build` raises.
    """
    if folder.is_dir():
        return folder
    from filelock import FileLock, Timeout

    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder.with_name(f"{folder.name}.lock"))
    try:
        lock.acquire(timeout=2)
    except Timeout:
        log.info("waiting for another process that prepares %s", folder)
        lock.acquire()
    try:
        if not folder.is_dir():
            _build(folder, build)
    finally:
        lock.release()
    return folder


def _build(folder: Path, build: Callable[[Path], None]) -> None:
    aside = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(aside, ignore_errors=True)  # left by a killed build: whoever holds the lock is the only builder
    aside.mkdir()
    try:
        build(aside)
        aside.rename(folder)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
