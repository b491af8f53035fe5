"""attnorm.nn.MultiheadAttention: with softmax that of PyTorch, and with others a layer that padding does not change."""

import copy
import io
import math
import warnings

import pytest
import reference
import torch
from marks import few
from reference import randn
from tolerance import tolerance
from torch import nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from attnorm.attention import attention_form, build_normalizer
from attnorm.attention.normalizers.dnas import DNAS
from attnorm.attention.registry import NORMALIZERS
from attnorm.nn import MultiheadAttention, multihead

pytestmark = pytest.mark.numerical

BATCH, HEADS, WIDTH, LENGTH, KEYS = 3, 2, 8, 5, 7
INF = math.inf
PAIRS = torch.rand(LENGTH, KEYS, generator=torch.Generator().manual_seed(1)) < 0.3  # True = forbidden
PAIRS[:, 2] = False  # every query sees a key, as PyTorch requires
EACH = (torch.rand(BATCH * HEADS, LENGTH, KEYS, generator=torch.Generator().manual_seed(2)) < 0.3).clone()
EACH[:, :, 2] = False
PADDING = torch.arange(KEYS) >= torch.tensor([7, 5, 3])[:, None]
CAUSAL = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)  # True = forbidden
MASKS = {
    "nothing": {},
    "padding": {"key_padding_mask": PADDING},
    "float padding": {"key_padding_mask": randn(BATCH, KEYS).float().masked_fill(PADDING, -INF)},
    "pairs": {"attn_mask": PAIRS},
    "float pairs": {"attn_mask": randn(LENGTH, KEYS).float().masked_fill(PAIRS, -INF)},
    "large numbers": {"attn_mask": torch.zeros(LENGTH, KEYS).masked_fill(PAIRS, torch.finfo(torch.float32).min)},
    "pairs of each head": {"attn_mask": EACH},
    "float pairs of each head": {"attn_mask": randn(*EACH.shape).float().masked_fill(EACH, -INF)},
    "padding and pairs": {"key_padding_mask": PADDING, "attn_mask": PAIRS},
}
MASKS["float padding and pairs"] = {**MASKS["float padding"], "attn_mask": randn(LENGTH, KEYS).float()}


def pair(normalizer="softmax", dtype=torch.float64, **options):
    """PyTorch's module and ours, with the same random parameters."""
    theirs = nn.MultiheadAttention(WIDTH, HEADS, dtype=dtype, **options)
    ours = MultiheadAttention(WIDTH, HEADS, dtype=dtype, normalizer=normalizer, **options)
    for seed, parameter in enumerate(theirs.parameters()):
        parameter.data = randn(*parameter.shape, seed=seed, dtype=dtype) / WIDTH**0.5
    ours.load_state_dict(theirs.state_dict(), strict=normalizer == "softmax")
    return theirs, ours


def layer(normalizer, seed=1, **options):
    """A layer in float64 with batch_first. Every parameter is random, also those of the normalizer."""
    module = MultiheadAttention(WIDTH, HEADS, batch_first=True, normalizer=normalizer, dtype=torch.float64, **options)
    for place, (name, parameter) in enumerate(module.named_parameters()):
        noise = randn(*parameter.shape, seed=100 * seed + place)
        parameter.data = parameter.data + noise / 8 if name.startswith("normalizer") else noise / WIDTH**0.5
    return module


def inputs(dtype, batch_first, kdim=WIDTH, vdim=WIDTH):
    """Queries, keys and values, which require a gradient."""
    shapes = ((LENGTH, WIDTH), (KEYS, kdim), (KEYS, vdim))
    found = [randn(BATCH, *shape, seed=seed, dtype=dtype) for seed, shape in enumerate(shapes, start=20)]
    return [(x if batch_first else x.transpose(0, 1).contiguous()).requires_grad_() for x in found]


