"""run.compile=true: the model of a run is compiled by `torch.compile` while it trains and validates.

The `forward` of the inner model is compiled for shapes of any size. The compiler still makes separate graphs for
training and validation, for one row and several rows, for sequences below and above the length at which attention
has linear memory, and for the pieces of a model that it cannot compile as a whole. So the number of graphs does not
grow with the number of batch shapes. After GRAPHS graphs no more are made: batches that none of them fits run
uncompiled.
"""

import time
from collections.abc import Callable
from logging import getLogger
from typing import Any

import pytorch_lightning as pl
import torch
from torch import nn

from attnorm.attention.multihead import attention_layers
from attnorm.errors import ConfigError, Problem
from attnorm.training.module import TrainingModule

log = getLogger(__name__)

BACKEND = "inductor"
GRAPHS = 64  # 7 to 9 are usual; packed MLM with long rows needs about 20 per layer


class CompiledModel(pl.Callback):
    """Compiles the model for training and validation, and counts what the compiler does.

    Names of parameters stay as they are, so checkpoints of compiled and uncompiled runs are the same. Dropout uses
    torch's own random numbers, so losses are those of an uncompiled run up to rounding. While attention weights are
    observed, the model runs uncompiled, as it does after training and when it generates.
    """

    def __init__(self) -> None:
        self.model: nn.Module | None = None
        self.seconds, self.reached = 0.0, False
        self.graphs = self.breaks = 0

    def record(self) -> dict[str, Any]:
        """For run.json: the number of compiled graphs and of graph breaks, and the seconds of compiling."""
        return {
            "graphs": self.graphs,
            "graph_breaks": self.breaks,
            "graph_limit_reached": self.reached,
            "seconds": round(self.seconds, 1),
        }

    def on_fit_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        assert isinstance(module, TrainingModule)
        try_compiler(module.device)
        torch.compiler.reset()  # what an earlier run of this process compiled does not count
        self.model = module.model
        self.start = counts()
        self.limit = torch._dynamo.config.recompile_limit
        torch._dynamo.config.recompile_limit = GRAPHS  # ours is reached first
        module.model.forward = self.guarded(module.model)
        if trainer.is_global_zero:
            log.info("run.compile=true: the model is compiled; the first batches take longer")

    def guarded(self, model: nn.Module) -> Callable:
        """The compiled forward of a model, or its own where that one must not be used."""
        eager, layers = model.forward, list(attention_layers(model).values())
        # Dropout draws the numbers that it draws uncompiled.
        options: dict[str, Any] | None = {"fallback_random": True} if BACKEND == "inductor" else None
        compiled = torch.compile(eager, dynamic=True, backend=BACKEND, options=options)

        def forward(*inputs: Any, **named: Any) -> Any:
            if any(layer.observer is not None for layer in layers):
                return eager(*inputs, **named)
            if self.reached:
                with torch.compiler.set_stance("eager_on_recompile"):
                    return compiled(*inputs, **named)
            started = time.perf_counter()
            result = compiled(*inputs, **named)
            self.count(time.perf_counter() - started)
            return result

        return forward

    def count(self, seconds: float) -> None:
        """Takes note of what the compiler has done during a call that took so many seconds."""
        before, now = self.graphs, counts()
        self.graphs, self.breaks = (count - start for count, start in zip(now, self.start, strict=True))
        if self.graphs > before:
            self.seconds += seconds
        if self.graphs >= GRAPHS:
            self.reached = True
            log.warning(
                "run.compile=true: %d graphs have been compiled, which is the limit. From now on, batches that none of "
                "them fits run uncompiled.",
                self.graphs,
            )

    def release(self, *_: object, stage: str = "") -> None:
        """Makes the model what it was before."""
        if self.model is None:
            return
        if self.graphs == 0:
            log.warning("run.compile=true: the compiler has not compiled any part of the model, so it had no effect.")
        del self.model.forward
        self.model = None
        torch._dynamo.config.recompile_limit = self.limit

    teardown = on_exception = release  # type: ignore[assignment]


def counts() -> tuple[int, int]:
    """How many graphs this process has compiled, and how often the compiler had to leave one."""
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())


def try_compiler(device: torch.device) -> None:
    """Compiles and runs a small function. Raises ConfigError if that fails."""
    try:
        torch.compile(lambda x: x + x, backend=BACKEND)(torch.ones(8, device=device))
    except Exception as error:  # of many kinds: no compiler, no headers of Python, no Triton
        cause = getattr(error, "inner_exception", error)  # what went wrong within the compiler
        reason = f"{type(cause).__name__}: {cause}".strip().splitlines()[0]
        message = f"torch.compile does not work here ({reason}). Allowed: false"
        raise ConfigError([Problem("run.compile", message, True)]) from error
