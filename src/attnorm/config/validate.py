"""Checking a configuration: all problems together, before any data are read."""

import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser

from attnorm.config.resolve import attention_problems, model_attention, typed_keys
from attnorm.config.resume import changed_settings
from attnorm.config.schema import RULES, leaves
from attnorm.data.sources.base import SOURCES, Source, build_source
from attnorm.data.tokenizers.base import check_tokenizer
from attnorm.errors import CheckpointError
from attnorm.imports import find, nearest
from attnorm.tasks.task import recipe_of, source_settings

OWN_TRAINER_KEYS = {  # what this project decides about pytorch_lightning.Trainer itself, and what to use instead
    "logger": "use logger=csv|wandb|tensorboard",
    "callbacks": "use the callbacks.* keys",
    "plugins": "checkpoints are always written atomically",
    "enable_progress_bar": "use callbacks.progress",
    "enable_checkpointing": "a run always keeps its best and last checkpoint",
    "enable_model_summary": "the number of parameters is always shown",
    "use_distributed_sampler": "batches are shared among devices already",
    "default_root_dir": "use paths.log_dir",
    "overfit_batches": "use debug=overfit or data.max_train",
    "check_val_every_n_epoch": "use trainer.val_check_interval (in batches) or task.validations",
    "reload_dataloaders_every_n_epochs": "the order of examples changes every epoch already",
}


def typed_in_vain(cfg: dict, overrides: Sequence[str]) -> list[str]:
    """One message for each key that was typed and that changes nothing: keys that nothing reads as the others are set,
    and keys of the model that its first weights or the data decide. Those of `attention` are checked with its tables.
    """
    recipe, model, problems = recipe_of(cfg), cfg["model"], []
    unread = recipe.unread() if model["name"] in recipe.models else {}
    typed = {it.key_or_group: it for it in OverridesParser.create().parse_overrides(list(overrides))}  # the last counts
    for key, override in typed.items():
        group, *rest = key.split(".")
        if key in unread:
            problems.append(f"{override.input_line}: nothing reads it as the rest is set; it is for {unread[key]}")
        elif group == "model" and len(rest) == 1 and rest[0] in model and not override.is_delete():
            value, now = override.value(), model[rest[0]]
            if value != now and "${" not in str(value):
                by = "model.init decides" if model.get("init") else "the data decide"
                problems.append(f"{override.input_line}: {by} it, it is {now}")
    return problems


def removed(overrides: Sequence[str]) -> list[str]:
    """One message for each `~key` that was typed: the code reads every key of the files, so none can be taken away."""
    optional = {"experiment", "hparams_search", "debug"}
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    keys = [it.key_or_group for it in parsed if it.is_delete()]
    return [
        f"~{key}: this key cannot be removed; set a value with {key}=<value>" for key in keys if key not in optional
    ]


def tokenizer_settings(cfg: dict) -> dict[str, Any]:
    """The options of the tokenizer."""
    return {key: value for key, value in cfg["tokenizer"].items() if key != "name"}


def check(cfg: dict, multirun: bool = False, overrides: Sequence[str] = ()) -> list[str]:
    """Every problem of a resolved configuration, one message each; empty when it can run.

    overrides: what was typed, "key=value".
    """
    problems = [*check_values(cfg)]

    def named(group: str) -> bool:  # the rest of a group is looked at by what its name stands for
        return not any(problem.startswith(f"{group}.name") for problem in problems)

    if named("model"):
        problems += attention_problems(cfg, typed_keys(overrides))
        problems += typed_in_vain(cfg, overrides) if named("task") else []
    if named("data") and named("task"):
        problems += check_data(cfg, ("train", "validation"))
    if named("tokenizer"):
        problems += check_tokenizer(cfg["tokenizer"]["name"], **tokenizer_settings(cfg))
    wrong = {problem.partition("=")[0] for problem in problems}
    return [*problems, *check_together(cfg, wrong), *check_training(cfg, multirun, wrong)]


def check_values(cfg: dict) -> Iterator[str]:
    """Each key against its rule; a key without one is read by nothing."""
    import pytorch_lightning as pl

    lightning = inspect.signature(pl.Trainer).parameters
    for key, value in leaves(cfg):
        group, _, name = key.partition(".")
        if key in RULES:
            if not RULES[key].accepts(value):
                yield f"{key}={value}: allowed are {RULES[key].allowed}"
        elif group == "trainer" and name in OWN_TRAINER_KEYS:
            yield f"{key}: {OWN_TRAINER_KEYS[name]}"
        elif group == "trainer" and name not in lightning:
            yield f"{key}: pytorch_lightning.Trainer has no such argument." + nearest(name, lightning)
        elif group not in ("trainer", "data", "tokenizer", "attention"):  # the last three: by the code that reads them
            yield f"{key}: nothing reads this key." + nearest(key, [k for k, _ in leaves(cfg) if k in RULES])
    for group in ("data", "tokenizer"):
        if "name" not in cfg[group]:
            yield f"{group}.name: not set, so this file is no {group} to use; choose another {group}=<file>"


