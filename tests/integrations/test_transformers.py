"""Normalizers in the models of `transformers`: small random models of each family, against their eager attention."""

import importlib.util
import json
import sys
import warnings
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from tolerance import rounding, tolerance

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from safetensors.torch import load_file, save_file  # noqa: E402

from attnorm.attention.normalizers.hnas import HNAS  # noqa: E402
from attnorm.attention.registry import NORMALIZERS, build_normalizer  # noqa: E402
from attnorm.errors import ConfigError  # noqa: E402
from attnorm.integrations.transformers import attention, convert, from_pretrained, register  # noqa: E402
from attnorm.integrations.transformers.attention import ModelMask  # noqa: E402
from attnorm.integrations.transformers.sites import attention_modules  # noqa: E402

ROOT = Path(__file__).parents[2]

register()
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

WIDTH, LAYERS, HEADS, VOCABULARY = 32, 2, 4, 99
SIZES = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": 48}
TEXT = dict(SIZES, vocab_size=VOCABULARY, pad_token_id=0, bos_token_id=1, eos_token_id=2)
GROUPED = dict(TEXT, num_key_value_heads=2, head_dim=8)
SEQ2SEQ = dict(TEXT, decoder_start_token_id=1)
BART = {
    **{"d_model": WIDTH, "encoder_layers": LAYERS, "decoder_layers": LAYERS, "encoder_ffn_dim": 48},
    **{"decoder_ffn_dim": 48, "encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS},
    "max_position_embeddings": 64,
}
T5 = dict(SEQ2SEQ, d_model=WIDTH, d_kv=8, d_ff=48, num_layers=LAYERS, num_heads=HEADS)
EXPERTS = dict(GROUPED, num_local_experts=2, num_experts_per_tok=1, sliding_window=4)
FAMILIES = {  # class, configuration class, its settings
    "bert": ("BertModel", "BertConfig", dict(TEXT)),
    "vit": ("ViTModel", "ViTConfig", dict(SIZES, image_size=16, patch_size=4)),
    "modernbert": ("ModernBertModel", "ModernBertConfig", dict(TEXT, local_attention=4, global_attn_every_n_layers=2)),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", dict(TEXT, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_positions=64)),
    "llama": ("LlamaForCausalLM", "LlamaConfig", GROUPED),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", dict(GROUPED, sliding_window=4, attn_logit_softcapping=2.0)),
    "gpt_oss": ("GptOssForCausalLM", "GptOssConfig", EXPERTS),
    "t5": ("T5ForConditionalGeneration", "T5Config", T5),
    "bart": ("BartForConditionalGeneration", "BartConfig", dict(SEQ2SEQ, **BART)),
}
DISTIL = {"dim": WIDTH, "n_layers": 2, "n_heads": 4, "hidden_dim": 48}
FURTHER = {  # that only the tests of shares build
    "distilbert": ("DistilBertModel", "DistilBertConfig", DISTIL),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", GROUPED),
}
CAUSAL, OF_TWO_TEXTS = ("gpt2", "llama", "gemma2", "gpt_oss"), ("t5", "bart")


def built(family, implementation="eager", **settings):
    """A random model whose attention is far from uniform, in eval mode."""
    model, config, its = (FAMILIES | FURTHER)[family]
    torch.manual_seed(0)
    config = getattr(transformers, config)(**its | settings)
    model = getattr(transformers, model)._from_config(config, attn_implementation=implementation)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=1.5 * WIDTH**-0.5)
            elif "sinks" in name:
                parameter.normal_()
    return model.eval()


LENGTHS = (9, 6)


def inputs(family, side="right"):
    """A batch of two texts, of which the second is padded, and where the real positions are; or two images."""
    generator = torch.Generator().manual_seed(1)
    if family == "vit":
        return {"pixel_values": torch.randn(2, 3, 16, 16, generator=generator)}, torch.ones(2, 17, dtype=torch.bool)
    ids = torch.randint(3, VOCABULARY, (2, LENGTHS[0]), generator=generator)
    real = torch.arange(LENGTHS[0]) < torch.tensor(LENGTHS)[:, None]
    real = real if side == "right" else real.flip(1)
    batch = {"input_ids": ids.masked_fill(~real, 0), "attention_mask": real.long()}
    if family in OF_TWO_TEXTS:  # as long as the source, so that the two cannot be told apart by their lengths
        batch["decoder_input_ids"] = torch.randint(3, VOCABULARY, ids.shape, generator=generator)
        real = torch.ones_like(real)
    return batch, real


def outputs(model, batch, real):
    """What the model computes at real positions."""
    with torch.no_grad():
        return model(**batch)[0][real]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("side", ["right", "left"])
def test_softmax_equals_eager_attention(family, side):
    model, (batch, real) = built(family), inputs(family, side)
    eager = outputs(model, batch, real)
    allowed = rounding(torch.float32, depth=LAYERS, size=WIDTH) * eager.abs().max()
    if model._supports_sdpa:
        model.set_attn_implementation("sdpa")
        allowed = max(2 * (outputs(model, batch, real) - eager).abs().max(), allowed / 10)
    model.set_attn_implementation("attnorm:softmax")
    assert (outputs(model, batch, real) - eager).abs().max() <= allowed
    convert(model, "softmax")
    assert (outputs(model, batch, real) - eager).abs().max() <= allowed


@pytest.mark.parametrize("family", ["bert", "t5", "gpt_oss", "gemma2"])
def test_gradients_equal_those_of_eager_attention(family):
    batch, real = inputs(family)

    def gradients(implementation):
        model = built(family, implementation)
        found = model(**batch)[0][real]
        (found * torch.linspace(-1, 1, found.numel()).view_as(found)).sum().backward()
        return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}

    expected = gradients("eager")
    found = gradients("attnorm:softmax")
    assert found.keys() == expected.keys()
    if family == "t5":
        assert any("relative_attention_bias" in name for name in found)
    if family == "gpt_oss":
        assert any("sinks" in name for name in found)
    largest = max(it.abs().max() for it in expected.values())
    for name, value in expected.items():
        close = tolerance(torch.float32, depth=2 * LAYERS, size=VOCABULARY, scale=largest)
        torch.testing.assert_close(found[name], value, **close)


# ---------------------------------------------------------------------------------------------- padding


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", ["dnas", "hnas", "dnas_prefix", "sinkhorn", "em_routing", "ssmax", "espformer"])
@pytest.mark.parametrize("family", ["bert", "modernbert", "t5", "bart"])
def test_a_padded_text_gives_what_it_gives_alone(family, name, side):
    dtype = torch.float64 if name == "espformer" else torch.float32  # rounding errors of T5's scores become 1e-4
    model, (batch, _) = convert(built(family), {"encoder": name}).to(dtype), inputs(family, side)
    if family == "bert":  # learned positions count padding on the left
        batch["position_ids"] = (batch["attention_mask"].cumsum(1) - 1).clamp(min=0)
    if family == "bart" and side == "left":
        pytest.skip("the learned positions of BART count padding on the left")
    if family == "modernbert" and name == "espformer" and side == "left":
        pytest.skip("the order of rotated channels depends on the absolute positions")
    n = LENGTHS[1]
    kept = slice(0, n) if side == "right" else slice(-n, None)
    alone = {key: it[1:, kept] if key != "decoder_input_ids" else it[1:] for key, it in batch.items()}
    positions = slice(None) if family in OF_TWO_TEXTS else kept
    with torch.no_grad():
        padded, single = model(**batch)[0][1, positions], model(**alone)[0][0]
    close = tolerance(dtype, depth=2 * LAYERS, size=WIDTH, scale=single.abs().max())
    torch.testing.assert_close(padded, single, **close)


