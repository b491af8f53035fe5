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
from importlib.util import find_spec
from typing import Any

from attnorm.choices import choices, is_of_files
from attnorm.config.names import with_owners
from attnorm.errors import ConfigError, Problem, UnknownOption, key_of, unknown
from attnorm.imports import nearest, parameters, short_name
from attnorm.parts import RESERVED, TARGET, Part, as_group, class_of, made
from attnorm.progress import quiet_libraries
from attnorm.schema import is_name, read_options
from attnorm.settings import Settings, TrainerConfig
from attnorm.tasks.results import monitor_directions
from attnorm.tasks.task import Task

NAME = "pytorch_lightning.Trainer"

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
PER_CORE = 4  # processes on the CPU: a small test may have more of them than there are cores
PACKAGES = ("attnorm.", "pytorch_lightning.")
FACTS = {
    "callbacks": ("run_folder", "dirpath", "monitor", "mode"),
    "logger": ("run_folder", "save_dir", "run_name", "tags", "config", "entry"),
}
NOT_CALLBACKS = {  # classes of Lightning that cannot be callbacks of a run, with the reason
    "ProgressBar": "a run has a progress bar of its own; use callbacks.progress.bar",
    "StochasticWeightAveraging": (
        "it averages the weights when training has ended, so the best checkpoint, which is kept and scored, would not "
        "have averaged weights; use pytorch_lightning.callbacks.EMAWeightAveraging"
    ),
    "LearningRateFinder": "the schedule sets the rate of every update; use tune=optimizer.lr=... of attnorm sweep",
    "BatchSizeFinder": "data.batch_tokens sets the size of an update",
    "GradientAccumulationScheduler": "trainer.accumulate_grad_batches divides an update, and never changes its size",
    "LambdaCallback": "a YAML file cannot hold a function; write a callback of your own",
    "SpikeDetection": "a run with it cannot be resumed, since it loses its state",
    "ThroughputMonitor": "a YAML file cannot hold its batch_size_fn, and a run measures its tokens per second anyway",
    "BackboneFinetuning": "the model of a task has no attribute `backbone`; write a BaseFinetuning of your own",
}
PACKAGES_OF_LOGGERS = {"CometLogger": "comet_ml", "MLFlowLogger": "mlflow", "WandbLogger": "wandb"}


@cache
def lightning() -> Any:
    """The module pytorch_lightning, imported when it is needed: that takes seconds."""
    import pytorch_lightning

    quiet_libraries()
    return pytorch_lightning


def read_trainer(settings: Mapping[str, Any]) -> TrainerConfig:
    """Reads the group, as far as that is possible without Lightning."""
    limited = dict(as_group("trainer", settings))
    for key in ("max_steps", "max_epochs"):
        if limited.get(key) == -1:
            limited[key] = None
    try:
        return made("trainer", TrainerConfig, limited, owner=NAME)
    except ConfigError as error:
        own = {f"trainer.{key}": f"cannot be set; {instead}" for key, instead in OWN_KEYS.items()}
        keyed = [(key_of(problem), problem) for problem in error.problems]
        raise ConfigError([Problem(key, own[key]) if key in own else problem for key, problem in keyed]) from error


def problems_of_machine(trainer: TrainerConfig) -> Iterator[Problem]:
    """A precision that diverges, a GPU that is not there, and too many processes for the cores of the CPU."""
    if trainer.precision == "16-true":
        message = "diverges, since nothing scales its gradients; use 16-mixed or bf16-true"
        yield Problem("trainer.precision", message, trainer.precision)
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
            message = f"counts batches, so it must be a multiple of trainer.accumulate_grad_batches={parts}"
            yield Problem(f"trainer.{key}", message, batches)
    devices = len(devices) if isinstance(devices, list) else devices
    for key in ("train_size", "max_train") if isinstance(devices, int) else ():
        if isinstance(rows := data.get(key), int) and rows < devices * parts:
            divided = f"an update is divided into {devices * parts} parts (times trainer.devices={devices})"
            message = f"{divided}, but data.{key}={rows} gives fewer rows than that"
            yield Problem("trainer.accumulate_grad_batches", message, parts)
            return


def is_needed(config: Settings) -> bool:
    """Whether only Lightning can say whether the values are right: no file of conf/ has them."""
    judged = {name for name, parameter in parameters(TrainerConfig).items() if parameter.annotation is not Any}
    if config.trainer.accelerator in (None, "auto", "cpu", "gpu", "cuda"):
        judged.add("accelerator")
    shipped = [entry for group in FACTS for file in choices(group).values() for entry in file.values()]
    entries = [*config.callbacks.values(), *config.loggers.values()]
    return not is_of_files("trainer", config.plain["trainer"], judged) or any(each not in shipped for each in entries)


