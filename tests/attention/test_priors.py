"""Priors: formulas as loops, T5's table as transformers has it, a cached query's row, and their way into a model."""

import math
from itertools import product

import builders
import pytest
import reference
import torch
from reference import BATCH, MASKS, case, randn
from torch.testing import assert_close

from attnorm.attention import Mask, build_normalizer
from attnorm.attention.call_context import in_layer
from attnorm.attention.priors import T5, Content, Learned, Sum, positions_in
from attnorm.attention.registry import build_prior

pytestmark = pytest.mark.numerical

TIGHT = {"rtol": 1e-10, "atol": 1e-10}
HEADS, WIDTH = 3, 4
PRIORS = {
    "uniform": ("uniform", {}),
    "t5": ("t5", {"heads": HEADS}),
    "t5_causal": ("t5", {"heads": HEADS, "bidirectional": False}),
    "alibi": ("alibi", {"heads": HEADS}),
    "learned": ("learned", {"heads": HEADS, "positions": 50}),
    "content": ("content", {"heads": HEADS, "width": WIDTH, "hidden": 5}),
    "content_gelu": ("content", {"heads": HEADS, "width": WIDTH, "activation": "gelu"}),
}
OF_THE_PLACE = [kind for kind in PRIORS if not kind.startswith("content")]  # these see positions, not states


def make(kind):
    """A prior in float64 with random parameters."""
    name, options = PRIORS[kind]
    prior = build_prior(name, **options).double()
    for seed, parameter in enumerate(prior.parameters()):
        parameter.data = randn(*parameter.shape, seed=seed)
    return prior


def key_states(n_keys, batch=BATCH, seed=9):
    return randn(batch, n_keys, WIDTH, seed=seed)


def table(prior, n_queries, n_keys, query_offset=0, mask=None):
    """log u of a prior, with random states behind the keys."""
    return prior(n_queries, n_keys, query_offset, key_states(n_keys), mask)


# ------------------------------------------------------------------------------------------------------------ formulas


@pytest.fixture
def t5_attention():
    return pytest.importorskip("transformers.models.t5.modeling_t5", reason="transformers is not installed")


@pytest.mark.parametrize("bidirectional", [True, False])
def test_t5_buckets_equal_those_of_transformers(t5_attention, bidirectional):
    relative = torch.arange(-600, 601)[None]
    for buckets, max_distance in ((32, 128), (8, 20), (12, 200)):
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
    assert_close(table(ours, 9, 200), theirs.compute_bias(9, 200), rtol=0, atol=0)


@pytest.mark.parametrize("heads", [1, 3, 8])
def test_alibi_falls_by_its_heads_slope_with_every_position(heads):
    log_u = table(build_prior("alibi", heads=heads), 4, 6, 2)
    assert log_u.shape == (1, heads, 4, 6)
    for h in range(heads):
        for i in range(4):
            for j in range(6):
                expected = -(2 ** (-8 * (h + 1) / heads)) * abs(j - (i + 2))
                assert log_u[0, h, i, j].item() == pytest.approx(expected, rel=1e-6)


def test_uniform_prefers_nothing_and_learned_has_a_number_for_each_head_and_key_position():
    uniform, prior = table(make("uniform"), 4, 5), make("learned")
    assert uniform.shape == (1, 1, 1, 1) and not uniform.any()
    assert torch.equal(table(prior, 4, 7, 2), prior.log_u[None, :, None, :7])


def test_learned_starts_without_a_preference_and_has_no_number_for_a_key_beyond_its_positions():
    prior = build_prior("learned", positions=6, heads=2)
    log_u = prior(3, 4, 0, torch.zeros(1, 4, 5), None)
    assert not log_u.any()
    log_u.sum().backward()
    assert torch.equal(prior.log_u.grad, torch.tensor([[1.0, 1, 1, 1, 0, 0]] * 2))  # trained where there were keys
    assert prior(1, 6, 5, torch.zeros(1, 6, 5), None).shape == (1, 2, 1, 6)
    with pytest.raises(ValueError, match="learned prior has 6 positions, got 7 keys"):
        prior(1, 7, 6, torch.zeros(1, 7, 5), None)


