"""dnas_slack and dnas_slack_prefix: equal to their loops, to dnas with one more query, and to their ends.

What every normalizer has to do is checked by the property suite, in test_testing.py.
"""

import math

import pytest
import reference
import torch
from reference import BATCH, HEADS, MASKS, case, in_turn, make_qkv, randn
from torch.autograd import gradcheck
from torch.testing import assert_close

from attnorm.attention import Mask, build_normalizer
from attnorm.attention.normalizers._key_bias import DENSE_UP_TO, memory_linear
from attnorm.attention.normalizers.base import Given, Normalizer, add_log_prior, softmax_over_keys
from attnorm.attention.surroundings import in_layer
from attnorm.attention.testing import check_normalizer

pytestmark = pytest.mark.numerical

TIGHT = {"rtol": 1e-10, "atol": 1e-10}
NAMES = ("dnas_slack", "dnas_slack_prefix")
VARIANTS = {f"{name}{' per_query' * each}": (name, each) for name in NAMES for each in (False, True)}


def make(variant, dtype=torch.float64, **options):
    """The normalizer, with a b of its own in each head, one above and one below 0."""
    name, per_query = VARIANTS[variant]
    module = in_layer(build_normalizer(name, per_query=per_query, heads=HEADS, **options).to(dtype))
    if not options:
        next(module.parameters()).data = torch.tensor([0.8, -0.5], dtype=dtype)
    return module


def slack_slice(scores, allowed, log_prior, b, prefix, per_query):
    """xi_ij = exp(s_ij) / (N exp(b) + sum_i' exp(s_i'j)) over the allowed queries i', those up to i with `prefix`;
    N is 1, or the number of these queries with `per_query`. w_ij = u_j xi_ij / sum_j' u_j' xi_ij'."""
    n_queries, n_keys = len(scores), len(scores[0])
    weights = [[0] * n_keys for _ in range(n_queries)]
    for i in range(n_queries):
        numerators = [0] * n_keys
        for j in range(n_keys):
            if allowed[i][j]:
                seen = [row for row in range(i + 1 if prefix else n_queries) if allowed[row][j]]
                total = (len(seen) if per_query else 1) * b.exp() + sum(scores[row][j].exp() for row in seen)
                numerators[j] = log_prior[i][j].exp() * scores[i][j].exp() / total
        total = sum(numerators)
        if total > 0:
            weights[i] = [numerator / total for numerator in numerators]
    return weights


def by_hand(variant, b, scores, allowed=None, log_prior=None):
    """The weights by loops, differentiable in b (H,), scores and log_prior."""
    name, per_query = VARIANTS[variant]
    allowed = (torch.tensor(True) if allowed is None else allowed).expand(scores.shape)
    log_prior = (torch.zeros((), dtype=scores.dtype) if log_prior is None else log_prior).expand(scores.shape)
    entries = []
    for example in range(scores.shape[0]):
        for h in range(scores.shape[1]):
            s, u = ([row.unbind() for row in matrix[example, h].unbind()] for matrix in (scores, log_prior))
            found = slack_slice(s, allowed[example, h].tolist(), u, b[h], name.endswith("prefix"), per_query)
            entries += [torch.as_tensor(x, dtype=scores.dtype) for row in found for x in row]
    return torch.stack(entries).reshape(scores.shape)


@pytest.mark.parametrize("variant", VARIANTS)
def test_weights_attend_and_their_gradients_equal_the_loop_written_formula(variant):
    module = make(variant)
    (b,) = module.parameters()
    for mask, prior in in_turn(shift=[*VARIANTS].index(variant)):
        given = MASKS[mask]
        log_prior = reference.make_log_prior(prior, *given.size)
        q, k, v = (x.requires_grad_() for x in make_qkv(*given.size))
        scores, inputs = 1.5 * (q @ k.mT), [b] if log_prior is None else [b, log_prior.requires_grad_()]
        expected = by_hand(variant, b, scores, given.allowed, log_prior)
        weights = module(scores, given.allowed, log_prior=log_prior)
        output = module.attend(q, k, v, given.argument_of(module), log_prior=log_prior, scale=1.5)
        with case(mask, prior):
            for actual, wanted, of in ((weights, expected, [scores]), (output, expected @ v, [q, k, v])):
                assert_close(actual, wanted, **TIGHT)
                both = (reference.gradients(x, [*of, *inputs]) for x in (actual, wanted))
                for mine, theirs in zip(*both, strict=True):
                    assert_close(mine, theirs, **TIGHT)


