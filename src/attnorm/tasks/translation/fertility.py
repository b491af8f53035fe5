"""Decoding with fertility: a bound on the attention that a source word receives over all target words, and coverage."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnorm.attention.multihead import MultiHeadAttention, attention_layers, observe
from attnorm.attention.normalizers.fertility import Fertility, FertilitySoftmax, FertilitySparsemax
from attnorm.data.featurizer import pad
from attnorm.models.generation import Decoding, SpecialTokens
from attnorm.schema import Positive

WITH_FERTILITY: dict[str, type[Fertility]] = {  # the constrained form of the normalizers that have one
    "softmax": FertilitySoftmax,
    "fertility_softmax": FertilitySoftmax,
    "sparsemax": FertilitySparsemax,
    "fertility_sparsemax": FertilitySparsemax,
}
LITTLE = 0.2  # a source token with less attention than this counts as not covered
ROWS = 64  # sentences that are read at a time


@dataclass(frozen=True)
class TranslationDecoding(Decoding):
    """Options of generation, and of its attention.

    fertility: the largest attention that a source token may receive over all target tokens, except the end of the
               source; None: no bound.
    """

    fertility: Positive | None = None


def cross_layers(model: nn.Module) -> dict[str, MultiHeadAttention]:
    """The attention layers from the target to the source, by module name."""
    return {name: layer for name, layer in attention_layers(model).items() if name.endswith("cross")}


@contextmanager
def limited(model: nn.Module, fertility: float | None, normalizers: Sequence[str]) -> Iterator[None]:
    """Within this context, the cross-attention of a model has a fertility. None changes nothing.

    normalizers: the names of the normalizers at the site, one per layer, or one for all layers.
    """
    layers = list(cross_layers(model).values())
    kept = [layer.normalizer for layer in layers]
    names = list(normalizers) * (len(layers) if len(normalizers) == 1 else 1)
    try:
        if fertility is not None:
            for layer, name in zip(layers, names, strict=True):
                width = layer.query.out_features // layer.heads
                layer.normalizer = WITH_FERTILITY[name](layer.maps, width, fertility=fertility, sink=True)
        yield
    finally:
        for layer, normalizer in zip(layers, kept, strict=True):
            layer.normalizer = normalizer


@torch.no_grad()
def coverage(
    model: Any, sources: Sequence[list[int]], targets: Sequence[list[int]], special: SpecialTokens
) -> list[Tensor]:
    """The attention that each source token receives in total while the model writes the target: float32 (tokens,) each.

    It is the column sum of the cross-attention, the mean over layers and heads. sources, targets: token ids without
    special tokens. The end of the source is not included.
    """
    model.eval()
    masses, device = [], model.tokens.weight.device
    for start in range(0, len(sources), ROWS):
        rows = slice(start, start + ROWS)
        source = pad([[*ids, special.eos] for ids in sources[rows]], special.pad).to(device)
        target = pad([[special.bos, *ids] for ids in targets[rows]], special.pad).to(device)
        mass = source_mass(model, source, target)
        masses += [row[: len(ids)] for row, ids in zip(mass, sources[rows], strict=True)]
    return masses


def source_mass(model: nn.Module, source: Tensor, target: Tensor) -> Tensor:
    """The column sums of the cross-attention, float32 (B, M) on the CPU: the mean over layers and heads."""
    masses: list[Tensor] = []

    def keep(name: str, weights: Tensor, allowed: Tensor | None) -> None:
        if name.endswith("cross"):
            masses.append(weights.float().sum(-2).mean(1))

    with observe(model, keep):
        model(source, target)
    return torch.stack(masses).mean(0).cpu()


def summary(masses: Sequence[Tensor]) -> dict[str, float]:
    """mean and largest attention of a source token, and the percentage of tokens with less than `LITTLE`."""
    every = torch.cat(list(masses)).double()
    return {
        "mean": every.mean().item(),
        "largest": every.max().item(),
        "little": 100 * (every < LITTLE).double().mean().item(),
    }


def describe(masses: dict[str, float]) -> str:
    """The `summary` of masses in words."""
    return (
        f"coverage: over all target tokens, a source token receives {masses['mean']:.2f} of attention on average "
        f"and at most {masses['largest']:.2f}; {masses['little']:.1f} % receive less than {LITTLE}"
    )
