"""`attnorm probe`: where a normalizer wins and loses, on small tasks."""

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import isfinite, isnan
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from attnorm import progress
from attnorm.analysis.probes.verdicts import (
    CellResults,
    Row,
    further_rates,
    results_of_cell,
    with_discoveries,
    write_csv,
)
from attnorm.analysis.verdict import AT_THESE_RATES
from attnorm.attention.testing.before_training import check_command, failure_of, is_of_attnorm
from attnorm.attention.testing.cases import WIDTH
from attnorm.config.command import read
from attnorm.errors import ConfigError, Problem
from attnorm.imports import short_name
from attnorm.probes import PROBES
from attnorm.probes.arm import ALIASES, NULLS, Arm
from attnorm.probes.ensemble import stack
from attnorm.probes.experiment import ProbeFailure, ProbePlan, compare
from attnorm.probes.jobs import Cell, ProbeJob, ProbeResult, cells_named
from attnorm.probes.presets import PRESETS, comparison_seeds, tuning_seeds
from attnorm.run.folder import why_not_writable
from attnorm.schema import ColumnWidth, Count, PictureFormats, Positive, Text
from attnorm.training.console import print_table, show_lines, show_warnings
from attnorm.wording import counted, listed

ALL = "all"
PREVIEW = (
    "preview: a third of the training, learning rates that are not extended if the best one is at an edge, and too few "
    "tuning seeds to see whether a verdict depends on the rate; preset=atlas has none of these limits"
)


@dataclass(frozen=True, kw_only=True)
class ProbeSettings:
    """The keys of `attnorm probe`, as in conf/probe.yaml."""

    normalizers: tuple[Text, ...] = ("softmax", "dnas", "hnas")
    preset: Literal["quick", "atlas", "mqar"] = "quick"
    probes: tuple[Text, ...] | None = None
    seeds: Count | None = None
    rates: tuple[Positive, ...] | None = None
    jobs: Count = 1
    out: Text = "logs/probe"
    formats: PictureFormats = ()
    column: ColumnWidth = 3.3
    options: dict[str, Any] = field(default_factory=dict)


def run_probe(arguments: list[str]) -> int:
    """Runs the probes, and writes the page, the table and the CSV file. Returns the exit code: 1 if a job has failed or
    all its models have diverged, so that its normalizer is left out of a cell."""
    settings = read_probe(arguments)
    plan = plan_of(settings)
    arms = [plan.arm(label) for label in plan.arms]
    folder = Path(settings.out)
    try_probes(plan.cells)
    torch.set_num_threads(1)
    begin, cpu = time.monotonic(), time.process_time()
    progress.console.print(
        f"{counted(len(plan.cells), 'cell')}, {counted(sum(arm not in NULLS for arm in plan.arms), 'normalizer')}: "
        f"{len(plan.rates)} learning rates with {counted(len(plan.tuning_seeds), 'tuning seed')}, "
        f"then {counted(len(plan.seeds), 'seed')} at the best one",
        markup=False,
    )
    show, further = partial(show_job, plan), partial(further_rates, arms=arms)
    outcomes = compare(plan, folder / "results", settings.jobs, show, further)
    cells = with_discoveries([results_of_cell(outcome, arms, plan.rates) for outcome in outcomes])
    note = PREVIEW if settings.preset == "quick" else ""
    write_csv(cells, folder / "probe.csv", preset=settings.preset)
    command = shlex.join(["attnorm", "probe", *arguments])
    from attnorm.analysis.probes.page import grouped, write_page  # matplotlib is slow to load

    page = write_page(cells, arms, folder / "probe.html", command, note, settings.formats, settings.column)
    show_cells(cells, arms)
    show_lines(note)
    took = f"{time.monotonic() - begin:,.0f} s, {time.process_time() - cpu:,.0f} s of it CPU time of this process"
    progress.console.print(f"written to {page} and {folder / 'probe.csv'} ({took})", markup=False)
    if edited := sorted({name for outcome in outcomes for name in outcome.edited}):
        progress.console.print(f"trained again, because the code has changed: {listed(edited)}", markup=False)
    failed = grouped({outcome.cell.title: outcome.failed for outcome in outcomes})
    diverged = [
        f"{of.cell.title}: {arm}: the outputs of {counted(result.diverged, 'seed')} are not finite, and score as zeros"
        for of in outcomes
        for arm, result in of.tests.items()
        if result.diverged
    ]
    show_warnings([*(f"failed: {text}" for text in failed), *diverged])
    return int(bool(failed))


