"""attnorm.nn.MultiheadAttention inside the modules of PyTorch, which compute softmax attention without calling it where
they can: in the fused path of an encoder layer, and with nested tensors."""

import copy
import gc
import warnings
from functools import partial

import pytest
import torch
from reference import randn
from simulated_gpu import SimulatedGPU
from tolerance import tolerance
from torch import nn
from torch.testing import assert_close

from attnorm.nn import MultiheadAttention, convert
from attnorm.nn import multihead as module_under_test

pytestmark = pytest.mark.numerical

WIDTH, HEADS, LENGTH = 8, 2, 6
PADDING = torch.arange(LENGTH) >= torch.tensor([6, 4, 3])[:, None]
REAL = ~PADDING
X = randn(3, LENGTH, WIDTH).float()
MEMORY = randn(3, LENGTH, WIDTH, seed=1).float()
WITHIN = tolerance(torch.float32, depth=2, size=WIDTH)


def attention(normalizer):
    return MultiheadAttention(WIDTH, HEADS, batch_first=True, normalizer=normalizer)


def encoder_layer(**options):
    torch.manual_seed(3)
    return nn.TransformerEncoderLayer(WIDTH, HEADS, 16, 0.0, batch_first=True, **options)


def decoder_layer():
    torch.manual_seed(3)
    return nn.TransformerDecoderLayer(WIDTH, HEADS, 16, 0.0, batch_first=True)


def with_attention(layer, normalizer, *names):
    """The layer with new attention modules of the same parameters."""
    for name in names:
        new = attention(normalizer)
        new.load_state_dict(getattr(layer, name).state_dict(), strict=False)
        setattr(layer, name, new)
    return layer


def in_layer(normalizer, **options):
    return with_attention(encoder_layer(**options), normalizer, "self_attn")


def in_encoder(normalizer):
    """Set before the encoder is built, which clones the layer."""
    with warnings.catch_warnings(action="ignore"):  # that it will not use nested tensors
        return nn.TransformerEncoder(in_layer(normalizer), 2)


def in_finished_encoder(normalizer, first=0):
    """Set afterwards: the encoder makes nested tensors, which a first layer that is fused passes on."""
    encoder = nn.TransformerEncoder(encoder_layer(), 2)
    for layer in encoder.layers[first:]:
        with_attention(layer, normalizer, "self_attn")
    assert encoder.use_nested_tensor
    return encoder


def in_converted_encoder(normalizer):
    encoder = nn.TransformerEncoder(encoder_layer(), 2)
    assert encoder.use_nested_tensor and not convert(encoder, normalizer).use_nested_tensor
    return encoder


def in_decoder(normalizer):
    return nn.TransformerDecoder(with_attention(decoder_layer(), normalizer, "self_attn", "multihead_attn"), 2)


def in_transformer(normalizer):
    torch.manual_seed(3)
    model = nn.Transformer(WIDTH, HEADS, 1, 2, 16, 0.0, batch_first=True)
    convert(model.encoder, normalizer)
    return model


def of_encoder(model):
    return model(X, src_key_padding_mask=PADDING)[REAL]


def of_decoder(model):
    return model(X, MEMORY, memory_key_padding_mask=PADDING)


def of_transformer(model):
    return model(MEMORY, X, src_key_padding_mask=PADDING, memory_key_padding_mask=PADDING)


CONTAINERS = {  # how it is made, how it is called, and the number of calls of our module
    "layer": (in_layer, of_encoder, 1),
    "layer, norm first": (partial(in_layer, norm_first=True, activation="gelu"), of_encoder, 1),
    "encoder": (in_encoder, of_encoder, 2),
    "finished encoder": (in_finished_encoder, of_encoder, 2),
    "second layer": (partial(in_finished_encoder, first=1), of_encoder, 1),
    "converted encoder": (in_converted_encoder, of_encoder, 2),
    "decoder": (in_decoder, of_decoder, 4),
    "transformer": (in_transformer, of_transformer, 1),
}
MODES = {
    "train": (True, torch.enable_grad),
    "eval": (False, torch.enable_grad),
    "no_grad": (False, torch.no_grad),
    "inference": (False, torch.inference_mode),
}


