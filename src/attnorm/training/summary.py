"""summary.json: what became of a run, also of one that failed."""

import time
from pathlib import Path
from typing import Any

from attnorm.training.callbacks.throughput import Throughput
from attnorm.training.environment import is_first_rank, peak_memory, write_json


class RunSummary(dict[str, Any]):
    """The values of summary.json, written when this context ends, by the first rank.

    Whatever ends the context early (an exception, a signal) is recorded as `why` before it is raised again.
    """

    def __init__(self, run_folder: Path, throughput: Throughput, **values: Any):
        super().__init__(values, finished=False)
        self.path, self.throughput, self.started = run_folder / "summary.json", throughput, time.perf_counter()

    def __enter__(self) -> "RunSummary":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, _: object) -> None:
        if error is not None:
            self.update(finished=False, why=f"{type(error).__name__}: {error}")
        self.write()

    def fail(self, why: str) -> None:
        """Records, at once, that the run has failed; for a process that is about to be ended."""
        self.update(finished=False, why=why)
        self.write()

    def write(self) -> None:
        """Writes summary.json, on the first rank."""
        self["tokens_per_second"] = self.throughput.per_second()
        self.update(peak_memory=peak_memory(), wall_seconds=round(time.perf_counter() - self.started, 1))
        if is_first_rank():
            write_json(self.path, dict(self))
