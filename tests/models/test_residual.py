"""Skip connections: `model.residual` removes or scales them in every layer of the encoder, the decoder and MCAN."""

import builders
import pytest
import torch
from builders import build_model, rough_model, sources, targets
from runs import tiny
from tolerance import tolerance
from torch.testing import assert_close
from visual_builders import normed

from attnorm.errors import ConfigError
from attnorm.models.layers import DecoderLayer, EncoderLayer

pytestmark = pytest.mark.numerical

FACTORS = [(True, 1.0), (False, 0.0), (0.0, 0.0), (0.5, 0.5), (2, 2.0)]


def sublayers(layer):
    """The pairs (name, residual) of a layer in the order of the forward pass."""
    names = ["attention", "cross", "feed_forward"] if isinstance(layer, DecoderLayer) else ["attention", "feed_forward"]
    return [(name, getattr(layer, f"{name}_residual")) for name in names]


def follow(model, source, target):
    """The input and the output of every sublayer's residual, and the output of the sublayer itself, in one pass."""
    result, handles = [], []
    for layer in model.modules():
        if isinstance(layer, EncoderLayer | DecoderLayer):
            for name, residual in sublayers(layer):
                entry = {"norm": residual.norm}
                result.append(entry)
                handles += [
                    getattr(layer, name).register_forward_hook(lambda _, x, y, e=entry: e.update(change=y)),
                    residual.register_forward_hook(lambda _, x, y, e=entry: e.update(before=x[0], after=y)),
                ]
    with torch.no_grad():
        model(source, target)
    for handle in handles:
        handle.remove()
    return result


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize(("residual", "factor"), FACTORS)
def test_every_sublayer_scales_its_input_by_the_factor(residual, factor, norm_first):
    model = rough_model("hnas", residual=residual, norm_first=norm_first, encoder_layers=2)
    actual = follow(model, sources([7, 4]), targets([5, 3]))
    assert len(actual) == 2 * 2 + 2 * 3
    for item in actual:
        expected = factor * item["before"] + item["change"]
        if not norm_first:  # the norm, by its definition
            expected = normed(expected, item["norm"])
        close = tolerance(torch.float64, size=builders.SMALL["d_model"], scale=expected.abs().max())
        assert_close(item["after"], expected, **close)


@pytest.mark.parametrize("norm_first", [True, False])
def test_a_factor_of_one_is_the_model_as_it_always_was(norm_first):
    """Bit for bit, in states and gradients: the default, true and 1 are the same."""
    results = []
    for settings in ({}, {"residual": True}, {"residual": 1.0}):
        model = build_model("hnas", norm_first=norm_first, **settings)
        states = model(sources([7, 4]), targets([5, 3]))
        states.square().sum().backward()
        results.append([states, *(p.grad for p in model.parameters() if p.grad is not None)])
    for other in results[1:]:
        assert len(other) == len(results[0]) and all(map(torch.equal, results[0], other))


def test_without_skip_connections_uniform_attention_makes_all_states_equal():
    """With uniform weights, all positions get the same average, so only a skip connection keeps them apart."""
    spread = {}
    for residual in (True, 0.5, False):
        model = rough_model("softmax", residual=residual, encoder_layers=2)
        for layer in model.encoder.layers:
            torch.nn.init.zeros_(layer.attention.query.weight)
            torch.nn.init.zeros_(layer.attention.query.bias)
        states = model.encode(sources([8]))[0]
        spread[residual] = (states - states.mean(0)).norm()
    close = tolerance(torch.float64, depth=2, size=12, scale=states.abs().max())
    assert spread[False] <= close["atol"] * states.numel() ** 0.5
    assert min(spread[True], spread[0.5]) > 0.1


@pytest.mark.parametrize("value", ["-0.5", "half", "null", "inf"])
def test_a_wrong_factor_is_refused(value):
    with pytest.raises(ConfigError, match=rf"model\.residual=.*{value.strip('-')}.*allowed: true, false.*number"):
        tiny(f"model.residual={value}")


def test_a_factor_without_effect_is_refused():
    with pytest.raises(ConfigError, match=r"model\.residual.*model\.question=transformer or model=mcan_small"):
        tiny("model.residual=false", task="vqa")