def assert_same(theirs, ours, qkv, dtype, **call):
    """The outputs, the weights, and the gradients of inputs and parameters are the same."""
    within = tolerance(dtype, size=WIDTH, scale=4.0)
    results = []
    for module in (theirs, ours):
        output, weights = module(*qkv, **call)
        loss = (output * torch.linspace(-1, 1, output.numel(), dtype=dtype).reshape(output.shape)).sum()
        if weights is not None:
            loss = loss + (weights * torch.linspace(-1, 1, weights.numel()).reshape(weights.shape)).sum()
        used = [*{id(x): x for x in qkv}.values(), *module.parameters()]
        results.append((output, weights, torch.autograd.grad(loss, used, allow_unused=True)))
    (output, weights, slopes), (other, others, others_slopes) = results
    assert_close(other, output, **within)
    assert (weights is None) == (others is None)
    if weights is not None:
        assert_close(others, weights, **within)
    assert_close(others_slopes, slopes, **{**within, "atol": 4 * within["atol"]})


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MASKS)
def test_softmax_is_the_module_of_pytorch_with_every_mask(name, dtype):
    masks = {key: mask.to(dtype) if mask.is_floating_point() else mask for key, mask in MASKS[name].items()}
    for batch_first in (True, False):
        theirs, ours = pair(dtype=dtype, batch_first=batch_first)
        qkv = inputs(dtype, batch_first)
        for call in ({}, {"average_attn_weights": False}, {"need_weights": False}):
            assert_same(theirs, ours, qkv, dtype, **masks, **call)


@pytest.mark.parametrize("options", [{"bias": False}, {"kdim": 6, "vdim": 4}, {"kdim": 6, "bias": False}], ids=str)
def test_softmax_is_the_module_of_pytorch_with_other_projections(options):
    theirs, ours = pair(batch_first=True, **options)
    qkv = inputs(torch.float64, True, options.get("kdim", WIDTH), options.get("vdim", WIDTH))
    assert_same(theirs, ours, qkv, torch.float64, **MASKS["padding"])


def test_softmax_is_the_module_of_pytorch_in_self_attention_and_with_the_hint():
    """Without padding and weights, both modules ignore the numbers of a mask with the hint, such as ALiBi."""
    theirs, ours = pair(batch_first=True)
    x = inputs(torch.float64, True)[0]
    padding, causal, summed = PADDING[:, :LENGTH], {"attn_mask": CAUSAL, "is_causal": True}, {"need_weights": False}
    distance = (torch.arange(LENGTH) - torch.arange(LENGTH)[:, None]).double()
    alibi = {"attn_mask": distance.masked_fill(CAUSAL, -INF), "is_causal": True}
    as_float = torch.zeros(BATCH, LENGTH).double().masked_fill(padding, -INF)
    for call in (
        {"key_padding_mask": padding},
        {"attn_mask": CAUSAL},
        causal,
        causal | summed,
        causal | summed | {"key_padding_mask": padding},
        alibi,
        alibi | summed,
        alibi | summed | {"key_padding_mask": as_float},
    ):
        assert_same(theirs, ours, [x, x, x], torch.float64, **call)


def test_softmax_is_the_module_of_pytorch_without_a_batch():
    theirs, ours = pair()
    qkv = [x[0].detach().requires_grad_() for x in inputs(torch.float64, True)]
    padding = {"key_padding_mask": PADDING[1], "need_weights": False}
    for call in ({}, padding, {"attn_mask": EACH[:HEADS], "average_attn_weights": False}):
        assert_same(theirs, ours, qkv, torch.float64, **call)


@pytest.mark.parametrize("name", ["padding", "float pairs"])
def test_softmax_is_the_module_of_pytorch_under_autocast(name):
    theirs, ours = pair(dtype=torch.float32, batch_first=True)
    within = tolerance(torch.bfloat16, size=WIDTH)
    for call in ({}, {"need_weights": False}):
        with torch.autocast("cpu", torch.bfloat16):
            (expected, _), (output, weights) = (
                module(*inputs(torch.float32, True), **MASKS[name], **call) for module in (theirs, ours)
            )
        assert output.dtype == expected.dtype
        assert weights is None or weights.dtype == torch.float32
        assert_close(output, expected, **within)


def test_a_query_without_a_key_gets_no_attention():
    _, ours = pair(batch_first=True)
    forbidden = torch.zeros(LENGTH, KEYS, dtype=torch.bool)
    forbidden[1] = True
    for call in ({}, {"need_weights": False}):
        output, weights = ours(*inputs(torch.float64, True), attn_mask=forbidden, **call)
        assert_close(output[:, 1], ours.out_proj.bias.expand(BATCH, -1))
        assert weights is None or (weights[:, 1] == 0).all()


