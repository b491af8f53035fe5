"""`eval.py` and `generate.py`: what they do with a run folder."""

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from attnorm.attention.build import check_attention
from attnorm.data.text import clean
from attnorm.tasks.headlines import cut, write_headlines
from attnorm.training import console
from attnorm.training.config import (
    check_data,
    check_together,
    check_values,
    model_attention,
    model_sites,
    run_label,
)
from attnorm.training.environment import write_json
from attnorm.training.errors import ConfigError
from attnorm.training.recipes.base import recipe_of
from attnorm.training.recipes.gigaword import Headlines
from attnorm.training.rerun import Rerun, changed, open_run, read_command, read_run
from attnorm.training.rules import integer
from attnorm.training.run_config import Recorded
from attnorm.training.score_file import OF_FILES, score_file

SPLITS = ("validation", "test")
OF_RUNS = ("run", "split", "ckpt", "trust_code")  # eval.py's keys about runs; those about files are in score_file


def evaluate(arguments: list[str], defaults: dict, conf: Path) -> None:
    """Scores a run on a split and writes eval_<split>.json, and what the model wrote, into its folder; or, with
    `metric`, a file of predictions."""
    console.quiet_libraries()
    command = read_command(arguments, defaults)
    asked = {key for key, value in command.settings.items() if value != defaults[key]}
    if command.settings["metric"] is not None:
        return score_file(command, asked, OF_RUNS)
    if command.settings["run"] in (None, ""):
        raise ConfigError(["run: has to be given, as run=<run folder>, or metric=squad|vqa with files to score"])
    if others := [key for key in OF_FILES if key in asked]:
        raise ConfigError([f"{key}: it is for metric=squad|vqa, which score a file, not a run" for key in others])
    run, split = Path(command.settings["run"]), command.settings["split"]
    if split not in SPLITS:
        raise ConfigError([f"split={split}: allowed are {', '.join(SPLITS)}"])
    cfg = configuration(run, command, conf)
    sound(cfg, (split,))
    tokenizer, model, step = open_run(run, cfg, command.settings["ckpt"])
    recipe = recipe_of(cfg, run)
    data = recipe.splits(tokenizer, (split,))[split]
    scores = recipe.score(recipe.task(model, tokenizer, data), data)
    name = free_name(run, f"eval_{split}")
    written = scores.write(run, name)
    record = {
        "checkpoint": command.settings["ckpt"],
        "step": step,
        "typed": dict(command.typed),
        "data": cfg["data"],
        **scores.record(),
    }
    write_json(run / f"{name}.json", record)
    console.show_scores(scores, run_label(cfg))
    console.console.print(f"written to {', '.join([f'{run / name}.json', *written])}")


def generate(arguments: list[str], defaults: dict, conf: Path) -> None:
    """Writes one headline a line for one article a line, in order, as soon as a chunk of them is done."""
    console.quiet_libraries()
    command = read_command(arguments, defaults)
    run, source, chunk = Path(command.settings["run"]), command.settings["input"], command.settings["chunk"]
    if not integer(1).accepts(chunk):
        raise ConfigError([f"chunk={chunk}: allowed are {integer(1).allowed}"])
    cfg = configuration(run, command, conf)
    sound(cfg, ())
    if source != "-" and not Path(source).is_file():
        raise ConfigError([f"input={source}: no such file; - reads standard input"])
    recipe = recipe_of(cfg, run)
    if not isinstance(recipe, Headlines):
        raise ConfigError([f"run={run}: task={cfg['task']['name']} writes no headlines"])
    tokenizer, model, _ = open_run(run, cfg, command.settings["ckpt"])
    decoding, data = recipe.decoding(), cfg["data"]
    lines = sys.stdin.buffer if source == "-" else open(source, "rb")  # noqa: SIM115 - closed at exit
    total = None if source == "-" else count_lines(Path(source))
    with console.bar("headlines", stderr=True) as progress:
        bar = progress.add_task("", total=total, note="")
        for articles in chunks(decoded(lines, source), chunk):
            cleaned = [clean(article, lowercase=data["lowercase"], digits=data["digits"]) for article in articles]
            written = [number for number, article in enumerate(cleaned) if article]  # an empty line stays empty
            sources = cut(tokenizer.encode([cleaned[number] for number in written]), cfg["model"]["max_source"])
            headlines = [""] * len(articles)
            if written:
                found = write_headlines(model, tokenizer, sources, decoding, data["batch_tokens"])
                for number, headline in zip(written, found, strict=True):
                    headlines[number] = headline
            print("\n".join(headlines), flush=True)
            progress.advance(bar, len(articles))


def configuration(run: Path, command: Rerun, conf: Path) -> Recorded:
    """A run's configuration with what was typed."""
    recorded = read_run(run, [key for key, _ in command.typed], command.settings["trust_code"])
    return changed(recorded, command.typed, conf)


def sound(cfg: dict, splits: tuple[str, ...]) -> None:
    """Raises ConfigError with every problem of a run's configuration as it was changed."""
    problems = list(check_values(cfg))
    wrong = {problem.partition("=")[0] for problem in problems}
    if "model.name" not in wrong:
        problems += check_attention(model_attention(cfg), model_sites(cfg))
    if splits and wrong.isdisjoint(("data.name", "task.name")):
        problems += check_data(cfg, splits)
    problems += [problem for problem in check_together(cfg, False, wrong) if not problem.startswith("trainer.")]
    if problems:
        raise ConfigError(problems)


def free_name(run: Path, stem: str) -> str:
    """`stem`, or `stem_2`, `stem_3`, ... : an earlier result is not overwritten."""
    number, name = 1, stem
    while (run / f"{name}.json").exists():
        number += 1
        name = f"{stem}_{number}"
    return name


def decoded(lines, source: str) -> Iterator[str]:
    """The lines as text; raises ValueError naming file and line where they are not UTF-8."""
    for number, line in enumerate(lines, start=1):
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"input={source}:{number}: not UTF-8 at byte {error.start + 1} of the line") from error


def chunks(items: Iterator[str], size: int) -> Iterator[list[str]]:
    """Lists of at most `size` items."""
    while chunk := list(islice(items, size)):
        yield chunk


def count_lines(path: Path) -> int:
    with open(path, "rb") as file:
        return sum(1 for _ in file)
