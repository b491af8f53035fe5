"""Marks of single cases of a parametrized test."""

import pytest


def slow(*values: object):
    """A case that only `make test-slow` runs."""
    return pytest.param(*values, marks=pytest.mark.slow)
