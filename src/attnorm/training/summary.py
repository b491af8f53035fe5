"""summary.json: what became of a run, also of one that failed."""

import logging
import time
from typing import Any

from attnorm.errors import Interrupted
from attnorm.run.folder import RunState
from attnorm.run.writing import RunWriter
from attnorm.training.callbacks.throughput import Throughput
from attnorm.training.environment import is_first_rank, peak_memory

log = logging.getLogger(__name__)


class RunSummary(dict[str, Any]):
    """The values of summary.json, written when this context ends, by the first rank, if the run has begun.

    `state` is finished, interrupted (by a signal or a time limit) or failed. Whatever ends the context early (an
    exception, a signal) is recorded as `why` before it is raised again. `wall_seconds` includes the parts of a run that
    was resumed in its folder; of a part that was killed, what progress.json recorded.
    """

    def __init__(self, run: RunWriter, throughput: Throughput, **values: Any):
        super().__init__(values, state=RunState.FAILED)
        self.run, self.throughput, self.started = run, throughput, time.perf_counter()
        self.earlier = 0.0
        self.has_begun = False

    def __enter__(self) -> "RunSummary":
        recorded = (self.run.record(stem).get("wall_seconds") for stem in ("summary", "progress"))
        self.earlier = max((seconds for seconds in recorded if isinstance(seconds, (int, float))), default=0.0)
        return self

    def begin(self) -> None:
        """Removes the summary of the part of the run that is being resumed. Before that, nothing is written."""
        self.has_begun = True
        if is_first_rank():
            self.run.forget("summary")

    def __exit__(self, kind: type | None, error: BaseException | None, _: object) -> None:
        if not self.has_begun:
            return
        if error is not None:
            stopped = isinstance(error, (Interrupted, KeyboardInterrupt))
            state = RunState.INTERRUPTED if stopped else RunState.FAILED
            self.update(state=state, why=f"{type(error).__name__}: {error}")
        self.update({"tokens_per_second": None} | self.throughput.totals())
        try:
            if is_first_rank():
                self._write()
        except OSError as failure:  # the disk is full, say, which has probably ended the run as well
            if error is None:
                raise
            log.warning("could not write the summary of %s: %s", self.run.folder, failure)

    def fail(self, why: str) -> None:
        """Records, at once, that the run has failed; for a process that is about to be ended.

        Nothing is read from the device, which may hang. Another rank writes the file for the first one if that one died
        or hung before it could.
        """
        self.update(state=RunState.FAILED, why=why)
        if is_first_rank() or not self.run.record("summary"):
            self._write()

    def wall_seconds(self) -> float:
        """The wall time of all parts of the run so far."""
        return round(self.earlier + time.perf_counter() - self.started, 1)

    def _write(self) -> None:
        self.update(peak_memory=peak_memory(), wall_seconds=self.wall_seconds())
        self.run.write("summary", dict(self))
