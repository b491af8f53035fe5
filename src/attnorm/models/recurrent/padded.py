"""Recurrent networks over sequences that are padded at the end."""

from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from attnorm.attention.transfer import on_host


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
