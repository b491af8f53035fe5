"""Weights that were trained before, BERT's or those of another model of ours, put into a new model."""

import re
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attnorm.errors import DataError
from attnorm.models.bert_checkpoint import export, read_shape, read_weights
from attnorm.models.seq2seq import Seq2Seq

__all__ = ["LoadReport", "export", "fill", "read_shape", "read_weights"]

TASK_HEADS = ("spans.", "classifier.")
MAY_DIFFER = re.compile(r"(^|\.)(normalizer|scorer|prior|cross_prior)\.")  # another attention brings its own
MAY_BE_NEW = re.compile(r"^(pooler|output)\.|(^|\.)(cross|cross_residual)\.")
POSITIONS = re.compile(r"embeddings\.positions\.weight$|\.learned\.log_u$")  # tables with a place for each position


@dataclass(frozen=True)
class LoadReport:
    """Names of the model's tensors that were loaded, of those that stay as they were (missing from the weights), and of
    the weights' tensors that nothing took (unused)."""

    loaded: list[str]
    missing: list[str]
    unused: list[str]


@torch.no_grad()
def fill(model: nn.Module, tensors: dict[str, Tensor]) -> LoadReport:
    """Puts tensors, of `read_weights` or of the state_dict of another model of ours, into a model.

    Encoder, head and pooler take what has the same name; heads of a task (spans, classifier) start anew. The decoder of
    a Seq2Seq takes, layer by layer, what its encoder takes, unless the tensors are those of a Seq2Seq; cross-attention
    stays as it was. A table of positions, also that of a learned prior, is cut to the model's length.

    What belongs to a normalizer, prior or scorer may differ. All else of the encoder, of the decoder, and of the head
    if the weights have one, has to agree: ValueError lists every tensor that does not, and the model is as it was.
    """
    places = {k: v for k, v in model.state_dict(keep_vars=True).items() if not k.startswith(TASK_HEADS)}
    sources = {name: source for name in places if (source := source_of(name, model, tensors))}
    problems = [problem for name in sources if (problem := misfit(name, places[name], tensors[sources[name]]))]

    first: dict[int, str] = {}  # the source of each place; a tied one has several names
    for name, source in sources.items():
        other = first.setdefault(id(places[name]), source)
        if not torch.equal(tensors[source], tensors[other]):
            problems.append(
                f"{source} and {other}: two tensors in the weights, one in the model (model.tie_embeddings=true)"
            )
    missing = [name for name, place in places.items() if id(place) not in first]
    unused = [name for name in tensors if name not in sources.values()]
    has_head = any(name.startswith("head.") for name in tensors)
    for name in missing:
        if not (MAY_DIFFER.search(name) or MAY_BE_NEW.search(name) or (name.startswith("head.") and not has_head)):
            problems.append(f"{name}: none in the weights, {tuple(places[name].shape)} in the model")
    for name in unused:
        if name.startswith("encoder.") and not MAY_DIFFER.search(name):
            problems.append(f"{name}: {tuple(tensors[name].shape)} in the weights, none in the model")
    if problems:
        advice = "The settings model.* and the tokenizer have to be those that the weights were trained with."
        raise DataError("\n  ".join(["the weights do not fit the model:", *problems]) + f"\n{advice}")

    for name, source in sources.items():
        places[name].copy_(tensors[source][tuple(map(slice, places[name].shape))])  # a longer table is cut
    anew = [name for name in model.state_dict() if name.startswith(TASK_HEADS)]
    return LoadReport(list(sources), missing + anew, unused)


def source_of(name: str, model: nn.Module, tensors: dict[str, Tensor]) -> str | None:
    """The name of the tensor that belongs at a place of the model, None where there is none."""
    if name in tensors:
        return name
    has_decoder = any(other.startswith("layers.") for other in tensors)
    from_encoder = f"encoder.{name}"  # where the decoder is built as the encoder, it is named like it
    if isinstance(model, Seq2Seq) and not has_decoder and not MAY_DIFFER.search(name) and from_encoder in tensors:
        return from_encoder
    return None


def misfit(name: str, place: Tensor, tensor: Tensor) -> str | None:
    """What is wrong with the shape of a tensor, None if it fits."""
    there, here = tuple(tensor.shape), tuple(place.shape)
    problem = f"{name}: {there} in the weights, {here} in the model"
    if there == here:
        return None
    axis = 1 if name.endswith("log_u") else 0
    if POSITIONS.search(name) and there[:axis] == here[:axis] and there[axis + 1 :] == here[axis + 1 :]:
        key = "model.max_target" if name.startswith(("embeddings.", "prior.")) else "model.max_source"
        return None if there[axis] > here[axis] else f"{problem}; {key} can be {there[axis]} at most"
    return problem
