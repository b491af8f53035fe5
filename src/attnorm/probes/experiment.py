"""A comparison of arms on probes: tunes every arm alike, and trains each at its best rate with other seeds."""

import os
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass, field
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import torch

from attnorm.imports import starting_processes
from attnorm.probes.arm import NULLS, Arm
from attnorm.probes.jobs import Cell, ProbeJob, ProbeResult, code_now, load, run, save
from attnorm.wording import counted

TUNING_SEEDS, SEEDS = 100, 110  # the first of each; they never overlap
FACTOR = 3.0  # between learning rates
NULL_SEEDS = 3  # of the null arms, which are not compared


@dataclass(frozen=True)
class ProbePlan:
    """What is compared. The first arm is the baseline.

    rates: the grid of learning rates; it is extended at most `extensions` times in each direction, for all arms of a
    cell, if an arm is best at an edge. options: of the normalizers, by the name of the arm.
    share: of the updates of each probe.
    """

    cells: Sequence[Cell]
    arms: Sequence[str]
    rates: Sequence[float]
    tuning_seeds: Sequence[int]
    seeds: Sequence[int]
    extensions: int = 0
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    share: float = 1.0

    def fit(self, cell: Cell) -> list[str]:
        """The arms that are defined at the site of a cell, without the null arms."""
        site = cell.probe().site
        return [arm for arm in self.arms if arm not in NULLS and self.arm(arm).unfit(site) is None]

    def arm(self, label: str) -> Arm:
        return Arm(label, self.options.get(label, {}))

    def job(self, cell: Cell, arm: str, rates: Sequence[float], tune: bool) -> ProbeJob:
        """The job that scores an arm at some learning rates: on the selection data if they are tuned, or else on the
        test sets, with the seeds of the comparison."""
        seeds = self.tuning_seeds if tune else self.seeds[:NULL_SEEDS] if arm in NULLS else self.seeds
        updates = round(self.share * cell.probe().updates)
        return ProbeJob(cell, arm, tuple(seeds), tuple(rates), tune, self.options.get(arm, {}), updates)


@dataclass
class CellOutcome:
    """The results of a cell. tuning: for each arm and rate, the scores of the tuning seeds. rate: the best one of each
    arm. tests: the results of the comparison. further: those of arms at other rates. failed: why a job of an arm
    failed. edited: modules of results that do not count.
    """

    cell: Cell
    tuning: dict[str, dict[float, np.ndarray]] = field(default_factory=dict)
    rate: dict[str, float] = field(default_factory=dict)
    tests: dict[str, ProbeResult] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    further: dict[str, dict[float, ProbeResult]] = field(default_factory=dict)
    edited: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class ProbeFailure:
    """Why a job has no result. The traceback is in the file <stem>.failed of the folder."""

    reason: str


Report = Callable[[ProbeJob, ProbeResult | ProbeFailure], None]
Further = Callable[[CellOutcome], Mapping[str, Sequence[float]]]  # other rates of each arm on which the verdicts depend