def test_a_mask_of_pairs_is_honoured():
    """A mask of the user reaches the layers unchanged, and large negative numbers are those of padding."""
    model, (batch, _) = built("bert", "attnorm:dnas"), inputs("bert")
    real = batch["attention_mask"].bool()
    expected = outputs(model, batch, real)
    pairs = real[:, None, None, :].expand(-1, 1, LENGTHS[0], -1)
    numbers = (torch.finfo(torch.float32).min, -1e9, -1e4)
    for mask in (pairs, *(torch.zeros(pairs.shape).masked_fill(~pairs, number) for number in numbers)):
        found = outputs(model, {**batch, "attention_mask": mask}, real)
        torch.testing.assert_close(found, expected, **tolerance(torch.float32, depth=LAYERS, size=WIDTH))


def test_an_encoder_that_does_not_say_whether_it_is_causal_is_not():
    settings = dict(TEXT, max_2d_position_embeddings=8)
    encoder = convert(transformers.LayoutLMModel(transformers.LayoutLMConfig(**settings)).eval(), {"encoder": "dnas"})
    batch, real = inputs("bert")
    alone = {key: it[1:, : LENGTHS[1]] for key, it in batch.items()}
    torch.testing.assert_close(outputs(encoder, batch, real)[LENGTHS[0] :], outputs(encoder, alone, real[1:, :6]))
    decoder = transformers.DogeModel(transformers.DogeConfig(**GROUPED))
    assert [*attention_modules(decoder)] == ["decoder"]
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    size |= {"vision_output_dim": 16, "image_size": 28, "patch_size": 14, "projector_input_dim": 16}
    images = transformers.Llama4VisionModel(transformers.Llama4VisionConfig(**size, projector_output_dim=16))
    assert [*attention_modules(images)] == ["encoder"], "it takes a cache, and ignores it"


@pytest.mark.parametrize("family", OF_TWO_TEXTS)
def test_the_padding_of_a_source_is_not_that_of_a_target_of_the_same_length(family):
    """By name, the cross-attention of BART can be told from its self-attention only by what it says of itself."""
    model, (batch, real) = built(family, "attnorm:dnas_prefix"), inputs(family)
    shorter = {key: it[1:, : LENGTHS[1]] if key != "decoder_input_ids" else it[1:] for key, it in batch.items()}
    close = tolerance(torch.float32, depth=4 * LAYERS, size=WIDTH, scale=10)
    torch.testing.assert_close(outputs(model, batch, real)[LENGTHS[0] :], outputs(model, shorter, real[1:]), **close)


# ---------------------------------------------------------------------------------------------- decoding


def generated(model, batch, **options):
    batch = {key: it for key, it in batch.items() if key != "decoder_input_ids"}
    return model.generate(**batch, max_new_tokens=8, do_sample=False, pad_token_id=0, **options)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("family", CAUSAL)
def test_left_padded_texts_continue_as_with_eager_attention(family, cache):
    model, (batch, _) = built(family), inputs(family, "left")
    expected = generated(model, batch)
    assert len(expected[:, LENGTHS[0] :].unique()) > 2, "the texts are not the same token again and again"
    model.set_attn_implementation("attnorm:softmax")
    options = {} if cache == "dynamic" else {"cache_implementation": "static", "disable_compile": True}
    assert torch.equal(generated(model, batch, **options), expected)
    alone = {key: it[1:, -LENGTHS[1] :] for key, it in batch.items()}
    assert torch.equal(generated(model, alone, **options)[0, LENGTHS[1] :], expected[1, LENGTHS[0] :])


@pytest.mark.parametrize("family", OF_TWO_TEXTS)
def test_beams_are_those_of_eager_attention(family):
    model, (batch, _) = built(family), inputs(family)
    expected = generated(model, batch, num_beams=3)
    model.set_attn_implementation("attnorm:softmax")
    assert torch.equal(generated(model, batch, num_beams=3), expected)


@pytest.mark.parametrize("name", ["dnas_prefix", "hnas_prefix", "selective", "stick_breaking"])
def test_no_position_of_a_decoder_depends_on_later_ones(name):
    model, (batch, _) = convert(built("llama"), name), inputs("llama", "left")
    later = {**batch, "input_ids": batch["input_ids"].clone()}
    later["input_ids"][:, 6:] = 5
    with torch.no_grad():
        one, other = (
            model(**it, use_cache=False).logits[:, :6][batch["attention_mask"][:, :6].bool()] for it in (batch, later)
        )
    torch.testing.assert_close(one, other, **tolerance(torch.float32, depth=LAYERS, size=WIDTH, scale=one.abs().max()))


@pytest.mark.parametrize("implementation", ["attnorm:dnas_prefix", "hnas_prefix"])
@pytest.mark.parametrize("family", ["gpt2", "llama", "bart"])
def test_prefix_normalizers_decode_without_a_cache_only(family, implementation):
    model, (batch, _) = built(family), inputs(family, "left")
    if implementation.startswith("attnorm:"):
        model.set_attn_implementation(implementation)
    else:
        convert(model, {"decoder": implementation})
    assert generated(model, batch, use_cache=False).shape[1] > 1
    for options in ({}, {"cache_implementation": "static", "disable_compile": True}):
        with pytest.raises(ValueError, match="use_cache=False"):
            generated(model, batch, **options)


@pytest.mark.slow
def test_a_step_with_a_static_cache_is_one_compiled_graph():
    torch.compiler.reset()
    model = convert(built("llama").model, "sparsemax")
    given = {"past_key_values": transformers.StaticCache(model.config, max_cache_len=16)}
    step = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        model(input_ids=torch.ones(1, 4, dtype=torch.long), **given)
        output = step(input_ids=torch.ones(1, 1, dtype=torch.long), **given)
    assert output.last_hidden_state.isfinite().all()


def test_a_cache_is_refused_only_while_a_prefix_normalizer_decodes():
    model, (batch, _) = convert(built("gpt2"), "hnas_prefix"), inputs("gpt2")
    expected = generated(built("gpt2"), batch)
    for change in (lambda: model.set_attn_implementation("sdpa"), lambda: convert(model, "softmax")):
        change()
        assert torch.equal(generated(model, batch), expected)
        convert(model, "hnas_prefix")
        with pytest.raises(ValueError, match="hnas_prefix depends on earlier queries"):
            generated(model, batch)
    assert len(model._forward_pre_hooks) == 2
    of_encoder, (batch, _) = convert(built("bart"), {"encoder": "dnas_prefix"}), inputs("bart")
    assert generated(of_encoder, batch).shape[1] > 1


