"""Banks: templates outside the input, to which a layer can give weight.

Source: "Attention as Inference via Fenchel Duality", Sec. 9. Optimal transport moves the mass of the input's templates
to all templates, so that a word that is similar to one in the input gets weight, and a gradient, although it does not
occur there. A bank returns its templates as states (A, W). The layer projects them to keys and values like the states
of the input (see `MultiHeadAttention`), and each layer has a bank of its own.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from attnorm.attention.build import build_part, normalizers_of, problem_of_part, short_name
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


def bank_problems(attention: Mapping[str, Any], at_sites: Mapping[str, str | list[str]]) -> Iterator[str]:
    """Banks of attention tables that cannot be built, or that have no effect with the normalizers of their site.

    at_sites: the normalizer of each site, or its list with one per layer.
    """
    banks = {site: attention["bank"][site] for site in at_sites if attention["bank"].get(site) is not None}
    for site, name in banks.items():
        key, normalizers = f"attention.bank.{site}={name}", dict.fromkeys(normalizers_of(at_sites[site]))
        try:
            build_part("bank", name, dict(attention), width=1)
        except ValueError as error:
            yield problem_of_part(key, name, attention, error)
        try:
            built = [build_part("normalizer", it, dict(attention), heads=1, width=1) for it in normalizers]
        except ValueError:
            continue  # reported with the normalizer
        if not any(it.takes_bank for it in built):
            names = " and ".join(map(short_name, normalizers))
            yield f"{key}: has no effect, because {names} gives no weight to templates outside the input; use ot"
