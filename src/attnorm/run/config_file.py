"""config.yaml of a run folder. The folder may come from anyone, so the file is read as plain data, within bounds."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from attnorm.errors import RunError
from attnorm.schema import is_name

MOST_BYTES, MOST_DEPTH, LARGEST = 1 << 20, 20, 1 << 53  # a real one has 3 kB and 4 levels
GROUPS = ("task", "model", "attention", "data", "tokenizer", "optimizer", "scheduler", "trainer", "paths")
REQUIRED_GROUPS = ("task", "model", "attention", "data", "optimizer")
TABLES = ("prior", "scorer", "bank", "gate", "exclusive", "differential", "laser")  # of attention, by site
Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # both build plain values only


def read_settings(path: Path) -> dict[str, Any]:
    """The settings in a config.yaml. Whatever else is in its folder plays no part.

    A "${...}" in it is plain text: it is never resolved, since it could read the environment. Raises RunError for
    anything but a plain YAML mapping of settings: aliases, tags, dates, and files or nesting of a size that no run
    writes.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise RunError(f"{path}: larger than the {MOST_BYTES:,} bytes that a configuration may have")
        text = path.read_text(encoding="utf-8")
        check_events(text, path)
        config = yaml.load(text, Loader)
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise RunError(f"{path}{line}: not valid YAML: {error.problem}") from error
    except (yaml.YAMLError, ValueError, OSError) as error:  # bytes that are no text, numbers of 5,000 digits
        if isinstance(error, RunError):
            raise
        raise RunError(f"{path}: cannot be read: {str(error).splitlines()[0]}") from error
    if not isinstance(config, dict) or not config:
        raise RunError(f"{path}: expected the settings of a run, a YAML mapping")
    for problem in chain(unlike_settings("", config), unlike_run(config)):
        raise RunError(f"{path}: {problem}")
    return config


def check_events(text: str, path: Path) -> None:
    """Raises RunError for YAML that could not be read safely, before anything is built from it: an alias can grow
    without end, deep nesting ends the process in libyaml, and a tag that does not fit its value is a bug in PyYAML."""
    depth = 0
    event: Any  # its kind decides which attributes it has
    for event in yaml.parse(text, Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        is_typed = getattr(event, "tag", None) is not None
        if isinstance(event, yaml.AliasEvent) or is_typed or depth > MOST_DEPTH:
            not_allowed = f"aliases (*), tags (!) and more than {MOST_DEPTH} levels are not allowed"
            raise RunError(f"{path}:{event.start_mark.line + 1}: {not_allowed} in a run's configuration")


def unlike_settings(key: str, value: Any) -> Iterator[str]:
    """What is wrong with the kinds of the keys and values inside a value, whatever the settings mean."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if isinstance(name, str) and "${" not in name:
                yield from unlike_settings(f"{key}.{name}" if key else name, inner)
            else:
                yield f"{key or 'the top level'} has the key {name!r}; expected a name"
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from unlike_settings(f"{key}[{number}]", inner)
    elif isinstance(value, int) and abs(value) > LARGEST:
        yield f"{key}: the number is too large"
    elif value is not None and not isinstance(value, (str, int, float)):
        yield f"{key}={value}: a {type(value).__name__} is not allowed; put it in quotes"


def unlike_run(config: dict) -> Iterator[str]:
    """Groups of settings that are something else, and what every run records and this configuration does not."""
    groups = {group: config.get(group, {}) for group in GROUPS}
    groups |= {group: config.get(group) or {} for group in ("run", "decoding", "callbacks", "logger")}  # may be null
    if isinstance(groups["attention"], dict):
        groups |= {f"attention.{table}": groups["attention"].get(table, {}) for table in TABLES}
    for key, value in groups.items():
        if not isinstance(value, dict):
            yield f"{key}={value}: expected settings by name"
    for group in REQUIRED_GROUPS:
        if group not in config:
            yield f"{group} is missing"
    if type(config.get("seed")) is not int:
        yield f"seed={config.get('seed')}: expected a whole number"
    rate = config.get("optimizer", {}).get("lr")
    if not isinstance(rate, (int, float)):
        yield f"optimizer.lr={rate}: expected a number"
    name = config.get("task", {}).get("name")
    if not is_name(name):
        yield f"task.name={name}: expected the name of a folder"
