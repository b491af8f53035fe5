"""Scores the attention of the trained models, and that of the references, against the alignments made by hand."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from registered import AFTERWARDS, BASELINE, IBM, PREDICTS, READS
from sweeps import Run

from attnorm import load_run
from attnorm.analysis.loaded_run import LoadedRun
from attnorm.attention import Normalizer, build_normalizer
from attnorm.experiments.alignments.alignment_error import (
    Aligned,
    AlignmentScores,
    Links,
    Step,
    diagonal,
    gold_links,
    scored,
    to_words,
    token_counts,
    uniform,
    word_attention,
)
from attnorm.experiments.alignments.ibm_model_1 import IBMModel1

TO_BASELINE = dict(zip(AFTERWARDS, (("dnas", {}), ("sinkhorn", {"n_iters": 20})), strict=True))
REFERENCES = ("diagonal", "uniform", IBM)
# what is scored: the step, and the number of target words at the beginning that are left out; the first one is primary
VIEWS = {PREDICTS: (PREDICTS, 0), READS: (READS, 0), "predicts later words": (PREDICTS, 1)}
SELECTION, TEST = "validation", "test"

Results = dict[str, dict[str, list[AlignmentScores]]]  # arm -> view -> scores, one per seed
OfSplit = Callable[[str], Aligned]  # split -> weights and gold links of its verses


def scores_of_all(runs: Mapping[str, Sequence[Run]]) -> tuple[list[str], Results]:
    """The test verses, and the scores of all arms, which are stored in the run folders and not computed twice.

    Trained arms have one entry per seed. So do the arms that replace the normalizer of the baseline after training. The
    references have one entry.
    """
    results = {arm: scores_of_seeds(arm, of_arm) for arm, of_arm in runs.items()}
    for name, (normalizer, options) in TO_BASELINE.items():
        results[name] = scores_of_seeds(name, runs[BASELINE], build_normalizer(normalizer, **options))
    [first, *_] = runs[BASELINE]
    for name in REFERENCES:
        results[name] = {view: [stored(first.folder, name, view, partial(reference, name))] for view in VIEWS}
    return [verse.id for verse in load_run(first.folder).task.source().verses(TEST)], results


def scores_of_seeds(
    name: str, runs: Sequence[Run], normalizer: Normalizer | None = None
) -> dict[str, list[AlignmentScores]]:
    """The scores of every run of an arm, for each view."""

    def attention(run: LoadedRun, step: Step) -> OfSplit:
        return lambda split: (word_attention(run, split, normalizer=normalizer, step=step), gold_links(run, split))

    return {view: [stored(run.folder, name, view, attention) for run in runs] for view in VIEWS}


def stored(folder: Path, name: str, view: str, aligned_of: Callable[[LoadedRun, Step], OfSplit]) -> AlignmentScores:
    """The scores of an arm in one view: those that an earlier call has stored in a run folder, or new ones, which are
    stored there.
    """
    path = folder / f"links {name} {view}.json"
    if not path.is_file():
        step, left_out = VIEWS[view]
        of_split = aligned_of(load_run(folder), step)
        found = scored(*(later_words(*of_split(split), left_out) for split in (SELECTION, TEST)))
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps({"threshold": found.threshold, "counts": found.counts.tolist()}))
        os.replace(unfinished, path)
    values = json.loads(path.read_text())
    return AlignmentScores(values["threshold"], np.array(values["counts"], dtype=np.int64))


def later_words(weights: Sequence[np.ndarray], links: Sequence[Links], left_out: int) -> Aligned:
    """Weights and links without the first target words of each pair."""
    kept = [{(source, target - left_out) for source, target in pair if target >= left_out} for pair in links]
    return [table[left_out:] for table in weights], kept


def reference(name: str, run: LoadedRun, step: Step) -> OfSplit:
    """The weights of a reference on the tokens of a run. It has no steps."""
    data = run.task.splits(run.tokenizer, ("train", SELECTION, TEST))
    if name == IBM:
        train = (list(data["train"].rows[side]) for side in ("source", "target"))
        model = IBMModel1(*train, vocabulary=run.tokenizer.vocab_size)

    def aligned(split: str) -> Aligned:
        weights = []
        texts = zip(*(data[split].texts[side] for side in ("source", "target")), strict=True)
        ids = zip(*(data[split].rows[side] for side in ("source", "target")), strict=True)
        for (source, target), pair in zip(texts, ids, strict=True):
            if name == IBM:
                weights.append(to_words(model.posteriors(*pair), *token_counts(run.tokenizer, source, target)))
            else:
                null = {"diagonal": diagonal, "uniform": uniform}[name]
                weights.append(null(len(target.split()), len(source.split())))
        return weights, gold_links(run, split)

    return aligned