def test_the_operations_of_learned_can_be_counted():
    from torch.utils.flop_counter import FlopCounterMode

    with torch.no_grad(), FlopCounterMode(display=False):  # a run counts those of its model
        assert not table(make("learned"), 2, 3).requires_grad


@pytest.mark.parametrize("real", [None, [[1, 1, 1, 1, 0, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0, 0, 0, 0]]])
def test_positions_start_anew_in_each_segment_and_are_zero_at_padding(real):
    segments = torch.tensor([[7, 7, 7, 2, 2, 9, 7, 7, 0], [4] * 9])
    expected = torch.tensor([[0, 1, 2, 0, 1, 0, 0, 1, 0], list(range(9))])
    if real is None:
        assert torch.equal(positions_in(segments), expected)
    else:
        real = torch.tensor(real).bool()
        assert torch.equal(positions_in(segments, real), expected * real)


def test_learned_counts_positions_within_a_segment():
    segments = torch.tensor([[7, 7, 7, 2, 2, 9, 9], [1, 4, 4, 4, 4, 4, 4]])
    real = torch.tensor([[1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 0, 0, 0]]).bool()
    prior = build_prior("learned", positions=3, heads=HEADS).double()
    prior.log_u.data = randn(HEADS, 3)
    states = randn(2, 7, WIDTH)
    log_u = prior(7, 7, 0, states, Mask(queries=real, keys=real, segments=segments))
    assert log_u.shape == (2, HEADS, 1, 7)
    for text, places in enumerate([[0, 1, 2, 0, 1], [0, 0, 1, 2]]):
        for key, place in enumerate(places):
            assert torch.equal(log_u[text, :, 0, key], prior.log_u[:, place])
    with pytest.raises(ValueError, match="learned prior has 3 positions, got 6 keys"):
        prior(7, 7, 0, states, Mask(segments=segments))


# ------------------------------------------------------------------------------------------------------------- content


def proposed(prior, states, allowed, n_queries, gelu=False):
    """u (B, H, N, M) of a content prior, number by number: a softmax of the network over each row's allowed keys."""
    first, second = prior.network[0], prior.network[2]
    allowed = allowed.expand(BATCH, HEADS, n_queries, states.shape[1])
    u = torch.zeros(allowed.shape, dtype=torch.float64)
    for b in range(BATCH):
        strengths = []
        for x in states[b].tolist():
            inside = [sum(map(math.prod, zip(w, x, strict=True))) for w in first.weight.tolist()]
            inside = [a + c for a, c in zip(inside, first.bias.tolist(), strict=True)]
            inside = [a * (1 + math.erf(a / 2**0.5)) / 2 if gelu else math.tanh(a) for a in inside]
            outside = [sum(map(math.prod, zip(w, inside, strict=True))) for w in second.weight.tolist()]
            strengths.append([math.exp(a) for a in outside])
        for h in range(HEADS):
            for i in range(n_queries):
                mine = [j for j in range(states.shape[1]) if allowed[b, h, i, j]]
                for j in mine:
                    u[b, h, i, j] = strengths[j][h] / sum(strengths[other][h] for other in mine)
    return u


# all queries (of a segment) may see the same keys
SHARED = ("none", "key_padding", "both_sides", "empty_example", "segments")
OF_THREE_HEADS = [name for name, case in MASKS.items() if case.allowed.shape[1] == 1]


