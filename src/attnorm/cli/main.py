"""The command `attnorm <verb> ...`, which is also `python -m attnorm <verb> ...`."""

import gc
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from attnorm.imports import laboratory_is_missing, nearest

VERBS = {
    "train": "train one model on one task with one attention normalizer",
    "sweep": "train many models, each in a process of its own",
    "eval": "score a run folder, or a file of predictions",
    "report": "write one HTML page about any set of runs",
    "compare": "say whether runs with different normalizers differ, and by how much",
    "probe": "say in minutes where a normalizer wins and loses, on small tasks",
    "generate": "write a text for each input, such as headlines for articles, with the model of a run folder",
    "attention": "draw and measure what the model of a run folder attends to",
    "figures": "draw the figures of the papers",
    "doctor": "say whether attention is right and fast on this machine",
    "new": "write a folder with parts of your own, ready to train",
}
COLLECT_EVERY = 10_000  # new objects; Python's 700 makes importing torch and Lightning take a sixth longer
SPINS = {False: "1000", True: "0"}  # turns of the loop in which a thread of OpenMP waits, on a busy machine or not
MULTIRUN = {"-m", "--multirun"}  # what starts several runs in other Hydra programs


def main() -> int:
    """Runs the verb that was typed and returns the exit code."""
    return piped(typed)


def typed() -> int:
    """What `main` does; its output may go to a pipe."""
    verb, *arguments = sys.argv[1:] or ["--help"]
    if verb in ("-h", "--help"):
        listed = "\n".join(f"  {name:<11}{purpose}" for name, purpose in VERBS.items())
        print(f"usage: attnorm <verb> [key=value ...]\n\n{listed}\n\nattnorm <verb> --help shows the keys of a verb.")
        return 0
    if verb == "--version":
        print(f"attnorm {version('attnorm')}")
        return 0
    if verb in ("-sc", "--shell-completion"):
        return complete(arguments)
    if verb not in VERBS:
        print(f"error: {verb}: no such verb; allowed: {', '.join(VERBS)}.{nearest(verb, VERBS)}", file=sys.stderr)
        return 2
    return dispatch(verb, arguments)


def complete(arguments: list[str]) -> int:
    """Completes a command line for the shell, which calls `attnorm -sc query=bash` with the line in COMP_LINE."""
    program, *words = os.environ.get("COMP_LINE", "attnorm").split(" ", 2)
    if len(words) < 2:
        print(*VERBS)
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
    for argument in (it for it in arguments if "=" in it and not it.startswith("hydra.run.dir=")):
        if (shown := argument.encode(errors="backslashreplace").decode()) != argument:
            advice = "is not UTF-8; enter the folder with that name and give the path from there"
            print(f"error: {shown}: {advice}", file=sys.stderr)
            return 2
    let_threads_sleep()
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
    if "torch" not in sys.modules and threads_spin():
        busy = is_busy()
        os.environ |= {"GOMP_SPINCOUNT": SPINS[busy], "KMP_BLOCKTIME": str(int(not busy))}


def start(verb: str, arguments: list[str]) -> int:
    """Imports what a verb needs, and runs it."""
    try:
        os.getcwd()
    except FileNotFoundError:
        print("error: the working directory has been removed; change to another one", file=sys.stderr)
        return 2
    if verb == "doctor":  # needs only PyTorch
        from attnorm.run.folder import leave_out

        leave_out(os.getcwd())
        from attnorm.cli.doctor import run_doctor

        return run_doctor(arguments)
    from attnorm.run.folder import take_follow_links
    from attnorm.run.trust import find_own_parts

    arguments = take_follow_links(arguments)
    gc.set_threshold(COLLECT_EVERY)
    find_own_parts(verb, arguments)
    if verb == "train":
        if {"--help", "-h"} & set(arguments):
            from attnorm.cli.errors import exit_code
            from attnorm.cli.help import train_help

            return exit_code(lambda: print(train_help(arguments)) or 0)
        if not MULTIRUN & set(arguments):
            from attnorm.cli.train import run_train

            return run_train(arguments)
        verb, arguments = "sweep", ["jobs=1", *(argument for argument in arguments if argument not in MULTIRUN)]
        print(f"-m is attnorm sweep with one job at a time: {shlex.join(['attnorm', verb, *arguments])}", flush=True)
    if verb == "sweep":
        from attnorm.cli.sweep import run_sweep

        return run_sweep(arguments)
    if verb == "new":
        from attnorm.cli.errors import exit_code
        from attnorm.cli.new import run_new

        return exit_code(lambda: run_new(arguments))
    if verb == "report":
        from attnorm.cli.report import run_report

        return run_report(arguments)
    from attnorm.cli.commands import run_command

    return run_command(verb, arguments)
