"""`attnorm train --help`: every key with its comment, as the files in conf/ and in folders of the user have them."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from attnorm.choices import CONF, selectable, split_options
from attnorm.config.hydra_errors import no_such_file
from attnorm.errors import ConfigError
from attnorm.imports import PATH

HEAD = """\
usage: attnorm train [group=file ...] [key=value ...] [-m for a sweep]

Each section below is a file of a group, with its keys as they are typed. Choose other files with group=file; the
sections then change: attnorm train task=vqa --help
"""


def train_help(arguments: Sequence[str]) -> str:
    """The help text for what is chosen in `arguments`. Raises ConfigError for a file that is not there."""
    _, folders, typed, _ = split_options(arguments)
    sections = [HEAD, (CONF / "train.yaml").read_text().rstrip()]
    for group, name in chosen(typed, folders).items():
        if group == "hydra" or name is None:
            continue
        sections.append(f"# ---- {group}={name}    (one of {', '.join(selectable(group, files_of(group, folders)))})")
        sections += [text(file) for file in with_bases(files_of(group, folders), name)]
    return "\n\n".join(sections)


def files_of(group: str, folders: Sequence[Path]) -> dict[str, Path]:
    """The files of a group by name. folders: conf/, and those of the user, whose files take precedence."""
    return {file.stem: file for folder in folders for file in sorted((folder / group).glob("*.yaml"))}


def chosen(arguments: Sequence[str], folders: Sequence[Path]) -> dict[str, str | None]:
    """The file of each group: that of conf/train.yaml, of the chosen task or experiment, or the one that is typed."""
    groups: dict[str, str | None] = {}
    for entry in yaml.safe_load((CONF / "train.yaml").read_text())["defaults"]:
        groups |= entry if isinstance(entry, dict) else {}
    typed: dict[str, str] = {}
    for group, equals, names in (argument.partition("=") for argument in arguments):
        if not equals or not (files := files_of(group, folders)):
            continue
        for name in names.split(",") if not names.startswith("[") else ():
            if name in files:
                typed.setdefault(group, name)
            elif name != "null" and not (group == "attention" and PATH.fullmatch(name)):
                raise ConfigError([no_such_file(group, name, files)])
    for group in ("task", "experiment"):
        chosen_file = typed.get(group) or groups[group]
        for base in with_bases(files_of(group, folders), chosen_file) if chosen_file else ():
            for entry in content(base).get("defaults", []):
                if isinstance(entry, dict):  # {"override /data": "scenes"}
                    groups |= {key.removeprefix("override /"): of for key, of in entry.items() if "override" in key}
    return groups | typed


def with_bases(files: Mapping[str, Path], name: str) -> Iterator[Path]:
    """The files of the same group that a file builds on, then the file itself."""
    for entry in content(files[name]).get("defaults", []):
        if isinstance(entry, str) and entry != "_self_":
            yield from with_bases(files, entry)
    yield files[name]


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
