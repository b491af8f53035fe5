"""Writing files whole: a reader finds the old content or the new one, whatever happens to the process."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from attnorm.errors import naming
from attnorm.wording import printable


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields the file to write; when the context has ended without an error, it replaces `path`. Creates its folder.

    The file belongs to this process alone, because two commands may write the same results.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.unfinished")
    unfinished.unlink(missing_ok=True)  # it may be a link to elsewhere: the folder may come from anyone
    try:
        with naming(path):
            yield unfinished
            os.replace(unfinished, path)
    except Exception:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise


def write_text(path: Path, content: str) -> None:
    """Writes a text as UTF-8, whole or not at all. Creates its folder.

    Control characters, and the bytes of a path that is no UTF-8, become escapes, which JSON reads as the same.
    """
    write_bytes(path, printable(content).encode(errors="backslashreplace"))


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file, whole or not at all. Creates its folder."""
    with replacing(path) as unfinished:
        unfinished.write_bytes(content)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Writes a JSON object, whole or not at all. Creates its folder."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
