"""`generate.py`: headlines for articles, by the model of a run folder."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from attnorm.cli.evaluate import check, cleaner, configurations
from attnorm.config.overrides import open_run, read_command
from attnorm.data.arrow import cleaned
from attnorm.data.readers import text as files
from attnorm.data.readers.bad_rows import BadRow
from attnorm.errors import ConfigError
from attnorm.progress import bar
from attnorm.schema import Count, value_problems
from attnorm.tasks.headlines.generate import cut, write_headlines
from attnorm.tasks.headlines.task import HeadlineTask
from attnorm.tasks.task import task_of
from attnorm.training import console


def generate(arguments: list[str], defaults: dict, conf: Path) -> None:
    """Writes one headline per line for one article per line, in order, as soon as a chunk of them is done."""
    console.quiet_libraries()
    command = read_command(arguments, defaults)
    run, source, chunk = Path(command.settings["run"]), str(command.settings["input"]), command.settings["chunk"]
    if problems := value_problems("chunk", chunk, Count):
        raise ConfigError(problems)
    trained, cfg = configurations(run, command, conf)
    check(cfg, ())
    if source != "-" and (problem := unreadable(Path(source))):
        raise ConfigError([f"input={source}: {problem}; - reads standard input"])
    recipe = task_of(cfg, run)
    if not isinstance(recipe, HeadlineTask):
        raise ConfigError([f"run={run}: task={cfg['task']['name']} writes no headlines"])
    tokenizer, model, _ = open_run(run, cfg, command.settings["ckpt"])
    decoding, data, of_source = recipe.decoding(), cfg["data"], cleaner(trained, cfg)
    cleaning = {name: data.get(name, False) for name in ("lowercase", "digits")}
    total = count_lines(Path(source)) if Path(source).is_file() else None
    with bar("headlines", stderr=True) as progress, input_lines(source) as lines:
        line = progress.add_task("", total=total, note="")
        for articles in chunks(lines, chunk):
            texts = [cleaned(article, "article", of_source, **cleaning) for article in articles]
            written = [number for number, text in enumerate(texts) if text]  # an empty line stays empty
            sources = cut(tokenizer.encode([texts[number] for number in written]), cfg["model"]["max_source"])
            headlines = [""] * len(articles)
            if written:
                found = write_headlines(model, tokenizer, sources, decoding, data["batch_tokens"])
                for number, headline in zip(written, found, strict=True):
                    headlines[number] = headline
            print("\n".join(headlines), flush=True)
            progress.advance(line, len(articles))


def unreadable(path: Path) -> str:
    """Why articles cannot be read from `path`, which may also be a pipe; "" if they can."""
    if not path.exists():
        return "no such file"
    if path.is_dir():
        return "this is a folder"
    return "" if os.access(path, os.R_OK) else "no permission to read it"


@contextmanager
def input_lines(source: str) -> Iterator[Iterator[str]]:
    """The lines of a file or of standard input ("-"), UTF-8, plain or gzipped. Raises ValueError, naming file and line,
    at one that is not text."""

    def good(file: io.BufferedReader) -> Iterator[str]:
        for line in files.lines(files.unpacked(file), f"input={source}"):
            if isinstance(line, BadRow):
                raise line
            yield line

    if source == "-":
        standard_input: Any = sys.stdin.buffer  # a BufferedReader
        yield good(standard_input)
    else:
        with open(source, "rb") as file:
            yield good(file)


def chunks(items: Iterator[str], size: int) -> Iterator[list[str]]:
    """Lists of at most `size` items."""
    while chunk := list(islice(items, size)):
        yield chunk


def count_lines(path: Path) -> int | None:
    """How many lines the progress bar has to expect; None where that shows only as they are read."""
    try:
        return files.count_lines(path)
    except ValueError:
        return None
