"""softmax, dnas, sinkhorn and hnas: each equals its loop-written formula and has the properties that this promises."""

import pytest
import reference
import torch
from reference import BATCH, HEADS, MASKS, ONE_OF_EACH, PRIORS, VARIANTS, make, randn
from tolerance import rounding, tolerance
from torch.testing import assert_close

from attnorm.attention import Mask, Normalizer, build_normalizer

pytestmark = pytest.mark.numerical

TIGHT = {"rtol": 1e-10, "atol": 1e-10}
COUPLES_QUERIES = {"softmax": "none", "dnas": "all", "sinkhorn": "all", "hnas": "all"}
UNIT_ROUNDOFF = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


def scores_for(case, factor=1.5, dtype=torch.float64):
    return (factor * randn(BATCH, HEADS, case.n_queries, case.n_keys, seed=3)).to(dtype)


def random_scores(n_queries=4, n_keys=5, factor=1.5):
    return factor * randn(BATCH, HEADS, n_queries, n_keys, seed=4)


def leaves(*tensors):
    """Those that are not None, as leaves that collect gradients (None stays None)."""
    return [None if x is None else x.detach().clone().requires_grad_() for x in tensors]


def present(tensors):
    return [x for x in tensors if x is not None]


def assert_same_value_and_gradients(actual, expected, inputs):
    assert_close(actual, expected, **TIGHT)
    for found, wanted in zip(reference.gradients(actual, inputs), reference.gradients(expected, inputs), strict=True):
        assert_close(found, wanted, **TIGHT)


def mask_argument(case):
    """The compact form where the mask has one."""
    return case.allowed if case.compact is None else Mask(**case.compact)


def live_rows(allowed, log_prior):
    """bool, broadcastable to (B, H, N): the row has an allowed key with prior mass."""
    if log_prior is not None:
        allowed = allowed & (log_prior > -torch.inf)
    return allowed.any(-1)


# ----------------------------------------------------------------------------------------- the formula and its gradient


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_weights_and_their_gradients_equal_the_loop_written_formula(variant, mask, prior):
    case, module = MASKS[mask], make(variant)
    scores, log_prior = leaves(scores_for(case), reference.make_log_prior(prior, case.n_queries, case.n_keys))
    inputs = present([scores, log_prior, *module.parameters()])

    actual = module(scores, case.allowed, log_prior=log_prior)
    v = reference.hybrid_weight_of(variant, module)
    expected = reference.weights(VARIANTS[variant][0], scores, case.allowed, log_prior, v)

    assert_same_value_and_gradients(actual, expected, inputs)


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_attend_and_its_gradients_equal_the_loop_written_formula(variant, mask, prior):
    case, module = MASKS[mask], make(variant)
    log_prior = reference.make_log_prior(prior, case.n_queries, case.n_keys)
    q, k, v, log_prior = leaves(*reference.make_qkv(case.n_queries, case.n_keys), log_prior)
    inputs = present([q, k, v, log_prior, *module.parameters()])

    actual = module.attend(q, k, v, mask_argument(case), log_prior=log_prior)
    hybrid_weight = reference.hybrid_weight_of(variant, module)
    expected = reference.attend(VARIANTS[variant][0], q, k, v, case.allowed, log_prior, hybrid_weight)

    assert_same_value_and_gradients(actual, expected, inputs)


@pytest.mark.parametrize("mask", ["none", "both_sides", "causal", "dead_rows"])
@pytest.mark.parametrize("prior", ["none", "key_only"])
@pytest.mark.parametrize("variant", ONE_OF_EACH)
def test_attend_and_its_gradients_equal_forward_times_values_at_any_scale(variant, prior, mask):
    case, module = MASKS[mask], make(variant)
    log_prior = reference.make_log_prior(prior, case.n_queries, case.n_keys)
    q, k, v, log_prior = leaves(*reference.make_qkv(case.n_queries, case.n_keys), log_prior)
    inputs = present([q, k, v, log_prior, *module.parameters()])
    for scale in (0.2, 1.0, 3.0):
        actual = module.attend(q, k, v, mask_argument(case), log_prior=log_prior, scale=scale)
        scores = scale * q @ k.transpose(-1, -2)
        expected = module(scores, case.allowed, log_prior=log_prior) @ v
        assert_same_value_and_gradients(actual, expected, inputs)


