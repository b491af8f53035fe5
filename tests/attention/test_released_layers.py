"""Options of the attention layer against the layers of released models in `transformers`."""

import pytest
import torch
from reference import randn
from torch.testing import assert_close

from attnorm.attention import Mask
from attnorm.attention.layer_options import without_own_value
from attnorm.attention.registry import build_scorer
from attnorm.attention.site import Site

pytest.importorskip("transformers", reason="transformers is not installed")

from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward
from transformers.models.neomme.modeling_neomme import NeoMMEExclusiveSelfAttention
from transformers.models.qwen3_next.configuration_qwen3_next import Qwen3NextConfig
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextAttention

pytestmark = pytest.mark.numerical

BATCH, HEADS, LENGTH, SIZE = 2, 3, 5, 4
WIDTH = HEADS * SIZE
CLOSE = {"rtol": 1e-4, "atol": 1e-5}  # their softmax and norms are in float32


def test_an_elementwise_gate_with_scale_1_and_normalized_queries_and_keys_is_the_layer_of_qwen3_next():
    config = Qwen3NextConfig(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        head_dim=SIZE,
        attention_bias=True,
        rms_norm_eps=0.0,
        attn_implementation="eager",
    )
    theirs = Qwen3NextAttention(config, layer_idx=0).eval()
    tables = {
        **{"decoder": "softmax", "prior": {}, "scorer": {"decoder": "qk_norm"}, "gate": {"decoder": "elementwise"}},
        "options": {"elementwise": {"scale": 1.0}},
    }
    ours = Site(tables, "decoder").layer(WIDTH, HEADS).eval()
    with torch.no_grad():
        for seed, parameter in enumerate(theirs.parameters()):
            parameter.copy_(randn(*parameter.shape, seed=seed))
        for norm in (theirs.q_norm, theirs.k_norm):
            norm.weight.zero_()  # a factor of 1
        weight, bias = (x.unflatten(0, (HEADS, 2, SIZE)) for x in (theirs.q_proj.weight, theirs.q_proj.bias))
        bias[:, 1] = 0  # our gate has none
        ours.query.weight.copy_(weight[:, 0].flatten(0, 1)), ours.query.bias.copy_(bias[:, 0].flatten())
        ours.options.gate.weight.copy_(weight[:, 1].flatten(0, 1))
        ours.key_value.weight.copy_(torch.cat([theirs.k_proj.weight, theirs.v_proj.weight]))
        ours.key_value.bias.copy_(torch.cat([theirs.k_proj.bias, theirs.v_proj.bias]))
        ours.output.weight.copy_(theirs.o_proj.weight), ours.output.bias.copy_(theirs.o_proj.bias)
    x = randn(BATCH, LENGTH, WIDTH, seed=30).float()
    unrotated = torch.ones(1, LENGTH, SIZE), torch.zeros(1, LENGTH, SIZE)
    causal = torch.full((LENGTH, LENGTH), -1e9).triu(1)[None, None]
    assert_close(ours(x, x, Mask(causal=True)), theirs(x, unrotated, causal)[0], **CLOSE)


def test_exclusive_attention_is_that_of_neomme_with_its_scale_at_1():
    class Config:
        num_attention_heads = num_key_value_heads = HEADS

    theirs = NeoMMEExclusiveSelfAttention(Config)
    theirs.alpha.data.fill_(torch.inf)  # tanh(alpha) = 1
    o, v = (randn(BATCH, HEADS, LENGTH, SIZE, seed=seed).float() for seed in (1, 2))
    assert_close(without_own_value(o, v).transpose(1, 2), theirs(o.transpose(1, 2), v), **CLOSE)


def test_a_soft_cap_is_that_of_gemma_2():
    class Layer:
        head_dim, num_key_value_groups, training = SIZE, 1, False

    q, k, v = (5 * randn(BATCH, HEADS, LENGTH, SIZE, seed=seed).float() for seed in (1, 2, 3))
    _, theirs = eager_attention_forward(Layer, q, k, v, None, softcap=3.0)
    assert_close(build_scorer("softcap", cap=3.0)(q, k).softmax(-1), theirs, **CLOSE)
