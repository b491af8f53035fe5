"""What the sweeps that trained some runs have recorded in sweep.json: what an update cost.

The file is not trusted: a part that has another form is left out. `analysis.tuning` reads what was tuned.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from attnorm.analysis.arms import Arm, as_number
from attnorm.sweeps.cost import ArmCost, costs_in
from attnorm.sweeps.record import recorded

Part = TypeVar("Part")
OF_ANOTHER_FORM = (AttributeError, IndexError, KeyError, TypeError, ValueError)  # written by another program


def parts_of(
    arms: Iterable[Arm], kind: str, read: Callable[[Path, Mapping[str, Any], Mapping[str, str]], Part]
) -> list[Part]:
    """The part `kind` of sweep.json for each sweep with runs of these arms, if it is there in a known form.

    read: makes it from the folder, the content of the file, and the label of the arm of each run by its name.
    """
    folders: dict[Path, dict[str, str]] = {}
    for arm in arms:
        for run in arm.runs:
            folders.setdefault(run.folder.parent, {})[run.folder.name] = arm.label
    parts: list[Part] = []
    for folder, labels in folders.items():
        content = recorded(folder)
        with suppress(*OF_ANOTHER_FORM):
            parts += [read(folder, content, labels)] if content.get(kind) else []
    return parts


def positive(value: object) -> float:
    """The number that a value of the file is or spells. Raises ValueError unless it is above 0."""
    spelled = as_number(float(str(value)))
    if spelled is None or spelled <= 0:
        raise ValueError(value)
    return spelled


def beside(arms: Iterable[Arm], labels: Iterable[str], done: str) -> str:
    """Which arms a sweep has not tuned or measured with the others, as a sentence; "" if there are none."""
    others = ", ".join(arm.label for arm in arms if arm.label not in labels)
    return f" Not {done} with them: {others}." if others else ""


class EqualCost:
    """The same cost for all arms of a sweep. unit: of the cost. arms: what each costs, by label."""

    key: ClassVar[str] = "trainer.max_steps"  # the setting that the sweep chose

    def __init__(self, folder: Path, content: Mapping[str, Any], labels: Mapping[str, str]):
        jobs = {str(job["name"]): job for job in content["jobs"]}
        measured = {cost.arm: cost for cost in costs_in(content["cost"])}
        costs = {label: measured[jobs[job]["arm"]] for job, label in labels.items() if job in jobs}
        self.arms = {
            label: replace(cost, per_update=positive(cost.per_update), updates=int(positive(cost.updates)))
            for label, cost in costs.items()
        }
        first, *_ = self.arms.values()  # ValueError without any
        self.unit = str(first.unit)

    def of(self, arms: Iterable[Arm]) -> dict[str, ArmCost]:
        """What some arms cost, by label and in their order."""
        return {arm.label: self.arms[arm.label] for arm in arms if arm.label in self.arms}

    def about(self) -> str:
        """What was held equal, in words."""
        return (
            f"Every arm trained for as many updates as cost the same as those of the baseline, in {self.unit} measured "
            "before the sweep, one arm at a time."
        )

    def choice(self, arms: Sequence[Arm]) -> str:
        """The updates of the arms, as a sentence, and what the cost depends on. arms: all that are compared."""
        more = (
            " A time depends on the implementation as well as on the normalizer. It was measured once for all seeds of "
            "an arm, so its error, often a few percent, is in no interval."
        )
        more = "" if self.unit == "FLOPs" else more
        updates = ", ".join(f"{label} {cost.updates:,}" for label, cost in self.of(arms).items())
        others = beside(arms, self.arms, "measured")
        who = "Only some arms" if others else "All arms"
        return f"{who} spend the same {self.unit}, with different numbers of updates: {updates}.{more}{others}"
