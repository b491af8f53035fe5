"""What was held equal between the arms of a task, and what differs."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from attnorm.analysis.arms import Arm, is_of_normalizer, varying
from attnorm.analysis.report.tables import NOTHING, Cell, Column, Table
from attnorm.errors import in_yaml

MANY = 6  # arms that fit side by side


@dataclass(frozen=True)
class Setup:
    """What was held equal between the arms of a task, and what differs.

    differing: the settings in which the arms differ, one row per key; None if there is only one arm.
    confounds: the keys among them that are not settings of the attention.
    equal: the settings that all arms share, by group.
    """

    differing: Table | None
    confounds: list[str]
    equal: dict[str, list[tuple[str, str]]]


def setup_of(task: str, arms: Sequence[Arm], baseline: Arm) -> Setup:
    """Compares the settings of the arms, the baseline first."""
    ordered = [baseline, *(arm for arm in arms if arm is not baseline)]
    keys = varying(arm.settings for arm in ordered)
    keys = sorted(keys, key=lambda key: (is_of_normalizer(key), key))
    equal: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for key, value in sorted(baseline.settings.items()):
        if key not in keys:
            group, _, name = key.partition(".")
            equal[group].append((name or group, in_yaml(value)))
    # an empty mapping only says that no options are set
    keys = [key for key in keys if any(arm.settings.get(key, {}) != {} for arm in ordered)]
    return Setup(
        differing=differing_table(task, ordered, keys) if len(ordered) > 1 else None,
        confounds=[key for key in keys if not is_of_normalizer(key)],
        equal=dict(equal),
    )


def differing_table(task: str, arms: Sequence[Arm], keys: Sequence[str]) -> Table:
    """The settings by arm; what differs from the first arm, the baseline, is marked.

    There is one column per arm, or, if there are many arms, one column per setting.
    """
    caption, first = "The settings in which the arms differ", texts_of(arms[0], keys)
    marks = ["" if is_of_normalizer(key) else "confound" for key in keys]
    by_arm = [
        [Cell(text, mark="" if text == there else "differs") for text, there in zip(its, first, strict=True)]
        for its in (texts_of(arm, keys) for arm in arms)
    ]
    if len(arms) > max(MANY, len(keys)):
        columns = [Column("arm"), *(Column(key) for key in keys)]
        rows = [[Cell(arm.label), *row] for arm, row in zip(arms, by_arm, strict=True)]
        return Table(f"differences-{task}", caption, columns, rows)
    rows = [[Cell(key, mark=mark), *row] for key, mark, *row in zip(keys, marks, *by_arm, strict=True)]
    return Table(f"differences-{task}", caption, [Column("setting"), *(Column(arm.label) for arm in arms)], rows)


def texts_of(arm: Arm, keys: Sequence[str]) -> list[str]:
    """The values of some settings of an arm as texts."""
    return [in_yaml(arm.settings[key]) if key in arm.settings else NOTHING for key in keys]
