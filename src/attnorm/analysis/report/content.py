"""Everything that the report says, collected from run folders into plain values."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from attnorm.analysis.arms import Arm, arms_of, baseline_of, find_runs
from attnorm.analysis.comparison import Terms
from attnorm.analysis.ladder.ladder_runs import ladder_of
from attnorm.analysis.provenance import check_code
from attnorm.analysis.report.examples import shortened
from attnorm.analysis.report.ladder_page import LadderPage
from attnorm.analysis.report.task_page import TaskPage
from attnorm.analysis.scores import SplitName
from attnorm.analysis.study import Study, adjust_together, study_of_arms
from attnorm.analysis.unfinished_jobs import sweep_at_work, waiting_jobs
from attnorm.errors import ConfigError, Problem, RunError
from attnorm.run.folder import RunState
from attnorm.run.run import Run

Places = Sequence[str | Path]


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
class Report:
    """The whole page.

    ladders: of runs on the rungs of a ladder, which are no arms of a task.
    troubles: runs that have ended and are not finished.
    """

    title: str
    written: str
    places: list[str]
    overview: list[tuple[str, str]]
    tasks: list[TaskPage]
    ladders: list[LadderPage]
    troubles: list[Trouble]


def collect(
    places: Places,
    baseline: str | None = None,
    metric: str | None = None,
    *,
    split: SplitName = "auto",
    level: float = 0.95,
    ended: bool = False,
) -> Report:
    """Reads the runs in some places.

    baseline: the label of the arm that the others are compared with; None: softmax, or else the first arm. metric: the
    metric of the verdicts; None: the primary one of each task. split, level: see `compare`.
    ended: no sweep is at work there, even if the lock of one is held; for that sweep itself.

    Raises RunError for a place without runs and for runs with different versions of an own module, and ConfigError for
    a baseline or a metric that no task has.
    """
    damaged: dict[Path, RunError] = {}
    runs, waiting = find_runs(places, damaged), waiting_jobs(places)
    on_rungs = [run for run in runs if ladder_of(run)]
    others = arms_of([run for run in runs if not ladder_of(run)])
    by_task: dict[str, list[Arm]] = defaultdict(list)
    for arm in others:
        by_task[arm.task].append(arm)
    for members in by_task.values():
        check_code(members)
    if baseline is not None and others:
        baseline_of(others, baseline)  # raises ConfigError if there is no such arm
    named = [(f"{arm.label}, seed {run.seed}", run) for arm in others for run in arm.runs]
    named += [(f"{run.label}, rung {ladder_of(run).get('rung')}, seed {run.seed}", run) for run in on_rungs]
    unfinished = [(name, run) for name, run in named if run.state.is_unfinished]
    resumed = unfinished if not ended and sweep_at_work(places) else ()  # by the sweep, if it goes on
    pending = [*waiting, *(name for name, _ in resumed)]
    studies = []
    for members in by_task.values():
        chosen = baseline_of(members, baseline if any(arm.label == baseline for arm in members) else None)
        studies.append(study_of_arms(chosen, members, metric, Terms(split, level, pending=pending)))
    mains = [study.main for study in studies if study.main is not None]
    if metric is not None and mains and not any(main.metric == metric for main in mains):
        names = dict.fromkeys(each.metric for study in studies for each in study.comparisons)
        raise ConfigError([Problem("metric", f"the runs have no such metric; allowed: {', '.join(names)}", metric)])
    adjust_together(studies)
    of_ladders: dict[str, list[Run]] = defaultdict(list)  # by task
    for run in on_rungs:
        of_ladders[str(run.settings["task.name"])].append(run)
    ladders = [
        LadderPage(f"ladder-{number}", members, baseline, metric, split, level, pending)
        for number, members in enumerate(of_ladders.values(), start=1)
    ]
    troubles = [Trouble(name, str(run.state), _reason(run), str(run.folder)) for name, run in unfinished]
    troubles += [Trouble(str(path), "unreadable", shortened(str(error)), str(path)) for path, error in damaged.items()]
    finished = sum(run.state is RunState.FINISHED for _, run in named)
    return Report(
        title=_title_of(studies) if studies or not ladders else f"Ladder on {ladders[0].name}",
        written=f"{datetime.now():%Y-%m-%d %H:%M:%S}",
        places=[str(place) for place in places],
        overview=[("runs finished", f"{finished:,} of {len(named) + len(waiting):,}")],
        tasks=[TaskPage(f"task-{number}", study, metric) for number, study in enumerate(studies, start=1)],
        ladders=ladders,
        troubles=troubles,
    )


def _reason(run: Run) -> str:
    """Why a run is not finished: what it recorded, or else the last line of its output."""
    if run.why:
        return shortened(str(run.why))
    line = run.last_output
    if run.state is RunState.KILLED:
        ended = "The process ended before it could say why, for example because it was killed."
        return f"{ended} Its last output: {shortened(line)}" if line else ended
    return shortened(line) if line else "No reason was recorded."


def _title_of(studies: Sequence[Study]) -> str:
    tasks = [study.arms[0].task for study in studies]
    if len(studies) == 1:
        labels = [arm.label for arm in studies[0].arms]
        if len(labels) <= 4 and sum(map(len, labels)) < 60:
            return f"{', '.join(labels)} on {tasks[0]}"
    return f"Attention normalizers on {', '.join(tasks[:4])}" if tasks else "Attention normalizers"