def read_probe(arguments: Sequence[str]) -> ProbeSettings:
    """The settings of a command. Raises ConfigError with all problems."""
    typed = []
    for argument in arguments:  # where a key takes several values, "a,b" is the list "[a,b]"
        key, _, value = argument.partition("=")
        several = key in ("normalizers", "probes", "rates") and "," in value and not value.startswith("[")
        typed.append(f"{key}=[{value}]" if several else argument)
    return read(typed, ProbeSettings, "attnorm probe", check=lambda command: probe_problems(command.settings)).settings


def probe_problems(settings: ProbeSettings) -> list[Problem]:
    """What is wrong with the normalizers and the probes of a command."""
    names, arms, problems = settings.normalizers, list[Arm](), list[Problem]()
    for key in ("normalizers", "probes", "rates"):
        if getattr(settings, key) == ():
            problems.append(Problem(key, "needs at least one", []))
    for name in names:
        options = options_typed(settings, name)
        if not isinstance(options, dict):
            problems.append(Problem(f"options.{name}", "expected options, as in {start:0.1}", options))
            continue
        try:
            arms.append(Arm(name, options))
        except ValueError as error:
            problems.append(Problem("normalizers", str(error)))
    spelled = [ALIASES.get(name, name) for name in names]
    if twice := {name for name, text in zip(names, spelled, strict=True) if spelled.count(text) > 1}:
        message = "named twice; for two settings of one class, write a subclass with another name"
        problems.append(Problem("normalizers", message, ", ".join(sorted(twice))))
    if settings.rates and len(set(settings.rates)) < len(settings.rates):
        problems.append(Problem("rates", "has a value twice", ",".join(f"{rate:g}" for rate in settings.rates)))
    if obstacle := why_not_writable(Path(settings.out, *["figures"] * bool(settings.formats))):
        problems.append(Problem("out", obstacle, settings.out))
    problems += namesakes("normalizers", [arm.short for arm in arms if arm.label not in twice])
    if names and names[0] in NULLS:
        problems.append(Problem("normalizers", "the first one is the baseline, which cannot be a null arm", names[0]))
    known = {key for name in names for key in keys_of(name)}
    for name, value in settings.options.items():
        if not {name, name.rpartition(".")[0]} & known:
            message = f"has no effect; the normalizers are {', '.join(names)}"
            problems.append(Problem(f"options.{name}", message, value))
    wrong = []
    for name in settings.probes or ():
        try:
            for cell in cells_of_settings(replace(settings, probes=(name,))):
                cell.probe()
        except ValueError as error:
            wrong.append(Problem("probes", str(error)))
    if wrong or settings.probes == ():
        return [*problems, *wrong]
    cells = cells_of_settings(settings)
    problems += namesakes("probes", [Cell(name).short for name in dict.fromkeys(cell.name for cell in cells)])
    sites = {cell.probe().site for cell in cells}
    for arm in arms:
        reasons = [reason for site in sorted(sites) if (reason := arm.unfit(site))]
        if len(reasons) == len(sites):
            problems.append(Problem("normalizers", f"not defined in any of these probes: {reasons[0]}", arm.label))
        elif not is_of_attnorm(normalizer := arm.normalizer(2, WIDTH)):
            use = {"heads": 2, "causal": "causal" in sites, "prior": arm.has_prior, "padded": False}
            tries = check_command(arm.name, arm.options)
            if failure := failure_of(normalizer, f"normalizers={arm.label}", tries, **use):
                problems.append(Problem("normalizers", failure, arm.label))
    return problems


def try_probes(cells: Sequence[Cell]) -> None:
    """Draws and solves two examples of every cell at every size and scores a model that has not been trained, so that
    an error in a probe of one's own ends the command before anything is trained. A probe that is not trained may have
    no loss.

    Raises ConfigError for a probe that returns other tensors than it should.
    """
    for cell in cells:
        probe, values = cell.probe(), dict[str, tuple[Any, tuple[int, ...]]]()
        model = probe.model(Arm("uniform"), [0])
        for size in {*probe.test_sizes, *probe.train_sizes}:
            batch = probe.batch(2, size, torch.Generator().manual_seed(0))
            if (ceiling := probe.ceiling(batch)) is not None:
                values["ceiling"] = ceiling, (2,)
            batch = stack([batch])
            with torch.no_grad():
                outputs = model(batch)
                values["score"] = probe.score(outputs, batch), (1, 2)
                if probe.updates:
                    values["loss"] = probe.loss(outputs, batch), (1,)
            for name, (value, shape) in values.items():
                if not isinstance(value, Tensor) or not value.is_floating_point() or value.shape != shape:
                    what = f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
                    message = f"expected floating-point numbers of the shape {shape} for 2 examples, not {what}"
                    raise ConfigError([Problem("probes", f"{cell.short}.{name}: {message}")])


