"""The other end of `cli.fork_jobs`: a server that forks the processes of jobs, as the sweep sees it.

A forked job becomes a child of the sweep, so that the sweep learns how it ends, even if the server has been killed. If
the server cannot or must not fork, no process of the job exists, and the sweep starts a fresh one.
"""

import ctypes
import json
import os
import socket
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from select import select

SERVER = (sys.executable, "-P", "-m", "attnorm.cli.fork_jobs")  # -P: the working directory is not searched
TAKE_IN_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)


class Forked:
    """The process of a job, as far as it is used like a `subprocess.Popen`."""

    def __init__(self, pid: int):
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while the process lives."""
        if self.returncode is None:
            try:
                ended, status = os.waitpid(self.pid, os.WNOHANG)
                if ended:
                    self.returncode = os.waitstatus_to_exitcode(status)
            except ChildProcessError:  # collected by this function, which a signal has interrupted, or by nobody
                self.returncode = self.returncode or 0
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


class ForkServer:
    """The server of jobs with the same environment. It ends when it is closed, or with the process of the sweep."""

    def __init__(self, env: Mapping[str, str]):
        self.channel, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.is_loaded = False
        with other:
            self.process = subprocess.Popen(
                [*SERVER, str(other.fileno())],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
                pass_fds=[other.fileno()],
            )

    def is_ready(self) -> bool:
        """Whether `start` answers at once. Raises RuntimeError if an import fails."""
        if not self.is_loaded and select([self.channel], [], [], 0)[0]:
            self.is_loaded = True
            if not self.channel.recv(1):
                error = self.process.communicate()[1]
                if self.process.returncode > 0:  # not if it was killed
                    raise RuntimeError(f"the process that starts jobs has failed:\n{error}")
        return self.is_loaded

    def start(self, arguments: Sequence[str], cores: Collection[int], lock: int, console: int) -> Forked | None:
        """Starts a job, with the descriptors of its lock and of console.log; None if it needs a fresh process."""
        read, write = os.pipe()
        with open(read) as pipe:
            try:
                message = json.dumps([list(arguments), list(cores)]).encode()
                socket.send_fds(self.channel, [message], [lock, console, write])
            except OSError:  # the server has been killed
                return None
            finally:
                os.close(write)
            number = pipe.read()
        return Forked(int(number)) if number else None

    def close(self) -> None:
        """Ends the server."""
        self.channel.close()
        with self.process:
            self.process.kill()


def takes_in_orphans() -> bool:
    """Lets this process become the parent of processes whose parent ends; False where this cannot be."""
    return sys.platform == "linux" and ctypes.CDLL(None).prctl(TAKE_IN_ORPHANS, 1, 0, 0, 0) == 0
