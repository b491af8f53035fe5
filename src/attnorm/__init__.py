"""attnorm: a laboratory for attention normalizers. `attnorm.attention` stands alone; the rest trains and compares."""

__version__ = "0.1.0"
