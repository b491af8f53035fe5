"""The shape of a Transformer: what conf/model/*.yaml sets."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """Sizes are counts; probabilities are in [0, 1).

    width:     of the states, a multiple of `heads`.
    inner:     width inside the feed-forward network.
    norm:      "pre" or "post"; embedding_norm: a LayerNorm after the embeddings, as BERT has.
    positions: "learned" or "sinusoidal"; max_source, max_target: positions of encoder and decoder.
    tied:      the output matrix is the token embedding.
    """

    width: int
    heads: int
    inner: int
    encoder_layers: int
    decoder_layers: int
    max_source: int
    max_target: int
    positions: str = "learned"
    norm: str = "pre"
    embedding_norm: bool = False
    activation: str = "gelu"
    dropout: float = 0.1
    attention_dropout: float = 0.0
    tied: bool = True
