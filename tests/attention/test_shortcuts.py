"""A shortcut of a parent class is given up where a class below overrides what it shortcuts."""

import pytest
import torch
from reference import HEADS, WIDTH, make_qkv, randn
from torch.testing import assert_close

from attnorm.attention import Mask, MultiHeadAttention
from attnorm.attention.normalizers.dnas import DNAS
from attnorm.attention.normalizers.hnas import HNAS
from attnorm.attention.normalizers.shared.key_bias import KeyBiased, attention_form
from attnorm.attention.normalizers.sinkhorn import Sinkhorn
from attnorm.attention.normalizers.softmax import Softmax
from attnorm.attention.normalizers.ssmax import SSMax
from attnorm.attention.registry import NORMALIZERS, build
from attnorm.attention.scorers import ScaledDot
from attnorm.attention.testing.before_training import first_failure
from attnorm.imports import find

pytestmark = pytest.mark.numerical

SIZES = {"heads": HEADS, "width": WIDTH, "state_width": WIDTH}
Q, K, V = make_qkv(5, 5)
MASKS = [None, Mask(keys=torch.arange(5).expand(2, 5) < 4, queries=torch.arange(5).expand(2, 5) < 4)]


def formula(s):
    """Sharper than softmax, without a mask or prior; s is -inf or very low at masked pairs."""
    return torch.where(s > -1e9, 3 * s.clamp(min=-1e9), -torch.inf).softmax(-1).nan_to_num(0.0)


def below(parent, **methods):
    return type(f"Own{parent.__name__}", (parent,), methods)


def built(cls, name):
    """An instance, by way of the registered name, whose constructor may need sizes."""
    module = build("normalizer", name, {}, SIZES)
    module.__class__ = cls
    return module.double()


@pytest.mark.parametrize("form", ["dense", "linear"])
@pytest.mark.parametrize("name", NORMALIZERS)
def test_the_weights_of_a_class_below_are_used_by_every_call(name, form):
    parent = find("normalizer", name, NORMALIZERS)
    module = built(below(parent, weights=lambda self, s, given: formula(s)), name)
    module._in_layer = True
    features = None if module.needs_states == "none" else module.features_of(randn(2, 5, WIDTH))
    given = {} if features is None else {"features": features}
    for mask in MASKS:
        scores = Q @ K.mT * WIDTH**-0.5
        allowed = torch.ones(5, 5) > 0 if mask is None else mask.dense(5, 5)
        expected = formula(scores.masked_fill(~allowed, -torch.inf))
        assert_close(module(scores, mask, keys=K, scale=WIDTH**-0.5, **module.declared(Q, features)), expected)
        with attention_form(form):
            assert_close(module.attend(Q, K, V, mask, **given), expected @ V)
    if not given and module.remainder_value() is None and not module.needs_causal:
        layer = MultiHeadAttention(HEADS * WIDTH, HEADS, module, ScaledDot())
        assert layer.double()(randn(2, 5, HEADS * WIDTH), None).abs().max() > 0  # also below `none`


@pytest.mark.parametrize(
    ("cls", "name"),
    [
        (below(Softmax, forward=lambda self, s, mask=None, **_: formula(s)), "softmax"),
        (below(below(Softmax, weights=lambda self, s, given: formula(s)), learned_scalars=lambda self: {}), "softmax"),
        (below(SSMax, factor=lambda self, s, given: torch.full_like(s[..., :1], 3.0)), "ssmax"),
        (below(Sinkhorn, row_step=staticmethod(lambda s, given: s)), "sinkhorn"),
        (below(HNAS, mix=lambda self, doubly, softmax: doubly), "hnas"),
    ],
    ids=lambda it: getattr(it, "__name__", it),
)
def test_what_the_formula_consists_of_is_used_by_every_call(cls, name):
    module = built(cls, name)
    parent = build("normalizer", name, {}, SIZES).double()
    for form in ("dense", "linear"):
        with attention_form(form):
            found = module.attend(Q, K, V)
        assert_close(found, module(Q @ K.mT * WIDTH**-0.5) @ V)
        assert not torch.allclose(found, parent.attend(Q, K, V))


@pytest.mark.parametrize("name", ["softmax", "dnas", "sinkhorn", "ssmax", "fenchel", "continuous", "sink", "hnas"])
def test_a_class_may_change_the_scores_of_its_parent(name):
    """As `class Twice(Softmax)`, whose weights are those of softmax for twice the scores."""
    parent = find("normalizer", name, NORMALIZERS)
    twice = built(below(parent, weights=lambda self, s, given: parent.weights(self, 2 * s, given)), name)
    assert first_failure(twice, heads=HEADS, causal=False, prior=False) is None
    scores = Q @ K.mT * WIDTH**-0.5
    for mask in MASKS:
        wanted = build("normalizer", name, {}, SIZES).double()(2 * scores, mask, keys=K, scale=WIDTH**-0.5)
        assert_close(twice.attend(Q, K, V, mask), wanted @ V)
        assert_close(twice(scores, mask, keys=K, scale=WIDTH**-0.5), wanted)


def test_a_class_that_overrides_only_hooks_keeps_the_shortcuts():
    hooks = {"__init__": lambda self: DNAS.__init__(self), "learned_scalars": lambda self: {}}
    assert below(DNAS, **hooks)._has_fast_way
    assert below(Softmax, **{**hooks, "__init__": Softmax.__init__}).finite_scores
    assert not below(DNAS, weights=lambda self, s, given: s)._has_fast_way
    both = {"weights": Softmax.weights, "key_bias": KeyBiased.key_bias}
    assert below(DNAS, **both).fast_attend is KeyBiased.fast_attend


@pytest.mark.parametrize("parent", [Softmax, DNAS])
def test_a_bias_of_keys_that_the_weights_do_not_have_is_refused_before_training(parent):
    def key_bias(self, q, k, given, queries):
        return 0.1 * k.sum(-1)[..., None, :]

    failure = first_failure(below(parent, key_bias=key_bias)(), heads=2, causal=False, prior=False)
    assert failure is not None and failure.name == "attend_equals_forward_times_values"
    assert first_failure(parent(), heads=2, causal=False, prior=False) is None
