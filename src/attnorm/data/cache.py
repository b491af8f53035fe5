"""Cached folders, built under a lock in a temporary place, renamed when complete, and verified on every use.

`manifest.json` in the folder contains the size and the CRC-32 of each file. If a file differs, for example because it
was truncated on a full disk, the folder is built again.
"""

import json
import logging
import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"
_CHUNK = 1 << 20


def cached(folder: Path, fill: Callable[[Path], object]) -> Path:
    """Returns `folder`. If it does not exist or is damaged, `fill(empty folder)` makes it first.

    If it belongs to another user, who lets nobody read it, `user_<number of this user>/<name>` beside it is used.

    A call that fails or is killed leaves no `folder`. If several processes need the same folder at the same time, one
    of them fills it and the others wait. Raises what `fill` raises.
    """
    try:
        return _shared(folder, fill)
    except PermissionError as error:
        user_folder = folder.parent / f"user_{os.getuid()}" / folder.name
        if not Path(str(error.filename)).is_relative_to(folder.parent):  # of a file that `fill` reads
            raise
        log.warning("no permission to use the cached %s; using %s instead", folder, user_folder)
        return _shared(user_folder, fill)


def _shared(folder: Path, fill: Callable[[Path], object]) -> Path:
    if damage(folder) is None:
        return folder
    from filelock import FileLock, Timeout

    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder.with_name(f"{folder.name}.lock"))
    try:
        held = lock.acquire(timeout=2)
    except Timeout:
        log.info("waiting for another process that prepares %s", folder)
        held = lock.acquire()
    with held:
        if (reason := damage(folder)) is not None:  # checked again, because another process may have built it
            if folder.exists():
                log.warning("the cached %s is damaged (%s); building it again", folder, reason)
            _fill_aside(folder, fill)
    return folder


def damage(folder: Path) -> str | None:
    """A short description of the damage of a folder made by `cached`. None if the folder is intact.

    All files are read, at about 3 GB per second from memory.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        sizes = {name: size for name, (size, _) in manifest.items()}
        for name, size in sizes.items():  # compare all sizes before reading any file
            if (actual := (folder / name).stat().st_size) != size:
                return f"{name} has {actual:,} bytes instead of {size:,}"
        for name, (_, checksum) in manifest.items():
            if _checksum(folder / name) != checksum:
                return f"the content of {name} has changed"
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        return f"there is no {Path(error.filename).name}"
    except (ValueError, TypeError, AttributeError):
        return f"{MANIFEST} cannot be read"
    return None


def _checksum(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            checksum = zlib.crc32(chunk, checksum)
    return checksum


def _fill_aside(folder: Path, fill: Callable[[Path], object]) -> None:
    aside = folder.with_name(f"{folder.name}.part")
    _remove(aside)  # left by a killed process; only the holder of the lock fills it
    aside.mkdir()
    try:
        fill(aside)
        paths = sorted(path for path in aside.rglob("*") if path.is_file())
        manifest = {str(path.relative_to(aside)): (path.stat().st_size, _checksum(path)) for path in paths}
        (aside / MANIFEST).write_text(json.dumps(manifest))
        _remove(folder)
        aside.rename(folder)
    except BaseException as error:
        _remove(aside)
        if isinstance(error, OSError) and error.errno and not error.filename:  # the disk is full, for example
            error.filename = str(folder)
        raise


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
