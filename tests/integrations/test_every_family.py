"""Every family of `transformers` that can be built small: softmax equals eager attention, no normalizer is ignored, and
none leaks the future."""

import inspect
import re
from contextlib import suppress

import pytest
import torch
from tolerance import tolerance

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from attnorm.integrations.transformers import register  # noqa: E402

pytestmark = pytest.mark.slow

WIDTH, LAYERS, HEADS, MOST_PARAMETERS = 32, 2, 4, 20e6
SETTINGS = {  # under the names that families use
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embed_dim", "dim", "embedding_size", "emb_dim"), WIDTH),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer", "n_layers"), LAYERS),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_encoder_layers", "num_decoder_layers"), LAYERS),
    **dict.fromkeys(("num_attention_heads", "num_heads", "n_head", "n_heads"), HEADS),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), HEADS),
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_experts_per_tok"), 2),
    **dict.fromkeys(("head_dim", "d_kv", "patch_size"), 8),
    **dict.fromkeys(("intermediate_size", "d_ff", "hidden_dim", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_dim"), 64),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_source_positions", "max_target_positions"), 64),
    **dict.fromkeys(("pad_token_id", "decoder_start_token_id"), 0),
    **{"vocab_size": 60, "image_size": 32, "moe_intermediate_size": 32, "num_mel_bins": 16},
}
# without attention to keys; the functions of the library do not reach them
WITHOUT_ATTENTION = re.compile(
    "bit$|convnext|(falcon_)?mamba|fnet|focalnet|hgnet|mobilenet|poolformer|recurrent_gemma|regnet|resnet|"
    "sam3_lite_text_text|textnet"
)


def small(config_class):
    """A small configuration, also of the parts of a composite one."""
    known = inspect.signature(config_class.__init__).parameters
    settings = {name: value for name, value in SETTINGS.items() if name in known}
    for part in getattr(config_class, "sub_configs", {}):
        if (of_part := getattr(config_class(**settings), part, None)) is not None:
            settings[part] = small(type(of_part)).to_dict()
    return config_class(**settings)


def outputs(model, last=None):
    """What a model computes from random inputs, as tensors. last: the last token of each text, if it is given."""
    generator, takes = torch.Generator().manual_seed(0), inspect.signature(model.forward).parameters

    def tokens(length):
        return torch.randint(3, 50, (2, length), generator=generator)

    given = {name: tokens(n) for name, n in (("input_ids", 9), ("decoder_input_ids", 7)) if name in takes}
    if "input_ids" in given and "attention_mask" in takes:
        given["attention_mask"] = torch.arange(9) < torch.tensor([[9], [6]])
    if last is not None:
        given["decoder_input_ids" if "decoder_input_ids" in given else "input_ids"][:, -1] = last
    if "pixel_values" in takes and ("input_ids" not in takes or "clip" in type(model).__name__.lower()):
        given["pixel_values"] = torch.randn(2, 3, 32, 32, generator=generator)
    if "input_values" in takes:
        given["input_values"] = torch.randn(2, 4000, generator=generator)
    if "input_features" in takes and "input_ids" not in takes:
        given["input_features"] = torch.randn(2, 16, 128, generator=generator)
    torch.manual_seed(0)  # some models mask at random
    with torch.no_grad():
        found = model(**given).to_tuple()
    return [it for it in found if isinstance(it, torch.Tensor) and it.is_floating_point()]


def built(name):
    """A small model of a family and its outputs with eager attention; None if it needs other settings or inputs."""
    try:
        config = small(transformers.CONFIG_MAPPING[name])
        with torch.device("meta"):
            size = sum(it.numel() for it in transformers.AutoModel.from_config(config).parameters())
        if size > MOST_PARAMETERS:
            return None
        torch.manual_seed(0)
        model = transformers.AutoModel.from_config(config, attn_implementation="eager").eval()
        return model, outputs(model)
    except Exception:
        return None


def with_attention(model, implementation):
    """The outputs with another implementation; None if it was refused."""
    try:
        model.set_attn_implementation(implementation)
        return outputs(model)
    except ValueError as error:
        assert re.search("attnorm|is not supported|cannot use", str(error)), error
        return None


def is_causal(model):
    """Whether the states of a text do not depend on its last token; None if the model takes no text or refuses."""
    if "input_ids" not in inspect.signature(model.forward).parameters:
        return None
    try:
        first, other = (outputs(model, last)[0] for last in (4, 5))
    except ValueError:
        return None
    if first.dim() != 3 or torch.equal(first, other):
        return None
    return not differs([first[:, :-1]], [other[:, :-1]])


def differs(found, expected):
    close = tolerance(torch.float32, depth=8 * LAYERS, size=WIDTH, scale=10)
    return any(a.shape != b.shape or not torch.allclose(a, b, **close) for a, b in zip(found, expected, strict=True))


@pytest.fixture(autouse=True)
def quiet():
    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)  # many warn of their small settings
    yield
    transformers.logging.set_verbosity(level)


def test_softmax_equals_eager_attention_and_no_normalizer_is_ignored_or_leaks():
    register()
    problems, tried = [], 0
    for name in sorted(transformers.CONFIG_MAPPING):
        if (it := built(name)) is None:
            continue
        (model, expected), tried = it, tried + 1
        try:
            softmax, sparsemax = (with_attention(model, f"attnorm:{it}") for it in ("softmax", "sparsemax"))
            if softmax is not None and differs(softmax, expected):
                problems.append(f"{name}: softmax differs from eager attention")
            same = all(map(torch.equal, softmax or expected, sparsemax)) if sparsemax is not None else False
            if same and not WITHOUT_ATTENTION.match(name):
                problems.append(f"{name}: sparsemax is ignored")
            model.set_attn_implementation("eager")
            if is_causal(model):
                for normalizer in ("dnas", "dnas_prefix"):
                    with suppress(ValueError):
                        model.set_attn_implementation(f"attnorm:{normalizer}")
                        if is_causal(model) is False:
                            problems.append(f"{name}: {normalizer} leaks the future")
        except Exception as error:
            problems.append(f"{name}: {type(error).__name__}: {error}")
    assert not problems, "\n".join(problems)
    assert tried > 150
