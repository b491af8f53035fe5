"""uniform and none: the prior alone, and nothing; in a model every parameter still takes part in an update."""

import builders
import pytest
import reference
import torch
from torch.testing import assert_close

from attnorm.attention import MultiHeadAttention, build_normalizer, check_attention
from attnorm.attention.scorers import ScaledDot

pytestmark = pytest.mark.numerical

TIGHT = {"rtol": 1e-12, "atol": 1e-12}


def test_uniform_weights_are_the_prior_over_the_allowed_keys_row_by_row():
    reference.assert_formula(
        build_normalizer("uniform"), lambda scores, *given: reference.weights("softmax", 0 * scores, *given)
    )


def test_uniform_attention_is_the_mean_of_the_values_however_large_the_scores():
    q, k, v = reference.make_qkv(300, 240)  # long enough for the fast path
    mean = v.mean(-2, keepdim=True).expand(-1, -1, 300, -1)
    assert_close(build_normalizer("uniform").attend(1e8 * q, k, v), mean, **TIGHT)
    assert_close(build_normalizer("uniform")(torch.full((1, 1, 2, 4), torch.inf)), torch.full((1, 1, 2, 4), 0.25))


@pytest.mark.parametrize("name", ["uniform", "none"])
def test_every_parameter_of_a_layer_has_a_gradient(name):
    """Training on several devices stops at a parameter without one."""
    layer = MultiHeadAttention(8, 2, build_normalizer(name), ScaledDot())
    layer(torch.randn(2, 5, 8), torch.randn(2, 7, 8)).square().sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())
    zero = [key for key, parameter in layer.named_parameters() if not parameter.grad.any()]
    assert zero == ["query.weight", "query.bias"] if name == "uniform" else len(zero) == 6


@pytest.mark.parametrize("site", builders.SITES)
def test_at_a_site_without_attention_a_model_is_one_without_the_layer(site, monkeypatch):
    """Its output projection has a bias, which is not added either."""
    model = builders.rough_model("softmax", noise=0.6)
    tables = builders.attention_tables("softmax")
    monkeypatch.setattr(builders, "attention_tables", lambda *_: {**tables, site: "none"})
    found = builders.rough_model("softmax", noise=0.6)
    found.load_state_dict(model.state_dict())
    layers = {"encoder": model.encoder.layers, "decoder": model.layers, "cross": model.layers}[site]
    for layer in layers:
        silent = layer.cross if site == "cross" else layer.attention
        silent.forward = lambda states, *_, **__: torch.zeros_like(states)
    source, target = builders.sources([6, 3]), builders.targets([7, 5])
    assert torch.equal(found(source, target), model(source, target))


def test_a_prior_where_nothing_is_attended_to_is_refused():
    tables = {"_default_": "none", "prior": {"encoder": ["t5"]}}
    assert check_attention(tables, {"encoder": False}) == [
        "attention.prior.encoder=[t5]: has no effect, because attention.encoder=none"
    ]
    assert check_attention({**tables, "encoder": ["none", "dnas"]}, {"encoder": False}, {"encoder": 2}) == []
    assert check_attention({**tables, "_default_": "uniform"}, {"encoder": False}) == []
