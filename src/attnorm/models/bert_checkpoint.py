"""BERT checkpoints in the format of Hugging Face (config.json and safetensors): reading and renaming."""

from pathlib import Path

import torch
from torch import Tensor

from attnorm.errors import DataError
from attnorm.models.hub_files import other_name, read_hub_settings, read_tensors, weight_files

SETTINGS = {  # field of TransformerConfig: the key in config.json, and BERT's default if the key is missing
    "d_model": ("hidden_size", 768),
    "n_heads": ("num_attention_heads", 12),
    "ffn_dim": ("intermediate_size", 3072),
    "encoder_layers": ("num_hidden_layers", 12),
    "activation": ("hidden_act", "gelu"),
    "dropout": ("hidden_dropout_prob", 0.1),
    "attention_dropout": ("attention_probs_dropout_prob", 0.1),
    "norm_eps": ("layer_norm_eps", 1e-12),
    "type_vocab_size": ("type_vocab_size", 2),
    "tie_embeddings": ("tie_word_embeddings", True),
}
SIZES = {"position_limit": ("max_position_embeddings", 512), "vocab_size": ("vocab_size", 30522)}
ONLY = {"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False}
ALWAYS = {
    "positions": "learned",
    "norm_first": False,
    "residual": True,
    "embedding_norm": True,
}  # fields of TransformerConfig that have the same value in every BERT

NAMES = {  # BERT's module names without "bert." -> our module names; {} is the index of a layer
    "embeddings.word_embeddings": "encoder.embeddings.tokens",
    "embeddings.position_embeddings": "encoder.embeddings.positions",
    "embeddings.token_type_embeddings": "encoder.embeddings.types",
    "embeddings.LayerNorm": "encoder.embeddings.norm",
    "encoder.layer.{}.attention.self.query": "encoder.layers.{}.attention.query",
    "encoder.layer.{}.attention.self.key": "encoder.layers.{}.attention.key",  # one module in our models:
    "encoder.layer.{}.attention.self.value": "encoder.layers.{}.attention.value",  # attention.key_value
    "encoder.layer.{}.attention.output.dense": "encoder.layers.{}.attention.output",
    "encoder.layer.{}.attention.output.LayerNorm": "encoder.layers.{}.attention_residual.norm",
    "encoder.layer.{}.intermediate.dense": "encoder.layers.{}.feed_forward.0",
    "encoder.layer.{}.output.dense": "encoder.layers.{}.feed_forward.2",
    "encoder.layer.{}.output.LayerNorm": "encoder.layers.{}.feed_forward_residual.norm",
    "pooler.dense": "pooler",
    "cls.predictions.transform.dense": "head.transform",
    "cls.predictions.transform.LayerNorm": "head.norm",
    "cls.predictions.decoder": "head.output",
    "qa_outputs": "spans",
    "classifier": "classifier",
}
BIAS, COPY = "cls.predictions.decoder.bias", "cls.predictions.bias"  # if both exist, the second is ignored
OLD = {"gamma": "weight", "beta": "bias"}  # parameter names of a norm in the first BERT checkpoints
BUFFERS = {"embeddings.position_ids", "embeddings.token_type_ids"}  # 0, 1, 2, ...: not trained parameters


def read_bert_shape(folder: str | Path) -> dict:
    """Reads the options of `EncoderConfig`, except max_source, from config.json.

    The result also contains "position_limit", the length of the position table, and "vocab_size". Raises ValueError
    that lists every setting that our encoder does not support.
    """
    return read_hub_settings(folder, "bert", SETTINGS | SIZES, ONLY) | ALWAYS


def read_bert_weights(folder: str | Path) -> dict[str, Tensor]:
    """Reads model.safetensors, or the files that model.safetensors.index.json lists, as float32 tensors with our names.

    The names are "encoder.*", "head.*" (masked language modelling), "pooler.*", "spans.*" and "classifier.*".

    The names in the file may start with "bert." or not, and norms may have "gamma" and "beta" or "weight" and "bias".
    Tensors without a counterpart in our models, such as next-sentence prediction, keep their names. Raises ValueError
    for files in other formats and for files without a BERT encoder.
    """
    file = weight_files(Path(folder))[0]
    read = read_tensors(folder)
    tensors = {name_in_model(name): x for name, x in read.items() if name.removeprefix("bert.") not in BUFFERS}
    if not any(name.startswith("encoder.layers.") for name in tensors):
        raise DataError(f"{file}: contains no layer of a BERT encoder, only {', '.join(list(tensors)[:3])}, ...")
    if COPY in tensors:
        tensors.setdefault(name_in_model(BIAS), tensors.pop(COPY))
    for key in [name for name in tensors if ".attention.key." in name]:
        value = key.replace(".key.", ".value.")
        if value not in tensors:
            raise DataError(f"{file}: contains {key}, but not {value}; is the download complete?")
        tensors[key.replace(".key.", ".key_value.")] = torch.cat([tensors.pop(key), tensors.pop(value)])
    return tensors


def name_in_model(name: str) -> str:
    """Our name of a BERT tensor, or its own name without "bert." if our models have no such tensor."""
    name = name.removeprefix("bert.")
    module, _, parameter = name.rpartition(".")
    model_name = other_name(module, NAMES)
    return name if model_name is None else f"{model_name}.{OLD.get(parameter, parameter)}"
