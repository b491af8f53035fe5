"""The CSV files of a run folder: their rows, and which of them hold learned scalars."""

import csv
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean

COLUMNS = ("step", "layer", "head", "value")  # of a learned scalar


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file with a header, every value as text."""
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def file_of(run_folder: Path, name: str) -> Path:
    """The CSV file of a learned scalar."""
    return run_folder / f"{name}.csv"


def recorded_scalars(run_folder: Path) -> dict[str, list[dict[str, str]]]:
    """The rows of every learned scalar that a run has recorded, by name; they are recognized by their columns."""
    tables = {path.stem: read_csv(path) for path in sorted(run_folder.glob("*.csv"))}
    return {name: rows for name, rows in tables.items() if rows and tuple(rows[0]) == COLUMNS}


def mean_over_heads(rows: Iterable[dict[str, str]]) -> dict[str, dict[int, float]]:
    """The mean over heads of a learned scalar, from its rows: layer -> update -> value."""
    heads: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        heads[row["layer"]][int(row["step"])].append(float(row["value"]))
    return {layer: {step: fmean(values) for step, values in points.items()} for layer, points in heads.items()}
