"""The jobs of a sweep: which there are, what they are called, and in which folder each of them runs."""

import hashlib
import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override

from attnorm.run.folder import COST, FURTHER, TUNE
from attnorm.run.run import Run
from attnorm.spec.compose import as_typed

LONGEST = 80  # characters of the readable part of a folder's name
DIGITS = 8  # of a key in the name of a folder


@dataclass(frozen=True)
class Job:
    """One run of a sweep.

    name:      name of the run folder in the sweep folder.
    key:       `run_key` of the configuration; jobs with the same key are the same job.
    label:     the swept overrides, as they are typed.
    overrides: all overrides and options, as arguments of `attnorm train`.
    folder:    the run folder.
    devices:   number of processes of the run (`trainer.devices`).
    uses_gpu:  whether each of these processes needs a GPU.
    purpose:   "tune", "compare", "further" (as "compare", at another value than the best one) or "cost" (its updates
               are measured); "" in a sweep that does not tune.
    arm:       the part of the label that all jobs of its arm share.
    named:     what `run.trust.in_need_of_trust` finds in its configuration.
    """

    name: str
    key: str
    label: str
    overrides: tuple[str, ...]
    folder: Path
    devices: int = 1
    uses_gpu: bool = False
    purpose: str = ""
    arm: str = ""
    named: tuple[tuple[str, str], ...] = ()

    @property
    def run(self) -> Run:
        """Its run, as far as it has come now."""
        return Run(self.folder)

    @property
    def gpus(self) -> int:
        """The number of GPUs that the run needs."""
        return self.devices if self.uses_gpu else 0


def job_folder(sweep: Path, name: str, purpose: str) -> Path:
    """The run folder of a job. Runs that tune or measure have a folder of their own, see `analysis.arms`."""
    inner = TUNE if purpose == FURTHER else purpose
    return sweep / inner / name if inner in (TUNE, COST) else sweep / name


def parse(arguments: Sequence[str], loader: ConfigLoader | None = None) -> list[Override]:
    """The overrides, in Hydra's grammar. Of two for the same key the later one counts, in the place of the first.

    arguments: as `config.arguments.readable` returns them. loader: finds the files that glob(...) matches.
    """
    parsed = OverridesParser.create(loader).parse_overrides(list(arguments))
    return list({override.get_key_element(): override for override in parsed}.values())


def choices(override: Override) -> list[str]:
    """The overrides "key=value" that an override stands for: one, or one for each value that it sweeps over."""
    if not override.is_sweep_override():
        return [override.input_line or ""]
    return [f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()]


def expand(overrides: Iterable[Override]) -> list[tuple[str, ...]]:
    """Every combination of the values, in the order of Hydra: the values of the last override change fastest."""
    return list(itertools.product(*map(choices, overrides)))


def override_key(override: str) -> str:
    """The key of an override: "seed" of "++seed=1"."""
    return override.partition("=")[0].lstrip("+")


def label_of(overrides: Iterable[str], swept: Iterable[Override]) -> str:
    """Those overrides of a job that differ between the jobs, as they are typed."""
    keys = {override.get_key_element() for override in swept}
    return " ".join(as_typed([it for it in overrides if it.partition("=")[0] in keys])) or "the only job"


def name_of(label: str, key: str) -> str:
    """A readable name for a folder: "attention-hnas_seed-1_0123abcd"."""
    words = ("" if label == "the only job" else label).split()
    short = (word.partition("=")[0].rpartition(".")[2] + "-" + word.partition("=")[2] for word in words)
    readable = re.sub(r"[^\w.+-]+", "-", "_".join(short)).strip("-")[:LONGEST]
    return "_".join(filter(None, [readable, key[:DIGITS]]))


def sweep_name(tasks: Iterable[str], overrides: Iterable[str]) -> str:
    """The name of the default sweep folder, which depends on the tasks and on the set of the overrides only."""
    text = "\n".join(sorted(overrides))
    return f"{'_'.join(dict.fromkeys(tasks))}_{hashlib.sha256(text.encode()).hexdigest()[:DIGITS]}"
