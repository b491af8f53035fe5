"""The cache of prepared data, when two runs prepare it at once and when one of them is killed on the way."""

import os
import random
import signal
import time
from pathlib import Path

import pytest
import runs
from faulty import fork

from attnorm.data import cache
from attnorm.tasks.task import task_of

pytestmark = pytest.mark.slow


def prepare(folder: Path, delay: float = 0.0) -> None:
    """Prepares the data of a tiny run in the cache `folder`, with a pause before each folder of it is complete."""
    checksum = cache._checksum

    def slow(path: Path) -> int:
        time.sleep(delay)
        return checksum(path)

    cache._checksum = slow
    splits = task_of(runs.tiny(f"paths.cache_dir={folder}")).splits()
    assert len(splits["train"]) == 200
    os._exit(0)


def content(folder: Path) -> dict[str, bytes]:
    """The files of a cache, without locks."""
    return {
        str(it.relative_to(folder)): it.read_bytes()
        for it in folder.rglob("*")
        if it.is_file() and it.suffix != ".lock"
    }


def wait_for(*children) -> list[int]:
    for child in children:
        child.join(100)
    return [child.exitcode for child in children]


@pytest.fixture(scope="module")
def whole() -> dict[str, bytes]:
    folder = runs.scratch("whole-cache")
    child = fork.Process(target=prepare, args=(folder,))
    child.start()
    assert wait_for(child) == [0]
    return content(folder)


def test_two_processes_prepare_the_same_data_once(tmp_path, whole):
    children = [fork.Process(target=prepare, args=(tmp_path, 0.02)) for _ in range(3)]
    for child in children:
        child.start()
    assert wait_for(*children) == [0, 0, 0]
    assert content(tmp_path).keys() == whole.keys()
    assert all(content(tmp_path)[name] == whole[name] for name in whole if name.endswith((".model", ".npy")))


@pytest.mark.parametrize("chain", range(3))
def test_data_that_were_being_prepared_when_the_process_was_killed_are_prepared_again(tmp_path, whole, chain):
    moments = random.Random(chain)
    for _ in range(4):
        child = fork.Process(target=prepare, args=(tmp_path, 0.05))
        child.start()
        time.sleep(moments.uniform(0.05, 1.0))
        if child.is_alive():
            os.kill(child.pid, signal.SIGKILL)
        child.join()
    child = fork.Process(target=prepare, args=(tmp_path,))
    child.start()
    assert wait_for(child) == [0]
    assert content(tmp_path).keys() == whole.keys()
    assert not list(tmp_path.rglob("*.part"))
