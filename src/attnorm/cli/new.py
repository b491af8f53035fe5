"""`attnorm new`: a folder with parts of one's own that can be trained at once."""

import importlib.util
import keyword
import os
import re
import sys
from pathlib import Path

from attnorm.cli.verbs import is_help
from attnorm.errors import ConfigError, Problem

SKELETON = Path(__file__).resolve().parents[1] / "skeleton"
NAME = "lab"  # of the package in the skeleton
USAGE = """usage: attnorm new <folder>

Writes a package with a normalizer, a task, a model, a data source, a tokenizer, an optimizer, a scheduler, a callback
and a logger, their YAML files, tests, a README and a batch script for SLURM into a new or empty folder. The package is
called like the folder."""


def run_new(arguments: list[str]) -> int:
    """Writes the skeleton into the folder that was typed, or prints the usage. Returns the exit code."""
    if is_help(arguments) or not arguments:
        print(USAGE)
        return 0
    if len(arguments) > 1 or arguments[0].startswith("-"):
        sentence = f"{' '.join(arguments)}: expected one folder, as in attnorm new my_lab"
        raise ConfigError([Problem.about("folder", sentence)])
    write_skeleton(Path(arguments[0]))
    print(f"written to {arguments[0]}; to train there: cd {arguments[0]}; attnorm train task=sums")
    return 0


def write_skeleton(folder: Path) -> None:
    """Writes the skeleton, with the name of the folder for its package, and conf/ beside the package, where `attnorm`
    finds it.

    Raises ConfigError for a folder with something in it, and for a name that the package cannot have.
    """
    name, problems = folder.resolve().name, []
    if not name.isidentifier() or keyword.iskeyword(name):
        message = f"{name!r} cannot be the name of a package: use letters, digits and _"
        problems.append(Problem("folder", message, folder))
    elif name in sys.modules or importlib.util.find_spec(name):
        problems.append(Problem("folder", f"there is a module called {name} already; choose another name", folder))
    if os.path.lexists(folder) and (not folder.is_dir() or any(folder.iterdir())):
        problems.append(Problem("folder", "must be new or empty", folder))
    if problems:
        raise ConfigError(problems)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError([Problem("folder", f"cannot be made: {error.strerror}", folder)]) from error
    for source in sorted(SKELETON.rglob("*.*")):
        path = source.relative_to(SKELETON)
        if "__pycache__" in path.parts:
            continue
        if path.parts[:2] == (NAME, "conf"):
            path = path.relative_to(NAME)
        target = folder / renamed(str(path), name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(renamed(source.read_text(encoding="utf-8"), name), encoding="utf-8")


def renamed(text: str, name: str) -> str:
    """The text with another name for the package."""
    return re.sub(rf"\b{NAME}\b", name, text)
