"""What runs cost: speed, memory and time, as recorded in their summary.json."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from attnorm.analysis.arms import TrainedRun, as_number


@dataclass(frozen=True)
class Cost:
    """How a cost is shown. name: the header of its column. digits: after the point. meaning: in words."""

    name: str
    digits: int
    meaning: str


COSTS = {
    "tokens_per_second": Cost("tokens/s", 0, "training speed in tokens per second without padding, mean over seeds"),
    "peak_memory_mb": Cost("memory (MB)", 0, "peak memory of the GPU, or of the process on a CPU, mean over seeds"),
    "hours": Cost("hours per run", 2, "wall time of a run, mean over seeds"),
    "parameters": Cost("parameters", 0, "number of trained parameters"),
}


def costs_of(run: TrainedRun) -> dict[str, float]:
    """The costs of a run by name, as in COSTS, as far as they are recorded. On a GPU, the memory is that of the GPU."""
    memory = run.summary.get("peak_memory")
    memory = memory if isinstance(memory, dict) else {}
    seconds = as_number(run.summary.get("wall_seconds"))
    found = {
        "tokens_per_second": as_number(run.summary.get("tokens_per_second")),
        "peak_memory_mb": as_number(memory.get("gpu_mb", memory.get("process_mb"))),
        "hours": None if seconds is None else seconds / 3600,
        "parameters": as_number(run.summary.get("parameters")),
    }
    return {name: value for name, value in found.items() if value is not None}


def mean_costs(runs: Iterable[TrainedRun]) -> dict[str, float]:
    """The mean of each cost over the runs that have recorded it."""
    found: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        for name, value in costs_of(run).items():
            found[name].append(value)
    return {name: sum(values) / len(values) for name, values in found.items()}
