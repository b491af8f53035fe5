"""Code that a run folder names. The folder may come from anyone, so only packages that the user trusts are imported."""

import logging
import os
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from attnorm import imports
from attnorm.choices import choices
from attnorm.errors import ConfigError, Problem, is_in
from attnorm.imports import TRUST, package_of, texts, trusted_packages
from attnorm.parts import TARGET
from attnorm.run.folder import is_of_run, leave_out

log = logging.getLogger(__name__)
IMPORTED = ("task", "model", "data", "tokenizer")  # for an evaluation: never optimizer, scheduler, callbacks or loggers
TRAINING_PARTS = ("torch.optim.", "pytorch_lightning.callbacks.", "pytorch_lightning.loggers.")  # may be named as well
WRITING = ("callbacks", "logger")  # groups whose parts may be told where to write
PLACES = re.compile("dir|folder|location|path|root|uri|url")  # in the names of such options
VERBS_OF_OWN_SETTINGS = ("train", "sweep", "probe", "check")  # commands whose settings are those of the user


def check_names(config: dict, trust_code: bool = False, training: bool = False, typed: Collection[str] = ()) -> None:
    """Raises ConfigError, before anything is imported, if a run's configuration names code from other packages.

    trust_code: trust everything. training: whether the run continues training, which imports every part that it names;
    callbacks and loggers must then not be told where to write either. typed: keys and groups that the user has typed,
    whose values are trusted.
    """
    if trust_code:
        return
    problems = []
    for key, path in foreign_code(config, training):
        message = (
            "this run folder names code outside attnorm, and importing it runs it. If you trust it, add "
            f"{package_of(path)!r} to the environment variable {TRUST}, or type trust_code=true"
        )
        problems.append(Problem(key, message, repr(path)))
    for key, text in writing_options(config) if training else ():
        message = (
            "this run folder says where to write, and a run writes only into its folder. To allow it, type "
            f"{key}=<place> or trust_code=true; to do without, type ~{'.'.join(key.split('.')[:2])}"
        )
        problems.append(Problem(key, message, text))
    if problems := [problem for problem in problems if not any(is_in(problem.key, key) for key in typed)]:
        raise ConfigError(problems)


def foreign_code(config: dict, training: bool = False) -> Iterator[tuple[str, str]]:
    """Those of `dotted_paths` that lead to packages that are not trusted."""
    for key, path in dotted_paths(config, training):
        if package_of(path) not in trusted_packages() and not (training and path.startswith(TRAINING_PARTS)):
            yield key, path


def in_need_of_trust(config: dict) -> set[tuple[str, str]]:
    """(key, text) for everything in a configuration with which a run continues only if it is typed or trusted."""
    cache = str(config.get("paths", {}).get("cache_dir"))
    return {*foreign_code(config, training=True), *writing_options(config), ("paths.cache_dir", cache)}


def writing_options(config: dict) -> Iterator[tuple[str, str]]:
    """(key, text) for each option of a callback or a logger that says where to write, or that leads out of a folder."""
    for group in WRITING:
        for key, text in texts(config.get(group), group):
            path, name = Path(text), re.sub(r"(\[\d+\])+$", "", key).rpartition(".")[2]
            leads_out = path.is_absolute() or ".." in path.parts or text.startswith("~") or "://" in text
            if name != TARGET and (leads_out or PLACES.search(name)):
                yield key, text


def dotted_paths(config: dict, training: bool = False) -> Iterator[tuple[str, str]]:
    """(key, dotted path) for each class that evaluating a run imports: `_target_` of task, model, data source and
    tokenizer, and every text under attention, options included, that `imports.locate` might take for a path: all such
    paths have a dot or a colon. For training: every `_target_`, at any level."""
    for key, text in texts(config):
        *groups, name = key.split(".")
        is_part = name == TARGET and (training or groups in ([group] for group in IMPORTED))
        if is_part or (key.startswith("attention.") and not {".", ":"}.isdisjoint(text)):
            yield key, text


def find_own_parts(verb: str, arguments: Sequence[str]) -> None:
    """Takes the working directory off the search path of Python, and lets the parts that a command names be there.

    Files of the working directory could take the place of libraries, and a run folder may come from anyone. So modules
    are imported from there only if a setting names them and they are not installed (`imports.import_named`). Commands
    that read run folders, with settings of others, need `trust_code=true` or ATTNORM_TRUST for that, unless the
    directory is that of the script or in PYTHONPATH. A directory in the folder of a run or of a sweep is never used.
    """
    here = os.getcwd()
    script = [os.path.dirname(sys.argv[0]) or "."] if os.path.isfile(sys.argv[0]) else []  # not with `python -c`
    typed = [*script, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    is_typed = os.path.realpath(here) in map(os.path.realpath, filter(None, typed))
    is_trusted = bool(os.environ.get(TRUST)) or any(argument.lower() == "trust_code=true" for argument in arguments)
    is_clone = verb == "figures" and os.path.isdir("experiments/papers")  # where the code of this verb is
    is_in_run = any(map(is_of_run, (Path(here), *Path(here).parents)))
    leave_out(here)
    if (verb in VERBS_OF_OWN_SETTINGS or is_typed or is_trusted or is_clone) and not is_in_run:
        imports.own_folders.append(here)


def own_cache(paths: dict, trust_code: bool, typed: Collection[str]) -> dict:
    """The group `paths` of a run folder, with the cache of the reader.

    The recorded `cache_dir` is kept if it is trusted, if the user has typed it, or if it is a cache already; otherwise
    the default takes its place, with a warning.
    """
    recorded, default = paths.get("cache_dir"), choices("paths")["default"]["cache_dir"]
    if trust_code or recorded == default or any(key in ("paths", "paths.cache_dir") for key in typed):
        return paths
    from attnorm.data.cache import MANIFEST

    if isinstance(recorded, str) and any(Path(recorded).glob(f"rows-*/{MANIFEST}")):
        return paths
    log.warning("paths.cache_dir: using %s; there is no cache in %s, which this run folder names", default, recorded)
    return {**paths, "cache_dir": default}
