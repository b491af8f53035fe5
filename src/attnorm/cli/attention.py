"""`attnorm attention`: heat maps and measures of the attention of one run, or of two next to each other."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import torch
from pydantic import Field
from rich.markup import escape
from rich.table import Table

from attnorm import progress
from attnorm.analysis.alignment import draw_alignments
from attnorm.analysis.attention.heatmaps import draw_reading
from attnorm.analysis.attention.reading import Reading
from attnorm.analysis.boxes import draw_boxes
from attnorm.analysis.captions import draw_words, image_of, looks
from attnorm.analysis.loaded_run import LoadedRun
from attnorm.analysis.paper import FigureSet
from attnorm.cli.evaluate import CheckpointName, configurations
from attnorm.config.command import Command, read
from attnorm.config.recorded import OVERRIDABLE
from attnorm.errors import Problem
from attnorm.run.folder import check_links, find_folder
from attnorm.run.run import Run
from attnorm.schema import ColumnWidth, PictureFormats, Text, WholeNumber
from attnorm.tasks.seq2seq import Seq2SeqTask

MOST_ROWS = 12  # heads that are printed one by one; the means over the heads of a layer are printed if there are more
WEIGHTS = {  # columns of the printed tables, and their names
    "entropy": "entropy",
    "sink_mass": "sink mass",
    "sink_token": "sink token",
    "column_mass_min": "smallest column mass",
    "column_mass_max": "largest column mass",
    "effective_rank": "rank",
}
PROBLEMS = {
    "objective": "objective",
    "objective_rows": "minimum, Eq. 9",
    "objective_both": "minimum, Eq. 10",
    "query_likelihood": "log p(q)",
    "key_likelihood": "log p(k)",
    "deviation": "deviation",
}
STATES = {
    "effective_rank": "rank",
    "rank_one_distance": "rank-one distance",
    "cosine": "cosine",
    "kurtosis": "kurtosis",
    "largest": "largest",
}


@dataclass(frozen=True, kw_only=True)
class AttentionKeys:
    """The keys of `attnorm attention`, as in conf/attention.yaml."""

    run: Text
    against: Text | None = None
    text: str | None = None
    example: Text | None = None
    layers: tuple[Text, ...] | None = None
    heads: tuple[WholeNumber, ...] | None = None
    out: Text | None = None
    formats: Annotated[PictureFormats, Field(min_length=1)] = ("png",)
    column: ColumnWidth = 3.3
    ckpt: CheckpointName = "best"
    trust_code: bool = False

    @property
    def folders(self) -> list[Path]:
        """The folders of `run` and `against`. A folder whose name has a comma is one folder if it exists."""
        parts = [self.run] if Path(self.run).exists() else self.run.split(",")
        names = [("run", part.strip()) for part in parts] + [("against", (self.against or "").strip())]
        return [find_folder(name, key) for key, name in names if name]


def show_attention(arguments: list[str]) -> None:
    """Draws figures, writes tables, and prints the measures of the attention of one or two runs."""
    progress.quiet_libraries()
    command = read_attention(arguments)
    keys, folders = command.settings, command.settings.folders
    if keys.out is None:
        check_links(folders[0])
    readings, runs = [], []
    for folder in folders:
        _, cfg = configurations(Run(folder), command)
        runs.append(LoadedRun(folder, cfg.settings, keys.ckpt))
        readings.append(runs[-1].reading(keys.text, example=keys.example).select(keys.layers, keys.heads))
    target = Path(keys.out or folders[0] / "figures" / "attention")
    if len({reading.run for reading in readings}) < len(readings):
        readings = [replace(of, run=f"{of.run} ({folder})") for of, folder in zip(readings, folders, strict=True)]
    written = draw_reading(readings).save(target, keys.formats, keys.column)
    for number, run in enumerate(runs, start=1):
        written += pictures_of_task(run, keys, target / f"run_{number}" if len(runs) > 1 else target)
    written += write_tables(readings, target)
    for reading in readings:
        show(reading)
    progress.console.print(f"written to {target}: {', '.join(str(path.relative_to(target)) for path in written)}")


def read_attention(arguments: Sequence[str]) -> Command[AttentionKeys]:
    """The arguments of the command. Raises ConfigError with every problem of them."""
    return read(arguments, AttentionKeys, "attnorm attention", OVERRIDABLE, check=key_problems)


def key_problems(command: Command[AttentionKeys]) -> Iterator[Problem]:
    """Keys that are missing or do not go together."""
    keys = command.settings
    if (keys.text is None) == (keys.example is None):
        example = "not both" if keys.text is not None else 'as in text="Police arrested two men."'
        yield Problem("text", f"either text or example must be given, {example}")
    if len(keys.folders) > 2:
        yield Problem("run", "at most two runs can be compared", keys.run)


def pictures_of_task(run: LoadedRun, keys: AttentionKeys, folder: Path) -> list[Path]:
    """Draws what only runs of some tasks have, and returns the files.

    Between two texts: the alignment of their words, which is a mean over all layers, if no layers are selected. For a
    question about an image: its boxes, shaded by the attention of the question. For a caption: the image once per
    word, shaded by the attention of the word.
    """
    if keys.text is not None:
        aligned = isinstance(run.task, Seq2SeqTask) and keys.layers is None
        return draw_alignments(run, [keys.text]).save(folder, keys.formats, keys.column) if aligned else []
    example = keys.example or ""
    if getattr(run.model, "fusion", None) is not None:
        return draw_boxes(run, [run.row_of(example)]).save(folder, keys.formats, keys.column)
    if run.task.interface == "captioning" and image_of(run, 0).dtype == torch.uint8:  # and no features of regions
        pictures = looks(run, example)
        drawn = draw_words(pictures, f"{run.name}: {pictures.caption}")
        return FigureSet({f"words_{Path(example).stem}": drawn}).save(folder, keys.formats, keys.column)
    return []


def write_tables(readings: Sequence[Reading], folder: Path) -> list[Path]:
    """Writes heads.csv, states.csv and sinks.csv, with the column `run`."""
    written = []
    for name in ("heads", "states", "sinks"):
        table = pd.concat([getattr(reading, name).assign(run=reading.run) for reading in readings])
        table.insert(0, "run", table.pop("run"))
        written.append(folder / f"{name}.csv")
        table.to_csv(written[-1], index=False)
    return written


def show(reading: Reading) -> None:
    """Prints the measures of a reading."""
    heads, note = reading.heads, ""
    if len(heads) > MOST_ROWS:
        numeric = heads.drop(columns=["head", "sink_token"])
        heads, note = numeric.groupby("layer", sort=False).mean().reset_index(), ", means over heads"
    print_measures(f"{reading.run}: attention weights{note}", heads, ("layer", "head"), WEIGHTS)
    print_measures(f"{reading.run}: what attention optimizes{note}", heads, ("layer", "head"), PROBLEMS)
    print_measures(f"{reading.run}: states", reading.states, ("layer", "place"), STATES)


def print_measures(title: str, rows: pd.DataFrame, labels: Sequence[str], columns: dict[str, str]) -> None:
    """A table with labels and measures; measures that no row has are left out."""
    shown = {name: name for name in labels} | columns
    shown = {name: words for name, words in shown.items() if name in rows and rows[name].notna().any()}
    table = Table(title=escape(title), title_justify="left")
    for name, words in shown.items():
        widest = max(len(text) for text in (*map(cell, rows[name]), *words.split()))
        justify: Any = "left" if name in labels else "right"
        table.add_column(words, justify=justify, overflow="fold", min_width=widest)
    for values in rows[list(shown)].itertuples(index=False):
        table.add_row(*(escape(cell(value)) for value in values))
    progress.console.print(table)


def cell(value: object) -> str:
    """A value as it is printed: floats with three digits, and nothing for NaN."""
    if isinstance(value, float):
        return "" if value != value else f"{value:#.3g}".removesuffix(".")
    return str(value)
