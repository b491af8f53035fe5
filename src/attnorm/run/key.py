"""The key of a run: two runs have the same key if and only if they train and score the same thing."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

NOT_PART = ("paths", "logger", "tags", "run", "resume")  # where and how safely a run trains, and what is shown of it


def run_key(cfg: Mapping[str, Any]) -> str:
    """The SHA-256 of a resolved configuration, 64 hexadecimal digits.

    Keys that do not change what is trained are left out: `paths`, `logger`, `tags`, `run` and `resume`. The
    configuration may also be one that was read from run.json.
    """
    kept = trained_settings(cfg)
    return hashlib.sha256(json.dumps(kept, sort_keys=True, default=str).encode()).hexdigest()


def trained_settings(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """The groups and keys of a configuration that change what is trained."""
    return {key: value for key, value in cfg.items() if key not in NOT_PART}
