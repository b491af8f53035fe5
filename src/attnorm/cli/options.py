"""The options of Hydra that `attnorm train` is typed with, and what is wrong with them."""

import re
from collections.abc import Sequence

from attnorm.choices import CONF
from attnorm.config.hydra_errors import known_keys
from attnorm.errors import Problem
from attnorm.imports import SYNONYMS, did_you_mean

COMPLETION = frozenset({"-sc", "--shell-completion"})


def dashed(arguments: Sequence[str]) -> list[Problem]:
    """Problems with options that Hydra does not have, such as `--seed=1` instead of `seed=1`."""
    from hydra._internal.utils import get_args_parser

    options, problems = list(get_args_parser()._option_string_actions), []
    for argument in arguments:
        option, equals, value = argument.partition("=")
        if not option.startswith("-") or any(known.startswith(option) for known in options):  # argparse completes them
            continue
        name, value = option.lstrip("-").replace("-", "_"), value if equals else "<value>"
        meant = SYNONYMS.get(name, name)
        keys = [key for key in known_keys() if key == meant or key.endswith(f".{meant}")] or [meant] * ("." in meant)
        if name and (name in keys or (CONF / name).is_dir()):
            message = f"settings are typed without dashes, as in {name}={value}"
        elif name and keys:
            message = f"settings are typed without dashes.{did_you_mean(f'{key}={value}' for key in keys)}"
        else:
            allowed = ", ".join(known for known in options if known.startswith("--"))
            message = f"no such option; allowed: {allowed}, and key=value"
        problems.append(Problem.about(name, f"{argument}: {message}"))
    return problems


def completing(arguments: Sequence[str]) -> list[Problem]:
    """Problems with Hydra's option -sc, whose own errors are tracebacks."""
    if COMPLETION.isdisjoint(arguments):
        return []
    rest = [argument for argument in arguments if argument not in COMPLETION]
    fits = len(rest) == 1 and re.fullmatch("(install|uninstall|query)=(bash|zsh|fish)", rest[0])
    sentence = 'for completion in the shell, type eval "$(attnorm train -sc install=bash)"; also uninstall, zsh, fish'
    return [] if fits else [Problem.about("-sc", f"{' '.join(arguments)}: {sentence}")]