@pytest.mark.parametrize("kind", ["content", "content_gelu"])
def test_content_is_a_distribution_over_the_keys_a_row_may_see(kind):
    prior = make(kind)
    for mask, form in product(OF_THREE_HEADS, ("compact", "dense")):
        (n, m), allowed, compact = MASKS[mask].size, MASKS[mask].allowed, MASKS[mask].compact
        if form == "compact" and compact is None:
            continue
        states = key_states(m)
        log_u = prior(n, m, 0, states, Mask(**compact) if form == "compact" else allowed)
        if compact == {}:
            assert torch.equal(prior(n, m, 0, states, None), log_u[:, :, :1])
        if form == "compact":
            assert log_u.shape == (BATCH, HEADS, 1 if mask in SHARED else n, m)
        log_u, allowed = log_u.expand(BATCH, HEADS, n, -1), allowed.expand(BATCH, HEADS, n, m)
        assert log_u.isfinite().all()
        live = allowed
        if form == "compact" and compact.get("queries") is not None:  # rows of padded queries are nobody's
            live = allowed & compact["queries"][:, None, :, None]
        expected = proposed(prior, states, allowed, n, gelu=kind == "content_gelu")
        with case(mask, form):
            assert_close(log_u.exp()[live], expected[live], **TIGHT)


def test_content_takes_a_bool_mask_for_all_queries_as_key_only_and_refuses_numbers():
    keys, prior, states = torch.tensor([[True] * 5, [True] * 3 + [False] * 2]), make("content"), key_states(5)
    log_u = prior(4, 5, 0, states, keys[:, None, None])
    assert torch.equal(log_u, prior(4, 5, 0, states, Mask(keys=keys))) and log_u.shape == (BATCH, HEADS, 1, 5)
    by_head = torch.rand(1, HEADS, 4, 5, generator=torch.Generator().manual_seed(1)) < 0.6
    assert_close(prior(4, 5, 0, states, by_head).exp() * by_head, proposed(prior, states, by_head, 4), **TIGHT)
    with pytest.raises(ValueError, match="bool"):
        prior(4, 5, 0, states, torch.zeros(4, 5))


@pytest.mark.parametrize("normalizer", ["softmax", "dnas", "dnas_prefix"])
def test_content_never_gives_nan_and_no_gradient_to_a_key_that_nobody_sees(normalizer):
    prior = make("content")
    for mask in OF_THREE_HEADS:
        given, (n, m) = MASKS[mask].argument, MASKS[mask].size
        states = key_states(m).requires_grad_()
        log_prior, module = prior(n, m, 0, states, given), in_layer(build_normalizer(normalizer))
        weights = module(randn(BATCH, HEADS, n, m), MASKS[mask].argument_of(module), log_prior=log_prior)
        allowed = MASKS[mask].allowed.expand(weights.shape)
        (gradient,) = reference.gradients(weights, [states])
        several = (allowed.sum(-1, keepdim=True) > 1) & allowed  # an only key has weight 1 whatever its state
        seen = several.any(1).any(1)
        with case(mask):
            assert weights.isfinite().all() and gradient.isfinite().all()
            assert not weights[~allowed].any()
            assert not gradient[~allowed.any(1).any(1)].any()
            assert (gradient[seen].abs().amax(-1) > 0).all()


@pytest.mark.parametrize("mask", ["causal", "causal_short", "segments", "padded_causal_segments"])
def test_content_rows_do_not_depend_on_what_they_may_not_see(mask):
    """Bit for bit, in value; a softmax over all keys would carry every key's state into every row."""
    given, (n, m), prior = MASKS[mask].argument, MASKS[mask].size, make("content")
    states, allowed = key_states(m), MASKS[mask].allowed.expand(BATCH, HEADS, n, m)
    before = prior(n, m, 0, states, given).expand(allowed.shape)
    for j in range(m):
        changed = states.clone()
        changed[:, j] += 3.0
        after = prior(n, m, 0, changed, given).expand(allowed.shape)
        blind = (~allowed[..., j : j + 1]) & allowed
        assert torch.equal(after[blind], before[blind])


def test_content_is_a_distribution_over_the_real_keys_of_each_segment():
    prior, states, segments = make("content"), key_states(7), torch.tensor([[4, 4, 9, 9, 9, 4, 2]] * BATCH)
    keys = torch.tensor([[True, True, True, False, True, True, False]] * BATCH)  # segment 2 has no key at all
    log_u = prior(7, 7, 0, states, Mask(keys=keys, segments=segments))
    assert log_u.shape == (BATCH, HEADS, 1, 7) and log_u.isfinite().all()
    for segment in (4, 9):
        assert_close(log_u[..., (segments[0] == segment) & keys[0]].exp().sum(-1), log_u.new_ones(BATCH, HEADS, 1))
    (gradient,) = torch.autograd.grad(log_u[..., 0].sum(), prior.network[0].weight)
    assert gradient.isfinite().all()


