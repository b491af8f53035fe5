"""The property suite as a product: `check_normalizer(MyNormalizer)` says whether a normalizer keeps its promises."""

from attnorm.attention.testing.check import PROPERTIES, check_normalizer
from attnorm.attention.testing.report import Report, Result

__all__ = ["PROPERTIES", "Report", "Result", "check_normalizer"]
