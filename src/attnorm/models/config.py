"""The shape of a Transformer: what conf/model/*.yaml sets."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """Sizes are counts; probabilities are in [0, 1).

    width:     of the states, a multiple of `heads`.
    inner:     width inside the feed-forward network.
    norm:      "pre" or "post"; embedding_norm: a LayerNorm after the embeddings, as BERT has; norm_eps: of every norm.
    positions: "learned" or "sinusoidal"; max_source, max_target: positions of encoder and decoder.
    types:     token types (first and second text of a pair) with an embedding each; 0 for none.
    tied:      the output matrix is the token embedding.
    decoder_layers, max_target: 0 in a model without a decoder.
    """

    width: int
    heads: int
    inner: int
    encoder_layers: int
    max_source: int
    decoder_layers: int = 0
    max_target: int = 0
    positions: str = "learned"
    norm: str = "pre"
    embedding_norm: bool = False
    norm_eps: float = 1e-5
    types: int = 0
    activation: str = "gelu"
    dropout: float = 0.1
    attention_dropout: float = 0.0
    tied: bool = True
