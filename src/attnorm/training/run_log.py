"""Python logging during a run: on the console and in run.log."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from attnorm.imports import package_of
from attnorm.parts import TARGET
from attnorm.progress import console
from attnorm.run.writing import RunWriter
from attnorm.settings import leaves
from attnorm.training.processes import is_first_rank

LIBRARIES = {"torch", "pytorch_lightning", "transformers"}  # their classes may be parts of a run


class ConsoleHandler(logging.Handler):
    """Prints warnings of every library, and all messages of the packages that take part in the run.

    packages: the names of these packages.
    """

    def __init__(self, packages: Iterable[str]):
        super().__init__(logging.INFO)
        self.packages = frozenset(packages)

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            console.print(f"{record.levelname.lower()}: {record.getMessage()}", style="bold yellow", markup=False)
        elif record.name.partition(".")[0] in self.packages:
            console.print(record.getMessage(), markup=False)


class LogFile(logging.FileHandler):
    """Appends messages to run.log as long as this is possible, from the beginning of the run on (`begin`).

    A disk that is full, or a folder that cannot be written to, must not end a run before it can save.
    """

    def __init__(self, path: Path):
        super().__init__(path, encoding="utf-8", delay=True)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        self.waiting: list[logging.LogRecord] | None = []  # before the beginning

    def begin(self) -> None:
        """Writes the messages so far. Those of a run that never begins are lost."""
        waiting, self.waiting = self.waiting or [], None
        for record in waiting:
            self.emit(record)

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a message. The file is opened for the first one, outside of what `FileHandler` itself guards."""
        if self.waiting is not None:
            self.waiting.append(record)
            return
        with suppress(OSError):
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Ignores a message that cannot be written; it has been printed."""


@contextmanager
def run_log(cfg: Mapping[str, Any], run_folder: Path) -> Iterator[LogFile]:
    """Within this context, messages from `logging` are printed, and appended to run.log with their time and origin.

    Yields run.log, which is written from its `begin` on.
    """
    named = (value for key, value in leaves(cfg) if key.endswith(TARGET) and isinstance(value, str))
    file = LogFile(RunWriter(run_folder).log_file)
    handlers: list[logging.Handler] = [file]
    if is_first_rank():
        handlers.insert(0, ConsoleHandler({"attnorm", *map(package_of, named)} - LIBRARIES))
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.INFO)
    for handler in handlers:
        root.addHandler(handler)
    try:
        yield file
    finally:
        for handler in handlers:
            root.removeHandler(handler)
            with suppress(OSError):
                handler.close()
        root.setLevel(level)
