"""`train.py`: composes a configuration, checks it and trains."""

import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from attnorm.choices import CONF, own_folder
from attnorm.cli.errors import exit_code, to_the_end
from attnorm.cli.start import resume_in, start_composed
from attnorm.errors import ConfigError, Problem
from attnorm.spec.compose import composed, normalizers_typed, run_to_resume
from attnorm.spec.hydra_errors import explained
from attnorm.spec.options import COMPLETION, completing, dashed, split_options
from attnorm.sweeps.jobs import as_typed, readable

IGNORED = ("--run", "-r")  # options of Hydra that change nothing here
SHOWING = {"--cfg", "-c", "--info", "-i", "--hydra-help", "--version", "-sc", "--shell-completion"}


def run_train(arguments: Sequence[str]) -> int:
    """`train.py`: composes the configuration from its arguments, checks it and trains. Returns the exit code.

    With `resume=<run folder>`, the configuration is the one that the folder has recorded. Options of Hydra that show
    something, such as `--cfg job`, are left to it.
    """
    return exit_code(partial(train_typed, list(arguments)))


@to_the_end()
def train_new(arguments: Sequence[str], folders: Sequence[Path]) -> Path:
    """Composes and checks the configuration of a new run, trains and returns its folder. folders: as in `composed`."""
    from attnorm.progress import quiet_libraries

    quiet_libraries()
    with explained():
        cfg = composed(arguments, folders)
    if cfg.hydra.mode is not None and cfg.hydra.mode.name == "MULTIRUN":
        raise ConfigError([Problem("hydra.mode", "-m or attnorm sweep starts several runs", "MULTIRUN")])
    return start_composed(cfg, as_typed(arguments))


def show_composed(arguments: Sequence[str]) -> int:
    """Lets Hydra show what its options ask for."""
    import hydra

    @hydra.main(version_base="1.3", config_path=str(CONF), config_name="train")
    def job(cfg: DictConfig) -> None:
        raise RuntimeError("Hydra has been asked to show something, and runs a job")

    OmegaConf.register_new_resolver("attention_label", lambda: "attention", replace=True)
    rewritten = []
    for argument in arguments:
        key, _, text = argument.partition("=")
        if key == "attention" and (normalizers := normalizers_typed(text)):
            rewritten += ["attention=softmax", f"attention._default_={normalizers}"]
        else:
            rewritten.append(argument)
    if (own := own_folder()) and not any(it.startswith(("--config-dir", "-cd")) for it in arguments):
        rewritten = ["--config-dir", str(own), *rewritten]
    typed, sys.argv = sys.argv, [sys.argv[0], *(readable(rewritten) if COMPLETION.isdisjoint(rewritten) else rewritten)]
    full = os.environ.get("HYDRA_FULL_ERROR", "")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra lets its exceptions through, so that the nearest name can be added
    try:
        job()
    finally:
        sys.argv, os.environ["HYDRA_FULL_ERROR"] = typed, full
    return 0


def train_typed(arguments: list[str]) -> int:
    """What `run_train` does; raises what is wrong."""
    _, folders, settings, _ = split_options(arguments)
    if folder := run_to_resume(settings):
        return resume_in(folder, arguments)
    if problems := [*dashed(arguments), *completing(arguments)]:
        raise ConfigError(problems)
    if not SHOWING.isdisjoint(argument.partition("=")[0] for argument in arguments):
        return show_composed(arguments)
    options = [it for it in arguments if it.startswith("-") and not it.startswith(("--config-dir", "-cd"))]
    if others := [it for it in options if it not in IGNORED]:
        allowed = "not available here; allowed: --config-dir, --cfg"
        raise ConfigError([Problem.about(it, f"{it}: {allowed}") for it in others])
    train_new(settings, folders)
    return 0
