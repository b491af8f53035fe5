"""Marks of single cases of a parametrized test."""

from collections.abc import Iterable, Iterator

import pytest

# A normalizer of each kind: without and with coupling, learned, for decoders, of the hidden states.
FEW = ("softmax", "dnas", "hnas", "hnas_prefix", "forgetting")


def slow(*values: object):
    """A case that only `make test-slow` runs."""
    return pytest.param(*values, marks=pytest.mark.slow)


def few(cases: Iterable[object], names: Iterable[str] = FEW) -> Iterator[object]:
    """All cases, whose first value is a name: only those of these names run by default."""
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        yield case if values[0] in names else slow(*values)
