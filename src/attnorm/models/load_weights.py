"""Initializes a model with pretrained weights: those of BERT, of GPT-2 or of another model of this package."""

import re
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from attnorm.errors import DataError, reading
from attnorm.models.bert_checkpoint import read_bert_shape, read_bert_weights
from attnorm.models.gpt import GPT
from attnorm.models.gpt_checkpoint import read_gpt2_shape, read_gpt2_weights
from attnorm.models.hub_files import CONFIG, KINDS, kind_of, weight_files
from attnorm.models.seq2seq import Seq2Seq
from attnorm.wording import listed

TASK_HEADS = ("spans.", "classifier.")
MAY_DIFFER = re.compile(r"(^|\.)(normalizer|scorer|options|prior|cross_prior)\.")  # depends on the attention tables
MAY_BE_NEW = re.compile(r"^(pooler|output)\.|(^|\.)(cross|cross_residual)\.")
POSITIONS = re.compile(r"embeddings\.positions\.weight$|\.learned\.log_u$")  # tables with one entry per position


@dataclass(frozen=True)
class LoadReport:
    """Tensor names: loaded into the model, missing from the weights (unchanged in the model), and unused."""

    loaded: list[str]
    missing: list[str]
    unused: list[str]

    def summary(self, init: str) -> str:
        """The tensors that were loaded from `init`, initialized randomly and not used, in a few lines."""

        def grouped(names: list[str]) -> str:
            groups = dict.fromkeys(".".join(part for part in name.split(".") if not part.isdigit()) for name in names)
            return listed(list(groups), most=12)

        lines = [f"{len(self.loaded):,} tensors from {init}"]
        if self.missing:
            lines.append(f"  not there, start anew ({len(self.missing)}): {grouped(self.missing)}")
        if self.unused:
            lines.append(f"  there, not used ({len(self.unused)}): {grouped(self.unused)}")
        return "\n".join(lines)


def read_shape(folder: str | Path) -> dict:
    """Reads the shape of a BERT or GPT-2 model, see `read_bert_shape` and `read_gpt2_shape`."""
    return read_gpt2_shape(folder) if kind_of(folder) == "gpt2" else read_bert_shape(folder)


def read_weights(folder: str | Path) -> dict[str, Tensor]:
    """Reads the weights of a BERT or GPT-2 model with our names, see `read_bert_weights` and `read_gpt2_weights`.

    A folder without config.json is read as a BERT model.
    """
    kind = "gpt2" if (Path(folder) / CONFIG).is_file() and kind_of(folder) == "gpt2" else "bert"
    with reading(weight_files(Path(folder))[0], f"not the weights of a {KINDS[kind]} model"):
        return read_gpt2_weights(folder) if kind == "gpt2" else read_bert_weights(folder)


@torch.no_grad()
def load_into(model: nn.Module, tensors: dict[str, Tensor]) -> LoadReport:
    """Copies tensors, from `read_weights` or from the state_dict of another model of this package, into a model.

    Encoder, head and pooler, and all of a GPT, take the tensors with the same names. Task heads (spans, classifier)
    keep their new initial values. The decoder of a Seq2Seq takes, layer by layer, the tensors of the encoder, unless
    the tensors are those of a Seq2Seq; its cross-attention is unchanged. A table of positions, also that of a learned
    prior, is truncated to the model's length.

    Parameters of normalizers, scorers, options of the layer and priors may differ. All other tensors of the encoder and
    the decoder must match, and so must those of the head if the weights have one. Otherwise, ValueError lists every
    mismatch, and the model is unchanged.
    """
    parameters = {k: v for k, v in model.state_dict(keep_vars=True).items() if not k.startswith(TASK_HEADS)}
    sources = {name: source for name in parameters if (source := _source_of(name, model, tensors))}
    problems = [problem for name in sources if (problem := misfit(name, parameters[name], tensors[sources[name]]))]

    first: dict[int, str] = {}  # the source of each parameter; a tied parameter has several names
    for name, source in sources.items():
        other = first.setdefault(id(parameters[name]), source)
        if not torch.equal(tensors[source], tensors[other]):
            problems.append(
                f"{source} and {other}: two tensors in the weights, one in the model (model.tie_embeddings=true)"
            )
    missing = [name for name, parameter in parameters.items() if id(parameter) not in first]
    unused = [name for name in tensors if name not in sources.values()]
    inherited = ("embeddings.", "layers.", "norm.") if isinstance(model, GPT) else ("encoder.",)
    has_head = any(name.startswith("head.") for name in tensors)
    for name in missing:
        if not (MAY_DIFFER.search(name) or MAY_BE_NEW.search(name) or (name.startswith("head.") and not has_head)):
            problems.append(f"{name}: missing from the weights, {tuple(parameters[name].shape)} in the model")
    for name in unused:
        if name.startswith(inherited) and not MAY_DIFFER.search(name):
            problems.append(f"{name}: {tuple(tensors[name].shape)} in the weights, missing from the model")
    if problems:
        advice = "The settings model.* and the tokenizer must be those with which the weights were trained."
        raise DataError("\n  ".join(["the weights do not fit the model:", *problems]) + f"\n{advice}")

    for name, source in sources.items():
        used = tuple(map(slice, parameters[name].shape))  # a longer table is truncated
        parameters[name].copy_(tensors[source][used])
    anew = [name for name in model.state_dict() if name.startswith(TASK_HEADS)]
    return LoadReport(list(sources), missing + anew, unused)


def _source_of(name: str, model: nn.Module, tensors: dict[str, Tensor]) -> str | None:
    """The name of the tensor that is copied to a parameter of the model, or None."""
    if name in tensors:
        return name
    has_decoder = any(other.startswith("layers.") for other in tensors)
    from_encoder = f"encoder.{name}"  # the parts that decoder and encoder share have the same names
    if isinstance(model, Seq2Seq) and not has_decoder and not MAY_DIFFER.search(name) and from_encoder in tensors:
        return from_encoder
    return None


def misfit(name: str, parameter: Tensor, tensor: Tensor) -> str | None:
    """Describes the mismatch of a tensor's shape. None if the shape fits."""
    read, needed = tuple(tensor.shape), tuple(parameter.shape)
    problem = f"{name}: {read} in the weights, {needed} in the model"
    if read == needed:
        return None
    axis = 1 if name.endswith("log_u") else 0
    if POSITIONS.search(name) and read[:axis] == needed[:axis] and read[axis + 1 :] == needed[axis + 1 :]:
        key = "model.max_target" if name.startswith(("embeddings.", "prior.")) else "model.max_source"
        return None if read[axis] > needed[axis] else f"{problem}; {key} must be at most {read[axis]}"
    return problem
