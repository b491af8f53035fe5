"""A normalizer with a learned temperature."""

import torch
from torch import Tensor, nn

from attnorm.attention import Normalizer
from attnorm.attention.normalizers.base import add_log_prior, masked_scores, softmax_over_keys


class Tempered(Normalizer):
    proportional_to_prior = True

    def __init__(self, start: float = 1.0):
        super().__init__()
        self.log_temperature = nn.Parameter(torch.tensor([start]).log())

    def learned_scalars(self) -> dict[str, Tensor]:
        return {"temperatures": self.log_temperature.exp()}

    def forward(self, scores, mask=None, *, log_prior=None, keys=None, scale=None):
        s = masked_scores(scores / self.log_temperature.exp(), mask)
        return softmax_over_keys(add_log_prior(s, log_prior)).to(scores.dtype)
