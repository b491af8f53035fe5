"""Attention layers as inference problems, in the setting of "Attention as Inference via Fenchel Duality", Sec. 8.

A query with the state y_k attends to the states x_i, with the query and key matrices Q and K of a head of width d'. The
problem of this head and query has the templates t_i = x_i / sqrt(d'), with the full states x_i; the evidence
z = K'Q y_k; alpha = 1; and a preference u over the keys that the query may see, which is uniform unless there is a
position bias. A bias of the queries is part of Q y_k. A bias of the keys adds a constant to the scores of a query and
is left out.
"""

import inspect
import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnorm.attention.masking import dense_mask
from attnorm.attention.multihead import MultiHeadAttention, attention_layers
from attnorm.attention.normalizers.fenchel import solve
from attnorm.attention.priors import T5
from attnorm.attention.scorers import ScaledDot
from attnorm.errors import UserError

ALPHA = 1.0


@dataclass(frozen=True)
class LayerProblem:
    """The problems of all heads and queries of one attention layer over one text. All tensors are float64.

    Args:
        label: the layer, such as "encoder/0".
        evidence: z, (H, N, W).
        templates: t, (M, W).
        log_u: log u, broadcastable to (H, N, M), or None for a uniform u. It need not be normalized.
        mask: bool, broadcastable to (H, N, M), True where a query may see a key; or None.
    """

    label: str
    evidence: Tensor
    templates: Tensor
    log_u: Tensor | None = None
    mask: Tensor | None = None


@dataclass(frozen=True)
class Solved:
    """The solutions of a layer's problems.

    Args:
        deviation: |lambda* - alpha z| / |lambda*|, (H, N).
        stationarity: |lambda* / alpha - (mu + z - sum_j w_j t_j)|, (H, N), which is 0 at the exact solution.
    """

    deviation: Tensor
    stationarity: Tensor


@torch.no_grad()
def solved(problem: LayerProblem) -> Solved:
    """Solves Eq. 8 for every head and query of a layer."""
    z, T = problem.evidence, problem.templates.expand(len(problem.evidence), -1, -1)  # (H, N, W), (H, M, W)
    mask = None if problem.mask is None else problem.mask.expand(*z.shape[:-1], T.shape[-2])[None]
    log_prior = None if problem.log_u is None else problem.log_u[None]
    solution = solve(z[None], T[None], mask, log_prior=log_prior, scale=ALPHA)[0]
    log_u = torch.zeros((), dtype=z.dtype) if problem.log_u is None else problem.log_u
    log_u = log_u.expand(*z.shape[:-1], T.shape[-2])
    if problem.mask is not None:
        log_u = log_u.masked_fill(~problem.mask, -torch.inf)
    shift = (log_u.softmax(-1) - (log_u + solution @ T.mT).softmax(-1)) @ T  # mu - sum_j w_j t_j
    return Solved(
        (solution - ALPHA * z).norm(dim=-1) / solution.norm(dim=-1),
        (solution / ALPHA - z - shift).norm(dim=-1),
    )


# --------------------------------------------------------------------------------------------------------- our models


