"""GPT-2 checkpoints in the format of Hugging Face (config.json and safetensors): reading and renaming."""

import re
from pathlib import Path

from torch import Tensor

from attnorm.errors import DataError
from attnorm.models.hub_files import other_name, read_hub_settings, read_tensors, weight_files

SETTINGS = {  # field of GPTConfig: the key in config.json, and GPT-2's default if the key is missing
    "d_model": ("n_embd", 768),
    "n_heads": ("n_head", 12),
    "ffn_dim": ("n_inner", None),  # None: four times the width
    "decoder_layers": ("n_layer", 12),
    "activation": ("activation_function", "gelu_new"),
    "dropout": ("resid_pdrop", 0.1),
    "attention_dropout": ("attn_pdrop", 0.1),
    "norm_eps": ("layer_norm_epsilon", 1e-5),
    "tie_embeddings": ("tie_word_embeddings", True),
}
SIZES = {"position_limit": ("n_positions", 1024), "vocab_size": ("vocab_size", 50257)}
ONLY = {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False}
ALWAYS = {
    "positions": "learned",
    "norm_first": True,
    "residual": True,
    "embedding_norm": False,
}  # fields of GPTConfig that have the same value in every GPT-2

QUERY, KEY_VALUE = "layers.{}.attention.query", "layers.{}.attention.key_value"  # one module in GPT-2:
JOINT = "h.{}.attn.c_attn"
NAMES = {  # GPT-2's module names without "transformer." -> our module names; {} is the index of a layer
    "wte": "embeddings.tokens",
    "wpe": "embeddings.positions",
    "h.{}.ln_1": "layers.{}.attention_residual.norm",
    "h.{}.attn.c_proj": "layers.{}.attention.output",
    "h.{}.ln_2": "layers.{}.feed_forward_residual.norm",
    "h.{}.mlp.c_fc": "layers.{}.feed_forward.0",
    "h.{}.mlp.c_proj": "layers.{}.feed_forward.2",
    "ln_f": "norm",
    "lm_head": "output",
}
TRANSPOSED = re.compile(r"\.(c_attn|c_proj|c_fc)\.weight$")  # GPT-2 stores these matrices as (in, out)
BUFFERS = re.compile(r"\.attn\.(bias|masked_bias)$")  # causal masks, not trained parameters


def read_gpt2_shape(folder: str | Path) -> dict:
    """Reads the options of `GPTConfig`, except max_target, from config.json.

    The result also contains "position_limit", the length of the position table, and "vocab_size". Raises ValueError
    that lists every setting that our model does not support.
    """
    values = read_hub_settings(folder, "gpt2", SETTINGS | SIZES, ONLY)
    values["ffn_dim"] = values["ffn_dim"] or 4 * values["d_model"]
    return values | ALWAYS


def read_gpt2_weights(folder: str | Path) -> dict[str, Tensor]:
    """Reads the safetensors of a folder as float32 tensors with the names and shapes of `GPT`.

    The names in the file may start with "transformer." or not. Tensors without a counterpart in our model keep their
    names. Raises ValueError for files in other formats and for files without a layer of GPT-2.
    """
    tensors: dict[str, Tensor] = {}
    for name, x in read_tensors(folder).items():
        name = name.removeprefix("transformer.")
        module, _, parameter = name.rpartition(".")
        if BUFFERS.search(name):
            continue
        if TRANSPOSED.search(name):
            x = x.T
        if joint := other_name(module, {JOINT: "{}"}):
            width = len(x) // 3
            tensors[f"{QUERY.format(joint)}.{parameter}"] = x[:width].clone()
            tensors[f"{KEY_VALUE.format(joint)}.{parameter}"] = x[width:].clone()
        else:
            model_name = other_name(module, NAMES)
            tensors[name if model_name is None else f"{model_name}.{parameter}"] = x.contiguous()
    if not any(name.startswith("layers.") for name in tensors):
        file, some = weight_files(Path(folder))[0], ", ".join(list(tensors)[:3])
        raise DataError(f"{file}: contains no layer of a GPT-2 model, only {some}, ...")
    return tensors
