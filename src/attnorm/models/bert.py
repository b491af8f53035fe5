"""Masked language modelling: an encoder with scores of the tokens at the masked positions ("BERT", Sec. 3.1)."""

from torch import Tensor, nn

from attnorm.attention.priors import needs_of
from attnorm.attention.transfer import index_by_mask, on_both
from attnorm.models.config import EncoderConfig
from attnorm.models.heads import EncoderModel
from attnorm.models.layers import ACTIVATIONS


class Head(nn.Module):
    """BERT's output head: Linear, activation, LayerNorm, then a score for each token of the vocabulary."""

    def __init__(self, shape: EncoderConfig, vocab_size: int):
        super().__init__()
        self.transform, self.activation = nn.Linear(shape.d_model, shape.d_model), ACTIVATIONS[shape.activation]()
        self.norm = nn.LayerNorm(shape.d_model, shape.norm_eps)
        self.output = nn.Linear(shape.d_model, vocab_size)

    def forward(self, states: Tensor) -> Tensor:
        """states (..., W) -> scores (..., V)."""
        return self.output(self.norm(self.activation(self.transform(states))))


class MaskedLM(EncoderModel):
    """An encoder with a head that predicts the token at each position.

    With `shape.tie_embeddings`, the output matrix is the token embedding, with a bias of its own.
    """

    provides = ("masked_positions",)  # facts for priors, see attnorm.attention.priors

    def build(self, shape: EncoderConfig, vocab_size: int, labels: int) -> None:
        self.head = Head(shape, vocab_size)

    def start(self, seed: int) -> None:
        super().start(seed)
        if self.shape.tie_embeddings:
            self.head.output.weight = self.encoder.embeddings.tokens.weight

    def forward(self, ids: Tensor, segments: Tensor | None = None, masked_positions: Tensor | None = None) -> Tensor:
        """Returns scores of the tokens. ids: int (B, N), padded. segments: as in `Encoder.forward`.

        masked_positions: bool (B, N), the positions whose scores are needed -> (K, V), row by row. The scores of the
                          other positions are not computed. None: all positions -> (B, N, V).
        """
        given = {"masked_positions": masked_positions}
        facts = {fact: given[fact] for fact in needs_of(getattr(self.encoder, "prior", None)) if fact in given}
        real = on_both(lambda ids: ids != self.pad_id, ids)
        states = self.encoder(ids, real, segments, **facts)
        return self.head(states if masked_positions is None else index_by_mask(states, masked_positions))
