"""Whether a trained model beats the simple methods that its scores stand beside, and what to raise if it does not."""

import math
from collections.abc import Mapping

from attnorm.settings import Settings
from attnorm.tasks.results import NAMES, UNDEFINED, Results, direction
from attnorm.training.console import in_digits

EPOCHS = 10  # over the training data: models trained from scratch on small data rarely do well with fewer


def warnings_of(
    scores: Results,
    cfg: Settings,
    steps: int,
    planned: int,
    updates_an_epoch: int,
    declared: Mapping[str, str] | None = None,
) -> list[str]:
    """One text for each baseline that the model does not beat: by how much, the likely cause, what to raise.

    steps: updates that were made; planned: those that the limits in `cfg` allow. declared: as in `direction`.
    """
    remedy = longer(cfg, steps, planned, updates_an_epoch)
    return undefined(scores) or [f"{shortfall} {remedy}" for shortfall in unbeaten(scores, declared)]


def undefined(scores: Results) -> list[str]:
    """A sentence for each metric that is not defined for many references, such as ROUGE without a word to compare."""
    return [
        f"{NAMES.get(metric, metric)} is undefined for {share:.1%} of the references, and says nothing about the model."
        for metric, share in scores.extra.get("undefined", {}).items()
        if share > UNDEFINED
    ]


def unbeaten(scores: Results, declared: Mapping[str, str] | None = None) -> list[str]:
    """A sentence for each baseline that is at least as good in its first metric, which is the task's main one."""
    sentences = []
    for name, metrics in scores.baselines.items():
        metric, simple = next(iter(metrics.items()))
        trained = scores.metrics.get(metric, math.nan)
        ahead = direction(metric, declared) * (simple - trained)
        if ahead >= 0:  # a NaN is not
            scored = f"{NAMES.get(metric, metric)} {in_digits(trained, metric)} against {in_digits(simple, metric)}"
            sentences.append(
                f"The model scores {'below' if ahead else 'no better than'} the simple baseline {name}: {scored}."
            )
    return sentences


def longer(cfg: Settings, steps: int, planned: int, updates_an_epoch: int) -> str:
    """The likely cause of a bad score, and which limits to raise for a longer training."""
    done = f"{steps:,} updates = {steps / updates_an_epoch:.1f} epochs over the training data"
    if steps < planned:
        return (
            f"Training stopped before the {planned:,} planned updates, after {done}. To train longer, raise "
            "callbacks.early_stopping.patience or trainer.max_time."
        )
    cause = f"The likely cause is too few updates: {done}."
    if steps >= EPOCHS * updates_an_epoch:
        cause = f"Possible causes are too few updates ({done}) and too little training data."
    limits = [f"trainer.{name}" for name in ("max_epochs", "max_steps") if getattr(cfg.trainer, name)]
    return f"{cause} To train longer, raise {' and '.join(limits) or 'task.max_steps'}."
