"""`trainer.profiler`: where the time of a run goes, written into its folder."""

from pathlib import Path
from typing import Any

from pytorch_lightning.profilers import AdvancedProfiler, Profiler, PyTorchProfiler, SimpleProfiler

FOLDER = "profile"
PROFILERS: dict[str, type[Profiler]] = {
    "simple": SimpleProfiler,
    "advanced": AdvancedProfiler,
    "pytorch": PyTorchProfiler,
}


def profiler_of(name: str | None, run_folder: Path) -> Profiler | None:
    """The profiler of this name, as Lightning knows it. It writes to the folder `profile` of the run.

    simple: the time that each part of the training takes. advanced: the time in each Python function. pytorch: the time
    of each operation in a few updates, and a trace of them that chrome://tracing and https://ui.perfetto.dev open.
    """
    if name is None:
        return None
    options: dict[str, Any] = {"line_count_restriction": 50} if name.lower() == "advanced" else {}
    return PROFILERS[name.lower()](dirpath=run_folder / FOLDER, filename=name.lower(), **options)