def test_a_prefix_normalizer_of_cross_attention_refuses_a_cache():
    """Its keys do not grow, so the layer itself cannot see that there are earlier queries."""
    model, (batch, _) = convert(built("bart"), {"cross": "dnas_prefix"}), inputs("bart")
    with pytest.raises(ValueError, match="use_cache=False"):
        generated(model, batch)
    tokens = generated(model, batch, use_cache=False)
    with torch.no_grad():
        logits = model(batch["input_ids"], batch["attention_mask"], decoder_input_ids=tokens[:, :-1]).logits
    ended = (tokens[:, 1:] == 0) | (tokens[:, 1:] == 2)
    assert torch.equal(logits.argmax(-1)[~ended], tokens[:, 1:][~ended])


# ---------------------------------------------------------------------------------------------- refusals

COUPLING = ("dnas", "sinkhorn", "espformer", "em_routing")


@pytest.mark.parametrize("name", COUPLING)
@pytest.mark.parametrize("family", [*CAUSAL, *OF_TWO_TEXTS])
def test_a_normalizer_that_would_leak_the_future_is_refused(family, name):
    model, (batch, _) = built(family, f"attnorm:{name}"), inputs(family)
    with pytest.raises(ValueError, match=f"{name} couples queries and would leak the future"):
        model(**batch)
    sites = {"decoder", "cross"} & attention_modules(model).keys()
    for site in sites:
        with pytest.raises(ConfigError, match=rf"attention\['{site}'\]={name}: .* would leak the future"):
            convert(model, {site: name})


def test_the_future_does_not_leak_beside_layers_that_cannot_be_replaced():
    """The self-attention of Informer computes softmax, so only its cross-attention is left."""
    settings = {"d_model": 32, "prediction_length": 8, "context_length": 16, "lags_sequence": [1, 2]}
    config = transformers.InformerConfig(**settings, num_time_features=1, attention_type="prob")
    for normalizer in ("dnas", {"cross": "dnas"}):
        with pytest.raises(ConfigError, match=r"dnas.*would leak the future"):
            convert(transformers.InformerModel(config), normalizer)
    convert(transformers.InformerModel(config), {"cross": "dnas_prefix"})


def test_what_a_refusal_advises_works():
    """The text encoder of CLIP does not say that it is causal; its mask does."""
    text, vision = (dict(SIZES, **its) for its in ({"vocab_size": VOCABULARY}, {"image_size": 16, "patch_size": 8}))
    model = transformers.CLIPModel(transformers.CLIPConfig(text_config=text, vision_config=vision)).eval()
    batch = {"input_ids": torch.ones(1, 4, dtype=torch.long), "pixel_values": torch.zeros(1, 3, 16, 16)}
    model.set_attn_implementation("attnorm:dnas")
    with pytest.raises(ValueError, match=r"in the encoder only: convert\(model, \{'encoder': 'dnas'\}\)"):
        model(**batch)
    convert(model, {"encoder": "dnas"})(**batch)
    assert model.config.attnorm == {"encoder": "dnas", "decoder": "softmax", "options": {}}
    with pytest.raises(ConfigError, match="would leak the future"):
        convert(model, {"decoder": "dnas"})


