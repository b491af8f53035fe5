"""What a run of the suite leaves, as values, and where two runs differ."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnorm.attention.testing.report import Failure
from attnorm.run.csv_files import read_csv
from attnorm.run.run import Run
from attnorm.training.callbacks.throughput import TIMING_COLUMNS

GRADIENTS = "gradients"  # the folder of a run that holds the gradients of its updates, if they are kept
DIVISOR = "divisor"  # among the gradients of an update: the divisor of its loss, which says whether examples are equal


def gradients_of(run: Path, updates: int) -> list[dict[str, Tensor | None]]:
    """The gradients of the first updates of a run that kept them, by parameter."""
    return [torch.load(run / GRADIENTS / f"{update}.pt", weights_only=True) for update in range(1, updates + 1)]


def scores_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """The results in a record of an evaluation, without what depends on the speed of the machine."""
    return {name: record.get(name) for name in ("split", "unit", "size", "metrics", "baselines", "note", "settings")}


def file_names_in(run: Path) -> set[str]:
    """The paths of the files in a run folder, without kept gradients."""
    files = {path.relative_to(run) for path in run.rglob("*") if path.is_file()}
    return {str(path) for path in files if path.parts[0] != GRADIENTS}


def predictions_of(run: Path, stem: str = "validation") -> dict[str, list] | None:
    """The columns of predictions/<stem>.parquet, None without it."""
    import pyarrow.parquet as parquet

    path = Run(run).predictions_file(stem)
    return parquet.read_table(path).to_pydict() if path.exists() else None


def without(table: dict[str, list] | None, column: str) -> dict[str, list] | None:
    """The table without a column."""
    return table and {name: values for name, values in table.items() if name != column}


def curves_of(path: Path) -> list[list[tuple[str, str]]]:
    """The values in a CSV file of a run, sorted, without those that depend on the speed of the machine."""
    rows = read_csv(path) if path.exists() else []
    return sorted(
        sorted((key, value) for key, value in row.items() if value and key not in TIMING_COLUMNS) for row in rows
    )


def tensors_of(states: Any, prefix: str = "") -> dict[str, Tensor]:
    """The tensors in nested dicts and lists, by their path."""
    if isinstance(states, Tensor):
        return {prefix: states}
    items = states.items() if isinstance(states, Mapping) else enumerate(states) if isinstance(states, list) else ()
    return {name: tensor for key, value in items for name, tensor in tensors_of(value, f"{prefix}/{key}").items()}


def differing_names(first: Mapping[str, Any] | None, second: Mapping[str, Any] | None) -> list[str]:
    """The names whose values differ, or that only one side has."""
    one, two = first or {}, second or {}

    def equal(name: str) -> bool:
        a, b = one.get(name), two.get(name)
        return torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a is b or bool(a == b)

    return sorted(name for name in one.keys() | two.keys() if not equal(name))


def same(first: Mapping[str, Tensor], second: Mapping[str, Tensor], what: str) -> None:
    """Raises Failure that names the tensors that are not bit-equal."""
    if names := differing_names(first, second):
        raise Failure(f"{what} not bit-equal: {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}")
