"""Errors that are shown as a message without a traceback, and the interruption of a run by a signal.

`UserError` and its subclasses are for what a user got wrong. Any other exception is a bug and keeps its traceback.
"""

import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from attnorm.removed import REMOVED
from attnorm.wording import on_one_line

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2, signal.SIGUSR1, signal.SIGHUP)  # that stop a run
LONGEST_SHOWN = 1000  # characters of a value in a message
_UNSET = object()


class Problem(str):
    """One thing that is wrong with a configuration: a sentence that starts with the key, and the key itself.

    Problem("model.dropout", "must be below 1", 1.5) reads "model.dropout=1.5: must be below 1".
    """

    __slots__ = ("key",)
    key: str

    def __new__(cls, key: str, message: str, value: object = _UNSET) -> "Problem":
        shown = "" if value is _UNSET else on_one_line(f"={in_yaml(value)}")
        shown = shown if len(shown) <= LONGEST_SHOWN else f"{shown[:50]}... ({len(shown) - 1:,} characters)"
        problem = super().__new__(cls, f"{key}{shown}: {message}")
        problem.key = key
        return problem

    @classmethod
    def about(cls, key: str, sentence: str) -> "Problem":
        """A problem whose sentence is complete as it is."""
        problem = super().__new__(cls, sentence)
        problem.key = key
        return problem


class UnknownOption(Problem):
    """An option that a part does not have."""

    __slots__ = ()


def unknown(name: str, otherwise: Problem) -> Problem:
    """The problem with a verb, a key or a file that is not there: what became of it, if it was removed.

    name: as in `REMOVED`.
    """
    return Problem.about(otherwise.key, REMOVED[name]) if name in REMOVED else otherwise


def in_yaml(value: object) -> str:
    """A value as it is typed: null instead of None, true instead of True, [a,b] instead of ['a', 'b']."""
    if value is None:
        return "null"
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(in_yaml, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{in_yaml(item)}' for key, item in value.items())}}}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def key_of(problem: str) -> str:
    """The key of a problem; "" for a plain sentence."""
    return getattr(problem, "key", "")


def is_in(key: str, group: str) -> bool:
    """Whether a key is another one, or is in the group of that name."""
    return key == group or key.startswith((f"{group}.", f"{group}["))


class UserError(Exception):
    """Something that a user got wrong. The message says what to do."""


class ConfigError(UserError, ValueError):
    """Every problem of a configuration at once."""

    def __init__(self, problems: Iterable[str]):
        self.problems = list(problems)
        super().__init__("\n".join(self.problems))


class DataError(UserError, ValueError):
    """Data that cannot be used. The message names the file and the line, or the config key."""


class RunError(ConfigError):
    """A run folder, or a file in it, that cannot be used. The message is one line."""

    def __init__(self, problem: str):
        super().__init__([problem])


class CheckpointError(RunError):
    """A checkpoint that is missing, damaged, or not one of a run."""


class SaveError(UserError, OSError):
    """A checkpoint that could not be written, for example because the disk is full."""


@contextmanager
def reading(place: object, what: str = "cannot be read") -> Iterator[None]:
    """For reading a file of a user's: whatever goes wrong in this context is a DataError that names the file, or the
    place in it. Libraries raise errors of many kinds for damaged files."""
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise DataError(f"{place}: {what}: {reason}") from error


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """For writing or locking a file: an OSError in this context names it, also one that is about a descriptor."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:  # otherwise its text is its only argument
            error.filename = error.filename or str(path)
        raise


def stopping() -> list[signal.Signals]:
    """The signals of SIGNALS to handle. A hang-up that is ignored at the start, as under `nohup`, stays ignored."""
    return [stop for stop in SIGNALS if stop != signal.SIGHUP or signal.getsignal(stop) != signal.SIG_IGN]


class Interrupted(BaseException):
    """A signal stopped the run.

    Like KeyboardInterrupt it is not an Exception: code that handles failures must not catch it, and it ends a sweep.

    checkpoint: the file from which the run can be resumed; None if it has saved none.
    """

    def __init__(self, signal_number: int, name: str, checkpoint: Path | None = None):
        self.signal_number, self.checkpoint = signal_number, checkpoint
        super().__init__(f"stopped by {name}")


def refuse_one_text(function: str, texts: object) -> None:
    """Raises TypeError for a single text where a function takes a list of texts: it would read letter by letter."""
    if isinstance(texts, str):
        raise TypeError(f"{function} takes a list of texts, not one text")
