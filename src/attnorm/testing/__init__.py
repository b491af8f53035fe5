"""The property suite of tasks: `check_task("my_task")` says whether a task keeps the promises of a run."""

from attnorm.testing.check_task import PROPERTIES, check_task

__all__ = ["PROPERTIES", "check_task"]