@pytest.mark.parametrize("prior", ["none", "key_only"])
@pytest.mark.parametrize("size", [(130, 200), (2100, 2100)], ids=["hundreds", "thousands"])
@pytest.mark.parametrize("variant", ONE_OF_EACH)
def test_attend_and_its_gradients_equal_forward_times_values_at_lengths_where_a_fast_path_pays(variant, size, prior):
    (n_queries, n_keys), module = size, make(variant, torch.float32)
    # one example, one head: what is tested is the length
    q, k, v = leaves(*reference.make_qkv(n_queries, n_keys, width=8, dtype=torch.float32, batch=1, heads=1))
    (log_prior,) = leaves(randn(1, 1, 1, n_keys, seed=9, dtype=torch.float32) if prior == "key_only" else None)
    inputs = present([q, k, v, log_prior, *module.parameters()])
    mask = Mask(queries=torch.arange(n_queries)[None] < n_queries - 17, keys=torch.arange(n_keys)[None] < n_keys - 30)

    actual = module.attend(q, k, v, mask, log_prior=log_prior)
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    expected = module(scores, mask, log_prior=log_prior) @ v

    assert_close(actual, expected, **tolerance(torch.float32, size=n_keys, scale=expected.abs().max()))
    for found, wanted in zip(reference.gradients(actual, inputs), reference.gradients(expected, inputs), strict=True):
        # sums over all queries or keys: the error is measured against the largest entry
        assert (found - wanted).abs().max() <= rounding(torch.float32, size=max(size)) * wanted.abs().max()


@pytest.mark.parametrize("variant", ONE_OF_EACH)
def test_gradcheck_of_forward_by_central_differences(variant):
    module, allowed = make(variant), MASKS["padded_causal_segments"].allowed[1:]
    scores, log_prior = leaves(*(randn(1, 1, 5, 5, seed=seed) for seed in (3, 4)))

    def forward(scores, log_prior, *_):
        return module(scores, allowed, log_prior=log_prior)

    assert torch.autograd.gradcheck(forward, (scores, log_prior, *module.parameters()))


@pytest.mark.parametrize("variant", ONE_OF_EACH)
def test_gradcheck_of_attend_by_central_differences(variant):
    module = make(variant)
    q, k, v, log_prior = leaves(*reference.make_qkv(3, 4, width=2, batch=1, heads=1), randn(1, 1, 1, 4, seed=8))
    mask = Mask(queries=torch.tensor([[True, True, False]]), keys=torch.tensor([[True, False, True, True]]))

    def attend(q, k, v, log_prior, *_):
        return module.attend(q, k, v, mask, log_prior=log_prior)

    assert torch.autograd.gradcheck(attend, (q, k, v, log_prior, *module.parameters()))


def test_two_clusters_are_as_far_apart_after_an_update_as_the_closed_form_says():
    for variant in ("softmax", "dnas", "hnas_sigmoid"):
        module = make(variant)
        for heavy, light, a in [(1, 1, 0.5), (6, 2, 0.4), (9, 1, 0.7), (2, 5, 0.3)]:
            points = torch.tensor([a] * heavy + [-a] * light, dtype=torch.float64)
            scores = -((points[:, None] - points[None, :]) ** 2) / 2
            updated = module(scores[None, None])[0, 0] @ points
            v = reference.hybrid_weight_of(variant, module)
            expected = reference.cluster_distance(VARIANTS[variant][0], a, heavy / light, v)
            assert_close(updated[0] - updated[-1], expected, **TIGHT)


