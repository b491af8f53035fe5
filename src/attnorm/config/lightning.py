"""The groups that Lightning uses: `trainer`, whose keys reach pytorch_lightning.Trainer unchanged except those that a
run itself decides, and `callbacks` and `logger`, which hold named entries, each with a `_target_`.

    callbacks:
      early:
        _target_: pytorch_lightning.callbacks.EarlyStopping
        patience: 3

An entry gets what the run knows (`FACTS`) for each parameter of that name that is not set; `mode` belongs to `monitor`
and means something else without it. `null` leaves an entry out. Importing Lightning takes seconds, so that the group
`trainer` is first read without it.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from attnorm.errors import Problem, unknown
from attnorm.imports import nearest, parameters
from attnorm.parts import RESERVED, TARGET, Part, Problems
from attnorm.progress import quiet_libraries
from attnorm.schema import is_name, read_options
from attnorm.settings import TrainerConfig

CHECKED = {  # groups whose classes are tried, and the keys of them that are checked completely before that
    "trainer": (
        *("max_steps", "max_epochs", "min_steps", "min_epochs", "accumulate_grad_batches", "gradient_clip_val"),
        *("val_check_interval", "limit_train_batches", "limit_val_batches", "log_every_n_steps"),
        *("num_sanity_val_steps", "detect_anomaly", "deterministic", "inference_mode"),
    ),
    "callbacks": (),
    "logger": (),
    "optimizer": ("lr", "weight_decay", "hybrid_lr_factor", "freeze", "lr_factors"),
}
OWN_KEYS = {  # what a run decides itself, and what to use instead
    "logger": "use the group logger, such as logger=wandb",
    "callbacks": "use the group callbacks, such as callbacks.mine._target_=my_module.MyCallback",
    "plugins": "checkpoints are always written atomically",
    "enable_progress_bar": "use callbacks.progress.bar",
    "enable_checkpointing": "a run always keeps its best and last checkpoint",
    "enable_model_summary": "the number of parameters is always shown",
    "use_distributed_sampler": "batches are shared among devices already",
    "default_root_dir": "use paths.log_dir",
    "overfit_batches": "use debug=overfit or data.max_train",
    "check_val_every_n_epoch": "use trainer.val_check_interval (batches, or a share of an epoch) or task.validations",
    "reload_dataloaders_every_n_epochs": "the order of examples changes every epoch already",
    "barebones": "it leaves out checkpoints and logs, which every run keeps",
}
ARGUMENTS = {  # of pytorch_lightning.Trainer, whose import takes seconds, without those above
    *("accelerator", "strategy", "devices", "num_nodes", "precision", "fast_dev_run", "max_epochs", "min_epochs"),
    *("max_steps", "min_steps", "max_time", "limit_train_batches", "limit_val_batches", "limit_test_batches"),
    *("limit_predict_batches", "val_check_interval", "num_sanity_val_steps", "log_every_n_steps"),
    *("accumulate_grad_batches", "gradient_clip_val", "gradient_clip_algorithm", "deterministic", "benchmark"),
    *("inference_mode", "profiler", "detect_anomaly", "sync_batchnorm", "model_registry"),
    "enable_autolog_hparams",
}
LIMITS = ("max_steps", "max_epochs")  # null and -1: no such limit
PER_CORE = 4  # processes on the CPU: a small test may have more of them than there are cores
PACKAGES = ("attnorm.", "pytorch_lightning.")
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


@cache
def lightning() -> Any:
    """The module pytorch_lightning, imported when it is needed: that takes seconds."""
    import pytorch_lightning

    quiet_libraries()
    return pytorch_lightning


def read_trainer(settings: Mapping[str, Any], data: Mapping[str, Any], problems: Problems) -> TrainerConfig:
    """Reads the group, as far as that is possible without Lightning; `check_trainer` does the rest.

    data: the group `data`, for the number of rows.
    """
    for key in settings:
        if key in OWN_KEYS:
            problems.append(Problem(f"trainer.{key}", f"cannot be set; {OWN_KEYS[key]}"))
        elif key not in ARGUMENTS:
            message = f"pytorch_lightning.Trainer has no such argument.{nearest(key, ARGUMENTS)}"
            problems.append(unknown(f"trainer.{key}", Problem(f"trainer.{key}", message)))
    limited = dict(settings)
    limited.pop("arguments", None)  # reported above
    for key in LIMITS:
        if limited.get(key) == -1:
            limited[key] = None
    read: TrainerConfig = problems.typed("trainer", TrainerConfig, limited, elsewhere=None)
    trainer = replace(read, arguments=dict(settings))
    if problems.is_valid("trainer"):
        problems += problems_of_machine(trainer)
        problems += problems_of_updates(trainer, data if problems.is_valid("trainer", "data") else {})
    return trainer


def differs(group: str, settings: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    """Whether the classes of a group have to be tried, because its settings differ from others that are right."""
    differing = {key for key in {**settings, **right} if settings.get(key) != right.get(key)} - {*CHECKED[group]}
    return bool(differing - {"accelerator"}) or settings.get("accelerator") not in (None, "auto", "cpu", "gpu", "cuda")


def problems_of_machine(trainer: TrainerConfig) -> Iterator[Problem]:
    """A GPU that is not there, and far more processes on the CPU than this machine has cores."""
    accelerator, devices, cores = trainer.accelerator or "auto", str(trainer.devices), os.cpu_count() or 1
    has_many, is_gpu = devices.isdecimal() and int(devices) > PER_CORE * cores, accelerator in ("gpu", "cuda")
    if not has_many and not is_gpu:
        return
    import torch  # which takes seconds

    if is_gpu and not torch.cuda.is_available():
        yield Problem("trainer.accelerator", "torch sees no GPU here; use trainer=auto or trainer=cpu", accelerator)
    elif has_many and (accelerator == "cpu" or (accelerator == "auto" and not torch.cuda.is_available())):
        message = f"allowed: 1 to {PER_CORE * cores} on the CPU of this machine, which has {cores} cores"
        yield Problem("trainer.devices", message, trainer.devices)


def problems_of_updates(trainer: TrainerConfig, data: Mapping[str, Any]) -> Iterator[Problem]:
    """Numbers of batches that would end in the middle of an update, and updates that would be divided into more parts
    than the training data has rows."""
    parts, devices = trainer.accumulate_grad_batches, trainer.devices
    for key in ("val_check_interval", "limit_train_batches"):
        batches = getattr(trainer, key)
        if isinstance(batches, int) and batches % parts:
            near = max(parts, round(batches / parts) * parts)
            message = (
                f"counts batches and must be a multiple of trainer.accumulate_grad_batches={parts}, so that it ends "
                f"with an update; the nearest is {near}"
            )
            yield Problem(f"trainer.{key}", message, batches)
    devices = len(devices) if isinstance(devices, list) else devices
    for key in ("train_size", "max_train") if isinstance(devices, int) else ():
        if isinstance(rows := data.get(key), int) and rows < devices * parts:
            message = (
                f"an update is divided into {devices * parts} parts (times trainer.devices={devices}), but "
                f"data.{key}={rows} gives fewer rows than that"
            )
            yield Problem("trainer.accumulate_grad_batches", message, parts)
            return


def check_trainer(trainer: TrainerConfig, problems: Problems) -> TrainerConfig:
    """The trainer with its strategy located. Adds what Lightning says of its values."""
    if isinstance(trainer.strategy, Mapping):
        base = lightning().strategies.Strategy
        trainer = replace(trainer, strategy=problems.part("trainer.strategy", trainer.strategy, base))
    if problems.is_valid("trainer"):
        problems += refused_by_lightning(trainer)
    return trainer


def refused_by_lightning(trainer: TrainerConfig) -> list[Problem]:
    """What Lightning says of the values, about the first key that it mentions."""
    from lightning_fabric.plugins.environments import SLURMEnvironment, TorchElasticEnvironment

    try:
        timer = lightning().callbacks.Timer(trainer.max_time)
        is_duration = trainer.max_time is None or (timer.time_remaining() or 0) > 0
    except Exception:  # Lightning raises errors of many kinds for an invalid duration
        is_duration = False
    if not is_duration:
        return [Problem("trainer.max_time", "allowed: durations DD:HH:MM:SS above 0 or null", trainer.max_time)]
    given = {key: value for key, value in trainer.arguments.items() if value is not None}  # null: it is not set
    given = {key: value for key, value in given.items() if key not in LIMITS or value != -1}
    given.pop("deterministic", None)  # it acts on the whole process
    try:
        whole = {**given, "strategy": strategy_of(trainer)}
        lightning().Trainer(**whole, logger=False, enable_checkpointing=False, enable_progress_bar=False)
    except Exception as error:  # of many kinds, with the same meaning: a value is not accepted
        reason = str(error).strip().splitlines()[0]
        key = min([key for key in given if key in reason.lower()], key=reason.lower().index, default="")
        return [Problem(f"trainer.{key}", reason, given[key]) if key else Problem("trainer", reason)]
    nodes = trainer.num_nodes or 1
    if nodes > 1 and not (TorchElasticEnvironment.detect() or SLURMEnvironment.detect()):
        message = "start the processes of all machines with torchrun or srun; see docs/clusters.md"
        return [Problem("trainer.num_nodes", message, nodes)]
    return []


def strategy_of(trainer: TrainerConfig) -> Any:
    """The value of `trainer.strategy` for Lightning: the name of a strategy, or an instance of the class that
    `trainer.strategy._target_` names."""
    return trainer.strategy.build() if isinstance(trainer.strategy, Part) else trainer.strategy or "auto"


def problems_of_metrics(settings: Mapping[str, Any], directions: Mapping[str, str]) -> Iterator[Problem]:
    """Metrics that a scheduler or a callback would watch, and that no run of the task has.

    Callbacks of the user may log others; of those only the user knows whether "min" or "max" is best.
    """
    validated = [metric for metric in directions if metric.startswith("val/")]
    if (monitor := settings["scheduler"].get("monitor")) is not None and monitor not in validated:
        yield Problem("scheduler.monitor", f"allowed: {', '.join(validated)}", monitor)
    entries = {name: entry for name, entry in settings["callbacks"].items() if isinstance(entry, Mapping)}
    own = {name for name, entry in entries.items() if not str(entry.get(TARGET)).startswith(PACKAGES)}
    for name in entries.keys() - own:
        monitor = entries[name].get("monitor")
        if monitor is None or monitor in directions:
            continue
        if not own:
            yield Problem(f"callbacks.{name}.monitor", f"allowed: {', '.join(directions)}", monitor)
        elif "mode" not in entries[name]:
            yield Problem(
                f"callbacks.{name}.mode", f"must be given, min or max, as only you know which {monitor} is best"
            )


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
            options, wrong = read_options(key, cls, entry, facts, elsewhere=RESERVED)
            problems += wrong
            entries[name] = Part(cls, options)
    return entries


def build_entries(
    entries: Mapping[str, Part], directions: Mapping[str, str] | None = None, /, **facts: Any
) -> list[Any]:
    """The callbacks or loggers of a run, in order.

    An entry gets those facts that its class names as parameters, unless they are set. facts: values of FACTS, to which
    `entry`, the name, is added, and `mode`, the direction of the metric that a callback watches.
    """
    built = []
    for name, part in entries.items():
        takes = parameters(part.cls).keys()  # not what a **kwargs would also take
        known = {**facts, "entry": name}
        if "monitor" in takes and (mode := (directions or {}).get(part.options.get("monitor", facts.get("monitor")))):
            known["mode"] = mode
        known = {fact: value for fact, value in known.items() if fact in takes - part.options.keys()}
        built.append(part.build(**known))
    return built
