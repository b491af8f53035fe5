"""Tiny runs for the tests: a configuration that trains in about a second, and one folder of tokenized data for all."""

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from attnorm import front
from attnorm.training.run import train

ROOT = Path(__file__).parents[1]
CONF = ROOT / "conf"
SIZES = (
    "model.width=16",
    "model.heads=2",
    "model.inner=32",
    "model.encoder_layers=1",
    "model.decoder_layers=1",
    "model.max_source=64",
    "model.max_target=32",
    "model.dropout=0.1",
    "model.positions=learned",
)
DATA = ("data.train_size=200", "data.valid_size=20", "data.test_size=12", "data.batch_tokens=1000")
TINY = (
    *SIZES,
    *DATA,
    "tokenizer.model_type=bpe",
    "tokenizer.vocab_size=300",
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
def scratch(name: str) -> Path:
    """A folder that all tests of a session share, removed at its end."""
    folder = Path(tempfile.mkdtemp(prefix=f"attnorm-{name}-"))
    owner = os.getpid()
    atexit.register(lambda: shutil.rmtree(folder, ignore_errors=True) if os.getpid() == owner else None)
    return folder


def tiny_overrides() -> tuple[str, ...]:
    """What makes a run tiny, typed as on the command line; tokenized data goes to the session's own folder."""
    return (*TINY, f"paths.cache_dir={scratch('cache')}")


def composed(*overrides: str, name: str = "train", hydra: bool = False) -> DictConfig:
    """conf/<name>.yaml with these overrides, as the command line would compose it."""
    front.register_resolvers()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose(name, list(overrides), return_hydra_config=hydra)


def plain(*overrides: str) -> dict:
    """The composed configuration as plain values, unchecked."""
    return OmegaConf.to_container(composed(*overrides), resolve=True)


@functools.cache
def _tiny_groups(*groups: str) -> DictConfig:
    return composed(*tiny_overrides(), *groups)


def tiny(*overrides: str) -> dict:
    """A checked, plain configuration of a very small run; `overrides` come last. Composing takes most of the time of
    a tiny run, so each choice of groups is composed once and single keys are put in afterwards."""
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    is_group = [(CONF / override.key_or_group).is_dir() or override.is_add() for override in parsed]
    cfg = _tiny_groups(*(text for text, group in zip(overrides, is_group, strict=True) if group)).copy()
    for override, group in zip(parsed, is_group, strict=True):
        if not group:
            OmegaConf.update(cfg, override.key_or_group, override.value())
    return front.check_composed(cfg)


def tiny_run(folder: Path, *overrides: str) -> dict:
    """Trains `tiny(*overrides)` into `folder`; returns its summary."""
    return train(tiny(*overrides), folder)


@functools.cache
def finished_run() -> Path:
    """A finished hnas run, made once; to be read only (`copied_run` is for whoever writes)."""
    folder = scratch("run") / "run"
    tiny_run(folder, "attention=hnas")
    return folder


def copied_run(folder: Path) -> Path:
    """A copy of `finished_run` in `folder`."""
    return Path(shutil.copytree(finished_run(), folder / "run"))


def load(run: Path, checkpoint: str = "last") -> dict:
    """A run's checkpoint."""
    return torch.load(run / "checkpoints" / f"{checkpoint}.ckpt", map_location="cpu", weights_only=True)


def parameters(run: Path, checkpoint: str = "last") -> dict[str, torch.Tensor]:
    """The parameters in a run's checkpoint."""
    return load(run, checkpoint)["state_dict"]


def unequal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> list[str]:
    """Names of the parameters that differ in a bit, or that only one side has."""
    names = first.keys() | second.keys()
    return sorted(n for n in names if n not in first or n not in second or not torch.equal(first[n], second[n]))


def call(monkeypatch, door: str, *arguments: str) -> int:
    """The exit code of `python <door>.py <arguments>`, run in this process."""
    monkeypatch.setattr(sys, "argv", [f"{door}.py", *arguments])
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    GlobalHydra.instance().clear()
    try:
        return front.run_train(CONF) if door == "train" else front.run_door(CONF, door)
    finally:
        GlobalHydra.instance().clear()


def before(monkeypatch, owner: object, name: str, action: Callable) -> None:
    """Calls `action(*arguments)` before each call of the method or function `owner.name`."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapper(*arguments, **options):
        action(*arguments, **options)
        return original(*arguments, **options)

    monkeypatch.setattr(owner, name, wrapper)


def command(*arguments: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess:
    """Runs `python <arguments>` in the folder `cwd`, on one thread and without anyone's keys or settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB", "HYDRA", "ATTNORM"))}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**kept, "OMP_NUM_THREADS": "1", **(env or {})},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
