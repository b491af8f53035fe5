"""The atlas: all normalizers on all probes. Repeat the command to continue where it stopped.

python experiments/atlas/run.py --out logs/atlas
"""

import argparse
import shlex
import sys
import time
from functools import partial
from pathlib import Path

import torch

from attnorm.analysis.paper import FigureSet
from attnorm.analysis.probes.page import write_page
from attnorm.analysis.probes.probe_charts import map_chart
from attnorm.analysis.probes.verdicts import further_rates, results_of_cell, with_discoveries, write_csv
from attnorm.probes.arm import NULLS, Arm, every_arm
from attnorm.probes.experiment import CellOutcome, ProbeFailure, ProbePlan, compare
from attnorm.probes.jobs import Cell, ProbeJob, ProbeResult
from attnorm.probes.presets import PRESETS, comparison_seeds, tuning_seeds

FIRST = ["softmax", "dnas", "hnas", "dnas_slack", "dnas_slack_u", "sinkhorn", "softmax_u", "dnas_u", *NULLS]
CAUSAL = ["softmax", "dnas_prefix", "hnas_prefix", "dnas_slack_prefix", *NULLS]  # the first ones at the causal site
ROWS = {  # run next: the fastest of those without a column step
    *("sink", "off_by_one", "ssmax", "sigmoid", "relu", "softpick", "sparsemax", "entmax"),
    *("forgetting", "stick_breaking", "selective"),
}
STAGES = ("primary", "rows", "all")  # the arms of the hypotheses, those and `ROWS`, and all


def plans(stage: str) -> list[ProbePlan]:
    """One plan per cell, so that a stopped run has whole cells."""
    atlas = PRESETS["atlas"]
    return [
        ProbePlan(
            [cell],
            arms_of(cell, stage),
            atlas.rates,
            tuning_seeds(atlas),
            comparison_seeds(atlas.seeds),
            atlas.extensions,
        )
        for cell in atlas.cells
    ]


def arms_of(cell: Cell, stage: str) -> list[str]:
    """The arms of a cell, those of the hypotheses first."""
    first = CAUSAL if cell.probe().site == "causal" else FIRST
    others = [arm for arm in every_arm() if arm not in first and (stage == "all" or arm in ROWS)]
    return first if stage == "primary" else [*first, *others]


def run(folder: Path, stage: str, workers: int, has_further: bool = False) -> list[CellOutcome]:
    """Runs the jobs that are missing, and returns the results of all cells.

    has_further: whether the rates are trained too on which the verdicts of this stage depend.
    """
    results = []
    for plan in plans(stage):
        further = partial(further_rates, arms=[plan.arm(label) for label in plan.arms])
        results += compare(plan, folder, workers, show, *[further] * has_further)
    return results


def show(job: ProbeJob, result: ProbeResult | ProbeFailure) -> None:
    """One line per job that has ended."""
    outcome = f"{result.seconds:.0f} s" if isinstance(result, ProbeResult) else f"failed: {result.reason}"
    print(f"{time.strftime('%H:%M:%S')} {job.stem} {outcome}", flush=True)


def write(found: list[CellOutcome], folder: Path) -> None:
    """Writes results.csv and map.png beside this file, and the page atlas.html into the folder of the results."""
    arms = [Arm(name) for name in dict.fromkeys([*FIRST, *CAUSAL, *every_arm()])]
    here, rates = Path(__file__).parent, PRESETS["atlas"].rates
    found = [it for it in found if it.tests.keys() >= {*NULLS}]  # the null arms are the last ones of the hypotheses
    if not found:
        raise SystemExit(f"{folder}: no cell has all of its results yet")
    cells = with_discoveries([results_of_cell(it, arms, rates) for it in found])
    present = [arm for arm in arms if any(arm.label in it.tests for it in found)]
    write_csv(cells, here / "results.csv")
    command = shlex.join(["python", *sys.argv])
    FigureSet(map=map_chart(cells, [arm for arm in present if arm.label not in NULLS]).figure()).save(here)
    page = write_page(cells, present, folder / "atlas.html", command)
    print(f"written to {page}, {here / 'results.csv'} and map.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("logs/atlas"))
    parser.add_argument("--arms", choices=STAGES, default="all")
    parser.add_argument("--workers", type=int, default=1, help="number of processes; 0 only reads the results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for stage in STAGES[: STAGES.index(options.arms) + 1]:
        cells = run(options.out, stage, options.workers, stage == options.arms)
    write(cells, options.out)
