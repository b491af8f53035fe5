"""Masks: the compact form means what its pairs say. What is masked might as well not be there: test_testing.py."""

from itertools import product

import pytest
import reference
import torch
from reference import BATCH, HEADS, MASKS, ONE_OF_EACH, case, make, randn
from tolerance import rounding
from torch.testing import assert_close

from attnorm.attention import Mask, build_normalizer
from attnorm.attention.multihead import MultiHeadAttention
from attnorm.attention.normalizers import base
from attnorm.attention.normalizers.shared import key_bias
from attnorm.attention.registry import NORMALIZERS, build
from attnorm.attention.scorers import ScaledDot
from attnorm.attention.transfer import index_by_mask, on_both, on_host, remember

pytestmark = pytest.mark.numerical

TIGHT = {"rtol": 1e-10, "atol": 1e-10}
CPU = torch.device("cpu")
NO_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: its fused kernels are not tested")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, NO_CUDA])]


# -------------------------------------------------------------------------------------------------- the compact Mask


@pytest.mark.parametrize("fields", range(1, 16))
def test_dense_is_the_compact_mask_pair_by_pair(fields):
    """Every combination of fields; causal over any two lengths, segments where both sides are one text."""
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        n_queries, n_keys = torch.randint(1, 7, (2,), generator=generator).tolist()
        if fields & 8:
            n_keys = n_queries
        given = {
            "queries": torch.rand(BATCH, n_queries, generator=generator) < 0.7,
            "keys": torch.rand(BATCH, n_keys, generator=generator) < 0.7,
            "causal": True,
            "segments": torch.randint(0, 3, (BATCH, n_queries), generator=generator),
        }
        given = {name: value for bit, (name, value) in enumerate(given.items()) if fields & 1 << bit}
        dense = Mask(**given).dense(n_queries, n_keys, CPU)
        assert dense.dtype == torch.bool
        expected = reference.allowed_pairs(BATCH, n_queries, n_keys, **given)
        assert torch.equal(dense.expand(expected.shape), expected)


def test_dense_has_the_size_and_the_device_asked_for_each_time():
    mask = Mask(causal=True)
    for _ in range(2):
        assert mask.dense(2, 4, CPU).reshape(2, 4).tolist() == [[True, True, True, False], [True] * 4]
        assert mask.dense(3, 2, CPU).reshape(3, 2).tolist() == [[False, False], [True, False], [True, True]]
    for device in ("cpu", "meta", "cpu"):
        assert mask.dense(3, 4, torch.device(device)).device.type == device
    assert Mask().dense(3, 4, CPU) is None


BOOLS = torch.ones(2, 7, dtype=torch.bool)


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"keys": BOOLS.float()}, r"Mask\(keys=...\): expected a bool tensor, .* got dtype torch.float32"),
        ({"queries": BOOLS.long()}, r"Mask\(queries=...\): expected a bool tensor, .* got dtype torch.int64"),
        ({"segments": BOOLS.float()}, r"Mask\(segments=...\): expected an int tensor, got dtype torch.float32"),
        ({"keys": [True, False]}, r"Mask\(keys=...\): expected a bool tensor, .* got list"),
        ({"keys": BOOLS[0]}, r"Mask\(keys=...\): expected the shape \(B, M\), got \(7,\)$"),
        ({"queries": BOOLS[None, None]}, r"Mask\(queries=...\): expected the shape \(B, N\), .* dense bool tensor"),
    ],
)
def test_a_field_of_another_dtype_or_shape_gets_a_sentence(fields, words):
    with pytest.raises(ValueError, match=words):
        Mask(**fields)


@pytest.mark.parametrize("size", [7, 700], ids=["dense", "linear memory"])
@pytest.mark.parametrize("variant", ["softmax", "dnas", "hnas_sigmoid", "fenchel", "continuous"])
def test_a_mask_of_other_lengths_or_another_batch_gets_a_sentence(variant, size):
    module = make(variant, torch.float32) if variant in reference.VARIANTS else build_normalizer(variant)
    q, k, v = reference.make_qkv(size, size + 1, dtype=torch.float32)
    bools = torch.ones(3, size + 2, dtype=torch.bool)
    for fields, words in (
        ({"keys": bools[:2]}, rf"Mask\(keys=...\): the shape \(2, {size + 2}\) does not fit {size} queries and"),
        ({"keys": bools[:2, :size]}, rf"Mask\(keys=...\): the shape \(2, {size}\) does not fit"),
        ({"queries": bools[:2, : size + 1]}, rf"Mask\(queries=...\): the shape \(2, {size + 1}\) does not fit"),
        ({"segments": bools[:2, :size].long()}, r"Mask\(segments=...\): the shape"),
    ):
        with pytest.raises(ValueError, match=words):
            module.attend(q, k, v, Mask(**fields))
    if variant in ("dnas", "fenchel"):
        with pytest.raises(ValueError, match=r"does not fit .* in a batch of 2"):
            module(q @ k.mT, Mask(keys=bools[:, : size + 1]), keys=k, scale=1.0)


