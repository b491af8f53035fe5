"""The verbs that read finished runs, from the command line."""

import importlib
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from attnorm.cli.errors import exit_code

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
        with quiet_ends():
            defaults: Any = OmegaConf.to_container(OmegaConf.load(conf / f"{name}.yaml"))
            module, _, action = COMMANDS[name].partition(":")
            getattr(importlib.import_module(module), action)(arguments, defaults, conf)
        return 0

    return exit_code(job, conf)


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
