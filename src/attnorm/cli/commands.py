"""The verbs that read finished runs, from the command line."""

import importlib
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from attnorm.choices import CONF
from attnorm.cli.errors import exit_code, to_the_end
from attnorm.spec.compose import quoted

COMMANDS = {  # imported only when they are used
    "eval": "attnorm.cli.evaluate:evaluate",
    "generate": "attnorm.cli.generate:generate",
    "attention": "attnorm.cli.attention:show_attention",
    "compare": "attnorm.cli.compare:run_compare",
    "figures": "attnorm.experiments.papers.figures:draw_figures",
    "probe": "attnorm.cli.probe:run_probe",
}
PLACES = {"eval": "run", "generate": "run", "attention": "run", "compare": "against"}  # what a bare path means


def run_command(name: str, arguments: list[str]) -> int:
    """A verb whose settings are those of conf/<name>.yaml. Without arguments it prints them; `figures` adds names."""
    if name != "figures" and is_help(arguments):
        print((CONF / f"{name}.yaml").read_text(), end="")
        return 0

    arguments = with_keys(name, arguments)

    def job() -> int:
        with quiet_ends(), to_the_end():
            module, _, action = COMMANDS[name].partition(":")
            code = getattr(importlib.import_module(module), action)(arguments)
        return code or 0

    return exit_code(job)


def is_help(arguments: list[str]) -> bool:
    """Whether the arguments of a verb ask for its keys."""
    return not arguments or not {"--help", "-h"}.isdisjoint(arguments)


def with_keys(verb: str, arguments: list[str]) -> list[str]:
    """The arguments with the key of PLACES for bare paths: "run=logs/a" for "logs/a"."""
    paths = [argument for argument in arguments if is_path(argument)]
    if verb not in PLACES or not paths:
        return arguments
    several = f"[{','.join(map(quoted, paths))}]" if verb == "compare" else ",".join(paths)
    value = paths[0] if len(paths) == 1 else several
    return [f"{PLACES[verb]}={value}", *(argument for argument in arguments if argument not in paths)]


def is_path(argument: str) -> bool:
    """Whether an argument is a path rather than `key=value`; its name may contain an equals sign."""
    return os.path.exists(argument) or (os.sep in argument and "=" not in argument)


@contextmanager
def quiet_ends() -> Iterator[None]:
    """Exits with code 143 and without a traceback on SIGTERM, also while libraries are being imported. (`exit_code`
    returns 130 on SIGINT.)"""

    def stop(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
