"""Banks: templates outside the input, to which a layer can give weight.

Source: "Attention as Inference via Fenchel Duality", Sec. 9. Optimal transport moves the mass of the input's templates
to all templates, so that a word that is similar to one in the input gets weight, and a gradient, although it does not
occur there. A bank returns its templates as states (A, W). The layer projects them to keys and values like the states
of the input (see `MultiHeadAttention`), and each layer has a bank of its own.
"""

from typing import Any

from torch import Tensor, nn

from attnorm.attention.option_checks import whole


class Templates(nn.Module):
    """`size` trained templates: rows of a table, followed by a LayerNorm."""

    def __init__(self, width: int, size: int = 64):
        super().__init__()
        self.table = nn.Embedding(whole("size", size, 1), width)
        self.norm = nn.LayerNorm(width)

    def forward(self) -> Tensor:
        """The templates (A, W)."""
        return self.norm(self.table.weight)


class Vocabulary(nn.Module):
    """The token embeddings of the model, without positions, followed by a LayerNorm.

    The embeddings are shared with the model, which provides them by `share_vocabulary`.
    """

    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.tokens: tuple[Any, ...] = ()  # in a tuple, because the model owns the module

    def forward(self) -> Tensor:
        """The templates (V, W). Raises ValueError if the model has not provided its token embeddings."""
        if not self.tokens:
            raise ValueError("bank 'vocabulary': the model has no token embeddings at this site; use templates")
        return self.norm(self.tokens[0].weight)


def share_vocabulary(layers: nn.Module, tokens: Any) -> None:
    """Gives the token embeddings of a model, a module with the table `weight` (V, W), to the banks of these layers."""
    for module in layers.modules():
        if isinstance(module, Vocabulary):
            module.tokens = (tokens,)
