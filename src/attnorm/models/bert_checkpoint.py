"""BERT checkpoints in the format of Hugging Face (config.json and safetensors): reading, renaming and writing."""

import json
import re
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from attnorm.attention.layer_options import LAYER_OPTIONS
from attnorm.attention.multihead import attention_layers
from attnorm.attention.normalizers.softmax import Softmax
from attnorm.attention.scorers import ScaledDot
from attnorm.errors import DataError, Problem, in_yaml
from attnorm.models.bert import MaskedLM
from attnorm.models.heads import Classifier, SpanModel
from attnorm.models.layers import ACTIVATIONS

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
SIZES = {"positions_there": ("max_position_embeddings", 512), "vocab_size": ("vocab_size", 30522)}
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
BACK = {ours: theirs for theirs, ours in NAMES.items()}
BIAS, COPY = "cls.predictions.decoder.bias", "cls.predictions.bias"  # if both exist, the second is ignored
OLD = {"gamma": "weight", "beta": "bias"}  # parameter names of a norm in the first BERT checkpoints
BUFFERS = {"embeddings.position_ids", "embeddings.token_type_ids"}  # 0, 1, 2, ...: not trained parameters

ARCHITECTURES = {
    MaskedLM: "BertForMaskedLM",
    SpanModel: "BertForQuestionAnswering",
    Classifier: "BertForSequenceClassification",
}
EXPECTED = "there is no such file; expected a folder with the config.json and model.safetensors of a BERT model"


def read_shape(folder: str | Path) -> dict:
    """Reads the options of `EncoderConfig`, except max_source, from config.json.

    The result also contains "positions_there", the length of the position table, and "vocab_size". Raises ValueError
    that lists every setting that our encoder does not support.
    """
    path = Path(folder) / "config.json"
    if not path.is_file():
        raise DataError(f"{path}: {EXPECTED}")
    config = read_json(path)
    if config.get("model_type") != "bert":
        hint = "" if "model_type" in config else '; if it is a BERT model, add "model_type": "bert" to the file'
        raise DataError(f"{path}: model_type={config.get('model_type')!r}: only 'bert' can be read{hint}")
    values = {name: config.get(key, default) for name, (key, default) in (SETTINGS | SIZES).items()}
    problems = []
    if values["activation"] not in ACTIVATIONS:
        problems.append(f"hidden_act={values['activation']!r}: allowed: {', '.join(ACTIVATIONS)}")
    if values["d_model"] % values["n_heads"]:
        problems.append(f"hidden_size={values['d_model']}: not a multiple of num_attention_heads={values['n_heads']}")
    for key, only in (("position_embedding_type", "absolute"), ("is_decoder", False), ("add_cross_attention", False)):
        if config.get(key, only) != only:
            problems.append(f"{key}={config[key]!r}: allowed: {only!r}")
    if problems:
        raise DataError("\n  ".join([f"{path}: a BERT model that our encoder does not support:", *problems]))
    return values | ALWAYS


def read_weights(folder: str | Path) -> dict[str, Tensor]:
    """Reads model.safetensors, or the files that model.safetensors.index.json lists, as float32 tensors with our names.

    The names are "encoder.*", "head.*" (masked language modelling), "pooler.*", "spans.*" and "classifier.*".

    The names in the file may start with "bert." or not, and norms may have "gamma" and "beta" or "weight" and "bias".
    Tensors without a counterpart in our models, such as next-sentence prediction, keep their names. Raises ValueError
    for files in other formats and for files without a BERT encoder.
    """
    tensors: dict[str, Tensor] = {}
    for file in (files := weight_files(Path(folder))):
        try:
            with safe_open(file, framework="pt") as opened:
                names = set(opened.keys()) - BUFFERS - {f"bert.{name}" for name in BUFFERS}
                tensors |= {our_name(name): opened.get_tensor(name).float() for name in sorted(names)}
        except (SafetensorError, OSError) as error:
            hint = "is the download complete (in a git clone: git lfs pull)?"
            raise DataError(f"{file}: cannot be read as safetensors: {error}; {hint}") from error
    if not any(name.startswith("encoder.layers.") for name in tensors):
        raise DataError(f"{files[0]}: contains no layer of a BERT encoder, only {', '.join(list(tensors)[:3])}, ...")
    if COPY in tensors:
        tensors.setdefault(our_name(BIAS), tensors.pop(COPY))
    for key in [name for name in tensors if ".attention.key." in name]:
        value = key.replace(".key.", ".value.")
        if value not in tensors:
            raise DataError(f"{files[0]}: contains {key}, but not {value}; is the download complete?")
        tensors[key.replace(".key.", ".key_value.")] = torch.cat([tensors.pop(key), tensors.pop(value)])
    return tensors