EMPTY = {"no keys": (BATCH, LENGTH, 0), "no queries": (BATCH, 0, KEYS), "no examples": (0, LENGTH, KEYS)}


@pytest.mark.parametrize("shape", EMPTY.values(), ids=EMPTY)
@pytest.mark.parametrize("name", few(sorted(NORMALIZERS.keys() - {"selective", "stick_breaking"})))
def test_queries_keys_and_examples_may_be_missing(name, shape):
    """As in PyTorch. The output is what remains without attention: the bias, and the remainder of a row."""
    batch, queries, keys = shape
    theirs, ours = pair(name, batch_first=True)
    q, k = randn(batch, queries, WIDTH).requires_grad_(), randn(batch, keys, WIDTH)
    for need_weights in (False, True):
        output, weights = ours(q, k, k, need_weights=need_weights)
        assert output.shape == (batch, queries, WIDTH)
        assert weights is None or weights.shape == (batch, queries, keys)
    if name == "softmax":
        assert_close(output, theirs(q, k, k)[0])
    output.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in ours.parameters())


def test_dropout_acts_on_the_weights_in_training_only():
    module, x = layer("softmax", dropout=0.5), randn(BATCH, LENGTH, WIDTH)
    full = module.eval()(x, x, x, average_attn_weights=False)[1]
    assert_close(module(x, x, x)[1], full.mean(1))
    output, weights = module.train()(x, x, x, average_attn_weights=False)
    dropped = weights == 0
    assert dropped.any() and not dropped.all()
    assert_close(weights[~dropped], 2 * full[~dropped])
    values = module.project(x, x, x)[2]
    assert_close(output, module.out_proj((weights @ values).transpose(1, 2).flatten(2)))


@pytest.mark.parametrize("name", ["softmax", "dnas", "sinkhorn"])
def test_the_weights_are_those_of_the_formula(name):
    """Padded queries of self-attention are neither in the sum of a column nor do they get weights."""
    module, x, padding = layer(name).eval(), randn(BATCH, LENGTH, WIDTH, seed=4), PADDING[:, :LENGTH]
    bias = randn(LENGTH, LENGTH, seed=5)
    q, k, v = module.project(x, x, x)
    allowed = ~padding[:, None, None, :].expand(-1, HEADS, LENGTH, -1)
    if name != "softmax":
        allowed = allowed & ~padding[:, None, :, None]
    for added in (None, bias):
        scores = q @ k.mT / (WIDTH / HEADS) ** 0.5 + (0 if added is None else added)
        expected = reference.weights(name, scores, allowed)
        output, weights = module(x, x, x, padding, attn_mask=added, average_attn_weights=False)
        assert_close(weights, expected)
        assert_close(output, module.out_proj((expected @ v).transpose(1, 2).flatten(2)))
        assert_close(module(x, x, x, padding, attn_mask=added, need_weights=False)[0], output)


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@pytest.mark.parametrize("name", few(NORMALIZERS))
def test_a_padded_text_gets_what_it_gets_alone(name, left):
    module = layer(name).eval()
    x, real = randn(1, LENGTH, WIDTH), slice(2, None) if left else slice(0, LENGTH - 2)
    alone, padding = x[:, real], torch.ones(1, LENGTH, dtype=torch.bool)
    padding[:, real] = False
    causal = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    masks = [] if module.normalizer.needs_causal else [None]
    masks += [] if module.normalizer.couples_queries == "all" else [causal]
    for mask in masks:
        for as_float in (False, True):
            given = torch.zeros(1, LENGTH).masked_fill(padding, -INF).double() if as_float else padding
            output, weights = module(x, x, x, given, attn_mask=mask)
            expected, others = module(alone, alone, alone, attn_mask=None if mask is None else mask[:3, :3])
            assert_close(output[:, real], expected)
            assert_close(weights[:, real, real], others)
            assert_close(module(x, x, x, given, attn_mask=mask, need_weights=False)[0][:, real], expected)


