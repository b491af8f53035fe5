"""What a user got wrong, or what stopped a run: shown as a message, without a traceback."""


class ConfigError(ValueError):
    """Every problem of a configuration at once."""

    def __init__(self, problems: list[str]):
        self.problems = problems
        super().__init__("\n".join(problems))


class Interrupted(RuntimeError):
    """A signal asked the run to stop; last.ckpt holds its state."""

    def __init__(self, signal_number: int, name: str):
        self.signal_number = signal_number
        super().__init__(f"stopped by {name}")
