"""What a person sees: the start, the plan, sample outputs, and the closing tables."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from attnorm.progress import UNLIMITED, console
from attnorm.run.csv_files import NO_EVIDENCE, is_share
from attnorm.run.folder import RunState
from attnorm.settings import Settings
from attnorm.tasks.results import NAMES, NATS_OR_BITS, Results
from attnorm.wording import on_one_line

WIDE = 6  # metrics that a table has side by side; more of them stand one below the other


def show_start(cfg: Settings, typed: Sequence[str], file: Path) -> None:
    """What is trained, the settings that were typed, and the file with the whole configuration."""
    show_lines(
        f"{cfg.task.name} with {cfg.label}, seed {cfg.seed}",
        f"typed: {' '.join(typed)}" if typed else "all settings have their default values",
        f"configuration: {file}",
    )


def show_lines(*texts: str) -> None:
    """Plain text, as it is; empty ones not."""
    for text in filter(None, texts):
        console.print(text, markup=False)


def show_plan(summary: dict, batch_tokens: int, updates: int) -> None:
    """One line on the size of what is about to happen."""
    size, padding = f"{summary['parameters']:,} parameters", f"{summary['padding_share']:.1%} padding"
    size += f", {summary['frozen']:,} of them frozen" * bool(summary["frozen"])
    console.print(f"{updates:,} updates of at most {batch_tokens:,} tokens ({padding}), {size}")


def show_ending(run: Path, summary: dict) -> None:
    """Where the run is, and why it ended early if it did."""
    if why := summary.get("why"):
        resumed = "" if summary["state"] == RunState.FINISHED else f"; to continue it: attnorm train resume={run}"
        console.print(f"{why}{resumed}", markup=False)
    console.print(f"run folder: {run}", markup=False)


def show_samples(samples: list[dict[str, str]]) -> None:
    """A few examples, their texts by label; the last one is the model's."""
    for sample in samples:
        console.print()
        width, last = max(map(len, sample)), list(sample)[-1]
        for label, text in sample.items():
            console.print(f"[{'bold' if label == last else 'dim'}]{label:>{width}}[/] {escape(text)}")
    console.print()


def show_scores(scores: Results, label: str) -> None:
    """The closing table: the model beside the baselines. Where nothing was scored, the note alone."""
    settings = ", ".join(f"{name} {value}" for name, value in scores.settings.items())
    title = f"{scores.split}: {scores.size:,} {scores.unit}" + f"; {settings}" * bool(settings)
    rows = {label: scores.metrics, **scores.baselines}
    cells = [["", *rows]]
    for metric in scores.metrics:
        name = NAMES.get(metric, metric)
        cells.append([name, *(in_digits(row[metric], metric) if metric in row else "" for row in rows.values())])
    if scores.metrics:
        print_table(title, list(zip(*cells, strict=True)))
    else:
        console.print(title, markup=False)
    if scores.note:
        console.print(f"[dim]{escape(scores.note)}[/]")


def print_table(title: str, rows: Sequence[Sequence[str]]) -> None:
    """Prints a table in which nothing is cut off: labels that are too long wrap, and numbers stay on one line.

    rows: the first one is the header. Rows and columns change places if there are more than WIDE columns, or if the
    table does not fit the console. If it fits neither way, each row is a table of its own.
    """
    turned = list(zip(*rows, strict=True))
    ways = (rows, turned) if len(rows[0]) - 1 <= WIDE else (turned, rows)
    unlimited = console.options.update(width=UNLIMITED)  # the width that a table would like to have
    widths = [console.measure(_table_of(title, way), options=unlimited) for way in ways]
    fitting = [way for way, width in zip(ways, widths, strict=True) if width.maximum <= console.width]
    if not fitting and widths[ways.index(turned)].minimum <= console.width:
        fitting = [turned]
    for shown in fitting[:1] or [list(zip(rows[0], row, strict=True)) for row in rows[1:]]:
        console.print(_table_of(title, shown))


def _table_of(title: str, rows: Sequence[Sequence[str]]) -> Table:
    """A table whose first row is the header and whose first column has labels; the other columns have numbers."""
    header, *body = rows
    table = Table(title=escape(title), title_justify="left")
    table.add_column(escape(header[0]), overflow="fold")
    for number, name in enumerate(header[1:], start=1):
        widest = max((len(row[number]) for row in body), default=0)
        table.add_column(escape(name), justify="right", overflow="fold", min_width=widest)
    for row in body:
        table.add_row(*(escape(on_one_line(cell)) for cell in row))
    return table


def show_warnings(texts: list[str]) -> None:
    """What a user should not miss."""
    for text in texts:
        console.print(text, style="bold yellow", markup=False)


def show_learned_scalar(name: str, curves: Mapping[str, Mapping[int, float]], rate: str) -> None:
    """The mean over heads of a learned scalar as a table: the values of every layer at five steps of the training.

    rate: how fast it could move, see `rate_note`.
    """
    steps = sorted(next(iter(curves.values())))
    chosen = list(dict.fromkeys(steps[round(share * (len(steps) - 1))] for share in (0, 0.25, 0.5, 0.75, 1)))
    table = Table(title=f"{name.replace('_', ' ')} by update", title_justify="left")
    table.add_column("layer")
    for step in chosen:
        table.add_column(f"{step:,}", justify="right")
    for layer, points in curves.items():
        table.add_row(layer, *(f"{points[step]:#.3g}" for step in chosen))
    console.print(table)
    if notes := [rate] * bool(rate) + [NO_EVIDENCE] * is_share(name):
        console.print(*notes, markup=False)


def in_digits(value: float, metric: str) -> str:
    """Losses with three digits, what is in percent with two, counts with none, thresholds with all that they have."""
    if metric.endswith("_thresh"):
        return repr(float(value))  # in_digits, it would give other scores
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.3f}" if metric in NATS_OR_BITS else f"{value:,.2f}"
