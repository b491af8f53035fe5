"""How a query and a key give a score. The dot types hand `Normalizer.attend` their projected q and k and a scale."""

from torch import nn


class ScaledDot(nn.Module):
    """s_ij = q_i . k_j / sqrt(D)."""

    def scale(self, width: int) -> float:
        return width**-0.5


class Dot(nn.Module):
    """s_ij = q_i . k_j."""

    def scale(self, width: int) -> float:
        return 1.0
