"""What `attention_speed.py` measures: the attention of every normalizer, of other packages, and dense forms."""

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from speed import Attend, Inputs, make_inputs, peak, seconds_per_step, step

from attnorm.attention import build_normalizer
from attnorm.attention.registry import NORMALIZERS, build

HEADS = 12
OPTIONS = {"fusedmax": {"lam": 0.1}, "fenchel": {"order": 2}, "constrained_softmax": {"upper": 0.1}}
OPTIONS["constrained_sparsemax"] = OPTIONS["constrained_softmax"]
EXTRA = {"fenchel exact": ("fenchel", {"order": "exact"})}  # rows of the table beside one for each name
PEERS = {"x-transformers inverted": "dnas", "entmax.sparsemax": "sparsemax", "entmax.entmax15": "entmax"}


def normalizers(args: argparse.Namespace) -> dict[str, Attend]:
    """`attend` of every normalizer. One that needs hidden states gets constant ones."""
    settings = {name: (name, OPTIONS.get(name, {})) for name in NORMALIZERS} | EXTRA
    facts = {"heads": HEADS, "width": args.width, "state_width": HEADS * args.width}
    modules = {
        row: build("normalizer", name, options, facts).to(args.device) for row, (name, options) in settings.items()
    }
    return {row: attend_of(m if m.differentiable else m.eval(), facts["state_width"]) for row, m in modules.items()}


def attend_of(module: Any, state_width: int) -> Attend:
    """`attend` of a normalizer. If it needs features of hidden states, they are computed in every call."""
    if module.needs_states == "none":
        return module.attend

    def attend(q, k, v, *rest, **given):
        positions = (q if module.needs_states == "queries" else k).shape[-2]
        states = q.new_ones(()).expand(len(q), positions, state_width)
        return module.attend(q, k, v, *rest, features=module.features_of(states), **given)

    return attend


def peers() -> dict[str, Attend]:
    """The same attention in other packages."""
    import entmax
    from x_transformers.attend import Attend as XAttend

    def mapped(weights_of: Callable, q, k, v):
        return weights_of(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, dim=-1) @ v

    inverted = XAttend(heads=HEADS, inverted_attention=True)
    found = (lambda q, k, v: inverted(q, k, v)[0], partial(mapped, entmax.sparsemax), partial(mapped, entmax.entmax15))
    return dict(zip(PEERS, found, strict=True))


def dense(name: str, device: str) -> Attend:
    """Attention that computes the (N, M) weights and multiplies them by the values."""
    module = build_normalizer(name).to(device)
    return lambda q, k, v: module.weights_of(q, k, scale=q.shape[-1] ** -0.5).to(v.dtype) @ v


def inputs_of(args: argparse.Namespace, length: int, heads: int = HEADS) -> Inputs:
    """q, k, v that require gradients, and the gradient of the output."""
    return make_inputs((args.batch, heads, length, args.width), getattr(torch, args.dtype), args.device)


def peak_of(attend: Attend, args: argparse.Namespace, length: int, heads: int = HEADS) -> float:
    """The peak memory of one step in MB, with inputs and gradients."""
    return peak(lambda: step(attend, inputs_of(args, length, heads)), args.device)


def time_together(
    contestants: dict[str, Attend], args: argparse.Namespace, length: int, heads: int = HEADS
) -> dict[str, list[float]]:
    """Seconds of each contestant in each round."""
    rounds = args.rounds or max(3, min(50, 12_000 // length))
    return seconds_per_step(contestants, inputs_of(args, length, heads), rounds)


def check_peers(contestants: dict[str, Attend], args: argparse.Namespace) -> None:
    """Asserts that the peers compute the same as the normalizers that they are compared with."""
    q, k, v, _ = inputs_of(args, 64)
    for peer, name in PEERS.items():
        ours, theirs = contestants[name](q, k, v).float(), contestants[peer](q, k, v).float()
        assert torch.allclose(ours, theirs, atol=1e-4 if args.dtype == "float32" else 3e-2), f"{peer} is not {name}"
