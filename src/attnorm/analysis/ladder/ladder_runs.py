"""The runs of a ladder, read from run folders."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from attnorm.analysis.arms import Arm, arms_of, as_number, find_runs, labels_of, run_folders
from attnorm.analysis.comparison import found_in_data, metric_of
from attnorm.analysis.ladder.ladder_scores import LOSS, LadderRun, LadderScores, Rung, ladder_scores
from attnorm.analysis.provenance import check_code, device_of, doubts_of
from attnorm.analysis.scores import SplitName, check_current, common_split, direction_of, example_table, test_table
from attnorm.analysis.unfinished_jobs import waiting_jobs
from attnorm.errors import RunError
from attnorm.run.folder import RunState
from attnorm.run.run import VALIDATION, Run
from attnorm.wording import counted

FREE = ("attention.", "optimizer.")  # settings that may differ between arms on one rung


def ladder_of(run: Run) -> dict[str, Any]:
    """What a run has recorded of its rung; {} if it belongs to no ladder. The file may come from anyone."""
    content = of_run.get("ladder") if isinstance(of_run := run.config.get("run"), dict) else None
    return content if isinstance(content, dict) else {}


def are_of_ladder(places: Iterable[str | Path]) -> bool:
    """Whether any run in these places is one of a ladder."""
    return any(ladder_of(Run(folder)) for place in places for folder in run_folders(place))


def scores_of_places(places: Sequence[str | Path], metric: str | None, split: SplitName) -> LadderScores:
    """The scores of all runs in some places, see `scores_of_runs`.

    Raises RunError if runs are still to come: who looks early, and stops when it pays, makes false claims.
    """
    runs = find_runs(places)
    pending = [str(run.folder) for run in runs if run.state is RunState.RUNNING] + waiting_jobs(places)
    if pending:
        which = f"{counted(len(pending), 'planned run')} (such as {pending[0]})"
        raise RunError(f"the ladder is compared when all its runs have ended; not finished yet: {which}")
    return scores_of_runs(runs, metric, split)


def scores_of_runs(runs: Sequence[Run], metric: str | None = None, split: SplitName = "auto") -> LadderScores:
    """The scores of the runs of one ladder, or of several whose rungs agree in all but the attention and the optimizer.

    metric, split: see `analysis.compare`; the metric is the loss by default.

    Raises RunError for runs of no ladder or of different ladders or tasks, for runs of one arm that differ in more than
    the seed on a rung, and for what `ladder_scores` and `compare` refuse.
    """
    for run in runs:
        if not ladder_of(run):
            raise RunError(f"{run.folder}: belongs to no ladder, so it is not compared with runs of one")
    if len(tasks := {run.settings["task.name"]: run for run in runs}) > 1:
        raise RunError(f"runs of different tasks cannot be compared: {', '.join(tasks)}")
    of_rungs = {str(key) for run in runs if isinstance(keys := ladder_of(run).get("keys"), list) for key in keys}
    tuned = {str(ladder_of(run).get("tuned")) for run in runs}
    rungs = {run.folder: _rung_of(run) for run in runs}
    varied = of_rungs | tuned
    kept = {run.folder: {key: value for key, value in run.settings.items() if key not in varied} for run in runs}
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        groups[repr(sorted(kept[run.folder].items()))].append(run)
    labels = labels_of([(group[0].label, kept[group[0].folder]) for group in groups.values()])
    arms: list[tuple[Rung, Arm]] = []  # one for each arm on each rung
    for label, group in zip(labels, groups.values(), strict=True):
        for number in sorted({rungs[run.folder].number for run in group}):
            members = [run for run in group if rungs[run.folder].number == number]
            several = arms_of(members)
            if len(several) > 1:
                places = " and ".join(str(each.runs[0].folder) for each in several[:2])
                raise RunError(f"{label} has different settings on rung {number}: {places}; compare one of them")
            arms.append((rungs[members[0].folder], Arm(label, several[0].runs, several[0].superseded)))
    _check_rungs(arms, of_rungs - tuned)
    every = [arm for _, arm in arms]
    check_code(every)
    finished = [run for arm in every for run in arm.finished.values()]
    check_current(finished, split)
    shared = common_split(finished, split)
    tables = {run.folder: example_table(run, shared) for run in finished}
    known = [table for table in tables.values() if table is not None]
    if not known:
        raise RunError("no run of the ladder has finished with scores of single examples")
    metric = metric_of(known, metric or LOSS, None)
    if len(sources := {table.source for table in known}) > 1:
        raise RunError("the checkpoints of some runs were selected on all validation examples and of others on half")
    found = []
    for rung, arm in arms:
        for run in arm.runs:
            table, speed = tables.get(run.folder), as_number(run.summary.get("tokens_per_second"))
            is_nan = table is not None and not isfinite(table.overall(metric, list(table.rows.index)))
            diverged = run.state is RunState.FAILED or is_nan
            seconds = 1 / speed if speed else None
            place = f"{arm.label}, rung {rung.number}, seed {run.seed} ({run.folder})"
            examples = None if is_nan else table
            found.append(LadderRun(arm.label, rung, run.seed, examples, diverged, seconds, device_of(run), place))
    records = [run.evaluation((test_table(run) if shared == "test" else None) or VALIDATION) for run in finished]
    notes = [*doubts_of(every), *found_in_data(finished, records)]
    if sources == {"validation"}:
        notes.append("The checkpoints were selected on these examples, so all scores are too good.")
    more = {
        arm.label: f"{own:,.0f} instead of {rung.parameters:,}"
        for rung, arm in arms
        for run in arm.runs
        if (own := as_number(ladder_of(run).get("own_parameters"))) and own > rung.parameters
    }
    notes += [f"{label} has more parameters than softmax on its largest rung: {size}." for label, size in more.items()]
    return ladder_scores(found, metric, direction_of(finished, metric), next(iter(tasks)), notes)


def _rung_of(run: Run) -> Rung:
    """The rung that a run has recorded."""
    record, names = ladder_of(run), ("rung", "parameters", "train_tokens", "flops_per_token")
    number, parameters, tokens, flops = (as_number(record.get(name)) for name in names)
    if not (number and parameters and tokens and flops) or min(number, parameters, tokens, flops) <= 0:
        raise RunError(f"{run.folder}: has not recorded its rung: {', '.join(names)} must be numbers above 0")
    return Rung(int(number), int(parameters), tokens, flops * tokens, record.get("beyond") is True)


def _check_rungs(arms: Sequence[tuple[Rung, Arm]], keys: set[str]) -> None:
    """Raises RunError if arms differ, on one rung, in a setting of the rung that is not free."""
    first: dict[int, Arm] = {}
    for rung, arm in arms:
        other = first.setdefault(rung.number, arm)
        for key in sorted(key for key in keys if not key.startswith(FREE)):
            values = [each.settings.get(key) for each in (other, arm)]
            if values[0] != values[1]:
                where = f"{other.label} with {key}={values[0]} and {arm.label} with {key}={values[1]}"
                raise RunError(f"rung {rung.number} is not the same for all arms: {where}")
