"""`attnorm.train`: a run from Python, for example in a notebook."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from attnorm.choices import CONF, own_folder
from attnorm.cli.main import is_busy, threads_spin
from attnorm.errors import in_yaml
from attnorm.spec.compose import run_to_resume

if TYPE_CHECKING:
    from attnorm.analysis.run import LoadedRun as Run

SLEEPING = "GOMP_SPINCOUNT=0 KMP_BLOCKTIME=0 python ..."


def train(overrides: str | Sequence[str] = (), *, config_dir: str | Path | None = None, **settings: object) -> "Run":
    """Trains one model as `attnorm train` does, and returns the run, opened as by `load_run`.

    overrides:  arguments of the command, such as "model.dropout=0.1" or "~callbacks.attention_stats", or one of them.
    config_dir: a folder with YAML files of your own, as `--config-dir`; by default the folder conf/ in the working
                directory, if it has files for attnorm.
    settings:   groups and keys: task="gigaword", seed=3, trainer={"max_steps": 100}. They come after the overrides, and
                texts are read as on the command line. With resume=<run folder>, the run continues there.

    Raises ConfigError, with all problems in its message, before anything is read or written. An interruption finishes
    the update, saves and raises Interrupted.
    """
    from attnorm.analysis.run import load_run
    from attnorm.cli.train import resume_in, train_new
    from attnorm.progress import quiet_libraries

    if threads_spin() and is_busy():  # too late to change it: torch may have been imported
        print("Other processes use this machine. Training beside them is faster if Python is started by", SLEEPING)
    with unchanged():
        quiet_libraries()
        arguments = [*([overrides] if isinstance(overrides, str) else overrides), *typed(settings)]
        folder, own = run_to_resume(arguments), Path(config_dir) if config_dir else own_folder()
        if folder is None:
            folder = train_new(arguments, [CONF, *([own] if own else [])])
        else:
            resume_in(folder, arguments)
        return load_run(folder, trust_code=True)  # the code of its parts has just run


@contextmanager
def unchanged() -> Iterator[None]:
    """Restores the random state and the environment variables of the caller, if no further processes take part."""
    from lightning_fabric.utilities.seed import _collect_rng_states, _set_rng_states

    variables, states = dict(os.environ), _collect_rng_states()
    try:
        yield
    finally:
        _set_rng_states(states)
        if "LOCAL_RANK" in variables or "LOCAL_RANK" not in os.environ:  # the others take part in the next run, too
            for name in os.environ.keys() - variables.keys():
                del os.environ[name]
            os.environ |= variables


def typed(settings: Mapping[str, object], group: str = "") -> Iterator[str]:
    """Settings as they are typed: `seed=3`, `trainer.max_steps=100` for {"trainer": {"max_steps": 100}}."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from typed(value, f"{group}{key}.")
        else:
            yield f"{group}{key}={in_yaml(value)}"
