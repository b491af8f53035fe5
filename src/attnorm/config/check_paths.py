"""The group `paths`: where run folders and prepared data go."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnorm.errors import Problem
from attnorm.parts import names_of
from attnorm.schema import Text, option_problems


@dataclass(frozen=True, kw_only=True)
class PathsConfig:
    """The keys of `paths`: run folders go to `log_dir`, prepared data to `cache_dir`."""

    log_dir: Text
    cache_dir: Text


def check_paths(paths: Mapping[str, Any]) -> list[Problem]:
    """Problems with the keys of `paths`, among them folders that cannot be made because a file is in the way."""
    problems = option_problems("paths", PathsConfig, paths)
    for key in () if problems else names_of(PathsConfig):
        folder = Path(paths[key])
        nearest_one = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        if not nearest_one.is_dir():
            problems.append(Problem(f"paths.{key}", f"must be a folder, but {nearest_one} is a file", paths[key]))
    return problems
