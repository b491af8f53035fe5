"""How long the rungs of a ladder train: the number of updates follows from the size of the model and from the data."""

import math
from collections.abc import Sequence
from dataclasses import replace

from attnorm.errors import ConfigError, Problem
from attnorm.progress import console
from attnorm.sweeps.check import Checker, Sized
from attnorm.sweeps.command import Overrides, SweepCommand, plain_key
from attnorm.sweeps.jobs import expand, override_key
from attnorm.sweeps.ladder import UPDATES, Ladder
from attnorm.sweeps.planner import checked

FEW = 1000  # updates with fewer of which a trend measures early training
MANY = 4  # epochs, beyond which further data are not as good as new ones ("Scaling Data-Constrained Language Models")
MEASURED = "++seed=0"  # sizes do not depend on the seed, and must not depend on the seeds that were typed


def with_rungs(command: SweepCommand, checker: Checker) -> SweepCommand:
    """The command with the overrides of each rung: its keys, its updates, and what its runs record.

    All sizes are those of the same model with attention=softmax, so that an arm that is trained alone has the updates
    that it has beside others. Prints a line per rung.

    Raises ConfigError for what is wrong with the settings of a rung, before any data are prepared, and for a rung that
    ends before its first validation.
    """
    ladder, tuning = command.ladder, command.tuning
    assert ladder is not None
    tuned = tuning.key if tuning else None
    arms = expand(override for override in command.overrides if plain_key(override) not in command.varied)
    extra = [MEASURED, *([f"++{tuned}={tuning.values[0]}"] if tuning else [])]
    softmax = tuple(override for override in arms[0] if override_key(override).partition(".")[0] != "attention")
    every = [(*softmax, "attention=softmax"), *arms]
    jobs = [(*arm, *extra, *rung.overrides(tuned)) for arm in every for rung in ladder.rungs]
    checked(command, checker, jobs)
    sizes = checker.sizes(jobs)
    count = len(ladder.rungs)
    of_rungs = sizes[:count]
    updates = updates_of(ladder, of_rungs)
    announce(ladder, of_rungs, updates)
    sized: dict[Overrides, list[Overrides]] = {}
    for number, arm in enumerate(arms, start=1):
        of_arm, sized[arm] = sizes[number * count : (number + 1) * count], []
        for rung, size, own, steps in zip(ladder.rungs, of_rungs, of_arm, updates, strict=True):
            record = {
                "parameters": size.parameters,
                "train_tokens": steps * size.tokens,
                "flops_per_token": size.flops_per_token,
                "own_parameters": own.parameters,
                "keys": [*ladder.keys, UPDATES],
                "tuned": tuned,
            }
            length = (f"++{UPDATES}={steps}", "++trainer.max_epochs=null")
            sized[arm].append((*rung.overrides(tuned, **record), *length))
    return replace(command, sized=sized)


def updates_of(ladder: Ladder, sizes: Sequence[Sized]) -> list[int]:
    """The number of updates of each rung. Raises ConfigError for a rung that ends before its first validation."""
    updates = [math.ceil(size.parameters * ladder.tokens_per_parameter / size.tokens) for size in sizes]
    problems = []
    for rung, size, steps in zip(ladder.rungs, sizes, updates, strict=True):
        if steps < size.validation:
            length = f"rung {rung.number} of ladder={ladder.name} has {steps:,} updates"
            message = f"{length}, and the first validation comes after {size.validation:,}"
            problems.append(Problem("trainer.val_check_interval", message))
    if problems:
        raise ConfigError(problems)
    return updates


def announce(ladder: Ladder, sizes: Sequence[Sized], updates: Sequence[int]) -> None:
    """Prints a line per rung, and what makes its results doubtful."""
    for rung, size, steps in zip(ladder.rungs, sizes, updates, strict=True):
        tokens, epochs = steps * size.tokens, steps / size.updates_per_epoch
        held = ", held out" if rung.is_beyond else ""
        console.print(
            f"rung {rung.number}: {size.parameters:,} parameters, {tokens:,.0f} tokens, {steps:,} updates, "
            f"{tokens * size.flops_per_token:.3g} FLOPs, {epochs:.2f} epochs{held}",
            markup=False,
        )
        if epochs > MANY:
            line = f"rung {rung.number} repeats its data more than {MANY} times, so its tokens are not worth new ones"
            console.print(line, style="yellow")
        if steps < FEW:
            line = f"rung {rung.number} has fewer than {FEW:,} updates, so a trend may measure early training"
            console.print(line, style="yellow")
