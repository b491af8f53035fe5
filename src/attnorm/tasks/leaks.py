"""Rows of one split that occur in an earlier one, on which a score can be too good."""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from attnorm.data.cache import cached, damage
from attnorm.data.preprocess import Split
from attnorm.data.readers.text import digest
from attnorm.tasks.task import Task

EARLIER = {"validation": ("train",), "test": ("train", "validation")}
FILE = "rows.npy"


def describe_leaks(task: Task, splits: dict[str, Split], recorded: Mapping[str, object] | None = None) -> Iterator[str]:
    """One line for each earlier split in which rows of a split occur.

    The hashes of the rows are kept in the cache.

    recorded: fingerprints of further splits, see `Task.data_fingerprints`. They are left out if the cache does not have
    the hashes of their rows.
    """
    of_task = type(task).__module__, type(task).__qualname__
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
