"""The CSV files of a run folder, which are appended to while it trains and continued when it is resumed."""

import csv
import logging
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from attnorm.errors import naming
from attnorm.files import replacing
from attnorm.wording import counted

log = logging.getLogger(__name__)
COLUMNS = ("step", "layer", "head", "value", "lr_factor")  # of a learned scalar
NO_EVIDENCE = "A weight near one half is no evidence that a layer uses both: it may not have moved yet."


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file with a header, every value as text."""
    with open(path, newline="", errors="replace") as file:
        return list(csv.DictReader(file))


class CsvTable:
    """A CSV file that is only ever appended to, except when a new column appears."""

    def __init__(self, path: Path):
        self.path = path
        self.columns: list[str] = []

    def append(self, row: dict) -> None:
        """Adds a row; a key not seen before becomes a column, empty in the rows above."""
        if not self.columns and self.path.exists():
            with open(self.path, newline="") as file:
                self.columns = next(csv.reader(file), [])
        new = [key for key in row if key not in self.columns]
        if new:
            rows = read_csv(self.path) if self.path.exists() else []
            self.columns += new
            self.write(rows)
        with naming(self.path), open(self.path, "a", newline="") as file:
            csv.DictWriter(file, self.columns).writerow(row)

    def write(self, rows: list[dict]) -> None:
        """Replaces the whole file, atomically."""
        with replacing(self.path) as unfinished, open(unfinished, "w", newline="") as file:
            writer = csv.DictWriter(file, self.columns)
            writer.writeheader()
            writer.writerows(rows)


def is_share(name: str) -> bool:
    """Whether a learned scalar is the share of a normalizer in a mixture, as of `hnas` or `mix`."""
    return name.endswith("hybrid_weights") or "mix_" in name


def rate_note(rows: Iterable[Mapping[str, str]]) -> str:
    """A sentence on how fast a learned scalar could move, from its rows: "" unless its parameters are fast ones."""
    factors = dict.fromkeys(factor for row in rows if (factor := row.get("lr_factor")))
    return f"Trained with optimizer.hybrid_lr_factor={' and '.join(factors)}." if factors else ""


def cut_history(paths: Iterable[Path], step: int) -> None:
    """Removes from CSV files what was recorded after the update `step`, so that a run can continue them.

    A last line without an end, which a killed process may have left, is dropped. A file with damaged rows
    continues without them, and stays as it was under another name.
    """
    for path in paths:
        if path.exists():
            rows = read_csv(path)[: None if path.read_bytes().endswith(b"\n") else -1]
            readable = [row for row in rows if None not in row and "\N{REPLACEMENT CHARACTER}" not in str(row)]
            intact = [row for row in readable if (row.get("step") or "").isdecimal()]
            if left_out := len(rows) - len(intact):
                shutil.copyfile(path, f"{path}.damaged")
                log.warning("%s: left out %s that cannot be read; see %s.damaged", path, counted(left_out, "row"), path)
            kept = [row for row in intact if int(row["step"]) <= step]
            table = CsvTable(path)
            table.columns = list(kept[0]) if kept else []
            table.write(kept) if kept else table.path.unlink(missing_ok=True)