def test_views_of_one_tensor_are_self_attention():
    """`torch.utils.checkpoint` with use_reentrant=True calls the module with three of them."""
    module, padding = layer("dnas"), PADDING[:, :LENGTH]
    x = randn(BATCH, LENGTH, WIDTH).requires_grad_()
    expected = module(x, x, x, padding)[0]
    assert_close(module(x.view_as(x), x, x, padding)[0], expected)
    slope = torch.autograd.grad(expected.square().sum(), x)[0]
    output = checkpoint(lambda q, k, v: module(q, k, v, padding)[0], x, x, x, use_reentrant=True)
    output.square().sum().backward()
    assert_close(x.grad, slope)
    assert not torch.allclose(module(x.clone(), x, x, padding)[0], expected)
    assert_close(module(x.clone(), x, x, padding, query_padding_mask=padding)[0], expected)
    assert torch.vmap(lambda x: module(x, x + 1, x)[0])(x[None]).shape == (1, *x.shape)


def test_padded_queries_of_cross_attention_are_those_that_are_named():
    module, x, memory = layer("dnas").eval(), randn(1, LENGTH, WIDTH), randn(1, KEYS, WIDTH, seed=1)
    padding = torch.tensor([[False, False, False, True, True]])
    expected = module(x[:, :3], memory, memory)[0]
    assert_close(module(x, memory, memory, query_padding_mask=padding)[0][:, :3], expected)
    assert not torch.allclose(module(x, memory, memory)[0][:, :3], expected)
    alone, _ = module(x[0], memory[0], memory[0], query_padding_mask=padding[0])
    assert_close(alone[:3], expected[0])


def test_padding_beside_a_query_that_is_not_the_key_warns_once():
    multihead.warn_of_padded_queries.cache_clear()
    padding = PADDING[:, :LENGTH]
    for length in (LENGTH, LENGTH - 2):
        x, memory = randn(BATCH, length, WIDTH), randn(BATCH, LENGTH, WIDTH, seed=1)
        with warnings.catch_warnings(action="error"):  # what is not a case for it
            layer("dnas")(x, memory, memory)
            layer("softmax")(x, memory, memory, padding)
            layer("dnas")(memory, memory, memory, padding)
            layer("dnas")(x, memory, memory, padding, query_padding_mask=torch.zeros(BATCH, length).bool())
        with pytest.warns(UserWarning, match="dnas couples queries, .* pass query_padding_mask"):
            layer("dnas")(x, memory, memory, padding)
        with warnings.catch_warnings(action="error"):
            layer("dnas")(x, memory, memory, padding)
        multihead.warn_of_padded_queries.cache_clear()


@pytest.mark.parametrize("name", ["softmax", "dnas"])
def test_keys_and_values_are_those_of_the_same_examples_as_in_pytorch(name):
    theirs, ours = pair(name, batch_first=True)
    x, memory = randn(BATCH, LENGTH, WIDTH), randn(BATCH, KEYS, WIDTH, seed=1)
    for given, message in (
        ((x, memory[:1], memory[:1]), "key: expected a batch of 3, as that of the query, got 1"),
        ((x[:1], memory, memory), "key: expected a batch of 1, as that of the query, got 3"),
        ((x, memory, memory[:1]), "value: .* of 3 and a length of 7, .* got a batch of 1 and a length of 7"),
        ((x, memory, memory[:, :1]), "value: .* of 3 and a length of 7, .* got a batch of 3 and a length of 1"),
    ):
        with pytest.raises((RuntimeError, AssertionError)):
            theirs(*given)
        with pytest.raises(ValueError, match=message):
            ours(*given)


@pytest.mark.parametrize("name", NORMALIZERS)
def test_a_module_on_the_device_meta_has_the_shapes_of_another_one(name):
    """Such tensors have no values, and their device has no autocast."""
    module = MultiheadAttention(WIDTH, HEADS, batch_first=True, normalizer=name, device="meta").eval()
    x, pairs = torch.empty(BATCH, LENGTH, WIDTH, device="meta"), CAUSAL.to("meta")
    padding = torch.zeros(BATCH, LENGTH, dtype=torch.bool, device="meta")
    masks = [{"attn_mask": pairs}, {"attn_mask": pairs.float()}]
    masks += [] if module.normalizer.needs_causal else [{}, {"key_padding_mask": padding}]
    for given in masks if not module.normalizer.needs_queries else masks[2:]:
        output, weights = module(x, x, x, **given)
        assert output.shape == x.shape and weights.shape == (BATCH, LENGTH, LENGTH)
        assert module(x, x, x, **given, need_weights=False)[0].shape == x.shape


