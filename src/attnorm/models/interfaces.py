"""What a task calls on its model: a Protocol for each `interface` whose models are of several classes.

A model need not extend its Protocol. The heads of the interface "encoder" are classes of their own, see `heads.py`.
"""

from collections.abc import Iterator
from typing import Any, Protocol

from torch import Tensor, nn


class TaskModel(Protocol):
    """What a task calls on any model: methods of `nn.Module`."""

    def eval(self) -> Any: ...

    def parameters(self) -> Iterator[nn.Parameter]: ...


class Generator(TaskModel, Protocol):
    """A model that generates token by token. `shape.max_target` is its number of positions."""

    shape: Any

    def new_cache(self) -> Any:
        """An empty state of incremental decoding. `length` is the number of decoded positions, and `select(rows)` keeps
        the given rows, int (B',), in this order."""

    def decode(self, target: Tensor, memory: Tensor, source_real: Tensor, cache: Any = None, /) -> Tensor:
        """target, int (B, T); memory (B, N, W); source_real, bool (B, N) -> states (B, T, W)."""

    def logits(self, states: Tensor, /) -> Tensor:
        """states (..., W) -> scores of the next token (..., V)."""


class Seq2SeqModel(Generator, Protocol):
    """The interface "seq2seq": a generator that reads tokens. `tokens` are their embeddings."""

    pad_id: int
    tokens: nn.Embedding

    def encode(self, source: Tensor, /) -> Tensor:
        """source, int (B, N) -> memory (B, N, W)."""

    def __call__(self, source: Tensor, target: Tensor, /) -> Tensor:
        """source, int (B, N), padded; target, int (B, T), the tokens so far -> states (B, T, W)."""


class CaptioningModel(Generator, Protocol):
    """The interface "captioning": a generator that looks at an image. `eye.cells()` names its templates."""

    eye: Any

    def encode(self, image: Tensor, present: Tensor | None, /) -> tuple[Tensor, Tensor]:
        """The templates (B, M, W), and which of them are real, bool (B, M)."""

    def __call__(self, image: Tensor, present: Tensor | None, target: Tensor, owner: Tensor, /) -> Tensor:
        """target, int (C, T), the tokens so far; owner, int (C,), the image of each caption -> states (C, T, W)."""


class CausalLM(TaskModel, Protocol):
    """The interface "causal_lm". `longest` is the largest number of positions of a text; None without a limit."""

    longest: int | None

    def new_cache(self) -> Any:
        """As in `Generator`."""

    def next_logits(self, ids: Tensor, cache: Any, /) -> Tensor:
        """ids, int (B, N) -> scores of the token after the last one (B, V)."""

    def __call__(self, ids: Tensor, segments: Tensor | None = None, /) -> Tensor:
        """ids, int (B, N); segments, int (B, N), the number of the text of each, from 1 -> scores (B, N, V)."""


class LabelModel(TaskModel, Protocol):
    """The interfaces "images", "documents" and "vqa", and a head of "encoder" that scores labels."""

    def __call__(self, *inputs: Any) -> Tensor:
        """The tensors of a batch that the task names -> scores of the labels or answers (B, labels)."""