def assert_takes_part(model, call, count, expected, softmax):
    """In every mode, our module is called, and the result is that of its normalizer and not that of softmax."""
    calls = []
    for name, (training, grad) in MODES.items():
        calls.clear()
        attend = module_under_test.attend
        with pytest.MonkeyPatch.context() as patch, grad():
            patch.setattr(
                module_under_test, "attend", lambda *a, attend=attend, **k: calls.append(1) or attend(*a, **k)
            )
            output = call(model.train(training))
        assert len(calls) == count, name
        assert_close(output, expected, **WITHIN, msg=name)
        assert (output - softmax).abs().max() > 0.01, name


@pytest.mark.parametrize("normalizer", ["dnas", "sinkhorn", "hnas"])
@pytest.mark.parametrize("name", CONTAINERS)
def test_the_normalizer_takes_part_in_every_mode(name, normalizer):
    make, call, count = CONTAINERS[name]
    model = make(normalizer)
    expected, softmax = call(model.train()).detach(), call(make("softmax").train()).detach()
    assert_takes_part(model, call, count, expected, softmax)


def test_the_test_above_notices_what_pytorch_would_do():
    """Its fused path and its nested tensors, if they were not told to leave this module out."""
    for make in (in_layer, in_finished_encoder):
        model = make("dnas")
        expected, softmax = of_encoder(model.train()).detach(), of_encoder(make("softmax").train()).detach()
        for module in model.modules():
            if isinstance(module, MultiheadAttention):
                module._qkv_same_embed_dim = True
        with pytest.raises(AssertionError, match="no_grad"):
            assert_takes_part(model, of_encoder, 1 if make is in_layer else 2, expected, softmax)


@pytest.mark.parametrize("name", ["layer", "encoder", "finished encoder", "converted encoder", "second layer"])
def test_a_padded_text_gets_what_it_gets_alone(name):
    make, _, _ = CONTAINERS[name]
    model = make("dnas")
    for training, grad in MODES.values():
        with grad():
            model.train(training)
            output = model(X, src_key_padding_mask=PADDING)
            for row, length in enumerate(REAL.sum(1)):
                alone = model(X[row : row + 1, :length])
                assert_close(output[row, :length], alone[0], **WITHIN)


def test_softmax_inside_an_encoder_is_that_of_pytorch():
    theirs = nn.TransformerEncoder(encoder_layer(), 2)
    ours = convert(copy.deepcopy(theirs), "softmax")
    causal = nn.Transformer.generate_square_subsequent_mask(LENGTH)
    for training, grad in MODES.values():
        padding = {"src_key_padding_mask": PADDING}
        for masks in ({}, padding, {"mask": causal}, {"mask": causal > 0}, {"mask": causal < 0, **padding}):
            with grad():
                expected, output = (model.train(training)(X, **masks) for model in (theirs, ours))
            assert_close(output[REAL], expected[REAL], **WITHIN)


@pytest.mark.parametrize("normalizer", ["softmax", "dnas", "hnas"])
def test_a_converted_encoder_with_padding_does_not_wait_for_the_device(normalizer):
    with SimulatedGPU() as gpu:
        model, x, padding = (it.to(torch.device("cpu")) for it in (in_converted_encoder(normalizer), X, PADDING))
        gpu.transfers.clear()
        model(x, src_key_padding_mask=padding).sum().backward()
        model.layers[0](x, None, padding).sum().backward()
        assert not gpu.transfers and not gpu.mixed
        model.layers[0](x, src_key_padding_mask=torch.zeros(PADDING.shape).to(x)).sum().backward()
    assert gpu.transfers.total() == 2  # this mask was copied, and its values had to be looked at