def test_a_model_may_add_the_mask_to_a_bias():
    """As BEiT does with its relative positions."""
    settings = dict(SIZES, image_size=16, patch_size=4, use_relative_position_bias=True)
    model = transformers.BeitModel._from_config(transformers.BeitConfig(**settings), attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
        images = torch.randn(2, 3, 16, 16)
        expected = model(images)[0]
        found = convert(model, "softmax")(images)[0]
        torch.testing.assert_close(found, expected, **tolerance(torch.float32, depth=2 * LAYERS, size=WIDTH, scale=5))
        assert (convert(model, "dnas")(images)[0] - expected).abs().max() > 1e-3
        padding = torch.tensor([[True, True, False]])
        mask = ModelMask(keys=padding, shape=(1, 1, 2, 3))
        bias = torch.ones(1, 1, 2, 3)
        assert torch.equal((bias + mask).isfinite() & (bias + mask > -1e9), padding.expand(1, 1, 2, 3))
        assert torch.equal(mask + bias, bias + mask) and torch.equal(bias + ModelMask(shape=(1, 1, 2, 3)), bias)


def test_a_causal_mask_of_the_user_is_refused_in_an_encoder():
    model, (batch, _) = built("bert", "attnorm:dnas"), inputs("bert")
    causal = torch.ones(LENGTHS[0], LENGTHS[0], dtype=torch.bool).tril().expand(2, 1, -1, -1)
    for mask in (causal, torch.zeros(causal.shape).masked_fill(~causal, -1e9)):
        with pytest.raises(ValueError, match="dnas couples queries and would leak the future"):
            model(**{**batch, "attention_mask": mask})


def test_a_flag_that_says_who_makes_the_mask_does_not_make_an_encoder():
    """The layers of Gemma in PaliGemma say is_causal=False; the texts after the prefix are written in
    order."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 32}
    text = transformers.GemmaConfig(vocab_size=99, num_key_value_heads=2, head_dim=8, **sizes)
    vision = transformers.SiglipVisionConfig(image_size=16, patch_size=8, **sizes)
    config = transformers.PaliGemmaConfig(vision_config=vision, text_config=text, projection_dim=32)
    model = transformers.PaliGemmaModel(config).eval()
    tokens = {"input_ids": torch.arange(1, 10)[None], "token_type_ids": (torch.arange(9) > 3).long()[None]}
    assert model.language_model.layers[0].self_attn.is_causal is False
    for given in (tokens, {"input_ids": tokens["input_ids"]}):
        model.set_attn_implementation("attnorm:dnas")
        with pytest.raises(ValueError, match="GemmaAttention: dnas couples queries and would leak the future"):
            model(**given)
    convert(model, {"encoder": "dnas"})
    assert model.config.attnorm == {"encoder": "dnas", "decoder": "softmax", "options": {}}
    assert model(**tokens).last_hidden_state.isfinite().all()


def test_a_model_may_ask_its_mask_what_it_asks_a_tensor():
    """The pooling of SigLIP 2 repeats it for its own attention module."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 32}
    config = transformers.Siglip2VisionConfig(num_patches=16, patch_size=4, **sizes)
    model = transformers.Siglip2VisionModel(config).eval()
    images = torch.randn(2, 16, 48), torch.arange(16) < torch.tensor([[16], [9]]), torch.tensor([[4, 4], [3, 3]])
    expected = model(*images).pooler_output
    found = convert(model, {"encoder": "softmax"})(*images).pooler_output
    torch.testing.assert_close(found, expected, **tolerance(torch.float32, depth=LAYERS, size=WIDTH))


@pytest.mark.parametrize("family", OF_TWO_TEXTS)
def test_cross_attention_alone_is_refused(family):
    """Its mask is not causal, and its module does not say that it is."""
    model, (batch, _) = built(family, "attnorm:dnas"), inputs(family)
    for module in attention_modules(model)["decoder"].values():
        kept = 3 if family == "t5" else 2
        module.forward = lambda *args, kept=kept, **kwargs: (
            (args or [kwargs["hidden_states"]], None, None)[0][:1] * kept
        )
    with pytest.raises(ValueError, match="would leak the future"):
        model(**batch)


def merged(implementation="eager"):
    """A decoder of T5Gemma 2, whose self- and cross-attention are one module."""
    config = transformers.T5Gemma2DecoderConfig(**GROUPED, layer_types=["full_attention"] * LAYERS, dropout_rate=0.0)
    torch.manual_seed(0)
    from transformers.models.t5gemma2.modeling_t5gemma2 import T5Gemma2Decoder

    return T5Gemma2Decoder._from_config(config, attn_implementation=implementation).eval()


def test_merged_self_and_cross_attention_is_of_a_decoder():
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(1, 4, WIDTH, generator=generator)
    batch = {"input_ids": torch.randint(3, 99, (1, 6), generator=generator), "encoder_hidden_states": states}
    for name in ("dnas", "sinkhorn"):
        with pytest.raises(ValueError, match=f"{name} couples queries and would leak the future"):
            merged(f"attnorm:{name}")(**batch)
        with pytest.raises(ConfigError, match=rf"attention\['decoder'\]={name}: .* would leak the future"):
            convert(merged(), {"decoder": name})
    with pytest.raises(ValueError, match=r"use convert\(model, 'dnas_prefix'\)"):
        merged("attnorm:dnas_prefix")(**batch)
    model, later = convert(merged(), "dnas_prefix"), {**batch, "input_ids": batch["input_ids"].clone()}
    later["input_ids"][:, 3:] = 5
    with torch.no_grad():
        one, other = (model(**it, use_cache=False)[0] for it in (batch, later))
    torch.testing.assert_close(one[:, :3], other[:, :3], **tolerance(torch.float32, depth=LAYERS, size=WIDTH))
    assert (one[:, 3:] - other[:, 3:]).abs().max() > 1e-3


@pytest.mark.parametrize("model", ["DebertaV2Model", "MPNetModel", "BloomModel"])
def test_families_with_a_softmax_of_their_own_are_refused(model):
    model = getattr(transformers, model)
    config = model.config_class(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=1, num_attention_heads=4)
    with pytest.raises(ValueError, match=f"attnorm:dnas: {model.__name__} computes softmax itself"):
        model._from_config(config, attn_implementation="attnorm:dnas")
    for implementation in ("attnorm:dnas", {"": "attnorm:dnas"}):  # transformers alone only warns
        with pytest.raises(ValueError, match=f"attnorm:dnas: {model.__name__} computes softmax itself"):
            model._from_config(config).set_attn_implementation(implementation)
    with pytest.raises(ValueError, match=f"{model.__name__} computes softmax itself"):
        convert(model._from_config(config), "dnas")


def test_layers_that_compute_softmax_get_the_masks_that_they_add_to_the_scores():
    """The text layers of GIT do so. They would add 1 for True, and images are seen both ways."""
    vision = dict(SIZES, image_size=16, patch_size=8)
    config = transformers.GitConfig(vision_config=vision, **TEXT)
    model = transformers.GitModel._from_config(config, attn_implementation="eager").eval()
    batch = {"input_ids": torch.randint(3, VOCABULARY, (2, 6)), "pixel_values": torch.randn(2, 3, 16, 16)}
    with torch.no_grad():
        expected = model(**batch)[0]
        converted = convert(model, {"encoder": "softmax"})
        assert [*attention_modules(model)] == ["encoder"]
        close = tolerance(torch.float32, depth=2 * LAYERS, size=WIDTH)
        torch.testing.assert_close(converted(**batch)[0], expected, **close)
        different = convert(model, {"encoder": "dnas"})(**batch)[0]
        assert (different - expected).abs().max() > 1e-4
        model.set_attn_implementation("eager")
        model.set_attn_implementation("attnorm")
        assert torch.equal(model(**batch)[0], different)
    with pytest.raises(ValueError, match="GitSelfAttention computes softmax itself"):
        model.set_attn_implementation("attnorm:softmax")


def test_a_converted_part_leaves_the_masks_of_the_others_as_they_were():
    """The encoder of BigBird-Pegasus computes softmax, and shares the configuration of the decoder."""
    config = transformers.BigBirdPegasusConfig(**SEQ2SEQ, attention_type="original_full")
    model = transformers.BigBirdPegasusModel._from_config(config, attn_implementation="eager").eval()
    batch, _ = inputs("bart")
    with torch.no_grad():
        expected = model(**batch)[0]
        convert(model.decoder, {"decoder": "softmax"})
        close = tolerance(torch.float32, depth=4 * LAYERS, size=WIDTH)
        torch.testing.assert_close(model(**batch)[0], expected, **close)


def test_a_name_for_a_part_that_would_ignore_it_is_refused():
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        transformers.DonutSwinConfig(embed_dim=16, depths=[1], num_heads=[2], image_size=16, patch_size=4),
        transformers.BertConfig(**TEXT, is_decoder=True, add_cross_attention=True),
    )
    model = transformers.VisionEncoderDecoderModel(config)
    with pytest.raises(ValueError, match="DonutSwinModel computes softmax itself"):
        model.set_attn_implementation({"encoder": "attnorm:sparsemax"})
    model.set_attn_implementation({"decoder": "attnorm:sparsemax"})


def test_a_mask_that_one_model_hands_on_to_another_is_used_there():
    """PaliGemma makes the mask of its language model."""
    text = dict(GROUPED, model_type="gemma", head_dim=8)
    vision = dict(SIZES, model_type="siglip_vision_model", image_size=16, patch_size=8)
    sizes = {"image_token_id": 1, "projection_dim": WIDTH}
    config = transformers.PaliGemmaConfig(text_config=text, vision_config=vision, **sizes)
    model = transformers.PaliGemmaModel._from_config(config, attn_implementation="eager").eval()
    ids = torch.randint(3, 20, (2, 6))
    mask = torch.tensor([[1] * 6, [0, 0, 1, 1, 1, 1]])
    with torch.no_grad():
        expected = model(ids, attention_mask=mask).last_hidden_state
        model.set_attn_implementation("attnorm:softmax")
        found = model(ids, attention_mask=mask).last_hidden_state
    close = tolerance(torch.float32, depth=2 * LAYERS, size=WIDTH)
    torch.testing.assert_close(found[mask.bool()], expected[mask.bool()], **close)


