"""Checking run.compile: whether this machine can compile a model, as far as that can be told without compiling."""

import os
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

from attnorm.errors import Problem

COMPILERS = ("g++", "clang++")


def check_compiler(run: Mapping[str, Any]) -> Iterator[Problem]:
    """run.compile=true on a machine without a C++ compiler, which torch.compile needs on the CPU and for GPUs."""
    named = os.environ.get("CXX")
    wanted = (named,) if named else COMPILERS
    if run.get("compile") is True and not any(map(shutil.which, wanted)):
        message = (
            f"torch.compile needs a C++ compiler, and there is no {' or '.join(wanted)} here; install one, or name "
            "yours in the environment variable CXX. Allowed: false"
        )
        yield Problem("run.compile", message, True)
