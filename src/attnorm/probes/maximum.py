"""max: which item of a group has the highest priority?"""

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from attnorm.probes.base import Batch, Probe, asked, permutations

GROUPS = 4


class Max(Probe):
    """Each key has a priority, uniform in (0, 1), and belongs to one of four groups. One query for each group asks for
    its key with the highest priority. Few keys are wanted, and attention has to be sharp at any size."""

    size = 32
    train_sizes = (8, 16, 32)
    test_sizes = (16, 32, 128, 512)
    updates = 1000
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

    def ceiling(self, batch: Batch) -> Tensor:
        return torch.ones(len(batch.targets))