def test_families_with_some_layers_that_compute_softmax_are_refused_there():
    config, cls = transformers.LongT5Config(**T5, local_radius=3), transformers.LongT5ForConditionalGeneration
    message = r"LongT5LocalAttention computes softmax itself .*LocalSelfAttention and 1 other module cannot be"
    model = cls._from_config(config)
    for name in ("attnorm:sparsemax", "attnorm:softmax"):
        with pytest.raises(ValueError, match=f"attn_implementation={name}: {message}"):
            cls._from_config(config, attn_implementation=name)
        with pytest.raises(ValueError, match=message):
            model.set_attn_implementation(name)
    for wrong in ("sparsemax", {"encoder": "dnas"}):
        with pytest.raises(ConfigError, match=rf"attention\['encoder'\]=.*: {message}"):
            convert(model, wrong)
    convert(model, {"decoder": "sparsemax"})
    assert model.config.attnorm == {"decoder": "sparsemax", "cross": "softmax", "options": {}}
    composed = transformers.ClapConfig(
        text_config=TEXT, audio_config=dict(SIZES, patch_embeds_hidden_size=16, depths=[1], num_attention_heads=[2])
    )
    model = transformers.ClapModel._from_config(composed, attn_implementation="eager")
    model.set_attn_implementation({"text_config": "attnorm:dnas"})
    assert model.text_model.config._attn_implementation == "attnorm:dnas"
    with pytest.raises(ValueError, match="ClapAudioSelfAttention computes softmax itself"):
        model.set_attn_implementation("attnorm:dnas")


def test_every_name_is_registered_and_works_or_says_why_not():
    batch, real = inputs("bert")
    model = built("bert")
    expected = outputs(model, batch, real)
    reasons = {}
    for name in NORMALIZERS:
        model.set_attn_implementation(f"attnorm:{name}")
        try:
            found = outputs(model, batch, real)
        except ValueError as error:
            reasons[name] = str(error)
            continue
        assert found.isfinite().all(), name
        assert name in ("softmax", "constrained_softmax") or (found - expected).abs().max() > 1e-4, name
    learned = {"hnas", "hnas_prefix", "lotformer", "mix", "sink", "ssmax", "dnas_slack", "dnas_slack_prefix"}
    assert {name for name, why in reasons.items() if "use convert(model" in why} == learned
    assert {name for name, why in reasons.items() if "hidden states" in why} == {"asentmax", "forgetting"}
    causal = {"stick_breaking", "selective"}
    assert {name for name, why in reasons.items() if "causal self-attention only" in why} == causal
    assert len(reasons) == len(learned) + 4


def test_mistakes_name_the_value_and_what_is_allowed():
    with pytest.raises(ValueError, match=r"attnorm:dnass: allowed: attnorm:softmax, .*\. Did you mean 'dnas'\?"):
        built("bert", "attnorm:dnass")
    model = built("bert")
    misspelt = {"encoder": "hnas", "options": {"hnas": {"strt": 0.5}}}
    for wrong, message in (
        ("dnass", r"attention=dnass: .* Did you mean 'dnas'\?"),
        ({"encodr": "dnas"}, r"\['encodr'\]: .* no such site; it has encoder. Did you mean 'encoder'\?"),
        ({"encoder": ["dnas"]}, r"attention\['encoder'\]: 1 normalizer for 2 layers"),
        (misspelt, r"\['hnas'\]\['strt'\]=0.5: .* Did you mean 'start'\?"),
        ({"encoder": "hnas", "options": {"dnas": {}}}, r"attention\['options'\]\['dnas'\]: has no effect"),
        ({"encoder": "dnas", "prior": {"encoder": ["t5"]}}, r"attention\['prior'\]: not available here"),
        ({"encoder": "forgetting"}, r"attention\['encoder'\]=forgetting: it needs the hidden states"),
        (None, "attention=None: expected a normalizer, such as 'dnas', or one for each site, such as"),
        (["dnas"], r"attention=\['dnas'\]: expected a normalizer"),
        ({"encoder": "selective"}, r"attention\['encoder'\]=selective: it is defined for causal self-attention only"),
    ):
        with pytest.raises(ConfigError, match=message):
            convert(model, wrong)
    assert not [name for name, _ in model.named_modules() if name.endswith("attnorm")], "a refused model is unchanged"
    with pytest.raises(ConfigError, match=r"attention=hnas: no site uses it. .* hnas_prefix, or \{'<site>'"):
        convert(built("gpt2"), "hnas")


def test_what_cannot_be_converted_or_loaded_is_named(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="model=BertEncoder: expected a PreTrainedModel of transformers"):
        convert(built("bert").encoder, "hnas")
    convert(built("bert"), "hnas").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="output_loading_info=True: not available here"):
        from_pretrained(transformers.BertModel, str(tmp_path), output_loading_info=True)
    load = Mock(side_effect=transformers.AutoConfig.from_pretrained)
    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", load)
    from_pretrained(transformers.AutoModel, str(tmp_path), trust_remote_code=True)
    assert load.call_args_list[0].kwargs["trust_remote_code"]


def test_what_changes_the_result_is_honoured_or_refused():
    batch, _ = inputs("gpt_oss")
    with pytest.raises(ValueError, match=r"learned attention sinks \(s_aux\), which sparsemax cannot use"):
        built("gpt_oss", "attnorm:sparsemax")(**batch)
    model, (batch, _) = built("gemma2"), inputs("gemma2")
    layer = attention_modules(model)["decoder"]["model.layers.0.self_attn"]
    x = torch.randn(1, HEADS, 3, 8)
    for argument in ("indices", "block_indices", "sinks"):
        with pytest.raises(ValueError, match=rf"is not supported \({argument}="):
            attention.layer_attention(build_normalizer("softmax"), layer, x, x, x, None, **{argument: torch.zeros(1)})


# ---------------------------------------------------------------------------------------------- weights and training


