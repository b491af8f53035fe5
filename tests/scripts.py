"""Scripts that belong to no package, such as those of experiments/ and docs/, as modules."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]


def load(name: str) -> ModuleType:
    """The script at this path in the repository, without ".py". It is executed anew in each call."""
    spec = importlib.util.spec_from_file_location(name.replace("/", "_"), ROOT / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # for its dataclasses
    spec.loader.exec_module(module)
    return module
