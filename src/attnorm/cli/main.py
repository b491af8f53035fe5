"""The command `attnorm <verb> ...`, which is also `python -m attnorm <verb> ...`."""

import contextlib
import ctypes
import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from attnorm.cli.verbs import VERBS, added, listing
from attnorm.errors import Problem, unknown
from attnorm.imports import laboratory_is_missing, nearest

COLLECT_EVERY = 10_000  # new objects; Python's 700 makes importing torch and Lightning take a sixth longer
SPINS = {False: "1000", True: "0"}  # turns of the loop in which a thread of OpenMP waits, on a busy machine or not

MALLOC = {"MALLOC_MMAP_THRESHOLD_": -3, "MALLOC_TRIM_THRESHOLD_": -1}  # variables of glibc, and options of mallopt
KEPT = 2**30  # bytes; larger blocks are returned to the system


def main() -> int:
    """Runs the verb that was typed and returns the exit code."""
    return piped(typed)


def typed() -> int:
    """What `main` does; its output may go to a pipe."""
    verb, *arguments = sys.argv[1:] or ["--help"]
    if verb in ("-h", "--help"):
        keys = "attnorm <verb> --help shows the keys of a verb."
        print(f"usage: attnorm <verb> [key=value ...]\n\n{listing()}\n\n{keys}")
        return 0
    if verb == "--version":
        print(f"attnorm {version('attnorm')}")
        return 0
    if verb in ("-sc", "--shell-completion"):
        return complete(arguments)
    if verb not in VERBS and verb not in added():
        names = [*VERBS, *added()]
        message = f"no such verb; allowed: {', '.join(names)}.{nearest(verb, names)}"
        print(f"error: {unknown(verb, Problem(verb, message))}", file=sys.stderr)
        return 2
    return dispatch(verb, arguments)


def complete(arguments: list[str]) -> int:
    """Completes a command line for the shell, which calls `attnorm -sc query=bash` with the line in COMP_LINE."""
    program, *words = os.environ.get("COMP_LINE", "attnorm").split(" ", 2)
    if len(words) < 2:
        print(*VERBS, *added())
    elif words[0] in ("train", "sweep"):  # Hydra completes a line without a verb
        os.environ["COMP_LINE"] = f"{program} {words[1]}"
        return dispatch("train", ["-sc", *arguments])
    return 0


def run(verb: str, arguments: list[str]) -> int:
    """Runs a verb with its arguments and returns the exit code."""
    return piped(lambda: dispatch(verb, arguments))


def piped(job: Callable[[], int]) -> int:
    """Runs a job and returns its exit code; 141 (128 + SIGPIPE) when the reader of standard output has closed it, as
    `head` does. What is closed from the start, as by `>&-`, leads nowhere."""
    for name, mode in {"stdin": "r", "stdout": "w", "stderr": "w"}.items():
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - takes the free descriptor from later files
    if reconfigure := getattr(sys.stdout, "reconfigure", None):
        reconfigure(errors="backslashreplace")  # for paths that are not UTF-8
    try:
        code = job()
        sys.stdout.flush()
    except BrokenPipeError:
        # What is still in the buffer must go somewhere when Python flushes it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return code


def dispatch(verb: str, arguments: list[str]) -> int:
    """What `run` does; its output may go to a pipe. Says how to install the laboratory if it is missing.

    The value of a setting must be UTF-8, in which it is recorded. A folder with another name can be entered.
    """
    for argument in (text for text in arguments if "=" in text and not text.startswith("hydra.run.dir=")):
        if (shown := argument.encode(errors="backslashreplace").decode()) != argument:
            advice = "is not UTF-8; enter the folder with that name and give the path from there"
            print(f"error: {shown}: {advice}", file=sys.stderr)
            return 2
    if "torch" not in sys.modules:  # this process is that of the command, and not of a notebook
        let_threads_sleep()
        keep_freed_memory()
    try:
        return start(verb, arguments)
    except ModuleNotFoundError as error:
        if os.environ.get("HYDRA_FULL_ERROR") == "1" or not (message := laboratory_is_missing(error)):
            raise
        print(f"error: attnorm {verb} {message}", file=sys.stderr)
        return 2


def is_busy() -> bool:
    """Whether other processes want a quarter of the cores or more, measured for 50 ms; False without /proc."""
    others = 0
    for _ in range(10):
        try:
            text = Path("/proc/stat").read_text()
        except OSError:  # not Linux
            return False
        others += int(text.partition("procs_running ")[2].split()[0]) - 1
        time.sleep(0.005)
    return others >= 10 * 0.25 * (os.cpu_count() or 1)


def threads_spin() -> bool:
    """Whether there may be several threads of OpenMP, and nothing says how they wait, so that they spin."""
    chosen = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"} & os.environ.keys()
    return not chosen and os.environ.get("OMP_NUM_THREADS") != "1"


def let_threads_sleep() -> None:
    """Lets the threads of OpenMP spin only briefly while they wait, and then sleep.

    By default they spin for milliseconds, and a barrier then waits for the thread whose core another process uses. The
    libraries of GNU (GOMP_SPINCOUNT) and of LLVM and Intel (KMP_BLOCKTIME, in ms) read this as torch is imported. What
    the user has set wins. `python benchmarks/busy_machine.py` measures it.
    """
    if threads_spin():
        busy = is_busy()
        os.environ |= {"GOMP_SPINCOUNT": SPINS[busy], "KMP_BLOCKTIME": str(int(not busy))}


def keep_freed_memory() -> None:
    """Lets the C library keep freed memory for the next tensors, in this process and in those that it starts.

    By default, glibc returns large blocks to the system, which clears each page again for the next one: 3 to 25 % of
    the CPU time of an update of a small model. What the user has set wins.
    """
    if not MALLOC.keys() & os.environ.keys():
        os.environ |= dict.fromkeys(MALLOC, str(KEPT))
        with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library
            library = ctypes.CDLL(None)
            for option in MALLOC.values():
                library.mallopt(option, KEPT)


def start(verb: str, arguments: list[str]) -> int:
    """Imports what a verb needs, and runs it."""
    try:
        here = os.getcwd()
    except FileNotFoundError:
        print("error: the working directory has been removed; change to another one", file=sys.stderr)
        return 2
    from attnorm.run.folder import leave_out, take_follow_links

    leave_out(here)
    chosen = VERBS[verb] if verb in VERBS else added()[verb].load()
    from attnorm.run.trust import find_own_parts

    arguments = take_follow_links(arguments)
    gc.set_threshold(COLLECT_EVERY)
    find_own_parts(verb, arguments)
    return chosen.run(verb, arguments)
