"""The verbs of `attnorm`: those of this package, and those that other packages add. Importing this needs no library."""

import os
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from inspect import getdoc
from pkgutil import resolve_name
from typing import Any

from attnorm.choices import CONF

GROUP = "attnorm.verbs"  # of entry points


@dataclass(frozen=True)
class Verb:
    """A verb of `attnorm`.

    purpose:  a line for the list of verbs.
    action:   takes the arguments and returns the exit code, where None is 0. The text "module:function" is imported
              when the verb is typed.
    keys:     a dataclass of the keys, as in `config.command`. The action takes an instance of it. Its docstring and its
              defaults are the help. Without it, the help is conf/<name>.yaml.
    bare:     the key that a path without a key is the value of, such as "run".
    is_name:  whether any word without a key is its value, and not only a path.
    is_list:  whether several such paths are a list, and not one text with commas.
    own_help: whether the action prints the help.
    is_whole: whether it does that, and turns errors and signals into exit codes.
    is_ready: whether all its keys have defaults, so that it runs without arguments; with `keys`, these say it.
    """

    purpose: str
    action: str | Callable[[Any], int | None]
    keys: type | None = None
    bare: str = ""
    is_name: bool = False
    is_list: bool = False
    own_help: bool = False
    is_whole: bool = False
    is_ready: bool = False

    def run(self, name: str, arguments: list[str]) -> int:
        """Runs the verb, which was typed as `name`, and returns the exit code."""
        if (is_help(arguments) or not (arguments or self.runs_bare())) and not (self.own_help or self.is_whole):
            print(help_of(self.keys) if self.keys else (CONF / f"{name}.yaml").read_text(), end="")
            return 0
        if self.is_whole:
            return self.act(arguments)
        from attnorm.cli.errors import exit_code, no_early_exit

        def job() -> int:
            with ExitStack() as stack, no_early_exit():
                # Ends with code 143 and without a traceback, also while libraries are being imported. (`exit_code`
                # returns 130 on SIGINT.)
                before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
                stack.callback(signal.signal, signal.SIGTERM, before)
                typed: Any = self.with_key(arguments)
                if self.keys is not None:
                    from attnorm.config.command import read

                    typed = read(typed, self.keys, f"attnorm {name}").settings
                return self.act(typed)

        return exit_code(job)

    def runs_bare(self) -> bool:
        """Whether it runs without arguments."""
        if self.keys is None:
            return self.is_ready
        from attnorm.schema import required

        return not required(self.keys)

    def act(self, typed: Any) -> int:
        """Calls the action."""
        action = resolve_name(self.action) if isinstance(self.action, str) else self.action
        return action(typed) or 0

    def with_key(self, arguments: list[str]) -> list[str]:
        """The arguments with a key for bare paths: "run=logs/a" for "logs/a", whose name may contain an equals sign."""
        is_name = self.is_name and not any(word.startswith(f"{self.bare}=") for word in arguments)
        plain = [word for word in arguments if "=" not in word and word[:1] not in "~-" and (is_name or os.sep in word)]
        bare = [word for word in arguments if word in plain or os.path.exists(word)]
        if not self.bare or not bare:
            return arguments
        from attnorm.config.compose import quoted

        several = f"[{','.join(map(quoted, bare))}]" if self.is_list else ",".join(bare)
        value = bare[0] if len(bare) == 1 else several
        return [f"{self.bare}={value}", *(argument for argument in arguments if argument not in bare)]


VERBS = {
    "train": Verb(
        "train one model on one task with one attention normalizer", "attnorm.cli.train:run_train", is_whole=True
    ),
    "sweep": Verb("train many models, each in a process of its own", "attnorm.cli.sweep:run_sweep", is_whole=True),
    "ls": Verb(
        "list the runs and sweeps below a folder", "attnorm.cli.ls:list_runs", bare="place", is_name=True, is_ready=True
    ),
    "eval": Verb(
        "score a run folder, or a file of predictions", "attnorm.cli.evaluate:evaluate", bare="run", is_name=True
    ),
    "report": Verb("write one HTML page about any set of runs", "attnorm.cli.report:run_report"),
    "compare": Verb(
        "say whether runs with different normalizers differ, and by how much",
        "attnorm.cli.compare:run_compare",
        bare="against",
        is_name=True,
        is_list=True,
    ),
    "probe": Verb(
        "say in minutes where a normalizer wins and loses, on small tasks", "attnorm.cli.probe:run_probe", is_ready=True
    ),
    "check": Verb(
        "say whether a normalizer is what attention needs and what its class declares",
        "attnorm.cli.check:run_check",
        bare="normalizer",
        is_name=True,
    ),
    "generate": Verb(
        "write a text for each input, such as headlines for articles, with the model of a run folder",
        "attnorm.cli.generate:generate",
        bare="run",
        is_name=True,
    ),
    "attention": Verb(
        "draw and measure what the model of a run folder attends to",
        "attnorm.cli.attention:show_attention",
        bare="run",
        is_name=True,
    ),
    "figures": Verb("draw the figures of the papers", "attnorm.experiments.papers.figures:draw_figures", own_help=True),
    "new": Verb("write a folder with parts of your own, ready to train", "attnorm.cli.new:run_new", own_help=True),
}


def added() -> dict[str, EntryPoint]:
    """The verbs that installed packages add, by name. Those of attnorm keep their names."""
    from attnorm.run.folder import leave_out

    with suppress(FileNotFoundError):  # the working directory has been removed
        leave_out(os.getcwd())
    return {point.name: point for point in entry_points(group=GROUP) if point.name not in VERBS}


def listing() -> str:
    """A line for each verb, with its purpose."""
    purposes = {name: verb.purpose for name, verb in VERBS.items()}
    for name, point in added().items():
        try:
            purposes[name] = point.load().purpose
        except Exception as error:  # the other verbs can be used all the same
            purposes[name] = f"(cannot be loaded: {type(error).__name__}: {error})"
    width = max(11, *(len(name) + 1 for name in purposes))
    return "\n".join(f"  {name:<{width}}{purpose}" for name, purpose in purposes.items())


def help_of(keys: type) -> str:
    """What a dataclass says of its keys: its docstring, and each key with its default; ??? if it must be given."""
    from attnorm.errors import in_yaml
    from attnorm.schema import defaults_of, required

    without = required(keys)
    lines = [f"{name}: {'???' if name in without else in_yaml(value)}" for name, value in defaults_of(keys).items()]
    return "\n".join([*(f"# {line}".rstrip() for line in (getdoc(keys) or "").splitlines()), *lines, ""])


def is_help(arguments: list[str]) -> bool:
    """Whether the arguments of a verb ask for its keys."""
    return not {"--help", "-h"}.isdisjoint(arguments)
