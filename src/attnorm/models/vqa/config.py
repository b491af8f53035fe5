"""The shape of a model that answers questions about images: the options of conf/model/vqa_*.yaml and mcan_*.yaml."""

from dataclasses import dataclass
from typing import Literal, get_args

from attnorm.models.config import EncoderConfig, Positions
from attnorm.schema import Count, Share

Fusion = Literal["none", "single", "concat", "attention"]
Question = Literal["gru", "transformer"]


@dataclass(frozen=True)
class VqaModelConfig:
    """Sizes are counts; dropout is in [0, 1). ValueError for a fusion, a question or heads that cannot be.

    fusion:       what becomes of the views: "none" (the question alone), "single" (the first view, the primary one),
                  "concat" (the boxes of all views), "attention" (the primary's boxes attend to those of the others).
    d_model:      width of the states of boxes and words, a multiple of `n_heads` and of `fusion_heads`.
    word_width:   of the word embeddings.
    hidden:       width where question and image are joined.
    max_question: tokens of a question.
    question:     how words become states: "gru" (in MCAN before the self-attention) or "transformer".
    layers, n_heads, ffn_dim, norm_first: of the transformers (pythia: of question="transformer"), as in
                  `TransformerConfig`; MCAN has as
                  many layers for the boxes as for the question.
    fusion_heads: of the attention that fuses. geometry: where a box is counts, beside its features.
    """

    fusion: Fusion
    d_model: Count
    word_width: Count
    hidden: Count
    max_question: Positions
    question: Question = "gru"
    layers: Count = 2
    n_heads: Count = 4
    ffn_dim: Count = 512
    norm_first: bool = False
    fusion_heads: Count = 1
    geometry: bool = True
    dropout: Share = 0.1

    def __post_init__(self) -> None:
        for option, allowed in (("fusion", get_args(Fusion)), ("question", get_args(Question))):
            value = getattr(self, option)
            if value not in allowed:
                raise ValueError(f"{option}={value!r}: allowed are {', '.join(allowed)}")
        for option in ("n_heads", "fusion_heads"):
            value = getattr(self, option)
            if self.d_model % value:
                raise ValueError(f"{option}={value!r}: has to divide d_model={self.d_model}")

    def transformer(self) -> EncoderConfig:
        """The shape of the transformer layers."""
        return EncoderConfig(
            d_model=self.d_model,
            n_heads=self.n_heads,
            ffn_dim=self.ffn_dim,
            encoder_layers=self.layers,
            max_source=self.max_question,
            norm_first=self.norm_first,
            activation="relu",
            dropout=self.dropout,
        )
