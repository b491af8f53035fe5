"""match, hub, needle, max and sort: every query looks for one key."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Generator

from attnorm.probes.base import Batch, Probe, all_right, asked, assignment, permutations, rows_at, unit

GROUPS = 4  # of keys, in `max`


@dataclass
class Match(Probe):
    """Keys are standard normal in R^4; queries are the keys in another order plus `noise` times a standard normal.

    Every key is wanted once, so a key that one query is sure of helps the others.
    """

    test_sizes = (8, 16, 32)
    updates = 600
    solver = staticmethod(assignment)
    prediction = "dnas, hnas, sinkhorn and dnas_slack above softmax"
    source = "linear assignment; softmax over queries in SuperGlue (arXiv 1911.11763)"

    noise: float = 0.35
    width: int = 4

    def batch(self, count: int, size: int, generator: Generator) -> Batch:
        keys = torch.randn(count, size, self.width, generator=generator)
        wanted = permutations(count, size, generator)
        queries = rows_at(keys, wanted) + self.noise * torch.randn(keys.shape, generator=generator)
        return asked(queries, keys, wanted, generator)


@dataclass
class Hub(Probe):
    """Keys are unit vectors in R^6. A query is unit(its key + noise e + shift u): e is standard normal, and u is a unit
    vector that all queries of an example share.

    The keys near u become hubs: they are nearest to many queries. The column step takes a part of the shift away. This
    probe is made for it, as `skew` is made against it.
    """

    doses: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "0.9": {"shift": 0.9},
        "0.45": {"shift": 0.45},
        "0": {"shift": 0.0},
    }
    axis = "common shift of the queries"
    size = 8
    test_sizes = (8, 16)
    updates = 600
    solver = staticmethod(assignment)
    prediction = "dnas and hnas above softmax, and the more so the larger the shift"
    source = "hubness and inverted softmax (arXiv 1702.03859)"

    shift: float = 0.9
    noise: float = 0.3
    width: int = 6

    def batch(self, count: int, size: int, generator: Generator) -> Batch:
        keys = unit(torch.randn(count, size, self.width, generator=generator))
        wanted = permutations(count, size, generator)
        common = unit(torch.randn(count, 1, self.width, generator=generator))
        noise = torch.randn(keys.shape, generator=generator)
        queries = unit(rows_at(keys, wanted) + self.noise * noise + self.shift * common)
        return asked(queries, keys, wanted, generator)


@dataclass
class Needle(Probe):
    """Keys are unit vectors in R^8, and eight of them are wanted, by one query each. It is trained with up to 64 keys
    and tested with up to 1,024: weights that are spread over all keys are lost."""

    size = 64
    train_sizes = (8, 16, 32, 64)
    test_sizes = (8, 64, 256, 1024)
    updates = 1000
    solver = staticmethod(assignment)
    prediction = "dnas falls as 8 / M; softmax and hnas fall little; ssmax does not fall; sigmoid falls at 1,024"
    source = "needle in a haystack; scalable softmax (arXiv 2501.19399)"

    noise: float = 0.15
    width: int = 8

    def batch(self, count: int, size: int, generator: Generator) -> Batch:
        keys = unit(torch.randn(count, size, self.width, generator=generator))
        wanted = permutations(count, size, generator)[:, :8]
        noise = torch.randn(*wanted.shape, self.width, generator=generator)
        return asked(rows_at(keys, wanted) + self.noise * noise, keys, wanted, generator)


class Max(Probe):
    """Each key has a priority, uniform in (0, 1), and belongs to one of four groups. One query for each group asks for
    its key with the highest priority. Few keys are wanted, and attention has to be sharp at any size."""

    size = 32
    train_sizes = (8, 16, 32)
    test_sizes = (16, 32, 128, 512)
    updates = 1000
    solver = staticmethod(all_right)
    prediction = "no difference at the sizes of training; beyond them ssmax and entmax above softmax, dnas below"
    source = "maximum retrieval (arXiv 2410.01104)"

    def batch(self, count: int, size: int, generator: Generator) -> Batch:
        priority = torch.rand(count, size, generator=generator)
        group = torch.randint(GROUPS, (count, size), generator=generator)
        group[:, :GROUPS] = torch.arange(GROUPS)  # no group is empty
        group = group.gather(1, permutations(count, size, generator))
        one_hot = F.one_hot(group, GROUPS).float()
        keys = torch.cat([priority.unsqueeze(-1), one_hot], -1)
        wanted = priority[:, None, :].masked_fill(one_hot.transpose(1, 2) == 0, -1.0).argmax(-1)
        queries = torch.eye(GROUPS).expand(count, -1, -1)
        return asked(queries, keys, wanted, generator)


class Sort(Probe):
    """Keys are numbers, uniform in (0, 1), and query r = 0, ..., M - 1 is r / (M - 1).

    The rank of a key depends on the other keys, which one step of softmax cannot see: it can only guess a number from
    its usual rank. The best one-to-one assignment of queries to keys sorts.
    """

    test_sizes = (8, 16, 32)
    solver = staticmethod(all_right)
    prediction = "dnas, hnas and sinkhorn above softmax"
    source = "Sinkhorn sorting (arXiv 1905.11885)"

    def batch(self, count: int, size: int, generator: Generator) -> Batch:
        numbers = torch.rand(count, size, generator=generator)
        queries = torch.linspace(0, 1, size).expand(count, -1).unsqueeze(-1)
        return asked(queries, numbers.unsqueeze(-1), numbers.argsort(-1), generator)
