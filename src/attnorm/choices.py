"""The files of conf/, by group: what can be chosen with `group=file`, and from which further folders."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

CONF = Path(__file__).resolve().parent / "conf"


def own_folder() -> Path | None:
    """The folder conf/ of the working directory if it has files for groups, as `attnorm new` makes them, else None.

    A folder with a train.yaml belongs to another program of Hydra, or is that of attnorm itself.
    """
    folder = Path("conf")
    groups = {path.name for path in CONF.iterdir() if path.is_dir()}
    is_own = folder.is_dir() and not (folder / "train.yaml").exists()
    return folder if is_own and any((folder / group).is_dir() for group in groups) else None


def split_options(arguments: Sequence[str]) -> tuple[tuple[str, ...], list[Path], list[str], list[str]]:
    """`--config-dir` options, all configuration folders, the other arguments, and problems with other options."""
    options, folders, rest, problems = [], [CONF], [], []
    left = list(arguments)
    while left:
        argument = left.pop(0)
        name, equals, value = argument.partition("=")
        if name in ("--config-dir", "-cd"):
            value = value if equals else (left.pop(0) if left else "")
            options += ["--config-dir", value]
            folders.append(Path(value))
        elif argument in ("-m", "--multirun"):
            problems.append(f"{argument}: attnorm sweep always starts several runs; leave it out")
        elif argument.startswith("-"):
            problems.append(f"{argument}: no such option; allowed: --config-dir, --help, and key=value")
        else:
            rest.append(argument)
    if not options and (folder := own_folder()):
        options, folders = ["--config-dir", str(folder)], [CONF, folder]
    return tuple(options), folders, rest, problems


def selectable(group: str, names: Iterable[str]) -> list[str]:
    """The names of files of a group, sorted, without those of attnorm that are only the base of other files."""
    return sorted(name for name in names if name in choices(group) or not (CONF / group / f"{name}.yaml").exists())


@cache
def choices(group: str) -> dict[str, dict[str, Any]]:
    """The settings of the group in each file that can be chosen, by the file's name, without the files that it builds
    on. A file without a `_target_` on which files with one build cannot be chosen."""
    import yaml  # the list of verbs is shown without it

    paths = sorted((CONF / group).glob("*.yaml"))
    contents: dict[str, Any] = {path.stem: yaml.safe_load(path.read_text()) or {} for path in paths}
    # a file of the package _global_ has the settings under the group's name, beside those of other groups
    settings = {name: content.get(group, content) for name, content in contents.items()}
    of_classes = [values for values in settings.values() if "_target_" in values]
    bases = {base for values in of_classes for base in values.get("defaults", ()) if base in settings}
    return {name: values for name, values in settings.items() if "_target_" in values or name not in bases}


def is_of_files(group: str, settings: Mapping[str, Any], checked: Iterable[str] = ()) -> bool:
    """Whether a file of the group in conf/ sets the same, which is known to be right.

    checked: keys whose values are checked completely without the class of the group.
    """
    files = choices(group).values()
    return any({k for k in {*settings, *file} if settings.get(k) != file.get(k)} <= {*checked} for file in files)
