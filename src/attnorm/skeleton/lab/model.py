"""A model in plain torch with one attention site, and options that are the arguments of its constructor."""

import torch
from torch import Tensor, nn

from attnorm.attention.masking import Mask
from attnorm.attention.site import Site


class Mixer(nn.Module):
    interface = "digits"
    sites = {"mixer": False}  # noqa: RUF012
    self_sites = ("mixer",)

    def __init__(
        self,
        attention: dict,
        vocab_size: int,
        pad_id: int,
        seed: int,
        size: int = 16,
        heads: int = 2,
        depth: int = 2,
        longest: int = 16,
    ):
        super().__init__()
        torch.manual_seed(seed)
        self.pad_id, self.embedding = pad_id, nn.Embedding(vocab_size, size)
        self.positions = nn.Embedding(longest, size)
        self.layers = nn.ModuleList(Site(attention, "mixer").layer(size, heads) for _ in range(depth))
        self.dropout, self.output = nn.Dropout(0.1), nn.Linear(size, 10)

    def forward(self, ids: Tensor) -> Tensor:
        real = ids != self.pad_id
        states = self.embedding(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.layers:
            states = states + self.dropout(layer(states, states, Mask(queries=real, keys=real)))
        return self.output(states.masked_fill(~real[..., None], 0).sum(1))
