"""Pythia: the question attends to the boxes once, then both are joined by a product."""

from torch import Tensor, nn

from attnorm.models.config import VqaModelConfig
from attnorm.models.encoder import Encoder
from attnorm.models.pooling import AttentionPooling, TopDownAttention
from attnorm.models.vqa.base import VqaModel
from attnorm.models.vqa.fusion import View


class Pythia(VqaModel):
    """scores = D relu(C (relu(A q) * relu(B v))), where q is the question and v is the average of the attended boxes.

    "Pythia v0.1", Sec. 2, after "Bottom-Up and Top-Down Attention": q pools the states of a GRU (or of a transformer
    encoder) and is normalized; v is the output of top-down attention over the boxes of `Fusion`. Without boxes, B v is
    omitted. If all boxes of an image are absent, v = 0. See `VqaModel` for the arguments.
    """

    sites = {"fusion": False, "encoder": False}  # noqa: RUF012
    self_sites = Encoder.self_sites

    def make_layers(self, shape: VqaModelConfig, attention: dict, answers: int) -> None:
        width, hidden = shape.d_model, shape.hidden
        self.encoder = Encoder(shape.transformer(), attention, self.words) if shape.question == "transformer" else None
        self.pool, self.norm, self.question = AttentionPooling(width), nn.LayerNorm(width), nn.Linear(width, hidden)
        if self.fusion is not None:
            self.top_down, self.image = TopDownAttention(width, hidden, shape.dropout), nn.Linear(width, hidden)
        self.hidden, self.classifier = nn.Linear(hidden, hidden), nn.Linear(hidden, answers)
        self.dropout = nn.Dropout(shape.dropout)

    @classmethod
    def sites_of(cls, settings: dict) -> dict[str, bool]:
        """The site "fusion" if the fusion is attention, and "encoder" if a transformer encodes the question."""
        used = {"fusion": settings.get("fusion") == "attention", "encoder": settings.get("question") == "transformer"}
        return {site: cls.sites[site] for site, yes in used.items() if yes}

    def answer(self, ids: Tensor, views: list[View]) -> tuple[Tensor, Tensor | None]:
        real = ids != self.pad_id
        states = self.words(ids) if self.encoder is None else self.encoder(ids, real)
        question = self.norm(self.pool(states, real)[0])  # without it, the products below stay near 0 for long

        joint, weights = self.question(question).relu(), None
        if self.fusion is not None:
            image, weights = self.top_down(question, *self.fusion(views))
            joint = joint * self.image(image).relu()
        hidden = self.hidden(self.dropout(joint)).relu()
        return self.classifier(self.dropout(hidden)), weights