def namesakes(key: str, shorts: Sequence[str]) -> list[Problem]:
    """A problem if several classes have the same name: their results would be the same files and rows."""
    same = sorted({short for short in shorts if shorts.count(short) > 1})
    return [Problem(key, f"several classes are called {same[0]}; rename one of them")] if same else []


def plan_of(settings: ProbeSettings) -> ProbePlan:
    """The plan of a command; the null arms are the last ones."""
    preset, names = PRESETS[settings.preset], settings.normalizers
    return ProbePlan(
        cells_of_settings(settings),
        [*names, *(null for null in preset.nulls if null not in names)],
        settings.rates or preset.rates,
        tuning_seeds(preset),
        comparison_seeds(settings.seeds or preset.seeds),
        preset.extensions,
        {name: options_typed(settings, name) for name in names},
        preset.share,
    )


def options_typed(settings: ProbeSettings, label: str) -> Any:
    """The options of a normalizer, typed as options.hnas={start:0.1} or options.hnas.start=0.1."""
    options: dict[str, Any] = {}
    for key in reversed(keys_of(label)):  # the options of the label itself come last, and replace the others
        if not isinstance(whole := settings.options.get(key, {}), dict):
            return whole
        single = {name: value for name, value in settings.options.items() if name.rpartition(".")[0] == key}
        options |= {**whole, **{name.rpartition(".")[2]: value for name, value in single.items()}}
    return options


def keys_of(label: str) -> tuple[str, ...]:
    """What the options of a normalizer may be typed for: its label, its name or path, which is dnas_slack for
    "dnas_slack+content" and "dnas_slack_u", and the name of its class, as in training."""
    plain = ALIASES.get(label, label).partition("+")[0].replace(":", ".")
    return (label, plain, short_name(plain))


def cells_of_settings(settings: ProbeSettings) -> list[Cell]:
    """The cells of a command, each once. Raises ValueError for an unknown probe or dose."""
    if settings.probes is None:
        return PRESETS[settings.preset].cells
    names = [probe_name for name in settings.probes for probe_name in (PROBES if name == ALL else [name])]
    return list(dict.fromkeys(cell for name in names for cell in cells_named(name)))


def show_job(plan: ProbePlan, job: ProbeJob, result: ProbeResult | ProbeFailure) -> None:
    """A line on an ensemble that has been trained, in columns that fit all cells and arms of the plan."""
    title, name = max(len(cell.title) for cell in plan.cells), max(map(len, plan.arms))
    what = "tuning" if job.tune else "comparison"
    outcome = f"{result.seconds:.1f} s" if isinstance(result, ProbeResult) else f"failed: {result.reason}"
    progress.console.print(f"  {job.cell.title:<{title}} {job.arm:<{name}} {what:<11} {outcome}", markup=False)


def show_cells(cells: Sequence[CellResults], arms: Sequence[Arm]) -> None:
    """The differences to the baseline: one row per cell, one column per normalizer."""
    compared = [arm for arm in arms if arm.label not in NULLS]
    header = ["probe", f"{compared[0].short} (score)", "null", "ceiling", *(arm.short for arm in compared[1:])]
    body = []
    for cell in cells:
        rows = {row.arm: row for row in cell.rows if row.trained}
        why = {**dict.fromkeys(cell.left_out, "not defined here"), **dict.fromkeys(cell.outcome.failed, "failed")}
        if (base := rows.get(compared[0].short)) is None:
            reason = why.get(compared[0].label, "")
            body.append([cell.outcome.cell.title, reason, *("" for _ in header[2:])])
            continue
        differences = [difference(rows.get(arm.short), why.get(arm.label, "")) for arm in compared[1:]]
        bounds = [f"{value:.3f}" if isfinite(value) else "" for value in (base.score, base.null, base.ceiling)]
        body.append([cell.outcome.cell.title, *bounds, *differences])
    title = f"Difference to {compared[0].short}, with 95 % intervals; * is shown (Holm, 5 %), (*) at these rates only"
    print_table(title, [header, *body])


def difference(row: Row | None, missing: str) -> str:
    """The difference with its interval, such as '+0.233 (+0.221 to +0.247) *', or why it is missing."""
    if row is None:
        return missing
    if isnan(row.difference):
        return row.verdict
    if isnan(row.low):
        return f"{row.estimate} ({row.verdict})"
    mark = {"shown": " *", "depends on the rate": " (flips)", AT_THESE_RATES: " (*)"}.get(row.verdict, "")
    return f"{row.estimate}{mark}"