@pytest.mark.slow
@pytest.mark.parametrize("form", ["dense", "linear"])
def test_an_exported_module_takes_batches_and_texts_of_any_size(form):
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = layer("dnas").eval()

        def forward(self, x, padding):
            return self.attention(x, x, x, padding, need_weights=False)[0]

    batch, length = torch.export.Dim("batch", min=2, max=64), torch.export.Dim("length", min=2, max=512)
    padding = PADDING[:, :LENGTH].contiguous()
    of_three = (randn(BATCH, LENGTH, WIDTH), padding)
    sizes = {0: batch, 1: length}
    with attention_form(form):
        exported = torch.export.export(Layer(), of_three, dynamic_shapes=(sizes, sizes)).module()
    of_two = (randn(2, LENGTH - 1, WIDTH, seed=2), padding[1:, 1:])
    assert_close(exported(*of_two), Layer()(*of_two))


def test_large_negative_numbers_forbid_attention_for_every_normalizer():
    """Without this, dnas would ignore them: they add the same number to each score of a column."""
    module, x = layer("dnas").eval(), randn(BATCH, LENGTH, WIDTH)
    padding = PADDING[:, :LENGTH]
    expected = module(x, x, x, padding)[0]
    for number in (-1e4, -1e9, torch.finfo(torch.float64).min):
        given = torch.zeros(padding.shape, dtype=torch.float64).masked_fill(padding, number)
        assert_close(module(x, x, x, given)[0], expected)


def test_a_learned_mask_that_begins_with_zeros_gets_a_gradient():
    module, x = layer("sinkhorn"), randn(BATCH, LENGTH, WIDTH)
    mask = torch.zeros(LENGTH, LENGTH, requires_grad=True)
    module(x, x, x, attn_mask=mask, need_weights=False)[0].square().sum().backward()
    assert mask.grad.abs().max() > 0


LEAKS = {
    "hint": {"attn_mask": CAUSAL, "is_causal": True},
    "bool": {"attn_mask": CAUSAL},
    "float": {"attn_mask": torch.zeros(LENGTH, LENGTH).masked_fill(CAUSAL, -INF)},
    "ALiBi": {"attn_mask": (-(torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)).float()).masked_fill(CAUSAL, -INF)},
    "window": {"attn_mask": CAUSAL | CAUSAL.new_ones(LENGTH, LENGTH).tril(-2)},
    "each head": {"attn_mask": CAUSAL.expand(BATCH * HEADS, -1, -1)},
    "padding": {"attn_mask": CAUSAL, "key_padding_mask": PADDING[:, :LENGTH]},
    "one example": {"attn_mask": torch.stack([CAUSAL, *[torch.zeros_like(CAUSAL)] * (BATCH * HEADS - 1)])},
}


@pytest.mark.parametrize("name", LEAKS)
def test_a_normalizer_that_couples_all_queries_is_refused_with_a_causal_mask(name):
    x = randn(BATCH, LENGTH, WIDTH)
    for normalizer in ("dnas", "hnas", "sinkhorn"):
        with pytest.raises(ValueError, match=f"{normalizer} couples queries and would leak the future"):
            layer(normalizer)(x, x, x, **LEAKS[name])
    for normalizer in ("softmax", "dnas_prefix"):
        assert layer(normalizer)(x, x, x, **LEAKS[name])[0].isfinite().all()


@pytest.mark.parametrize(("queries", "keys"), [(3, 5), (5, 3)])
def test_a_causal_mask_need_not_be_square(queries, keys):
    x, memory, square = randn(1, queries, WIDTH), randn(1, keys, WIDTH), torch.ones(queries, keys)
    for diagonal in (0, keys - queries):  # aligned to the beginning or to the end
        with pytest.raises(ValueError, match="dnas couples queries and would leak the future"):
            layer("dnas")(x, memory, memory, attn_mask=square.triu(diagonal + 1) > 0)
    with pytest.raises(ValueError, match="selective is defined for causal self-attention only"):
        layer("selective")(x, memory, memory, attn_mask=square.triu(1) > 0)


