"""A run: its settings, results and curves, as plain data. Other packages ask it instead of opening its files."""

import csv
import json
import re
from collections import defaultdict
from contextlib import suppress
from functools import cached_property
from math import inf
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Self

from attnorm.errors import RunError
from attnorm.run import folder as named
from attnorm.run.csv_files import COLUMNS, read_csv
from attnorm.run.folder import FolderLock, RunState, leave_out, read_record
from attnorm.run.record import read_run_record, trained_settings
from attnorm.settings import leaves

if TYPE_CHECKING:
    import pandas as pd

NO_REASON = re.compile(r"HYDRA_FULL_ERROR|most recent call first|^File |^<no Python frame>")  # in lines of the output
ENDED = (RunState.FINISHED, RunState.INTERRUPTED, RunState.FAILED)
VALIDATION = "validation"  # the stem of the table of the final evaluation


class Run:
    """A run folder, as its files describe it. It need not exist, and may come from anyone.

    Files are read as plain data; nothing that they name is imported (`open_run` does that). Each is read when it is
    first asked for, and kept: a `Run` shows one moment, and another `Run` of the same folder a later one.
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    @classmethod
    def of_checkpoint(cls, path: Path) -> Self:
        """The run whose folder a checkpoint is in, if it is that of a run."""
        return cls(path.parent.parent)

    @property
    def record_file(self) -> Path:
        """The file with what it records of itself."""
        return self.folder / named.RUN

    @property
    def config_file(self) -> Path:
        """The file with its settings for people, which is never read back."""
        return self.folder / named.CONFIG

    @property
    def exists(self) -> bool:
        """Whether the folder is that of a run."""
        return self.record_file.is_file()

    def check(self, key: str) -> None:
        """Raises RunError if the folder is not that of a run. key: the key that names it."""
        if not self.folder.is_dir():
            raise RunError(f"{key}={self.folder}: no such folder")
        if not self.exists:
            raise RunError(f"{key}={self.folder}: no {named.RUN} there, so it is not a run folder")

    @cached_property
    def recorded(self) -> dict[str, Any]:
        """What it records of itself, see `run.record`. Raises RunError for anything else.

        The folder is removed from the search path of Python, since its files could take the place of libraries.
        """
        leave_out(self.folder)
        return read_run_record(self.record_file)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The settings with which it was started last, as plain values. Raises RunError, see `recorded`."""
        return self.recorded["settings"]

    @cached_property
    def state(self) -> RunState:
        """What has become of it."""
        if FolderLock(self.folder).holder() is not None:
            return RunState.RUNNING
        if not self.exists:
            return RunState.ABSENT  # also if it was stopped before it had recorded its settings: it cannot be resumed
        state = self.outcome.get("state")
        return RunState(state) if state in ENDED else RunState.KILLED

    @cached_property
    def outcome(self) -> dict[str, Any]:
        """The content of summary.json, {} without it: how far the run is, and how it ended. See `RunFiles`."""
        return self.record("summary")

    @cached_property
    def summary(self) -> dict[str, Any]:
        """How it ended; {} while it is going, and if it was killed."""
        return self.outcome if self.state in ENDED else {}

    def record(self, stem: str) -> dict[str, Any]:
        """The content of <stem>.json, {} without it, such as the evaluation "eval_test"."""
        return read_record(self.folder / f"{stem}.json")

    @property
    def progress(self) -> dict[str, Any]:
        """How far it is; {} before its first update."""
        return progress if isinstance(progress := self.outcome.get("progress"), dict) else {}

    @property
    def progressed_at(self) -> float:
        """When its progress was recorded, in seconds since 1970; 0 before its first update."""
        return path.stat().st_mtime if (path := self.folder / named.SUMMARY).exists() else 0.0

    @property
    def seed(self) -> int:
        """The seed of the initial values and of the order of the data."""
        return self.config["seed"]

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The flat settings in which the runs of an arm of a comparison agree: not where they train, nor the seeds."""
        kept = {key: value for key, value in trained_settings(self.config).items() if key not in ("seed", "ckpt_path")}
        return dict(leaves(kept))

    @property
    def label(self) -> str:
        """The label of its attention, such as "hnas"."""
        return str(self.recorded.get("attention", "unknown"))

    @property
    def why(self) -> str | None:
        """Why it ended early; None if it did not, or could not say so."""
        return self.summary.get("why")

    @property
    def job_lock(self) -> FolderLock:
        """The lock of its process if it is a job of a sweep, also on another machine if file systems pass it on."""
        return FolderLock(self.folder, named.JOB_LOCK)

    @property
    def console(self) -> Path:
        """What it printed as the job of a sweep."""
        return self.folder / named.CONSOLE

    @property
    def last_output(self) -> str | None:
        """The last line of what it printed as the job of a sweep, without empty lines and those of stacks."""
        if not self.console.is_file():
            return None
        lines = map(str.strip, self.console.read_text(errors="replace").splitlines())
        return next((line for line in reversed([*lines]) if line and not NO_REASON.search(line)), None)

    def evaluation(self, stem: str = VALIDATION) -> dict[str, Any]:
        """What the final evaluation has recorded, or another one, such as "eval_test"; {} without it."""
        content = self.summary.get(VALIDATION) if stem == VALIDATION else self.record(stem)
        return content if isinstance(content, dict) else {}

    @property
    def scores(self) -> dict[str, float]:
        """The metrics of the best model on the validation split, in the final evaluation."""
        if not (evaluation := self.evaluation()):
            raise RunError(f"{self.folder / named.SUMMARY}: has no scores; they are written when training ends")
        return evaluation["metrics"]

    @property
    def best_value(self) -> float | None:
        """The best value of the monitored metric, `summary["monitor"]`, during training."""
        return self.summary.get("best_value")

    @cached_property
    def predictions(self) -> "pd.DataFrame":
        """The scores and predictions of the final evaluation, one row per example of the validation split."""
        if (rows := self.examples()) is not None:
            return rows
        why = "the task records no examples, or the file has been deleted"
        why = why if self.state is RunState.FINISHED else "it is written when training ends"
        raise RunError(f"{self.predictions_file()}: missing; {why}")

    def predictions_file(self, stem: str = VALIDATION) -> Path:
        """The table of the examples of an evaluation."""
        return self.folder / named.PREDICTIONS / f"{stem}.parquet"

    def examples(self, stem: str = VALIDATION) -> "pd.DataFrame | None":
        """The table of the examples of an evaluation, None without it. Raises RunError if it is damaged."""
        import pyarrow.parquet as parquet

        if not (path := self.predictions_file(stem)).is_file():
            return None
        try:
            with open(path, "rb") as file:
                return parquet.read_table(file).replace_schema_metadata(None).to_pandas()
        except (OSError, ValueError, KeyError) as error:
            raise RunError(f"{path}: cannot be read: {str(error).splitlines()[0]}") from error

    def about_examples(self, key: bytes, stem: str = VALIDATION) -> dict[str, Any]:
        """An entry in the metadata of a table of examples, {} without it. Raises RunError if the table is damaged."""
        import pyarrow.parquet as parquet

        if not (path := self.predictions_file(stem)).is_file():
            return {}
        try:
            content = json.loads((parquet.read_schema(path).metadata or {}).get(key, b"{}"))
        except (OSError, ValueError, RecursionError) as error:
            raise RunError(f"{path}: cannot be read: {str(error).splitlines()[0]}") from error
        return content if isinstance(content, dict) else {}

    def repeated(self, stem: str) -> list[str]:
        """The stems of the tables of repeated evaluations, the newest first: "eval_test_2", "eval_test"."""
        names = [path.stem for path in (self.folder / named.PREDICTIONS).glob(f"{stem}*.parquet")]
        numbered = [(name.removeprefix(stem).removeprefix("_") or "1", name) for name in names]
        known = sorted((int(number), name) for number, name in numbered if number.isdecimal())
        return [name for _, name in reversed(known)]

    # curves

    def rows(self, stem: str = "metrics") -> list[dict[str, str]]:
        """The rows of <stem>.csv as texts; [] without the file."""
        return read_csv(path) if (path := self.folder / f"{stem}.csv").is_file() else []

    def numbers(self, stem: str = "metrics", prefixes: tuple[str, ...] = ("",)) -> "pd.DataFrame":
        """<stem>.csv: layers and places as texts, the rest as numbers, with NaN where the text is not one; an empty
        table without a column "step". prefixes: of the other columns that are read."""
        import pandas as pd

        try:
            table = pd.read_csv(
                self.folder / f"{stem}.csv",
                usecols=lambda column: column == "step" or str(column).startswith(prefixes),
                on_bad_lines="skip",
                encoding_errors="replace",
            )
        except (OSError, ValueError):  # missing, empty, or no table
            return pd.DataFrame()
        if "step" not in table:
            return pd.DataFrame()
        for column in table.columns:
            if column in ("layer", "place"):
                table[column] = table[column].astype(str)
            elif not pd.api.types.is_numeric_dtype(table[column]):
                table[column] = pd.to_numeric(table[column], errors="coerce")
        return table[table["step"].abs() < inf]

    def table(self, name: str) -> "pd.DataFrame":
        """A CSV file of the run folder, such as "hybrid_weights.csv" or "attention.csv"."""
        import pandas as pd

        if not (self.folder / name).is_file():
            raise RunError(f"{self.folder / name}: missing")
        return pd.read_csv(self.folder / name)

    @cached_property
    def metrics(self) -> "pd.DataFrame":
        """metrics.csv, with one row per point in time and the column `step`."""
        return self.table("metrics.csv")

    def validations(self, metric: str = "val/loss") -> list[tuple[int, float]]:
        """The updates and values of a metric of its validations, as far as they are written, also NaN and infinity."""
        values: dict[int, float] = {}
        with suppress(OSError, ValueError, csv.Error):  # missing, or written by another program
            for row in self.rows():
                if row.get(metric) and row.get("step"):
                    values[int(row["step"])] = float(row[metric])
        return sorted(values.items())

    def curves(self) -> dict[str, dict[str, dict[int, float]]]:
        """The mean over heads of every learned scalar: name -> layer -> update -> value."""
        curves: dict[str, dict[str, dict[int, float]]] = {}
        for name in self.learned_scalars:
            heads: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
            for row in self.rows(name):
                heads[row["layer"]][int(row["step"])].append(float(row["value"]))
            curves[name] = {
                layer: {step: fmean(values) for step, values in steps.items()} for layer, steps in heads.items()
            }
        return curves

    @property
    def learned_scalars(self) -> list[str]:
        """The names of the learned scalars that it has recorded. Their files <name>.csv are known by their columns."""
        names = []
        for path in sorted(self.folder.glob("*.csv")):
            with open(path, errors="replace") as file:
                names += [path.stem] if file.readline(200).strip() == ",".join(COLUMNS) else []
        return names

    # checkpoints and the model

    @property
    def checkpoints(self) -> Path:
        """The folder of its checkpoints."""
        return self.folder / named.CHECKPOINTS

    def checkpoint_file(self, name: str) -> Path:
        """The file of a checkpoint, such as "best" or "last"."""
        return self.checkpoints / f"{name}.ckpt"
