"""visible_keys: the compact mask is counted like its table, and a count does not know padding, future or neighbours."""

import pytest
import torch
from reference import BATCH, HEADS, allowed_pairs

from attnorm.attention import Mask
from attnorm.attention.visible import visible_keys

pytestmark = pytest.mark.numerical


def counted(mask, n_queries, n_keys, batch=BATCH):
    scores = torch.empty((), dtype=torch.float64).expand(batch, HEADS, n_queries, n_keys)
    return visible_keys(mask, scores)


@pytest.mark.parametrize("causal", [False, True])
def test_segments_may_be_in_any_order_and_come_back(causal):
    generator = torch.Generator().manual_seed(0)
    for batch in (1, 3):
        segments = torch.randint(0, 4, (batch, 23), generator=generator)
        keys = torch.rand(batch, 23, generator=generator) < 0.7
        pairs = allowed_pairs(batch, 23, 23, keys=keys, causal=causal, segments=segments)
        found = counted(Mask(keys=keys, causal=causal, segments=segments), 23, 23, batch)
        assert torch.equal(found, pairs.sum(-1, keepdim=True).clamp(min=1).double())
        pairs = allowed_pairs(batch, 23, 23, keys=keys[:1].expand(batch, -1), causal=causal, segments=segments)
        found = counted(Mask(keys=keys[:1], causal=causal, segments=segments), 23, 23, batch)
        assert torch.equal(found, pairs.sum(-1, keepdim=True).clamp(min=1).double())


def test_a_compact_mask_is_counted_without_its_table(monkeypatch):
    monkeypatch.setattr(Mask, "dense", lambda *_: pytest.fail("built the table"))
    keys, segments = torch.ones(BATCH, 9, dtype=torch.bool), torch.zeros(BATCH, 9, dtype=torch.long)
    for mask in (Mask(causal=True), Mask(keys=keys, causal=True), Mask(keys, keys, True, segments)):
        assert torch.equal(counted(mask, 9, 9)[0, 0, :, 0], torch.arange(1.0, 10).double())