def check_data(cfg: dict, splits: tuple[str, ...]) -> list[str]:
    """Problems of `data`: its source, the source's options, files that are missing, a kind the task cannot use."""
    name, needed = cfg["data"]["name"], recipe_of(cfg).kind
    try:
        source = build_source(name, **source_settings(cfg))
    except ValueError as error:
        return str(error).splitlines()
    if source.yields != needed:
        fitting = [other for other in SOURCES if find("data", other, SOURCES, Source).yields == needed]
        return [
            f"data={name}: it yields {source.yields}, task={cfg['task']['name']} needs {needed}; "
            f"sources that fit: {', '.join(fitting)}"
        ]
    return source.check(splits)


def check_trainer(trainer: dict) -> Iterator[str]:
    """Intervals that would end in the middle of an update, and whatever Lightning itself refuses."""
    import pytorch_lightning as pl

    pieces = trainer["accumulate_grad_batches"]
    for key in ("val_check_interval", "limit_train_batches"):
        batches = trainer[key]
        if isinstance(batches, int) and batches % pieces:
            near = max(pieces, round(batches / pieces) * pieces)
            yield (
                f"trainer.{key}={batches}: counts batches and must be a multiple of "
                f"trainer.accumulate_grad_batches={pieces}, so that it ends with an update; the nearest is {near}"
            )

    def refusal(settings: dict) -> str | None:
        try:
            pl.Trainer(**settings, logger=False, enable_checkpointing=False, enable_progress_bar=False)
        except Exception as error:  # of many kinds, with the same meaning: this value is not accepted
            return str(error).strip().splitlines()[0]
        return None

    known = inspect.signature(pl.Trainer).parameters.keys() - OWN_TRAINER_KEYS.keys()
    known -= {"max_steps", "val_check_interval"}  # null is a value of ours
    known -= {"deterministic"}  # acts on the whole process
    asked = {key: value for key, value in trainer.items() if key in known}
    if (reason := refusal(asked)) is not None:
        alone = [(key, value, refusal({key: value})) for key, value in asked.items()]
        named = [f"trainer.{key}={value}: {found}" for key, value, found in alone if found is not None]
        yield from named or [f"trainer: {reason}"]


def check_parts(cfg: dict) -> Iterator[str]:
    """Fewer training rows than an update is divided into, as far as the configuration tells."""
    devices, pieces = cfg["trainer"]["devices"], cfg["trainer"]["accumulate_grad_batches"]
    known = {key: cfg["data"].get(key) for key in ("train_size", "max_train")}
    limits = {key: value for key, value in known.items() if isinstance(value, int) and not isinstance(value, bool)}
    if not limits or not isinstance(devices, int):
        return
    key = min(limits, key=limits.__getitem__)
    if limits[key] < devices * pieces:
        yield (
            f"trainer.accumulate_grad_batches={pieces}: an update is divided into {devices * pieces} parts (times "
            f"trainer.devices={devices}), but data.{key}={limits[key]} gives fewer rows than that"
        )


def check_together(cfg: dict, wrong: set[str]) -> Iterator[str]:
    """Values of model, data and task that are sound alone and not together; `wrong` keys are not compared."""
    model = cfg["model"]

    def sound(*keys: str) -> bool:
        return wrong.isdisjoint(keys)

    if sound("model.width", "model.heads") and model["width"] % model["heads"]:
        yield f"model.width={model['width']}: not a multiple of model.heads={model['heads']}"
    if sound("task.name", "model.name"):
        recipe, task = recipe_of(cfg), cfg["task"]["name"]
        if model["name"] in recipe.models:
            yield from recipe.problems(sound)
        else:
            fitting = " or ".join(recipe.models)
            yield f"model.name={model['name']}: task={task} trains {fitting}; choose another model=<file>"


def check_training(cfg: dict, multirun: bool, wrong: set[str]) -> Iterator[str]:
    """What keeps a configuration from being trained here: the trainer's keys, and a checkpoint of another run."""
    import torch

    trainer = cfg["trainer"]

    def sound(*keys: str) -> bool:
        return wrong.isdisjoint(keys)

    if trainer["accelerator"] in ("gpu", "cuda") and not torch.cuda.is_available():
        yield f"trainer.accelerator={trainer['accelerator']}: torch sees no GPU here; use trainer=auto or trainer=cpu"
    elif sound(*(f"trainer.{key}" for key in trainer)):
        yield from check_trainer(trainer)
        if sound("data.train_size", "data.max_train"):
            yield from check_parts(cfg)
    single = trainer["devices"] in (1, "1") and trainer["strategy"] in ("auto", "single_device")
    if multirun and not single:
        yield (
            f"trainer.devices={trainer['devices']} with -m: every device's process would start a sweep of its own; "
            "sweep with one device, or start one process a run"
        )
    if sound("ckpt_path") and cfg["ckpt_path"] is not None and not Path(cfg["ckpt_path"]).is_file():
        yield f"ckpt_path={cfg['ckpt_path']}: no such file"
    elif (
        sound("ckpt_path", "model.name")
        and cfg["ckpt_path"] is not None
        and not any(key.startswith("attention") for key in wrong)
    ):
        try:
            yield from changed_settings({**cfg, "attention": model_attention(cfg)}, Path(cfg["ckpt_path"]))
        except CheckpointError as error:
            yield f"ckpt_path={error}"
