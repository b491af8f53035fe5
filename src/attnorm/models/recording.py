"""What every attention layer of a model computes in a forward pass, together with the states around it."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from attnorm.attention.hooks import Observation
from attnorm.attention.likelihoods import (
    fenchel_deviation,
    key_log_likelihood,
    query_log_likelihood,
    row_optimum,
    transport_objective,
    transport_optimum,
)
from attnorm.attention.measures import head_measures, masked_mean, state_measures
from attnorm.attention.multihead import MultiHeadAttention, attention_layers, observe_all
from attnorm.models.layers import Residual


@dataclass(frozen=True)
class LayerRecord:
    """One forward pass of one attention layer.

    module:         the layer. seen: what it computed (`Observation`).
    states, memory: its inputs, (B, N, W) and (B, M, W); the states of the queries and those of the keys.
    output:         its output, (B, N, W).
    residual:       the output of the residual connection around it, (B, N, W), with its norm if the layer is post-norm.
                    None if the layer is not in a `Residual`.
    """

    module: MultiHeadAttention
    seen: Observation
    states: Tensor
    memory: Tensor
    output: Tensor
    residual: Tensor | None

    @property
    def live(self) -> Tensor:
        """bool (B, N): the queries that may see at least one key. The others are padding."""
        if self.seen.allowed is None:
            return torch.ones(self.states.shape[:2], dtype=torch.bool, device=self.states.device)
        return self.seen.allowed.expand(self.seen.weights.shape).any(-1).any(1)

    def first(self, count: int) -> "LayerRecord":
        """The record of the first `count` examples of the batch."""

        def cut(x: Any) -> Any:
            return x[:count] if isinstance(x, Tensor) and x.dim() > 0 and x.shape[0] == len(self.states) else x

        seen = Observation(**{name: cut(value) for name, value in vars(self.seen).items()})
        return LayerRecord(**{name: cut(value) for name, value in vars(self).items()} | {"seen": seen})

    def of_heads(self) -> dict[str, Tensor]:
        """Measures of every head by name, (B, H) each: `head_measures`, and those of `likelihoods`.

        query_likelihood, key_likelihood: mixture log-likelihoods in nats per query and per key ("Doubly-Normalized
                        Attention", Eq. 2 and 5). Only with a scorer of a dot-product type with a fixed alpha, like the
                        deviations.
        objective:      of Eq. 9 and 10, in nats per query. objective_rows, objective_both: its minima under the
                        constraints of Eq. 9 and of Eq. 10.
        deviation:      |lambda* - alpha z| / |lambda*| of "Attention as Inference via Fenchel Duality", Figures 4 to 8,
                        the mean over live queries. As there, the states of the keys are the templates. Only with a
                        scorer that keeps the keys.
        deviation_keys: the same for the projected keys of the head as templates, as in the normalizer `fenchel`.
        """
        seen = self.seen
        of_call: dict[str, Any] = {"allowed": seen.allowed, "log_prior": seen.log_prior}
        measures = head_measures(seen.weights, seen.allowed)
        measures["objective"] = transport_objective(seen.weights, seen.scores, **of_call)
        measures["objective_rows"] = row_optimum(seen.scores, **of_call)
        measures["objective_both"] = transport_optimum(seen.scores, **of_call)
        if seen.scale is None:
            return measures
        measures["query_likelihood"] = mean_of_known(query_log_likelihood(seen.q, seen.k, seen.allowed, seen.scale))
        measures["key_likelihood"] = mean_of_known(key_log_likelihood(seen.q, seen.k, seen.allowed, seen.scale))
        heads, maps = self.module.heads, self.module.maps
        of_keys = self.module.key_value.weight[: self.module.key_value.in_features]  # (W, W)
        of_maps = of_keys.double().unflatten(0, (heads, -1)).repeat_interleave(maps // heads, 0)
        evidence = seen.q.double() @ of_maps  # W_k' q, (B, maps, N, W)
        templates = (seen.scale * self.memory)[:, None].expand(-1, maps, -1, -1)
        if self.module.scorer.keeps_keys:  # otherwise, the scores are not products with these templates
            measures["deviation"] = mean_of_known(fenchel_deviation(evidence, templates, **of_call))
        measures["deviation_keys"] = mean_of_known(fenchel_deviation(seen.q, seen.k, **of_call, alpha=seen.scale))
        return measures

    def of_states(self) -> dict[str, dict[str, Tensor]]:
        """`state_measures` of the output of the attention, and of that of the residual connection if there is one."""
        states = {"output": self.output} | ({} if self.residual is None else {"residual": self.residual})
        return {name: state_measures(x, self.live) for name, x in states.items()}


def mean_of_known(values: Tensor) -> Tensor:
    """The mean over the last dimension without NaN; NaN if there is nothing else."""
    return masked_mean(values, ~values.isnan())


@contextmanager
def record(model: nn.Module) -> Iterator[dict[str, LayerRecord]]:
    """A dict that is filled while the model runs inside this context: module name -> the latest `LayerRecord`.

    The dense weights are computed there. The tensors are those of the model, without copies.
    """
    records: dict[str, LayerRecord] = {}
    seen: dict[str, Observation] = {}
    inside: list[list[str]] = []  # for each residual that is being computed, the layers that ran in it
    names = {layer: name for name, layer in attention_layers(model).items()}

    def after_attention(layer: nn.Module, inputs: tuple, named: dict[str, Any], output: Tensor) -> None:
        assert isinstance(layer, MultiHeadAttention)
        name, arguments = names[layer], {**dict(zip(("states", "memory"), inputs, strict=False)), **named}
        memory = arguments["states"] if arguments["memory"] is None else arguments["memory"]
        records[name] = LayerRecord(layer, seen.pop(name), arguments["states"], memory, output, None)
        if inside:
            inside[-1].append(name)

    def after_residual(_: nn.Module, inputs: tuple, output: Tensor) -> None:
        for name in inside.pop():
            records[name] = replace(records[name], residual=output)

    with ExitStack() as hooks:
        for layer in names:
            hooks.callback(layer.register_forward_hook(after_attention, with_kwargs=True).remove)
        for module in model.modules():
            if isinstance(module, Residual):
                hooks.callback(module.register_forward_pre_hook(lambda *_: inside.append([])).remove)
                hooks.callback(module.register_forward_hook(after_residual).remove)
        hooks.enter_context(observe_all(model, seen.__setitem__))
        yield records


def layer_label(name: str, stacks: Mapping[str, str]) -> str:
    """A short label for the module name of an attention layer: "encoder/0" for "encoder.layers.0.attention",
    "fusion" for "fusion.attention", "guided/0/cross" for "guided.0.cross".

    stacks: what a model calls a stack whose module has another name, as in `Seq2Seq.stacks`: "decoder/1/cross" for
    "layers.1.cross" with {"layers": "decoder"}.
    """
    stack, *rest = name.removesuffix(".attention").split(".")
    return "/".join([stacks.get(stack, stack), *(part for part in rest if part != "layers")])


def stacks_of(model: nn.Module) -> Mapping[str, str]:
    """The names that a model declares for its stacks, or none."""
    return getattr(model, "stacks", {})
