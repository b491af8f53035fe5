"""`attnorm train --help`: every key with its comment, as the files in conf/ have them."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from attnorm.choices import CONF

HEAD = """\
usage: attnorm train [group=file ...] [key=value ...] [-m for a sweep]

Each section below is a file of a group, with its keys as they are typed. Choose other files with group=file; the
sections then change: attnorm train task=vqa --help
"""


def train_help(arguments: Sequence[str]) -> str:
    """The help text for what is chosen in `arguments`."""
    sections = [HEAD, (CONF / "train.yaml").read_text().rstrip()]
    for group, name in chosen(arguments).items():
        if group == "hydra" or name is None:
            continue
        files = sorted(file.stem for file in (CONF / group).glob("*.yaml"))
        sections.append(f"# ---- {group}={name}    (one of {', '.join(files)})")
        sections += [text(file) for file in with_bases(CONF / group / f"{name}.yaml")]
    return "\n\n".join(sections)


def chosen(arguments: Sequence[str]) -> dict[str, str | None]:
    """The file of each group: that of conf/train.yaml, of the chosen task or experiment, or the one that is typed."""
    groups: dict[str, str | None] = {}
    for entry in yaml.safe_load((CONF / "train.yaml").read_text())["defaults"]:
        groups |= entry if isinstance(entry, dict) else {}
    typed = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    typed = {group: name for group, name in typed.items() if (CONF / group / f"{name}.yaml").is_file()}
    for group in ("task", "experiment"):
        groups |= overridden(CONF / group / f"{typed.get(group, groups[group])}.yaml")
    return {group: typed.get(group, name) for group, name in groups.items()}


def overridden(file: Path) -> dict[str, str]:
    """The groups that a file and its bases override: {"data": "scenes"} for `override /data: scenes`."""
    groups: dict[str, str] = {}
    for base in with_bases(file) if file.is_file() else []:
        for entry in content(base).get("defaults", []):
            if isinstance(entry, dict):
                groups |= {key.removeprefix("override /"): name for key, name in entry.items() if "override" in key}
    return groups


def with_bases(file: Path) -> Iterator[Path]:
    """The files of the same group that a file builds on, then the file itself."""
    for entry in content(file).get("defaults", []):
        if isinstance(entry, str) and entry != "_self_":
            yield from with_bases(file.with_name(f"{entry}.yaml"))
    yield file


def content(file: Path) -> dict[str, Any]:
    return yaml.safe_load(file.read_text()) or {}


def text(file: Path) -> str:
    """A file as it is, without the lines that only Hydra reads, its keys below the name of the group."""
    lines = file.read_text().splitlines()
    is_global = any("@package _global_" in line for line in lines)
    kept = [line for line in lines if not line.startswith(("defaults:", "# @package", "  - ")) and line != "{}"]
    if is_global:
        return "\n".join(kept)
    first = next((number for number, line in enumerate(kept) if not line.startswith("#")), len(kept))
    keys = [f"  {line}" for line in kept[first:] if line]
    return "\n".join([*kept[:first], f"{file.parent.name}:", *keys] if keys else kept)