def test_content_is_computed_in_float32_where_the_network_is_not():
    log_u = make("content").bfloat16()(6, 6, 0, key_states(6).bfloat16(), Mask(causal=True))
    assert log_u.dtype == torch.float32
    assert_close(log_u.exp().tril().sum(-1), torch.ones(BATCH, HEADS, 6), rtol=1e-5, atol=1e-5)


# ------------------------------------------------------------------------------------------------------ all the tables


@pytest.mark.parametrize("kind", OF_THE_PLACE)
def test_a_query_at_an_offset_gets_its_row_of_the_full_table(kind):
    prior, n, m = make(kind), 30, 40
    full = table(prior, n, m).expand(1, HEADS, n, m)
    for t in (0, 1, 17, 29):
        assert_close(table(prior, 1, m, t).expand(1, HEADS, 1, m), full[..., t : t + 1, :], rtol=0, atol=0)
        grown = table(prior, 1, t + 1, t).expand(1, HEADS, 1, t + 1)
        assert_close(grown, full[..., t : t + 1, : t + 1], rtol=0, atol=0)


def test_a_query_with_the_states_so_far_gets_its_row_of_the_causal_content_table():
    prior, states = make("content"), key_states(9)
    full = prior(9, 9, 0, states, Mask(causal=True))
    for t in range(9):
        step = prior(1, t + 1, t, states[:, : t + 1], Mask())
        assert_close(step, full[:, :, t : t + 1, : t + 1], **TIGHT)


def test_a_sum_of_priors_adds_their_tables():
    parts, mask = {kind: make(kind) for kind in PRIORS}, Mask(causal=True)
    expected = torch.zeros(BATCH, HEADS, 7, 7, dtype=torch.float64)
    for part in parts.values():
        expected = expected + table(part, 7, 7, mask=mask)
    assert_close(table(Sum(parts), 7, 7, mask=mask), expected)
    assert len(list(Sum(parts).parameters())) == 2 + 1 + 2 * 3  # t5 tables, positions, networks: all are trained


@pytest.mark.parametrize("kind", PRIORS)
def test_gradients_reach_every_parameter_of_a_prior(kind):
    prior, mask = make(kind), Mask(causal=True)
    log_u = table(prior, 50, 50, mask=mask).expand(BATCH, HEADS, 50, 50)
    if log_u.requires_grad:
        (log_u * randn(50, 50).tril()).sum().backward()
    for name, parameter in prior.named_parameters():
        some = "t5" in kind  # one of its buckets is never used, and 50 positions do not fill all others
        large = parameter.grad.abs() > 1e-3
        assert large.any() if some else large.all(), name


# ------------------------------------------------------------------------------------------------------------- options


@pytest.mark.parametrize("buckets, bidirectional, used", [(4, True, [0, 1, 3]), (2, False, [0, 1])])
def test_the_smallest_t5_table_is_one_that_works(buckets, bidirectional, used):
    """Of the buckets for keys to the right the one at distance 0 stays empty."""
    prior = build_prior("t5", heads=2, buckets=buckets, bidirectional=bidirectional, max_distance=2)
    assert prior.bucket(torch.arange(-9, 10)[None]).unique().tolist() == used


def test_the_hidden_width_of_content_is_that_of_the_states_unless_told():
    assert build_prior("content", width=16, heads=2).network[0].weight.shape == (16, 16)
    assert build_prior("content", width=16, heads=2, hidden=3).network[2].weight.shape == (2, 3)


# ----------------------------------------------------------------------------------------------------------- in a model


def outputs(model):
    source, target = builders.sources([6, 4]), builders.targets([5, 3])
    return model(source, target)[target != builders.PAD]


