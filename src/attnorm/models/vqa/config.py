"""The shape of a model that answers questions about images: what conf/model/vqa_*.yaml and mcan_*.yaml set."""

from dataclasses import dataclass

from attnorm.models.config import Shape

FUSIONS = ("none", "single", "concat", "attention")
QUESTIONS = ("gru", "transformer")


@dataclass(frozen=True)
class VisualShape:
    """Sizes are counts; dropout is in [0, 1). ValueError for a fusion, a question or heads that cannot be.

    fusion:       what becomes of the views: "none" (the question alone), "single" (the first view, the primary one),
                  "concat" (the boxes of all views), "attention" (the primary's boxes attend to those of the others).
    width:        of the states of boxes and words, a multiple of `heads` and of `fusion_heads`.
    word_width:   of the word embeddings.
    hidden:       width where question and image are joined.
    max_question: tokens of a question.
    question:     how words become states: "gru" (in MCAN before the self-attention) or "transformer".
    layers, heads, inner, norm: of the transformers (pythia: of question="transformer"), as in `Shape`; MCAN has as
                  many layers for the boxes as for the question.
    fusion_heads: of the attention that fuses. geometry: where a box is counts, beside its features.
    """

    fusion: str
    width: int
    word_width: int
    hidden: int
    max_question: int
    question: str = "gru"
    layers: int = 2
    heads: int = 4
    inner: int = 512
    norm: str = "post"
    fusion_heads: int = 1
    geometry: bool = True
    dropout: float = 0.1

    def __post_init__(self):
        for option, allowed in (("fusion", FUSIONS), ("question", QUESTIONS)):
            value = getattr(self, option)
            if value not in allowed:
                raise ValueError(f"{option}={value!r}: allowed are {', '.join(allowed)}")
        for option in ("heads", "fusion_heads"):
            value = getattr(self, option)
            if self.width % value:
                raise ValueError(f"{option}={value!r}: has to divide width={self.width}")

    def transformer(self) -> Shape:
        """The shape of the transformer layers."""
        return Shape(
            width=self.width,
            heads=self.heads,
            inner=self.inner,
            encoder_layers=self.layers,
            max_source=self.max_question,
            norm=self.norm,
            activation="relu",
            dropout=self.dropout,
        )
