"""The configuration of a Transformer: the options of conf/model/*.yaml."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from attnorm.schema import Count, NonNegative, Positive, Share, WholeNumber

Positions = Annotated[int, Field(ge=2)]
Skip = bool | NonNegative  # a residual connection: present, absent, or scaled


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """The configuration of an encoder. Probabilities are in [0, 1).

    d_model:    width of the states, a multiple of `n_heads`.
    ffn_dim:    width of the hidden layer of the feed-forward network.
    norm_first: normalize before each sublayer (pre-norm) instead of after it (post-norm).
    residual:   the skip connection around each sublayer: true keeps it, false removes it, and a number scales it.
    embedding_norm: apply a LayerNorm after the embeddings, as in BERT. norm_eps: eps of every LayerNorm.
    positions:  "learned" or "sinusoidal". max_source: the number of positions.
    type_vocab_size: number of token types (first and second text of a pair), each with an embedding; 0 for none.
    tie_embeddings: use the token embedding as the output matrix.
    """

    d_model: Count
    n_heads: Count
    ffn_dim: Count
    encoder_layers: Count
    max_source: Positions
    positions: Literal["learned", "sinusoidal"] = "learned"
    norm_first: bool = True
    residual: Skip = True
    embedding_norm: bool = False
    norm_eps: Positive = 1e-5
    type_vocab_size: WholeNumber = 0
    activation: Literal["gelu", "relu"] = "gelu"
    dropout: Share = 0.1
    attention_dropout: Share = 0.0
    tie_embeddings: bool = True


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(EncoderConfig):
    """The configuration of an encoder-decoder: its encoder, plus `decoder_layers` and `max_target` positions."""

    decoder_layers: Count = 0
    max_target: Positions = 0
