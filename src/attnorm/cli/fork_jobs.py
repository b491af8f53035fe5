"""A process that has imported what jobs need, and forks a process for each job, which then starts in a moment.

`python -m attnorm.cli.fork_jobs <descriptor of a socket>` has the environment of the jobs. For each job it gets a
message with the arguments, the cores, and three descriptors: of the job's lock, of its console.log, and of a pipe. The
process of a job

1. becomes the leader of a session, with console.log as its output, and writes its number into the pipe,
2. leaves the loop of the server, and runs `attnorm train <arguments>` to the normal end of Python.

The server forks twice, and the process in between ends at once, so that the sweep takes the job in. The pipe ends
without a number if the server declines: once a file that it has imported was edited, and if it has another thread or
uses a GPU, which do not survive a fork.
"""

import gc
import json
import os
import socket
import sys
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import attnorm
from attnorm.cli import main as command
from attnorm.run.folder import leave_out

PRELOADED = (
    *("attnorm.cli.main", "attnorm.cli.train", "attnorm.training.train", "attnorm.analysis.run_figures"),
    *("attnorm.config.read", "attnorm.config.recorded", "pandas", "pyarrow.parquet"),
)
MESSAGE = 1 << 20  # bytes, more than a socket takes at once
JEMALLOC = "JE_ARROW_MALLOC_CONF"  # pyarrow starts a thread as it is imported, unless this says otherwise


def serve(channel: socket.socket, begun: int) -> list[str] | None:
    """Answers messages. Returns None at their end, and in the process of each job its arguments.

    begun: when the imports began, in ns since 1970.
    """
    files = {file for module in [*sys.modules.values()] if (file := getattr(module, "__file__", None))}
    loaded = stamps(files)
    is_current = all(changed < begun for *_, changed in loaded)
    channel.send(b".")  # ready
    while True:
        message, descriptors, _, _ = socket.recv_fds(channel, MESSAGE, 3)
        if not message:
            return None
        if is_fit() and is_current and stamps(files) == loaded:
            if not (between := os.fork()):
                between = os.getpid()
                if os.fork():
                    os._exit(0)
                channel.close()
                arguments, cores = json.loads(message)
                become_job(between, cores, *descriptors[1:])  # the first holds the lock of the job
                return arguments
            os.waitpid(between, 0)
        for descriptor in descriptors:
            os.close(descriptor)


def become_job(between: int, cores: Collection[int], console: int, pipe: int) -> None:
    """Makes a process that of a job, once the sweep has taken it in."""
    import numpy
    import torch

    os.setsid()
    os.dup2(console, 1)
    os.dup2(console, 2)
    os.close(console)
    with suppress(OSError):
        os.sched_setaffinity(0, cores)
    numpy.random.seed()  # random numbers before a job sets its seed would be the same in all jobs
    torch.default_generator.seed()
    while os.getppid() == between:
        time.sleep(0.001)
    os.write(pipe, str(os.getpid()).encode())
    os.close(pipe)


def is_fit() -> bool:
    """Whether this process can fork: it has one thread, and no GPU."""
    import torch

    return len(os.listdir("/proc/self/task")) == 1 and not torch.cuda.is_initialized()


def stamps(files: Iterable[str]) -> list[tuple[int, int, int]]:
    """What changes with each of these files."""
    states = [os.stat(file) for file in files if os.path.exists(file)]
    return [(state.st_ino, state.st_size, state.st_mtime_ns) for state in states]


def preload() -> None:
    """Imports what jobs need, as they do, and brings the process into a state in which it can fork."""
    leave_out(os.getcwd())
    has_set = JEMALLOC in os.environ
    os.environ.setdefault(JEMALLOC, "background_thread:false")
    gc.disable()
    for name in PRELOADED:
        import_module(name)
    gc.enable()
    if not has_set:
        del os.environ[JEMALLOC]  # jobs do not have it
    if not (child := os.fork()):  # OpenBLAS ends its threads before a fork, and starts them when they have work
        os._exit(0)
    os.waitpid(child, 0)
    gc.collect()
    gc.freeze()  # a collection in a job would write to, and thereby copy, all of it


def main() -> int:
    """What the server does; in the process of a job, what `attnorm train` does."""
    channel, begun = socket.socket(fileno=int(sys.argv[1])), time.time_ns()
    preload()
    arguments = serve(channel, begun)
    if arguments is None:
        return 0
    sys.argv = [str(Path(str(attnorm.__file__)).with_name("__main__.py")), "train", *arguments]
    return command.main()


if __name__ == "__main__":
    sys.exit(main())
