"""Tables with the scores of a ladder, which anyone can extend: one row per run and example."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from attnorm.analysis.ladder.ladder_scores import LOSS, LadderRun, LadderScores, Rung, ladder_scores
from attnorm.analysis.score_files import read_table
from attnorm.analysis.scores import ExampleTable
from attnorm.data.readers.table_files import columns_of
from attnorm.errors import ConfigError, DataError, Problem
from attnorm.files import replacing
from attnorm.tasks.results import direction
from attnorm.wording import printable

WHOLE = ("seed", "rung", "parameters", "n_tokens")
NUMBERS = (*WHOLE, "train_tokens", "flops", "seconds_per_token", "loss_sum")
OF_SCORES = ("example", "group", "loss_sum", "n_tokens")  # empty in the only row of a run that diverged
MAY_BE_EMPTY = (*OF_SCORES, "seconds_per_token", "device", "input_hash")
COLUMNS = (
    *("arm", "seed", "rung", "parameters", "train_tokens", "flops", "seconds_per_token", "device"),
    *("example", "group", "input_hash", "loss_sum", "n_tokens"),
)
BEYOND = "beyond"  # a further column, 1 for a rung beyond the ladder; without it, none is
ENDINGS = (".csv", ".csv.gz", ".csv.xz")


def is_ladder_table(path: Path) -> bool:
    """Whether a table has the rungs of a ladder."""
    return "rung" in columns_of(path, encoding=None)


def scores_of_tables(paths: Sequence[Path], metric: str | None = None) -> LadderScores:
    """The scores of a ladder in several tables.

    If two tables have scores of one arm, rung and seed, those of the first count, and of the second only its seconds.
    Raises DataError, with file and line, for what is no such table, and what `ladder_scores` raises.
    """
    if metric not in (None, LOSS):
        raise ConfigError([Problem("metric", f"a table of a ladder has the {LOSS} alone", metric)])
    runs = [run for path in paths for run in _runs_in(path)]
    seen, notes = dict[tuple[str, int, int], str](), list[str]()
    for run in runs:
        if (first := seen.setdefault(run.key, run.place)) != run.place:
            notes.append(f"Of {run.place}, only the seconds count, because {first} has its scores.")
    return ladder_scores(runs, LOSS, direction(LOSS), notes=notes)


def _runs_in(path: Path) -> Iterator[LadderRun]:
    """The runs in a table. Raises DataError, with the line, for a value of another kind."""
    table = read_table(path)
    if missing := [name for name in COLUMNS if name not in table]:
        raise DataError(f"{path}: no column {missing[0]}; a table of a ladder has {', '.join(COLUMNS)}")
    if BEYOND not in table:
        table[BEYOND] = "0"

    def check(is_right: "pd.Series[bool]", name: str, expected: str) -> None:
        if not is_right.all():
            row = int(np.argmin(is_right))
            raise DataError(f"{table.index[row]}: {name}={table[name].iloc[row]!r}: expected {expected}")

    for name in COLUMNS:
        if name not in MAY_BE_EMPTY:
            check(table[name] != "", name, "a value")
    check(table[BEYOND].isin(("0", "1")), BEYOND, "0 or 1")
    has_scores = table["example"] != ""
    numbers = {}
    for name in NUMBERS:
        values = pd.to_numeric(table[name], errors="coerce")
        is_empty = (table[name] == "") & (~has_scores if name in OF_SCORES else name in MAY_BE_EMPTY)
        is_number = np.isfinite(values) & ((values > 0) | (name in ("seed", "loss_sum")))
        if name in WHOLE:
            check((is_number & (values % 1 == 0)) | is_empty, name, "a whole number above 0")
        check(is_number | is_empty, name, "a finite number above 0")
        numbers[name] = values
    table = table.assign(**numbers)
    run: Any
    for run, rows in table.groupby(["arm", "rung", "seed"], sort=False):
        arm, number, seed = str(run[0]), int(run[1]), int(run[2])
        place = f"{path}: {arm}, rung {number}, seed {seed}"
        of_run = ["parameters", "train_tokens", "flops", BEYOND, "seconds_per_token", "device"]
        if len(described := rows[of_run].drop_duplicates()) > 1:
            differing = described.columns[described.nunique(dropna=False) > 1]
            raise DataError(f"{place}: the rows differ in {', '.join(differing)}")
        first, scored = described.iloc[0], rows[rows["example"] != ""]
        if (again := scored["example"].duplicated()).any():
            raise DataError(f"{place}: example {scored['example'][again].iloc[0]} has a second row")
        rung = Rung(number, int(first["parameters"]), first["train_tokens"], first["flops"], first[BEYOND] == "1")
        examples = None
        if len(scored):
            columns = ["group", "loss_sum", "n_tokens", *(["input_hash"] if (scored["input_hash"] != "").all() else [])]
            examples = ExampleTable(scored.set_index("example")[columns], "test")
        seconds = None if np.isnan(first["seconds_per_token"]) else float(first["seconds_per_token"])
        yield LadderRun(arm, rung, seed, examples, examples is None, seconds, first["device"], place)


def write_scores(scores: LadderScores, path: Path) -> None:
    """Writes all runs as such a table, whole or not at all."""
    parts = list[pd.DataFrame]()
    for run in scores.runs.values():
        if run.examples is not None:
            rows = run.examples.rows.rename_axis("example").reset_index().reindex(columns=COLUMNS)
        elif run.diverged:
            rows = pd.DataFrame([dict.fromkeys(OF_SCORES)])
        else:
            continue
        rung = run.rung
        rows = rows.assign(arm=printable(run.arm), seed=run.seed, seconds_per_token=run.seconds, device=run.device)
        rows = rows.assign(rung=rung.number, parameters=rung.parameters, train_tokens=rung.tokens, flops=rung.flops)
        parts.append(rows.assign(beyond=int(rung.beyond)))
    table = pd.concat(parts)
    columns = [*COLUMNS, *([BEYOND] if table[BEYOND].any() else [])]
    with replacing(path) as unfinished:
        compression: dict[str, Any] = {"method": {".gz": "gzip", ".xz": "xz"}.get(path.suffix)}
        table.to_csv(unfinished, columns=columns, index=False, compression=compression)