def test_attentions_are_the_weights():
    """Against the formula of dnas in float64, from the projections of the first layer."""
    model, (batch, _real) = built("bert", "attnorm:dnas"), inputs("bert")
    projected = {}
    layer = model.encoder.layer[0].attention.self
    for name in ("query", "key"):
        getattr(layer, name).register_forward_hook(lambda _, __, out, name=name: projected.update({name: out}))
    with torch.no_grad():
        attentions = model(**batch, output_attentions=True).attentions
    assert len(attentions) == LAYERS
    for row, n in enumerate(LENGTHS):
        q, k = (projected[it][row, :n].double().unflatten(-1, (HEADS, -1)).transpose(0, 1) for it in ("query", "key"))
        xi = (q @ k.mT * (WIDTH // HEADS) ** -0.5).softmax(-2)
        expected = xi / xi.sum(-1, keepdim=True)
        found = attentions[0][row, :, :n, :n].double()
        torch.testing.assert_close(found, expected, **tolerance(torch.float32, size=WIDTH))
        assert attentions[0][row, :, :, n:].abs().max() == 0 if n < LENGTHS[0] else True


@pytest.mark.parametrize("family", ["gpt2", "llama", "modernbert", "t5", "bart"])
def test_attentions_are_returned_by_every_family(family):
    model, (batch, _) = built(family), inputs(family)
    with torch.no_grad():
        expected = model(**batch, output_attentions=True)
        model.set_attn_implementation("attnorm:softmax")
        found = model(**batch, output_attentions=True)
        plain = model(**batch)
    names = [name for name, its in expected.items() if "attentions" in name and its]
    assert names and not [name for name in plain if "attentions" in name]
    for name in names:
        assert len(found[name]) == len(expected[name]) == LAYERS
        for one, other in zip(found[name], expected[name], strict=True):
            live = other.sum(-1).isclose(torch.tensor(1.0)) & (one.sum(-1) > 0)
            torch.testing.assert_close(one[live], other[live], **tolerance(torch.float32, depth=LAYERS, size=WIDTH))


def test_dropout_falls_on_the_weights():
    model, (batch, _) = built("bert", "attnorm:dnas", attention_probs_dropout_prob=0.5), inputs("bert")
    layer = model.encoder.layer[0].attention.self
    seen = []
    layer.register_forward_hook(lambda _, __, out: seen.append(out[0]))
    model(**batch)
    layer.train()
    for seed in (0, 1):
        torch.manual_seed(seed)
        model(**batch)
    for module in model.modules():
        module.train(module is layer)
    weights = model(**batch, output_attentions=True).attentions[0][0]  # as those of eager attention, after dropout
    seen.pop()
    assert (weights == 0).any()
    layer.dropout.p = 1.0
    model(**batch)
    evaluated, one, other, nothing = seen
    assert not torch.equal(one, evaluated) and not torch.equal(one, other)
    assert (nothing == 0).all()


def test_hybrid_weights_are_trained_in_float32():
    model = convert(built("bert").to(torch.bfloat16), {"encoder": "hnas", "options": {"hnas": {"per": "head"}}})
    batch, real = inputs("bert")
    hybrids = {name: it for name, it in model.named_parameters() if ".attnorm." in name}
    assert len(hybrids) == LAYERS and {it.dtype for it in hybrids.values()} == {torch.float32}
    before = [it.detach().clone() for it in hybrids.values()]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    outputs_of_batch = model.train()(**batch)[0][real]
    assert outputs_of_batch.dtype == torch.bfloat16
    (outputs_of_batch.float() * torch.linspace(-1, 1, WIDTH)).sum().backward()
    assert all((it.grad != 0).all() for it in hybrids.values())
    optimizer.step()
    assert not any(torch.equal(one, other) for one, other in zip(before, hybrids.values(), strict=True))


# ---------------------------------------------------------------------------------------------- conversion and saving


def test_sites_and_layers_differ():
    """A seq2seq model with a normalizer for each site, one of them with a list."""
    model = convert(built("t5"), {"encoder": ["hnas", "sparsemax"], "cross": "hnas_prefix", "decoder": "sink"})
    kinds = {name: type(it.attnorm).__name__ for its in attention_modules(model).values() for name, it in its.items()}
    assert kinds == {
        "encoder.block.0.layer.0.SelfAttention": "HNAS",
        "encoder.block.1.layer.0.SelfAttention": "Sparsemax",
        "decoder.block.0.layer.0.SelfAttention": "Sink",
        "decoder.block.1.layer.0.SelfAttention": "Sink",
        "decoder.block.0.layer.1.EncDecAttention": "HNASPrefix",
        "decoder.block.1.layer.1.EncDecAttention": "HNASPrefix",
    }
    found = {site: list(its) for site, its in attention_modules(model).items()}
    assert [*found] == ["encoder", "decoder", "cross"], "also after the conversion"
    assert outputs(model, *inputs("t5")).isfinite().all()
    alone = convert(built("bart"), "hnas")  # the default of attnorm: the encoder, because the other sites are causal
    assert alone.config.attnorm == {"encoder": "hnas", "decoder": "softmax", "cross": "softmax", "options": {}}


TRAINED = {"encoder": ["hnas", "mix"], "options": {"hnas": {"per": "head", "start": 0.3}}}

WITH_A_BUFFER = {"encoder": ["off_by_one", "hnas"], "options": {"off_by_one": {"n": 3.0}}}  # log 3, not saved


def trained(family, attention=TRAINED):
    model = convert(built(family), attention)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".attnorm." in name:
                parameter.normal_()
    return model


@pytest.mark.parametrize(
    ("family", "attention"),
    [
        ("bert", TRAINED),
        ("bert", WITH_A_BUFFER),
        ("t5", TRAINED),
        ("gpt2", "hnas_prefix"),
        ("vit", "lotformer"),
        ("bert", {"encoder": ["none", "hnas"]}),
        ("bert", {"encoder": ["hnas", "uniform"]}),
    ],
)
def test_a_converted_model_is_saved_and_loaded_bit_for_bit(family, attention, tmp_path):
    model, (batch, real) = trained(family, attention), inputs(family)
    model.save_pretrained(tmp_path, max_shard_size="20KB")  # several files
    loaded = from_pretrained(type(model), str(tmp_path)).eval()
    assert loaded.config.attnorm == model.config.attnorm
    expected, found = model.state_dict(), loaded.state_dict()
    assert expected.keys() == found.keys() and any(".attnorm." in name for name in found)
    assert all(torch.equal(it, found[name]) for name, it in expected.items())
    assert torch.equal(outputs(loaded, batch, real), outputs(model, batch, real))
    loaded.save_pretrained(tmp_path / "again")
    again = from_pretrained(transformers.AutoModel, str(tmp_path / "again")).state_dict()
    prefix = f"{model.base_model_prefix}."
    assert all(torch.equal(it, expected.get(name, expected.get(prefix + name))) for name, it in again.items())


def test_a_model_in_16_bits_keeps_its_hybrid_weights_in_32(tmp_path):
    model = trained("bert").to(torch.bfloat16)
    convert(model, TRAINED)
    expected = {name: it.normal_() for name, it in model.state_dict().items() if ".attnorm." in name}
    model.save_pretrained(tmp_path)
    loaded = from_pretrained(transformers.BertModel, str(tmp_path), dtype=torch.bfloat16)
    assert {it.dtype for name, it in loaded.named_parameters() if ".attnorm." not in name} == {torch.bfloat16}
    for name, value in expected.items():
        found = loaded.state_dict()[name]
        assert found.dtype == value.dtype == torch.float32 and torch.equal(found, value)


def test_loading_without_the_normalizers_warns_or_fails(tmp_path):
    model = trained("bert")
    model.save_pretrained(tmp_path / "plain")
    with pytest.warns(UserWarning, match=r"plain: its config.json records .* loaded with softmax; load it"):
        transformers.AutoModel.from_pretrained(tmp_path / "plain")
    model.save_pretrained(tmp_path / "variant", variant="attnorm")
    for cls in (transformers.AutoModel, transformers.BertModel):
        with pytest.raises(OSError, match=r"no file named model.safetensors"):
            cls.from_pretrained(tmp_path / "variant")
    built("bert").save_pretrained(tmp_path / "never converted")
    with warnings.catch_warnings(action="error"):
        loaded = from_pretrained(transformers.BertModel, str(tmp_path / "variant"), variant="attnorm")
        from_pretrained(transformers.AutoModel, str(tmp_path / "plain"))
        transformers.AutoModel.from_pretrained(tmp_path / "never converted")
    batch, real = inputs("bert")
    assert torch.equal(outputs(loaded.eval(), batch, real), outputs(model, batch, real))


def test_frozen_normalizers_are_noticed(monkeypatch):
    """As `get_peft_model` freezes them."""
    model, (batch, _) = trained("bert").train(), inputs("bert")
    with warnings.catch_warnings(action="error"):
        model(**batch)
        monkeypatch.setitem(sys.modules, "peft", None)
        model(**batch)
        model.requires_grad_(False).eval()(**batch)
    with pytest.warns(UserWarning, match=r"peft has frozen .*attnorm.hybrid .* modules_to_save=\['attnorm'\]"):
        model.train()(**batch)


def test_models_of_one_configuration_object_are_saved_with_their_own_normalizers(tmp_path):
    first, (batch, real) = built("bert"), inputs("bert")
    second = type(first)(first.config).eval()
    for name, model in {"dnas": first, "sinkhorn": second}.items():
        convert(model, {"encoder": name})
    for name, model in {"dnas": first, "sinkhorn": second}.items():
        model.save_pretrained(tmp_path / name)
        assert model.config.attnorm["encoder"] == name
        loaded = from_pretrained(type(model), str(tmp_path / name)).eval()
        assert torch.equal(outputs(loaded, batch, real), outputs(model, batch, real))


def test_a_part_of_a_model_is_converted_and_loaded(tmp_path):
    text, vision = (dict(SIZES, **its) for its in ({"vocab_size": VOCABULARY}, {"image_size": 16, "patch_size": 8}))
    config = transformers.CLIPConfig(text_config=text, vision_config=vision)
    model = transformers.CLIPModel(config).eval()
    convert(model.vision_model, "hnas")
    with torch.no_grad():
        [it.normal_() for name, it in model.named_parameters() if ".attnorm." in name]
    model.save_pretrained(tmp_path)
    loaded = from_pretrained(transformers.CLIPModel, str(tmp_path))
    found = {name: it for name, it in loaded.state_dict().items() if ".attnorm." in name}
    assert len(found) == LAYERS and all(name.startswith("vision_model.") for name in found)
    assert all(torch.equal(it, model.state_dict()[name]) for name, it in found.items())


def test_parts_that_share_a_configuration_are_converted_one_by_one(tmp_path):
    model = built("bart")
    convert(model.model.encoder, {"encoder": "sink"})
    convert(model.model.encoder, {"encoder": "hnas", "options": {"hnas": {"start": 0.3}}})
    convert(model.model.decoder, {"decoder": "hnas_prefix", "options": {"hnas_prefix": {"per": "head"}}})
    options = {"hnas": {"start": 0.3}, "hnas_prefix": {"per": "head"}}
    sites = {"encoder": "hnas", "decoder": "hnas_prefix", "cross": "softmax"}
    assert model.config.attnorm == {**sites, "options": options}
    model.save_pretrained(tmp_path)
    loaded = from_pretrained(type(model), str(tmp_path)).eval()
    assert torch.equal(outputs(loaded, *inputs("bart")), outputs(model, *inputs("bart")))
    with pytest.raises(ConfigError, match=r"\['options'\]\['hnas_prefix'\]=\{\}: decoder, cross of the model"):
        convert(model.model.encoder, "hnas_prefix")
    convert(model, "softmax")
    assert model.config.attnorm == {**dict.fromkeys(sites, "softmax"), "options": {}}


def test_a_model_that_was_loaded_without_its_normalizers_records_none_of_them(tmp_path):
    trained("bart", {"encoder": "hnas"}).save_pretrained(tmp_path / "first")
    plain = transformers.BartModel.from_pretrained(tmp_path / "first")  # softmax everywhere, by transformers alone
    convert(plain.decoder, "sink")
    assert plain.config.attnorm.keys() == {"decoder", "cross", "options"}
    plain.save_pretrained(tmp_path / "second")
    loaded = from_pretrained(transformers.BartModel, str(tmp_path / "second")).eval()
    assert torch.equal(outputs(loaded, *inputs("bart")), outputs(plain.eval(), *inputs("bart")))


def test_a_part_with_a_configuration_that_is_not_saved_is_not_loaded_as_softmax(tmp_path):
    model = built("t5")
    convert(model.encoder, "hnas")
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"does not record: encoder.block.0.*convert the whole model by site"):
        from_pretrained(type(model), str(tmp_path))


def test_files_that_name_code_are_loaded_only_if_it_is_trusted(monkeypatch, tmp_path):
    for name in ("first_map", "second_map", "third_map"):
        text = "from attnorm.attention.normalizers.hnas import HNAS\n\n\nclass Mine(HNAS):\n    pass\n"
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()

    def saved(name):
        model = convert(built("bert"), {"encoder": "hnas"})
        model.save_pretrained(tmp_path / name)
        config = tmp_path / name / "config.json"
        config.write_text(config.read_text().replace('"encoder": "hnas"', f'"encoder": "{name}.Mine"'))
        return transformers.BertModel, tmp_path / name

    with pytest.raises(ValueError, match=r"attnorm.encoder='first_map.Mine' in its config.json names code outside"):
        from_pretrained(*saved("first_map"))
    assert "first_map" not in sys.modules
    assert [*attention_modules(from_pretrained(*saved("first_map"), trust_remote_code=True))] == ["encoder"]
    monkeypatch.setenv("ATTNORM_TRUST", "second_map")
    assert type(next(normalizers(from_pretrained(*saved("second_map"))))).__name__ == "Mine"
    monkeypatch.delenv("ATTNORM_TRUST")
    importlib.import_module("third_map")
    assert type(next(normalizers(from_pretrained(*saved("third_map"))))).__name__ == "Mine"
    for name in ("first_map", "second_map", "third_map"):
        del sys.modules[name]


def test_a_class_takes_the_place_of_its_path():
    path = "attnorm.attention.normalizers.hnas.HNAS"
    for given in (HNAS, {"encoder": HNAS}, {"encoder": [HNAS, "softmax"]}):
        model = convert(built("bert"), given)
        assert path in str(model.config.attnorm["encoder"]) and isinstance(next(normalizers(model)), HNAS)


def normalizers(model):
    """The normalizers of a converted encoder, in order."""
    return (module.attnorm for module in attention_modules(model)["encoder"].values())


def test_a_parameter_is_never_left_uninitialised(tmp_path):
    trained("bert").save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    lost = next(name for name in weights if ".attnorm." in name)
    del weights[lost]
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=f"has no weights for {lost}"):
        from_pretrained(transformers.BertModel, str(tmp_path))
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({key: it for key, it in config.items() if key != "attnorm"}))
    with pytest.raises(ValueError, match="does not record: "):
        from_pretrained(transformers.BertModel, str(tmp_path))
    built("bert").save_pretrained(tmp_path / "plain")
    with pytest.raises(ValueError, match="has no entry attnorm, so the model was not converted"):
        from_pretrained(transformers.BertModel, str(tmp_path / "plain"))