@torch.no_grad()
def problems_of_ours(model: nn.Module, read: Callable[[], Any], label: Callable[[str], str]) -> list[LayerProblem]:
    """The problems of every attention layer of a model of this package, while `read` lets it read one text.

    model: in float64, on the CPU. label: the label of a layer, by the name of its module.
    Raises UserError for a layer that does not compute scaled dot products, as these have no evidence.
    """
    problems: list[LayerProblem] = []

    def note(name: str, layer: MultiHeadAttention, args: tuple, options: dict) -> None:
        given = inspect.signature(layer.forward).bind(*args, **options).arguments
        states = given["states"]
        memory = states if given["memory"] is None else given["memory"]  # None: they attend to themselves
        mask, log_prior = given.get("mask"), given.get("log_prior")
        query = layer.query(states)[0]  # (N, W)
        key_matrix, _ = layer.key_value.weight.chunk(2)  # (W, W)
        z = evidence(query, key_matrix, layer.heads)
        allowed = dense_mask(mask, z.new_empty(()).expand(1, 1, states.shape[1], memory.shape[1]))
        templates = memory[0] / math.sqrt(states.shape[-1] / layer.heads)
        log_u, seen = (None if it is None else it[0] for it in (log_prior, allowed))
        problems.append(LayerProblem(label(name), z, templates, log_u, seen))

    with ExitStack() as hooks:
        for name, layer in attention_layers(model).items():
            if type(layer.scorer) is not ScaledDot:
                raise UserError(f"{name}: scorer {type(layer.scorer).__name__}: this figure needs scaled_dot")
            if layer.maps != layer.heads:
                raise UserError(f"{name}: differential attention: this figure needs one map per head")
            hook = layer.register_forward_pre_hook(
                lambda layer, args, options, name=name: note(name, layer, args, options), with_kwargs=True
            )
            hooks.callback(hook.remove)
        read()
    return problems


def evidence(query: Tensor, key_matrix: Tensor, heads: int) -> Tensor:
    """z = K'Q y for each head: queries Q y (N, H D) and the key matrices of all heads (H D, W) -> (H, N, W)."""
    return query.unflatten(-1, (heads, -1)).transpose(0, 1) @ key_matrix.unflatten(0, (heads, -1))


# ------------------------------------------------------------------------------------------------- T5 of transformers


@torch.no_grad()
def problems_of_t5(model: Any, ids: Tensor) -> list[LayerProblem]:
    """The problems of the three kinds of attention of a `transformers.T5Model`, in float64, over one text.

    ids: int (1, N). The encoder reads them, and so does the decoder, shifted by one token to the right. T5 has no
    factor 1 / sqrt(d') of its own; as in the paper, the templates have it nevertheless. The position bias of a stack
    gives u in all its self-attention layers; u is uniform in cross-attention.
    """
    seen: dict[str, Tensor] = {}  # the states that queries and keys are computed from
    layers = {name: layer for name, layer in model.named_modules() if type(layer).__name__ == "T5Attention"}
    with ExitStack() as hooks:
        for name, layer in layers.items():
            for part in ("q", "k"):
                hook = getattr(layer, part).register_forward_pre_hook(
                    lambda _, args, key=f"{name}.{part}": seen.update({key: args[0][0]})
                )
                hooks.callback(hook.remove)
        start = torch.full_like(ids[:, :1], model.config.pad_token_id)  # T5 begins every output with padding
        model(input_ids=ids, decoder_input_ids=torch.cat([start, ids[:, :-1]], 1), use_cache=False)
    problems = []
    for name, layer in layers.items():
        stack, _, number, *_ = name.split(".")  # encoder.block.0.layer.0.SelfAttention
        states, memory = seen[f"{name}.q"], seen[f"{name}.k"]
        z = evidence(layer.q(states), layer.k.weight, layer.n_heads)
        templates = memory / math.sqrt(layer.key_value_proj_dim)
        if name.endswith("EncDecAttention"):
            problems.append(LayerProblem(f"decoder/{number}/cross", z, templates))
            continue
        is_decoder = stack == "decoder"
        log_u = position_bias(getattr(model, stack), len(ids[0]), bidirectional=not is_decoder)
        mask = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril() if is_decoder else None
        problems.append(LayerProblem(f"{stack}/{number}", z, templates, log_u, mask))
    return problems


def position_bias(stack: Any, length: int, bidirectional: bool) -> Tensor:
    """The position bias of a T5 stack, (H, N, N)."""
    table = stack.block[0].layer[0].SelfAttention.relative_attention_bias.weight  # (buckets, H)
    config = stack.config
    prior = T5(table.shape[1], bidirectional, len(table), config.relative_attention_max_distance).to(table.dtype)
    prior.bias.weight.copy_(table)
    return prior(length, length, 0, table, None)[0]
