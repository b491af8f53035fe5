"""Runs with several processes for the tests: forked from the test, and started as `torchrun` would start them."""

import contextlib
import io
import os
import socket
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp

LAUNCHER = "TORCHELASTIC_RUN_ID"  # by this variable torch and Lightning recognize torchrun


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def together(ranks: int, action: Callable[[int], None], nodes: int = 1) -> None:
    """Calls `action(rank)` in as many processes, which see the environment that torchrun gives them.

    Fails with the traceback of every process that raised an exception.
    """
    port, context = free_port(), mp.get_context("fork")
    failures = context.SimpleQueue()
    processes = [
        context.Process(target=_rank, args=(rank, ranks, nodes, port, action, failures)) for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    stuck = [rank for rank, process in enumerate(processes) if process.is_alive()]
    for process in processes:
        process.kill()
    found = []
    while not failures.empty():
        found.append(failures.get())
    if stuck or found or any(process.exitcode for process in processes):
        codes = [process.exitcode for process in processes]
        pytest.fail("\n".join([f"stuck: {stuck}, exit codes: {codes}", *found]))


def _rank(
    rank: int, ranks: int, nodes: int, port: int, action: Callable[[int], None], failures: mp.SimpleQueue
) -> None:
    from pytorch_lightning.utilities import rank_zero_only

    local = ranks // nodes
    numbers = {"MASTER_PORT": port, "RANK": rank, "LOCAL_RANK": rank % local, "GROUP_RANK": rank // local}
    numbers |= {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": local}
    os.environ |= {LAUNCHER: "test", "MASTER_ADDR": "127.0.0.1", **{name: str(it) for name, it in numbers.items()}}
    rank_zero_only.rank = rank
    torch.set_num_threads(1)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            action(rank)
    except BaseException:
        failures.put(f"rank {rank}:\n{traceback.format_exc()}")
        os._exit(1)
    os._exit(0)


def forked(action: Callable[[], object], seconds: float = 60) -> int:
    """Calls `action` in a process of its own and returns the exit code of this process; fails if it does not end."""
    process = mp.get_context("fork").Process(target=_quietly, args=(action,))
    process.start()
    process.join(seconds)
    if process.is_alive():
        process.kill()
        pytest.fail(f"still running after {seconds} seconds")
    assert process.exitcode is not None
    return process.exitcode


def is_running(pid: int | str) -> bool:
    """Whether a process has not ended; False for a zombie, which may stay where nobody collects orphans."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _quietly(action: Callable[[], object]) -> None:
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            action()
    except BaseException:
        os._exit(3)
    os._exit(0)


def train_together(cfg, folder: Path, ranks: int = 2, nodes: int = 1) -> Path:
    """Trains a checked configuration into `folder` with several processes."""
    from attnorm.training.train import train

    together(ranks, lambda rank: train(cfg, folder), nodes)
    return folder
