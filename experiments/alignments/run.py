"""Cross-attention against manual word alignments: does double normalization align words better than softmax?

    python experiments/alignments/run.py                                                    # tune, train and score
    python experiments/alignments/run.py --model transformer
    python experiments/alignments/run.py --arms softmax dnas_prefix --seeds 110 --tuning-seeds 100 -- task.max_steps=100

Repeat the command to continue where it stopped. Overrides after `--` apply to all runs.
"""

import argparse
import json
import shlex
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parents[1]))
from sweeps import ROOT, Run, several, spread, sweep, table
from tuned import add_options
from verdicts import HEADER, shown, write

from attnorm import load_run
from attnorm.analysis.alignment_error import (
    Aligned,
    AlignmentErrorRate,
    AlignmentScores,
    alignment_scores,
    diagonal,
    gold_links,
    scored,
    to_words,
    token_counts,
    uniform,
)
from attnorm.analysis.ibm_model_1 import IBMModel1
from attnorm.analysis.statistics.corpus import pseudo_values
from attnorm.analysis.statistics.crossed import Difference, paired_difference
from attnorm.analysis.statistics.multiple import holm
from attnorm.attention import Normalizer, build_normalizer

BASELINE, GATE = "softmax", "diagonal"  # no verdict if the baseline does not beat the gate
ARMS = (BASELINE, "dnas_prefix", "hnas_prefix", "dnas_slack_prefix", "ot", "fertility_softmax")
AFTERWARDS = {"softmax, then dnas": ("dnas", {}), "softmax, then sinkhorn": ("sinkhorn", {"n_iters": 20})}
REFERENCES = (GATE, "uniform", "IBM model 1")
STEPS = ("predicts", "reads")  # the first one is primary
SELECTION, TEST = "validation", "test"
RATES = (2e-3, 4e-3, 8e-3)
TUNING_SEEDS, SEEDS = (100, 101), (110, 111, 112, 113, 114)
UPDATES = 1500
RECIPE = [
    *("task=translation", "data=bible_alignments", "tokenizer.vocab_size=4000", "task.selection=all"),
    *("model.max_source=128", "model.max_target=128", "model.dropout=0.2", f"task.max_steps={UPDATES}"),
    *("task.scored_pairs=0", "decoding.beam_size=1"),  # translations are not compared
]
MODELS = {
    "lstm": ["model=lstm_seq2seq", "model.d_model=128"],
    "transformer": ["model=transformer_tiny", "attention.encoder=softmax", "attention.decoder=softmax"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="lstm", choices=MODELS)
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS, help="softmax among them")
    add_options(parser, RATES, TUNING_SEEDS, SEEDS)
    parser.add_argument("--folder", type=Path, help="of the sweeps; default logs/alignments/<model>")
    parser.add_argument("--out", type=Path, help="the CSV file; default verdicts_<model>.csv beside this script")
    args = parser.parse_args()
    folder = args.folder or ROOT / "logs" / "alignments" / args.model
    shared = [*RECIPE, *MODELS[args.model], *args.overrides]

    curves = tune(folder / "tuning", shared, args.arms, args.rates, args.tuning_seeds)
    runs = {}
    for arm, losses in curves.items():
        seeds = [f"optimizer.lr={best_rate(losses)}", f"seed={several(args.seeds)}"]
        runs[arm] = sweep(folder / f"{arm}_{best_rate(losses):g}", *shared, f"attention={arm}", *seeds)
    verses, results = scores_of_all(runs)
    chapters = [verse[:5] for verse in verses]
    print(f"\nvalidation loss by learning rate, means over seeds {several(args.tuning_seeds)}\n")
    print(curve_table(curves, args.rates))
    for step in STEPS:
        rows = verdicts({name: by_step[step] for name, by_step in results.items()}, chapters, step)
        print(f"\nAER in percent, the step that {step} a word\n\n{table(HEADER, map(shown, rows))}")
        print(f"\n{detail_table({name: by_step[step] for name, by_step in results.items()})}")
        if step == STEPS[0]:
            command = shlex.join(["python", "experiments/alignments/run.py", *sys.argv[1:]])
            out = args.out or Path(__file__).parent / f"verdicts_{args.model}.csv"
            write(out, [{**row, "command": command} for row in rows])


