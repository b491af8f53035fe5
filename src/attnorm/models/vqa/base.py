"""What the models that answer questions about images have in common."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attnorm.attention.multihead import observe
from attnorm.models.initialize import initialize
from attnorm.models.vqa.config import VqaModelConfig
from attnorm.models.vqa.fusion import Fusion, View


class QuestionEmbedding(nn.Module):
    """A state for each word of a question: its embedding, then a GRU over the words so far ("gru"), or a Linear.

    It stands where `Embeddings` wants a table: `embedding_dim` is the width of the states.
    """

    def __init__(self, vocab_size: int, shape: VqaModelConfig):
        super().__init__()
        self.embedding_dim = shape.d_model
        self.table = nn.Embedding(vocab_size, shape.word_width)
        recurrent = shape.question == "gru"
        self.gru = nn.GRU(shape.word_width, shape.d_model, batch_first=True) if recurrent else None
        self.linear = None if recurrent else nn.Linear(shape.word_width, shape.d_model)

    def forward(self, ids: Tensor) -> Tensor:
        """ids, int (B, T), padded at the end, where no word sees it -> (B, T, W)."""
        vectors = self.table(ids)
        if self.gru is not None:
            return self.gru(vectors)[0]
        assert self.linear is not None  # the model has one of the two
        return self.linear(vectors)


class VqaModel(nn.Module):
    """A question and the views of an image -> a score for each answer of a list. A subclass writes `build` and
    `answer`.

    sites: all that the class can have, none autoregressive; `sites_of` says which of them its settings use.
    attention: resolved tables (`attnorm.attention.tables`), of these sites. answers: how many there are. view_widths,
    view_boxes: of each view the width of the features and the most boxes. seed: of the initial parameters, see
    `start`. ValueError for a fusion without the views that it needs.
    """

    interface = "vqa"
    Config = VqaModelConfig
    sites: dict[str, bool]

    def __init__(
        self,
        shape: VqaModelConfig,
        attention: dict,
        vocab_size: int,
        pad_id: int,
        answers: int,
        view_widths: Sequence[int] = (),
        view_boxes: Sequence[int] = (),
        seed: int = 0,
    ):
        super().__init__()
        self.shape, self.pad_id = shape, pad_id
        self.words = QuestionEmbedding(vocab_size, shape)
        self.fusion = None if shape.fusion == "none" else Fusion(shape, attention, view_widths, view_boxes)
        self.build(shape, attention, answers)
        self.start(seed)

    def build(self, shape: VqaModelConfig, attention: dict, answers: int) -> None:
        """Make the modules behind `words` and `fusion`; arguments as of the class."""
        raise NotImplementedError

    def start(self, seed: int) -> None:
        """Initial parameters. Where the fusion is attention it adds nothing yet: training starts from the primary view
        alone, to which all others are then added as far as they help."""
        initialize(self, seed)
        if self.fusion is not None and self.fusion.attention is not None:
            nn.init.zeros_(self.fusion.attention.output.weight)

    @classmethod
    def uses(cls, settings: dict) -> set[str]:
        """The names of the sites that these settings use."""
        raise NotImplementedError

    @classmethod
    def sites_of(cls, settings: dict) -> dict[str, bool]:
        """The sites that a model with these settings (the keys of `VqaModelConfig`) has, as in `sites`.

        Nothing is raised for settings that are wrong or missing, so that a check can report them all.
        """
        used = cls.uses(settings)
        return {site: autoregressive for site, autoregressive in cls.sites.items() if site in used}

    @classmethod
    def site_layers(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """The number of layers at each site that `sites_of` names: one that fuses, `layers` in every stack."""
        return {site: 1 if site == "fusion" else settings.get("layers") for site in cls.sites_of(settings)}

    def answer(self, ids: Tensor, views: list[View]) -> tuple[Tensor, Tensor | None]:
        """Scores (B, answers), and the weights of the question over the fused boxes (B, M), None without boxes."""
        raise NotImplementedError

    def forward(self, ids: Tensor, views: list[View]) -> Tensor:
        """Scores of the answers, (B, answers).

        ids:   int (B, T), the question, padded at the end.
        views: a tuple for each view: features (B, M, D); present, bool (B, M); geometry (B, M, 4), x1 y1 x2 y2 as
               shares of the image, or None. Those that the fusion does not use are not looked at.
        """
        return self.answer(ids, views)[0]

    @torch.no_grad()
    def attention_over_boxes(self, ids: Tensor, views: list[View]) -> tuple[Tensor, Tensor | None]:
        """What is looked at, for pictures: how much the question weighs each fused box, (B, M), and, where the fusion
        is attention, how much each of the primary's boxes took from those of the other views, (B, H, M, M'), else None.

        M counts the most boxes of the primary view (of all views where the fusion is concat), M' those of the other
        views, one after the other. In evaluation mode; ValueError for a model that sees no boxes.
        """
        if self.fusion is None:
            raise ValueError("fusion='none': this model sees no boxes")
        fused: list[Tensor] = []
        with observe(self.fusion, lambda name, weights, allowed: fused.append(weights)):
            weights = self.answer(ids, views)[1]
        assert weights is not None  # None is for models without boxes
        return weights, fused[0] if fused else None
