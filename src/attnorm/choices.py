"""The files of conf/, by group: what can be chosen with `group=file`."""

from functools import cache
from pathlib import Path
from typing import Any

CONF = Path(__file__).resolve().parent / "conf"


def own_folder() -> Path | None:
    """The folder conf/ of the working directory if it has files for groups, as `attnorm new` makes them, else None.

    A folder with a train.yaml belongs to another program of Hydra, or is that of attnorm itself.
    """
    folder = Path("conf")
    groups = {it.name for it in CONF.iterdir() if it.is_dir()}
    is_own = folder.is_dir() and not (folder / "train.yaml").exists()
    return folder if is_own and any((folder / group).is_dir() for group in groups) else None


def files_with(key: str) -> list[str]:
    """The choices whose file sets a key: ["data=vqa_v2"] for "data.features"."""
    group, _, name = key.partition(".")
    return [f"{group}={file}" for file, settings in choices(group).items() if name in settings]


@cache
def choices(group: str) -> dict[str, dict[str, Any]]:
    """The settings of the group in each of its files, by the file's name, without the files that it builds on."""
    import yaml  # `attnorm doctor` runs without it

    paths = sorted((CONF / group).glob("*.yaml"))
    contents: dict[str, Any] = {path.stem: yaml.safe_load(path.read_text()) or {} for path in paths}
    # a file of the package _global_ has the settings under the group's name, beside those of other groups
    return {name: content.get(group, content) for name, content in contents.items()}
