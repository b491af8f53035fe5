"""attnorm: a laboratory for attention normalizers. `attnorm.attention` stands alone; the rest trains and compares."""

import os
from importlib.util import find_spec

TYPE_CHECKING = False  # no library is imported here: with `python -m`, it could be a file of the working directory
if TYPE_CHECKING:
    from attnorm.analysis.loaded_run import LoadedRun as Run
    from attnorm.analysis.loaded_run import load_run
    from attnorm.cli.train import train

__all__ = ["Run", "load_run", "train"]
__version__ = "0.1.0"

# A Jupyter kernel names its way to draw here, and so do the processes that it starts. If it is that of another
# environment, neither matplotlib nor what imports it, such as Lightning, could be imported.
_backend = os.environ.get("MPLBACKEND", "")
if _backend.startswith("module://") and find_spec(_backend.removeprefix("module://").partition(".")[0]) is None:
    del os.environ["MPLBACKEND"]


def __getattr__(name: str) -> object:
    """Imports what is listed above when it is first used: `import attnorm.attention` needs nothing but torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        if name == "train":
            from attnorm.cli.train import train

            return train
        from attnorm.analysis import loaded_run

        return loaded_run.load_run if name == "load_run" else loaded_run.LoadedRun
    except ModuleNotFoundError as error:
        from attnorm.imports import laboratory_is_missing

        if message := laboratory_is_missing(error):
            error.add_note(f"attnorm.{name} {message}")
        raise
