"""Heads for fine-tuning an encoder: a span of the text, and a label for the whole of it ("BERT", Sec. 4)."""

from torch import Tensor, nn

from attnorm.models.config import EncoderConfig
from attnorm.models.encoder import Encoder
from attnorm.models.initialize import initialize


class SpanModel(nn.Module):
    """Where an answer starts and where it ends: two scores at each token ("BERT", Sec. 4.2).

    attention: the tables of conf/attention/*.yaml. seed: of the initial parameters, see `initialize`.
    encoder: the class of the encoder.
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
        """ids, int (B, N), padded; types, int (B, N), None: all 0 -> scores (B, N, 2) of the start and of the end.

        All finite, also where no answer can be: what may be one is for the caller to say.
        """
        return self.spans(self.encoder(ids, ids != self.pad_id, types=types))


class Classifier(nn.Module):
    """A label for a text or a pair of texts: Linear and tanh on the first state (BERT's pooler), dropout, Linear.

    labels: how many there are; 1 for a number (regression). The rest as in `SpanModel`.
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