def test_masks_that_are_not_causal_are_not_refused():
    module, x = layer("dnas"), randn(BATCH, LENGTH, WIDTH)
    blocks = torch.block_diag(torch.ones(2, 2), torch.ones(3, 3)) == 0
    assert module(x, x, x, attn_mask=blocks)[0].isfinite().all()
    assert module(x, x, x, attn_mask=~torch.eye(LENGTH, dtype=torch.bool))[0].isfinite().all()
    assert module(*[x[:, :1]] * 3, attn_mask=CAUSAL[:1, :1])[0].isfinite().all()
    memory = randn(BATCH, KEYS, WIDTH)
    keys = torch.arange(KEYS)
    of_memory = keys.expand(LENGTH, KEYS) >= 2
    ends = (torch.arange(LENGTH)[:, None] >= 3) | of_memory  # padded queries, too
    packed = (torch.arange(LENGTH)[:, None] >= 2) != (keys >= 3)  # two texts
    for mask in (PAIRS, of_memory, ends, packed):
        assert module(x, memory, memory, attn_mask=mask)[0].isfinite().all()
    rows = torch.block_diag(*[torch.ones(1, 2)] * 3) == 0
    texts = torch.block_diag(torch.ones(2, 3), torch.ones(1, 3)) == 0  # two and one queries, three keys each
    regions = torch.ones(3, 6) > 0
    for query, (first, end) in enumerate([(0, 2), (1, 3), (2, 4)]):  # nobody looks at the last keys
        regions[query, first:end] = False
    for mask in (rows, texts, regions):
        assert module(x[:, :3], *[memory[:, :6]] * 2, attn_mask=mask)[0].isfinite().all()


def x3(*shape):
    return [randn(*shape)] * 3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: layer("dnas", add_bias_kv=True), "add_bias_kv=True: .* normalizer='sink'"),
        (lambda: layer("dnas", add_zero_attn=True), "add_zero_attn=True: .* normalizer='off_by_one'"),
        (lambda: layer("dnaz"), "normalizer 'dnaz' is unknown; .* Did you mean 'dnas'"),
        (lambda: layer({"encoder": "hnas"}), "normalizer={'encoder': 'hnas'}: expected a name and options, such as"),
        (lambda: layer(3), "normalizer 3 is unknown; allowed"),
        (lambda: layer({"name": "sinkhorn", "n_iter": 2}), "n_iter=2: no such option; .*n_iters"),
        (lambda: layer({"name": "forgetting", "heads": 9}), "heads=9: not an option here"),
        (lambda: layer("softmax")(*x3(2, 5, 8), is_causal=True), "is_causal=True: is a hint about attn_mask"),
        (lambda: layer("softmax")(*x3(2, 5, 8), torch.zeros(2, 4) > 0), r"key_padding_mask: .* \(2, 5\), got \(2, 4\)"),
        (lambda: layer("softmax")(*x3(2, 5, 8), torch.zeros(2, 5).int()), "key_padding_mask: expected dtype bool or a"),
        (lambda: layer("softmax")(*x3(2, 5, 8), attn_mask=torch.zeros(5, 4)), r"attn_mask: .*\(5, 5\) or \(4, 5, 5\)"),
        (lambda: layer("softmax")(*x3(2, 5, 8), attn_mask=torch.ones(3, 4), is_causal=True), r"\(5, 5\) or \(4, "),
        (lambda: layer("dnas")(*x3(2, 5, 8), query_padding_mask=torch.zeros(2, 5)), "query_padding_mask: .* bool, got"),
        (lambda: layer("selective")(*x3(2, 5, 8)), "selective is defined for causal self-attention only"),
        (lambda: layer("espformer")(*x3(2, 5, 8), attn_mask=torch.ones(5, 5)), "espformer is computed from the"),
    ],
)
def test_what_is_not_defined_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_off_by_one_is_softmax_with_a_key_of_zeros():
    """What the message about add_zero_attn says."""
    theirs, ours = pair(batch_first=True)
    theirs.add_zero_attn, ours.normalizer = True, build_normalizer("off_by_one")
    qkv = inputs(torch.float64, True)
    (expected, weights), (output, others) = theirs(*qkv), ours(*qkv)
    assert_close(output, expected)
    assert_close(others, weights[..., :KEYS])