def compare(
    plan: ProbePlan,
    folder: Path,
    workers: int = 1,
    report: Report = lambda job, result: None,
    further: Further = lambda outcome: {},
) -> list[CellOutcome]:
    """Runs all jobs whose results the folder does not have, and returns the results of each cell.

    workers: the number of processes; 1 means this one, and 0 that only the results of the folder are read.
    report: called with each job that ends. further: called with each cell that has been compared; its rates are trained
    with the seeds of the comparison, too.
    """
    with closing(Workers(workers)) as processes:
        outcomes = [CellOutcome(cell) for cell in plan.cells]
        grids, nulls = {cell: [list(plan.rates)] for cell in plan.cells}, [arm for arm in NULLS if arm in plan.arms]
        added = {cell: list[list[float]]() for cell in plan.cells}

        def tune(arms_of: Callable[[Cell], Sequence[str]], grids: Mapping[Cell, Sequence[Sequence[float]]]) -> None:
            jobs = [
                (outcome, plan.job(outcome.cell, arm, rates, tune=True))
                for outcome in outcomes
                if outcome.cell.probe().updates  # otherwise there is no rate to tune
                for rates in grids[outcome.cell]
                for arm in arms_of(outcome.cell)
                if arm not in outcome.failed
            ]
            for outcome, job, result in _results_of(jobs, folder, processes, report):
                if isinstance(result, ProbeResult):
                    of_rate = result.curve[:, -1].reshape(len(job.rates), -1)
                    outcome.tuning.setdefault(job.arm, {}).update(zip(job.rates, of_rate, strict=True))
                    outcome.seconds += result.seconds
                else:
                    outcome.failed[job.arm] = result.reason
            for outcome in outcomes:
                outcome.rate = {arm: best_rate(scores) for arm, scores in outcome.tuning.items()}

        for _ in range(2 * plan.extensions + 1):
            tune(plan.fit, grids)
            for outcome in outcomes:
                grids[outcome.cell] = [[rate] for rate in _further_rates(plan, outcome)]
                added[outcome.cell] += grids[outcome.cell]
            if not any(grids.values()):
                break
        tune(lambda cell: nulls, {cell: [list(plan.rates), *grid] for cell, grid in added.items()})  # extend no grid
        middle = sorted(plan.rates)[len(plan.rates) // 2]  # where nothing is trained
        tests = [
            (outcome, plan.job(outcome.cell, arm, [outcome.rate.get(arm, middle)], tune=False))
            for outcome in outcomes
            for arm in [*plan.fit(outcome.cell), *nulls]
            if arm not in outcome.failed
        ]
        for outcome, job, result in _results_of(tests, folder, processes, report):
            if isinstance(result, ProbeFailure):
                outcome.failed[job.arm] = result.reason
            elif result.all_diverged:
                outcome.failed[job.arm] = f"the outputs of all {counted(result.diverged, 'seed')} are not finite"
            else:
                outcome.tests[job.arm] = result
                outcome.seconds += result.seconds
        others = [
            (outcome, plan.job(outcome.cell, arm, [rate], tune=False))
            for outcome in outcomes
            for arm, of_arm in further(outcome).items()
            for rate in of_arm
        ]
        for outcome, job, result in _results_of(others, folder, processes, report):
            if isinstance(result, ProbeResult):
                outcome.further.setdefault(job.arm, {})[job.rates[0]] = result
                outcome.seconds += result.seconds
        return outcomes


def best_rate(scores: Mapping[float, np.ndarray]) -> float:
    """The rate with the largest mean over the tuning seeds; the smallest of equal ones."""
    return max(sorted(scores), key=lambda rate: float(np.nan_to_num(scores[rate], nan=-np.inf).mean()))


def _further_rates(plan: ProbePlan, outcome: CellOutcome) -> list[float]:
    """The rates to add to the grid of a cell, for all arms, because the best one of some arm is at its edge."""
    rates = sorted({rate for scores in outcome.tuning.values() for rate in scores})
    if not rates:
        return []
    best, further = set(outcome.rate.values()), []
    if rates[0] in best and rates[0] > min(plan.rates) / FACTOR ** (plan.extensions - 0.5):
        further.append(float(f"{rates[0] / FACTOR:.3g}"))
    if rates[-1] in best and rates[-1] < max(plan.rates) * FACTOR ** (plan.extensions - 0.5):
        further.append(float(f"{rates[-1] * FACTOR:.3g}"))
    return further


def _results_of(
    jobs: Iterable[tuple[CellOutcome, ProbeJob]], folder: Path, workers: "Workers", report: Report
) -> Iterator[tuple[CellOutcome, ProbeJob, ProbeResult | ProbeFailure]]:
    """The result of each job, from the folder or by running it. A job that fails does not stop the others.

    A result of other code is not used, and is replaced.
    """
    missing, now = [], code_now()
    for outcome, job in jobs:
        known = load(job, folder)
        then = known.code if known else {}
        edited = {name for name in then.keys() & now.keys() if then[name] != now[name]}
        outcome.edited |= edited
        if known is None or edited:
            missing.append((outcome, job))
        else:
            yield outcome, job, known
    for index, result in workers.results([job for _, job in missing], folder):
        outcome, job = missing[index]
        report(job, result)
        yield outcome, job, result


class Workers:
    """The processes in which the jobs of a comparison run. They start with the first job, forked from a server that has
    imported what jobs need. Used with `closing`.

    count: their number; 1 means this process, and 0 that no job runs.
    """

    def __init__(self, count: int):
        self.count = count
        self.pool: ProcessPoolExecutor | None = None

    def results(self, jobs: Sequence[ProbeJob], folder: Path) -> Iterator[tuple[int, ProbeResult | ProbeFailure]]:
        """The results of jobs, with their positions, in the order in which they end.

        If a process is killed, all jobs without a result are run again, each alone; one whose process is killed again
        has failed.
        """
        if self.count < 2:
            yield from ((index, try_run(job, folder)) for index, job in enumerate(jobs) if self.count)
            return
        lost = dict(enumerate(jobs))
        try:
            futures = {self.submit(job, folder): index for index, job in lost.items()}
            for future in as_completed(futures):
                result = future.result()
                del lost[futures[future]]
                yield futures[future], result
        except BrokenProcessPool:
            self.close()
        for index, job in lost.items():
            try:
                result = self.submit(job, folder).result()
            except BrokenProcessPool:
                self.close()
                result = ProbeFailure("a process was killed, perhaps because the memory was full; try fewer jobs")
            yield index, result

    def submit(self, job: ProbeJob, folder: Path) -> "Future[ProbeResult | ProbeFailure]":
        """Gives a job to one of the processes."""
        with starting_processes():
            if self.pool is None:
                context = get_context("forkserver")
                context.set_forkserver_preload([__name__])
                self.pool = ProcessPoolExecutor(self.count, context, initializer=start_probe_worker)
            return self.pool.submit(try_run, job, folder)

    def close(self) -> None:
        """Ends the processes. Jobs that have not started do not start."""
        if self.pool is not None:
            self.pool.shutdown(cancel_futures=True)
            self.pool = None


def start_probe_worker() -> None:
    """Prepares a process: one thread, and an end when the process that started it has been killed."""
    torch.set_num_threads(1)
    np.random.seed()  # of a fork, it would be the same in all processes
    parent = parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    Thread(target=follow, daemon=True).start()


def try_run(job: ProbeJob, folder: Path) -> ProbeResult | ProbeFailure:
    """The result of a job, which is saved, or what it raised."""
    trace = folder / f"{job.stem}.failed"
    try:
        result = run(job)
    except (Exception, SystemExit) as error:
        trace.parent.mkdir(parents=True, exist_ok=True)
        trace.write_text(traceback.format_exc())
        return ProbeFailure(f"{type(error).__name__}: {error}".removesuffix(": "))
    save(job, result, folder)
    trace.unlink(missing_ok=True)  # of an earlier attempt
    return result
