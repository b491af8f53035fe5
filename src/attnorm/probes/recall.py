"""recall: multi-query associative recall, with causal attention."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from attnorm.probes.arm import Arm
from attnorm.probes.base import LABELS, Probe, permutations, rows_at, unit
from attnorm.probes.model import OneStep

PAIRS = 8


class Text(NamedTuple):
    """As `Batch`. positions: where the questions are, int (B, PAIRS); the targets (B, PAIRS) are their labels."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    targets: Tensor
    positions: Tensor


class Answers(OneStep):
    """The outputs at the positions of the questions, (E, B, PAIRS, LABELS)."""

    def forward(self, batch: Text) -> Tensor:
        outputs = super().forward(batch)
        return outputs.gather(2, batch.positions.unsqueeze(-1).expand(*batch.positions.shape, outputs.shape[-1]))


class Recall(Probe):
    """A text begins with eight pairs of a name and a label. Later each name comes once more, with noise, among fillers,
    and the model has to answer with its label. Names and fillers are unit vectors in R^6.

    Attention is causal. As with a convolution over two positions, the key of a position is the vector before it; its
    value is its own label, and its query its own vector.
    """

    site = "causal"
    size = 32
    test_sizes = (32, 128)
    updates = 600
    prediction = "dnas_prefix below softmax, because half of the keys are not wanted; hnas_prefix equal to it"
    source = "multi-query associative recall (arXiv 2312.04927)"

    def __init__(self, noise: float = 0.3, width: int = 6):
        self.noise, self.width = noise, width

    def batch(self, count: int, size: int, generator: Generator) -> Text:
        vectors = unit(torch.randn(count, size, self.width, generator=generator))
        names = vectors[:, 0 : 2 * PAIRS : 2]
        vectors[:, 1 : 2 * PAIRS : 2] = 0.0
        labels = torch.randint(LABELS, (count, PAIRS), generator=generator)
        values = torch.zeros(count, size, LABELS)
        values[:, 1 : 2 * PAIRS : 2] = F.one_hot(labels, LABELS).float()
        wanted = permutations(count, PAIRS, generator)
        positions = 2 * PAIRS + permutations(count, size - 2 * PAIRS, generator)[:, :PAIRS]
        noise = torch.randn(count, PAIRS, self.width, generator=generator)
        questions = rows_at(names, wanted) + self.noise * noise
        vectors = vectors.scatter(1, positions.unsqueeze(-1).expand(questions.shape), questions)
        before = F.pad(vectors, (0, 0, 1, 0))[:, :-1]
        return Text(vectors, before, values, labels.gather(1, wanted), positions)

    def model(self, arm: Arm, seeds: Sequence[int]) -> Answers:
        return Answers(arm, seeds, self.width, self.width, LABELS, outputs=LABELS, causal=True)

    def ceiling(self, batch: Text) -> Tensor:
        """The nearest name. Each name is asked for once, so a model that uses the earlier questions can do better."""
        names, questions = batch.keys[:, 1 : 2 * PAIRS : 2], rows_at(batch.queries, batch.positions)
        labels = batch.values[:, 1 : 2 * PAIRS : 2].argmax(-1)
        answers = labels.gather(1, torch.cdist(questions, names).argmin(-1))
        return (answers == batch.targets).float().mean(1)
