"""`trainer.profiler`: where the time of a run goes, written into its folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.profilers import AdvancedProfiler, Profiler, PyTorchProfiler, SimpleProfiler

FOLDER = "profile"
PROFILERS: dict[str, type[Profiler]] = {
    "simple": SimpleProfiler,
    "advanced": AdvancedProfiler,
    "pytorch": PyTorchProfiler,
}


@contextmanager
def profiled(trainer: pl.Trainer) -> Iterator[None]:
    """Writes the report of a training that does not come to its end, and ends its profiler.

    Lightning does so only after a whole training. If the profiler of torch were left running, the next one in the same
    process, such as that of the next job of a sweep, would crash the process.
    """
    try:
        yield
    except BaseException:
        trainer.profiler.describe()  # type: ignore[attr-defined]  # set by Lightning
        raise


def profiler_of(name: str | None, run_folder: Path) -> Profiler | None:
    """The profiler of this name, as Lightning knows it. It writes to the folder `profile` of the run.

    simple: the time that each part of the training takes. advanced: the time in each Python function. pytorch: the time
    of each operation in a few updates, and a trace of them that chrome://tracing and https://ui.perfetto.dev open.
    """
    if name is None:
        return None
    options: dict[str, Any] = {"line_count_restriction": 50} if name.lower() == "advanced" else {}
    return PROFILERS[name.lower()](dirpath=run_folder / FOLDER, filename=name.lower(), **options)
