"""The configurations of Transformers, LSTM decoders and models for visual questions: options of conf/model/*.yaml."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, get_args

from pydantic import Field

from attnorm.schema import Count, NonNegative, Positive, Share, WholeNumber

Positions = Annotated[int, Field(ge=2)]
FusionKind = Literal["none", "single", "concat", "attention"]
FusionViews = Literal["joint", "per_view"]
QuestionKind = Literal["gru", "transformer"]
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


@dataclass(frozen=True, kw_only=True)
class LSTMDecoderConfig:
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


@dataclass(frozen=True)
class VqaModelConfig:
    """Options of the models. Raises ValueError for an invalid fusion, fusion_views, question or number of heads.

    fusion:       how the views are combined: "none" (the question alone), "single" (only the first view, the primary
                  one), "concat" (the boxes of all views), "attention" (the primary's boxes attend to those of the other
                  views).
    d_model:      width of the states of boxes and words, a multiple of `n_heads` and of `fusion_heads`.
    word_width:   width of the word embeddings.
    hidden:       width of the layer in which question and image are joined.
    max_question: maximum number of tokens of a question.
    question:     how words become states: "gru" (in MCAN before the self-attention) or "transformer".
    layers, n_heads, ffn_dim, norm_first, residual: options of the transformers, as in `TransformerConfig`. In Pythia
                  they apply to question="transformer". MCAN has as many layers for the boxes as for the question.
    fusion_heads: number of heads of the fusion attention.
    fusion_views: "joint" for one attention over the boxes of all other views, "per_view" for one attention per view.
    geometry:     whether the position and size of a box are used in addition to its features.
    dropout:      in [0, 1).
    """

    fusion: FusionKind
    d_model: Count
    word_width: Count
    hidden: Count
    max_question: Positions
    question: QuestionKind = "gru"
    layers: Count = 2
    n_heads: Count = 4
    ffn_dim: Count = 512
    norm_first: bool = False
    residual: Skip = True
    fusion_heads: Count = 1
    fusion_views: FusionViews = "joint"
    geometry: bool = True
    dropout: Share = 0.1

    def __post_init__(self) -> None:
        for option, choices in (("fusion", FusionKind), ("fusion_views", FusionViews), ("question", QuestionKind)):
            value = getattr(self, option)
            if value not in get_args(choices):
                raise ValueError(f"{option}={value!r}: allowed: {', '.join(get_args(choices))}")
        for option in ("n_heads", "fusion_heads"):
            value = getattr(self, option)
            if self.d_model % value:
                raise ValueError(f"{option}={value!r}: must divide d_model={self.d_model}")

    def transformer(self) -> EncoderConfig:
        """The shape of the transformer layers."""
        return EncoderConfig(
            d_model=self.d_model,
            n_heads=self.n_heads,
            ffn_dim=self.ffn_dim,
            encoder_layers=self.layers,
            max_source=self.max_question,
            norm_first=self.norm_first,
            residual=self.residual,
            activation="relu",
            dropout=self.dropout,
        )
