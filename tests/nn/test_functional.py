"""attnorm.nn.functional.attention: with softmax PyTorch's function, and with others the weights of the normalizer."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from marks import slow
from reference import randn
from torch.testing import assert_close

from attnorm.attention import Mask, build_normalizer
from attnorm.attention.normalizers.dnas import DNAS
from attnorm.attention.normalizers.shared import key_bias
from attnorm.nn import MultiheadAttention, convert, replace_sdpa
from attnorm.nn.functional import attention

pytestmark = pytest.mark.numerical

L, S, E, V = 5, 7, 4, 3
ALLOWED = torch.rand(L, S, generator=torch.Generator().manual_seed(1)) < 0.7
ALLOWED[:, 2] = True
GROUPS = {"lead": (2, 6), "heads": 3}, {"enable_gqa": True}
PADDING = torch.arange(L) >= torch.tensor([5, 3])[:, None]


def qkv(*lead, keys=S, heads=None):
    of_keys = (*lead[:-1], heads or lead[-1], keys) if lead else (keys,)
    shapes = ((*lead, L, E), (*of_keys, E), (*of_keys, V))
    return [randn(*shape, seed=seed).requires_grad_() for seed, shape in enumerate(shapes)]


def same(ours, theirs, inputs):
    assert_close(ours, theirs)
    slopes = (torch.autograd.grad(output.square().sum(), inputs, retain_graph=True) for output in (ours, theirs))
    assert_close(*slopes)


@pytest.mark.parametrize("lead", [(), (2,), (2, 3), (2, 1, 3)], ids=str)
def test_softmax_is_the_function_of_pytorch(lead):
    inputs = qkv(*lead)
    each = torch.rand(*lead, L, S, generator=torch.Generator().manual_seed(2)) < 0.7
    each[..., 2] = True
    masks = [None, ALLOWED, each, randn(L, S).masked_fill(~ALLOWED, -math.inf), randn(*lead, L, S)]
    masks += [each[0]] if len(lead) > 1 else []
    for mask in masks:
        for scale in (None, 0.3):
            expected = F.scaled_dot_product_attention(*inputs, attn_mask=mask, scale=scale)
            same(attention(*inputs, mask, scale=scale), expected, inputs)


@pytest.mark.parametrize(
    ("shape", "options"),
    [*(({"lead": (2, 3), "keys": it}, {"is_causal": True}) for it in (L, 3, S)), GROUPS],
)
def test_causal_masks_and_groups_of_heads_are_those_of_pytorch(shape, options):
    inputs = qkv(*shape["lead"], **{key: it for key, it in shape.items() if key != "lead"})
    same(attention(*inputs, **options), F.scaled_dot_product_attention(*inputs, **options), inputs)
    message = "enable_gqa=True: the query has 3 heads, which must be a multiple of the 2 heads of the key"
    with pytest.raises(ValueError, match=message):
        attention(*qkv(1, 3, heads=2), enable_gqa=True)


def test_padding_has_the_shape_of_the_examples():
    for lead in ((2,), (2, 3), (1, 2, 3)):
        inputs = qkv(*lead, keys=L)
        padding = PADDING if len(lead) < 3 else PADDING[None]
        mask = ~(padding[..., None, :] if len(lead) == 1 else padding[..., None, None, :])
        expected = F.scaled_dot_product_attention(*inputs, attn_mask=mask)
        same(attention(*inputs, key_padding_mask=padding), expected, inputs)
        as_float = torch.zeros(padding.shape).masked_fill(padding, -math.inf).double()
        same(attention(*inputs, key_padding_mask=as_float), expected, inputs)


@pytest.mark.parametrize("name", ["dnas", "sinkhorn", "espformer", "ot", "entmax", "off_by_one", "dnas_prefix"])
def test_a_normalizer_by_name_or_as_an_instance_is_what_attends(name):
    q, k, v = inputs = qkv(2, 3, keys=L)
    normalizer = build_normalizer(name)
    expected = normalizer.attend(q, k, v, Mask(queries=~PADDING, keys=~PADDING))
    padding = {"key_padding_mask": PADDING, "query_padding_mask": PADDING}
    for given in (name, normalizer):
        same(attention(*inputs, normalizer=given, **padding), expected, inputs)
    dense = (~PADDING[:, None, :, None]) & ~PADDING[:, None, None, :]
    assert_close(attention(*inputs, dense, normalizer=name), normalizer.attend(q, k, v, dense))
    prior = randn(1, 3, L, L)
    assert_close(attention(*inputs, normalizer=name, log_prior=prior), normalizer.attend(q, k, v, log_prior=prior))


def test_a_float_mask_is_added_before_the_scores_are_normalized():
    q, k, v = qkv(2, 3)
    bias = randn(3, L, S)
    expected = build_normalizer("dnas")(E**-0.5 * q @ k.mT + bias) @ v
    assert_close(attention(q, k, v, bias, normalizer="dnas"), expected)


def test_features_of_the_states_are_passed_on():
    module = MultiheadAttention(6, 2, batch_first=True, normalizer="forgetting", dtype=torch.float64)
    x = randn(2, L, 6)
    q, k, v = module.project(x, x, x)
    normalizer = module.normalizer
    context = attention(q, k, v, normalizer=normalizer, features=normalizer.features_of(x))
    assert_close(module.out_proj(context.transpose(1, 2).flatten(2)), module(x, x, x)[0])
    with pytest.raises(ValueError, match=r"forgetting needs the hidden states of the keys: pass features="):
        attention(q, k, v, normalizer=normalizer)


def test_dropout_drops_weights():
    q, k, v = qkv(1, 1)
    torch.manual_seed(0)
    outputs = torch.stack([attention(q, k, v, dropout_p=0.5, normalizer="dnas") for _ in range(400)])
    exact = attention(q, k, v, normalizer="dnas")
    assert (outputs[0] - exact).abs().max() > 0.01
    error = outputs.std(0) / 400**0.5
    assert ((outputs.mean(0) - exact).abs() < 5 * error).all()


@pytest.mark.parametrize("kind", ["nothing", "bool", "float", "module", "module in a container"])
def test_the_weights_are_not_stored_where_they_need_not_be(monkeypatch, kind):
    """The path with linear memory is taken, also if a container has made a float mask of padding."""

    def refuse(*_):
        raise AssertionError("the weights are computed")

    x = randn(2, L, 8).float()
    as_float = torch.zeros(2, L).masked_fill(PADDING, -math.inf)
    module = MultiheadAttention(8, 2, batch_first=True, normalizer="dnas")
    inputs = [x.unflatten(-1, (2, -1)).transpose(1, 2)] * 3
    calls = {
        "nothing": lambda: attention(*inputs, normalizer="dnas"),
        "bool": lambda: attention(*inputs, normalizer="dnas", key_padding_mask=PADDING, query_padding_mask=PADDING),
        "float": lambda: attention(*inputs, normalizer="dnas", key_padding_mask=as_float, query_padding_mask=PADDING),
        "module": lambda: module(x, x, x, PADDING, need_weights=False)[0],
        "module in a container": lambda: module(x, x, x, as_float, need_weights=False)[0],
    }
    expected = calls[kind]()
    monkeypatch.setattr(key_bias, "DENSE_UP_TO", {"cpu": 0})
    monkeypatch.setattr(DNAS, "weights", refuse)
    assert_close(calls[kind](), expected)


FAST = ["softmax", "dnas", "sinkhorn", "off_by_one", "dnas_slack", "lotformer", "dnas_prefix"]


@pytest.mark.parametrize("width", [2, 6])
@pytest.mark.parametrize("name", FAST)
def test_values_may_have_another_width_on_every_path(monkeypatch, name, width):
    q, k = (randn(2, 3, L, E, seed=seed).requires_grad_() for seed in (1, 2))
    v = randn(2, 3, L, width, seed=3).requires_grad_()
    normalizer = build_normalizer(name, **({"heads": 3, "width": E} if name == "lotformer" else {})).double()
    masks = [Mask(queries=~PADDING, keys=~PADDING), Mask(segments=torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 2, 2]]))]
    if name in ("softmax", "off_by_one", "dnas_prefix"):
        masks += [Mask(causal=True), Mask(keys=~PADDING, causal=True)]
    for mask in masks:
        expected = normalizer(E**-0.5 * q @ k.mT, mask, keys=k, scale=E**-0.5, **normalizer.declared(q, None)) @ v
        monkeypatch.setattr(key_bias, "DENSE_UP_TO", {"cpu": 0})
        same(normalizer.attend(q, k, v, mask), expected, [q, k, v])
        monkeypatch.undo()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"normalizer": "dnaz"}, "normalizer 'dnaz' is unknown; .* Did you mean 'dnas'"),
        ({"normalizer": "hnas"}, "normalizer 'hnas' has trained parameters: build it once"),
        ({"normalizer": "forgetting"}, "normalizer 'forgetting': needs a value for heads, state_width"),
        ({"normalizer": {"name": "dnas"}}, r"normalizer=\{'name': 'dnas'\}: expected a name such as 'dnas', or"),
        ({"normalizer": DNAS}, "normalizer=<class '.*DNAS'>: expected a name"),
        ({"normalizer": "dnas", "is_causal": True}, "^is_causal=True: dnas couples queries and would leak the future"),
        ({"normalizer": "dnas", "attn_mask": torch.ones(L, L).tril() > 0}, "^attn_mask: hides the future: dnas"),
        ({"normalizer": "dnas", "key_padding_mask": PADDING}, "key_padding_mask without query_padding_mask: dnas"),
        ({"attn_mask": torch.ones(L, L) > 0, "is_causal": True}, "is_causal=True: sets the mask"),
        ({"attn_mask": torch.ones(L, L).long()}, "attn_mask: expected dtype bool or a float dtype, got torch.int64"),
        ({"key_padding_mask": PADDING[:, :2]}, r"key_padding_mask: expected the shape \(2, 5\), got \(2, 2\)"),
        ({"normalizer": "selective"}, "selective is defined for causal self-attention only"),
    ],
    ids=str,
)
def test_what_is_not_defined_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        attention(*qkv(2, 3, keys=L), **call)
    if call == {"normalizer": "dnas", "is_causal": True}:
        with pytest.raises(ValueError, match=message):
            attention(*qkv(2, 3), **call)  # as many keys as queries, more or fewer


def test_argmax_by_name_is_in_eval_mode():
    q, k, v = qkv(2, 3)
    best = (q @ k.mT).argmax(-1)
    assert_close(attention(q, k, v, normalizer="argmax"), v.take_along_dim(best[..., None], -2))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["softmax", "dnas"])
def test_an_exported_function_takes_batches_of_any_size(name):
    class Attention(torch.nn.Module):
        def forward(self, q):
            return attention(q, q, q, normalizer=name)

    batch = torch.export.Dim("batch", min=2, max=64)
    exported = torch.export.export(Attention(), (randn(3, 2, L, E),), dynamic_shapes=({0: batch},)).module()
    assert_close(exported(randn(5, 2, L, E)), Attention()(randn(5, 2, L, E)))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("name", ["dnas", slow("off_by_one")])
def test_the_function_can_be_compiled_as_a_whole(name):
    torch.compiler.reset()

    def both(q, k, v):
        padding = {"key_padding_mask": PADDING, "query_padding_mask": PADDING}
        return attention(q, k, v, normalizer=name, **padding) + attention(q, k, v, is_causal=True)

    inputs = qkv(2, 3, keys=L)
    same(torch.compile(both, backend="aot_eager", fullgraph=True)(*inputs), both(*inputs), inputs)


@pytest.mark.parametrize("name", ["softmax", "dnas", "sinkhorn", "off_by_one"])
@pytest.mark.parametrize("lead", [(), (2,), (2, 3), (2, 2, 3), (0, 3)], ids=str)
def test_nothing_to_attend_to_gives_zeros_and_nothing_asked_gives_nothing(name, lead):
    for queries, keys in ((0, 5), (5, 0), (0, 0)):
        q, k, v = (torch.randn(*lead, length, 4) for length in (queries, keys, keys))
        for mask in (None, torch.ones(queries, keys, dtype=torch.bool)):
            found = attention(q, k, v, mask, normalizer=name)
            assert found.shape == (*lead, queries, 4) and not found.any()


def test_code_that_calls_sdpa_gets_a_normalizer_inside_a_with():
    """A transformer of torch in evaluation, which calls it, gives what `functional.attention` gives."""
    q, k, v = (randn(2, 3, 5, 4, seed=seed) for seed in range(3))
    plain, padding = F.scaled_dot_product_attention, ~PADDING[:, None, None]
    with replace_sdpa("dnas"):
        inside = F.scaled_dot_product_attention(q, k, v, dropout_p=0.0)
        with pytest.raises(ValueError, match="would leak the future"):
            F.scaled_dot_product_attention(q, k, v, is_causal=True)
        of_floats = torch.where(padding, 0.0, -torch.inf).double()
        for mask in (padding[1, 0, 0], padding, padding.expand(2, 3, 5, 5), of_floats):
            with pytest.raises(ValueError, match="hides keys from all queries, and dnas couples queries"):
                F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        assert torch.equal(F.scaled_dot_product_attention(q, k, v, padding | True), inside)
        F.scaled_dot_product_attention(q, k, v, padding & padding.mT)
    assert F.scaled_dot_product_attention is plain
    assert torch.equal(inside, attention(q, k, v, normalizer="dnas"))
    assert not torch.allclose(inside, plain(q, k, v))

    layer = torch.nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True).double()
    states = randn(2, 5, 8, seed=4).requires_grad_()
    expected = convert(copy.deepcopy(layer), "hnas")(states)
    with replace_sdpa(build_normalizer("hnas").double()):
        torch.testing.assert_close(layer(states), expected)
    for wrong in ("hnas", "dnsa"):
        with pytest.raises(ValueError, match=wrong), replace_sdpa(wrong):
            pass


def test_the_fast_path_of_torch_is_off_inside_and_a_warning_says_if_nothing_was_replaced():
    """In evaluation and without gradients, torch's encoder layer calls no attention by its fast path."""
    layer, states = torch.nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True).double(), randn(2, 5, 8)
    with replace_sdpa("dnas"):
        expected = layer(states)
        with torch.no_grad():
            assert_close(layer.eval()(states), expected)
    assert torch.backends.mha.get_fastpath_enabled()
    attends = torch.nn.MultiheadAttention(8, 2, batch_first=True).double()
    with pytest.warns(UserWarning, match="so nothing was replaced"), replace_sdpa("dnas"):
        attends(states, states, states)  # with weights, it computes softmax itself
    with pytest.raises(KeyError), replace_sdpa("dnas"):
        raise KeyError  # without a warning
    assert torch.backends.mha.get_fastpath_enabled()
