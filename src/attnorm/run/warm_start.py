"""`model.init`: which weights a model starts from, and the shape and tokenizer that they imply."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from attnorm.data.tokenizers.base import Tokenizer, check_tokenizer, tokenizer_class
from attnorm.data.tokenizers.bpe import ByteBPE
from attnorm.data.tokenizers.huggingface import HuggingFace
from attnorm.data.tokenizers.sentencepiece import SentencePiece
from attnorm.data.tokenizers.wordpiece import WordPiece
from attnorm.errors import ConfigError, DataError, Problem
from attnorm.models.config import GPTConfig, TransformerConfig
from attnorm.models.gpt import GPT
from attnorm.models.hub_files import kind_of, weight_files
from attnorm.models.load_weights import LoadReport, load_into, read_shape, read_weights
from attnorm.parts import TARGET, class_of, options_of
from attnorm.run.checkpoint import BEST, read_checkpoint
from attnorm.run.integrity import first_problems, nonfinite_tensors, parameters_of
from attnorm.run.run import Run
from attnorm.schema import parameters, value_problems

FILES = (  # of a hub model
    *("config.json", "*.safetensors", "*.safetensors.index.json"),
    *("vocab.txt", "tokenizer.json", "vocab.json", "merges.txt"),
)
TOKENIZERS = (WordPiece, SentencePiece, ByteBPE, HuggingFace)  # those that a new run can take over
SHAPE = (  # what the weights decide
    *("d_model", "n_heads", "ffn_dim", "encoder_layers", "positions", "norm_first", "embedding_norm", "norm_eps"),
    *("residual", "type_vocab_size", "activation", "tie_embeddings", "rotary_base"),
)
STACKS = {"bert": "an encoder", "gpt2": "a decoder-only model"}  # the kind of a model, and what it consists of


def with_init(cfg: dict, checkpoint: Path | None = None) -> dict:
    """The configuration with the shape and the tokenizer of `model.init`, which names weights to start from.

    A tokenizer.file that was typed is kept. If the run continues from a checkpoint, both are read from the folder of
    the checkpoint, because the weights that it started from may no longer be there. Raises ConfigError, with all
    problems, if the folder does not have weights, if the model asks for more positions than the weights have, or if
    the tokenizer is another one.
    """
    model, tokenizer = cfg["model"], cfg["tokenizer"]
    key = f"model.init={model['init']}"
    kind = kind_of_model(model)
    if kind is None:
        raise ConfigError([Problem.about("model.init", f"{key}: this model cannot start from trained weights")])
    try:
        resumed = checkpoint is not None and Run.of_checkpoint(checkpoint).exists
        start = Run.of_checkpoint(checkpoint) if checkpoint and resumed else Run(folder_of(model["init"]))
        if not resumed and not start.exists:
            weight_files(start.folder)  # raises DataError if no file is found
        elif not resumed and not (best := start.checkpoint_file(BEST)).is_file():
            raise DataError(f"no checkpoint {best}")
        model_of_start = start.config["model"] if start.exists else {}
        if (kind_of_start := kind_of_model(model_of_start) if start.exists else kind_of(start.folder)) is None:
            raise DataError(f"a run of {model_of_start.get(TARGET)}, which has no encoder to start from")
        if kind_of_start != kind:
            raise DataError(f"has the weights of {STACKS[kind_of_start]}, but this model is {STACKS[kind]}")
        shape, trained_with = shape_of(start), tokenizer_of(start)
    except ValueError as error:
        raise ConfigError([f"{key}: {error}"]) from error
    if tokenizer.get("file") is None or (resumed and not Path(str(tokenizer["file"])).exists()):
        kept = {"lowercase": tokenizer.get("lowercase")} if trained_with is WordPiece else {}
        path = f"{trained_with.__module__}.{trained_with.__qualname__}"
        tokenizer = {TARGET: path, "file": str(start.folder), **kept}
    problems = []
    for name in ("max_source", "max_target"):
        most, asked = shape["position_limit"], model.get(name)
        if most is not None:
            most = shape.get(name, most)  # a run with a decoder has two tables
        if isinstance(asked, int) and most is not None and asked > most:
            problems.append(f"model.{name}={asked}: {key} has {most} positions")
    try:
        if wrong := check_tokenizer(tokenizer):
            raise ConfigError(wrong)
        cls = tokenizer_class(tokenizer)
        pieces = cls.from_settings(None, **options_of(tokenizer)).vocab_size
    except ValueError as error:
        problems += str(error).splitlines()
    else:
        if not issubclass(cls, trained_with):
            trained = f"{key} was trained with {trained_with.__name__}; leave tokenizer.file out"
            problems.append(f"tokenizer.file={tokenizer['file']}: for {cls.__name__}, but {trained}")
        elif pieces != shape["vocab_size"]:
            trained = f"{key} was trained with {shape['vocab_size']:,}"
            problems.append(f"tokenizer.file={tokenizer['file']}: {pieces:,} pieces, but {trained}")
    if problems:
        raise ConfigError(problems)
    fixed = {name: shape[name] for name in SHAPE if name in shape}
    if "decoder_layers" in model:
        fixed["decoder_layers"] = shape.get("decoder_layers") or fixed["encoder_layers"]
    return {**cfg, "model": {**model, **fixed}, "tokenizer": tokenizer}


def folder_of(init: str) -> Path:
    """The folder that `model.init` names; a hub model is downloaded. Raises DataError if there is no such model."""
    folder = Path(init)
    if folder.is_dir():
        return folder
    if init.count("/") > 1 or init.startswith((".", "~", "/")):  # a hub name is "name" or "owner/name"
        raise DataError("no such folder, and not the name of a model on the hub")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(init, allow_patterns=list(FILES)))
    except Exception as error:  # of many kinds: no such model, no network, no permission
        reason, *_ = str(error).strip().splitlines() or [repr(error)]
        raise DataError(f"no such folder, and the hub does not give it: {reason}") from error


def kind_of_model(model: Mapping[str, Any]) -> str | None:
    """Which weights a model with these settings starts from, a key of `STACKS`; None if it starts from none."""
    if "encoder_layers" in model:
        return "bert"
    try:
        return "gpt2" if issubclass(class_of("model", model, torch.nn.Module), GPT) else None
    except ConfigError:  # which is reported with the group
        return None


def shape_of(start: Run) -> dict:
    """Options of the model that the weights in a folder fix, with position_limit (None: no limit) and vocab_size.

    start: a run, or a folder with a model of Hugging Face.
    """
    if not start.exists:
        return read_shape(start.folder)
    model = start.config["model"]
    decoder_only = kind_of_model(model) == "gpt2"
    known = parameters(GPTConfig if decoder_only else TransformerConfig)
    for name in model.keys() & known.keys():
        for problem in value_problems(f"run.json: model.{name}", model[name], known[name].annotation):
            raise DataError(problem)
    longest = "max_target" if decoder_only else "max_source"
    for name in [name for name in ("positions", longest) if name not in model]:
        raise DataError(f"run.json: model.{name} is missing")
    positions = model[longest] if model["positions"] == "learned" else None
    # of runs of an encoder whose model had no such key
    defaults = {} if decoder_only else {"norm_eps": 1e-5, "type_vocab_size": 0, "residual": True}
    pieces = tokenizer_of(start).load(start.folder).vocab_size
    return {**defaults, **model, "position_limit": positions, "vocab_size": pieces}


def tokenizer_of(start: Run) -> type[Tokenizer]:
    """The class of the tokenizer in a folder with weights. Raises DataError for a run with one of another kind."""
    if not start.exists:
        return ByteBPE if kind_of(start.folder) == "gpt2" else WordPiece
    for kind in TOKENIZERS:
        if (start.folder / kind.FILE).is_file():
            return kind
    raise DataError(
        "only the tokenizers of runs with tokenizer=sentencepiece, wordpiece, gpt2 or huggingface can be taken over"
    )


def load_pretrained(model: torch.nn.Module, init: str) -> LoadReport:
    """Puts the weights of `model.init` into a model; raises ConfigError where they do not fit."""
    try:
        run = Run(folder_of(init))
        best = run.checkpoint_file(BEST)
        tensors = parameters_of(read_checkpoint(best)) if run.exists else read_weights(run.folder)
        if broken := nonfinite_tensors(tensors):
            raise DataError(f"the weights are not finite: {first_problems(broken)}")
        return load_into(model, tensors)
    except ValueError as error:
        raise ConfigError([f"model.init={init}: {error}"]) from error
