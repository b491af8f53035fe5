"""The shape of a Transformer: the options of conf/model/*.yaml."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from attnorm.schema import Count, Positive, Share, WholeNumber

Positions = Annotated[int, Field(ge=2)]


@dataclass(frozen=True, kw_only=True)
class EncoderShape:
    """The shape of an encoder. Sizes are counts; probabilities are in [0, 1).

    width:     of the states, a multiple of `heads`.
    inner:     width inside the feed-forward network.
    norm:      "pre" or "post"; embedding_norm: a LayerNorm after the embeddings, as in BERT; norm_eps: of every norm.
    positions: "learned" or "sinusoidal"; max_source: how many positions there are.
    types:     token types (first and second text of a pair) with an embedding each; 0 for none.
    tied:      the output matrix is the token embedding.
    """

    width: Count
    heads: Count
    inner: Count
    encoder_layers: Count
    max_source: Positions
    positions: Literal["learned", "sinusoidal"] = "learned"
    norm: Literal["pre", "post"] = "pre"
    embedding_norm: bool = False
    norm_eps: Positive = 1e-5
    types: WholeNumber = 0
    activation: Literal["gelu", "relu"] = "gelu"
    dropout: Share = 0.1
    attention_dropout: Share = 0.0
    tied: bool = True


@dataclass(frozen=True, kw_only=True)
class Shape(EncoderShape):
    """The shape of an encoder-decoder: that of its encoder, `decoder_layers` and the decoder's positions."""

    decoder_layers: Count = 0
    max_target: Positions = 0
