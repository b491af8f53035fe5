"""`generate.py`: texts for given inputs, such as headlines for articles, by the model of a run folder."""

import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from attnorm.cli.evaluate import CheckpointName, cleaner, configurations
from attnorm.config.command import read
from attnorm.config.recorded import OVERRIDABLE
from attnorm.data.readers import text as files
from attnorm.data.readers.bad_rows import BadRow
from attnorm.errors import ConfigError, DataError, Problem
from attnorm.progress import bar, quiet_libraries
from attnorm.run.folder import find_folder
from attnorm.run.opening import open_run
from attnorm.run.run import Run
from attnorm.schema import Count, Text
from attnorm.tasks.task import Task, task_of
from attnorm.wording import printable


@dataclass(frozen=True, kw_only=True)
class GenerateKeys:
    """The keys of `attnorm generate`, as in conf/generate.yaml."""

    run: Text
    input: Text
    ckpt: CheckpointName = "best"
    trust_code: bool = False
    chunk: Count = 256


def generate(arguments: list[str]) -> None:
    """Writes one text per line for one input per line, in order, as soon as a chunk of them is done."""
    quiet_libraries()
    command = read(arguments, GenerateKeys, "attnorm generate", OVERRIDABLE)
    keys = command.settings
    run, source, chunk = Run(find_folder(keys.run, "run")), keys.input, keys.chunk
    trained, cfg = configurations(run, command)
    if source != "-" and (problem := unreadable(Path(source))):
        raise ConfigError([f"input={source}: {problem}; - reads standard input"])
    task = task_of(cfg, run.folder)
    if type(task).generate is Task.generate:
        raise ConfigError([Problem("run", f"the models of task={cfg.task.name} write no text", run.folder)])
    tokenizer, model, _ = open_run(run.folder, cfg, keys.ckpt)
    of_source = cleaner(trained, cfg)
    total = None  # is only known once they have been read
    with suppress(OSError, ValueError):
        total = files.count_lines(Path(source)) if Path(source).is_file() else None
    with (
        bar("texts", stderr=True) as progress,
        nullcontext(sys.stdin.buffer) if source == "-" else open(source, "rb") as file,
    ):
        task_line, lines = progress.add_task("", total=total, note=""), input_lines(file, source)
        for number, inputs in enumerate(iter(lambda: list(islice(lines, chunk)), [])):
            texts = [task.clean(line, of_source) for line in inputs]
            try:
                written = iter(task.generate(model, tokenizer, list(filter(None, texts))) if any(texts) else ())
            except DataError as error:
                first = number * chunk + 1
                position = f"line {first}" if len(inputs) == 1 else f"lines {first} to {first + len(inputs) - 1}"
                raise DataError(f"input={source}, {position}: {error}") from error
            outputs = [next(written) if text else "" for text in texts]  # an empty line stays empty
            print(printable("\n".join(outputs)), flush=True)
            progress.advance(task_line, len(inputs))


def unreadable(path: Path) -> str:
    """Why lines cannot be read from `path`, which may also be a pipe; "" if they can."""
    if not path.exists():
        return "no such file"
    if path.is_dir():
        return "this is a folder"
    return "" if os.access(path, os.R_OK) else "no permission to read it"


def input_lines(file: Any, source: str) -> Iterator[str]:
    """The lines of a binary file, UTF-8, plain or gzipped. Raises ValueError, naming file and line, at one that is not
    text. source: the file's name, or "-" for standard input."""
    try:
        unpacked = files.unpacked(file)
    except OSError as error:
        raise DataError(f"input={source}: cannot be read: {error.strerror}") from error
    for line in files.text_lines(unpacked, f"input={source}"):
        if isinstance(line, BadRow):
            raise line
        yield line
