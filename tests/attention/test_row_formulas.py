"""sink, off_by_one, ssmax, sigmoid, relu, softpick: each equals its formula, written for one row of numbers.

The reference of a row sees the allowed keys only, so that it knows neither masked keys nor padding. What every
normalizer has to do is checked by the property suite, in test_testing.py.
"""

import math
from functools import partial

import pytest
import reference
import torch
from reference import BATCH, HEADS, randn
from torch.testing import assert_close

from attnorm.attention import Mask, build_normalizer

pytestmark = pytest.mark.numerical


# ------------------------------------------------------------------------------------------------------------ formulas
# Each takes the scores s and log u of the allowed keys of one row, lists of float64 scalars, and numbers of the head.


def sink_row(s, log_u, b):
    numerators = [(x + y).exp() for x, y in zip(s, log_u, strict=True)]
    return [numerator / (b.exp() + sum(numerators)) for numerator in numerators]


def ssmax_row(s, log_u, a, b=0.0, plus=0):
    factor = a * math.log(len(s) + plus) + b
    numerators = [(factor * x + y).exp() for x, y in zip(s, log_u, strict=True)]
    return [numerator / sum(numerators) for numerator in numerators]


def sigmoid_row(s, log_u, b=0.0):
    return [1 / (1 + (-(x + y + b)).exp()) for x, y in zip(s, log_u, strict=True)]


def relu_row(s, log_u, power=1.0):
    return [(x + y).clamp(min=0) / len(s) ** power for x, y in zip(s, log_u, strict=True)]


def softpick_row(s, log_u, eps=1e-8):
    numbers = [(x + y).exp() - 1 for x, y in zip(s, log_u, strict=True)]
    return [number.clamp(min=0) / (sum(x.abs() for x in numbers) + eps) for number in numbers]


def log_n(row):
    """A formula whose b is less by log n."""
    return lambda s, log_u, b=0.0: row(s, log_u, b - math.log(len(s)))


VARIANTS = {  # name, options, formula with the trained numbers of the head
    "sink": ("sink", {"heads": HEADS}, sink_row),
    "sink_fixed": ("sink", {"fixed": 0.7}, lambda s, u: sink_row(s, u, torch.tensor(0.7, dtype=torch.float64))),
    "off_by_one": ("off_by_one", {}, lambda s, u: sink_row(s, u, torch.tensor(0.0))),
    "softmax_5": ("off_by_one", {"n": 5}, lambda s, u: sink_row(s, u, torch.tensor(5.0).double().log())),
    "ssmax": ("ssmax", {"heads": HEADS}, ssmax_row),
    "ssmax_bias": ("ssmax", {"heads": HEADS, "bias": True}, ssmax_row),
    "ssmax_plus": ("ssmax", {"fixed": 1.0, "plus_one": True}, lambda s, u: ssmax_row(s, u, 1.0, plus=1)),
    "sigmoid": ("sigmoid", {}, log_n(sigmoid_row)),
    "sigmoid_learn": ("sigmoid", {"learn": True, "heads": HEADS}, log_n(sigmoid_row)),
    "sigmoid_0": ("sigmoid", {"bias": 0.0}, sigmoid_row),
    "relu": ("relu", {}, relu_row),
    "relu_half": ("relu", {"power": 0.5}, lambda s, u: relu_row(s, u, 0.5)),
    "softpick": ("softpick", {}, softpick_row),
    "softpick_eps": ("softpick", {"eps": 0.3}, lambda s, u: softpick_row(s, u, 0.3)),
}


def make(variant, dtype=torch.float64):
    """The normalizer, with other numbers in each head than at the start."""
    name, options, _ = VARIANTS[variant]
    module = build_normalizer(name, **options).to(dtype)
    for seed, parameter in enumerate(module.parameters()):
        parameter.data += randn(*parameter.shape, seed=20 + seed, dtype=dtype)
    return module


def rows_of(row):
    """The formula of all rows: it sees the allowed keys alone, and the weight of a key without a prior is 0."""

    def formula(scores, allowed, log_prior, *numbers):
        weights = [[0.0] * len(scores[0]) for _ in scores]
        for i, (s, u) in enumerate(zip(scores, log_prior, strict=True)):
            keys = [j for j in range(len(s)) if allowed[i][j]]
            for j, weight in zip(
                keys, row([s[j] for j in keys], [u[j] for j in keys], *numbers) if keys else [], strict=True
            ):
                weights[i][j] = weight if u[j] > -torch.inf else 0.0
        return weights

    return formula


def by_rows(variant, module, *given):
    """The weights, differentiable in scores, log_prior and the parameters; 0 / 0 is a row without a prior."""
    numbers = [*module.parameters()]
    return reference.weights(rows_of(VARIANTS[variant][2]), *given, numbers=numbers).nan_to_num(0.0)


@pytest.mark.parametrize("variant", VARIANTS)
def test_weights_attend_and_their_gradients_equal_the_formula(variant):
    module, holes = make(variant), "softmax" in variant or VARIANTS[variant][0] in ("sink", "off_by_one")
    priors = reference.PRIORS if holes else reference.PRIORS[:3]  # the gradient of the reference would be NaN
    shift = [*VARIANTS].index(variant)
    reference.assert_formula(module, partial(by_rows, variant, module), shift=shift, priors=priors)


