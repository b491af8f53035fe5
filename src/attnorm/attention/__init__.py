"""Attention normalizers, usable on their own.

`from attnorm.attention import build_normalizer` imports no library other than torch.
"""

from attnorm.attention.masking import Mask
from attnorm.attention.multihead import MultiHeadAttention, observe, smallest_column_mass
from attnorm.attention.names import build_normalizer, build_prior, build_scorer
from attnorm.attention.normalizers._key_bias import attention_form
from attnorm.attention.normalizers.base import Normalizer
from attnorm.attention.normalizers.regularized import RegularizedMax
from attnorm.attention.scorers import Scorer
from attnorm.attention.sites import check_attention, resolve_attention

__all__ = [
    "Mask",
    "MultiHeadAttention",
    "Normalizer",
    "RegularizedMax",
    "Scorer",
    "attention_form",
    "build_normalizer",
    "build_prior",
    "build_scorer",
    "check_attention",
    "observe",
    "resolve_attention",
    "smallest_column_mass",
]
