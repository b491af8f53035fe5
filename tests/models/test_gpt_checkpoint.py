"""GPT-2's weights in our decoder-only model: the same numbers as transformers."""

import json

import pytest
import torch
from builders import roughen
from safetensors.torch import load_file, save_file
from tolerance import tolerance
from torch.testing import assert_close

from attnorm.models.config import GPTConfig
from attnorm.models.gpt import GPT
from attnorm.models.load_weights import load_into, read_shape, read_weights

pytestmark = pytest.mark.numerical

VOCABULARY, POSITIONS = 50, 20
SIZES = {  # every one another, so that none can be taken for another
    "vocab_size": VOCABULARY, "n_embd": 24, "n_layer": 3, "n_head": 4, "n_inner": 40, "n_positions": POSITIONS,
    "layer_norm_epsilon": 1e-2, "resid_pdrop": 0.15, "attn_pdrop": 0.05, "bos_token_id": 1, "eos_token_id": 1,
}  # fmt: skip
CLOSE = tolerance(torch.float32, depth=SIZES["n_layer"], size=SIZES["n_inner"])
TABLES = {"decoder": "softmax", "prior": {}, "scorer": {}, "options": {}}


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers", reason="transformers is not installed")


def save_gpt2(transformers, folder, kind="GPT2LMHeadModel", **settings):
    """A rough GPT-2 of transformers, saved to a folder."""
    torch.manual_seed(0)
    model = getattr(transformers, kind)(transformers.GPT2Config(**{**SIZES, **settings}))
    reference = roughen(model, 0.2, torch.float32)
    reference.save_pretrained(folder)
    return reference


@pytest.fixture(scope="module")
def gpt2(transformers, tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpt2")
    return save_gpt2(transformers, folder), folder


def shape_of(folder, **settings):
    values = read_shape(folder)
    positions, vocabulary = values.pop("position_limit"), values.pop("vocab_size")
    assert vocabulary == VOCABULARY
    return GPTConfig(**{"max_target": positions, **values, **settings})


def loaded(folder, **settings):
    model = GPT(shape_of(folder, **settings), TABLES, VOCABULARY, seed=3).eval()
    report = load_into(model, read_weights(folder))
    assert not report.missing and not report.unused
    return model


def texts():
    return torch.randint(0, VOCABULARY, (3, 15), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    "settings",
    [{}, {"n_inner": None}, *({"activation_function": it} for it in ("relu", "gelu")), {"tie_word_embeddings": False}],
    ids=str,
)
def test_the_scores_are_those_of_transformers(transformers, tmp_path, settings):
    expected, model = save_gpt2(transformers, tmp_path, **settings), loaded(tmp_path)
    tied = model.output.weight is model.embeddings.tokens.weight
    assert tied == settings.get("tie_word_embeddings", True)
    assert_close(model(texts()), expected(texts()).logits, **CLOSE)


def test_a_model_without_head_and_with_the_buffers_of_old_files_is_read(transformers, gpt2, tmp_path):
    """The first GPT-2 on the hub has no prefix, no head, and the causal mask of every layer."""
    theirs = save_gpt2(transformers, tmp_path, "GPT2Model")
    tensors = load_file(tmp_path / "model.safetensors")
    assert not any(name.startswith("transformer.") for name in tensors)
    masks = {f"h.{layer}.attn.bias": torch.ones(1, 1, POSITIONS, POSITIONS) for layer in range(SIZES["n_layer"])}
    masks |= {f"h.{layer}.attn.masked_bias": torch.tensor(-1e4) for layer in range(SIZES["n_layer"])}
    save_file(tensors | masks, tmp_path / "model.safetensors")
    assert_close(loaded(tmp_path).decode(texts()), theirs(texts()).last_hidden_state, **CLOSE)


def test_positions_are_truncated_and_a_longer_table_is_refused(gpt2):
    theirs, folder = gpt2
    assert_close(loaded(folder, max_target=15)(texts()), theirs(texts()).logits, **CLOSE)
    with pytest.raises(ValueError, match=r"model\.max_target must be at most 20"):
        loaded(folder, max_target=21)


@pytest.mark.parametrize(
    "settings, problem",
    [
        ({"model_type": "gptj"}, "model_type='gptj': only 'bert' and 'gpt2' can be read"),
        ({"activation_function": "silu"}, "activation_function='silu': allowed: gelu, relu, gelu_new"),
        ({"n_head": 5}, "n_embd=24: not a multiple of n_head=5"),
        ({"scale_attn_weights": False}, "scale_attn_weights=False: allowed: True"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True: allowed: False"),
        ({"add_cross_attention": True}, "add_cross_attention=True: allowed: False"),
    ],
)
def test_a_config_that_our_model_cannot_be_is_refused(gpt2, tmp_path, settings, problem):
    config = json.loads((gpt2[1] / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **settings}))
    with pytest.raises(ValueError) as error:
        read_shape(tmp_path)
    assert str(error.value).startswith(str(tmp_path / "config.json")) and problem in str(error.value)


def test_weights_that_do_not_fit_leave_the_model_as_it_was(gpt2):
    tensors = read_weights(gpt2[1])
    for settings, problem in (
        ({"decoder_layers": 4}, "layers.3.attention.query.weight: missing from the weights, (24, 24) in the model"),
        ({"decoder_layers": 2}, "layers.2.attention.query.weight: (24, 24) in the weights, missing from the model"),
        ({"positions": "rotary"}, "embeddings.positions.weight: (20, 24) in the weights, missing from the model"),
        ({"ffn_dim": 36}, "layers.0.feed_forward.2.weight: (24, 40) in the weights, (24, 36) in the model"),
    ):
        model = GPT(shape_of(gpt2[1], **settings), TABLES, VOCABULARY)
        before = {name: x.clone() for name, x in model.state_dict().items()}
        with pytest.raises(ValueError) as error:
            load_into(model, tensors)
        assert problem in str(error.value)
        assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())


def test_a_folder_without_a_gpt2_is_refused(gpt2, tmp_path):
    (tmp_path / "config.json").write_text((gpt2[1] / "config.json").read_text())
    save_file({"rwkv.blocks.0.weight": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"model\.safetensors: contains no layer of a GPT-2 model, only rwkv"):
        read_weights(tmp_path)
