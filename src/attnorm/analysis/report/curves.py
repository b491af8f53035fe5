"""Curves over the course of training, aggregated over the runs of each arm and thinned to few points."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from attnorm.analysis.arms import Arm
from attnorm.analysis.run_figures import split_label
from attnorm.run.folder import RunState
from attnorm.run.run import Run

LOGGED = ("train/loss", "val/loss", "val/", "train/gradient_norm")  # columns, in order
POINTS = 100  # of a curve; if there are more, neighbours are averaged


@dataclass(frozen=True)
class Point:
    """A point of a curve.

    series: the arm, or the layer. step: the number of updates, or another number along the axis. mean, low, high: the
    mean, the smallest and the largest of the values. size: their number.
    """

    series: str
    step: float
    mean: float
    low: float
    high: float
    size: int


def metric_rows(arms: Mapping[str, Sequence[Run]]) -> dict[str, pd.DataFrame]:
    """The recorded losses and metrics by name, with the columns series, run, seed, step and value.

    arms: the runs by series.
    """
    parts: dict[str, list[pd.DataFrame]] = {}
    for series, runs in arms.items():
        for number, run in enumerate(runs):
            table = run.numbers(prefixes=LOGGED)
            for name in table.columns.drop("step", errors="ignore"):
                rows = table[["step", name]].dropna().set_axis(["step", "value"], axis=1)
                parts.setdefault(str(name), []).append(rows.assign(series=series, run=number, seed=run.seed))
    order = sorted(parts, key=lambda name: next(n for n, prefix in enumerate(LOGGED) if name.startswith(prefix)))
    return {name: pd.concat(parts[name]) for name in order}


def metric_curves(rows: Mapping[str, pd.DataFrame]) -> dict[str, list[Point]]:
    """The curves of losses and metrics by name, over the seeds of each arm. rows: see `metric_rows`."""
    curves = {name: aggregated(recorded) for name, recorded in rows.items()}
    return {name: points for name, points in curves.items() if points}


def difference_curves(
    rows: Mapping[str, pd.DataFrame], baseline: str, compared: Collection[str]
) -> dict[str, list[Point]]:
    """The curves of arm minus baseline by name, paired by seed and step. A curve without any difference is empty.

    rows: see `metric_rows`. compared: the arms whose differences are wanted.
    """
    curves = {}
    for name, recorded in rows.items():
        values = recorded[recorded["series"] == baseline].set_index(["seed", "step"])["value"].rename("baseline")
        arms = recorded[recorded["series"].isin(list(compared))]
        pairs = arms.join(values[~values.index.duplicated(keep="last")], on=["seed", "step"], how="inner")
        pairs = pairs.assign(value=pairs["value"] - pairs["baseline"])
        curves[name] = aggregated(pairs) if pairs["value"].any() else []
    return curves


def layer_rows(arms: Mapping[str, Sequence[Run]], stem: str) -> pd.DataFrame:
    """The rows of a CSV file of all runs, with the columns series, run and stack. Runs without the file have no rows.

    arms: the runs by series. stem: of a CSV file with a row per step and layer, such as "attention".
    """
    every = [(series, number, run) for series, runs in arms.items() for number, run in enumerate(runs)]
    return with_layers([run.numbers(stem).assign(series=series, run=number) for series, number, run in every])


def attention_curves(rows: pd.DataFrame, column: str) -> dict[str, list[Point]]:
    """The curves of a column by stack, such as "decoder cross": the mean over its layers and heads."""
    if column not in rows:
        return {}
    means = rows.groupby(["stack", "series", "run", "step"], sort=False)[column].mean().rename("value").reset_index()
    return {str(stack): aggregated(part) for stack, part in means.groupby("stack", sort=False)}


def final_by_layer(rows: pd.DataFrame, column: str) -> list[tuple[str, Point]]:
    """The last recorded values of a column: for each layer, a point per series, over heads and runs."""
    if column not in rows:
        return []
    last = rows[rows["step"] == rows.groupby(["series", "run"])["step"].transform("max")].dropna(subset=[column])
    points = []
    for (layer, series), part in last.groupby(["layer", "series"], sort=False):
        values = part[column]
        mean, low, high = map(rounded, (values.mean(), values.min(), values.max()))
        points.append((str(layer), Point(str(series), int(part["step"].max()), mean, low, high, len(values))))
    stacks = list(dict.fromkeys(split_label(layer)[0] for layer, _ in points))

    def position(entry: tuple[str, Point]) -> tuple[int, int]:
        stack, number = split_label(entry[0])
        return stacks.index(stack), int(number or 0)

    return sorted(points, key=position)


def scalar_curves(runs: Sequence[Run]) -> dict[str, dict[str, list[Point]]]:
    """The curves of learned scalars by name and stack, with one series per layer, over the heads and runs."""
    tables: dict[str, list[pd.DataFrame]] = {}
    for number, run in enumerate(runs):
        for name in run.learned_scalars:
            if not (recorded := run.numbers(name)).empty:
                tables.setdefault(name, []).append(recorded.assign(run=number))
    curves: dict[str, dict[str, list[Point]]] = {}
    for name, parts in tables.items():
        rows = with_layers(parts)
        if "value" in rows:
            labels = [(layer, split_label(layer)[1]) for layer in rows["layer"]]
            names = [f"layer {digits}" if digits else layer for layer, digits in labels]
            rows = rows.assign(series=names).dropna(subset=["value"])
            curves[name] = {str(stack): aggregated(part) for stack, part in rows.groupby("stack", sort=False)}
    return curves


def with_layers(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The rows of all tables that have steps and layers, with the stack of each layer."""
    usable = [table for table in tables if {"step", "layer"} <= set(table.columns)]
    if not usable:
        return pd.DataFrame()
    rows = pd.concat(usable, ignore_index=True)
    return rows.assign(stack=[split_label(layer)[0] for layer in rows["layer"]])


def aggregated(rows: pd.DataFrame) -> list[Point]:
    """Mean and range over the runs of each series at each step.

    rows: columns series, run, step, value, with several values of a run at a step where it has several heads. Where
    there are more than POINTS steps, they are merged into so many intervals of equal length, and each run enters with
    its mean over an interval.
    """
    rows = rows[np.isfinite(rows["value"])]
    steps = np.unique(rows["step"])
    if len(steps) > POINTS:
        edges = np.linspace(steps[0], steps[-1], POINTS + 1)
        rows = rows.assign(step=edges[np.clip(np.searchsorted(edges, rows["step"]), 1, POINTS)])
        keys = ["series", "run", "step", *(["head"] if "head" in rows else []), *(["layer"] if "layer" in rows else [])]
        rows = rows.groupby(keys, sort=False, dropna=False)["value"].mean().reset_index()
    groups = rows.groupby(["series", "step"], sort=False)["value"]
    summary = groups.agg(["mean", "min", "max", "size"]).reset_index().sort_values("step", kind="stable")
    order = {series: number for number, series in enumerate(dict.fromkeys(rows["series"]))}
    points = []
    for series, step, mean, low, high, size in summary.itertuples(index=False):
        points.append(Point(str(series), round(step), rounded(mean), rounded(low), rounded(high), int(size)))
    return sorted(points, key=lambda point: (order[point.series], point.step))


def rounded(value: float) -> float:
    """A value with as many digits as a chart can show."""
    return float(f"{value:.4g}")


def runs_to_draw(arm: Arm) -> list[Run]:
    """The finished runs of an arm, or, as long as there are none, all of them."""
    finished = list(arm.finished.values())
    running = [run for run in arm.runs if run.state is RunState.RUNNING]
    return [*finished, *running] or list(arm.runs)
