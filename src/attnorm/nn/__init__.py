"""Attention with any normalizer in the form of `torch.nn`, for models that are not part of attnorm.

`from attnorm.nn import MultiheadAttention` imports no library other than torch.
"""

from attnorm.nn import functional
from attnorm.nn.convert import convert
from attnorm.nn.multihead import MultiheadAttention
from attnorm.nn.sdpa import replace_sdpa

__all__ = ["MultiheadAttention", "convert", "functional", "replace_sdpa"]
