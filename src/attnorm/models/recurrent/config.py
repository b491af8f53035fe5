"""The configuration of recurrent decoders and of models with one."""

from dataclasses import dataclass

from attnorm.models.config import Positions
from attnorm.schema import Count, Share


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """The configuration of an LSTM decoder. Probabilities are in [0, 1).

    d_model:        width of the states, a multiple of `n_heads`.
    n_heads:        heads of the attention to the templates.
    decoder_layers: layers of the LSTM.
    max_target:     maximum number of target tokens, including one special token.
    dropout:        dropout probability of the embeddings, between the layers of an LSTM, and of the output states.
    attention_dropout: dropout probability of the attention weights.
    tie_embeddings: use the token embedding as the output matrix.
    """

    d_model: Count
    n_heads: Count = 1
    decoder_layers: Count = 1
    max_target: Positions
    dropout: Share = 0.1
    attention_dropout: Share = 0.0
    tie_embeddings: bool = True

    def __post_init__(self) -> None:
        if self.d_model % self.n_heads:
            raise ValueError(f"n_heads={self.n_heads!r}: must divide d_model={self.d_model}")
