"""What a user got wrong, or what stopped a run: shown as a message, without a traceback."""


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


class Interrupted(RuntimeError):
    """A signal asked the run to stop; last.ckpt holds its state."""

    def __init__(self, signal_number: int, name: str):
        self.signal_number = signal_number
        super().__init__(f"stopped by {name}")
