"""Opens the folder of a run or of a sweep. The folder may come from anyone.

From a run folder, nothing is written outside the folder and the reader's own cache, nothing but the data and the
weights that its config.yaml names is read outside it, and no code runs that was not typed or trusted.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from attnorm.errors import RunError

FOLDERS = ("checkpoints", "failures", "figures", "predictions", "profile", "samples")
FILES = (
    *(".ckpt", ".csv", ".html", ".json", ".jsonl", ".lock", ".log", ".model", ".npz", ".parquet", ".png", ".pt"),
    *(".svg", ".txt", ".yaml"),
)
LINKING = "wandb"  # writes links of its own into a folder of this name, which attnorm neither reads nor writes
LINKED = (*FOLDERS, LINKING, "tensorboard", "stacks")  # folders that may be links if that was typed
EVENTS = "jobs.jsonl"  # a folder with this file is that of a sweep, where every folder may be that of a run
FOLLOW = "run.follow_links"
_typed: set[str] = set()  # holds FOLLOW if it was typed as true; no run folder can set it


def opened(folder: Path) -> Path:
    """The folder itself, in which every path is what its name says and leads nowhere else.

    `folder` may be a link. The folder is also removed from the search path of Python, since its files could take the
    place of libraries. Links that attnorm never opens are left alone. With `run.follow_links=true` typed, its folders,
    such as `checkpoints`, may be links to other folders.

    Raises RunError for another link inside the folder, for a pipe, a socket or a device, for a folder with the name of
    a file, and for a file with the name of a folder.
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
        parts, may_follow = path.relative_to(folder).parts, entry.name in LINKED and path.is_dir()
        ours = {*path.suffixes, *parts} & {*FILES, *LINKED}
        is_opened = bool(ours) or (folder / EVENTS).exists()
        if is_opened and LINKING not in parts[:-1] and not (may_follow and _typed):
            instead = f"type {FOLLOW}=true if you trust it" if may_follow else "replace the link by what it leads to"
            raise RunError(
                f"{path}: is a link to {os.readlink(path)}. The folder of a run may come from anyone, so links in it "
                f"are not followed; {instead}"
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


def take_follow_links(arguments: Sequence[str]) -> list[str]:
    """The arguments of a command without `run.follow_links=true` and `=false`, of which the last one is obeyed."""
    typed = [argument for argument in arguments if argument in (f"{FOLLOW}=true", f"{FOLLOW}=false")]
    _typed.clear()
    if typed and typed[-1].endswith("true"):
        _typed.add(FOLLOW)
    return [argument for argument in arguments if argument not in typed]


def typed_follow_links() -> list[str]:
    """The argument that lets another command follow links, if it was typed for this one."""
    return [f"{FOLLOW}=true"] if _typed else []


def is_name(value: object) -> bool:
    """Whether a value is the name of something in a folder, and not a path that leads elsewhere."""
    return isinstance(value, str) and value not in ("", ".", "..") and not {"/", "\0"} & set(value)


def leave_out(folder: str | Path) -> None:
    """Removes a folder from the search path of Python."""
    real = os.path.realpath(folder)
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry or ".") != real]
