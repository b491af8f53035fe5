"""Pictures of alignments: how much attention each target word of a translation pays to each source word."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from attnorm.analysis.attention.heatmaps import add_scale, colours, figure_of_maps, heat_map
from attnorm.analysis.attention.reading import LayerAttention, read
from attnorm.analysis.loaded_run import LoadedRun
from attnorm.analysis.paper import FigureSet
from attnorm.errors import ConfigError, Problem, refuse_one_text
from attnorm.tasks.seq2seq import Seq2SeqTask


@dataclass(frozen=True)
class Alignment(LayerAttention):
    """The attention from target words to source words, with one "head".

    coverage: float32 (source words,): the attention that a source word receives in total, over all target tokens. The
              coverages of a text sum to its number of target tokens if each row of weights sums to 1. A target word of
              several tokens is a single row of `weights`, so the columns of `weights` sum to less.
    """

    coverage: Tensor


def alignment(run: LoadedRun, text: str) -> Alignment:
    """The attention from the words of the target, which the model writes, to the words of the source.

    It is the mean over the layers and heads of the attention to the source, with one "head". The row of a word is the
    attention with which the word was predicted, the last row that of the end. The columns of the subwords of a source
    word are added up, and the rows of the subwords of a target word are averaged. A fertility of the decoding applies.

    Raises ConfigError for a run of a task without sources and targets.
    """
    task, model = text_task(run), cast(Any, run.model)
    inputs, tokens = run.attended(text)
    with task.while_decoding(model):
        layers = read(run.name, text, model, inputs, tokens).layers
    weights = torch.stack([layer.weights.mean(0) for label, layer in layers.items() if label.endswith("cross")]).mean(0)
    source, target = (ids[0].tolist() for ids in inputs)
    written = [*target[1:], run.tokenizer.eos_id]
    of_source, of_target = word_numbers(run, source), word_numbers(run, written)
    # (words, tokens), 1 where a token belongs to a word
    rows, columns = (torch.nn.functional.one_hot(numbers).T.float() for numbers in (of_target, of_source))
    to_words = weights @ columns.T  # (target tokens, source words)
    weights = (rows / rows.sum(1, keepdim=True)) @ to_words
    queries, keys = _words(run, written, of_target), _words(run, source, of_source)
    return Alignment(weights[None], queries, keys, to_words.sum(0))


def text_task(run: LoadedRun) -> Seq2SeqTask:
    """The task of a run that maps a text to a text. Raises ConfigError for any other run."""
    if not isinstance(run.task, Seq2SeqTask):
        message = "its task does not map a text to a text, so there is no alignment"
        raise ConfigError([Problem("run", message, run.folder)])
    return run.task


def word_numbers(run: LoadedRun, ids: Sequence[int]) -> Tensor:
    """int64 (N,): the number of the word that each token belongs to. The end token is a word of its own."""
    starts = np.array(run.tokenizer.starts_word(np.array(ids)), dtype=bool)
    starts |= np.array(ids) == run.tokenizer.eos_id
    starts[0] = True
    return torch.from_numpy(starts.cumsum() - 1)


def _words(run: LoadedRun, ids: Sequence[int], numbers: Tensor) -> list[str]:
    groups: list[list[int]] = [[] for _ in range(int(numbers[-1]) + 1)]
    for token, number in zip(ids, numbers.tolist(), strict=True):
        groups[number].append(token)
    end = run.tokenizer.eos_id
    return [run.tokenizer.token(end) if group == [end] else run.tokenizer.decode(group) for group in groups]


def draw_alignments(run: LoadedRun, texts: Sequence[str]) -> FigureSet:
    """Draws the alignment of each text with its translation: figures "alignment_0", ...

    Rows are target words and columns are source words. Colours show the square root of the weights. The number beside
    a source word is its coverage: the attention that it receives in total, over all target tokens.
    """
    refuse_one_text("draw_alignments", texts)
    drawn = FigureSet()
    for number, text in enumerate(texts):
        aligned = alignment(run, text)
        figure = figure_of_maps([aligned], 1, 1)
        figure.set_figheight(figure.get_figheight() + 0.6)  # for the coverage, and the labels of the axes
        axes = figure.subplots()
        add_scale(figure, heat_map(axes, aligned, 0, colours([aligned.weights]), run.name), axes)
        shown = [int(place) for place in axes.get_xticks()]
        axes.set_xticks(shown, [f"{aligned.keys[place]}  {aligned.coverage[place]:.1f}" for place in shown])
        axes.set(xlabel="source word, and its coverage", ylabel="target word")
        drawn[f"alignment_{number}"] = figure.finished(f"{run.name}: {text}")
    return drawn