def test_a_dense_mask_that_is_not_broadcastable_gets_a_sentence():
    q, k, v = reference.make_qkv(4, 5)
    for shape in [(2, 5), (2, 1, 5, 4), (3, 1, 4, 5), (1, 2, 2, 4, 5)]:
        with pytest.raises(ValueError, match=r"mask: expected a shape that is broadcastable to .*Mask\(keys=...\)"):
            build_normalizer("dnas").attend(q, k, v, torch.ones(shape, dtype=torch.bool))


@pytest.mark.parametrize("variant", ONE_OF_EACH)
def test_masks_and_priors_of_every_broadcastable_shape_mean_their_expansion(variant):
    module, scores, (q, k, v) = make(variant), randn(2, 2, 4, 5, seed=3), reference.make_qkv(4, 5)
    for shape in [(5,), (4, 1), (4, 5), (2, 1, 1, 5), (1, 2, 4, 5), (1, 1, 4, 1)]:
        log_prior, draws = randn(*shape, seed=2), randn(*shape, seed=1)
        allowed = draws > draws.min()  # all but one place
        spread, spread_prior = allowed.expand(scores.shape), log_prior.expand(scores.shape)
        with case(shape):
            expanded = module(scores, spread, log_prior=spread_prior)
            assert_close(module(scores, allowed, log_prior=log_prior), expanded, **TIGHT)
            expanded = module.attend(q, k, v, spread, log_prior=spread_prior)
            assert_close(module.attend(q, k, v, allowed, log_prior=log_prior), expanded, **TIGHT)


# ------------------------------------------------------------------------------------------------ dead rows and columns


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("variant", ONE_OF_EACH)
def test_dead_rows_and_columns_are_zero_with_finite_gradients_never_nan(variant, dtype, device):
    module, of_compact = make(variant, torch.float32).to(device), ("empty_example", "causal_tall")
    for mask, prior in product(("dead_rows", "dead_columns", "nothing_allowed", *of_compact), ("none", "with_holes")):
        size, allowed, argument = MASKS[mask].size, MASKS[mask].allowed.to(device), MASKS[mask].allowed.to(device)
        if isinstance(MASKS[mask].argument_of(module), Mask):
            fields = MASKS[mask].compact
            argument = Mask(**{k: x.to(device) if isinstance(x, torch.Tensor) else x for k, x in fields.items()})
        log_prior = reference.make_log_prior(prior, *size, dtype=torch.float32)
        log_prior = None if log_prior is None else log_prior.to(device)
        scores = randn(BATCH, HEADS, *size, seed=3, dtype=dtype).to(device).requires_grad_()
        qkv = [x.to(device).requires_grad_() for x in reference.make_qkv(*size, dtype=dtype)]
        w, out = module(scores, argument, log_prior=log_prior), module.attend(*qkv, argument, log_prior=log_prior)

        with_mass = allowed.expand(scores.shape) & (True if log_prior is None else log_prior > -torch.inf)
        with case(mask, prior):
            assert w.isfinite().all() and out.isfinite().all()
            assert (w[~with_mass] == 0).all()
            assert (out[~with_mass.any(-1)] == 0).all()
            for gradient in (*reference.gradients(w, [scores]), *reference.gradients(out, qkv)):
                assert gradient.isfinite().all()


def test_a_mask_with_segments_first_used_in_inference_mode_serves_training_afterwards(monkeypatch):
    monkeypatch.setattr(key_bias, "DENSE_UP_TO", {"cpu": 0})
    mask = Mask(segments=torch.tensor([[0, 0, 1, 1, 1]]))
    q, k, v = (randn(1, 2, 5, 4, seed=seed) for seed in range(3))
    module = build_normalizer("dnas")
    with torch.inference_mode():
        expected = module.attend(q, k, v, mask).clone()
    leaf = q.clone().requires_grad_()
    found = module.attend(leaf, k, v, mask)
    found.sum().backward()
    assert_close(found.detach(), expected.clone())
    assert leaf.grad.isfinite().all()


# ------------------------------------------------------------------------------------ scores that are masked already

LEVELS = [  # what stands for a forbidden pair, also with a score added to it
    (torch.float32, -torch.inf),
    (torch.float32, -1e9),
    (torch.float32, -1e9 + 100),
    (torch.float32, torch.finfo(torch.float32).min),
    (torch.float64, torch.finfo(torch.float64).min),
    (torch.bfloat16, -1e9),
    (torch.float16, torch.finfo(torch.float16).min + 100),
]
TRIANGLE = torch.ones(6, 6, dtype=torch.bool).tril()
SCATTERED = torch.rand(6, 6, generator=torch.Generator().manual_seed(4)) < 0.7


def outside(name):
    """A normalizer that no layer has, and a call of it with scores, a mask and what else it needs."""
    torch.manual_seed(0)
    module = build("normalizer", name, {}, {"heads": HEADS, "width": reference.WIDTH, "state_width": reference.WIDTH})
    q, k, _ = reference.make_qkv(6, 6, dtype=torch.float32)
    states = randn(BATCH, 6, reference.WIDTH, seed=5, dtype=torch.float32)
    features = None if module.needs_states == "none" else module.features_of(states)

    def weights(scores, mask=None, ordered=True):
        scale = reference.WIDTH**-0.5
        return module.eval()(scores, mask, ordered=ordered, keys=k, scale=scale, **module.declared(q, features))

    return module, weights


