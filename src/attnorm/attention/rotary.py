"""Rotary positions: queries and keys are rotated by angles that are proportional to their positions.

Source: "RoFormer: Enhanced Transformer with Rotary Position Embedding" (Su et al., 2021), Eq. 15.
"""

import torch
from torch import Tensor, nn

Rotation = tuple[Tensor, Tensor]  # cos and sin of the angles, float32, broadcastable to (B, H, N, D / 2)


class Rotary(nn.Module):
    """The angles of positions: p base ** (-2 c / D) for position p and channel pair c = 0, ..., D / 2 - 1.

    The score of a query and a key then depends on their positions only through the difference of these. There are no
    parameters and no largest position.

    width: the width D of a head. Raises ValueError if it is odd. base: sets the longest wavelength, about 2 pi base.
    """

    def __init__(self, width: int, base: float = 10000.0):
        super().__init__()
        if width % 2:
            raise ValueError(f"rotary positions need heads of even width, got {width}")
        self.width, self.base = width, base

    def forward(self, positions: Tensor) -> Rotation:
        """positions, int (B, N) or (N,) -> cos and sin, float32, (B or 1, 1, N, D / 2)."""
        channels = torch.arange(0, self.width, 2, device=positions.device)
        angles = positions.reshape(-1, 1, positions.shape[-1], 1) * self.base ** -(channels / self.width)
        return angles.cos(), angles.sin()


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotates channel c of x (B, H, N, D) together with channel c + D / 2, and returns it in the dtype of x.

    The rotation is computed in the wider of the dtypes of x and of the angles, regardless of autocast.
    """
    cos, sin = rotation
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1).to(x.dtype)
