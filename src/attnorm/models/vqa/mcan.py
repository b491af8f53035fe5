"""MCAN: self-attention over the question, then layers in which boxes attend to each other and to the question."""

from typing import Any

from torch import Tensor, nn

from attnorm.attention.masking import Mask
from attnorm.attention.site import Site
from attnorm.models.config import VqaModelConfig
from attnorm.models.encoder import Encoder
from attnorm.models.layers import DecoderLayer
from attnorm.models.pooling import AttentionPooling
from attnorm.models.vqa.base import VqaModel
from attnorm.models.vqa.fusion import View


class MCAN(VqaModel):
    """scores = C norm(A q + B v): q pools the states of the question, v those of the boxes, guided by the question.

    "Deep Modular Co-Attention Networks", Sec. 3-4, encoder-decoder form: `layers` of self-attention over the question
    (site "encoder"), then the same number of layers for the boxes of `Fusion`. Each of the latter has self-attention
    and attention to the final states of the question (both at the site "guided"). Unlike in the paper, the question has
    learned positions, and a GRU replaces the LSTM. Without boxes, the term B v is omitted. See `VqaModel` for the
    arguments.
    """

    sites = {"fusion": False, "encoder": False, "guided": False}  # noqa: RUF012
    self_sites = Encoder.self_sites  # half of the layers at "guided" attend to the question

    def make_layers(self, shape: VqaModelConfig, attention: dict, answers: int) -> None:
        layers, width, hidden = shape.transformer(), shape.d_model, shape.hidden
        self.encoder = Encoder(layers, attention, self.words)
        self.question_pool, self.question = AttentionPooling(width), nn.Linear(width, hidden)
        if self.fusion is not None:
            self.guided = nn.ModuleList(
                DecoderLayer(layers, attention, "guided", "guided", layer) for layer in range(shape.layers)
            )
            self.last_norm = nn.LayerNorm(width, layers.norm_eps) if shape.norm_first else nn.Identity()
            facts: dict[str, Any] = {"heads": shape.n_heads, "bidirectional": True, "width": width}
            self.prior = Site(attention, "guided").prior(positions=self.fusion.boxes, **facts)
            self.cross_prior = Site(attention, "guided").prior(positions=shape.max_question, **facts)
            self.pool, self.image = AttentionPooling(width), nn.Linear(width, hidden)
        self.norm, self.classifier = nn.LayerNorm(hidden), nn.Linear(hidden, answers)

    @classmethod
    def sites_of(cls, settings: dict) -> dict[str, bool]:
        """The site "encoder" always, "guided" if there are boxes, and "fusion" if the fusion is attention."""
        fusion = settings.get("fusion")
        used = {"fusion": fusion == "attention", "encoder": True, "guided": fusion != "none"}
        return {site: cls.sites[site] for site, yes in used.items() if yes}

    def answer(self, ids: Tensor, views: list[View]) -> tuple[Tensor, Tensor | None]:
        real = ids != self.pad_id
        states = self.encoder(ids, real)
        joint, weights = self.question(self.question_pool(states, real)[0]), None
        if self.fusion is not None:
            boxes, present = self.fusion(views)
            image, weights = self.pool(self.guide(boxes, present, states, real), present)
            joint = joint + self.image(image)
        return self.classifier(self.norm(joint)), weights

    def guide(self, boxes: Tensor, present: Tensor, question: Tensor, real: Tensor) -> Tensor:
        """boxes (B, M, W), present (B, M), the question's states (B, T, W), real (B, T) -> boxes (B, M, W)."""
        mask, cross_mask = Mask(queries=present, keys=present), Mask(queries=present, keys=real)
        log_prior = cross_log_prior = None
        if self.prior is not None:
            log_prior = self.prior(boxes.shape[1], boxes.shape[1], 0, boxes, mask)
        if self.cross_prior is not None:
            cross_log_prior = self.cross_prior(boxes.shape[1], question.shape[1], 0, question, cross_mask)
        for layer in self.guided:
            boxes = layer(boxes, question, mask, cross_mask, log_prior, cross_log_prior, None)
        return self.last_norm(boxes)
