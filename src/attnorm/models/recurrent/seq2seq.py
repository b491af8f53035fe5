"""An encoder-decoder of LSTMs with attention between them."""

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from attnorm.attention.banks import share_vocabulary
from attnorm.attention.transfer import on_both, on_host
from attnorm.models.config import LSTMDecoderConfig, Positions
from attnorm.models.generation import WithDecoder
from attnorm.models.initialize import initialize
from attnorm.models.recurrent.decoder import LSTMDecoder, embed
from attnorm.schema import Count


@dataclass(frozen=True, kw_only=True)
class LSTMSeq2SeqConfig(LSTMDecoderConfig):
    """The configuration of `LSTMSeq2Seq`: that of its decoder, and the following.

    d_model:        must be even, because each direction of the encoder has half of the width.
    encoder_layers: layers of the bidirectional LSTM.
    max_source:     maximum number of source tokens, including the end token.
    """

    encoder_layers: Count = 1
    max_source: Positions

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.d_model % 2:
            raise ValueError(f"d_model={self.d_model!r}: must be even, half of the width for each direction")


def over_padded(network: nn.RNNBase, states: Tensor, real: Tensor) -> Tensor:
    """The outputs of a network with `batch_first` that reads no padding: (B, N, D) -> (B, N, W), 0 at padding.

    real: bool (B, N), False at padding. The values are needed on the host, see `attention.transfer`. Of a sequence of
          padding alone, the first position is read, because packed sequences must not be empty.
    """
    lengths, order = on_host(real).sum(1).clamp(min=1).sort(descending=True)
    order = order.to(states.device, non_blocking=True)
    # With enforce_sorted=False, PyTorch would do the same, and read `order` from the device.
    packed = pack_padded_sequence(states.index_select(0, order), lengths, batch_first=True)
    outputs, _ = pad_packed_sequence(network(packed)[0], batch_first=True, total_length=states.shape[1])
    return outputs.index_select(0, order.argsort())


class LSTMEncoder(nn.Module):
    """A bidirectional LSTM over the source. Its states are the templates T ("Fenchel Duality", Sec. 3.2)."""

    def __init__(self, shape: LSTMSeq2SeqConfig, tokens: nn.Embedding):
        super().__init__()
        self.tokens, self.dropout = tokens, nn.Dropout(shape.dropout)
        self.lstm = nn.LSTM(
            shape.d_model,
            shape.d_model // 2,
            shape.encoder_layers,
            batch_first=True,
            bidirectional=True,
            dropout=shape.dropout if shape.encoder_layers > 1 else 0.0,
        )

    def forward(self, ids: Tensor, real: Tensor) -> Tensor:
        """ids, int (B, N), padded at the end; real, bool (B, N), False at padding -> templates (B, N, W), 0 there."""
        return self.dropout(over_padded(self.lstm, self.dropout(embed(self.tokens, ids)), real))


class LSTMSeq2Seq(WithDecoder):
    """A bidirectional LSTM encoder and an `LSTMDecoder` with a shared vocabulary.

    sites:     the only attention site, that of the decoder. Under teacher forcing it is autoregressive. token_sites:
               those with a vocabulary for banks.
    attention: resolved tables (`attnorm.attention.table_form`).
    seed:      seed of the initial parameters, see `initialize`.
    """

    interface = "seq2seq"
    Config = LSTMSeq2SeqConfig
    sites, site_layers = LSTMDecoder.sites, LSTMDecoder.site_layers
    token_sites = tuple(sites)

    def __init__(self, shape: LSTMSeq2SeqConfig, attention: dict, vocab_size: int, pad_id: int, seed: int = 0):
        super().__init__()
        self.shape, self.pad_id = shape, pad_id
        self.tokens = nn.Embedding(vocab_size, shape.d_model)
        self.encoder = LSTMEncoder(shape, self.tokens)
        self.decoder = LSTMDecoder(shape, attention, self.tokens, shape.max_source, pad_id)
        share_vocabulary(self.decoder, self.tokens)
        initialize(self, seed)
        if shape.tie_embeddings:
            self.decoder.tie()

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Returns the decoder's states (B, T, W). source: int (B, N), padded; target: int (B, T), the tokens so far."""
        return self.decode(target, self.encode(source), source != self.pad_id)

    def encode(self, source: Tensor) -> Tensor:
        """source, int (B, N) -> templates (B, N, W)."""
        return self.encoder(source, on_both(lambda ids: ids != self.pad_id, source))
