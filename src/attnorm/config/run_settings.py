"""The group `run`: how a run saves, what it does when something goes wrong, and whether it is compiled.

Each of these keys may differ when the run is resumed. They do not change what a run trains, with two exceptions: a
compiled model rounds differently, and `skip_updates` skips an update at which the run would otherwise end.
"""

from dataclasses import dataclass

from attnorm.schema import Count, Positive, WholeNumber


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """The keys of `run`.

    save_every_steps:   updates between checkpoints, beside those of the validations; None for no such limit.
    save_every_minutes: minutes between checkpoints; None for no such limit.
    keep_best:          number of best checkpoints that are kept.
    skip_updates:       number of updates with a NaN or infinite loss or gradient that are skipped before the run stops.
    hang_timeout:       seconds without progress in training after which the job is ended. Compiling, validating and
                        saving have ten times as long. None waits forever.
    compile:            whether `torch.compile` compiles the model.
    """

    save_every_steps: Count | None = None
    save_every_minutes: Positive | None = 10.0
    keep_best: Count = 1
    skip_updates: WholeNumber = 0
    hang_timeout: Positive | None = 600.0
    compile: bool = False