# ---------------------------------------------------------------------------------------------- compiled


@pytest.mark.slow
@pytest.mark.parametrize("name", ["attnorm:dnas", "hnas"])
def test_a_compiled_model_computes_the_same(name):
    batch, real = inputs("bert")
    model = built("bert", name) if ":" in name else convert(built("bert"), name)
    torch.compiler.reset()
    expected = outputs(model, batch, real)
    found = outputs(torch.compile(model, fullgraph=True, backend="aot_eager"), batch, real)
    torch.testing.assert_close(found, expected, **tolerance(torch.float32, depth=LAYERS, size=WIDTH))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["softmax", "hnas"])
def test_a_model_that_collects_nothing_is_one_compiled_graph(name):
    """PatchTST has no `capture_outputs`, whose variable of a context torch cannot trace."""
    sizes = {"num_input_channels": 2, "context_length": 32, "patch_length": 8, "patch_stride": 8}
    sizes["num_hidden_layers"] = 1
    config = transformers.PatchTSTConfig(d_model=16, num_attention_heads=2, ffn_dim=16, **sizes)
    model, values = convert(transformers.PatchTSTModel(config).eval(), name), torch.randn(3, 32, 2)
    torch.compiler.reset()
    found = torch.compile(model, fullgraph=True, backend="eager")(past_values=values).last_hidden_state
    expected = model(past_values=values).last_hidden_state
    torch.testing.assert_close(found, expected, **tolerance(torch.float32, depth=1, size=16))


