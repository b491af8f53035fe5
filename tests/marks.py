"""Marks of single cases of a parametrized test."""

from collections.abc import Iterable

import pytest

# A normalizer of each kind: without and with coupling, learned, for decoders, of the hidden states.
FEW = ("softmax", "dnas", "hnas", "hnas_prefix", "forgetting")


def slow(*values: object):
    """A case that only `make test-slow` runs."""
    return pytest.param(*values, marks=pytest.mark.slow)


def few(cases: Iterable[object], names: Iterable[str] = FEW) -> list[object]:
    """All cases, whose first value is a name: only those of these names run by default."""
    rows = ((case, case if isinstance(case, tuple) else (case,)) for case in cases)
    return [case if row[0] in names else slow(*row) for case, row in rows]
