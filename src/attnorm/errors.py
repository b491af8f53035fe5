"""Errors that are shown as a message without a traceback, and the interruption of a run by a signal."""

from pathlib import Path


class ConfigError(ValueError):
    """Every problem of a configuration at once."""

    def __init__(self, problems: list[str]):
        self.problems = problems
        super().__init__("\n".join(problems))


class RunError(ConfigError):
    """A run folder, or a file in it, that cannot be used. The message is one line."""

    def __init__(self, problem: str):
        super().__init__([problem])


class CheckpointError(RunError):
    """A checkpoint that is missing, damaged, or not one of a run."""


class Interrupted(BaseException):
    """A signal stopped the run.

    Like KeyboardInterrupt it is no Exception: code that handles failures must not handle it, and a sweep ends with it.

    checkpoint: the file from which the run can be resumed; None if it has saved none.
    """

    def __init__(self, signal_number: int, name: str, checkpoint: Path | None = None):
        self.signal_number, self.checkpoint = signal_number, checkpoint
        super().__init__(f"stopped by {name}")