def test_long_texts_take_the_fast_path(monkeypatch):
    """No (N, M) weights: the compact mask reaches the normalizer."""
    monkeypatch.setattr("attnorm.attention.normalizers.shared.key_bias.DENSE_UP_TO", {"cpu": 0})
    model, (batch, real) = built("bert", "attnorm:dnas"), inputs("bert")
    monkeypatch.setattr("attnorm.attention.normalizers.dnas.DNAS.weights", None)
    assert outputs(model, batch, real).isfinite().all()


# ---------------------------------------------------------------------------------------------- experiments with MiniLM


def small_bert(folder):
    """The folder of a small BERT whose vocabulary has ten letters."""
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij"]))
    transformers.BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    built("bert").save_pretrained(folder)
    return str(folder)


def script(name, monkeypatch, folder, *options):
    """An experiment as a module, and its command line."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"experiments/{name}/run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    options = ["--data", folder, "--model", small_bert(folder / "bert"), "--folder", folder / "logs", *options]
    monkeypatch.setattr("sys.argv", ["run.py", *map(str, options)])
    return module


@pytest.mark.slow
@pytest.mark.training
def test_the_experiment_with_the_trainer_continues_and_compares(tmp_path, monkeypatch, capsys):
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    rows = [{"premise": "a b c"[: n % 5 + 1], "hypothesis": "d e", "label": "neutral"} for n in range(8)]
    lengths = [len(row["premise"].split()) + 5 for row in rows]  # with [CLS] and two [SEP]
    for split in ("train", "valid"):
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    options = ["--epochs", 10, "--seeds", 1, 2, "--arms", "softmax", "hnas", "--out", tmp_path / "scores.csv"]
    experiment = script("minilm_mnli", monkeypatch, tmp_path, *options)
    monkeypatch.setattr(experiment, "RATES", (1e-3,))
    batches = []

    class Collator(experiment.DataCollatorWithPadding):
        def __call__(self, features):
            batches.append([len(row["input_ids"]) for row in features])
            return super().__call__(features)

    monkeypatch.setattr(experiment, "DataCollatorWithPadding", Collator)
    experiment.main()
    said = [line for line in capsys.readouterr().out.splitlines() if "minus" in line or "accuracy" in line]
    assert len(said) == 3 and said[-1].startswith("hnas minus softmax: ")
    assert batches[-1] == lengths  # predictions are in the order of the rows
    scores = (tmp_path / "scores.csv").read_text().splitlines()
    named = ["softmax,100,0.001", "softmax,1,0.001", "softmax,2,0.001"]
    assert len(scores) == 7 and [line.rsplit(",", 2)[0] for line in scores[1:4]] == named
    weights = (tmp_path / "logs/hnas_1_0.001/hybrid.csv").read_text().splitlines()
    layers = [f"bert.encoder.layer.{layer}.attention.self.attnorm" for layer in range(LAYERS)]
    assert [line.split(",")[:2] for line in weights] == [["10", layer] for layer in layers]
    monkeypatch.setattr(experiment.Trainer, "train", None)  # finished runs are not repeated
    experiment.main()
    assert [line for line in capsys.readouterr().out.splitlines() if "minus" in line or "accuracy" in line] == said


@pytest.mark.slow
@pytest.mark.training
def test_the_experiment_on_retrieval_trains_what_it_says_continues_and_compares(tmp_path, monkeypatch, capsys):
    texts = [" ".join(bin(n)[2:].replace("0", "a").replace("1", "b")) for n in range(40)]
    for split in ("train.title", "train.article", "valid.title.filter", "valid.article.filter"):
        (tmp_path / f"{split}.txt").write_text("\n".join(texts))
    options = ["--updates", 4, "--rates", 1e-2, "--seeds", 1, 2, 3, "--out", tmp_path]
    experiment = script("minilm_retrieval", monkeypatch, tmp_path, *options)
    models, model_of = [], experiment.model_of
    monkeypatch.setattr(experiment, "model_of", lambda *of: models.append((of[0], model_of(*of))) or models[-1][1])
    experiment.main()
    said = capsys.readouterr().out
    start, kinds = built("bert").state_dict(), {"softmax": "Softmax", "dnas": "DNAS", "schedule": "DNAS"}
    for arm, model in models[:-2]:  # the last ones are not trained
        changed = {name for name, value in start.items() if not torch.equal(model.state_dict()[name], value)}
        assert bool(changed) is (arm != "shares") and not any("embeddings" in name for name in changed), arm
        assert type(next(normalizers(model))).__name__ == kinds.get(arm, "HNAS")
    assert len((tmp_path / "verdicts.csv").read_text().splitlines()) == 16
    assert "softmax,,,0,0.0,100.00,100.00," in (tmp_path / "scores.csv").read_text()  # titles and articles are equal
    assert len((tmp_path / "logs/table.csv").read_text().splitlines()) == 1 + 5 * 3 * 40
    monkeypatch.setattr(experiment, "trained", None)  # finished runs are not repeated
    experiment.main()
    assert capsys.readouterr().out == said