@pytest.mark.parametrize("variant", VARIANTS)
def test_gradcheck(variant):
    module, allowed = make(variant), torch.ones(5, 5, dtype=torch.bool).tril()
    scores, log_prior = randn(1, HEADS, 5, 5, seed=31).requires_grad_(), randn(1, 1, 1, 5, seed=32).requires_grad_()
    assert gradcheck(lambda s, u, *_: module(s, allowed, log_prior=u), (scores, log_prior, *module.parameters()))


@pytest.mark.parametrize("start", [-3.0, 0.0, 2.0])
def test_it_is_dnas_with_a_further_query_of_constant_score(start):
    scores = randn(BATCH, HEADS, 5, 7, seed=3)
    real = torch.arange(5) < torch.tensor([[5], [3]])
    more = torch.cat([scores, torch.full_like(scores[..., :1, :], start)], -2)
    queries = torch.cat([real, torch.ones(BATCH, 1, dtype=torch.bool)], 1)
    expected = build_normalizer("dnas").double()(more, Mask(queries=queries))[..., :-1, :]
    assert_close(build_normalizer("dnas_slack", start=start).double()(scores, Mask(queries=real)), expected, **TIGHT)


@pytest.mark.parametrize("variant", VARIANTS)
def test_its_ends_are_softmax_to_the_bit_and_dnas_to_rounding(variant):
    name = variant.split()[0]
    for dtype in (torch.float32, torch.float64):
        scores, log_prior = randn(BATCH, HEADS, 6, 6, seed=3, dtype=dtype), randn(1, 1, 1, 6, seed=4, dtype=dtype)
        for mask in (None, torch.ones(6, 6, dtype=torch.bool).tril()):
            dnas = in_layer(build_normalizer(name.replace("_slack", "")))(scores, mask, log_prior=log_prior)
            low = make(variant, dtype, fixed=-1e4)(scores, mask, log_prior=log_prior)
            assert_close(low, dnas, rtol=0, atol=8 * torch.finfo(dtype).eps)  # scores up to about 4 are rounded twice
            high = make(variant, dtype, fixed=1e4)(scores, mask, log_prior=log_prior)
            softmax = build_normalizer("softmax")(scores, mask, log_prior=log_prior)
            if "per_query" not in variant:
                assert torch.equal(high, softmax)
            elif mask is None:  # N is the same for all keys
                assert_close(high, softmax, rtol=0, atol=1e-6 if dtype == torch.float32 else 1e-14)


def test_the_share_of_the_virtual_query_falls_with_the_number_of_queries_but_not_per_query():
    """Two keys that all queries want unequally have weights as e to 1 in softmax, and equal ones in dnas."""
    for n, odds in ((8, 1.4358), (1024, 1.0045)):
        scores = torch.zeros(1, 1, n, 2, dtype=torch.float64)
        scores[..., 0] = 1.0
        w = build_normalizer("dnas_slack", start=2.0).double()(scores)[0, 0, 0]
        assert (w[0] / w[1]).item() == pytest.approx(odds, abs=1e-4)
        w = build_normalizer("dnas_slack", start=2.0, per_query=True).double()(scores)[0, 0, 0]
        assert (w[0] / w[1]).item() == pytest.approx(math.e * (math.e**2 + 1) / (math.e**2 + math.e), abs=1e-9)


def test_lemma_1_holds_for_the_share_of_the_real_queries_and_not_without_it():
    """sum_i w_ij >= sigmoid(c_j - b) / M; dnas has 1 / M."""
    for seed, factor in enumerate((1.0, 5.0, 30.0)):
        scores = factor * randn(BATCH, HEADS, 6, 9, seed=seed)
        mass = build_normalizer("dnas_slack", fixed=0.5).double()(scores).sum(-2)
        assert (mass >= (scores.logsumexp(-2) - 0.5).sigmoid() / 9 - 1e-12).all()
    scores[..., 0] = -50.0  # a key that no query wants
    assert (build_normalizer("dnas_slack", fixed=0.5).double()(scores).sum(-2)[..., 0] < 1e-9).all()


