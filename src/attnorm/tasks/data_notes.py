"""What a reader of scores must know about the data: bad rows, unknown characters, and rows that splits share."""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from attnorm.data.cache import cached, damage
from attnorm.data.preprocess import Split
from attnorm.data.readers.text import digest
from attnorm.tasks.task import Task
from attnorm.wording import counted

EARLIER = {"validation": ("train",), "test": ("train", "validation")}
FILE, FORMAT = "rows.npy", 2


def data_notes(task: Task, splits: dict[str, Split], recorded: Mapping[str, object] | None = None) -> list[str]:
    """A sentence for each thing that was found when the splits were prepared. recorded: as in `shared_rows`."""
    notes = []
    for name, split in splits.items():
        if skipped := split.counts.get("skipped"):
            notes.append(f"{name}: {counted(skipped, 'bad row')} of its files skipped")
        if unknown := split.counts.get("unknown_characters"):
            share = unknown / split.counts["characters"]
            notes.append(f"{name}: {counted(unknown, 'unknown character')} ({share:.2%})")
    return [*notes, *shared_rows(task, splits, recorded)]


def shared_rows(task: Task, splits: dict[str, Split], recorded: Mapping[str, object] | None = None) -> Iterator[str]:
    """One line for each earlier split in which rows of a split occur, on which a score can be too good.

    Rows that differ only in case or in the Unicode form of their texts are the same. The hashes of the rows are kept in
    the cache.

    recorded: fingerprints of further splits, see `Task.data_fingerprints`. They are left out if the cache does not have
    the hashes of their rows.
    """
    of_task = FORMAT, type(task).__module__, type(task).__qualname__
    fingerprints = {**(recorded or {}), **task.data_fingerprints(splits)}
    keys = {name: digest([*of_task, str(fingerprint)]) for name, fingerprint in fingerprints.items()}
    folders = {name: task.cache() / f"hashes-{key}" for name, key in keys.items()}
    try:
        for name, split in splits.items():
            folders[name] = cached(folders[name], partial(write_hashes, task, split))
        for name in splits:
            rows = np.load(folders[name] / FILE)
            for other in EARLIER.get(name, ()):
                if other not in folders or damage(folders[other]) is not None:
                    continue
                count = int(np.isin(rows, np.load(folders[other] / FILE)).sum())
                if count and count == len(rows):
                    yield f"{name}: all {count:,} {task.unit} occur in {other}, too; do both splits have the same file?"
                elif count:
                    yield f"{name}: {count:,} of {len(rows):,} {task.unit} occur in {other}, too; scores are too good"
    except OSError as error:  # of the cache, which others may own
        yield f"rows that occur in several splits are not counted: {error}"


def write_hashes(task: Task, split: Split, folder: Path) -> None:
    """Writes a hash of each row of a split: (rows,), uint64."""
    np.save(folder / FILE, np.array([int(row, 16) for row in task.row_hashes(split)], np.uint64))
