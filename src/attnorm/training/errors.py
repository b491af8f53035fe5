"""What a user got wrong, or what stopped a run: shown as a message, without a traceback."""


class ConfigError(ValueError):
    """Every problem of a configuration at once."""

    def __init__(self, problems: list[str]):
        self.problems = problems
        super().__init__("\n".join(problems))


class Interrupted(BaseException):
    """A signal stopped the run.

    Like KeyboardInterrupt it is no Exception: code that handles failures must not handle it, and a sweep ends with it.
    """

    def __init__(self, signal_number: int, name: str):
        self.signal_number = signal_number
        super().__init__(f"stopped by {name}")
