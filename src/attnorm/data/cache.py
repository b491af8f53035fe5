"""Folders that are made once: built aside, renamed when whole, under a lock, and checked whenever they are used.

A folder holds `manifest.json`, the size and the CRC-32 of each of its files. If a file differs from it, for example
because it was truncated on a full disk, the folder is built again.
"""

import json
import logging
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"
_CHUNK = 1 << 20


def cached(folder: Path, build: Callable[[Path], None]) -> Path:
    """`folder`, made by `build(empty folder)` unless it is there and whole.

    A build that fails or is killed leaves no `folder`; of processes that want the same one at once, one builds and
    the others wait. Raises what `build` raises.
    """
    if damage(folder) is None:
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
        if (found := damage(folder)) is not None:  # looked at again: another process may have built it meanwhile
            if folder.exists():
                log.warning("the cached %s is damaged (%s); building it again", folder, found)
            _build(folder, build)
    finally:
        lock.release()
    return folder


def damage(folder: Path) -> str | None:
    """What is wrong with a folder that `cached` made, in a few words; None if it is whole.

    Reads all of it, at some 3 GB a second from memory.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        sizes = {name: size for name, (size, _) in manifest.items()}
        for name, size in sizes.items():  # of all files before any is read
            if (found := (folder / name).stat().st_size) != size:
                return f"{name} has {found:,} bytes instead of {size:,}"
        for name, (_, checksum) in manifest.items():
            if _checksum(folder / name) != checksum:
                return f"the content of {name} has changed"
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        return f"there is no {Path(error.filename).name}"
    except (ValueError, TypeError, AttributeError):
        return f"{MANIFEST} cannot be read"
    return None


def _checksum(path: Path) -> int:
    found = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            found = zlib.crc32(chunk, found)
    return found


def _build(folder: Path, build: Callable[[Path], None]) -> None:
    aside = folder.with_name(f"{folder.name}.part")
    _remove(aside)  # left by a killed build: whoever holds the lock is the only builder
    aside.mkdir()
    try:
        build(aside)
        paths = sorted(path for path in aside.rglob("*") if path.is_file())
        manifest = {str(path.relative_to(aside)): (path.stat().st_size, _checksum(path)) for path in paths}
        (aside / MANIFEST).write_text(json.dumps(manifest))
        _remove(folder)
        aside.rename(folder)
    except BaseException:
        _remove(aside)
        raise


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
