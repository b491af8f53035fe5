"""The key of a run: two runs have the same key if and only if they train and score the same thing."""

import hashlib
import json
import sys
from collections.abc import Mapping
from typing import Any

from attnorm.imports import PATH, texts
from attnorm.moved import FIRST_NAMES
from attnorm.parts import TARGET
from attnorm.source_code import digests_of

LATER = {  # keys of `task` that runs of older versions have not recorded, with the values that they then have
    "rouge_words": (None, "ascii"),
    "rouge_lsum": (False,),
    "bleu_tokenizer": ("auto", "13a"),
    "monitor": (None,),
}
NOT_PART = ("paths", "logger", "tags", "run", "resume")  # where and how safely a run trains, and what is shown of it


def run_key(cfg: Mapping[str, Any]) -> str:
    """The SHA-256 of a resolved configuration, 64 hexadecimal digits.

    Keys that do not change what is trained are left out: `paths`, `logger`, `tags`, `run` and `resume`. The
    configuration may also be one that was read from config.yaml.
    """
    kept = with_first_names(without_later(trained_settings(cfg)))
    return hashlib.sha256(json.dumps(kept, sort_keys=True, default=str).encode()).hexdigest()


def without_later(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration as an older version would have recorded it: without `LATER` keys that change nothing."""
    task = cfg.get("task")
    if not isinstance(task, Mapping):
        return dict(cfg)
    return {**cfg, "task": {key: value for key, value in task.items() if value not in LATER.get(key, ())}}


def with_first_names(value: Any) -> Any:
    """The settings inside a value, with the names that classes had before their modules moved."""
    if isinstance(value, Mapping):
        named = {key: with_first_names(inner) for key, inner in value.items()}
        return {**named, TARGET: FIRST_NAMES.get(str(named[TARGET]), named[TARGET])} if TARGET in named else named
    return [with_first_names(inner) for inner in value] if isinstance(value, list) else value


def code_of(cfg: Mapping[str, Any]) -> dict[str, str]:
    """The digests of the own modules behind the paths "package.module.Class" in the settings of a run, by name.

    They stand beside the key, not in it: a run without them is still the same run.
    """
    paths = (match for _, text in texts(trained_settings(cfg)) if (match := PATH.fullmatch(text)))
    return digests_of(match[1] for match in paths if match[1] in sys.modules)


def trained_settings(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """The groups and keys of a configuration that change what is trained."""
    return {key: value for key, value in cfg.items() if key not in NOT_PART}
