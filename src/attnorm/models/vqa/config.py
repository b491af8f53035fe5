"""The configuration of models that answer questions about images, with the options of conf/model/vqa_*.yaml."""

from dataclasses import dataclass
from typing import Literal, get_args

from attnorm.models.config import EncoderConfig, Positions, Skip
from attnorm.schema import Count, Share

Fusion = Literal["none", "single", "concat", "attention"]
FusionViews = Literal["joint", "per_view"]
Question = Literal["gru", "transformer"]


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
    residual: Skip = True
    fusion_heads: Count = 1
    fusion_views: FusionViews = "joint"
    geometry: bool = True
    dropout: Share = 0.1

    def __post_init__(self) -> None:
        for option, choices in (("fusion", Fusion), ("fusion_views", FusionViews), ("question", Question)):
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
