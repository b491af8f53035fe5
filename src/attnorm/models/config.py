"""The configuration of a Transformer: the options of conf/model/*.yaml."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from attnorm.schema import Count, NonNegative, Positive, Share, WholeNumber

Positions = Annotated[int, Field(ge=2)]
Skip = bool | NonNegative  # a residual connection: present, absent, or scaled


@dataclass(frozen=True, kw_only=True)
class LayerConfig:
    """What the layers of every Transformer have in common. Probabilities are in [0, 1).

    d_model:    width of the states, a multiple of `n_heads`.
    ffn_dim:    width of the hidden layer of the feed-forward network.
    norm_first: normalize before each sublayer (pre-norm) instead of after it (post-norm).
    residual:   the skip connection around each sublayer: true keeps it, false removes it, and a number scales it.
    embedding_norm: apply a LayerNorm after the embeddings, as in BERT. norm_eps: eps of every LayerNorm.
    activation: "gelu", "gelu_new" (its tanh approximation, as in GPT-2), "relu", or "swiglu" (`GPTConfig` only).
    tie_embeddings: use the token embedding as the output matrix.
    """

    d_model: Count
    n_heads: Count
    ffn_dim: Count
    norm_first: bool = True
    residual: Skip = True
    embedding_norm: bool = False
    norm_eps: Positive = 1e-5
    activation: Literal["gelu", "gelu_new", "relu", "swiglu"] = "gelu"
    dropout: Share = 0.1
    attention_dropout: Share = 0.0
    tie_embeddings: bool = True


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(LayerConfig):
    """The configuration of an encoder: its layers, and the following.

    positions:  "learned" or "sinusoidal". max_source: the number of positions.
    type_vocab_size: number of token types (first and second text of a pair), each with an embedding; 0 for none.
    """

    encoder_layers: Count
    max_source: Positions
    positions: Literal["learned", "sinusoidal"] = "learned"
    type_vocab_size: WholeNumber = 0
    activation: Literal["gelu", "gelu_new", "relu"] = "gelu"


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(EncoderConfig):
    """The configuration of an encoder-decoder: its encoder, plus `decoder_layers` and `max_target` positions."""

    decoder_layers: Count = 0
    max_target: Positions = 0


@dataclass(frozen=True, kw_only=True)
class GPTConfig(LayerConfig):
    """The configuration of a decoder-only language model: its layers, and the following.

    max_target: the length of the texts that the model is trained on. Learned positions are not defined beyond it.
    positions:  "rotary" (queries and keys are rotated, `attnorm.attention.rotary`), "alibi" (the prior of this name),
                "learned" (a table of `max_target` positions, as in GPT-2) or "none".
    rotary_base: the base of the wavelengths of rotary positions.
    activation: with "swiglu", the feed-forward network has a third matrix of the size of the other two.
    """

    decoder_layers: Count
    max_target: Positions
    positions: Literal["rotary", "alibi", "learned", "none"] = "rotary"
    rotary_base: Positive = 10000.0
    type_vocab_size: ClassVar[int] = 0
