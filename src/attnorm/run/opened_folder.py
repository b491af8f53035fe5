"""Opens the folder of a run or of a sweep. The folder may come from anyone.

From a run folder, nothing is written outside the folder and the reader's own cache, nothing but the data and the
weights that its config.yaml names is read outside it, and no code runs that was not typed or trusted.
"""

import os
import sys
from pathlib import Path

from attnorm.errors import RunError

FOLDERS = ("checkpoints", "failures", "figures", "predictions", "profile", "samples")
FILES = (
    *(".ckpt", ".csv", ".html", ".json", ".jsonl", ".lock", ".log", ".model", ".npz", ".parquet", ".png", ".pt"),
    *(".svg", ".txt", ".yaml"),
)
LINKING = "wandb"  # writes links of its own into a folder of this name, which attnorm neither reads nor writes


def opened(folder: Path) -> Path:
    """The folder itself, in which every path is what its name says and leads nowhere else.

    `folder` may be a link. The folder is also removed from the search path of Python, since its files could take the
    place of libraries.

    Raises RunError for a link inside the folder, for a pipe, a socket or a device, for a folder with the name of a
    file, and for a file with the name of a folder.
    """
    leave_out(folder)
    left = [folder]
    while left:
        inner = left.pop()
        try:
            with os.scandir(inner) as entries:
                left += [inner / entry.name for entry in entries if is_folder(entry, folder)]
        except FileNotFoundError:
            if inner == folder:
                raise RunError(f"{folder}: no such folder") from None
        except OSError as error:
            raise RunError(f"{inner}: cannot be read: {error.strerror}") from error
    return folder


def is_folder(entry: os.DirEntry[str], folder: Path) -> bool:
    """Whether an entry of a folder is a folder. Raises RunError if it is not what its name says, see `opened`."""
    path = Path(entry.path)
    if entry.is_symlink():
        if LINKING not in path.relative_to(folder).parts[:-1]:
            raise RunError(
                f"{path}: is a link to {os.readlink(path)}. The folder of a run may come from anyone, so links in it "
                "are not followed; replace the link by what it leads to"
            )
        return False
    if entry.is_dir(follow_symlinks=False):
        if path.suffix in FILES:
            raise RunError(f"{path}: is a folder; expected a file")
        return True
    if not entry.is_file(follow_symlinks=False) and os.path.lexists(path):  # not a temporary file that was renamed
        raise RunError(f"{path}: is neither a file nor a folder")
    if entry.name in FOLDERS:
        raise RunError(f"{path}: is a file; expected a folder")
    return False


def is_name(value: object) -> bool:
    """Whether a value is the name of something in a folder, and not a path that leads elsewhere."""
    return isinstance(value, str) and value not in ("", ".", "..") and not {"/", "\0"} & set(value)


def leave_out(folder: str | Path) -> None:
    """Removes a folder from the search path of Python."""
    real = os.path.realpath(folder)
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry or ".") != real]
