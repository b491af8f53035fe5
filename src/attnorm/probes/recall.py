"""recall: multi-query associative recall, with causal attention."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from attnorm.attention.masking import Mask
from attnorm.probes.arm import Arm
from attnorm.probes.attention import Attention
from attnorm.probes.base import LABELS, Probe, all_right, permutations, rows_at, unit
from attnorm.probes.model import OneStep, normal

PAIRS = 8
VOCABULARY = 8192  # 0 is the filler; the first half are keys, the second half values


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


@dataclass
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

    noise: float = 0.3
    width: int = 6

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


class TokenText(NamedTuple):
    """tokens: int (B, size). targets: the values that are asked for, int (B, pairs), at `positions`, int (B, pairs)."""

    tokens: Tensor
    targets: Tensor
    positions: Tensor


class TwoLayers(nn.Module):
    """Two layers of causal attention with one head, residual connections and no MLP; the embeddings of tokens are also
    the readout. As published, but without dropout, biases, and trained scales of the norms."""

    def __init__(self, arm: Arm, seeds: Sequence[int], size: int, width: int):
        super().__init__()

        def matrix(name: str, *shape: int) -> nn.Parameter:
            return nn.Parameter(normal(seeds, name, *shape, scale=0.02))

        self.tokens, self.positions = matrix("tokens", VOCABULARY, width), matrix("positions", size, width)
        self.inputs = nn.ParameterList(matrix(f"input.{layer}", width, 3 * width) for layer in range(2))
        self.outputs = nn.ParameterList(matrix(f"output.{layer}", width, width) for layer in range(2))
        self.attentions = nn.ModuleList(Attention(arm, seeds, width) for _ in range(2))

    def forward(self, batch: TokenText) -> Tensor:
        """The scores of the vocabulary at the positions of the questions, (E, B, pairs, VOCABULARY)."""
        x = torch.stack([F.embedding(*pair) for pair in zip(batch.tokens, self.tokens, strict=True)])
        x = x + self.positions[:, None]
        for before, attention, after in zip(self.inputs, self.attentions, self.outputs, strict=True):
            states = F.layer_norm(x, x.shape[-1:])
            q, k, v = torch.einsum("ebnf,efg->ebng", states, before).chunk(3, -1)
            context = attention(q, k, v, states, states, Mask(causal=True))
            x = x + torch.einsum("ebnf,efg->ebng", context, after)
        asked = x.gather(2, batch.positions.unsqueeze(-1).expand(*batch.positions.shape, x.shape[-1]))
        return torch.einsum("ebnf,evf->ebnv", F.layer_norm(asked, x.shape[-1:]), self.tokens)


class Mqar(Probe):
    """The published form of `Recall`. A text of tokens begins with pairs of a key and a value, all different. Later,
    each key comes once more, soon rather than late, among fillers, and the model has to name its value.

    A dose is the length of a text and the width of the model.
    """

    site = "causal"
    doses: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        f"{size}x{width}": {"size": size, "pairs": pairs, "width": width, "examples": examples}
        for size, pairs, examples in ((64, 4, 512), (128, 8, 512), (256, 16, 256), (512, 64, 128))
        for width in (64, 128, 256, 512)
    }
    chance = 2 / VOCABULARY
    train_examples, test_examples = 100_000, 3000
    solver = staticmethod(all_right)
    prediction = "dnas_prefix below softmax, because most positions are not wanted; hnas_prefix equal to it"
    source = "multi-query associative recall (arXiv 2312.04927, figure 2)"

    def __init__(self, size: int = 64, pairs: int = 4, width: int = 64, examples: int = 512):
        self.size, self.test_sizes, self.pairs, self.width, self.examples = size, (size,), pairs, width, examples
        self.updates = 64 * self.train_examples // examples  # 64 epochs

    def batch(self, count: int, size: int, generator: Generator) -> TokenText:
        half, start = VOCABULARY // 2, 2 * self.pairs

        def different(weights: Tensor) -> Tensor:  # draws without replacement: the first of exponential clocks
            return (torch.rand(count, len(weights), generator=generator).log() / weights).topk(self.pairs).indices

        keys, values = 1 + different(torch.ones(half - 1)), half + different(torch.ones(half))
        gaps = different(torch.arange(1, (size - start) // 2 + 1) ** -0.99)  # the published power law
        positions = start + 2 * gaps
        tokens = torch.zeros(count, size, dtype=torch.long).scatter(1, positions, keys)
        tokens[:, 0:start:2], tokens[:, 1:start:2] = keys, values
        return TokenText(tokens, values, positions)

    def model(self, arm: Arm, seeds: Sequence[int]) -> TwoLayers:
        return TwoLayers(arm, seeds, self.size, self.width)

    def loss(self, outputs: Tensor, batch: TokenText) -> Tensor:
        losses = F.cross_entropy(outputs.flatten(0, 2), batch.targets.flatten(), reduction="none")
        return losses.unflatten(0, (len(outputs), -1)).mean(1)
