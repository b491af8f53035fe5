"""run.json: what a run records of itself, to be continued, evaluated and compared. The file may come from anyone.

| key | value |
|---|---|
| format | FORMAT |
| settings | what `read_settings` takes, of the last start |
| key | `run_key` of these settings |
| attention, overrides, command, started | the label of the attention, and how and when the run was started last |
| commit, versions, code | see `source_code.stated` |
| gpus, cpu, cpu_cores, cpu_threads | of the machine |
| fingerprints | of the data, by split, and of the tokenizer |
| modules | the digests of the own modules, see `source_code.own_modules` |
| resumed | a mapping for each start that continued the training: [before, after] of each flat key that it changed |
| attention_kernels, compile | added when training ends |
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attnorm.errors import RunError
from attnorm.schema import is_name
from attnorm.settings import leaves

FORMAT = 1
REQUIRED_GROUPS = ("task", "model", "attention", "data", "optimizer")
GROUPS = (*REQUIRED_GROUPS, "tokenizer", "scheduler", "trainer", "paths")
NULLABLE = ("run", "decoding", "callbacks", "logger")
TABLES = ("prior", "scorer", "bank", "gate", "exclusive", "differential", "laser")  # of attention, by site
KINDS = {"settings": dict, "versions": dict, "fingerprints": dict, "modules": dict, "resumed": list, "overrides": list}
NOT_COMPARED = ("format", "fingerprints", "resumed", "attention_kernels", "compile")  # between two starts
MODULES = "modules."
NOT_IN_KEY = ("paths", "logger", "tags", "run", "resume")  # where and how safely a run trains, and what is shown of it


def read_run_record(path: Path) -> dict[str, Any]:
    """The content of a run.json, as plain values. A "${...}" in it is plain text: it is never resolved.

    Raises RunError for another format, and for anything but the record of a run.
    """
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path}: cannot be read: {str(error).splitlines()[0]}") from error
    if not isinstance(record, dict) or "format" not in record:
        raise RunError(f"{path}: expected the record of a run, a JSON object with the key format")
    if record["format"] != FORMAT:
        raise RunError(f"{path}: has the format {record['format']!r}; this version of attnorm reads format {FORMAT}")
    for problem in unlike_record(record):
        raise RunError(f"{path}: {problem}")
    return record


def unlike_record(record: Mapping[str, Any]) -> Iterator[str]:
    """What every run records and this record does not, and values of another kind."""
    for key, kind in KINDS.items():
        if not isinstance(record.get(key, kind()), kind):
            yield f"{key} is not a {'list' if kind is list else 'mapping'}"
    settings = record.get("settings", {})
    groups = {group: settings.get(group, {}) for group in GROUPS}
    groups |= {group: settings.get(group) or {} for group in NULLABLE}
    if isinstance(groups["attention"], dict):
        groups |= {f"attention.{table}": groups["attention"].get(table, {}) for table in TABLES}
    for key, value in groups.items():
        if not isinstance(value, dict):
            yield f"{key}={value}: expected settings by name"
    for group in REQUIRED_GROUPS:
        if group not in settings:
            yield f"{group} is missing"
    if type(settings.get("seed")) is not int:
        yield f"seed={settings.get('seed')}: expected a whole number"
    rate = settings.get("optimizer", {}).get("lr")
    if not isinstance(rate, (int, float)):
        yield f"optimizer.lr={rate}: expected a number"
    if not is_name(name := settings.get("task", {}).get("name")):
        yield f"task.name={name}: expected the name of a folder"


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, list[Any]]:
    """[before, after] of each flat key that differs between the records of two starts."""
    pair = (before, after)
    old, new = ({key: value for key, value in leaves(each) if key.split(".")[0] not in NOT_COMPARED} for each in pair)
    return {key: [old.get(key), new.get(key)] for key in {**old, **new} if old.get(key) != new.get(key)}


def modules_in(record: Mapping[str, Any]) -> dict[str, list[str]]:
    """All digests of each own module with which a run was trained, over all its starts."""
    pairs: list[tuple[str, Any]] = [(name, [digest]) for name, digest in record.get("modules", {}).items()]
    for start in record.get("resumed", ()):
        changed = start.items() if isinstance(start, dict) else ()
        pairs += [(key.removeprefix(MODULES), pair) for key, pair in changed if key.startswith(MODULES)]
    digests = dict[str, list[str]]()
    for name, pair in pairs:
        known = digests.setdefault(name, [])
        for digest in pair if isinstance(pair, list) else ():
            known += [digest] if isinstance(digest, str) and digest not in known else []
    return digests


def run_key(cfg: Mapping[str, Any]) -> str:
    """The SHA-256 of a resolved configuration, 64 hexadecimal digits.

    Two runs have the same key if and only if they train and score the same thing.
    Keys that do not change what is trained are left out: `paths`, `logger`, `tags`, `run` and `resume`. The
    configuration may also be one that was read from run.json.
    """
    kept = trained_settings(cfg)
    return hashlib.sha256(json.dumps(kept, sort_keys=True, default=str).encode()).hexdigest()


def trained_settings(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """The groups and keys of a configuration that change what is trained."""
    return {key: value for key, value in cfg.items() if key not in NOT_IN_KEY}
