"""Callbacks and loggers: groups of named entries, each with a `_target_`.

    callbacks:
      early:
        _target_: pytorch_lightning.callbacks.EarlyStopping
        patience: 3

An entry gets what the run knows (`FACTS`) for each parameter of that name that is not set; `mode` belongs to `monitor`
and means something else without it. `null` leaves an entry out.
"""

from collections.abc import Mapping
from typing import Any

from attnorm.errors import Problem
from attnorm.imports import parameters
from attnorm.parts import TARGET, Part, Problems, options_of
from attnorm.progress import quiet_libraries
from attnorm.run.folder import is_name
from attnorm.schema import call, read_options

FACTS = {
    "callbacks": ("run_folder", "monitor", "mode"),
    "logger": ("run_folder", "save_dir", "run_name", "tags", "config", "group", "entry", "first_step"),
}
NOT_CALLBACKS = {  # classes of Lightning that cannot be callbacks of a run, with the reason
    "ProgressBar": "a run has a progress bar of its own; use callbacks.progress.bar",
    "StochasticWeightAveraging": (
        "it averages the weights when training has ended, so the best checkpoint, which is kept and scored, would not "
        "have averaged weights; use pytorch_lightning.callbacks.EMAWeightAveraging"
    ),
    "LearningRateFinder": "the schedule sets the rate of every update; use tune=optimizer.lr=... of attnorm sweep",
    "BackboneFinetuning": "the model of a task has no attribute `backbone`; write a BaseFinetuning of your own",
}


def lightning() -> Any:
    """The module pytorch_lightning, imported when it is needed: that takes seconds."""
    import pytorch_lightning

    quiet_libraries()
    return pytorch_lightning


def read_entries(group: str, settings: Mapping[str, Any], problems: Problems) -> dict[str, Part]:
    """The entries of the group `callbacks` or `logger` that are not null."""
    pl, entries = lightning(), {}
    base = {"callbacks": pl.Callback, "logger": pl.loggers.Logger}[group]
    for name, entry in settings.items():
        key = f"{group}.{name}"
        if entry is None:
            continue
        if not is_name(name):  # loggers write into folders of this name
            problems.append(Problem.about(key, f"{key}: an entry must have a name without /"))
        elif not isinstance(entry, Mapping):
            problems.append(Problem(key, "expected an entry with a _target_", entry))
        elif cls := problems.class_of(key, entry, base):
            unfit = [
                why for base_name, why in NOT_CALLBACKS.items() if issubclass(cls, getattr(pl.callbacks, base_name))
            ]
            if unfit:
                problems.append(Problem(f"{key}.{TARGET}", unfit[0], entry[TARGET]))
                continue
            facts = [fact for fact in FACTS[group] if fact not in entry]
            options, wrong = read_options(key, cls, options_of(entry), facts)
            problems += wrong
            entries[name] = Part(cls, options)
    return entries


def build_entries(entries: Mapping[str, Part], /, **facts: Any) -> list[Any]:
    """The callbacks or loggers of a run, in order. facts: values of FACTS; `entry`, the name, is added to them.

    An entry gets those facts that its class names as parameters, unless they are set.
    """
    built = []
    for name, part in entries.items():
        free = parameters(part.cls).keys() - part.options.keys()  # not what a **kwargs would also take
        known = {fact: value for fact, value in {**facts, "entry": name}.items() if fact in free}
        if "monitor" not in parameters(part.cls):
            known.pop("mode", None)
        built.append(call(part.cls, part.options, known))
    return built
