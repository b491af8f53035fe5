"""Turning errors into messages and exit codes."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from attnorm.config.hydra_errors import hydra_problem
from attnorm.errors import ConfigError, Interrupted, UserError
from attnorm.wording import printable


def exit_code(job: Callable[[], int]) -> int:
    """Runs a job and returns its exit code; what a user got wrong is a message and 2, a signal is 128 + its number.

    With HYDRA_FULL_ERROR=1 in the environment every error shows its traceback.
    """
    try:
        return job()
    except Exception as error:
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            raise
        return explain(error)
    except Interrupted as stopped:
        if os.environ.get("LOCAL_RANK", "0") == "0":
            saved = stopped.checkpoint and f"; to continue it: attnorm train resume={stopped.checkpoint.parent.parent}"
            print(printable(f"{stopped}{saved or ' before a checkpoint was saved'}"), file=sys.stderr)
        return 128 + stopped.signal_number
    except KeyboardInterrupt:
        return 130


@contextmanager
def no_early_exit() -> Iterator[None]:
    """Raises RuntimeError if `sys.exit(0)` ends this context, as a part of one's own may do: the process must not
    report success before its work is done."""
    try:
        yield
    except SystemExit as error:
        if error.code in (None, 0):
            raise RuntimeError("sys.exit(0) was called before the command had ended") from error
        raise


def explain(error: Exception) -> int:
    """Says what a user got wrong and returns the exit code; a bug is raised again, with its traceback."""
    if isinstance(error, (HydraException, OmegaConfBaseException)):
        error = ConfigError([hydra_problem(error)])
    if isinstance(error, ConfigError):
        for problem in error.problems:
            print(printable(f"error: {problem}"), file=sys.stderr)
        return 2
    is_refusal = any(cls.__name__ == "MisconfigurationException" for cls in type(error).__mro__)  # of Lightning
    is_closed_pipe = isinstance(error, BrokenPipeError)  # which ends the process quietly, see `cli.main`
    is_of_machine = isinstance(error, OSError) and error.errno is not None and not is_closed_pipe
    if not (is_refusal or is_of_machine or isinstance(error, UserError)):
        raise error
    key = typed_path(error.filename) if isinstance(error, OSError) and isinstance(error.filename, str) else ""
    print(printable(f"error: {key}{error}\n(HYDRA_FULL_ERROR=1 in the environment shows where)"), file=sys.stderr)
    return 1


def typed_path(file: str) -> str:
    """The setting that was typed with a file or with its folder, such as "paths.log_dir=/data: "; or ""."""
    for typed in sys.argv[1:]:
        key, _, value = typed.partition("=")
        if value and Path(file).absolute().is_relative_to(Path(value).absolute()):
            return f"{key}={value}: "
    return ""
