"""Initial parameters that depend on the seed and on each parameter's name, and on nothing else."""

import hashlib

import torch
from torch import nn


@torch.no_grad()
def initialize(model: nn.Module, seed: int) -> None:
    """Xavier-uniform matrices, of a GRU one a gate, zero biases, normal embeddings of std width ** -0.5; norms stay at
    one and zero.

    Each module draws from a generator of its own, seeded by `seed` and its name. So two variants of a model start
    bit-equal in every parameter that they share, whatever else either of them has.
    """
    for name, module in model.named_modules():
        generator = torch.Generator().manual_seed(named_seed(seed, name))
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight, generator=generator)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=module.embedding_dim**-0.5, generator=generator)
        elif isinstance(module, nn.GRU):
            for parameter_name, parameter in module.named_parameters():
                if parameter_name.startswith("bias"):
                    nn.init.zeros_(parameter)
                else:
                    for gate in parameter.chunk(3):  # reset, update, new
                        nn.init.xavier_uniform_(gate, generator=generator)


def named_seed(seed: int, name: str) -> int:
    """A 63-bit seed from a seed and a name, the same on every machine."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "big") >> 1