def located(config: Settings) -> Settings:
    """The settings with the strategy, the callbacks and the loggers located. Raises ConfigError with what their classes
    say of their options, and Lightning of the values of the trainer."""
    problems, trainer, entries = list[str](), config.trainer, dict[str, Any]()
    for field, group in (("callbacks", "callbacks"), ("loggers", "logger")):
        try:
            entries[field] = read_entries(group, getattr(config, field))
        except ConfigError as error:
            problems += error.problems
    try:
        if isinstance(trainer.strategy, Mapping):
            key, base = "trainer.strategy", lightning().strategies.Strategy
            cls = class_of(key, trainer.strategy, base)
            trainer = replace(trainer, strategy=Part(cls, read_options(key, cls, trainer.strategy, elsewhere=RESERVED)))
        problems += refused_by_lightning(trainer)
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError([with_owners(problem, config.plain) for problem in problems])
    return config.model_copy(update={"trainer": trainer, **entries})


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
    arguments = trainer.arguments
    arguments.pop("deterministic", None)  # it acts on the whole process
    try:
        lightning().Trainer(**arguments, logger=False, enable_checkpointing=False, enable_progress_bar=False)
    except Exception as error:  # of many kinds, with the same meaning: a value is not accepted
        reason = str(error).strip().splitlines()[0]
        key = min([key for key in arguments if key in reason.lower()], key=reason.lower().index, default="")
        return [Problem(f"trainer.{key}", reason, arguments[key]) if key else Problem("trainer", reason)]
    nodes = trainer.num_nodes or 1
    if nodes > 1 and not (TorchElasticEnvironment.detect() or SLURMEnvironment.detect()):
        message = "start the processes of all machines with torchrun or srun; see docs/clusters.md"
        return [Problem("trainer.num_nodes", message, nodes)]
    return []


def problems_of_metrics(settings: Mapping[str, Any], task: Task) -> Iterator[Problem]:
    """Metrics that a scheduler or a callback would watch, and that no run of the task has.

    Callbacks of the user may log others; of those only the user knows whether "min" or "max" is best.
    """
    watching, has_own = dict[str, Mapping[str, Any]](), False
    for name, entry in settings["callbacks"].items():
        is_own = isinstance(entry, Mapping) and not str(entry.get(TARGET)).startswith(PACKAGES)
        has_own = has_own or is_own
        if entry and not is_own and entry.get("monitor") is not None:
            watching[name] = entry
    of_scheduler = settings["scheduler"].get("monitor")
    if of_scheduler is None and not watching:
        return
    directions = monitor_directions(task.monitors())
    validated = [metric for metric in directions if metric.startswith("val/")]
    if of_scheduler is not None and of_scheduler not in validated:
        yield Problem("scheduler.monitor", f"allowed: {', '.join(validated)}", of_scheduler)
    for name, entry in watching.items():
        if (monitor := entry["monitor"]) not in directions and not has_own:
            yield Problem(f"callbacks.{name}.monitor", f"allowed: {', '.join(directions)}", monitor)
        elif monitor not in directions and "mode" not in entry:
            message = f"must be given, min or max, as only you know which {monitor} is best"
            yield Problem(f"callbacks.{name}.mode", message)


def known_entries(group: str, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """The entries of the group `callbacks` or `logger` that are not null. Raises ConfigError for entries without a
    class, and for unknown options of classes of attnorm, whose import takes seconds; conf/ names all their options."""
    settings = as_group(group, settings)
    problems, known = list[str](), options_in_files(group)
    entries = {}
    for name, entry in settings.items():
        if entry is None:
            continue
        key, entries[name] = f"{group}.{name}", entry
        if not is_name(name):  # loggers write into folders of this name
            problems.append(Problem.about(key, f"{key}: an entry must have a name without /"))
        elif not isinstance(entry, Mapping):
            problems.append(Problem(key, "expected an entry with a _target_", entry))
        elif (target := entry.get(TARGET)) is None:
            near = nearest(name, (other for other in settings if other != name))
            message = f"no file sets it; a part of your own needs {key}.{TARGET}=package.module.Class.{near}"
            problems.append(unknown(key, UnknownOption(f"{key}.{TARGET}", message)))
        elif isinstance(target, str) and (options := known.get(target)):
            free = sorted(options - {*RESERVED})
            for option in entry.keys() - options - {*FACTS[group], *RESERVED}:
                message = f"{short_name(target)} has no such option; it has {', '.join(free)}.{nearest(option, free)}"
                full = f"{key}.{option}"
                problems.append(unknown(full, UnknownOption(full, message, entry[option])))
    if problems:
        raise ConfigError(problems)
    return entries


@cache
def options_in_files(group: str) -> dict[str, set[str]]:
    """The options of each class of attnorm that a file of the group names."""
    options: dict[str, set[str]] = {}
    for settings in choices(group).values():
        for entry in settings.values():
            if isinstance(entry, Mapping) and str(entry.get(TARGET)).startswith("attnorm."):
                options.setdefault(entry[TARGET], set()).update(entry)
    return options


def read_entries(group: str, settings: Mapping[str, Any]) -> dict[str, Part]:
    """The classes of these entries, with their options."""
    pl, entries, problems = lightning(), dict[str, Part](), list[str]()
    base = {"callbacks": pl.Callback, "logger": pl.loggers.Logger}[group]
    for name, entry in settings.items():
        key = f"{group}.{name}"
        try:
            cls = class_of(key, entry, base)
            why = [reason for name, reason in NOT_CALLBACKS.items() if issubclass(cls, getattr(pl.callbacks, name))]
            if cls is pl.callbacks.BaseFinetuning:
                why.append("it does nothing by itself; write a subclass of it")
            for name_of_class, package in PACKAGES_OF_LOGGERS.items():
                if issubclass(cls, getattr(pl.loggers, name_of_class)) and find_spec(package) is None:
                    why.append(f"needs the package {package}, which is not installed")
            if why:
                raise ConfigError([Problem(f"{key}.{TARGET}", why[0], entry[TARGET])])
            facts = {*FACTS[group]} - entry.keys()
            entries[name] = Part(cls, read_options(key, cls, entry, facts, elsewhere=RESERVED))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return entries
