"""Turning errors into messages and exit codes."""

import errno
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hydra._internal.utils import get_args_parser
from hydra.errors import HydraException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from attnorm.choices import CONF, selectable
from attnorm.errors import ConfigError, Interrupted, Problem, UserError
from attnorm.imports import nearest

COMPLETION = frozenset({"-sc", "--shell-completion"})  # options of Hydra
MACHINE_ERRORS = {
    errno.ENOSPC,
    errno.EFBIG,
    errno.EDQUOT,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOMEM,
    errno.EIO,
}


def exit_code(job: Callable[[], int]) -> int:
    """Runs a job and returns its exit code; what a user got wrong is a message and 2, a signal is 128 + its number.

    With HYDRA_FULL_ERROR=1 in the environment every error shows its traceback.
    """
    typed = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # lets Hydra's exceptions through to here, to add the nearest name
    try:
        return job()
    except Exception as error:
        if typed == "1":
            raise
        return explain(error)
    except Interrupted as stopped:
        if os.environ.get("LOCAL_RANK", "0") == "0":
            saved = stopped.checkpoint and f"; to continue it: attnorm train resume={stopped.checkpoint.parent.parent}"
            print(f"{stopped}{saved or ' before a checkpoint was saved'}", file=sys.stderr)
        return 128 + stopped.signal_number
    except KeyboardInterrupt:
        return 130
    finally:
        os.environ.pop("HYDRA_FULL_ERROR", None)  # a part of one's own may have removed it
        if typed is not None:
            os.environ["HYDRA_FULL_ERROR"] = typed


@contextmanager
def to_the_end() -> Iterator[None]:
    """Raises RuntimeError if `sys.exit(0)` ends this context, as a part of one's own may do: the process must not
    report success before its work is done."""
    try:
        yield
    except SystemExit as error:
        if error.code in (None, 0):
            raise RuntimeError("sys.exit(0) was called before the command had ended") from error
        raise


def explain(error: Exception) -> int:
    """Says what a user got wrong and returns the exit code; a bug is raised again, with its traceback."""
    if isinstance(error, (HydraException, OmegaConfBaseException)):
        error = ConfigError([hydra_problem(error)])
    if isinstance(error, ConfigError):
        for problem in error.problems:
            print(f"error: {problem}", file=sys.stderr)
        return 2
    if not is_user_error(error):
        raise error
    print(f"error: {error}\n(HYDRA_FULL_ERROR=1 in the environment shows where)", file=sys.stderr)
    return 1


@contextmanager
def explained() -> Iterator[None]:
    """Within this context, an error of Hydra or OmegaConf becomes a ConfigError that says what was meant."""
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError([hydra_problem(error)]) from error


def hydra_problem(error: Exception) -> str:
    """What an error of Hydra or OmegaConf means for the user."""
    if isinstance(error, OverrideParseException) and "=" in error.override:
        key, _, value = error.override.lstrip("+").partition("=")
        return Problem(key, "cannot be read; check its commas, brackets and quotes", value)
    return explain_hydra_error(str(error))


def is_user_error(error: Exception) -> bool:
    """Whether the message alone says what to do: bad data, a loss that is not finite, a full disk, no permission, or
    settings that Lightning refuses."""
    if any(cls.__name__ == "MisconfigurationException" for cls in type(error).__mro__):
        return True
    return isinstance(error, UserError) or (isinstance(error, OSError) and error.errno in MACHINE_ERRORS)


def explain_hydra_error(message: str) -> str:
    """What Hydra said, and what was meant where that can be told."""
    if plain := in_our_words(message):
        return plain
    found = re.search(r"(?:Could not override|overriding|full_key:|Key) '?([\w./]+)'?", message)
    if found and (owners := known_keys().get(found[1])):  # Hydra would advise to append the key
        return f"{message.splitlines()[0]}\n{found[1]} is a key of {' and '.join(owners)}."
    return "\n".join(filter(None, [message, suggest_key(message, found and found[1])]))


def in_our_words(message: str) -> str:
    """The message for the frequent errors of Hydra that mention its own terms or options; '' for the others."""
    if found := re.search(
        r"Could not find '([\w/]+)/([^'/]+)'\n\nAvailable options in [^\n]*\n((?:\t[^\n]*\n?)+)", message
    ):
        return no_such_file(found[1], found[2], map(str.strip, found[3].splitlines()))
    if found := re.search(r"Ambiguous value for argument '\+*([^=']+)=(.*?)'\n", message):
        key, values = found.groups()
        return Problem(
            key,
            f"several values start a sweep: type attnorm sweep, or add -m; a list is typed as {key}=[{values}]",
            values,
        )
    if found := re.search(r"Multiple values for (\w+)\. To override a value use 'override \w+: ([^']*)'", message):
        return Problem(found[1], f"one file of a group is chosen, without a plus, as in {found[1]}={found[2]}")
    if found := re.search(r"force-add of config groups is not supported: '\++(\w+)=([^']*)'", message):
        return Problem(found[1], f"one file of a group is chosen, without a plus, as in {found[1]}={found[2]}")
    if found := re.search(r"Interpolation key '(([^'.]*)[^']*)' not found(?:\s+full_key: (\S+))?", message):
        name, group, key = found.groups()
        if name in known_keys():
            return Problem(name, f"is not set; choose a file that sets it, with {group}=<file>")
        return Problem(key or name, f"there is no key {name}; type \\${{{name}}} for the text itself", f"${{{name}}}")
    if (found := re.search(r"Error parsing override '([^=\n]*)'\n", message)) and found[1]:
        return f"{found[1]}: expected key=value"
    return ""


def no_such_file(group: str, name: str, names: Iterable[str]) -> Problem:
    """The problem with a choice of a group that is not one of its files. names: those of its files."""
    options = selectable(group, names)
    own = ", or a normalizer as package.module.Class" if group == "attention" else ""
    return Problem(group, f"allowed: {', '.join(options)}{own}.{nearest(name, options)}", name)


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


def suggest_key(message: str, key: str | None) -> str:
    """A line with the name nearest to the one that Hydra did not find, or ''."""
    if not key:
        return ""
    group, *rest = key.split(".")
    if rest:  # only keys of the same group make sense there
        names = [name for name in known_keys() if name.startswith(f"{group}.")]
    else:
        groups = [folder.name for folder in CONF.iterdir() if folder.is_dir()]
        names = [name for name in (*known_keys(), *groups) if "." not in name and name != "hydra"]
    return nearest(key, names, cutoff=0.6).strip()


def known_keys() -> dict[str, list[str]]:
    """Every key of every file in conf/, as it is typed, and the choices that it comes with, such as data=vqa_v2."""

    def keys(node: dict, prefix: str) -> Iterator[str]:
        for name, value in node.items():
            if name != "defaults":
                yield f"{prefix}{name}"
                if isinstance(value, dict):
                    yield from keys(value, f"{prefix}{name}.")

    owners: dict[str, list[str]] = {}
    for file in sorted(CONF.rglob("*.yaml")):
        content: Any = OmegaConf.to_container(OmegaConf.load(file)) or {}
        is_global = file.parent == CONF or "@package _global_" in file.read_text()
        for key in keys(content, "" if is_global else f"{file.parent.name}."):
            owners.setdefault(key, []).extend([] if is_global else [f"{file.parent.name}={file.stem}"])
    return dict(sorted(owners.items()))
