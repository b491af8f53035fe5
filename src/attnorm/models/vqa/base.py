"""Base class of the models that answer questions about images."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attnorm.attention.multihead import attention_layers, observe
from attnorm.models.config import VqaModelConfig
from attnorm.models.initialize import initialize
from attnorm.models.vqa.fusion import Fusion, View


class QuestionEmbedding(nn.Module):
    """A state for each word of a question: its embedding, followed by a GRU over the words so far ("gru") or a Linear.

    It can replace the table of `Embeddings`.
    """

    def __init__(self, vocab_size: int, shape: VqaModelConfig):
        super().__init__()
        self.table = nn.Embedding(vocab_size, shape.word_width)
        recurrent = shape.question == "gru"
        self.gru = nn.GRU(shape.word_width, shape.d_model, batch_first=True) if recurrent else None
        self.linear = None if recurrent else nn.Linear(shape.word_width, shape.d_model)

    def forward(self, ids: Tensor) -> Tensor:
        """ids, int (B, T) -> (B, T, W). The ids are padded at the end, so the padding does not affect any word."""
        vectors = self.table(ids)
        if self.gru is not None:
            return self.gru(vectors)[0]
        assert self.linear is not None  # the model has one of the two
        return self.linear(vectors)


class VqaModel(nn.Module):
    """Computes a score for each answer of a list from a question and the views of an image.

    A subclass implements `make_layers`, `answer` and `sites_of`.

    sites:     all sites that the class can have; none is autoregressive. `sites_of` returns those used by given
               settings.
    attention: resolved tables (`attnorm.attention.table_form`) of these sites.
    answers:   the number of answers.
    view_widths, view_boxes: for each view, the width of its features and its maximum number of boxes.
    seed:      seed of the initial parameters, see `initialize`.

    If the fusion is attention, its output is initially zero. So training starts from the primary view alone, and learns
    to add the other views as far as they help.

    Raises ValueError if the fusion requires more views.
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
        self.make_layers(shape, attention, answers)
        initialize(self, seed)
        if self.fusion is not None:
            for layer in attention_layers(self.fusion).values():
                nn.init.zeros_(layer.output.weight)

    def make_layers(self, shape: VqaModelConfig, attention: dict, answers: int) -> None:
        """Creates the modules after `words` and `fusion`. The arguments are those of the class."""
        raise NotImplementedError

    @classmethod
    def sites_of(cls, settings: dict) -> dict[str, bool]:
        """The sites of a model with these settings (the keys of `VqaModelConfig`), as in `sites`.

        It raises no error for wrong or missing settings, so that a check can report all of them.
        """
        raise NotImplementedError

    @classmethod
    def site_layers(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """The number of layers at each site in `sites_of`: 1 for the fusion, and `layers` for all others."""
        return {site: 1 if site == "fusion" else settings.get("layers") for site in cls.sites_of(settings)}

    @classmethod
    def site_heads(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """The number of heads at each site in `sites_of`."""
        keys = {site: "fusion_heads" if site == "fusion" else "n_heads" for site in cls.sites_of(settings)}
        return {site: settings.get(key) for site, key in keys.items()}

    def answer(self, ids: Tensor, views: list[View]) -> tuple[Tensor, Tensor | None]:
        """Scores (B, answers), and the weights of the question over the fused boxes, (B, M), or None without boxes."""
        raise NotImplementedError

    def forward(self, ids: Tensor, views: list[View]) -> Tensor:
        """Scores of the answers, (B, answers).

        ids:   int (B, T), the question, padded at the end.
        views: one tuple per view: features (B, M, D); present, bool (B, M); geometry (B, M, 4), x1 y1 x2 y2 as
               fractions of the image size, or None. ImageFeatures that the fusion does not use are ignored.
        """
        return self.answer(ids, views)[0]

    @torch.no_grad()
    def attention_over_boxes(self, ids: Tensor, views: list[View]) -> tuple[Tensor, Tensor | None]:
        """Returns the attention weights that figures show, computed in evaluation mode.

        The first tensor is the weight of each fused box, (B, M). If the fusion is attention, the second tensor holds
        the weights with which each box of the primary view attends to the boxes of the other views, (B, H, M, M');
        otherwise it is None. With one attention per view, the weights for each view sum to 1.

        M is the maximum number of boxes of the primary view (of all views if the fusion is concat). M' is that of the
        other views, concatenated. Raises ValueError for a model without boxes.
        """
        if self.fusion is None:
            raise ValueError("fusion='none': this model does not use boxes")
        fused: list[Tensor] = []
        with observe(self.fusion, lambda name, weights, allowed: fused.append(weights)):
            weights = self.answer(ids, views)[1]
        assert weights is not None  # None is for models without boxes
        return weights, torch.cat(fused, -1) if fused else None
