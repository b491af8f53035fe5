"""CSV files of a run folder, which are appended to while it trains and continued when it is resumed."""

import csv
import os
from pathlib import Path


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
            self._write(rows)
        with open(self.path, "a", newline="") as file:
            csv.DictWriter(file, self.columns).writerow(row)

    def _write(self, rows: list[dict]) -> None:
        unfinished = self.path.with_suffix(".unfinished")
        with open(unfinished, "w", newline="") as file:
            writer = csv.DictWriter(file, self.columns)
            writer.writeheader()
            writer.writerows(rows)
        os.replace(unfinished, self.path)


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file with a header, every value as text."""
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def continue_history(old_run: Path, run: Path, step: int, names: tuple[str, ...]) -> None:
    """Starts the CSV files of a resumed run with what the old run recorded up to `step`, so that curves are whole."""
    for name in names:
        if (old_run / name).exists():
            rows = [row for row in read_csv(old_run / name) if int(row["step"]) <= step]
            (run / name).unlink(missing_ok=True)  # in the same folder: drop the rows after the checkpoint
            table = CsvTable(run / name)
            for row in rows:
                table.append(row)
