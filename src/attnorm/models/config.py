"""The shape of a Transformer: the options of conf/model/*.yaml."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from attnorm.schema import Count, Positive, Share, WholeNumber

Positions = Annotated[int, Field(ge=2)]


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """The shape of an encoder. Sizes are counts; probabilities are in [0, 1).

    d_model:   width of the states, a multiple of `n_heads`.
    ffn_dim:   width inside the feed-forward network.
    norm_first: normalize before each sublayer (pre-norm) instead of after it (post-norm).
    embedding_norm: a LayerNorm after the embeddings, as in BERT. norm_eps: of every LayerNorm.
    positions: "learned" or "sinusoidal"; max_source: how many positions there are.
    type_vocab_size: token types (first and second text of a pair) with an embedding each; 0 for none.
    tie_embeddings: the output matrix is the token embedding.
    """

    d_model: Count
    n_heads: Count
    ffn_dim: Count
    encoder_layers: Count
    max_source: Positions
    positions: Literal["learned", "sinusoidal"] = "learned"
    norm_first: bool = True
    embedding_norm: bool = False
    norm_eps: Positive = 1e-5
    type_vocab_size: WholeNumber = 0
    activation: Literal["gelu", "relu"] = "gelu"
    dropout: Share = 0.1
    attention_dropout: Share = 0.0
    tie_embeddings: bool = True


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(EncoderConfig):
    """The shape of an encoder-decoder: that of its encoder, `decoder_layers` and the decoder's positions."""

    decoder_layers: Count = 0
    max_target: Positions = 0
