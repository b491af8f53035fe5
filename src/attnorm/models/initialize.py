"""Initial parameters that depend only on the seed and on the name of each parameter."""

import hashlib

import torch
from torch import nn

from attnorm.attention.pooling import LearnedQueries


@torch.no_grad()
def initialize(model: nn.Module, seed: int) -> None:
    """Initializes a model.

    Matrices are Xavier-uniform (for a GRU or LSTM, per gate), biases are zero, and embeddings are normal with std
    width ** -0.5. Learned queries are standard normal. Norms keep their ones and zeros. The forget gates of an LSTM
    have the bias 1, so that it remembers at first ("Learning to forget", Gers et al., 2000).

    Each module uses its own generator, seeded by `seed` and the name of the module. So two variants of a model have
    bit-equal initial values in all shared parameters, regardless of their other parameters.
    """
    for name, module in model.named_modules():
        generator = torch.Generator().manual_seed(named_seed(seed, name))
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight, generator=generator)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=module.embedding_dim**-0.5, generator=generator)
        elif isinstance(module, LearnedQueries):
            nn.init.normal_(module.queries, generator=generator)
        elif isinstance(module, (nn.GRU, nn.LSTM)):
            for parameter_name, parameter in module.named_parameters():
                if parameter_name.startswith("bias"):
                    nn.init.zeros_(parameter)
                    if isinstance(module, nn.LSTM) and parameter_name.startswith("bias_ih"):
                        nn.init.ones_(parameter.split(module.hidden_size)[1])  # gates: input, forget, cell, output
                else:
                    for gate in parameter.split(module.hidden_size):
                        nn.init.xavier_uniform_(gate, generator=generator)


def named_seed(seed: int, name: str) -> int:
    """A 63-bit seed derived from a seed and a name. It is the same on every machine."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "big") >> 1