# ----------------------------------------------------------------------------------------------------- rows and columns


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("variant", ONE_OF_EACH)
def test_live_rows_sum_to_one_dead_rows_are_zero_and_forbidden_pairs_exactly_zero(variant, mask, prior, dtype):
    case = MASKS[mask]
    log_prior = reference.make_log_prior(prior, case.n_queries, case.n_keys)
    w = make(variant, torch.float32)(scores_for(case, dtype=dtype), case.allowed, log_prior=log_prior)
    live = live_rows(case.allowed, log_prior).expand(w.shape[:-1])

    # computed in float32 or wider; in 16 bits each weight is rounded once more, by its share of the sum
    allowed = rounding(torch.float32, size=case.n_keys) + UNIT_ROUNDOFF.get(dtype, 0.0)
    assert_close(w.double().sum(-1), live.double(), rtol=0, atol=allowed)
    assert (w >= 0).all()
    assert (w[~case.allowed.expand(w.shape)] == 0).all()
    assert (w[~live] == 0).all()
    if log_prior is not None:
        assert (w[(log_prior == -torch.inf).expand(w.shape)] == 0).all()


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("variant", ["dnas", "sinkhorn", "hnas_sigmoid", "hnas_heads"])
def test_every_key_that_some_query_may_see_keeps_its_share_of_the_attention(variant, mask):
    """[D] Lemma 1: sum_i w_ij >= 1/M for dnas, M the keys in use, whatever the scores; v/M for hnas."""
    case, module = MASKS[mask], make(variant)
    mass = module(scores_for(case, factor=12), case.allowed).sum(-2)
    seen = case.allowed.expand(BATCH, HEADS, case.n_queries, case.n_keys).any(-2)
    v = reference.hybrid_weight_of(variant, module)
    least = (torch.ones(1) if v is None else v).reshape(-1, 1) / seen.sum(-1, keepdim=True)
    assert (mass >= least - 1e-12)[seen].all()
    assert (mass[~seen] == 0).all()


def test_softmax_may_leave_a_key_without_attention_where_dnas_may_not():
    scores = torch.zeros(1, 1, 3, 4, dtype=torch.float64)
    scores[..., 0] = -20.0  # every query dislikes key 0
    assert make("softmax")(scores).sum(-2)[..., 0] < 1e-8
    assert make("dnas")(scores).sum(-2)[..., 0] >= 1 / 4
    hybrid = build_normalizer("hnas", start=0.3).double()
    assert 0.3 / 4 - 1e-8 <= hybrid(scores).sum(-2)[..., 0] < 1 / 4


@pytest.mark.parametrize("mask", MASKS)
def test_a_shift_of_a_key_is_erased_by_dnas_alone_and_a_shift_of_a_query_by_softmax_alone(mask):
    case = MASKS[mask]
    scores, softmax, dnas, hnas = scores_for(case), make("softmax"), make("dnas"), make("hnas_sigmoid")
    by_key = scores + 2 * randn(BATCH, HEADS, 1, case.n_keys, seed=21)
    by_query = scores + 2 * randn(BATCH, HEADS, case.n_queries, 1, seed=22)

    assert_close(dnas(by_key, case.allowed), dnas(scores, case.allowed), **TIGHT)
    assert_close(softmax(by_query, case.allowed), softmax(scores, case.allowed), **TIGHT)
    if mask == "nothing_allowed":
        return
    assert difference(softmax(by_key, case.allowed), softmax(scores, case.allowed)) > 1e-2
    assert difference(dnas(by_query, case.allowed), dnas(scores, case.allowed)) > 1e-2
    for shifted in (by_key, by_query):
        assert difference(hnas(shifted, case.allowed), hnas(scores, case.allowed)) > 1e-3


def difference(a, b):
    return (a - b).abs().max()


