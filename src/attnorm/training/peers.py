"""The other processes of a run on this machine: whether they live, and how to end them.

Each process is held by a file descriptor (Linux: pidfd), which never refers to another process that got the same number
later, and which can be waited for.
"""

import contextlib
import ctypes
import os
import select
import signal
import socket
from dataclasses import dataclass, field
from pathlib import Path

from attnorm.tasks.ranks import Ranks

PR_SET_PDEATHSIG = 1
PARENT = "ATTNORM_PARENT"  # environment variable: the number of the process that has started this rank
LAUNCHER = -1  # the "rank" of the process that started this one, if it is not a rank itself


def _machine() -> str:
    """The machine, or the container in it, within which process numbers mean the same."""
    space = Path("/proc/self/ns/pid")
    return f"{socket.gethostname()} {os.readlink(space) if space.exists() else ''}"


def die_with_parent(yes: bool = True) -> None:
    """Whether the kernel kills this process when the process that started it ends (Linux). If it
    has ended already, as PARENT tells, this process ends now."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL if yes else 0)
    if yes and os.environ.get(PARENT, str(os.getppid())) != str(os.getppid()):
        os.kill(os.getpid(), signal.SIGKILL)


def was_launched() -> bool:
    """Whether torchrun, or the first process of this machine, started this process."""
    by_first = os.environ.get("LOCAL_RANK", "0") != "0" and "SLURM_PROCID" not in os.environ
    return by_first or "TORCHELASTIC_RUN_ID" in os.environ


@dataclass
class Peers:
    """The other ranks on this machine, and the launcher, each with its pidfd by rank."""

    descriptors: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, ranks: Ranks) -> "Peers":
        """All ranks must call it. There are no peers if the system has no pidfd."""
        here = _machine()
        processes = ranks.gather((here, os.getpid()))
        if not hasattr(os, "pidfd_open"):
            return cls()
        numbers = {rank: pid for rank, (other, pid) in enumerate(processes) if other == here and rank != ranks.rank}
        if was_launched() and os.getppid() not in numbers.values() and os.getppid() != 1:
            numbers[LAUNCHER] = os.getppid()
        peers = cls()
        for rank, number in numbers.items():
            with contextlib.suppress(ProcessLookupError):  # it has just ended, and the run ends with it
                peers.descriptors[rank] = os.pidfd_open(number)
        return peers

    def ended(self, seconds: float, also: int | None = None) -> list[int]:
        """The ranks that have ended. Waits up to `seconds` for the first, or until the descriptor `also` is ready."""
        by_descriptor = {descriptor: rank for rank, descriptor in self.descriptors.items()}
        poll = select.poll()
        for descriptor in [*by_descriptor, *([] if also is None else [also])]:
            poll.register(descriptor, select.POLLIN)
        ready = [descriptor for descriptor, _ in poll.poll(max(0.0, seconds) * 1000)]
        return sorted(by_descriptor[descriptor] for descriptor in ready if descriptor in by_descriptor)

    def send(self, *numbers: int) -> None:
        """Sends signals to each rank that still lives."""
        for rank, descriptor in self.descriptors.items():
            if rank != LAUNCHER:
                with contextlib.suppress(OSError):
                    for number in numbers:
                        signal.pidfd_send_signal(descriptor, number)

    def forget(self) -> None:
        """Closes the descriptors."""
        descriptors, self.descriptors = self.descriptors, {}
        for descriptor in descriptors.values():
            os.close(descriptor)
