"""The declared properties of the normalizer hold: python -m pytest."""

from lab.normalizer import Tempered

from attnorm.attention.testing import check_normalizer


def test_the_weights_are_what_the_class_declares():
    check_normalizer(Tempered)
