"""Muon for the matrices of hidden layers, and AdamW for all other parameters."""

from collections.abc import Callable
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from attnorm.attention.multihead import attention_layers
from attnorm.schema import NonNegative, Share


class MuonAdamW(Optimizer):
    """torch.optim.Muon for the parameter groups with `use_muon`, and torch.optim.AdamW for the others.

    Muon (Jordan et al., 2024) moves a matrix by its momentum, whose singular values it brings near 1. This is scaled by
    0.2 sqrt(max(rows, columns)), so that its root mean square is 0.2, which is usual for AdamW ("Muon is Scalable for
    LLM Training", arXiv:2502.16982, Eq. 4), and one learning rate serves both.

    momentum, nesterov, ns_steps: of Muon; ns_steps is the number of Newton-Schulz iterations.
    betas, fused:                 of AdamW.
    eps:                          of both: added to the denominator, and the smallest norm that a matrix is divided by.
    """

    separates_hidden = True  # in a run, the matrices of hidden layers then have a group of their own, with `use_muon`

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        weight_decay: float = 0.01,
        momentum: Share = 0.95,
        nesterov: bool = True,
        ns_steps: Annotated[int, Field(ge=1, lt=100)] = 5,
        betas: tuple[Share, Share] = (0.9, 0.98),
        eps: NonNegative = 1e-8,
        fused: bool | None = None,
    ):
        of_muon = {"momentum": momentum, "nesterov": nesterov, "ns_steps": ns_steps, "adjust_lr_fn": "match_rms_adamw"}
        of_adamw = {"betas": tuple(betas), "fused": fused}
        both = {"lr": lr, "weight_decay": weight_decay, "eps": eps}
        super().__init__(params, {"use_muon": False, **both, **of_muon, **of_adamw})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        self._parts: list[Optimizer] = []

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._parts = []

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Makes an update. closure: computes the gradients and returns the loss, which is returned."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        if not self._parts:  # they share the groups and the state of this optimizer, which loading a state replaces
            for cls, uses_muon in ((torch.optim.Muon, True), (torch.optim.AdamW, False)):
                if groups := [group for group in self.param_groups if group["use_muon"] == uses_muon]:
                    self._parts.append(cls(groups))
                    self._parts[-1].state = self.state
        for part in self._parts:
            part.step()
        return loss


def hidden_matrices(model: nn.Module) -> set[int]:
    """The ids of the parameters of a model that are matrices of hidden layers: the weights of its Linear modules.

    Left out are the modules that the model itself has as attributes, such as a classifier, those that are called
    `output` outside attention layers, weights that an embedding shares, and weights with one row or column.
    """
    layers, embeddings, hidden = attention_layers(model).keys(), set[int](), set[int]()
    for name, module in model.named_modules():
        parent, _, own = name.rpartition(".")
        if isinstance(module, nn.Embedding):
            embeddings.add(id(module.weight))
        elif isinstance(module, nn.Linear) and parent and (own != "output" or parent in layers):
            hidden |= {id(module.weight)} if min(module.weight.shape) > 1 else set()
    return hidden - embeddings