def test_the_state_dict_is_that_of_pytorch():
    for options in ({}, {"bias": False}, {"kdim": 6, "vdim": 4}):
        theirs, ours = nn.MultiheadAttention(WIDTH, HEADS, **options), MultiheadAttention(WIDTH, HEADS, **options)
        assert {name: x.shape for name, x in theirs.state_dict().items()} == {
            name: x.shape for name, x in ours.state_dict().items()
        }
        ours.load_state_dict(theirs.state_dict())
        theirs.load_state_dict(ours.state_dict())
    hnas = MultiheadAttention(WIDTH, HEADS, normalizer={"name": "hnas", "start": 0.3})
    new = {"normalizer.hybrid"}
    assert {*hnas.state_dict()} - {*nn.MultiheadAttention(WIDTH, HEADS).state_dict()} == new
    file = io.BytesIO()
    torch.save(hnas.state_dict(), file)
    file.seek(0)
    again = MultiheadAttention(WIDTH, HEADS, normalizer="hnas")
    again.load_state_dict(torch.load(file, weights_only=True))
    assert again.normalizer.hybrid_weight().item() == pytest.approx(0.3)


def test_a_normalizer_is_given_in_any_form():
    instance = DNAS()
    for form in ("dnas", "attnorm.attention.normalizers.dnas.DNAS", {"name": "dnas"}, DNAS, instance):
        made = MultiheadAttention(WIDTH, HEADS, normalizer=form).normalizer
        assert type(made) is DNAS and (made is instance) == (form is instance)
    assert layer({"name": "hnas", "per": "head"}).normalizer.hybrid.shape == (HEADS,)
    assert layer("forgetting", kdim=6).normalizer.gate.weight.shape == (HEADS, 6)
    assert layer("asentmax", kdim=6)(*[randn(1, 3, width) for width in (WIDTH, 6, WIDTH)])[0].isfinite().all()
    assert layer("forgetting", kdim=6)(*[randn(1, 3, width) for width in (WIDTH, 6, WIDTH)])[0].isfinite().all()


@pytest.mark.parametrize("name", ["dnas", "hnas", "forgetting", "asentmax", "sink", "ssmax"])
def test_a_module_can_have_16_bits(name):
    exact = layer(name).eval()
    half = copy.deepcopy(exact).bfloat16()
    exact.load_state_dict({key: x.double() for key, x in half.state_dict().items()})
    x = randn(BATCH, LENGTH, WIDTH, dtype=torch.bfloat16)
    for call in ({}, {"need_weights": False}):
        output, weights = half(x, x, x, PADDING[:, :LENGTH], **call)
        assert output.dtype == torch.bfloat16 and (weights is None or weights.dtype == torch.bfloat16)
        expected = exact(*[x.double()] * 3, PADDING[:, :LENGTH], **call)[0]
        assert_close(output.double(), expected, **tolerance(torch.bfloat16, size=WIDTH))
    made = MultiheadAttention(WIDTH, HEADS, normalizer=name, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in made.parameters()} == {torch.bfloat16}


def test_no_attention_adds_nothing_and_a_remainder_its_value():
    x = randn(BATCH, LENGTH, WIDTH)
    assert (layer("none")(x, x, x)[0] == 0).all()
    module = layer({"name": "stick_breaking", "remainder": "value"}).eval()
    output, weights = module(x, x, x, attn_mask=CAUSAL, average_attn_weights=False)
    values = module.project(x, x, x)[2]
    context = weights @ values + (1 - weights.sum(-1, keepdim=True)) * module.normalizer.value[:, None]
    assert_close(output, module.out_proj(context.transpose(1, 2).flatten(2)))


def test_parameters_can_be_reset_as_those_of_pytorch():
    for options in ({}, {"kdim": 6}):
        modules = MultiheadAttention(WIDTH, HEADS, **options), nn.MultiheadAttention(WIDTH, HEADS, **options)
        modules[0].load_state_dict(modules[1].state_dict())  # the output projection is not reset
        for module in modules:
            torch.manual_seed(0)
            module._reset_parameters()
        ours, theirs = (module.state_dict() for module in modules)
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
