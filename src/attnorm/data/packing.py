"""Packs texts of different lengths into rows of one length."""

from bisect import bisect_left
from collections.abc import Sequence


def best_fit(lengths: Sequence[int], room: int) -> list[list[int]]:
    """Packs items of the given lengths into bins of size `room` and returns the item indices of each bin.

    The items are placed in order of decreasing length, each into the fullest bin that has room for it. Bins and their
    items are sorted by index. No length may exceed `room`.
    """
    bins: list[list[int]] = []
    by_space: dict[int, list[int]] = {}  # free space -> bins
    spaces: list[int] = []  # the keys of by_space, in order
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        fullest = bisect_left(spaces, lengths[number])
        if fullest == len(spaces):
            left, chosen = room, len(bins)
            bins.append([])
        else:
            left = spaces[fullest]
            chosen = by_space[left].pop()
            if not by_space[left]:
                del by_space[left], spaces[fullest]
        bins[chosen].append(number)
        left -= lengths[number]
        if left not in by_space:
            by_space[left] = []
            spaces.insert(bisect_left(spaces, left), left)
        by_space[left].append(chosen)
    return sorted(sorted(numbers) for numbers in bins)
