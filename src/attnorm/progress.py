"""The console, and progress bars on it."""

import logging
import os
import signal
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import rich.console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from attnorm.wording import printable

UNLIMITED = 10_000  # columns of a console
listeners: list[Callable[[], None]] = []  # called whenever an item of `tracked` is done
stops: list[Callable[[int, None], object]] = []  # handlers of signals; the last one also handles a closed pipe


class Console(rich.console.Console):
    """A console whose reader may close it, as `head` does. What follows then goes nowhere.

    Lines that do not go to a terminal, but into a file, are as long as they need to be.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if not (self.is_jupyter or os.environ.get("COLUMNS") or "width" in options or self.file.isatty()):
            self.width = UNLIMITED

    def render_str(self, text: str, **options: Any) -> Text:
        """A text as it is printed: its control characters as escapes, because it may be of someone else's file."""
        return super().render_str(printable(text), **options)

    def on_broken_pipe(self) -> None:
        """Stops a run or a sweep in good order, as a signal does; otherwise raises BrokenPipeError."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())
        if not stops:
            raise BrokenPipeError
        stops[-1](signal.SIGPIPE, None)


console = Console(highlight=False, soft_wrap=True)


def leave_terminal() -> None:
    """After a hang-up: what is printed goes nowhere if the terminal is gone, where a write would be an error."""
    for descriptor in (1, 2):
        try:
            os.write(descriptor, b"")
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def bar(label: str, stderr: bool = False) -> Progress:
    """A progress bar that shows on a terminal and keeps silent elsewhere."""
    where = Console(stderr=True) if stderr else console
    columns = (TextColumn(label), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"))
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    return Progress(*columns, *times, console=where, disable=not where.is_terminal, transient=True)


def tracked(items: list, label: str) -> Iterable:
    """Iterates under a progress bar."""
    with bar(label) as progress:
        task = progress.add_task("", total=len(items), note="")
        for item in items:
            yield item
            progress.advance(task)
            for listener in listeners:
                listener()


def quiet_libraries() -> None:
    """Keeps what libraries say to developers out of a user's run; errors still show. Lightning sets the levels of its
    loggers when it is imported, so this is called again after that."""
    for name in ("pytorch_lightning", "lightning_fabric", "datasets", "absl", "torch.distributed"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="pytorch_lightning|lightning_fabric|torch.utils.data|torch.optim")
    warnings.filterwarnings("ignore", message=".*(isinstance.treespec|LeafSpec|torch.jit).*")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