def with_prior(placement, priors, **settings):
    """A model whose priors are so uneven that they matter."""
    model = builders.rough_model(placement, priors=priors, **settings)
    for module in model.modules():
        if isinstance(module, (T5, Learned)):
            for parameter in module.parameters():
                parameter.data = 2 * randn(*parameter.shape)
        elif isinstance(module, Content):
            module.network[2].weight.data = 2 * randn(*module.network[2].weight.shape)
    return model


@pytest.mark.parametrize("prior", ["t5", "alibi", "learned", "content"])
@pytest.mark.parametrize("site, placement", [("encoder", "dnas"), ("decoder", "hnas_prefix"), ("cross", "softmax")])
def test_a_prior_at_any_site_changes_the_models_output(site, placement, prior):
    with_it, without = with_prior(placement, {site: [prior]}), builders.rough_model(placement)
    assert not torch.allclose(outputs(with_it), outputs(without), atol=1e-4)


@pytest.mark.parametrize("placement", ["softmax", "dnas_prefix"])
def test_a_uniform_prior_changes_nothing(placement):
    model = builders.rough_model(placement, priors={site: ["uniform"] for site in builders.SITES})
    assert_close(outputs(model), outputs(builders.rough_model(placement)), **TIGHT)


STEPPING = [("encoder", "softmax"), ("decoder", "hnas_prefix"), ("cross", "hnas_prefix")]


@pytest.mark.parametrize("priors", [["t5"], ["alibi"], ["learned"], ["content"], ["content", "t5"]], ids="+".join)
@pytest.mark.parametrize("site, placement", STEPPING)
def test_with_a_prior_cached_generation_equals_uncached(site, placement, priors):
    model = with_prior(placement, {site: priors}, tie_embeddings=False, sharpness=3.0, noise=0.6, seed=1)
    texts = builders.generated_with_and_without_cache(model, [6, 4, 2], max_length=7)
    assert len({tuple(headline) for headline in texts}) > 1  # they depend on the article


@pytest.mark.parametrize("site, bidirectional", [("encoder", True), ("decoder", False), ("cross", True)])
def test_a_t5_prior_looks_both_ways_except_in_the_decoder(site, bidirectional):
    model = builders.build_model(priors={site: ["t5"]})
    assert [module.bidirectional for module in model.modules() if isinstance(module, T5)] == [bidirectional]


@pytest.mark.parametrize("site", builders.SITES)
def test_content_and_learned_get_their_sizes_from_the_site(site):
    model = builders.build_model(priors={site: ["learned", "content"]}, options={"content": {"hidden": 3}})
    ((learned, content),) = ([*module.priors.values()] for module in model.modules() if isinstance(module, Sum))
    assert learned.log_u.shape == (2, 12 if site == "decoder" else 10)  # heads, and positions of what holds the keys
    assert [content.network[i].weight.shape for i in (0, 2)] == [(3, 8), (2, 3)]


def seen_by(model, prior, run):
    """What a prior of a model is called with during `run`."""
    calls = []
    handle = prior.register_forward_hook(lambda module, inputs, out: calls.append(inputs))
    run()
    handle.remove()
    return calls


def test_a_prior_looks_at_what_enters_its_stack_and_in_cross_attention_at_the_encoders_output():
    model = with_prior("softmax", {site: ["content"] for site in builders.SITES})
    source, target = builders.sources([6, 4]), builders.targets([5, 3])
    n, t = source.shape[1], target.shape[1]
    expected = {
        model.encoder.prior: (n, n, 0, model.encoder.embeddings(source)),
        model.prior: (t, t, 0, model.embeddings(target)),
        model.cross_prior: (t, n, 0, model.encode(source)),
    }
    for prior, (n_queries, n_keys, offset, states) in expected.items():
        (call,) = seen_by(model, prior, lambda: model(source, target))  # once for all layers
        assert call[:3] == (n_queries, n_keys, offset) and torch.equal(call[3], states)
        assert call[4].causal == (prior is model.prior)
        assert torch.equal(call[4].keys, (target if prior is model.prior else source) != builders.PAD)


