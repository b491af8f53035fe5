"""Attention normalizers, usable on their own.

`from attnorm.attention import build_normalizer` imports no library other than torch.
"""

from attnorm.attention.masking import Mask
from attnorm.attention.model_sites import check_attention, resolve_attention
from attnorm.attention.multihead import MultiHeadAttention, observe, smallest_column_mass
from attnorm.attention.normalizers.base import Normalizer
from attnorm.attention.normalizers.regularized import RegularizedMax
from attnorm.attention.normalizers.shared.key_bias import attention_form
from attnorm.attention.registry import build_normalizer, build_prior, build_scorer
from attnorm.attention.scorers import Scorer

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
