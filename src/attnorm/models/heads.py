"""Heads of an encoder: scores of masked tokens ("BERT", Sec. 3.1), a span of the text, or a label of it (Sec. 4)."""

from torch import Tensor, nn

from attnorm.attention.priors import needs_of
from attnorm.attention.transfer import index_by_mask, on_both
from attnorm.models.config import EncoderConfig
from attnorm.models.encoder import Encoder
from attnorm.models.initialize import initialize
from attnorm.models.layers import ACTIVATIONS


class EncoderModel(nn.Module):
    """An encoder with a head. A subclass implements `make_layers` and `forward`.

    attention: the tables of conf/attention/*.yaml.
    seed:      seed of the initial parameters, see `initialize`. All models with an encoder have bit-equal initial
               encoder parameters.
    encoder:   the class of the encoder.
    labels:    the number of labels, if the head predicts labels.
    """

    sites = Encoder.sites
    self_sites = Encoder.self_sites

    def __init__(
        self,
        shape: EncoderConfig,
        attention: dict,
        vocab_size: int,
        pad_id: int,
        *,
        seed: int = 0,
        encoder: type[Encoder] = Encoder,
        labels: int = 1,
    ):
        super().__init__()
        self.shape, self.pad_id = shape, pad_id
        self.encoder = encoder(shape, attention, nn.Embedding(vocab_size, shape.d_model))
        self.make_layers(shape, vocab_size, labels)
        self.start(seed)

    def make_layers(self, shape: EncoderConfig, vocab_size: int, labels: int) -> None:
        """Creates the modules of the head. The arguments are those of the class."""
        raise NotImplementedError

    def start(self, seed: int) -> None:
        """Initializes the parameters."""
        initialize(self, seed)

    def states(self, ids: Tensor, types: Tensor | None) -> Tensor:
        """The states of padded ids (B, N, W). Types are left out if the encoder has none."""
        return self.encoder(ids, ids != self.pad_id, types=types if self.shape.type_vocab_size else None)


class SpanModel(EncoderModel):
    """Predicts where an answer starts and ends, with two scores per token ("BERT", Sec. 4.2)."""

    def make_layers(self, shape: EncoderConfig, vocab_size: int, labels: int) -> None:
        self.spans = nn.Linear(shape.d_model, 2)

    def forward(self, ids: Tensor, types: Tensor | None = None) -> Tensor:
        """ids, int (B, N), padded; types, int (B, N), None: all 0 -> scores (B, N, 2) of start and end.

        All scores are finite, also at positions that cannot be part of an answer. The caller excludes such positions.
        """
        return self.spans(self.states(ids, types))


class Classifier(EncoderModel):
    """A label for a text or a pair of texts: Linear and tanh on the first state (BERT's pooler), dropout, Linear.

    labels: the number of labels; 1 for a number (regression).
    """

    def make_layers(self, shape: EncoderConfig, vocab_size: int, labels: int) -> None:
        self.pooler, self.dropout = nn.Linear(shape.d_model, shape.d_model), nn.Dropout(shape.dropout)
        self.classifier = nn.Linear(shape.d_model, labels)

    def forward(self, ids: Tensor, types: Tensor | None = None) -> Tensor:
        """ids, int (B, N), padded; types, int (B, N), None: all 0 -> scores (B, labels)."""
        return self.classifier(self.dropout(self.pooler(self.states(ids, types)[:, 0]).tanh()))


class Head(nn.Module):
    """BERT's output head: Linear, activation, LayerNorm, then a score for each token of the vocabulary."""

    def __init__(self, shape: EncoderConfig, vocab_size: int):
        super().__init__()
        self.transform, self.activation = nn.Linear(shape.d_model, shape.d_model), ACTIVATIONS[shape.activation]()
        self.norm = nn.LayerNorm(shape.d_model, shape.norm_eps)
        self.output = nn.Linear(shape.d_model, vocab_size)

    def forward(self, states: Tensor) -> Tensor:
        """states (..., W) -> scores (..., V)."""
        return self.output(self.norm(self.activation(self.transform(states))))


class MaskedLM(EncoderModel):
    """An encoder with a head that predicts the token at each position.

    With `shape.tie_embeddings`, the output matrix is the token embedding, with a bias of its own.
    """

    provides = ("masked_positions",)  # facts for priors, see attnorm.attention.priors

    def make_layers(self, shape: EncoderConfig, vocab_size: int, labels: int) -> None:
        self.head = Head(shape, vocab_size)

    def start(self, seed: int) -> None:
        super().start(seed)
        if self.shape.tie_embeddings:
            self.head.output.weight = self.encoder.embeddings.tokens.weight

    def forward(self, ids: Tensor, segments: Tensor | None = None, masked_positions: Tensor | None = None) -> Tensor:
        """Returns scores of the tokens. ids: int (B, N), padded. segments: as in `Encoder.forward`.

        masked_positions: bool (B, N), the positions whose scores are needed -> (K, V), row by row. The scores of the
                          other positions are not computed. None: all positions -> (B, N, V).
        """
        needs_masked = "masked_positions" in needs_of(getattr(self.encoder, "prior", None))
        facts = {"masked_positions": masked_positions} if needs_masked else {}
        real = on_both(lambda ids: ids != self.pad_id, ids)
        states = self.encoder(ids, real, segments, **facts)
        return self.head(states if masked_positions is None else index_by_mask(states, masked_positions))
