"""The verbs that read finished runs, from the command line."""

import importlib
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from attnorm.cli.errors import exit_code, to_the_end
from attnorm.config.trust import keep_off_path

COMMANDS = {  # imported only when they are used
    "eval": "attnorm.cli.evaluate:evaluate",
    "generate": "attnorm.cli.generate:generate",
    "attention": "attnorm.cli.attention:show_attention",
    "compare": "attnorm.cli.compare:run_compare",
    "figures": "attnorm.cli.figures:draw_figures",
}


def run_command(conf: Path, name: str, arguments: list[str]) -> int:
    """A verb whose settings are those of conf/<name>.yaml. Without arguments it prints them."""
    if not arguments or {"--help", "-h"} & set(arguments):
        print((conf / f"{name}.yaml").read_text(), end="")
        if name == "figures":
            from attnorm.analysis.papers.registry import listing

            print(f"\n{listing()}")
        return 0

    def job() -> int:
        for argument in arguments:
            key, _, value = argument.partition("=")
            if key in ("run", "against"):  # before anything else is imported
                for folder in (value, *value.split(",")):
                    keep_off_path(folder.strip("'\""))
        with quiet_ends(), to_the_end():
            defaults: Any = OmegaConf.to_container(OmegaConf.load(conf / f"{name}.yaml"))
            module, _, action = COMMANDS[name].partition(":")
            getattr(importlib.import_module(module), action)(arguments, defaults, conf)
        return 0

    return exit_code(job, conf)


@contextmanager
def quiet_ends() -> Iterator[None]:
    """Exits without a traceback: with code 143 on SIGTERM, also while libraries are being imported, and with code 141
    (128 + SIGPIPE) when the reader of standard output has closed it. (`exit_code` returns 130 on SIGINT.)"""

    def stop(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except BrokenPipeError:
        # What is still in the buffer must go somewhere when Python flushes it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(128 + signal.SIGPIPE) from None
    finally:
        signal.signal(signal.SIGTERM, before)
