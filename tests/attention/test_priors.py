"""Priors: T5's table as transformers has it, ALiBi's formula, a cached query's row, and their way into a model."""

import builders
import pytest
import torch
from reference import randn
from torch.testing import assert_close

from attnorm.attention.build import build_prior
from attnorm.attention.priors import T5, Sum
from attnorm.models.decoding import Decoding, generate

TIGHT = {"rtol": 1e-10, "atol": 1e-10}
CPU = torch.device("cpu")
HEADS = 3
PRIORS = {
    "uniform": ("uniform", {}),
    "t5": ("t5", {"heads": HEADS}),
    "t5_causal": ("t5", {"heads": HEADS, "bidirectional": False}),
    "alibi": ("alibi", {"heads": HEADS}),
}


def make(kind, **more):
    name, options = PRIORS[kind]
    return build_prior(name, **options, **more)


# ------------------------------------------------------------------------------------------------------------ formulas


@pytest.fixture
def t5_attention():
    return pytest.importorskip("transformers.models.t5.modeling_t5", reason="transformers is not installed")


@pytest.mark.parametrize("buckets, max_distance", [(32, 128), (8, 20), (12, 200)])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_t5_buckets_equal_those_of_transformers(t5_attention, bidirectional, buckets, max_distance):
    relative = torch.arange(-600, 601)[None]
    expected = t5_attention.T5Attention._relative_position_bucket(relative, bidirectional, buckets, max_distance)
    prior = T5(HEADS, bidirectional, buckets, max_distance)
    assert torch.equal(prior.bucket(relative), expected)
    assert expected.unique().numel() > buckets // 3  # the comparison covers the table


@pytest.mark.parametrize("bidirectional", [True, False])
def test_t5_bias_equals_that_of_transformers(t5_attention, bidirectional):
    from transformers import T5Config

    config = T5Config(d_model=12, d_kv=4, num_heads=HEADS, is_decoder=not bidirectional)
    theirs = t5_attention.T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    ours = T5(HEADS, bidirectional)
    ours.bias.load_state_dict(theirs.relative_attention_bias.state_dict())
    assert_close(ours(9, 200, 0, CPU), theirs.compute_bias(9, 200), rtol=0, atol=0)


@pytest.mark.parametrize("heads", [1, 3, 8])
def test_alibi_falls_by_its_heads_slope_with_every_position(heads):
    table = build_prior("alibi", heads=heads)(4, 6, 2, CPU)
    assert table.shape == (1, heads, 4, 6)
    for h in range(heads):
        for i in range(4):
            for j in range(6):
                expected = -(2 ** (-8 * (h + 1) / heads)) * abs(j - (i + 2))
                assert table[0, h, i, j].item() == pytest.approx(expected, rel=1e-6)


def test_uniform_prefers_nothing():
    assert not make("uniform")(4, 5, 0, CPU).any()


@pytest.mark.parametrize("kind", PRIORS)
def test_a_query_at_an_offset_gets_its_row_of_the_full_table(kind):
    prior, n, m = make(kind), 30, 40
    full = prior(n, m, 0, CPU).expand(1, HEADS, n, m)
    for t in (0, 1, 17, 29):
        assert_close(prior(1, m, t, CPU).expand(1, HEADS, 1, m), full[..., t : t + 1, :], rtol=0, atol=0)
        grown = prior(1, t + 1, t, CPU).expand(1, HEADS, 1, t + 1)
        assert_close(grown, full[..., t : t + 1, : t + 1], rtol=0, atol=0)


def test_a_sum_of_priors_adds_their_tables():
    parts = [make(kind) for kind in PRIORS]
    expected = torch.zeros(1, HEADS, 4, 7)
    for part in parts:
        expected = expected + part(4, 7, 2, CPU)
    assert_close(Sum(parts)(4, 7, 2, CPU), expected)
    assert len(list(Sum(parts).parameters())) == 2  # those of both t5 tables are trained


# ----------------------------------------------------------------------------------------------------------- in a model


def outputs(model):
    source, target = builders.sources([6, 4]), builders.targets([5, 3])
    return model(source, target)[target != builders.PAD]


def with_prior(placement, priors, **settings):
    """A model whose T5 tables are so large that they matter."""
    model = builders.rough_model(placement, priors=priors, **settings)
    for module in model.modules():
        if isinstance(module, T5):
            module.bias.weight.data = 2 * randn(*module.bias.weight.shape)
    return model


@pytest.mark.parametrize("prior", ["t5", "alibi"])
@pytest.mark.parametrize("site", builders.SITES)
@pytest.mark.parametrize("placement", ["softmax", "dnas", "hnas_prefix"])
def test_a_prior_at_any_site_changes_the_models_output(placement, site, prior):
    with_it, without = with_prior(placement, {site: [prior]}), builders.rough_model(placement)
    assert not torch.allclose(outputs(with_it), outputs(without), atol=1e-4)


@pytest.mark.parametrize("placement", ["softmax", "dnas_prefix"])
def test_a_uniform_prior_changes_nothing(placement):
    model = builders.rough_model(placement, priors={site: ["uniform"] for site in builders.SITES})
    assert_close(outputs(model), outputs(builders.rough_model(placement)), **TIGHT)


@pytest.mark.parametrize("priors", [["t5"], ["alibi"], ["t5", "alibi"]], ids="+".join)
@pytest.mark.parametrize("site", builders.SITES)
@pytest.mark.parametrize("placement", ["softmax", "hnas_prefix"])
def test_with_a_prior_cached_generation_equals_uncached(placement, site, priors):
    model = with_prior(placement, {site: priors}, tied=False, sharpness=3.0, noise=0.6, seed=1)
    source, decoding = builders.sources([6, 4, 2]), Decoding(beam_size=2, max_length=7)
    cached = generate(model, source, builders.SPECIAL, decoding)
    assert cached == generate(model, source, builders.SPECIAL, decoding, cached=False)
    assert len({tuple(headline) for headline in cached}) > 1  # they depend on the article


@pytest.mark.parametrize("site, bidirectional", [("encoder", True), ("decoder", False), ("cross", True)])
def test_a_t5_prior_looks_both_ways_except_in_the_decoder(site, bidirectional):
    model = builders.build_model(priors={site: ["t5"]})
    assert [module.bidirectional for module in model.modules() if isinstance(module, T5)] == [bidirectional]
