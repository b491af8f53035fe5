"""Files with a table of scores: CSV, also compressed, and Parquet."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from attnorm.analysis.arms import matching
from attnorm.data.readers import table_files
from attnorm.data.readers.bad_rows import BadRow
from attnorm.errors import DataError

ENDINGS = (".csv", ".csv.gz", ".csv.xz", ".parquet")
LARGEST = 1e100  # score, whose square is a number too
ALL_COLUMNS = ("arm", "seed", "example", "score", "group")
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|[+-]?(inf|nan)", re.I)  # not "1_5", as in Python


def score_files(scores: str | Sequence[str]) -> list[Path]:
    """The files that a file, a pattern or several of them name. Raises DataError for one without files, and for a file
    that is no table."""
    files = list[Path]()
    for place in [scores] if isinstance(scores, str) else scores:
        found = matching(place)
        for path in found:
            if not path.name.endswith(ENDINGS):
                table = f"a table of scores ({', '.join(ENDINGS)}); see docs/compare.md#scores-from-elsewhere"
                raise DataError(f"{path}: expected {table}")
        if not found or not all(path.is_file() for path in found):
            raise DataError(f"{place}: no such file")
        files += found
    return files


def read_table(path: Path) -> pd.DataFrame:
    """A table with the places of its rows, such as "scores.csv:2", as the index. The cells are texts, without the space
    around them, and empty lines are left out.

    Raises DataError for a file that cannot be read.
    """
    names = table_files.columns_of(path, encoding=None)
    places, rows = list[str](), list[tuple[object, ...]]()
    for row in table_files.read_rows(path, [("column", name) for name in names], encoding=None):
        if isinstance(row, BadRow):
            raise row
        places.append(row[0])
        rows.append(row[1])
    table = as_texts(pd.DataFrame(rows, index=places, columns=names, dtype=object))
    return table[(table != "").any(axis=1)]


def as_texts(table: pd.DataFrame) -> pd.DataFrame:
    """The table with all cells as texts; "" for a missing value."""
    return table.map(lambda cell: "" if pd.isna(cell) else str(cell).strip())


@dataclass(frozen=True)
class ExampleScores:
    """The scores in some tables.

    values: by arm, seed and example. groups: of the examples; None if every one is on its own. source: in words.
    per_seed: whether the tables have one score per arm and seed, which then stands for a single example.
    """

    values: dict[str, dict[int, dict[str, float]]]
    groups: dict[str, str] | None
    source: str
    per_seed: bool = False


def read_scores(files: Sequence[Path], names: Mapping[str, str] | None = None) -> ExampleScores:
    """The scores in files, see `collected`."""
    return collected(map(read_table, files), str(files[0]) if len(files) == 1 else f"{len(files):,} tables", names)


def collected(tables: Iterable[pd.DataFrame], source: str, names: Mapping[str, str] | None = None) -> ExampleScores:
    """The scores in tables with the columns arm, seed, example, score, and group if examples depend on each other. All
    of them may lack the column example: then they have one score per arm and seed.

    tables: the index of each has the places of its rows, for messages. source: all of them in words. names: of the
    columns that are called otherwise.

    Raises DataError for a missing column, a value of another kind, a second score of an example of a run, an example
    that is in two groups, and tables of which only some have examples.
    """
    values: dict[str, dict[int, dict[str, float]]] = {}
    groups, lines = dict[str, tuple[str, str]](), dict[tuple[str, int, str], str]()
    named = {column: (names or {}).get(column, column) for column in ALL_COLUMNS}
    kinds = set[bool]()
    for table in tables:
        optional = {"example", "group"} - (names or {}).keys()
        if missing := [name for column, name in named.items() if name not in table and column not in optional]:
            raise DataError(f"{source}: no column {missing[0]}; the table has {', '.join(map(str, table.columns))}")
        kinds.add(per_seed := named["example"] not in table)
        if len(kinds) > 1:
            raise DataError(f"{source}: some tables have a column {named['example']}, and others one score per seed")
        if per_seed and named["group"] in table:
            raise DataError(f"{source}: a column {named['group']}, but no column {named['example']}")
        columns = [table[name] if name in table else [""] * len(table) for name in named.values()]
        for where, *cells in zip(map(str, table.index), *columns, strict=True):
            arm, seed, example, score, group = map(str, cells)
            for column, text in (("arm", arm), ("example", example or per_seed)):
                if not text:
                    raise DataError(f"{where}: {column} is empty")
            if not re.fullmatch(r"[0-9]+", seed):
                raise DataError(f"{where}: seed={seed!r}: expected a whole number")
            if not NUMBER.fullmatch(score):
                raise DataError(f"{where}: score={score!r}: expected a number")
            value = float(score)
            if not abs(value) <= LARGEST:
                allowed = f"expected a finite number, at most {LARGEST:g}"
                raise DataError(f"{where}: score={score}: {allowed}; leave out what has no score")
            if first := lines.get((arm, int(seed), example)):
                of = "" if per_seed else f"example {example} of "
                why = f", and there is no column {named['example']}" if per_seed else ""
                raise DataError(f"{where}: a second score of {of}{arm}, seed {seed}; the first is in {first}{why}")
            known, first = groups.setdefault(example, (group, where))
            if known != group:
                raise DataError(f"{where}: example {example} has another group than in {first}")
            lines[arm, int(seed), example] = where
            values.setdefault(arm, {}).setdefault(int(seed), {})[example] = value
    if not values:
        raise DataError(f"{source}: no scores")
    of_examples = {example: group for example, (group, _) in groups.items()}
    return ExampleScores(values, of_examples if any(of_examples.values()) else None, source, kinds == {True})
