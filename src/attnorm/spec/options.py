"""The options of the commands `train` and `sweep`: arguments that begin with a dash."""

import re
from collections.abc import Sequence
from pathlib import Path

from hydra._internal.utils import get_args_parser

from attnorm.choices import CONF, own_folder
from attnorm.errors import Problem
from attnorm.spec.hydra_errors import known_keys

COMPLETION = frozenset({"-sc", "--shell-completion"})  # options of Hydra


def split_options(arguments: Sequence[str]) -> tuple[tuple[str, ...], list[Path], list[str], list[str]]:
    """`--config-dir` options, all configuration folders, the other arguments, and problems with other options."""
    options, folders, rest, problems = [], [CONF], [], []
    left = list(arguments)
    while left:
        argument = left.pop(0)
        name, equals, value = argument.partition("=")
        if name in ("--config-dir", "-cd"):
            value = value if equals else (left.pop(0) if left else "")
            options += ["--config-dir", value]
            folders.append(Path(value))
        elif argument in ("-m", "--multirun"):
            problems.append(f"{argument}: attnorm sweep always starts several runs; leave it out")
        elif argument.startswith("-"):
            problems.append(f"{argument}: no such option; allowed: --config-dir, --help, and key=value")
        else:
            rest.append(argument)
    if not options and (own := own_folder()):
        options, folders = ["--config-dir", str(own)], [CONF, own]
    return tuple(options), folders, rest, problems


def dashed(arguments: Sequence[str]) -> list[Problem]:
    """Problems with options that Hydra does not have, such as `--seed=1` instead of `seed=1`."""
    options, problems = list(get_args_parser()._option_string_actions), []
    for argument in arguments:
        option, equals, value = argument.partition("=")
        if not option.startswith("-") or any(it.startswith(option) for it in options):  # argparse completes them
            continue
        name = option.lstrip("-")
        message = f"no such option; allowed: {', '.join(it for it in options if it.startswith('--'))}, and key=value"
        if name and (name in known_keys() or (CONF / name).is_dir()):
            message = f"settings are typed without dashes, as in {name}={value if equals else '<value>'}"
        problems.append(Problem.about(name, f"{argument}: {message}"))
    return problems


def completing(arguments: Sequence[str]) -> list[Problem]:
    """Problems with Hydra's option -sc, whose own errors are tracebacks."""
    if COMPLETION.isdisjoint(arguments):
        return []
    rest = [it for it in arguments if it not in COMPLETION]
    fits = len(rest) == 1 and re.fullmatch("(install|uninstall|query)=(bash|zsh|fish)", rest[0])
    sentence = 'for completion in the shell, type eval "$(attnorm train -sc install=bash)"; also uninstall, zsh, fish'
    return [] if fits else [Problem.about("-sc", f"{' '.join(arguments)}: {sentence}")]