@pytest.mark.parametrize("mask", ["none", "both_sides", "causal", "random"])
@pytest.mark.parametrize("variant", ONE_OF_EACH)
def test_permuting_queries_permutes_rows_and_permuting_keys_permutes_columns(variant, mask):
    case, module = MASKS[mask], make(variant)
    scores, log_prior = scores_for(case), reference.make_log_prior("with_holes", case.n_queries, case.n_keys)
    allowed = case.allowed.expand(scores.shape)
    generator = torch.Generator().manual_seed(2)
    rows, columns = (torch.randperm(n, generator=generator) for n in scores.shape[-2:])

    def permute(x):
        return x[..., rows, :][..., columns]

    permuted = module(permute(scores), permute(allowed), log_prior=permute(log_prior))
    assert_close(permuted, permute(module(scores, allowed, log_prior=log_prior)), **TIGHT)


@pytest.mark.parametrize("variant", ONE_OF_EACH)
def test_self_attention_is_permutation_equivariant(variant):
    module, x, order = make(variant), randn(BATCH, HEADS, 6, 4, seed=1), torch.tensor([3, 0, 5, 1, 4, 2])
    assert_close(module.attend(x[:, :, order], x[:, :, order], x[:, :, order]), module.attend(x, x, x)[:, :, order])


# ----------------------------------------------------------------------------------------------------------- the prior


@pytest.mark.parametrize("mask", ["none", "both_sides", "causal_tall", "random"])
@pytest.mark.parametrize("prior", ["key_only", "pairwise", "with_holes"])
@pytest.mark.parametrize("variant", ["softmax", "dnas"])
def test_a_prior_multiplies_the_weights_along_each_row(variant, prior, mask):
    """w(log u) is proportional to u * w(0): the preference acts at the row step, after the columns."""
    case, module = MASKS[mask], make(variant)
    scores, log_prior = scores_for(case), reference.make_log_prior(prior, case.n_queries, case.n_keys)
    product = log_prior.exp() * module(scores, case.allowed)
    total = product.sum(-1, keepdim=True)
    expected = torch.where(total > 0, product / total.clamp_min(1e-300), 0.0)
    assert_close(module(scores, case.allowed, log_prior=log_prior), expected, **TIGHT)


@pytest.mark.parametrize("mask", ["none", "both_sides", "random"])
@pytest.mark.parametrize("variant", [variant for variant in VARIANTS if variant != "sinkhorn"])
def test_a_prior_that_is_constant_along_each_row_changes_nothing(variant, mask):
    case, module, scores = MASKS[mask], make(variant), scores_for(MASKS[mask])
    log_prior = 3 * randn(BATCH, HEADS, case.n_queries, 1, seed=31)
    assert_close(module(scores, case.allowed, log_prior=log_prior), module(scores, case.allowed), **TIGHT)
    q, k, v = reference.make_qkv(case.n_queries, case.n_keys)
    expected = module.attend(q, k, v, case.allowed)
    assert_close(module.attend(q, k, v, case.allowed, log_prior=log_prior), expected, **TIGHT)


@pytest.mark.parametrize("variant", ["dnas", "hnas_sigmoid"])
def test_a_query_whose_pairs_have_no_prior_mass_stays_in_the_column_step(variant):
    """log_prior = -inf empties the row like a mask does, but is not one: the other rows differ from a masked row's."""
    module, scores = make(variant), random_scores()
    log_prior = torch.zeros(4, 5, dtype=torch.float64)
    log_prior[1] = -torch.inf
    by_prior, by_mask = module(scores, log_prior=log_prior), module(scores, log_prior == 0)
    others = [0, 2, 3]
    assert (by_prior[:, :, 1] == 0).all() and (by_mask[:, :, 1] == 0).all()
    assert_close(by_prior[:, :, others], module(scores)[:, :, others], **TIGHT)
    assert difference(by_prior[:, :, others], by_mask[:, :, others]) > 1e-2


