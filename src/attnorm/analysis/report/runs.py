"""The runs of a report: which can be read, what has become of them, how far they have come, how their arms differ."""

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from attnorm.analysis.arms import Arm, as_number, each_once, expanded, is_of_normalizer, no_runs, run_folders, varying
from attnorm.analysis.report.tables import NOTHING, Cell, Column, Table, number
from attnorm.analysis.waiting import waiting_jobs
from attnorm.errors import RunError, in_yaml
from attnorm.run.folder import EVENTS, FolderLock, RunState
from attnorm.run.run import Run
from attnorm.sweeps.state import SWEEP_LOCK
from attnorm.wording import counted

Places = Sequence[str | Path]
LONGEST_REASON = 600  # characters
MANY = 6  # arms that fit side by side


@dataclass(frozen=True)
class Trouble:
    """A run that is not finished, and why.

    name: the arm and the seed, or the folder if it cannot be read. state: in one word.
    """

    name: str
    state: str
    why: str
    folder: str


@dataclass(frozen=True)
class Progress:
    """How far a running run has come. Entries that are not known yet are None."""

    name: str
    step: int | None
    updates: int | None
    metric: str
    value: float | None
    seconds_left: float | None

    @property
    def share(self) -> float | None:
        """The share of the updates that have been made."""
        return min(1.0, self.step / self.updates) if self.step is not None and self.updates else None


def readable_runs(places: Places) -> tuple[list[Run], list[Trouble]]:
    """The runs in some places (see `find_runs`), and those whose configuration cannot be read.

    Raises RunError for a place without runs, unless a sweep is about to start some there.
    """
    folders: list[Path] = []
    for path in places:
        found = run_folders(path)
        if not found and not waiting_jobs([path]):
            raise no_runs(path)
        folders += found
    runs, unreadable = [], []
    for folder in each_once(folders):
        try:
            run = Run(folder)
            _ = run.config  # RunError
            runs.append(run)
        except RunError as error:
            unreadable.append(Trouble(str(folder), "unreadable", shortened(str(error)), str(folder)))
    return runs, unreadable


def troubles_of(arms: Sequence[Arm]) -> list[Trouble]:
    """The runs that have ended without finishing."""
    return [
        Trouble(name_of(arm, run), str(run.state), _reason(run), str(run.folder))
        for arm in arms
        for run in arm.runs
        if run.state.is_unfinished
    ]


def _reason(run: Run) -> str:
    """Why a run is not finished: what it recorded, or else the last line of its output."""
    if run.why:
        return shortened(str(run.why))
    said = run.last_output
    if run.state is RunState.KILLED:
        ended = "The process ended before it could say why, for example because it was killed."
        return f"{ended} Its last output: {shortened(said)}" if said else ended
    return shortened(said) if said else "No reason was recorded."


def shortened(text: str, most: int = LONGEST_REASON) -> str:
    """A text that is cut off after so many characters."""
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}\u2026"


def progress_of(arms: Sequence[Arm]) -> list[Progress]:
    """How far the running runs have come."""
    progress = []
    for arm in arms:
        for run in arm.runs:
            if run.state is RunState.RUNNING:
                step, updates = as_number(run.progress.get("step")), as_number(run.progress.get("updates"))
                progress.append(
                    Progress(
                        name=name_of(arm, run),
                        step=None if step is None else int(step),
                        updates=None if updates is None else int(updates),
                        metric=str(run.progress.get("monitor") or ""),
                        value=as_number(run.progress.get("value")),
                        seconds_left=as_number(run.progress.get("seconds_left")),
                    )
                )
    return progress


def name_of(arm: Arm, run: Run) -> str:
    """A run in words."""
    return f"{arm.label}, seed {run.seed}"


def sweep_at_work(places: Places) -> bool:
    """Whether the process of a sweep is at work in one of these places, and may start or resume runs there."""
    for root in (path for place in places for path in expanded(place)):
        with suppress(OSError):
            events = [root.parent / EVENTS, *sorted(root.rglob(EVENTS))] if root.is_dir() else []
            if any(FolderLock(path.parent, SWEEP_LOCK).holder() is not None for path in events if path.is_file()):
                return True
    return False


def runs_table(name: str, arms: Sequence[Arm]) -> Table:
    """One row per run."""
    columns = [
        Column("arm"),
        Column("seed", True),
        Column("state"),
        Column("updates", True),
        Column("hours", True),
        Column("folder"),
    ]
    rows = []
    for arm in arms:
        for run in arm.runs:
            seconds = as_number(run.summary.get("wall_seconds"))
            rows.append(
                [
                    Cell(arm.label),
                    Cell(str(run.seed), run.seed),
                    Cell(str(run.state)),
                    number(as_number(run.summary.get("steps")), 0),
                    number(None if seconds is None else seconds / 3600),
                    Cell(str(run.folder)),
                ]
            )
    return Table(name, f"All {counted(len(rows), 'run')}", columns, rows)


# ------------------------------------------------------------------------------------------------------------- settings


@dataclass(frozen=True)
class Setup:
    """What was held equal between the arms of a task, and what differs.

    differing: the settings in which the arms differ, one row per key; None if there is only one arm.
    confounds: the keys among them that are not settings of the attention.
    chosen: those whose values a sweep chose for each arm; they are no confounds.
    equal: the settings that all arms share, by group.
    """

    differing: Table | None
    confounds: list[str]
    chosen: list[str]
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
        chosen=[],
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