# ---------------------------------------------------------------------------------------------- what they are made for


@pytest.mark.parametrize("constant", [-1e4, -80.0, 80.0, 1e4])
def test_a_sink_keeps_its_score_whatever_the_largest_score(constant):
    """The fault of a port: 1 is added after the maximum was subtracted, which is a sink of the largest score."""
    scores = randn(BATCH, HEADS, 4, 5, seed=3, dtype=torch.float32)
    found = build_normalizer("off_by_one")((scores + constant).float()).sum(-1)
    expected = torch.full_like(found, float(constant > 0))
    assert_close(found, expected)


def test_ssmax_keeps_the_weight_of_a_clear_winner_at_any_length():
    """Fig. 1 of the paper: one score of 3 among others of -2, s = 0.43."""
    module, softmax = build_normalizer("ssmax", fixed=0.43), build_normalizer("softmax")
    for n in (10, 100, 1000, 10_000):
        scores = torch.full((1, 1, 1, n), -2.0)
        scores[..., 0] = 3.0
        assert module(scores)[..., 0] > 0.9
        assert n < 1000 or softmax(scores)[..., 0] < 0.15


@pytest.mark.parametrize("name", ["gpt_oss", "granite_swa"])
def test_a_sink_is_that_of_transformers(name):
    """Both of its forms: the sink as a further column, and the sigmoid of the logsumexp."""
    module = pytest.importorskip(f"transformers.models.{name}.modeling_{name}")
    sink = make("sink", torch.float32)
    q, k, v = reference.make_qkv(6, 6, width=8, dtype=torch.float32)
    site = torch.nn.Module()
    site.num_key_value_groups, site.sinks = 1, next(sink.parameters()).detach().clone().requires_grad_()
    causal = torch.full((6, 6), torch.finfo(torch.float32).min).triu(1)
    q, k, v = reference.leaves(q, k, v)
    theirs, _ = module.eager_attention_forward(site.train(False), q, k, v, causal, 0.4)
    ours = sink.attend(q, k, v, Mask(causal=True), scale=0.4)
    assert_close(ours, theirs.transpose(1, 2), rtol=1e-5, atol=1e-6)
    wanted = reference.gradients(theirs.transpose(1, 2), [q, k, v, site.sinks])
    assert_close(reference.gradients(ours, [q, k, v, *sink.parameters()]), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["softpick", "relu"])
def test_a_row_of_negative_scores_is_dead(name):
    """Its weights and gradients are 0; a row with one positive score is not."""
    for low in (-1e-3, -1.0, -300.0, -1e5):  # exp(300) overflows in float32
        scores = torch.full((1, 1, 2, 5), low)
        scores[..., 1, 2] = 1.0
        scores.requires_grad_()
        weights = build_normalizer(name)(scores)
        weights.square().sum().backward()
        assert not weights[..., 0, :].any() and not scores.grad[..., 0, :].any()
        assert weights[..., 1, 2] > 0.1 and weights.isfinite().all() and scores.grad[..., 1, 2] != 0


def test_softpick_of_small_scores_is_as_precise_as_of_large_ones():
    for size in (1.0, 1e-3, 1e-6):
        scores = size * randn(1, 1, 20, 30, seed=4)
        exact = build_normalizer("softpick")(scores)
        found = build_normalizer("softpick")(scores.float()).double()
        assert (found - exact).abs().max() <= 8 * torch.finfo(torch.float32).eps * exact.max()


def test_a_fixed_number_stays_in_float32_in_a_model_of_16_bits():
    for name, options in (("off_by_one", {"n": 3.0}), ("sink", {"fixed": 0.3}), ("dnas_slack", {"fixed": 0.3})):
        scores = randn(1, 2, 4, 5, seed=4).float()
        module = build_normalizer(name, **options)
        expected = module(scores)
        assert torch.equal(module.bfloat16()(scores), expected)
        with torch.device("meta"):
            empty = build_normalizer(name, **options)
        assert torch.equal(empty.to_empty(device="cpu").float()(scores), expected)


# -------------------------------------------------------------------------------------------------------------- options


@pytest.mark.parametrize(
    "name, options, recorded",
    [
        ("sink", {}, {"sink": 0.0}),
        ("sink", {"fixed": 1.0}, {}),
        ("off_by_one", {}, {}),
        ("ssmax", {"bias": True}, {"ssmax_slope": 0.168, "ssmax_bias": 0.0}),
        ("sigmoid", {}, {}),
        ("sigmoid", {"learn": True}, {"sigmoid_bias": 0.0}),
        ("dnas_slack", {"start": 2.0}, {"slack": 2.0}),
        ("dnas_slack_prefix", {"fixed": 2.0}, {}),
    ],
)
def test_what_each_head_learns_is_recorded_and_trained_as_hybrid_weights_are(name, options, recorded):
    facts = {"heads": 3} if name != "off_by_one" else {}
    module = build_normalizer(name, **options, **facts)
    found = module.learned_scalars()
    assert {key: value.shape for key, value in found.items()} == dict.fromkeys(recorded, (3,))
    for key, value in recorded.items():
        assert_close(found[key], torch.full((3,), value))
    fast = {id(x) for part in module.modules() if hasattr(part, "fast_parameters") for x in part.fast_parameters()}
    assert fast == {id(parameter) for parameter in module.parameters()}