# --------------------------------------------------------------------------------------------------------------- tuning


def tune(
    folder: Path, shared: Sequence[str], arms: Sequence[str], rates: Sequence[float], seeds: Sequence[int]
) -> dict[str, dict[float, float]]:
    """The mean validation loss of every arm at every rate: the same rates and seeds for all arms."""
    curves: dict[str, dict[float, float]] = {arm: {} for arm in arms}
    for rate in rates:  # one sweep per rate, so that more rates can be added later
        settings = [f"optimizer.lr={rate}", f"attention={several(arms)}", f"seed={several(seeds)}"]
        for arm, losses in losses_of(sweep(folder / f"{rate:g}", *shared, *settings)).items():
            curves[arm][rate] = statistics.mean(losses)
    for arm, losses in curves.items():
        if best_rate(losses) in (min(rates), max(rates)):
            print(f"\n{arm}: {best_rate(losses):g} is the edge of the rates; repeat the command with --rates and more")
    return curves


def losses_of(runs: Iterable[Run]) -> dict[str, list[float]]:
    """The validation losses of the runs of each arm."""
    losses: dict[str, list[float]] = {}
    for run in runs:
        losses.setdefault(run.settings["attention"], []).append(run.metrics["loss"])
    return losses


def best_rate(losses: Mapping[float, float]) -> float:
    """The rate with the smallest loss."""
    return min(losses, key=losses.__getitem__)


def curve_table(curves: Mapping[str, Mapping[float, float]], rates: Sequence[float]) -> str:
    """A row per arm: its loss at every rate."""
    rows = [[arm, *(f"{losses[rate]:.3f}" for rate in rates)] for arm, losses in curves.items()]
    return table(["", *(f"{rate:g}" for rate in rates)], rows)


# --------------------------------------------------------------------------------------------------------------- scores

Results = dict[str, dict[str, list[AlignmentScores]]]  # arm -> step -> scores, one per seed


def scores_of_all(runs: Mapping[str, Sequence[Run]]) -> tuple[list[str], Results]:
    """The test verses, and the scores of all arms, which are stored in the run folders and not computed twice.

    Trained arms have one entry per seed. So do the arms that replace the normalizer of the baseline after training. The
    references have one entry.
    """
    results = {arm: scores_of_seeds(arm, of_arm) for arm, of_arm in runs.items()}
    for name, (normalizer, options) in AFTERWARDS.items():
        results[name] = scores_of_seeds(name, runs[BASELINE], build_normalizer(normalizer, **options))
    [first, *_] = runs[BASELINE]
    for name in REFERENCES:
        found = stored(first.folder, name, partial(references, first.folder, name))
        results[name] = {step: [found] for step in STEPS}
    return [verse.id for verse in load_run(first.folder).task.source().verses(TEST)], results


def scores_of_seeds(
    name: str, runs: Sequence[Run], normalizer: Normalizer | None = None
) -> dict[str, list[AlignmentScores]]:
    """The scores of every run of an arm, for each step."""

    def scores(folder: Path, step: str) -> AlignmentScores:
        return alignment_scores(load_run(folder), selection=SELECTION, split=TEST, normalizer=normalizer, step=step)

    return {
        step: [stored(it.folder, f"{name} {step}", partial(scores, it.folder, step)) for it in runs] for step in STEPS
    }


def stored(folder: Path, name: str, compute: Callable[[], AlignmentScores]) -> AlignmentScores:
    """What an earlier call has stored in a run folder, or the result of `compute`, which is stored there."""
    path = folder / f"links {name}.json"
    if not path.is_file():
        found = compute()
        path.write_text(json.dumps({"threshold": found.threshold, "counts": found.counts.tolist()}))
    values = json.loads(path.read_text())
    return AlignmentScores(values["threshold"], np.array(values["counts"], dtype=np.int64))


