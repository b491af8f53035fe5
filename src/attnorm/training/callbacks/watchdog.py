"""Ends a run whose processes hang or die, and leaves the stack of each of them in the run folder."""

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import IO, Any

import pytorch_lightning as pl

from attnorm import progress
from attnorm.errors import Interrupted
from attnorm.tasks.ranks import Ranks
from attnorm.training.processes import LAUNCHER, Peers, die_with_parent, was_launched

FOLDER = "stacks"
SLOW = 10  # times the limit, while the run compiles, validates, saves or scores
FIRST_BATCHES = 10  # that count as compiling
DUMP = signal.SIGRTMIN + 5  # makes a process write its stacks; libraries use the signals that have names
GRACE = 5.0  # seconds that the other processes have to write their stacks, or to fail by themselves
TICK = 1.0  # seconds between two looks


def _doing(activity: str) -> Callable[..., None]:
    """A hook of the watchdog: the process has begun to do something that may be slow."""

    def hook(watchdog: "Watchdog", *_: object) -> None:
        watchdog.allow(activity, slow=True)

    return hook


class Watchdog(pl.Callback):
    """Ends this process and its peers if there is no progress for `timeout` seconds.

    It is used both as a context manager around the whole run and as a callback of its trainer. From the start of
    training on, or from `watch` on, a thread compares the time of the last progress with the limit, and watches the
    other processes of the run on this machine. If the limit is exceeded, or if another process has died and this one
    does not end by itself, the thread

    1. writes the stacks of this process to `stacks/rank_<n>.txt` in the run folder, and a message to standard error,
    2. makes the others write theirs (DUMP), also those that were stopped (SIGCONT),
    3. kills (SIGKILL) those that have not ended after GRACE seconds, and
    4. ends this process with exit code 1.

    If the thread itself cannot run, because C code holds the interpreter lock, `faulthandler` writes the stacks and
    ends the process a little later. An exception of a run is written to the same file, with the stacks of all threads.

    timeout: seconds without progress in training; SLOW times as long otherwise. None: no limit.
    report:  called with the reason before the process is ended: on the first rank at once, and on the others of its
             machine if the first rank has ended or is about to be killed, because it may not have been able to.
    """

    def __init__(self, run_folder: Path, timeout: float | None, report: Callable[[str], None]):
        self.folder, self.timeout, self.report = run_folder / FOLDER, timeout, report
        self.ranks, self.peers = Ranks(), Peers()
        self.file: IO[str] | None = None
        self.thread: threading.Thread | None = None
        self.batches = 0
        self.tracked = partial(self.allow, "scoring", slow=True)  # after an item under a progress bar
        self.allow("starting", slow=True)

    def allow(self, activity: str, slow: bool) -> None:
        """There was progress: the time starts anew. activity: what the process does now."""
        self.activity, self.limit = activity, (self.timeout or 0.0) * (SLOW if slow else 1)
        self.deadline = time.monotonic() + self.limit

    # the run

    def __enter__(self) -> "Watchdog":
        if was_launched():
            die_with_parent()
        progress.listeners.append(self.tracked)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, _: object) -> None:
        if error is not None:
            self._record(error)
        progress.listeners.remove(self.tracked)
        self._stop()

    def finish(self, trainer: pl.Trainer) -> None:
        """Waits for all processes, and then lets each of them end when it wants to."""
        trainer.strategy.barrier()
        self.allow("ending", slow=True)
        self.peers.forget()

    # the trainer

    def setup(self, trainer: pl.Trainer, module: pl.LightningModule, stage: str) -> None:
        self.ranks = Ranks.present()
        if self.timeout is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        self.file = open(self._path(self.ranks.rank), "a", encoding="utf-8")  # noqa: SIM115 - for faulthandler
        faulthandler.register(DUMP, file=self.file)
        self.peers = Peers.of(self.ranks)  # so each of them can write its stacks now
        if self.peers.descriptors:
            die_with_parent(False)  # from now on the end of the parent is noticed, and the stacks are written first
            launcher: Any = trainer.strategy.launcher
            if isinstance(procs := getattr(launcher, "procs", None), list):
                procs.clear()  # Lightning would kill this process as well, before it can say why
        self.watch("starting")

    def watch(self, activity: str) -> None:
        """Starts the thread if there is a limit and it does not run yet."""
        self.allow(activity, slow=True)
        if self.timeout is not None and self.thread is None:
            self.wake, self.stop = os.pipe()
            self.thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
            self.thread.start()

    on_fit_start = on_train_start = _doing("starting")
    on_validation_start = on_validation_batch_end = on_validation_end = _doing("validating")
    on_save_checkpoint = _doing("saving")
    on_train_end = _doing("ending")

    def on_train_batch_start(self, *_: object) -> None:
        self.allow("training", slow=self.batches < FIRST_BATCHES)

    def on_train_batch_end(self, *_: object) -> None:
        self.batches += 1
        self.allow("training", slow=self.batches < FIRST_BATCHES)

    def on_exception(self, trainer: pl.Trainer, module: pl.LightningModule, error: BaseException) -> None:
        self._record(error)

    # the thread

    def _watch(self) -> None:
        failed_since = None  # when a peer was first seen to have ended
        while True:
            left = self.deadline - time.monotonic()
            faulthandler.dump_traceback_later(max(left, 0.0) + 2 * GRACE, exit=True, file=self.file or 2)
            ended = self.peers.ended(min(TICK, max(left, 0.0)), also=self.wake)
            if self.thread is None:
                return
            now = time.monotonic()
            if now >= self.deadline:
                self._end(f"no progress for {self.limit:g} seconds while {self.activity} (run.hang_timeout)", ended)
            failed_since = (failed_since or now) if ended and self.peers.descriptors else None
            if failed_since is not None:
                if now - failed_since >= GRACE:
                    names = ["the launcher" if rank == LAUNCHER else f"rank {rank}" for rank in ended]
                    self._end(f"{', '.join(names)} ended", ended)
                time.sleep(0.1)  # the descriptors stay ready

    def _end(self, why: str, ended: list[int]) -> None:
        """Ends the job."""
        self._write(why)
        if self.ranks.rank == 0:
            self._report(why)
        os.write(
            2, f"error: rank {self.ranks.rank}: {why}. The stacks of its processes are in {self.folder}\n".encode()
        )
        self.peers.send(DUMP, signal.SIGCONT)
        # The first rank has less patience, so that it ends the others, and the job with exit code 1, if it can.
        end = time.monotonic() + GRACE * (1.0 if self.ranks.rank == 0 else 1.4)
        others = self.peers.descriptors.keys() - {LAUNCHER}
        while (left := end - time.monotonic()) > 0 and others - {*self.peers.ended(0)}:
            time.sleep(min(0.1, left))
        if 0 in others:
            self._report(why)
        self.peers.send(signal.SIGKILL)
        for rank in others - {*ended}:
            path = self._path(rank)
            if path.exists() and not path.stat().st_size:
                path.write_text(f"{self._now()} this process wrote no stack before it was killed\n")
        for child in multiprocessing.active_children():
            child.kill()
        os._exit(1)

    def _report(self, why: str) -> None:
        with contextlib.suppress(Exception):  # such as a full disk
            self.report(f"{why}; see {self.folder}")

    def _write(self, why: str) -> None:
        """The stacks of all threads, after a line that says why."""
        if self.file is not None:
            print(f"{self._now()} {why}", file=self.file, flush=True)
            faulthandler.dump_traceback(file=self.file)
            self.file.flush()

    def _record(self, error: BaseException) -> None:
        """The traceback of an exception. The other processes may end first from now on.

        A signal is not recorded, unless it comes from a launcher because another process has died.
        """
        self.allow("ending", slow=True)
        signalled = isinstance(error, (Interrupted, KeyboardInterrupt))
        # the connection to a process breaks a moment before the process has ended, but a signal may end all at once
        ended = self.peers.ended(0.0 if signalled else 0.1)
        if 0 in ended:
            self._report("rank 0 ended")
        if (ended or not signalled) and self.file is not None and error is not self.last:
            self.last = error
            with contextlib.suppress(OSError):  # such as a full disk, which has probably ended the run
                self.file.write("".join(traceback.format_exception(error)))
                self._write(f"{type(error).__name__}")
        self.peers.forget()

    last: BaseException | None = None  # the exception that was recorded

    def _stop(self) -> None:
        """Ends the thread, and removes an empty file."""
        thread, self.thread = self.thread, None
        if thread is not None and thread.is_alive():
            os.write(self.stop, b"x")
            thread.join()
            faulthandler.cancel_dump_traceback_later()
            os.close(self.wake)
            os.close(self.stop)
        self.peers.forget()
        if self.file is not None:
            faulthandler.unregister(DUMP)
            with contextlib.suppress(OSError):
                self.file.close()
            self.file = None
            path = self._path(self.ranks.rank)
            if path.exists() and not path.stat().st_size:
                path.unlink()
                with contextlib.suppress(OSError):  # it holds the file of another process, which may also remove it now
                    self.folder.rmdir()

    def _path(self, rank: int) -> Path:
        return self.folder / f"rank_{rank}.txt"

    @staticmethod
    def _now() -> str:
        return datetime.now().astimezone().isoformat(timespec="seconds")
