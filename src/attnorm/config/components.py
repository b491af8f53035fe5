"""Callbacks and loggers: groups of named entries, each with a `_target_`.

    callbacks:
      early:
        _target_: pytorch_lightning.callbacks.EarlyStopping
        patience: 3

An entry gets what the run knows (`FACTS`) for each parameter of that name that is not set. `null` leaves an entry out.
"""

from collections.abc import Mapping
from typing import Any

from attnorm.errors import ConfigError, Problem
from attnorm.parts import TARGET, class_of, options_of
from attnorm.run.opened_folder import is_name
from attnorm.schema import build, option_problems, parameters

FACTS = {
    "callbacks": ("run_folder", "monitor", "mode"),
    "logger": (
        *("run_folder", "save_dir", "run_name", "tags", "config", "group"),
        *("entry", "resumed_run", "first_step"),
    ),
}
NOT_CALLBACKS = {  # classes of Lightning that cannot be callbacks of a run, with the reason
    "ProgressBar": "a run has a progress bar of its own; use callbacks.progress.bar",
    "StochasticWeightAveraging": (
        "it averages the weights when training has ended, so the best checkpoint, which is kept and scored, would not "
        "have averaged weights"
    ),
}


def base_of(group: str) -> type:
    """The base class of the entries of a group."""
    import pytorch_lightning as pl

    return {"callbacks": pl.Callback, "logger": pl.loggers.Logger}[group]


def entries(cfg: Mapping[str, Any], group: str) -> dict[str, Mapping[str, Any]]:
    """The entries of a group that are not null."""
    return {name: settings for name, settings in (cfg.get(group) or {}).items() if settings is not None}


def component_problems(cfg: Mapping[str, Any]) -> list[str]:
    """Problems of the groups `callbacks` and `logger`."""
    problems: list[str] = []
    for group, facts in FACTS.items():
        for name, settings in entries(cfg, group).items():
            key = f"{group}.{name}"
            if not is_name(name):  # loggers write into folders of this name
                problems.append(Problem.about(key, f"{key}: an entry must have a name without /"))
                continue
            if not isinstance(settings, Mapping):
                problems.append(Problem(key, "expected an entry with a _target_", settings))
                continue
            try:
                cls, options = class_of(key, settings, base_of(group)), options_of(settings)
            except ConfigError as error:
                problems += error.problems
                continue
            if reason := next((why for name, why in NOT_CALLBACKS.items() if is_lightnings(cls, name)), None):
                problems.append(Problem(f"{key}.{TARGET}", reason, settings[TARGET]))
                continue
            problems += option_problems(key, cls, options, [fact for fact in facts if fact not in options])
    return problems


def is_lightnings(cls: type, name: str) -> bool:
    """Whether a class is this callback of Lightning, or extends it."""
    import pytorch_lightning as pl

    return issubclass(cls, getattr(pl.callbacks, name))


def build_strategy(trainer: Mapping[str, Any]) -> Any:
    """The value of `trainer.strategy` for Lightning: the name of a strategy, or an instance of the class that
    `trainer.strategy._target_` names. Raises ConfigError for a class or options that cannot be used."""
    strategy = trainer.get("strategy")
    if not isinstance(strategy, Mapping):
        return strategy
    import pytorch_lightning as pl

    key, options = "trainer.strategy", options_of(strategy)
    cls = class_of(key, strategy, pl.strategies.Strategy)
    if problems := option_problems(key, cls, options):
        raise ConfigError(problems)
    return build(key, cls, options)


def build_components(cfg: Mapping[str, Any], group: str, /, **facts: Any) -> list[Any]:
    """The callbacks or loggers of a run, in order. facts: values of FACTS; `entry`, the name, is added to them."""
    built = []
    for name, settings in entries(cfg, group).items():
        key, options = f"{group}.{name}", options_of(settings)
        cls = class_of(key, settings, base_of(group))
        wanted = parameters(cls).keys() - options.keys()  # not what a **kwargs would also take
        known = {fact: value for fact, value in {**facts, "entry": name}.items() if fact in wanted}
        built.append(build(key, cls, options, **known))
    return built
