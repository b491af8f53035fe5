"""Decoding with a fertility: the same with and without a cache and in any batch, and coverage is a sum of columns."""

import pytest
import torch
from builders import EOS, SPECIAL, WithoutCache, rough_model, sources, targets
from torch.testing import assert_close

from attnorm.attention.multihead import attention_layers, observe
from attnorm.models.generation import Decoding, generate
from attnorm.tasks.translation import coverage, limited, source_mass, summary

pytestmark = pytest.mark.numerical

LENGTHS = [6, 4, 1, 5]


def talker():
    model = rough_model(noise=0.6, seed=1, tie_embeddings=False)
    model.output.bias.data[EOS] += 2.5
    return model


@pytest.mark.long
@pytest.mark.parametrize(
    ("normalizer", "fertility", "beam_size"),
    [("softmax", 0.3, 3), ("sparsemax", 1.0, 3), ("softmax", 1.0, 1), ("sparsemax", 0.3, 1)],
)
def test_the_budgets_follow_the_beams(normalizer, fertility, beam_size):
    """A full pass recomputes what every beam has used; the cache keeps it, also when beams are reordered."""
    model, batch = talker(), sources(LENGTHS)
    decoding = Decoding(beam_size=beam_size, min_length=4, max_length=8)
    free = generate(model, batch, SPECIAL, decoding)
    with limited(model, fertility, [normalizer]):
        found = generate(model, batch, SPECIAL, decoding)
        assert found == generate(WithoutCache(model), batch, SPECIAL, decoding)
        alone = (batch[row : row + 1, : length + 1] for row, length in enumerate(LENGTHS))
        assert found == [generate(model, one, SPECIAL, decoding)[0] for one in alone]
        masses = coverage(model, [row[:n].tolist() for row, n in zip(batch, LENGTHS, strict=True)], found, SPECIAL)
    assert found != free and max(it.max().item() for it in masses) <= fertility + 1e-6
    assert generate(model, batch, SPECIAL, decoding) == free  # the model is as before


def test_each_layer_gets_its_own_map_and_an_error_restores_them():
    model = talker()
    layers = [layer for name, layer in attention_layers(model).items() if name.endswith("cross")]
    before = [layer.normalizer for layer in layers]
    with pytest.raises(RuntimeError), limited(model, 1.0, ["softmax", "sparsemax"]):
        names = [type(layer.normalizer).__name__ for layer in layers]
        assert names == ["FertilitySoftmax", "FertilitySparsemax"]
        raise RuntimeError
    assert [layer.normalizer for layer in layers] == before


@torch.no_grad()
def test_coverage_is_what_a_pair_without_padding_gives():
    model, lengths = talker(), [3, 7, 1, 2]
    batch, wanted = sources(LENGTHS), targets(lengths)
    mass = source_mass(model, batch, wanted)
    for row, (read, wrote) in enumerate(zip(LENGTHS, lengths, strict=True)):
        seen = {}
        with observe(model, lambda name, weights, _, seen=seen: seen.update({name: weights})):
            model(batch[row : row + 1, : read + 1], wanted[row : row + 1, : wrote + 1])
        cross = torch.stack([weights for name, weights in seen.items() if "cross" in name])
        assert_close(mass[row, : read + 1], cross.mean((0, 1, 2)).sum(0).float(), rtol=1e-6, atol=1e-6)
        assert mass[row].sum().item() == pytest.approx(wrote + 1, rel=1e-5)  # one for each word and the end
    given = [row[:n].tolist() for row, n in zip(batch, LENGTHS, strict=True)]
    written = [row[1 : n + 1].tolist() for row, n in zip(wanted, lengths, strict=True)]
    found = coverage(model, given, written, SPECIAL)
    for row, read in enumerate(LENGTHS):
        assert_close(found[row], mass[row, :read], rtol=1e-6, atol=1e-6)
    assert summary([torch.tensor([0.1, 0.5]), torch.tensor([0.6])]) == pytest.approx(
        {"mean": 0.4, "largest": 0.6, "little": 100 / 3}
    )
