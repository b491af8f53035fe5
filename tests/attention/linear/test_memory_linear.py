"""The path without an (N, M) table: exact against the formula, whatever the mask, and really without that table."""

from functools import partial
from itertools import product

import pytest
import reference
import scripts
import torch
from marks import slow
from reference import BATCH, HEADS, VARIANTS, case, dense_attend, in_turn, make, randn, value_and_gradients
from simulated_gpu import KernelInChannels, LargestTensor
from tolerance import rounding
from torch.testing import assert_close

from attnorm.attention import Mask, build_normalizer
from attnorm.attention.linear import flash, kernels, self_check, tiles
from attnorm.attention.linear.logsumexp import attention, attention_and_logsumexp, logsumexp
from attnorm.attention.normalizers.base import Given
from attnorm.attention.normalizers.shared import key_bias
from attnorm.attention.transfer import remember

pytestmark = pytest.mark.numerical

speed = scripts.load("benchmarks/speed")
make_inputs, peak, step = speed.make_inputs, speed.peak, speed.step

N = 33
LINEAR = {**VARIANTS, "sinkhorn_once": ("sinkhorn", {"n_iters": 1}), "sinkhorn_5": ("sinkhorn", {"n_iters": 5})}
OF_EACH = ["softmax", "dnas", "hnas_sigmoid", "sinkhorn"]
KEYS = torch.rand(BATCH, N, generator=torch.Generator().manual_seed(1)) > 0.3
QUERIES = torch.rand(BATCH, N, generator=torch.Generator().manual_seed(2)) > 0.3
NOBODY = KEYS & torch.tensor([[True], [False]])  # an example without any key
SEGMENTS = torch.randint(0, 4, (BATCH, N), generator=torch.Generator().manual_seed(3))
MASKS = {
    "none": None,
    "keys": Mask(keys=KEYS),
    "both_sides": Mask(queries=QUERIES, keys=KEYS),
    "queries": Mask(queries=QUERIES),
    "empty_example": Mask(queries=QUERIES, keys=NOBODY),
    "segments": Mask(segments=SEGMENTS),
    "sorted_segments": Mask(segments=SEGMENTS.sort(-1).values),
    "padded_segments": Mask(queries=QUERIES, keys=KEYS, segments=SEGMENTS),
    "one_long_segment": Mask(segments=(torch.arange(N) // 30).expand(BATCH, N)),
}
CAUSAL = {
    f"causal_{name}": Mask(mask and mask.queries, mask and mask.keys, True, mask and mask.segments)
    for name, mask in MASKS.items()
}
PRIORS = {
    "none": None,
    "scalar": torch.tensor(0.7, dtype=torch.float64),
    "keys": randn(1, 1, 1, N, seed=4),
    "heads": randn(1, HEADS, 1, N, seed=5),
    "holes": randn(BATCH, 1, 1, N, seed=6).masked_fill(torch.arange(N) % 5 == 0, -torch.inf),
}
TIGHT = {"rtol": 1e-10, "atol": 1e-10}


@pytest.fixture(autouse=True)
def always(monkeypatch):
    """The path is taken at any length, its widened copies one head at a time."""
    monkeypatch.setattr(key_bias, "DENSE_UP_TO", {"cpu": 0, "cuda": 0})
    monkeypatch.setattr(flash, "CHUNK", {"cpu": 1, "cuda": 1})


def make_linear(variant, dtype=torch.float64):
    return make(variant, dtype) if variant in VARIANTS else build_normalizer(LINEAR[variant][0], **LINEAR[variant][1])


def assert_both_ways_agree(*given, n_queries=N):
    """`attend` and the dense formula give the same output and gradients to q, k, v, log_prior, parameters."""
    assert_close(*(way(*given, torch.float64, n_queries) for way in (linear, dense)), **TIGHT)


def linear(module, mask, log_prior, dtype, n_queries=N):
    def attend(q, k, v, log_prior=None):
        assert key_bias.memory_linear(q, k, Given(mask, log_prior))
        return module.attend(q, k, v, mask, log_prior=log_prior)

    return run(attend, module, log_prior, dtype, n_queries)


def dense(module, mask, log_prior, dtype, n_queries=N):
    def attend(q, k, v, log_prior=None):
        return dense_attend(module, q, k, v, mask, log_prior)

    return run(attend, module, log_prior, dtype, n_queries)


def run(attend, module, log_prior, dtype, n_queries):
    inputs = reference.make_qkv(n_queries, N, width=8, dtype=dtype)
    inputs += [] if log_prior is None else [log_prior.to(dtype)]
    return value_and_gradients(attend, inputs, module.parameters())


def assert_float32_is_exact(variant, mask, log_prior):
    """Output and gradients to q, k, v are those of the dense form in float64 up to rounding, in relative norm."""
    found = linear(make_linear(variant, torch.float32), mask, log_prior, torch.float32)
    wanted = dense(make_linear(variant), mask, log_prior, torch.float64)
    for a, b in list(zip(found, wanted, strict=True))[:4]:
        assert (a - b).norm() <= rounding(torch.float32, size=N) * b.norm()


@pytest.mark.parametrize("variant", LINEAR)
def test_float64_equals_the_dense_formula_in_value_and_gradient(variant):
    module = make_linear(variant)
    for mask, prior in in_turn(MASKS, PRIORS, shift=[*LINEAR].index(variant)):
        with case(mask, prior):
            assert_both_ways_agree(module, MASKS[mask], PRIORS[prior])


@pytest.mark.parametrize("variant", LINEAR)
def test_queries_and_keys_may_differ_in_number(variant):
    for n_queries in (5, 70, 1):
        mask = Mask(queries=(torch.arange(n_queries) != 3).expand(BATCH, -1), keys=KEYS)
        with case(n_queries):
            assert_both_ways_agree(make_linear(variant), mask, PRIORS["heads"], n_queries=n_queries)


class Sink(key_bias.KeyBiased):
    """softmax times sigmoid(l_i): what an output that depends on the logsumexp needs. One key of score 0 is added."""

    total = (0.0, 1.0)

    def weights(self, s, given):
        s = s if given.log_prior is None else s + given.log_prior
        return torch.cat([s, torch.zeros_like(s[..., :1])], -1).softmax(-1)[..., :-1]

    def key_bias(self, q, k, given, queries):
        return given.log_prior

    def average(self, *call):
        out, total = attention_and_logsumexp(*call)
        return out * total.sigmoid().unsqueeze(-1).to(out.dtype)


@pytest.mark.long
@pytest.mark.parametrize("module", [build_normalizer("softmax"), Sink()], ids=["softmax", "sink"])
def test_every_mask_and_prior_with_and_without_a_diagonal_equals_the_dense_formula(module):
    alone = torch.arange(N).expand(BATCH, N)
    queries, keys, segments = (remember(x.clone(), x) for x in (QUERIES, KEYS, SEGMENTS))
    masks = {
        **{**MASKS, **CAUSAL, "values_on_host": Mask(queries, keys, segments=segments)},
        **{"segments_of_one": Mask(segments=alone), "causal_of_one": Mask(segments=alone, causal=True)},
    }
    for mask, prior in product(masks, PRIORS):
        with case(mask, prior):
            assert_both_ways_agree(module, masks[mask], PRIORS[prior])


@pytest.mark.parametrize("module", [build_normalizer("softmax"), Sink()], ids=["softmax", "sink"])
def test_a_causal_diagonal_ends_at_the_last_query_and_key(module):
    """Fewer queries than keys see all of the first keys; of more queries than keys, the first see none."""
    for n_queries, prior in product((5, 70, 1), ("none", "holes")):
        queries = (torch.arange(n_queries) != 3).expand(BATCH, -1)
        for mask in (Mask(causal=True), Mask(queries=queries, keys=KEYS, causal=True)):
            with case(n_queries, prior):
                assert_both_ways_agree(module, mask, PRIORS[prior], n_queries=n_queries)


@pytest.mark.parametrize("variant", LINEAR)
def test_float32_is_within_rounding_in_relative_norm(variant):
    for mask in ("none", "both_sides", "segments"):
        with case(mask):
            assert_float32_is_exact(variant, MASKS[mask], PRIORS["heads"])
        if variant == "softmax":
            with case(mask, "causal"):
                assert_float32_is_exact(variant, CAUSAL[f"causal_{mask}"], PRIORS["heads"])


def causal_reference(q, k, v, bias, of_out, of_total):
    """o, l and the gradients of q, k, v and the bias in float64."""
    leaves = [x.detach().double().requires_grad_() for x in (q, k, v, bias)]
    scores = 0.3 * leaves[0] @ leaves[1].mT + leaves[3]
    scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    results = [scores.softmax(-1) @ leaves[2], scores.logsumexp(-1)]
    grads = torch.autograd.grad(results, leaves, [of_out.double(), of_total.double()])
    return [*(x.detach() for x in results), *grads]


@pytest.mark.parametrize("dtype", [torch.float32, slow(torch.bfloat16), slow(torch.float16)], ids=str)
@pytest.mark.parametrize("growth", ["rising", "falling", "both"])
def test_a_bias_that_grows_to_thousands_costs_no_precision_in_float64(dtype, growth, monkeypatch):
    """Forget gates give such a bias: each head forgets at another rate, up to 20 per position."""
    monkeypatch.setattr(tiles, "SPAN", 50)
    length = 330
    q, k, v = (x.requires_grad_() for x in reference.make_qkv(length, length, width=8, dtype=dtype, batch=1))
    rates = torch.tensor([0.0, 20.0][:HEADS] + [3.0] * (HEADS - 2), dtype=torch.float64)
    steps = randn(1, HEADS, 1, length, seed=7).abs() * rates[:, None, None]
    signs = {"rising": 1, "falling": -1, "both": 1 - 2 * (torch.arange(length) > 200)}[growth]
    bias = (signs * steps).cumsum(-1).requires_grad_()
    of_out, of_total = randn(1, HEADS, length, 8, seed=8, dtype=dtype), randn(1, HEADS, length, seed=9)
    out, total = attention_and_logsumexp(q, k, v, bias, 0.3, causal=True)
    assert bias.abs().max() > 2000 and total.dtype == torch.float64
    found = [out, total, *torch.autograd.grad([out, total], [q, k, v, bias], [of_out, of_total])]
    for part, a, b in zip(self_check.PARTS, found, causal_reference(q, k, v, bias, of_out, of_total), strict=True):
        with case(part):
            assert (a - b).norm() <= rounding(dtype, size=1 if dtype != torch.float32 else N) * b.norm()


def test_bfloat16_is_within_one_and_a_half_times_the_error_of_flash_softmax():
    inputs = [x.bfloat16() for x in reference.make_qkv(500, 500, width=64, batch=1)]

    def errors(variant):
        module, exact = make(variant, torch.float32), make(variant)
        found = value_and_gradients(module.attend, inputs)
        wide = [x.double() for x in inputs]
        wanted = value_and_gradients(lambda *qkv: dense_attend(exact, *qkv), wide)
        return [((a.double() - b).norm() / b.norm()).item() for a, b in zip(found, wanted, strict=True)]

    of_softmax = errors("softmax")
    for variant in ("dnas", "hnas_sigmoid", "sinkhorn"):
        for name, ours, softmax in zip(("output", "q", "k", "v"), errors(variant), of_softmax, strict=True):
            assert ours <= 1.5 * softmax, f"{variant}, {name}: {ours:.2e} against {softmax:.2e}"


@pytest.fixture
def channels(monkeypatch):
    monkeypatch.setattr(kernels, "candidate_kernels", lambda *case: [KernelInChannels()])
    kernels.forget()
    yield
    assert {outcome["kernel"] for outcome in kernels.self_checks().values()} == {"emulated"}
    kernels.forget()


@pytest.mark.parametrize("variant", OF_EACH)
def test_a_bias_in_channels_is_as_good_as_one_in_the_mask(variant, channels):
    masks = MASKS | (CAUSAL if variant == "softmax" else {})
    for mask, prior in in_turn(masks, ["none", "heads", "holes"], shift=OF_EACH.index(variant)):
        with case(mask, prior):
            assert_float32_is_exact(variant, masks[mask], PRIORS[prior])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_sixteen_bit_channels_keep_a_bias_that_one_of_them_would_round(dtype, channels):
    q, k, v = reference.make_qkv(N, N, width=8, dtype=dtype)
    bias = 20 * randn(1, HEADS, 1, N, seed=3, dtype=torch.float32)
    scores = q.double() @ k.double().transpose(-1, -2) * 0.3 + bias.double()
    wanted = scores.softmax(-1) @ v.double()
    error = (attention(q, k, v, bias, 0.3).double() - wanted).norm() / wanted.norm()
    assert error <= 2 * (v.double() - v.double().to(dtype).double() + 2.0**-9 * v.double()).norm() / wanted.norm()


@pytest.mark.parametrize("variant", [*OF_EACH, "dnas_slack", "sink", "ssmax"])
def test_no_table_of_queries_and_keys_is_made_forward_or_backward(variant):
    length, width = 700, 4
    real = (torch.arange(length) < length - 9)[None]
    masks = (None, Mask(queries=real, keys=real))
    masks += (Mask(queries=real, keys=real, segments=(torch.arange(length) // 400)[None]),)
    if variant in ("softmax", "sink", "ssmax"):
        masks += tuple(Mask(real, real, True, mask and mask.segments) for mask in masks)
    inputs = [x.requires_grad_() for x in reference.make_qkv(length, length, width, torch.float32, batch=1)]
    log_prior = randn(1, HEADS, 1, length, dtype=torch.float32).requires_grad_()
    for mask in masks:
        with LargestTensor() as largest:
            out = built(variant).float().attend(*inputs, mask, log_prior=log_prior)
            out.backward(torch.ones_like(out))
        with case(mask):
            assert largest.elements <= 8 * HEADS * length * width < length * length


def test_a_bias_in_float64_makes_no_table_either(monkeypatch):
    monkeypatch.setattr(tiles, "SPAN", 50)
    length, width = 700, 4
    inputs = [x.requires_grad_() for x in reference.make_qkv(length, length, width, torch.float32, batch=1)]
    bias = randn(1, HEADS, 1, length).requires_grad_()
    with LargestTensor() as largest:
        sum(x.sum() for x in attention_and_logsumexp(*inputs, bias, 0.3, causal=True)).backward()
    assert largest.elements <= 8 * HEADS * length * width < length * length


def test_what_the_mask_or_prior_says_pair_by_pair_takes_the_dense_path():
    q, k, _ = reference.make_qkv(N, N)
    assert key_bias.memory_linear(q, k, Given(None, None))
    assert key_bias.memory_linear(q, k, Given(Mask(causal=True), None))
    assert not key_bias.memory_linear(q, k, Given(torch.ones(N, N, dtype=torch.bool), None))
    assert not key_bias.memory_linear(q, k, Given(None, torch.zeros(1, 1, N, N)))


def test_logsumexp_and_attention_pass_gradcheck_with_a_bias():
    q, k, v = (x.requires_grad_() for x in reference.make_qkv(4, 5, batch=1))
    bias = randn(1, HEADS, 1, 5, seed=8).requires_grad_()
    assert torch.autograd.gradcheck(lambda q, k, bias: logsumexp(q, k, bias, 0.7), (q, k, bias))
    assert torch.autograd.gradcheck(lambda q, k, v, bias: attention(q, k, v, bias, 0.7), (q, k, v, bias))
    assert torch.autograd.gradcheck(
        lambda *inputs: attention_and_logsumexp(*inputs, 0.7, causal=True), (q, k, v, bias)
    )  # 4 queries and 5 keys
    (shared,) = [randn(1, 1, 1, 5, seed=9).requires_grad_()]  # one bias for all heads
    assert torch.autograd.gradcheck(lambda q, k, v, bias: attention(q, k, v, bias, 0.7), (q, k, v, shared))


def test_where_every_key_is_out_attention_is_zero_and_logsumexp_finite_both_without_gradient():
    q, k, v = (x.requires_grad_() for x in reference.make_qkv(4, 5))
    bias = torch.full((1, 1, 1, 5), -torch.inf, dtype=torch.float64)
    out, total = attention(q, k, v, bias, 1.0), logsumexp(q, k, bias, 1.0)
    assert (out == 0).all() and total.isfinite().all()
    for gradient in reference.gradients(out, [q, k, v]) + reference.gradients(total, [k]):
        assert (gradient == 0).all()
    bias = bias.clone().expand(1, 1, 1, 5).index_fill(-1, torch.tensor([3, 4]), 0.0)  # a causal query 0 and 1 see none
    out, total = attention_and_logsumexp(q, k, v, bias, 1.0, causal=True)
    assert (out[..., :2, :] == 0).all() and (out[..., 2:, :] != 0).all() and total.isfinite().all()
    for gradient in torch.autograd.grad([out.sum() + total.sum()], [q, k, v]):
        assert gradient.isfinite().all()
    (gradient,) = torch.autograd.grad(attention_and_logsumexp(q, k, v, bias, 1.0, causal=True)[1].sum(), [q])
    assert (gradient[..., :2, :] == 0).all() and (gradient[..., 2:, :] != 0).all()


# ----------------------------------------------------------------------------------------------------------- on a GPU


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("variant", ["dnas", "hnas_sigmoid", "sinkhorn"])
def test_on_a_gpu_the_same_bits_twice_when_torch_is_asked_for_them(variant, dtype, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    inputs, module = [x.cuda() for x in reference.make_qkv(2000, 2000, 64, dtype)], make(variant, torch.float32).cuda()
    torch.use_deterministic_algorithms(True)
    try:
        first, second = (value_and_gradients(module.attend, inputs) for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


# ------------------------------------------------------------------------------------------- layouts and transforms

MASKS_AND_CAUSAL = MASKS | CAUSAL
CAUSAL_TOO = ("softmax", "off_by_one")
FAST = [*OF_EACH, "off_by_one", "dnas_slack"]
OTHER_SHAPES = {  # of q, of k and of v, before the last two axes
    "one head of keys": ((BATCH, HEADS), (BATCH, 1), (BATCH, 1)),
    "one head of values": ((BATCH, HEADS), (BATCH, HEADS), (BATCH, 1)),
    "one batch of keys": ((BATCH, HEADS), (1, HEADS), (1, HEADS)),
    "one batch of queries": ((1, HEADS), (BATCH, HEADS), (BATCH, HEADS)),
    "one head of queries": ((BATCH, 1), (BATCH, HEADS), (BATCH, HEADS)),
}


def built(name):
    return make(name) if name in VARIANTS else build_normalizer(name).double()


@pytest.mark.parametrize("mask", ["none", "both_sides", "causal_keys"])
@pytest.mark.parametrize("variant", FAST)
def test_the_layout_in_memory_does_not_matter(variant, mask):
    """The features of a convolution, (B, H, D, N) in memory, and rows that are far apart."""
    if MASKS_AND_CAUSAL[mask] is not None and MASKS_AND_CAUSAL[mask].causal and variant not in CAUSAL_TOO:
        return
    module = built(variant)
    usual = [randn(BATCH, HEADS, N, 4, seed=seed) for seed in range(3)]
    expected = value_and_gradients(lambda *x: module.attend(*x, MASKS_AND_CAUSAL[mask]), usual, module.parameters())
    for layout in (lambda x: x.mT.contiguous().mT, lambda x: x.repeat_interleave(2, -1)[..., ::2]):
        inputs = [layout(x).detach().requires_grad_() for x in usual]
        assert all(x.stride(-1) > 1 for x in inputs)
        found = module.attend(*inputs, MASKS_AND_CAUSAL[mask])
        slopes = reference.gradients(found, [*inputs, *module.parameters()])
        assert_close([found.detach(), *slopes], expected, **TIGHT)


@pytest.mark.parametrize("mask", ["none", "both_sides", "segments"])
@pytest.mark.parametrize("shapes", OTHER_SHAPES)
@pytest.mark.parametrize("variant", FAST)
def test_shared_heads_and_batches_are_spread_as_the_dense_formula_spreads_them(monkeypatch, variant, shapes, mask):
    module = built(variant)
    attend = lambda *x: module.attend(*x, MASKS[mask])  # noqa: E731
    inputs = [randn(*shape, N, 4, seed=seed) for seed, shape in enumerate(OTHER_SHAPES[shapes])]
    found = value_and_gradients(attend, inputs, module.parameters())
    monkeypatch.setattr(key_bias, "DENSE_UP_TO", {"cpu": 10**9})
    assert_close(found, value_and_gradients(attend, inputs, module.parameters()), **TIGHT)


@pytest.mark.parametrize("variant", FAST)
def test_as_many_values_as_keys_are_needed(variant):
    q, k = (randn(BATCH, HEADS, N, 4, seed=seed) for seed in range(2))
    for length in (N // 2, 2 * N):
        with pytest.raises((RuntimeError, ValueError)):
            built(variant).attend(q, k, randn(BATCH, HEADS, length, 4))


@pytest.mark.parametrize("variant", FAST)
def test_values_may_have_another_dtype_as_in_the_dense_formula(monkeypatch, variant):
    module = built(variant).float()
    q, k, v = (randn(BATCH, HEADS, N, 4, seed=seed).float() for seed in range(3))
    found = module.attend(q.bfloat16(), k.bfloat16(), v)
    monkeypatch.setattr(key_bias, "DENSE_UP_TO", {"cpu": 10**9})
    assert found.dtype == v.dtype and torch.equal(found, module.attend(q.bfloat16(), k.bfloat16(), v))


@pytest.mark.parametrize("variant", FAST)
def test_transforms_of_functions_differentiate_as_finite_differences_do(variant):
    module = built(variant)
    q, k, v, step = (randn(1, 2, N, 4, seed=seed) for seed in range(4))
    attend = lambda q: module.attend(q, k, v, Mask(keys=torch.ones(1, N, dtype=torch.bool)))  # noqa: E731
    small = 1e-5
    expected = (attend(q + small * step) - attend(q - small * step)) / (2 * small)
    assert_close(torch.func.jvp(attend, (q,), (step,))[1], expected, rtol=1e-6, atol=1e-8)
    with torch.autograd.forward_ad.dual_level():
        dual = attend(torch.autograd.forward_ad.make_dual(q, step))
        assert_close(torch.autograd.forward_ad.unpack_dual(dual).tangent, expected, rtol=1e-6, atol=1e-8)
    leaf = q.clone().requires_grad_()
    (plain,) = torch.autograd.grad(attend(leaf).square().sum(), leaf)
    assert_close(torch.func.grad(lambda q: attend(q).square().sum())(q), plain, **TIGHT)


def test_dnas_needs_at_most_one_and_a_half_times_the_memory_of_softmax(monkeypatch):
    monkeypatch.setitem(flash.CHUNK, "cpu", 2**17)  # one head at a time, as with 8,192 positions
    inputs = make_inputs((1, 4, 2048, 64), torch.float32, "cpu")
    megabytes = {}
    for name in ("softmax", "dnas"):
        attend = build_normalizer(name).attend
        step(attend, inputs)  # kernels are checked at their first call
        megabytes[name] = peak(partial(step, attend, inputs), "cpu")
    assert megabytes["dnas"] < 1.5 * megabytes["softmax"]