def references(folder: Path, name: str) -> AlignmentScores:
    """The scores of a reference on the tokens of a run. Its threshold is chosen like that of the arms."""
    run = load_run(folder)
    data = run.task.splits(run.tokenizer, ("train", SELECTION, TEST))
    weights = {split: [] for split in (SELECTION, TEST)}
    if name == "IBM model 1":
        train = (list(data["train"].rows[side]) for side in ("source", "target"))
        model = IBMModel1(*train, vocabulary=run.tokenizer.vocab_size)
    for split, found in weights.items():
        texts = zip(*(data[split].texts[side] for side in ("source", "target")), strict=True)
        ids = zip(*(data[split].rows[side] for side in ("source", "target")), strict=True)
        for (source, target), pair in zip(texts, ids, strict=True):
            if name == "IBM model 1":
                found.append(to_words(model.posteriors(*pair), *token_counts(run.tokenizer, source, target)))
            else:
                null = {"diagonal": diagonal, "uniform": uniform}[name]
                found.append(null(len(target.split()), len(source.split())))
    pairs: list[Aligned] = [(found, gold_links(run, split)) for split, found in weights.items()]
    return scored(*pairs)


# ------------------------------------------------------------------------------------------------------------- verdicts


def verdicts(
    results: Mapping[str, Sequence[AlignmentScores]], chapters: Sequence[str], step: str
) -> list[dict[str, str]]:
    """A row of the CSV file per arm: differences of its AER to the baseline, with chapters as groups of examples.

    The p-values of all arms but the references are adjusted together. There is no verdict on any arm if the baseline
    does not beat the diagonal: if its interval, for new seeds and new chapters, is not below 0.
    """
    values = {
        name: np.array([pseudo_values(it.counts, AlignmentErrorRate.of) for it in scores])
        for name, scores in results.items()
    }
    baseline = values[BASELINE]
    differences = {
        name: paired_difference(of_arm - baseline, chapters) for name, of_arm in values.items() if name != BASELINE
    }
    beats = differences[GATE].new_seeds_and_examples.low > 0  # gate minus baseline
    if not beats:
        print(f"\n{BASELINE} does not beat {GATE}: there are no verdicts")
    arms = [name for name in differences if name not in REFERENCES]
    adjusted = dict(zip(arms, holm([differences[name].p_value for name in arms]), strict=True))
    rows = []
    for name, scores in results.items():
        numbers = spread_of([it.error_rate for it in scores])
        row = {"task": "translation", "metric": "AER", "primary": str(step == STEPS[0]).lower(), "arm": name}
        row |= {"examples": str(len(chapters)), "seeds": str(len(scores)), "verdict": "baseline"}
        if name != BASELINE:
            numbers |= numbers_of(differences[name]) | ({"adjusted_p": adjusted[name]} if name in adjusted else {})
            row["verdict"] = verdict(adjusted.get(name), beats)
        rows.append(row | {key: f"{value:.5g}" for key, value in numbers.items() if np.isfinite(value)})
    return rows


def verdict(adjusted: float | None, beats: bool) -> str:
    """adjusted: the p-value of an arm, None for a reference. beats: whether the baseline beats the diagonal."""
    if adjusted is None:
        return "reference"
    if not beats or not np.isfinite(adjusted):
        return "no verdict"
    return "shown" if adjusted < 0.05 else "not shown"


def spread_of(values: Sequence[float]) -> dict[str, float]:
    """Mean, and the standard deviation if there are several values."""
    return {"mean": statistics.mean(values)} | ({"sd": statistics.stdev(values)} if len(values) > 1 else {})


def numbers_of(found: Difference) -> dict[str, float]:
    """The columns of a difference."""
    both, seeds = found.new_seeds_and_examples, found.new_seeds
    ends = {"low": both.low, "high": both.high, "low_new_seeds": seeds.low, "high_new_seeds": seeds.high}
    return {"difference": found.estimate, **ends, "detectable": found.detectable}


def detail_table(results: Mapping[str, Sequence[AlignmentScores]]) -> str:
    """A row per arm: error rate, precision, recall, and the threshold that was chosen on the selection verses."""
    names = ("error_rate", "precision", "recall", "threshold")
    rows = [[arm, *(spread([getattr(it, name) for it in scores]) for name in names)] for arm, scores in results.items()]
    return table(["", "AER", "precision", "recall", "threshold"], rows)


if __name__ == "__main__":
    main()