def test_a_decoder_refuses_what_would_leak_the_future():
    causal = nn.Transformer.generate_square_subsequent_mask(LENGTH)
    model = nn.TransformerDecoder(with_attention(decoder_layer(), "dnas", "self_attn"), 2)
    for training, grad in MODES.values():
        with grad(), pytest.raises(ValueError, match="dnas couples queries and would leak the future"):
            model.train(training)(X, MEMORY, tgt_mask=causal)
    with pytest.raises(ValueError, match="dnas couples queries and would leak the future"):
        in_encoder("dnas").eval()(X, mask=causal < 0)
    safe = nn.TransformerDecoder(with_attention(decoder_layer(), "dnas_prefix", "self_attn"), 2).eval()
    changed = torch.cat([X[:, :3], MEMORY[:, 3:]], 1)
    output, other = (safe(x, MEMORY, tgt_mask=causal) for x in (X, changed))
    assert_close(output[:, :3], other[:, :3], **WITHIN)
    assert not torch.allclose(output[:, 3:], other[:, 3:])


@pytest.mark.parametrize("by_position", [False, True])
def test_the_cross_attention_of_a_converted_decoder_knows_its_padded_queries(by_position):
    """A prefix normalizer with padding on the left, so that padded queries come first."""
    decoder = convert(nn.TransformerDecoder(decoder_layer(), 2), "dnas_prefix")
    convert(decoder, "dnas_prefix")
    causal = nn.Transformer.generate_square_subsequent_mask(LENGTH)
    left = PADDING.flip(1)
    if by_position:
        output = X
        for layer in decoder.layers:
            output = layer(output, MEMORY, causal, None, left, PADDING)
    else:
        output = decoder(X, MEMORY, causal, tgt_key_padding_mask=left, memory_key_padding_mask=PADDING)
    for row, length in enumerate(REAL.sum(1)):
        target, memory = X[row : row + 1, LENGTH - length :], MEMORY[row : row + 1, :length]
        alone = decoder(target, memory, causal[:length, :length])
        assert_close(output[row, LENGTH - length :], alone[0], **WITHIN)
    assert all(layer.multihead_attn.padded_queries is None for layer in decoder.layers)
    assert len(decoder.layers[0]._forward_pre_hooks) == 1


def test_autocast_of_an_encoder_changes_only_the_rounding():
    model = in_finished_encoder("dnas")
    expected = of_encoder(model.train()).detach()
    for training, grad in MODES.values():
        with grad(), torch.autocast("cpu", torch.bfloat16):
            output = of_encoder(model.train(training))
        assert_close(output.float(), expected, **tolerance(torch.bfloat16, depth=2, size=WIDTH))


@pytest.mark.slow
@pytest.mark.parametrize("normalizer", ["dnas", "espformer"])
def test_a_compiled_layer_is_the_same(normalizer):
    torch.compiler.reset()
    model = in_layer(normalizer)
    # the dot products of espformer are its own, so that the values of a mask have to be looked at
    compiled = torch.compile(model, backend="aot_eager", fullgraph=normalizer == "dnas")
    output, expected = of_encoder(compiled), of_encoder(model)
    assert_close(output, expected, **WITHIN)
    used = [*model.parameters()]
    slopes, others = (torch.autograd.grad(it.square().sum(), used) for it in (output, expected))
    for slope, other in zip(slopes, others, strict=True):
        assert_close(slope, other, **tolerance(torch.float32, depth=2, size=WIDTH, scale=max(1.0, other.abs().max())))
    with torch.no_grad():
        assert_close(of_encoder(compiled.eval()), expected.detach(), **WITHIN)


@pytest.mark.slow
@pytest.mark.long
def test_a_compiled_layer_refuses_a_causal_mask():
    torch.compiler.reset()
    causal = nn.Transformer.generate_square_subsequent_mask(LENGTH)
    with pytest.raises(ValueError, match="would leak the future"):
        torch.compile(in_layer("dnas"), backend="eager")(X, causal)