@pytest.mark.parametrize("variant", [variant for variant in VARIANTS if "prefix" not in variant])
@pytest.mark.parametrize("n, m", [(250, 250), (400, 150)])
def test_the_memory_linear_path_equals_the_weights_times_values(variant, n, m, monkeypatch):
    monkeypatch.setitem(DENSE_UP_TO, "cpu", 0)
    module = make(variant)
    queries = torch.arange(n)[None] < torch.tensor([[n], [n - 70]])
    keys = torch.arange(m)[None] < torch.tensor([[m - 30], [m]])
    masks = {"none": None, "padded": Mask(queries=queries, keys=keys)}
    if n == m:
        masks["packed"] = Mask(queries=queries, keys=queries, segments=(torch.arange(n) // 60).expand(BATCH, n))
    q, k, v = (x.requires_grad_() for x in make_qkv(n, m, width=8))
    log_prior = randn(BATCH, 1, 1, m, seed=9).requires_grad_()
    inputs = [q, k, v, log_prior, *module.parameters()]
    for name, mask in masks.items():
        assert memory_linear(q, k, Given(mask, log_prior))
        wanted = module(q @ k.mT * 8**-0.5, None if mask is None else mask.dense(n, m), log_prior=log_prior) @ v
        with case(name), monkeypatch.context() as patch:
            patch.setattr(Normalizer, "_weights_and_live", lambda *_, **__: pytest.fail("the weights were built"))
            actual = module.attend(q, k, v, mask, log_prior=log_prior)
            assert_close(actual, wanted, **TIGHT)
            for mine, theirs in zip(
                reference.gradients(actual, inputs), reference.gradients(wanted, inputs), strict=True
            ):
                assert_close(mine, theirs, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("variant", VARIANTS)
def test_padded_equals_unpadded_and_packed_equals_separate(variant):
    module = make(variant)
    q, k, v = make_qkv(7, 7, batch=1)
    parts = (slice(3), slice(3, 7))
    alone = [module.attend(q[:, :, at], k[:, :, at], v[:, :, at]) for at in parts]
    packed = module.attend(q, k, v, Mask(segments=torch.tensor([[0, 0, 0, 1, 1, 1, 1]])))
    assert_close(packed, torch.cat(alone, 2), **TIGHT)
    real = torch.tensor([[True] * 3 + [False] * 4])
    padded = module.attend(q, k, v, Mask(queries=real, keys=real))
    assert_close(padded[:, :, :3], alone[0], **TIGHT)


@pytest.mark.parametrize("variant", [variant for variant in VARIANTS if "prefix" in variant])
def test_steps_equal_the_full_pass_also_where_rows_are_reordered(variant):
    module, n = make(variant), 6
    scores, log_prior = randn(BATCH, HEADS, n, n, seed=3), randn(BATCH, HEADS, n, n, seed=4)
    allowed = torch.ones(n, n, dtype=torch.bool).tril().repeat(BATCH, HEADS, 1, 1)
    allowed[0, ..., 1] = False
    allowed[1, ..., 0] = False  # so the first query of this example sees nothing
    for grows in (True, False):
        s, u, pairs, state = scores, log_prior, allowed if grows else allowed.roll(2, -1), None
        for t in range(n):
            if t == 3:
                s, u, pairs, state = (x.flip(0) for x in (s, u, pairs, state))
            now = (..., slice(t, t + 1), slice(t + 1 if grows else n))
            weights, state = module.step(s[now], pairs[now], state, log_prior=u[now])
            full = module(s, pairs, log_prior=u)[now]
            with case(grows, t):
                assert_close(weights, full, **TIGHT)


@pytest.mark.parametrize("variant", VARIANTS)
def test_scores_of_ten_thousand_give_the_weights_of_float64(variant):
    for constant in (-1e4, 0.0, 1e4):
        scores = 1e3 * randn(BATCH, HEADS, 5, 6, seed=3, dtype=torch.float32) + constant
        found, expected = make(variant, torch.float32)(scores), make(variant)(scores.double())
        assert_close(found.double(), expected, rtol=0, atol=2e-3)


class PaddedQueries(Normalizer):
    """dnas_slack with b + log N, where N includes padded queries."""

    couples_queries, proportional_to_prior = "all", True

    def weights(self, s, given):
        c = s.masked_fill(s == -torch.inf, torch.finfo(s.dtype).min).logsumexp(-2, keepdim=True)
        c = torch.logaddexp(c, torch.full_like(c, s.shape[-2]).log())
        return softmax_over_keys(add_log_prior(s - c, given.log_prior))


def test_a_count_of_padded_queries_is_found_by_the_property_suite():
    with pytest.raises(AssertionError, match="mask_equals_shorter_input"):
        check_normalizer(PaddedQueries, properties=["mask_equals_shorter_input"], print_report=False)
    scores, given = randn(BATCH, HEADS, 4, 5, seed=3), MASKS["both_sides"]
    expected = by_hand("dnas_slack per_query", torch.zeros(HEADS), scores, given.allowed)
    found = build_normalizer("dnas_slack", per_query=True).double()(scores, given.allowed)
    assert_close(found, expected, **TIGHT)
    assert (PaddedQueries()(scores, given.allowed) - expected).abs().max() > 0.01
