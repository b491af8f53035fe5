"""Which half of the validation split selects the best checkpoint."""

import hashlib
from collections.abc import Iterable


def selection_half(groups: Iterable[str]) -> set[str]:
    """A fixed half of the groups: those with the smaller hashes, one more than half if their number is odd.

    The hash depends on nothing but the name of the group, so all runs on the same data have the same half. The score
    of the selected checkpoint on this half is too good, because it was selected for it; the other half is unaffected.
    """
    ranked = sorted(set(groups), key=lambda group: hashlib.sha256(group.encode()).digest())
    return set(ranked[: (len(ranked) + 1) // 2])
