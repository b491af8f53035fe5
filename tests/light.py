"""The light environment: attnorm without extras, next to the packages that are installed here."""

import subprocess
import sys
import tomllib
from collections.abc import Collection, Iterator
from importlib.metadata import Distribution, distribution, packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from test_house import BASE, SOURCE, floor_of, imports

ROOT = SOURCE.parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CORE = ("torch", "entmax")  # what `pip install attnorm` installs
ROOMS = [room for room in ("attention", "nn", "integrations") if (SOURCE / room).is_dir()]
TOOLS = ("pytest", "pytest-timeout", "numpy", "scipy")  # of the tests in these rooms


def with_dependencies(*names: str) -> dict[str, Distribution]:
    """Installed distributions and, without their extras, all that they require, by canonical name."""
    found: dict[str, Distribution] = {}
    waiting = list(names)
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name not in found:
            found[name] = distribution(name)
            needed = map(Requirement, found[name].requires or ())
            waiting += [it.name for it in needed if it.marker is None or it.marker.evaluate({"extra": ""})]
    return found


def modules_of(distributions: Collection[str]) -> set[str]:
    """The top-level modules of distributions with these canonical names."""
    owners = packages_distributions().items()
    return {module for module, names in owners if {canonicalize_name(name) for name in names} & set(distributions)}


def python_without_extras(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs code where every installed module is missing that is neither of attnorm nor of `CORE`."""
    blocked = set(packages_distributions()) - modules_of(with_dependencies(*CORE)) - {"attnorm"}
    blocker = f"""
import sys

class Without:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, *where):
        return None if name in {sorted(blocked)} else self.finder.find_spec(name, *where)

sys.meta_path = [Without(finder) for finder in sys.meta_path]
"""
    command = [sys.executable, "-W", "ignore", "-c", blocker + code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=280)


def link(distributions: Collection[Distribution], folder: Path) -> None:
    """Makes a folder for the search path of Python in which only these distributions are."""
    folder.mkdir()
    for found in distributions:
        for name in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            if not (folder / name).exists():
                (folder / name).symlink_to(Path(str(found.locate_file(name))).resolve())


def light_tests() -> Iterator[Path]:
    """The test files of the rooms that import only from these rooms, helpers of theirs, and `TOOLS`."""
    ours = {*ROOMS, *BASE, "attnorm"}
    theirs = {*sys.stdlib_module_names, *modules_of(with_dependencies(*CORE, *TOOLS)), "attnorm", "_pytest"}

    def is_light(file: Path) -> bool:
        for module, _ in imports(file):
            helper = ROOT / "tests" / f"{module.partition('.')[0]}.py"
            if module.startswith("attnorm.") and floor_of(module) not in ours:
                return False
            if helper.is_file() and not is_light(helper):
                return False
            if not helper.is_file() and module.partition(".")[0] not in theirs:
                return False
        return True

    for room in ROOMS:
        yield from filter(is_light, sorted((ROOT / "tests" / room).rglob("test_*.py")))
