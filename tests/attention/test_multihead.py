"""Multi-head attention: what an observer sees, what a cache changes (nothing), when weights are dropped."""

import math
from itertools import product

import builders
import pytest
import reference
import torch
import torch.nn.functional as F
from reference import BATCH, HEADS, MASKS, case, randn
from torch.testing import assert_close

from attnorm.attention import Mask, MultiHeadAttention, Normalizer, build_normalizer, observe, smallest_column_mass
from attnorm.attention.multihead import Cache, attention_layers, entropy
from attnorm.attention.registry import build_scorer

pytestmark = pytest.mark.numerical

TIGHT = {"rtol": 1e-10, "atol": 1e-10}
WIDTH = 6
SCORERS = {  # with what their parts take
    "scaled_dot": {},
    "dot": {},
    "bilinear": {"heads": HEADS, "width": WIDTH // HEADS},
    "additive": {"heads": HEADS, "width": WIDTH // HEADS},
    "gaussian": {},
    "qk_norm": {"heads": HEADS, "width": WIDTH // HEADS},
    "softcap": {},
}
# The layer knows of a scorer whether it is a dot type and of a normalizer whether it steps: all four, each part once.
PAIRS = [
    ("softmax", "scaled_dot"),
    ("dnas", "additive"),
    ("hnas", "bilinear"),
    ("dnas_prefix", "gaussian"),
    ("hnas_prefix", "dot"),
    ("softmax", "qk_norm"),
    ("dnas", "softcap"),
]
AUTOREGRESSIVE = [
    ("softmax", "scaled_dot"),
    ("softmax", "additive"),
    ("dnas_prefix", "bilinear"),
    ("dnas_prefix", "gaussian"),
    ("hnas_prefix", "dot"),
    ("dnas_slack_prefix", "dot"),
]


def make_layer(normalizer, dropout=0.0, scorer="scaled_dot"):
    """A layer in float64 with random biases, too."""
    scorer = build_scorer(scorer, **SCORERS[scorer])
    layer = MultiHeadAttention(WIDTH, HEADS, build_normalizer(normalizer), scorer, dropout).double().eval()
    for seed, (name, parameter) in enumerate(layer.named_parameters()):
        if not name.endswith("hybrid"):
            parameter.data = randn(*parameter.shape, seed=seed)
    return layer


def by_hand(layer, states, memory, allowed=None, log_prior=None, keep=None):
    """(output, weights), head by head; `keep` multiplies the weights. Scorers are held to formulas in test_scorers."""
    size = WIDTH // HEADS
    q, kv = layer.query(states), layer.key_value(memory)
    k, v = kv[..., :WIDTH], kv[..., WIDTH:]
    heads = [slice(h * size, (h + 1) * size) for h in range(HEADS)]
    scores = layer.scorer(*(torch.stack([x[..., s] for s in heads], dim=1) for x in (q, k)))
    weights = layer.normalizer(scores, allowed, log_prior=log_prior)
    used = weights if keep is None else weights * keep
    context = torch.cat([used[:, number] @ v[..., h] for number, h in enumerate(heads)], dim=-1)
    return layer.output(context), weights


# ----------------------------------------------------------------------------------------------------------- the layer


@pytest.mark.parametrize("normalizer, scorer", PAIRS)
def test_output_is_the_heads_average_values_by_the_weights_that_observe_sees(normalizer, scorer):
    layer = make_layer(normalizer, scorer=scorer)
    for mask in ("none", "both_sides", "empty_example", "causal", "causal_short"):
        (n_queries, n_keys), expected, seen = MASKS[mask].size, MASKS[mask].allowed, []
        states, memory = randn(BATCH, n_queries, WIDTH, seed=1), randn(BATCH, n_keys, WIDTH, seed=2)
        log_prior = reference.make_log_prior("pairwise", n_queries, n_keys)
        output, expected_weights = by_hand(layer, states, memory, expected, log_prior)
        call = (states, memory, MASKS[mask].argument_of(layer.normalizer))
        with observe(layer, lambda *record, seen=seen: seen.append(record)):
            layer(*call, log_prior=log_prior)
        ((_, weights, allowed),) = seen
        with case(mask):
            assert_close(layer(*call, log_prior=log_prior), output, **TIGHT)
            assert_close(weights, expected_weights, **TIGHT)
            if allowed is None:
                assert expected.all()
            else:
                assert torch.equal(allowed.expand(weights.shape), expected.expand(weights.shape))


class Recorder(Normalizer):
    """softmax that notes its calls: ("attend" or "forward", what it was given)."""

    def __init__(self):
        super().__init__()
        self.calls, self.softmax = [], build_normalizer("softmax")

    def forward(self, scores, mask=None, *, log_prior=None, keys=None, scale=None):
        self.calls.append(("forward", {"scores": scores, "keys": keys, "scale": scale, "log_prior": log_prior}))
        return self.softmax(scores, mask, log_prior=log_prior)

    def attend(self, q, k, v, mask=None, *, log_prior=None, scale=None):
        self.calls.append(("attend", {"q": q, "keys": k, "scale": scale, "log_prior": log_prior}))
        return self.softmax.attend(q, k, v, mask, log_prior=log_prior, scale=scale)


@pytest.mark.parametrize("situation", ["plain", "observed", "dropout"])
@pytest.mark.parametrize("scorer", SCORERS)
def test_dot_types_go_to_attend_unless_the_weights_are_needed_others_to_forward(scorer, situation):
    layer = make_layer("softmax", scorer=scorer, dropout=0.4 * (situation == "dropout"))
    layer.train(situation == "dropout")
    layer.normalizer, layer.observer = Recorder(), (lambda *_: None) if situation == "observed" else None
    states, memory, log_prior = randn(BATCH, 4, WIDTH, seed=1), randn(BATCH, 5, WIDTH, seed=2), randn(1, 1, 1, 5)
    layer(states, memory, log_prior=log_prior)
    ((called, given),) = layer.normalizer.calls
    is_dot = scorer in ("scaled_dot", "dot", "bilinear", "qk_norm")
    assert called == ("attend" if is_dot and situation == "plain" else "forward")
    assert given["log_prior"] is log_prior
    assert given["scale"] == (3**-0.5 if scorer in ("scaled_dot", "bilinear") else 1.0)
    q, k = layer._split(layer.query(states)), layer._split(layer.key_value(memory)[..., :WIDTH])
    assert_close(given["keys"], layer.scorer.project(q, k)[1], **TIGHT)  # normalizers with templates get the keys
    if called == "attend":
        assert_close(given["q"], layer.scorer.project(q, k)[0], **TIGHT)
    else:
        assert_close(given["scores"], layer.scorer(q, k), **TIGHT)


def test_a_width_that_the_heads_do_not_divide_is_refused():
    with pytest.raises(AssertionError, match="width 7 is not divisible by 2 heads"):
        MultiHeadAttention(7, 2, build_normalizer("softmax"), build_scorer("dot"))


# ------------------------------------------------------------------------------------------------------------- observe


@pytest.mark.parametrize("placement", builders.PLACEMENTS)
def test_observe_sees_every_attention_of_a_model_with_the_declared_sums_and_leaves_the_output(placement):
    model = builders.rough_model(placement)
    layers = attention_layers(model)
    source, target = builders.sources([5, 3]), builders.targets([4, 2])
    before, seen = model(source, target), {}
    with observe(model, lambda name, weights, allowed: seen.setdefault(name, (weights, allowed))):
        during = model(source, target)
    assert list(seen) == list(layers) and len(seen) == 5  # one encoder layer, two decoder layers
    for name, (weights, allowed) in seen.items():
        alive = allowed.expand(weights.shape).any(-1)
        assert 0 < alive.sum() < alive.numel()  # there are real and padded rows
        total, mass = layers[name].normalizer.total, weights.sum(-1)
        least, most = total if isinstance(total, tuple) else (total, total)
        assert (mass[alive] >= least - 1e-10).all() and (mass[alive] <= most + 1e-10).all() and not mass[~alive].any()
        assert (weights >= 0).all() and not weights.masked_select(~allowed.expand(weights.shape)).any()
    assert_close(during, before, **TIGHT)


def test_observe_leaves_nothing_behind_even_after_an_error():
    model, calls = builders.rough_model(), []
    source, target = builders.sources([3]), builders.targets([2])
    with pytest.raises(KeyError), observe(model, lambda *call: calls.append(call)):
        model(source, target)
        raise KeyError
    count = len(calls)
    model(source, target)
    assert len(calls) == count > 0
    assert all(layer.observer is None for layer in attention_layers(model).values())


# -------------------------------------------------------------------------------------------------------- column mass


def test_entropy_is_that_of_the_shares_of_each_live_row():
    """By loops, for weights that are negative, sum to less than 1, or are all 0."""
    weights = randn(2, 3, 4, 5) * torch.tensor([1.0, 0.2, 0.0, 3.0])[:, None]
    for head, found in enumerate(entropy(weights).tolist()):
        rows = [row for row in weights[:, head].flatten(0, 1).abs().tolist() if sum(row)]
        each = [-sum(w / sum(row) * math.log(w / sum(row)) for w in row) for row in rows]
        assert len(each) == 6 and math.isclose(found, sum(each) / 6)
    assert torch.equal(entropy(torch.eye(4).expand(1, 2, 4, 4)), torch.zeros(2))


def test_smallest_column_mass_is_the_least_sum_over_queries_of_a_key_that_some_query_may_see():
    for mask, (n_queries, n_keys) in ((name, given.size) for name, given in MASKS.items()):
        allowed = MASKS[mask].allowed.expand(BATCH, HEADS, n_queries, n_keys)
        weights = randn(*allowed.shape).abs() * allowed
        actual = smallest_column_mass(weights, MASKS[mask].allowed)
        assert actual.shape == (BATCH, HEADS)
        for b, h in product(range(BATCH), range(HEADS)):
            seen = [j for j in range(n_keys) if any(allowed[b, h, i, j] for i in range(n_queries))]
            masses = [sum(weights[b, h, i, j].item() for i in range(n_queries)) for j in seen]
            with case(mask, b, h):
                assert actual[b, h].item() == pytest.approx(min(masses, default=float("inf")), rel=1e-12)
        if mask == "none":
            assert torch.equal(smallest_column_mass(weights, None), actual)


# -------------------------------------------------------------------------------------------------------------- cache

ORDERS = {"kept": torch.tensor([0, 1]), "reordered": torch.tensor([1, 0]), "fewer": torch.tensor([1])}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("normalizer, scorer", AUTOREGRESSIVE)
def test_cached_self_attention_equals_the_causal_full_pass(normalizer, order, scorer):
    layer, n = make_layer(normalizer, scorer=scorer), 5
    x, log_prior = randn(BATCH, n, WIDTH), randn(1, HEADS, n, n, seed=4)
    cache = Cache(grows=True)
    for t in range(n):
        if t == 3:
            x = x[ORDERS[order]]
            cache.select(ORDERS[order])
        now = x[:, t : t + 1]
        step = layer(now, now, Mask(), log_prior=log_prior[..., t : t + 1, : t + 1], cache=cache)
        assert cache.k.shape[-2] == t + 1
        full = layer(x, x, Mask(causal=True), log_prior=log_prior)
        assert_close(step, full[:, t : t + 1], **TIGHT)


@pytest.mark.parametrize("normalizer, scorer", AUTOREGRESSIVE)
def test_several_queries_at_once_equal_the_full_pass_or_are_refused(normalizer, scorer):
    """The beginning of a text, and then a token, as decoders of other people do it."""
    layer, n = make_layer(normalizer, scorer=scorer), 5
    x, cache = randn(BATCH, n, WIDTH), Cache(grows=True)
    full = layer(x, x, Mask(causal=True))
    if layer.normalizer.couples_queries == "past":
        with pytest.raises(ValueError, match="depends on earlier queries; give it one at a time, not 4"):
            layer(x[:, :4], x[:, :4], Mask(causal=True), cache=cache)
        return
    for part in (slice(0, 4), slice(4, 5)):
        assert_close(layer(x[:, part], x[:, part], Mask(causal=True), cache=cache), full[:, part], **TIGHT)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("normalizer, scorer", AUTOREGRESSIVE)
def test_cached_cross_attention_equals_the_full_pass_and_projects_the_memory_once(normalizer, order, scorer):
    layer, n, m = make_layer(normalizer, scorer=scorer), 4, 5
    x, memory = randn(BATCH, n, WIDTH), randn(BATCH, m, WIDTH, seed=1)
    keys = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    cache, projections = Cache(grows=False), []
    layer.key_value.register_forward_hook(lambda *_: projections.append(1))
    for t in range(n):
        if t == 2:
            x, memory, keys = (tensor[ORDERS[order]] for tensor in (x, memory, keys))
            cache.select(ORDERS[order])
        projections.clear()
        step = layer(x[:, t : t + 1], memory, Mask(keys=keys), cache=cache)
        assert len(projections) == (t == 0)
        assert_close(step, layer(x, memory, Mask(keys=keys))[:, t : t + 1], **TIGHT)


# ------------------------------------------------------------------------------------------------------------ dropout


@pytest.mark.parametrize("normalizer, scorer", PAIRS)
def test_attention_dropout_acts_in_training_only_and_on_the_weights(normalizer, scorer):
    layer, plain = make_layer(normalizer, dropout=0.4, scorer=scorer), make_layer(normalizer, scorer=scorer)
    states, memory, seen = randn(BATCH, 4, WIDTH, seed=1), randn(BATCH, 5, WIDTH, seed=2), []
    assert torch.equal(layer(states, memory), plain(states, memory))
    layer.train()
    plain.train()
    torch.manual_seed(3)
    with observe(layer, lambda name, weights, allowed: seen.append(weights)):
        dropped = layer(states, memory)
    torch.manual_seed(3)
    keep = F.dropout(torch.ones(BATCH, HEADS, 4, 5, dtype=torch.float64), 0.4)
    expected, weights = by_hand(layer, states, memory, keep=keep)
    assert_close(dropped, expected, **TIGHT)
    assert_close(seen, [weights], **TIGHT)  # before dropout
    assert not torch.allclose(dropped, plain(states, memory))
