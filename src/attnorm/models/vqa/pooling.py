"""Pools many states into one vector: their average, weighted by a plain softmax.

These are attentions with a single query, and they are not attention sites. With a single query, a column step would
divide every key by itself, so doubly-normalized weights would be uniform for any scores.
"""

import torch
from torch import Tensor, nn

from attnorm.attention.normalizers.base import softmax_over_keys, upcast


class AttentionPooling(nn.Module):
    """w = softmax over the real i of u' relu(W x_i + b). The output is sum_i w_i x_i."""

    def __init__(self, width: int):
        super().__init__()
        self.inner, self.score = nn.Linear(width, width), nn.Linear(width, 1, bias=False)  # softmax would cancel a bias

    def forward(self, states: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """states (B, N, W), real bool (B, N) -> the vector (B, W) and its weights (B, N), 0 if no state is real."""
        return average(states, self.score(self.inner(states).relu()).squeeze(-1), real)


class TopDownAttention(nn.Module):
    """w = softmax over the present boxes i of u' (relu(A x_i + a) * relu(B q + b)). The output is sum_i w_i x_i.

    "Pythia v0.1", Sec. 2.1, after the attention of "Bottom-Up and Top-Down Attention". The only query is the question.
    """

    def __init__(self, width: int, hidden: int, dropout: float):
        super().__init__()
        self.box, self.question = nn.Linear(width, hidden), nn.Linear(width, hidden)
        self.score, self.dropout = nn.Linear(hidden, 1, bias=False), nn.Dropout(dropout)

    def forward(self, question: Tensor, boxes: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
        """question (B, W), boxes (B, M, W), present bool (B, M) -> the vector (B, W) and its weights (B, M)."""
        query = self.dropout(self.score.weight * self.question(question).relu())  # (B, hidden), includes u
        logits = self.box(boxes).relu() @ query.to(boxes.dtype).unsqueeze(-1)  # avoids the (B, M, hidden) product
        return average(boxes, logits.squeeze(-1), present)


def average(states: Tensor, logits: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """states (B, N, W), logits (B, N), real bool (B, N) -> (B, W) and the weights (B, N) in float32 or wider."""
    weights = softmax_over_keys(upcast(logits).masked_fill(~real, -torch.inf))
    return (weights.to(states.dtype).unsqueeze(1) @ states).squeeze(1), weights
