"""Tiny runs for the tests: a configuration that trains in about a second, and one folder of tokenized data for all."""

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from attnorm.training import front
from attnorm.training.run import train

ROOT = Path(__file__).parents[1]
CONF = ROOT / "conf"
SIZES = (
    "model.width=16",
    "model.heads=2",
    "model.inner=32",
    "model.encoder_layers=1",
    "model.decoder_layers=1",
    "model.max_source=40",
    "model.max_target=16",
)
DATA = ("data.train_size=200", "data.valid_size=20", "data.test_size=12", "data.batch_tokens=600")
TINY = (  # 200 pairs are about 14 updates
    *SIZES,
    *DATA,
    "tokenizer.vocab_size=120",
    "task.max_steps=4",
    "task.validations=2",
    "task.rouge_pairs=6",
    "decoding.beam_size=2",
    "decoding.max_length=6",
    "callbacks.samples=2",
    "callbacks.hybrid_every=1",
    "callbacks.column_mass_every=2",
    "trainer.accelerator=cpu",
    "trainer.log_every_n_steps=1",
    "optim.lr=1.0e-2",
)


@functools.cache
def cache_folder() -> Path:
    """Where all tests of a session keep tokenized data; removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="attnorm-tests-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def composed(*overrides: str, name: str = "train") -> DictConfig:
    """conf/<name>.yaml with these overrides, as the command line would compose it."""
    front.register_resolvers()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose(name, list(overrides))


def plain(*overrides: str) -> dict:
    """The composed configuration as plain values, unchecked."""
    return OmegaConf.to_container(composed(*overrides), resolve=True)


def tiny(*overrides: str) -> dict:
    """A checked, plain configuration of a very small run; `overrides` come last."""
    return front.check_composed(composed(*TINY, f"paths.cache_dir={cache_folder()}", *overrides))


def tiny_run(folder: Path, *overrides: str) -> dict:
    """Trains `tiny(*overrides)` into `folder`; returns its summary."""
    return train(tiny(*overrides), folder)


def parameters(run: Path, checkpoint: str = "last") -> dict[str, torch.Tensor]:
    """The parameters in a run's checkpoint."""
    return load(run, checkpoint)["state_dict"]


def load(run: Path, checkpoint: str = "last") -> dict:
    """A run's checkpoint."""
    return torch.load(run / "checkpoints" / f"{checkpoint}.ckpt", map_location="cpu", weights_only=True)


def unequal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> list[str]:
    """Names of the parameters that differ in a bit, or that only one side has."""
    names = first.keys() | second.keys()
    return sorted(n for n in names if n not in first or n not in second or not torch.equal(first[n], second[n]))


def command(*arguments: str, cwd: Path | None = None, **options) -> subprocess.CompletedProcess:
    """Runs `python <arguments>`, a front door by its name, on one thread, without anyone's keys or settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB", "HYDRA"))}
    environment = {**kept, "OMP_NUM_THREADS": "1", **options.pop("env", {})}
    first, *rest = arguments
    first = str(ROOT / first) if first.endswith(".py") else first
    return subprocess.run(
        [sys.executable, first, *rest], cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, **options
    )
