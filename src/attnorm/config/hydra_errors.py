"""What an error of Hydra means for the user, and which key or file was meant."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from hydra.errors import HydraException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from attnorm.choices import CONF, selectable
from attnorm.errors import ConfigError, Problem, unknown
from attnorm.imports import nearest


@contextmanager
def explained() -> Iterator[None]:
    """Within this context, an error of Hydra or OmegaConf becomes a ConfigError that says what was meant."""
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError([hydra_problem(error)]) from error


def hydra_problem(error: Exception) -> str:
    """What an error of Hydra or OmegaConf means for the user. The frequent ones name terms and options of Hydra."""
    if isinstance(error, OverrideParseException) and "=" in error.override:
        key, _, value = error.override.lstrip("+").partition("=")
        return Problem(key, "cannot be read; check its commas, brackets and quotes", value)
    message = str(error)
    no_file = r"Could not find '([\w/]+)/([^'/]+)'\n\nAvailable options in [^\n]*\n((?:\t[^\n]*\n?)+)"
    if match := re.search(no_file, message):
        return no_such_file(match[1], match[2], map(str.strip, match[3].splitlines()))
    if match := re.search(r"Ambiguous value for argument '\+*([^=']+)=(.*?)'\n", message):
        key, values = match.groups()
        as_list = f"a list is typed as {key}=[{values}]"
        return Problem(key, f"several values start a sweep: type attnorm sweep, or add -m; {as_list}", values)
    several = r"Multiple values for (\w+)\. To override a value use 'override \w+: ([^']*)'"
    with_plus = r"force-add of config groups is not supported: '\++(\w+)=([^']*)'"
    if match := re.search(several, message) or re.search(with_plus, message):
        return Problem(match[1], f"one file of a group is chosen, without a plus, as in {match[1]}={match[2]}")
    if match := re.search(r"Interpolation key '(([^'.]*)[^']*)' not found(?:\s+full_key: (\S+))?", message):
        name, group, key = match.groups()
        if name in known_keys():
            return Problem(name, f"is not set; choose a file that sets it, with {group}=<file>")
        return Problem(key or name, f"there is no key {name}; type \\${{{name}}} for the text itself", f"${{{name}}}")
    if (match := re.search(r"Error parsing override '([^=\n]*)'\n", message)) and match[1]:
        return f"{match[1]}: expected key=value"
    match = re.search(r"(?:Could not override|overriding|full_key:|Key) '?([\w./]+)'?", message)
    if match and (owners := known_keys().get(match[1])):  # Hydra would advise to append the key
        return f"{message.splitlines()[0]}\n{match[1]} is a key of {' and '.join(owners)}."
    return "\n".join(filter(None, [message, match and suggest_key(match[1])]))


def no_such_file(group: str, name: str, names: Iterable[str]) -> Problem:
    """The problem with a choice of a group that is not one of its files. names: those of its files."""
    options = selectable(group, names)
    also = ", or a normalizer as package.module.Class" if group == "attention" else ""
    allowed = f"allowed: {', '.join(options)}{also}.{nearest(name, options)}"
    return unknown(f"{group}={name}", Problem(group, allowed, name))


def suggest_key(key: str) -> str:
    """A line with the name nearest to the one that Hydra did not find, or ''."""
    group, *rest = key.split(".")
    if rest:  # only keys of the same group make sense there
        names = [name for name in known_keys() if name.startswith(f"{group}.")]
    else:
        groups = [folder.name for folder in CONF.iterdir() if folder.is_dir()]
        names = [name for name in (*known_keys(), *groups) if "." not in name and name != "hydra"]
    return nearest(key, names, cutoff=0.6).strip()


def known_keys() -> dict[str, list[str]]:
    """Every key of a run in the files of conf/, as it is typed, and the choices that it comes with, such as
    data=vqa_v2."""

    def keys(node: dict, prefix: str) -> Iterator[str]:
        for name, value in node.items():
            if name != "defaults":
                yield f"{prefix}{name}"
                if isinstance(value, dict):
                    yield from keys(value, f"{prefix}{name}.")

    owners: dict[str, list[str]] = {}
    for file in sorted([CONF / "train.yaml", *CONF.glob("*/**/*.yaml")]):  # without those of other verbs
        content: Any = OmegaConf.to_container(OmegaConf.load(file)) or {}
        is_global = file.parent == CONF or "@package _global_" in file.read_text()
        for key in keys(content, "" if is_global else f"{file.parent.name}."):
            owners.setdefault(key, []).extend([] if is_global else [f"{file.parent.name}={file.stem}"])
    return dict(sorted(owners.items()))