def read_json(path: Path) -> dict:
    """Returns the JSON object in a file. Raises ValueError, naming the file, if it does not contain one."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(found, dict):
        raise DataError(f"{path}: expected settings by name, {{...}}")
    return found


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder.

    Raises ValueError that names the missing files. If the folder has only a pickle file, the message shows how to
    convert it.
    """
    whole, pickled = folder / "model.safetensors", folder / "pytorch_model.bin"
    index = folder / "model.safetensors.index.json"
    if whole.is_file():
        return [whole]
    if index.is_file():
        parts = read_json(index).get("weight_map")
        if not isinstance(parts, dict) or not parts:
            raise DataError(f"{index}: expected a 'weight_map' with the file of each tensor")
        files = [folder / name for name in sorted(set(parts.values()))]
        if missing := [str(file) for file in files if not file.is_file()]:
            raise DataError(f"{index}: names files that do not exist: {', '.join(missing)}")
        return files
    if pickled.is_file():
        raise DataError(
            f"{pickled}: only safetensors can be read. Convert the file once:\n"
            "python -c 'import torch, safetensors.torch as s; "
            f't = torch.load("{pickled}", map_location="cpu", weights_only=True); '
            f's.save_file({{n: x.clone(memory_format=torch.contiguous_format) for n, x in t.items()}}, "{whole}")\''
        )
    raise DataError(f"{whole}: {EXPECTED}")


def our_name(name: str) -> str:
    """Our name of a BERT tensor, or its own name without "bert." if our models have no such tensor."""
    name = name.removeprefix("bert.")
    module, _, parameter = name.rpartition(".")
    ours = other_name(module, NAMES)
    return name if ours is None else f"{ours}.{OLD.get(parameter, parameter)}"


def other_name(module: str, names: dict[str, str]) -> str | None:
    """The other name of a module, with the index of its layer. None if it has none."""
    number = re.search(r"\blayers?\.(\d+)", module)
    if number is None:
        return names.get(module)
    other = names.get(f"{module[: number.start(1)]}{{}}{module[number.end(1) :]}")
    return other and other.format(number[1])


@torch.no_grad()
def export(model: MaskedLM | SpanModel | Classifier, folder: str | Path) -> None:
    """Writes config.json and model.safetensors (float32) in the format of the library `transformers`.

    The files can be loaded by AutoModel and by BertForMaskedLM, BertForQuestionAnswering or
    BertForSequenceClassification. Raises ValueError that lists what BERT does not support: a normalizer other than
    softmax, a prior, pre-norm, ...
    """
    architecture = ARCHITECTURES.get(type(model))
    if architecture is None:
        allowed = ", ".join(cls.__name__ for cls in ARCHITECTURES)
        raise DataError(f"{type(model).__name__} cannot be exported as BERT: allowed: {allowed}")
    if problems := unlike_bert(model):
        raise DataError("\n  ".join(["this model cannot be written as a BERT:", *problems]))
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():  # a tied one comes once
        parts: dict[str, Tensor] = {name: parameter}
        if ".key_value." in name:
            key, value = parameter.chunk(2)
            parts = {name.replace("key_value", "key"): key, name.replace("key_value", "value"): value}
        tensors |= {their_name(name): part.float().cpu().clone() for name, part in parts.items()}
    if BIAS in tensors:
        tensors[COPY] = tensors[BIAS].clone()
    shape = model.shape
    if not shape.type_vocab_size:  # BERT has at least one token type
        tensors["bert.embeddings.token_type_embeddings.weight"] = torch.zeros(1, shape.d_model)
    config = {
        "model_type": "bert",
        "architectures": [architecture],
        **{key: getattr(shape, name) for name, (key, _) in SETTINGS.items()},
        "type_vocab_size": max(shape.type_vocab_size, 1),
        "max_position_embeddings": shape.max_source,
        "position_embedding_type": "absolute",
        "vocab_size": model.encoder.embeddings.tokens.num_embeddings,
        "pad_token_id": model.pad_id,
    }
    if isinstance(model, Classifier):
        config["id2label"] = {str(label): f"LABEL_{label}" for label in range(model.classifier.out_features)}
        config["label2id"] = {name: int(label) for label, name in config["id2label"].items()}
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def their_name(name: str) -> str:
    """BERT's name of one of our tensors."""
    module, _, parameter = name.rpartition(".")
    theirs = other_name(module, BACK)
    assert theirs is not None, name  # BACK has every module of these models
    prefix = "bert." if theirs.startswith(("embeddings.", "encoder.", "pooler.")) else ""
    return f"{prefix}{theirs}.{parameter}"


def unlike_bert(model: MaskedLM | SpanModel | Classifier) -> list[str]:
    """The properties of a model that BERT does not have."""
    problems: list[str] = [
        Problem(f"model.{key}", f"allowed: {in_yaml(value)}", getattr(model.shape, key))
        for key, value in ALWAYS.items()
        if getattr(model.shape, key) != value
    ]
    for name, layer in attention_layers(model).items():
        for kind, part, allowed in (("normalizer", layer.normalizer, Softmax), ("scorer", layer.scorer, ScaledDot)):
            if type(part) is not allowed:
                problems.append(f"{name}: {kind} {type(part).__name__}: allowed: {allowed.__name__}")
        if layer.options is not None:
            used = [option for option in LAYER_OPTIONS if getattr(layer.options, option)]
            problems.append(f"{name}: {', '.join(used)}: allowed: none of these options")
    if model.encoder.prior is not None:
        problems.append(f"attention.prior.encoder={list(model.encoder.prior.priors)}: allowed: []")
    return problems
