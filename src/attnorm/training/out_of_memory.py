"""Memory that does not suffice: an error that says how large the batch was and what to change."""

import traceback
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from attnorm.attention.multihead import attention_layers
from attnorm.attention.normalizers.base import Normalizer
from attnorm.errors import UserError
from attnorm.settings import ResolvedConfig
from attnorm.training.environment import peak_memory

if TYPE_CHECKING:
    from pytorch_lightning import Trainer

ON_CPU = ("DefaultCPUAllocator: can't allocate memory", "DefaultCPUAllocator: not enough memory")


class NotEnoughMemory(UserError, MemoryError):
    """A batch did not fit into memory."""


class OutOfMemory(AbstractContextManager["OutOfMemory"]):
    """Turns an out-of-memory error into NotEnoughMemory, with the original error as its cause.

    It is a context manager around training and scoring. A Linux kernel that kills the process for its use of memory
    leaves nothing to turn: such a run is found as killed, see `RunState`.

    cfg:     the configuration of the run.
    trainer: that of a run that trains, for the step; set once there is one.
    phase:   "training", "validation" or "scoring", from the traceback of the error.
    """

    def __init__(self, cfg: ResolvedConfig):
        self.cfg, self.phase = cfg, "scoring"
        self.trainer: Trainer | None = None

    def __exit__(self, kind: type | None, error: BaseException | None, where: TracebackType | None) -> None:
        is_on_cpu = isinstance(error, RuntimeError) and any(text in str(error) for text in ON_CPU)
        is_out_of_memory = isinstance(error, (torch.OutOfMemoryError, MemoryError))  # on a GPU, or of Python
        if is_on_cpu or (is_out_of_memory and not isinstance(error, NotEnoughMemory)):
            frames = [frame for frame, _ in traceback.walk_tb(where)]
            files = {Path(frame.f_code.co_filename).name for frame in frames}  # of Lightning
            in_fit = "training" if "fit_loop.py" in files else "scoring"
            self.phase = "validation" if "evaluation_loop.py" in files else in_fit
            innermost: dict[str, Tensor] = {}  # of the variables `batch` that hold tensors
            for batch in (frame.f_locals.get("batch") for frame in frames):
                if isinstance(batch, dict) and batch and all(isinstance(value, Tensor) for value in batch.values()):
                    innermost = batch
            raise NotEnoughMemory(self.message(innermost)) from error

    def message(self, batch: Mapping[str, Tensor]) -> str:
        """What happened, with the largest batch that is known, and what to change."""
        step = ""
        if self.trainer is not None and self.phase != "scoring":
            step = f" at step {self.trainer.global_step + (self.phase == 'training')}"
        peak = ", ".join(f"{name.removesuffix('_mb')} {value:,.0f} MB" for name, value in peak_memory().items())
        size = f" The batch has {size_of(batch)}." if batch else ""
        advice = "; or ".join(self.remedies())
        return f"out of memory during {self.phase}{step}.{size} Peak memory: {peak}. Try {advice}."

    def remedies(self) -> Iterator[str]:
        """What needs less memory, the changes that keep the results first."""
        cfg, beam = self.cfg, getattr(self.cfg.groups.get("decoding"), "beam_size", 1)
        if self.phase != "training":
            if self.phase == "scoring" and beam > 1:
                yield f"a smaller decoding.beam_size (now {beam})"
            yield "a smaller data.batch_tokens"
            return
        yield f"trainer.accumulate_grad_batches={2 * cfg.trainer.accumulate_grad_batches} (same result)"
        if getattr(cfg.model, "attention_dropout", 0):
            yield "model.attention_dropout=0 (otherwise all attention weights are kept)"
        layers = attention_layers(self.trainer.lightning_module).values() if self.trainer else ()
        kinds = {type(layer.normalizer) for layer in layers}
        if tables := sorted(kind.__name__ for kind in kinds if kind.attend is Normalizer.attend):
            yield f"another normalizer than {', '.join(tables)}, which keeps all attention weights"
        if str(cfg.trainer.precision).startswith("32"):
            yield "trainer.precision=bf16-mixed"
        yield "a smaller data.batch_tokens (which changes the training)"


def size_of(batch: Mapping[str, Tensor]) -> str:
    """The shapes of a batch: "64 rows, source 64 x 120, target 64 x 30; 9,600 tokens with padding"."""
    ids = {name: tensor for name, tensor in batch.items() if tensor.ndim == 2 and tensor.dtype == torch.int64}
    others = {name: tensor for name, tensor in batch.items() if tensor.ndim > 1 and name not in ids}
    shapes = [f"{name} {' x '.join(map(str, tensor.shape))}" for name, tensor in {**ids, **others}.items()]
    rows = next((len(tensor) for tensor in (*ids.values(), *others.values())), 0)
    tokens = sum(tensor.numel() for name, tensor in ids.items() if name in TOKENS)
    return f"{rows:,} rows: {', '.join(shapes)}" + f"; {tokens:,} tokens with padding" * bool(tokens)


TOKENS = ("source", "target", "ids")  # tensors of token ids in the batches of the tasks