def test_a_compiled_causal_layer_with_a_float_mask_is_the_same():
    torch.compiler.reset()
    x, causal = torch.randn(2, LENGTH, WIDTH), nn.Transformer.generate_square_subsequent_mask(LENGTH)
    for normalizer in ("stick_breaking", "dnas_prefix"):
        layer = MultiheadAttention(WIDTH, HEADS, batch_first=True, normalizer=normalizer)
        compiled = torch.compile(layer, backend="eager", fullgraph=True)
        for output, expected in zip(
            *(it(x, x, x, attn_mask=causal, is_causal=True) for it in (compiled, layer)), strict=True
        ):
            assert_close(output, expected, rtol=1e-5, atol=1e-6)


def test_convert_keeps_hooks_and_their_handles_and_the_hooks_of_loading():
    model, seen, x = nn.Sequential(nn.MultiheadAttention(8, 2)), [], torch.randn(3, 1, 8)
    before = model[0].register_forward_pre_hook(lambda module, args: seen.append(module))
    after = model[0].register_forward_hook(lambda module, args, kwargs, out: seen.append(kwargs), with_kwargs=True)
    model[0].register_load_state_dict_pre_hook(lambda module, *_: seen.append(("loading", module)))
    convert(model, "dnas")
    gc.collect()  # the old module
    model[0](x, x, x, need_weights=False)
    assert seen == [model[0], {"need_weights": False}]
    before.remove()
    after.remove()
    model[0](x, x, x)
    model.load_state_dict(model.state_dict())
    copy.deepcopy(model)
    assert seen[2:] == [("loading", model[0])]


def test_convert_keeps_the_parameters_the_mode_and_the_optimizer():
    model = nn.Transformer(WIDTH, HEADS, 1, 1, 16, dtype=torch.float64).eval()
    before = {name: id(parameter) for name, parameter in model.named_parameters()}
    assert convert(model.encoder, {"name": "hnas", "per": "head"}) is model.encoder
    after = {name: id(parameter) for name, parameter in model.named_parameters()}
    new = "encoder.layers.0.self_attn.normalizer.hybrid"
    assert after.pop(new) and after == before
    made = model.encoder.layers[0].self_attn
    assert made.normalizer.hybrid.dtype == torch.float64 and not made.training and not made.batch_first
    assert type(model.decoder.layers[0].self_attn) is nn.MultiheadAttention
    convert(model, "dnas_prefix")  # again, and the rest
    assert [m.normalizer.couples_queries for m in model.modules() if isinstance(m, MultiheadAttention)] == ["past"] * 3
    assert {name: id(parameter) for name, parameter in model.named_parameters()} == before


def test_convert_replaces_a_shared_module_by_one_and_copies_an_instance():
    from attnorm.attention import build_normalizer

    shared = nn.MultiheadAttention(WIDTH, HEADS)
    instance = build_normalizer("hnas")
    model = convert(nn.ModuleDict({"a": shared, "b": shared, "c": nn.MultiheadAttention(WIDTH, HEADS)}), instance)
    assert model["a"] is model["b"] is not model["c"]
    assert len({id(instance), id(model["a"].normalizer), id(model["c"].normalizer)}) == 3


class Own(nn.MultiheadAttention):
    """A subclass of somebody else."""


@pytest.mark.parametrize(
    ("model", "normalizer", "message"),
    [
        (nn.Linear(2, 2), "dnas", "Linear contains no torch.nn.MultiheadAttention"),
        (nn.ModuleList([Own(WIDTH, HEADS)]), "dnas", "ModuleList contains no"),
        (nn.ModuleList([nn.MultiheadAttention(WIDTH, HEADS)]), "dnaz", "0: normalizer 'dnaz' is unknown"),
        (nn.ModuleList([nn.MultiheadAttention(WIDTH, HEADS, add_bias_kv=True)]), "dnas", "0: add_bias_kv=True"),
        (nn.Transformer(WIDTH, HEADS, 1, 1, 16), "dnas", "decoder.layers.0.self_attn: dnas couples queries"),
    ],
)
def test_convert_replaces_nothing_if_something_is_refused(model, normalizer, message):
    with pytest.raises(ValueError, match=message):
        convert(model, normalizer)
    assert not any(isinstance(module, MultiheadAttention) for module in model.modules())