USERS_PRIOR = """
import torch


class FirstKey(torch.nn.Module):
    def __init__(self, heads, strength=1.0):
        super().__init__()
        self.strength = torch.nn.Parameter(torch.full((1, heads, 1, 1), strength))

    def forward(self, n_queries, n_keys, query_offset, key_states, mask):
        return self.strength * (torch.arange(n_keys, device=key_states.device) == 0)
"""


@pytest.mark.parametrize("site", builders.SITES)
def test_a_users_prior_works_at_any_site_alone_and_in_a_sum(tmp_path, monkeypatch, site):
    path = f"{builders.users_module(tmp_path, monkeypatch, USERS_PRIOR)}:FirstKey"
    for priors in ([path], ["content", path]):
        kept = {"priors": {site: priors}, "options": {"FirstKey": {"strength": 3.0}}}
        model, without = (with_prior("dnas", **kept, tie_embeddings=False) for _ in range(2))
        for module in without.modules():
            if type(module).__name__ == "FirstKey":
                module.strength.data.zero_()
        assert not torch.allclose(outputs(model), outputs(without), atol=1e-4)
        builders.generated_with_and_without_cache(model, [6, 4, 2], max_length=5)


# -------------------------------------------------------------------------------------------------- unmasked, and facts


def test_unmasked_is_zero_at_the_words_that_are_shown_and_minus_infinity_at_the_others():
    hidden = torch.tensor([[True, False, False], [False, True, True]])
    log_u = build_prior("unmasked")(4, 3, 0, key_states(3), None, masked_positions=hidden)
    assert log_u.tolist() == [[[[-math.inf, 0, 0]]], [[[0, -math.inf, -math.inf]]]]
    assert not build_prior("unmasked")(4, 3, 0, key_states(3), None, masked_positions=None).any()


@pytest.mark.parametrize("name", ["softmax", "dnas", "hnas", "sparsemax", "fenchel"])
@pytest.mark.parametrize("length", [5, 260])  # the dense form, and a fast path
def test_where_all_words_are_masked_a_query_attends_to_nothing(name, length):
    module = build_normalizer(name).double()
    q, k, v = (x.requires_grad_() for x in reference.make_qkv(length, length))
    hidden = torch.ones(BATCH, length, dtype=torch.bool)
    hidden[1, 2] = False
    log_u = build_prior("unmasked")(length, length, 0, q, None, masked_positions=hidden)
    out = module.attend(q, k, v, Mask(queries=~hidden | hidden, keys=~hidden | hidden), log_prior=log_u)
    assert not out[0].any()
    assert_close(out[1], v[1, :, 2:3].expand_as(out[1]), rtol=1e-6, atol=1e-6)
    for gradient in torch.autograd.grad(out.square().sum(), [q, k, v]):
        assert gradient.isfinite().all() and not gradient[0].any()


class Louder(torch.nn.Module):
    """A prior of a user's own that needs two facts."""

    needs = ("volume", "masked_positions")

    def forward(self, n_queries, n_keys, query_offset, key_states, mask, *, volume, masked_positions):
        return volume[:, None, None, :].masked_fill(masked_positions[:, None, None, :], -5.0)


def test_a_sum_gives_each_prior_the_facts_that_it_needs():
    total = Sum({"louder": Louder(), "unmasked": build_prior("unmasked"), "alibi": build_prior("alibi", heads=HEADS)})
    assert total.needs == ("volume", "masked_positions")
    facts = {"volume": randn(1, 4), "masked_positions": torch.tensor([[False, True, False, False]]), "unused": None}
    found = total(4, 4, 0, key_states(4), None, **facts)
    alone = build_prior("alibi", heads=HEADS)(4, 4, 0, key_states(4), None)
    expected = alone.double() + facts["volume"]
    expected[..., 1] = -math.inf
    assert_close(found, expected)
    with pytest.raises(ValueError, match="louder, unmasked, alibi: the model does not provide volume"):
        total(4, 4, 0, key_states(4), None, masked_positions=facts["masked_positions"])
