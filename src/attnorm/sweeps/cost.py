"""`cost=time` and `cost=flops`: every arm trains for as many updates as the budget of the baseline pays for.

The cost of an update is measured in short runs, one after the other, before the first job starts. Their folders stay in
the sweep folder, so the costs are the same when the command is repeated.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from attnorm.errors import ConfigError, Problem, RunError
from attnorm.run.key import NOT_PART
from attnorm.sweeps.jobs import Job, override_key
from attnorm.sweeps.record import recorded
from attnorm.sweeps.state import Journal

WARMUP, MEASURED = 5, 20  # updates that are not counted, and updates that are
KINDS = {"time": "seconds", "flops": "flops"}  # entries of cost.json
MEASURING = (  # overrides of a run that measures
    "++seed=0",
    f"++trainer.max_steps={WARMUP + MEASURED}",
    "++task.validations=1",
    "++trainer.val_check_interval=null",
    "++data.max_valid=16",
    "++callbacks.update_cost._target_=attnorm.training.callbacks.throughput.UpdateCost",
    f"++callbacks.update_cost.warmup={WARMUP}",
)


@dataclass(frozen=True)
class ArmCost:
    """What an arm costs.

    arm:         its label. task: the name of its task. is_softmax: whether its attention is softmax.
    configured:  the number of updates that is set. per_update: the cost of an update. unit: of this cost.
    updates:     the number of updates that the budget pays for. is_baseline: whether it sets the budget of its task.
    """

    arm: str
    task: str
    is_softmax: bool
    configured: int
    per_update: float
    unit: str
    updates: int = 0
    is_baseline: bool = False

    @property
    def total(self) -> float:
        """The cost of all updates."""
        return self.updates * self.per_update


def equalized(costs: Sequence[ArmCost]) -> list[ArmCost]:
    """The arms with the number of updates that costs as much as those of the baseline of their task.

    The baseline is softmax, or the first arm if there is no softmax. The number is rounded, and at least 1.
    """
    equal = []
    for cost in costs:
        alike = [other for other in costs if other.task == cost.task]
        baseline = next((other for other in alike if other.is_softmax), alike[0])
        updates = max(1, round(baseline.per_update * baseline.configured / cost.per_update))
        equal.append(replace(cost, updates=updates, is_baseline=cost is baseline))
    return equal


def cost_of(job: Job, kind: str) -> tuple[float, str]:
    """The cost of an update and its unit, from the run that has measured it. Raises RunError without a result."""
    content = job.run.record("cost")
    value = content.get(KINDS[kind])
    if not isinstance(value, (int, float)) or not value > 0:
        why = job.run.why or job.run.last_output or "unknown"
        raise RunError(f"cost={kind}: the run that measures {job.arm} has no result: {why}")
    return float(value), "FLOPs" if kind == "flops" else f"{'GPU' if content.get('device') == 'gpu' else 'CPU'} seconds"


def check_machines(jobs: Sequence[Job], kind: str) -> None:
    """Raises RunError if the times of these jobs were measured on different GPUs, or with other cores or threads."""
    machines: dict[str, str] = {}
    for job in jobs if kind == "time" else ():
        environment, on_gpu = job.run.environment, job.run.record("cost").get("device") == "gpu"
        cores, threads = environment.get("cpu_cores"), environment.get("cpu_threads")
        used = environment.get("gpus") if on_gpu else f"{cores} CPU cores with {threads} threads"
        machines.setdefault(str(used), job.arm)
    if len(machines) > 1:
        measured = " and ".join(f"{arm} on {machine}" for machine, arm in machines.items())
        raise RunError(
            f"cost=time: times of different machines or numbers of threads cannot be compared ({measured}). "
            f"Delete {jobs[0].folder.parent} to measure all arms again, or continue there, with the same jobs="
        )


def recorded_costs(folder: Path, kind: str) -> list[ArmCost]:
    """The costs of the arms that a sweep folder has recorded. Raises ConfigError if their budget is of another kind."""
    record = recorded(folder).get("cost")
    if record and record["kind"] != kind:
        message = f"its arms spend the same {record['kind']}, not the same {kind}; choose another folder"
        raise ConfigError([Problem("dir", message, folder)])
    return costs_in(record) if record else []


def costs_in(record: Mapping[str, Any]) -> list[ArmCost]:
    """The costs in the part "cost" of sweep.json."""
    names = [field.name for field in fields(ArmCost)]
    return [ArmCost(**{name: arm[name] for name in names}) for arm in record["arms"]]


def refuse_other_total(folder: Path, before: Sequence[ArmCost], now: Sequence[ArmCost]) -> None:
    """Raises ConfigError if arms of a task would spend another budget than the arms that the folder has already."""
    for old, new in itertools.product(before, now):
        if old.task == new.task and abs(old.total - new.total) > max(old.per_update, new.per_update):
            spent = f"{new.arm} would spend {new.total:.4g} {new.unit}, and {old.arm} has {old.total:.4g}"
            raise ConfigError([Problem("dir", f"{spent}; choose another folder", folder)])


def refuse_other_budget(journal: Journal, jobs: Iterable[tuple[str, ...]]) -> None:
    """Makes sure that no arm is compared at two budgets: the sweep has no run that is one of these jobs with another
    number of updates. Such jobs that have not started are set aside.

    Raises ConfigError for one that has started.
    """

    def split(overrides: tuple[str, ...]) -> tuple[frozenset[str], str]:
        updates = [override.lstrip("+") for override in overrides if override_key(override) == "trainer.max_steps"]
        others = [override for override in overrides if override_key(override).partition(".")[0] not in NOT_PART]
        part = frozenset(override for override in others if override_key(override) != "trainer.max_steps")
        return part, "".join(updates)

    planned = dict(map(split, jobs))
    for job in journal.jobs():
        plain, updates = split(job.overrides)
        if job.purpose or planned.get(plain, updates) == updates:
            continue
        if job.folder.exists():
            now = f"{planned[plain]} now, and {job.name} has {updates or 'another number of updates'}"
            message = f"cost pays for {now}; choose another dir, or remove the runs"
            raise ConfigError([Problem("dir", message, journal.folder)])
        journal.add("aside", job.name)


def record_of(kind: str, costs: Sequence[ArmCost]) -> dict[str, Any]:
    """The costs as they are recorded in sweep.json."""
    return {"kind": kind, "arms": [{**asdict(cost), "total": cost.total} for cost in costs]}
