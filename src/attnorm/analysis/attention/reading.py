"""A model reads one input: the attention of every layer with its tokens, and the measures of its weights and states."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from attnorm.attention.measures import sink_rate
from attnorm.errors import ConfigError, Problem, RunError
from attnorm.imports import nearest
from attnorm.models.recording import LayerRecord, layer_label, record, stacks_of
from attnorm.tasks.task import Tokens

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class LayerAttention:
    """The attention of one layer over one input.

    weights: float32 (heads, queries, keys) on the CPU. The rows of live queries sum to what the normalizer guarantees.
    queries, keys: the tokens of the rows and of the columns.
    """

    weights: Tensor
    queries: list[str]
    keys: list[str]


@dataclass(frozen=True)
class Reading:
    """What the attention layers of a model do while it reads one input.

    run:     a name for the run, for titles. text: the input in words.
    layers:  label, such as "decoder/1/cross" -> the attention of the layer. records: what the layers computed.
    numbers: the numbers of the heads that are shown, by layer.
    """

    run: str
    text: str
    layers: dict[str, LayerAttention]
    records: dict[str, LayerRecord]
    numbers: dict[str, list[int]]

    def select(self, layers: Collection[str] | None = None, heads: Collection[int] | None = None) -> "Reading":
        """The reading with these layers and heads only; None: all. Raises ConfigError if one does not exist."""
        kept = [label for label in self.layers if layers is None or label in layers]
        problems = []
        for label in (label for label in layers or () if label not in self.layers):
            message = f"no such layer; allowed: {', '.join(self.layers)}.{nearest(label, self.layers)}"
            problems.append(Problem("layers", message, label))
        most = max((len(self.layers[label].weights) for label in kept or self.layers), default=1)
        wrong = [head for head in heads or () if not 0 <= head < most]
        problems += [Problem("heads", f"no such head; allowed: 0 to {most - 1}", head) for head in wrong]
        if problems:
            raise ConfigError(problems)
        numbers = {label: [head for head in self.numbers[label] if heads is None or head in heads] for label in kept}
        kept = [label for label in kept if numbers[label]]
        return replace(
            self,
            layers={label: self.layers[label] for label in kept},
            records={label: self.records[label] for label in kept},
            numbers={label: numbers[label] for label in kept},
        )

    @cached_property
    def heads(self) -> "pd.DataFrame":
        """The measures of `LayerRecord.of_heads`, one row per layer and head; `sink_token` is the token with the
        largest mean mass."""
        import pandas as pd

        rows: list[dict[str, Any]] = []
        for label, attention in self.layers.items():
            measured = {name: values[0].tolist() for name, values in self.records[label].of_heads().items()}
            largest = attention.weights.sum(1).argmax(-1).tolist()
            for head in self.numbers[label]:
                measures: dict[str, Any] = {name: values[head] for name, values in measured.items()}
                rows.append({"layer": label, "head": head, **measures, "sink_token": attention.keys[largest[head]]})
        return pd.DataFrame(rows)

    @cached_property
    def states(self) -> "pd.DataFrame":
        """The measures of `LayerRecord.of_states`, one row per layer and place ("output" or "residual")."""
        import pandas as pd

        return pd.DataFrame(
            {"layer": label, "place": part} | {name: value.item() for name, value in measures.items()}
            for label, layer in self.records.items()
            for part, measures in layer.of_states().items()
        )

    @cached_property
    def sinks(self) -> "pd.DataFrame":
        """The share of heads for which a key is a sink (`sink_rate`), one row per layer and key."""
        import pandas as pd

        rows = []
        for label, attention in self.layers.items():
            rates = sink_rate(attention.weights[None])[0].tolist()
            for key, (token, rate) in enumerate(zip(attention.keys, rates, strict=True)):
                rows.append({"layer": label, "key": key, "token": token, "sink_rate": rate})
        return pd.DataFrame(rows)


@torch.no_grad()
def read(run: str, text: str, model: nn.Module, inputs: tuple, tokens: Tokens) -> Reading:
    """The reading of a batch of one example.

    inputs: the arguments of the model; tuples and lists of tensors among them. tokens: of each layer (`Task.attended`).
    Raises RunError for a model without attention layers.
    """
    device = next(model.parameters()).device
    with record(model) as captured:
        model(*(moved(tensor, device) for tensor in inputs))
    if not captured:
        raise RunError("the model of this run has no attention layer with a normalizer")
    records = {layer_label(name, stacks_of(model)): layer for name, layer in captured.items()}
    layers = {label: with_tokens(layer, *tokens(label)) for label, layer in records.items()}
    return Reading(run, text, layers, records, {label: list(range(len(of.weights))) for label, of in layers.items()})


def with_tokens(layer: LayerRecord, queries: list[str], keys: list[str]) -> LayerAttention:
    """The weights of a layer for the one example of a batch, without padding."""
    weights, allowed = layer.seen.weights[0].float().cpu(), layer.seen.allowed
    if allowed is None:
        return LayerAttention(weights, queries, keys)
    pairs = allowed.expand(layer.seen.weights.shape)[0].any(0).cpu()
    live, seen = pairs.any(1), pairs.any(0)
    shown = [token for token, is_live in zip(queries, live.tolist(), strict=True) if is_live]
    attended = [token for token, is_seen in zip(keys, seen.tolist(), strict=True) if is_seen]
    return LayerAttention(weights[:, live][:, :, seen], shown, attended)


def moved(x: Any, device: torch.device) -> Any:
    """A tensor, or the tensors in nested tuples and lists, on a device."""
    if isinstance(x, (list, tuple)):
        return type(x)(moved(value, device) for value in x)
    return x.to(device) if isinstance(x, Tensor) else x
