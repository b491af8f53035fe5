"""Heads for fine-tuning an encoder: predicting a span of the text, or a label of the whole text ("BERT", Sec. 4)."""

from torch import Tensor, nn

from attnorm.models.config import EncoderConfig
from attnorm.models.encoder import Encoder
from attnorm.models.initialize import initialize


class SpanModel(nn.Module):
    """Predicts where an answer starts and ends, with two scores per token ("BERT", Sec. 4.2).

    attention: the tables of conf/attention/*.yaml.
    seed:      seed of the initial parameters, see `initialize`.
    encoder:   the class of the encoder.
    """

    sites = Encoder.sites

    def __init__(
        self,
        shape: EncoderConfig,
        attention: dict,
        vocab_size: int,
        pad_id: int,
        seed: int = 0,
        encoder: type[Encoder] = Encoder,
    ):
        super().__init__()
        self.shape, self.pad_id = shape, pad_id
        self.encoder = encoder(shape, attention, nn.Embedding(vocab_size, shape.d_model))
        self.spans = nn.Linear(shape.d_model, 2)
        initialize(self, seed)

    def forward(self, ids: Tensor, types: Tensor | None = None) -> Tensor:
        """ids, int (B, N), padded; types, int (B, N), None: all 0 -> scores (B, N, 2) of start and end.

        All scores are finite, also at positions that cannot be part of an answer. The caller excludes such positions.
        """
        return self.spans(self.encoder(ids, ids != self.pad_id, types=types))


class Classifier(nn.Module):
    """A label for a text or a pair of texts: Linear and tanh on the first state (BERT's pooler), dropout, Linear.

    labels: the number of labels; 1 for a number (regression). The other arguments are those of `SpanModel`.
    """

    sites = Encoder.sites

    def __init__(
        self,
        shape: EncoderConfig,
        attention: dict,
        vocab_size: int,
        pad_id: int,
        labels: int,
        seed: int = 0,
        encoder: type[Encoder] = Encoder,
    ):
        super().__init__()
        self.shape, self.pad_id = shape, pad_id
        self.encoder = encoder(shape, attention, nn.Embedding(vocab_size, shape.d_model))
        self.pooler, self.dropout = nn.Linear(shape.d_model, shape.d_model), nn.Dropout(shape.dropout)
        self.classifier = nn.Linear(shape.d_model, labels)
        initialize(self, seed)

    def forward(self, ids: Tensor, types: Tensor | None = None) -> Tensor:
        """ids, int (B, N), padded; types, int (B, N), None: all 0 -> scores (B, labels)."""
        states = self.encoder(ids, ids != self.pad_id, types=types)
        return self.classifier(self.dropout(self.pooler(states[:, 0]).tanh()))