@pytest.mark.parametrize("name", NORMALIZERS)
def test_scores_that_are_masked_already_have_the_weights_of_the_mask(name):
    module, weights = outside(name)
    allowed = TRIANGLE if module.couples_queries == "past" or module.needs_causal else SCATTERED
    for dtype, number in LEVELS:
        if module.needs_queries and dtype == torch.float64:
            continue  # the queries have 32 bits
        scores = randn(BATCH, HEADS, 6, 6, seed=3, dtype=dtype)
        masked = scores.masked_fill(~allowed, number)
        found = weights(masked, ordered=False)
        assert torch.equal(found, weights(scores, allowed, ordered=False)), (dtype, number)
        assert found[..., ~allowed].abs().max() == 0
    if module.couples_queries == "past":
        given = {"keys": reference.make_qkv(6, 6, dtype=torch.float32)[1]} if module.needs_keys else {}
        row = scores.float()[..., :1, :]
        found = module.step(row.masked_fill(~SCATTERED[:1], -1e9), **given)
        assert_close(found, module.step(row, SCATTERED[:1], **given))


def test_ten_thousand_below_is_a_score_and_what_is_no_number_stays_none():
    scores = randn(1, 1, 6, 6)
    for number in (-1e4, -1e6):
        low = scores.clone()
        low[..., 2] += number  # at each query, which dnas does not notice
        expected = reference.exact_weights("dnas", low)
        assert_close(build_normalizer("dnas")(low), expected, rtol=0, atol=-number * rounding(torch.float64, size=6))
        assert expected[..., 2].min() > 0.01
    scores[0, 0, 2, 3] = torch.nan
    assert build_normalizer("softmax")(scores)[0, 0, 2].isnan().all()


COUPLING = [name for name in NORMALIZERS if outside(name)[0].couples_queries == "all"]


@pytest.mark.parametrize("name", COUPLING)
def test_a_causal_pattern_is_refused_outside_of_layers(name):
    module, weights = outside(name)
    scores = randn(BATCH, HEADS, 6, 6, seed=3, dtype=torch.float32)
    q, k, v = reference.make_qkv(6, 6, dtype=torch.float32)
    message = f"mask: hides the future: {type(module).__name__} couples queries and would leak the future"
    for number in (-torch.inf, -1e9, torch.finfo(torch.float32).min):
        with pytest.raises(ValueError, match=message):
            weights(scores.masked_fill(~TRIANGLE, number))
    for call in (lambda: weights(scores, TRIANGLE), lambda: module.attend(q, k, v, TRIANGLE)):
        with pytest.raises(ValueError, match=message):
            call()
    assert weights(scores).isfinite().all()


def test_layers_and_compiled_code_look_at_no_values(monkeypatch):
    def look(*_):
        raise AssertionError("the values of a tensor are looked at")

    layer, x = MultiHeadAttention(8, HEADS, build_normalizer("dnas"), ScaledDot()), randn(2, 6, 8).float()
    layer.observer = lambda seen: None
    monkeypatch.setattr(base, "look", look)
    monkeypatch.setattr(torch.Tensor, "__bool__", look)
    for mask in (None, TRIANGLE):
        layer(x, x, mask)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    module, scores = build_normalizer("dnas"), randn(1, 1, 6, 6).float()
    assert (module(scores.masked_fill(~TRIANGLE, -1e9))[0, 0][~TRIANGLE] == 0).tolist()[0]
    module(scores, TRIANGLE)


def test_what_a_callback_changes_in_place_is_not_read_from_the_note_of_the_host():
    mask, x = randn(3, 4) > 0, randn(3, 4, 2)
    remember(mask, mask.clone())
    kept = on_both(torch.logical_not, mask)
    assert torch.equal(index_by_mask(x, kept), x[~mask])
    mask[0] = ~mask[0]
    assert torch.equal(on_host(mask), mask)
    assert torch.equal(index_by_mask(x, on_both(torch.logical_not, mask)), x[~mask])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["softmax", "dnas", "sparsemax", "entmax"])
def test_one_compiled_graph_takes_batches_of_all_sizes_with_and_without_masks(name):
    torch.compiler.reset()
    module = build_normalizer(name)
    compiled = torch.compile(lambda q, k, v, mask: module.attend(q, k, v, mask), backend="aot_eager", fullgraph=True)
    for batch, length, masked in [(2, 6, 0), (3, 7, 0), (4, 9, 1), (1, 9, 1), (1, 1, 0), (2, 300, 0), (3, 310, 1)]:
        q, k, v = (randn(batch, 2, length, 4, seed=seed).requires_grad_() for seed in range(3))
        real = torch.arange(length).expand(batch, length) < max(1, length - 1)
        mask = Mask(real, real) if masked else None
        found, expected = compiled(q, k, v, mask), module.attend(q, k, v, mask)
        assert_close(found, expected)
        assert_close(*(torch.autograd.grad(output.square().sum(), q) for output in (found, expected)))
