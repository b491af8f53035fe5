"""The LSTM encoder-decoder: equal to a loop over its equations. Padding, the future and a cache: test_seq2seq.py."""

import math

import pytest
import torch
from builders import PAD, attention_tables, rough_lstm, sources, targets
from torch.testing import assert_close

from attnorm.attention.multihead import observe
from attnorm.attention.priors import Positional
from attnorm.models.recurrent.seq2seq import LSTMSeq2Seq, LSTMSeq2SeqConfig

pytestmark = pytest.mark.numerical


def logits(model, source, target):
    return model.logits(model(source, target))


def lstm_loop(weights, x, h, c):
    """One layer of an LSTM over x (N, W), one position and one gate at a time."""
    w_x, w_h, b_x, b_h = weights
    states = []
    for x_t in x:
        i, f, g, o = (w_x @ x_t + b_x + w_h @ h + b_h).chunk(4)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        states.append(h)
    return torch.stack(states)


def layer(module, number, ending=""):
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    return [getattr(module, f"{name}_l{number}{ending}") for name in names]


@torch.no_grad()
def test_the_scores_equal_a_loop_over_the_equations():
    """Fig. 2a of the Fenchel paper, Eq. 17: evidence, preference, weights and classifier, for one pair and one head."""
    model = rough_lstm(priors=["positional"], scorer="dot", n_heads=1, decoder_layers=1, tie_embeddings=False)
    decoder, source, target = model.decoder, sources([5]), targets([4])
    zeros = torch.zeros(4, dtype=torch.float64)
    x = model.tokens.weight[source[0]] * math.sqrt(8)
    ahead = lstm_loop(layer(model.encoder.lstm, 0), x, zeros, zeros)
    back = lstm_loop(layer(model.encoder.lstm, 0, "_reverse"), x.flip(0), zeros, zeros).flip(0)
    memory = torch.cat([ahead, back], 1)
    h, c = decoder.start(memory.mean(0)).tanh().chunk(2)
    states = lstm_loop(layer(decoder.lstm, 0), model.tokens.weight[target[0]] * math.sqrt(8), h, c)
    attention, reach = decoder.cross, decoder.preference.priors["positional"].log_reach.exp().item()
    templates, values = attention.key_value(memory).chunk(2, 1)
    expected = []
    for k, state in enumerate(states):
        z = attention.query(decoder.evidence(state))
        u = [math.exp(-abs(i - k) / reach) for i in range(len(memory))]
        p = torch.tensor([u_i * math.exp(t_i @ z) for u_i, t_i in zip(u, templates, strict=True)])
        context = attention.output((p / p.sum()).double() @ values)
        expected.append(decoder.output(decoder.combine(torch.cat([context, state]))))
    assert_close(logits(model, source, target)[0], torch.stack(expected), rtol=1e-6, atol=1e-6)  # u and p are float32


def test_templates_may_come_from_anywhere():
    """The decoder knows nothing of the encoder: without a mask, all templates are real."""
    decode, target = rough_lstm().decoder.decode, targets([3, 3])
    templates = torch.randn(2, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    everywhere = torch.ones(2, 5, dtype=torch.bool)
    assert torch.equal(decode(target, templates), decode(target, templates, everywhere))
    assert not torch.equal(decode(target, templates), decode(target, templates, everywhere & (templates[..., 0] > 0)))


def test_initial_parameters_depend_on_the_seed_and_not_on_the_normalizer():
    def parameters(normalizer, seed):
        shape = LSTMSeq2SeqConfig(d_model=8, max_source=5, max_target=5)
        return dict(LSTMSeq2Seq(shape, attention_tables() | {"cross": normalizer}, 11, PAD, seed).named_parameters())

    first, other, third = parameters("softmax", 0), parameters("hnas_prefix", 0), parameters("softmax", 1)
    assert all(torch.equal(value, other[name]) for name, value in first.items())
    assert not torch.equal(first["decoder.lstm.weight_ih_l0"], third["decoder.lstm.weight_ih_l0"])
    assert first["encoder.lstm.bias_ih_l0_reverse"].tolist() == [0.0] * 4 + [1.0] * 4 + [0.0] * 8
    assert not first["encoder.lstm.bias_hh_l0"].any()


@pytest.mark.parametrize(
    "settings, message", [({"n_heads": 3}, "n_heads=3"), ({"d_model": 9, "n_heads": 3}, "d_model=9")]
)
def test_widths_that_do_not_divide_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        LSTMSeq2SeqConfig(**{"d_model": 8, "max_source": 5, "max_target": 5} | settings)


# ------------------------------------------------------------------------------------------- the positional preference


def test_the_positional_preference_is_largest_at_the_own_position():
    prior = Positional(heads=2, reach=2.0)
    with torch.no_grad():
        prior.log_reach[1] = math.log(0.5)
    log_u = prior(3, 4, 1, torch.zeros(1, 4, 8), None)
    distances = [[1, 0, 1, 2], [2, 1, 0, 1], [3, 2, 1, 0]]
    expected = -torch.tensor(distances) * torch.tensor([0.5, 2.0])[:, None, None]
    assert_close(log_u, expected[None])


def test_a_short_reach_moves_the_attention_to_the_diagonal_and_the_reach_is_learned():
    model, seen = rough_lstm(priors=["positional"]), []
    prior = model.decoder.preference.priors["positional"]
    with torch.no_grad():
        prior.log_reach.fill_(math.log(0.01))
    with observe(model, lambda name, weights, allowed: seen.append(weights)):
        model(sources([5]), targets([5])).square().sum().backward()
    assert_close(seen[0], torch.eye(6, dtype=torch.float64).expand(1, 2, 6, 6))
    prior.log_reach.data.fill_(1.0)
    model(sources([5]), targets([5])).square().sum().backward()
    assert (prior.log_reach.grad.abs() > 1e-9).all()


@pytest.mark.parametrize("reach", [0, -1.0, float("inf"), float("nan"), True, "far"])
def test_a_reach_that_is_not_a_positive_number_is_refused(reach):
    with pytest.raises(ValueError, match="reach="):
        Positional(heads=1, reach=reach)