# -------------------------------------------------------------------------------------------------- numbers and dtypes


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-9), (torch.float32, 5e-3)], ids=str)
@pytest.mark.parametrize("mask", ["none", "both_sides", "causal_tall", "random"])
@pytest.mark.parametrize("variant", ONE_OF_EACH)
def test_scores_of_ten_thousand_give_the_right_weights_and_finite_gradients(variant, mask, dtype, tolerance):
    case, module = MASKS[mask], make(variant, dtype)
    (scores,) = leaves(scores_for(case, factor=1e4, dtype=dtype))
    w = module(scores, case.allowed)
    v = reference.hybrid_weight_of(variant, module)
    expected = reference.exact_weights(VARIANTS[variant][0], scores.detach().double(), case.allowed, None, v)
    assert_close(w.double(), expected, rtol=tolerance, atol=tolerance)
    assert all(g.isfinite().all() for g in reference.gradients(w, [scores, *module.parameters()]))


@pytest.mark.parametrize("constant", [-1e4, 1e4])
@pytest.mark.parametrize("variant", ONE_OF_EACH)
def test_a_constant_added_to_all_scores_changes_nothing_however_large(variant, constant):
    module, case = make(variant), MASKS["both_sides"]
    scores = scores_for(case)
    assert_close(module(scores + constant, case.allowed), module(scores, case.allowed), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("prior", ["none", "pairwise"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_sixteen_bit_weights_are_the_exact_weights_rounded_once(variant, prior, dtype):
    """The computation is in float32 or wider, so the only 16-bit error is the final cast."""
    module, scores = make(variant, torch.float32), (3 * randn(BATCH, HEADS, 6, 7, seed=6)).to(dtype)
    log_prior = reference.make_log_prior(prior, 6, 7, dtype=torch.float32)
    w = module(scores, log_prior=log_prior)
    assert w.dtype == dtype
    v = reference.hybrid_weight_of(variant, module)
    expected = reference.weights(
        VARIANTS[variant][0],
        scores.double(),
        log_prior=None if log_prior is None else log_prior.double(),
        hybrid_weight=None if v is None else v.double(),
    ).detach()
    smallest_subnormal = 2.0**-24 if dtype == torch.float16 else 0
    assert ((w.double() - expected).abs() <= expected * (UNIT_ROUNDOFF[dtype] + 1e-5) + smallest_subnormal).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("n_queries, n_keys", [(6, 7), (150, 130)])
@pytest.mark.parametrize("variant", ONE_OF_EACH)
def test_sixteen_bit_attend_is_within_rounding_of_float64(variant, n_queries, n_keys, dtype):
    module, exact = make(variant, torch.float32), make(variant)
    q, k, v = reference.make_qkv(n_queries, n_keys, width=8, dtype=dtype)
    mask = Mask(keys=torch.arange(n_keys).expand(BATCH, -1) < n_keys - 2)
    out = module.attend(q, k, v, mask)
    assert out.dtype == dtype
    scores = q.double() @ k.double().transpose(-1, -2) * 8**-0.5
    expected = exact(scores, mask) @ v.double()
    # rounding a score moves a weight by |score| roundoffs; the column step reads such scores once more
    bound = 2 * UNIT_ROUNDOFF[dtype] * (2 + scores.abs().max()) * v.double().abs().max()
    assert difference(out.double(), expected) <= bound
    mean_error = (out.double() - expected).abs().mean()
    assert mean_error <= 4 * UNIT_ROUNDOFF[dtype] * expected.abs().mean()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("variant", ONE_OF_EACH)
def test_a_float32_prior_is_not_rounded_to_sixteen_bits(variant, dtype):
    """A constant of 100 changes nothing, but rounded to bfloat16 along with the prior it would cost a quarter."""
    module, (q, k, v) = make(variant, torch.float32), reference.make_qkv(6, 7, width=8, dtype=dtype)
    log_prior = randn(1, HEADS, 6, 7, seed=8, dtype=torch.float32)
    plain, shifted = (module.attend(q, k, v, log_prior=prior).double() for prior in (log_prior, log_prior + 100))
    assert difference(shifted, plain) <= 4 * UNIT_ROUNDOFF[dtype] * v.abs().max()


@pytest.mark.parametrize("prior", ["none", "key_only"])
@pytest.mark.parametrize("mask", ["none", "both_sides", "causal"])
@pytest.mark.parametrize("variant", ONE_OF_EACH)
def test_attend_under_autocast_is_within_rounding_of_float64(variant, mask, prior):
    case, module = MASKS[mask], make(variant, torch.float32)
    q, k, v = reference.make_qkv(case.n_queries, case.n_keys, width=8)
    log_prior = reference.make_log_prior(prior, case.n_queries, case.n_keys)
    expected = make(variant).attend(q, k, v, mask_argument(case), log_prior=log_prior)
    q, k, v, log_prior = (None if x is None else x.float() for x in (q, k, v, log_prior))
    with torch.autocast("cpu", torch.bfloat16):
        out = module.attend(q, k, v, mask_argument(case), log_prior=log_prior)
    assert difference(out.double(), expected) <= 16 * UNIT_ROUNDOFF[torch.bfloat16] * v.abs().max()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("variant", ONE_OF_EACH)
def test_the_result_has_the_dtype_of_the_scores_whatever_that_of_the_prior_and_the_parameters(variant, dtype):
    module = make(variant, torch.float32)
    log_prior = randn(1, 1, 1, 5, dtype=torch.float32)
    assert module(random_scores().to(dtype), log_prior=log_prior).dtype == dtype
    q, k, v = reference.make_qkv(4, 5, dtype=dtype)
    assert module.attend(q, k, v, log_prior=log_prior).dtype == dtype


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_same_call_twice_gives_the_same_bits_and_leaves_its_inputs_alone(variant):
    case, module = MASKS["both_sides"], make(variant)
    scores, log_prior = scores_for(case), reference.make_log_prior("with_holes", case.n_queries, case.n_keys)
    q, k, v = reference.make_qkv(case.n_queries, case.n_keys)
    arguments = [scores, log_prior, q, k, v, case.allowed]
    before = [x.clone() for x in arguments]
    for again in (module, make(variant)):
        first, second = (m(scores, arguments[-1], log_prior=log_prior) for m in (module, again))
        assert torch.equal(first, second)
        first, second = (m.attend(q, k, v, arguments[-1], log_prior=log_prior) for m in (module, again))
        assert torch.equal(first, second)
    assert all(torch.equal(x, y) for x, y in zip(arguments, before, strict=True))


@pytest.mark.parametrize("variant", VARIANTS)
def test_keys_and_scale_given_beside_scores_do_not_change_weights_that_scores_determine(variant):
    """forward takes scores that are already scaled; `keys` and `scale` are there for normalizers that need them."""
    module, scores = make(variant), random_scores()
    keys = randn(BATCH, HEADS, 5, 3, seed=12)
    assert torch.equal(module(scores, keys=keys, scale=0.1), module(scores))


# -------------------------------------------------------------------------------- who sees whom: the coupling


@pytest.mark.parametrize("name", COUPLES_QUERIES)
def test_the_class_declares_whether_it_couples_queries(name):
    module = build_normalizer(name)
    assert isinstance(module, Normalizer)
    assert type(module).couples_queries == COUPLES_QUERIES[name]


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_row_depends_on_another_query_exactly_when_the_class_says_so(variant):
    module = make(variant)
    (scores,) = leaves(random_scores())
    declared = type(module).couples_queries != "none"
    first_row = module(scores)[:, :, 0]
    from_others = reference.gradients(first_row, [scores])[0][:, :, 1:].abs().amax(dim=(0, 1, 3))
    assert (from_others > 1e-3).all() if declared else (from_others == 0).all()

    q, k, v = reference.make_qkv(4, 5)
    moved = q.clone()
    moved[:, :, 3] += 1.0
    change = difference(module.attend(moved, k, v)[:, :, :3], module.attend(q, k, v)[:, :, :3])
    assert change > 1e-3 if declared else change < 1e-12


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_under_a_causal_mask_the_future_reaches_the_past_exactly_when_queries_are_coupled(variant, compact):
    module = make(variant)
    q, k, v = reference.make_qkv(6, 6)
    mask = Mask(causal=True) if compact else reference.allowed_pairs(BATCH, 6, 6, causal=True)
    past, changed = slice(0, 4), [x.clone() for x in (q, k, v)]
    for x in changed:
        x[:, :, 4:] += 1.0
    change = difference(module.attend(*changed, mask)[:, :, past], module.attend(q, k, v, mask)[:, :, past])
    assert change > 1e-3 if type(module).couples_queries == "all" else change < 1e-12


# -------------------------------------------------------------------------------------------------------------- hnas


@pytest.mark.parametrize("mask", ["none", "both_sides", "dead_rows"])
@pytest.mark.parametrize("prior", ["none", "with_holes"])
@pytest.mark.parametrize("start, end", [(0, "softmax"), (1, "dnas")])
def test_hnas_at_its_ends_is_softmax_and_dnas_to_the_bit(start, end, prior, mask):
    case, hnas = MASKS[mask], build_normalizer("hnas", start=start, form="clamp").double()
    scores, log_prior = scores_for(case), reference.make_log_prior(prior, case.n_queries, case.n_keys)
    expected = make(end)(scores, case.allowed, log_prior=log_prior)
    assert torch.equal(hnas(scores, case.allowed, log_prior=log_prior), expected)
    q, k, v = reference.make_qkv(case.n_queries, case.n_keys)
    expected = make(end).attend(q, k, v, case.allowed, log_prior=log_prior)
    assert_close(hnas.attend(q, k, v, case.allowed, log_prior=log_prior), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("form", ["sigmoid", "clamp"])
@pytest.mark.parametrize("start", [0.05, 0.3, 0.5, 0.95])
def test_hnas_in_between_is_the_mix_that_start_asks_for(start, form):
    hnas, scores = build_normalizer("hnas", start=start, form=form).double(), random_scores()
    expected = start * make("dnas")(scores) + (1 - start) * make("softmax")(scores)
    assert_close(hnas(scores), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("options", [{"start": 0, "form": "clamp"}, {"start": 1, "form": "clamp"}, {"start": 0.5}])
@pytest.mark.parametrize("use_attend", [False, True])
def test_the_hybrid_weight_receives_the_exact_gradient_even_at_its_ends(options, use_attend):
    hnas = build_normalizer("hnas", **options).double()
    (parameter,) = hnas.parameters()
    q, k, v = reference.make_qkv(4, 5)
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    gap = make("dnas")(scores) - make("softmax")(scores)
    output, gap = (hnas.attend(q, k, v), gap @ v) if use_attend else (hnas(scores), gap)
    (found,) = reference.gradients(output, [parameter])
    slope = 1.0 if options.get("form") == "clamp" else 0.25  # of the sigmoid at 1/2
    wanted = slope * (gap * randn(*gap.shape, seed=5)).sum()
    assert wanted.abs() > 1e-3
    assert_close(found.reshape(()), wanted, **TIGHT)


def test_each_head_mixes_by_its_own_hybrid_weight():
    hnas, scores = make("hnas_heads"), random_scores()
    v = hnas.hybrid_weight()
    assert v.shape == (HEADS,) and v[0] != v[1]
    dnas, softmax = make("dnas")(scores), make("softmax")(scores)
    for head in range(HEADS):
        expected = v[head] * dnas[:, head] + (1 - v[head]) * softmax[:, head]
        assert_close(hnas(scores)[:, head], expected, **TIGHT)
