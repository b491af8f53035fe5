"""`attnorm figures`: draws figures of the papers."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from attnorm import progress
from attnorm.choices import CONF
from attnorm.cli.verbs import is_help
from attnorm.config.command import read
from attnorm.errors import ConfigError, Problem
from attnorm.experiments.papers.drawing import write
from attnorm.experiments.papers.fenchel_models import folders_by_type, has_transformers
from attnorm.experiments.papers.registry import ALL, FIGURES, PaperFigure, Settings, listing
from attnorm.experiments.papers.short_runs import short_run
from attnorm.imports import nearest
from attnorm.schema import Count, Text, WholeNumber


@dataclass(frozen=True, kw_only=True)
class FigureKeys:
    """The keys of `attnorm figures`, as in conf/figures.yaml; `Settings` says what they mean."""

    out: Text = "figures"
    runs: tuple[Text, ...] | None = None
    trust_code: bool = False
    model: tuple[Text, ...] | None = None
    text: Text | None = None
    lines: Count = 2
    tokens: Count = 128
    draws: Count = 20
    seed: WholeNumber = 0


def draw_figures(arguments: list[str]) -> None:
    """Draws the named figures into a folder, and prints what to see in them; without arguments, the keys and names."""
    if is_help(arguments) or not arguments:
        print(f"{(CONF / 'figures.yaml').read_text()}\n{listing()}")
        return
    progress.quiet_libraries()
    figures, settings, out = read_figures(arguments)
    for name, figure in figures.items():
        if figure.models == ("t5",) and ALL in arguments and not has_transformers():
            progress.console.print(f"\n{name}: left out, because the library transformers is not installed")
            continue
        given = settings
        if figure.trained and not settings.runs:
            given = replace(settings, runs=tuple(short_run(run, out / "runs") for run in figure.trained))
        drawing = figure.draw(given)
        paths = write(name, drawing, out)
        progress.console.print(f'\n{name} ("{figure.paper}", {figure.place})', *drawing.sentences, sep="\n")
        progress.console.print(f"written to {', '.join(map(str, paths))}")


def read_figures(arguments: list[str]) -> tuple[dict[str, PaperFigure], Settings, Path]:
    """The named figures, what they are drawn from, and the folder of their files. Raises ConfigError with all problems
    of the arguments."""
    names = [word for word in arguments if "=" not in word]
    problems: list[Problem] = []
    allowed = [*FIGURES, ALL]
    if not names:
        problems.append(Problem.about("name", f"which figure? allowed: {', '.join(allowed)}"))
    unknown = [name for name in names if name not in allowed]
    for name in unknown:
        sentence = f"{name}: no such figure; allowed: {', '.join(allowed)}.{nearest(name, allowed)}"
        problems.append(Problem.about("name", sentence))
    figures = FIGURES if ALL in names else {name: FIGURES[name] for name in names if name not in unknown}
    command = read([it for it in arguments if "=" in it], FigureKeys, "attnorm figures", known=problems)
    keys = command.settings
    if problems := useless(figures, command.typed):
        raise ConfigError(problems)
    given: dict[str, Any] = {field.name: getattr(keys, field.name) for field in fields(Settings)}
    given |= {name: tuple(map(Path, given[name] or ())) for name in ("runs", "model")}
    given["text"] = keys.text and Path(keys.text)
    check_models(figures, given["model"])
    return figures, Settings(**given), Path(keys.out)


def useless(figures: Mapping[str, PaperFigure], asked: Collection[str]) -> list[Problem]:
    """The keys that were typed but that none of the figures uses."""
    used = {key for figure in figures.values() for key in figure.reads} | {"out"}
    problems = [Problem(key, f"has no effect on {', '.join(figures)}") for key in sorted({*asked} - used)]
    if "runs" in {*asked} & used and len(figures) > 1:
        problems.append(Problem("runs", "draw one figure at a time from runs, because they are those of one task"))
    return problems


def check_models(figures: Mapping[str, PaperFigure], folders: tuple[Path, ...]) -> None:
    """Raises ConfigError for a folder whose type of model none of the figures shows."""
    shown = {kind for figure in figures.values() for kind in figure.models}
    for kind, folder in folders_by_type(folders).items():
        if kind not in shown:
            message = f"a model of type {kind}; {', '.join(figures)} needs {' or '.join(sorted(shown))}"
            raise ConfigError([Problem("model", message, folder)])
