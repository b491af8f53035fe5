"""What a probe is: a small task with a generator, a dose, a model, a score, and bounds for it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from attnorm.probes.arm import Arm
from attnorm.probes.model import OneStep

LABELS = 16  # the labels that values carry
SITES = ("cross", "bidirectional", "causal")


class Batch(NamedTuple):
    """Examples of a probe. In training, every tensor has an axis for the E members of an ensemble in front.

    queries, keys: features (B, N, F) and (B, M, G), which only decide where to attend.
    values:        (B, M, L), what can be read at a key, and nothing about where to attend.
    targets:       what the outputs are compared with, for labels int (B, N).
    wanted:        the key that each query asks for, int (B, N), if it is one.
    """

    queries: Tensor
    keys: Tensor
    values: Tensor
    targets: Tensor
    wanted: Tensor | None = None


class Probe:
    """A task on which attention is the only thing that can be learned. A subclass implements `batch`.

    The class attributes say how it is trained and what is expected of it:

    site:        "cross", "bidirectional" or "causal": which normalizers are defined here.
    metric:      the name of `score`.
    doses:       the options of the constructor for each strength of the effect, by name. axis: what doses that are
                 numbers stand for, in words; against them, the page draws the difference to the baseline.
    size:        the number M of keys at which the learning rate is selected and arms are compared.
    train_sizes: the sizes that training draws from, one per update.
    test_sizes:  the sizes of the test sets, `size` among them; the others have columns of their own.
    updates, examples: the length of training, and the number of examples per update.
    train_examples: the number of training examples, which repeat in the same order; None: every update draws new ones.
    test_examples: the number of examples of a test set.
    chance:      the score of guessing, if it is known. solver: computes `ceiling`.
    prediction:  what is expected, as a sentence. source: where the task comes from.
    """

    site: ClassVar[str] = "cross"
    metric: str = "accuracy"
    doses: ClassVar[Mapping[str, Mapping[str, Any]]] = {"": {}}
    axis: ClassVar[str] = "dose"
    size: int = 16
    train_sizes: Sequence[int] = ()
    test_sizes: Sequence[int] = ()
    updates: int = 800
    examples: int = 64
    train_examples: int | None = None
    test_examples: int = 1000
    chance: float | None = 1 / LABELS
    solver: Callable[[Any], Tensor] | None = None
    prediction: str = ""
    source: str = ""

    def batch(self, count: int, size: int, generator: Generator) -> Any:
        """`count` examples with `size` keys, a NamedTuple of tensors with `count` rows. They depend on nothing else."""
        raise NotImplementedError(f"{type(self).__name__}: has no batch(count, size, generator)")

    def model(self, arm: Arm, seeds: Sequence[int]) -> nn.Module:
        """The model of an ensemble: called with a batch (E, B, ...), it returns the outputs (E, B, N, ...)."""
        sample = self.batch(1, self.size, torch.Generator().manual_seed(0))
        widths = (sample.queries.shape[-1], sample.keys.shape[-1], sample.values.shape[-1])
        return OneStep(arm, seeds, *widths, outputs=LABELS, causal=self.site == "causal")

    def loss(self, outputs: Tensor, batch: Any) -> Tensor:
        """The mean loss of each member, (E,)."""
        return F.cross_entropy(outputs.movedim(-1, 1), batch.targets, reduction="none").flatten(1).mean(1)

    def score(self, outputs: Tensor, batch: Any) -> Tensor:
        """The score of each member and example, (E, B): for labels, the share of queries that are answered."""
        return (outputs.argmax(-1) == batch.targets).float().flatten(2).mean(2)

    def ceiling(self, batch: Any) -> Tensor | None:
        """The score (B,) of a solver of the examples, if there is one."""
        return None if self.solver is None else self.solver(batch)


def asked(queries: Tensor, keys: Tensor, wanted: Tensor, generator: Generator) -> Batch:
    """Draws a label for every key, which is all that its value carries. The labels of wanted keys are the targets."""
    labels = torch.randint(LABELS, keys.shape[:2], generator=generator)
    return Batch(queries, keys, F.one_hot(labels, LABELS).float(), labels.gather(1, wanted), wanted)


def unit(x: Tensor) -> Tensor:
    """The rows scaled to length 1."""
    return F.normalize(x, dim=-1)


def permutations(count: int, size: int, generator: Generator) -> Tensor:
    """A random order of the numbers from 0 to size - 1 in each row, int (count, size)."""
    return torch.rand(count, size, generator=generator).argsort(-1)


def rows_at(x: Tensor, index: Tensor) -> Tensor:
    """The rows x[b, index[b, n]] of x (B, M, F) for an index (B, N): (B, N, F)."""
    return x.gather(1, index.unsqueeze(-1).expand(-1, -1, x.shape[-1]))


def assignment(batch: Batch) -> Tensor:
    """The share of queries, (B,), answered by the one-to-one assignment with the largest sum of q'k - |k|^2 / 2.

    For queries that are keys plus normal noise, it is the most likely permutation. The numbers of queries and keys must
    be equal, or there are fewer queries.
    """
    from scipy.optimize import linear_sum_assignment

    fit = batch.queries @ batch.keys.transpose(-2, -1) - batch.keys.square().sum(-1)[:, None, :] / 2
    chosen = torch.stack([torch.as_tensor(linear_sum_assignment(one.numpy(), maximize=True)[1]) for one in fit])
    return right(batch, chosen)


def nearest_key(batch: Batch) -> Tensor:
    """The share of queries, (B,), answered by the nearest key."""
    return right(batch, torch.cdist(batch.queries, batch.keys).argmin(-1))


def all_right(batch: Any) -> Tensor:
    """1 for every example, (B,), if all of them can be solved."""
    return torch.ones(len(batch[0]))


def right(batch: Batch, chosen: Tensor) -> Tensor:
    """The share of queries, (B,), whose chosen key, int (B, N), has the label that was asked for."""
    answers = batch.values.argmax(-1).gather(1, chosen)
    return (answers == batch.targets).float().mean(1)
