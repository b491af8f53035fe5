"""Cross-attention against manual word alignments: does double normalization align words better than softmax?

    python experiments/alignments/run.py                                                    # tune, train and score
    python experiments/alignments/run.py --model transformer
    python experiments/alignments/run.py --arms softmax dnas_prefix --seeds 110 --tuning-seeds 100 -- task.max_steps=100

Repeat the command to continue where it stopped. Overrides after `--` apply to all runs.
"""

import argparse
import math
import shlex
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parent)]
from bounds import Tables, decide, write_claims
from registered import BASELINE, CLAIMS, PREDICTS
from scoring import REFERENCES, VIEWS, Results, scores_of_all
from sweeps import ROOT, Run, several, spread, sweep, table
from tuned import add_options
from verdicts import HEADER, shown, write

from attnorm.analysis.statistics.corpus import pseudo_values
from attnorm.analysis.statistics.crossed import Difference, paired_difference
from attnorm.analysis.statistics.multiple import holm
from attnorm.analysis.statistics.power import detectable
from attnorm.experiments.alignments.alignment_error import AlignmentErrorRate, AlignmentScores

GATE = "diagonal"  # there is no verdict if the baseline does not beat it
ARMS = (BASELINE, "dnas_prefix", "hnas_prefix", "dnas_slack_prefix", "ot", "fertility_softmax")
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
    if BASELINE not in args.arms:
        parser.error(f"--arms {' '.join(args.arms)}: must contain {BASELINE}")
    folder = args.folder or ROOT / "logs" / "alignments" / args.model
    shared = [*RECIPE, *MODELS[args.model], *args.overrides]

    curves = tune(folder / "tuning", shared, args.arms, args.rates, args.tuning_seeds)
    print(f"\nvalidation loss by learning rate, means over seeds {several(args.tuning_seeds)}\n")
    print(curve_table(curves, args.rates))
    if arms := several(arm for arm, losses in curves.items() if min(losses.values()) == math.inf):
        sys.exit(f"{arms}: failed at all rates")
    if arms := arms_at_an_edge(curves):
        sys.exit(f"{arms}: best at an edge of the rates. Repeat the command with one rate beyond this edge in --rates")
    runs = {}
    for arm, losses in curves.items():
        seeds = [f"optimizer.lr={best_rate(losses)}", f"seed={several(args.seeds)}"]
        runs[arm] = sweep(folder / f"{arm}_{best_rate(losses):g}", *shared, f"attention={arm}", *seeds)
        assert [int(run.settings["seed"]) for run in runs[arm]] == sorted(args.seeds)  # arms are compared seed by seed
    verses, results = scores_of_all(runs)
    chapters = [verse[:5] for verse in verses]
    command = shlex.join(["python", "experiments/alignments/run.py", *sys.argv[1:]])
    out = args.out or Path(__file__).parent / f"verdicts_{args.model}.csv"
    values = pseudo_values_of(results)
    rows, beats = [], {view: beats_gate(values, chapters, view) for view in VIEWS}
    for view in VIEWS:
        of_view = {name: by_view[view] for name, by_view in results.items()}
        rows += (found := verdicts(of_view, values, chapters, view, beats[view]))
        print(f"\nAER in percent ({view})\n\n{table(HEADER, map(shown, found))}")
        print(f"\n{detail_table(of_view)}")
        if not beats[view]:
            print(f"\n{BASELINE} does not beat {GATE}: there are no verdicts")
    write(out, [{**row, "command": command} for row in rows])
    if beats[PREDICTS] and set(args.arms) == set(ARMS):
        write_claims(out.with_name(f"{out.stem}_hypotheses.csv"), decide(CLAIMS, values, chapters))


# --------------------------------------------------------------------------------------------------------------- tuning


def tune(
    folder: Path, shared: Sequence[str], arms: Sequence[str], rates: Sequence[float], seeds: Sequence[int]
) -> dict[str, dict[float, float]]:
    """The mean validation loss of every arm at every rate: the same rates and seeds for all arms."""
    curves: dict[str, dict[float, float]] = {arm: {} for arm in arms}
    for rate in rates:  # one sweep per rate, so that more rates can be added later
        settings = [f"optimizer.lr={rate}", f"attention={several(arms)}", f"seed={several(seeds)}"]
        losses = losses_of(sweep(folder / f"{rate:g}", *shared, *settings, failures=True))
        for arm in arms:  # a run that has diverged has failed
            finished = losses.get(arm, [])
            curves[arm][rate] = statistics.mean(finished) if len(finished) == len(seeds) else math.inf
    return curves


def arms_at_an_edge(curves: Mapping[str, Mapping[float, float]]) -> str:
    """The arms with the best rate at an edge of `RATES` beyond which no rate has been tried."""
    edges = {min(RATES), max(RATES)}
    return several(arm for arm, its in curves.items() if best_rate(its) in edges & {min(its), max(its)})


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


# ------------------------------------------------------------------------------------------------------------- verdicts


def pseudo_values_of(results: Results) -> Tables:
    """The pseudo-values of AER by arm and view, (seeds, verses)."""
    return {
        (name, view): np.array([pseudo_values(it.counts, AlignmentErrorRate.of) for it in scores])
        for name, by_view in results.items()
        for view, scores in by_view.items()
    }


def beats_gate(values: Tables, chapters: Sequence[str], view: str) -> bool:
    """Whether the whole interval of the gate minus the baseline is above zero in one view."""
    gate = paired_difference(values[GATE, view] - values[BASELINE, view], chapters)
    return gate.new_seeds_and_examples.low > 0


def verdicts(
    results: Mapping[str, Sequence[AlignmentScores]],
    values: Tables,
    chapters: Sequence[str],
    view: str,
    beats: bool,
) -> list[dict[str, str]]:
    """A row of the CSV file per arm in one view: differences of its AER to the baseline, with chapters as groups.

    The p-values of all arms but the references are adjusted together. beats: whether the baseline beats the gate in
    this view: if not, there is no verdict on any arm.
    """
    differences = {
        name: paired_difference(values[name, view] - values[BASELINE, view], chapters)
        for name in results
        if name != BASELINE
    }
    arms = [name for name in differences if name not in REFERENCES]
    adjusted = dict(zip(arms, holm([differences[name].p_value for name in arms]), strict=True)) if beats else {}
    metric = "AER" if view == PREDICTS else f"AER ({view})"
    rows = []
    for name, scores in results.items():
        numbers = spread_of([it.error_rate for it in scores])
        row = {"task": "translation", "metric": metric, "primary": str(view == PREDICTS).lower(), "arm": name}
        row |= {"examples": str(len(chapters)), "seeds": str(len(scores)), "verdict": "baseline"}
        if name != BASELINE:
            numbers |= numbers_of(differences[name])
            if name in adjusted:
                level = 1 - 0.05 / len(arms)  # as in Verdict.detectable
                found = detectable(differences[name].variances, level=level)
                numbers |= {"adjusted_p": adjusted[name], "detectable": found}
            row["verdict"] = "reference" if name in REFERENCES else verdict(adjusted.get(name, math.nan))
        rows.append(row | {key: f"{value:.5g}" for key, value in numbers.items() if np.isfinite(value)})
    return rows


def verdict(adjusted: float) -> str:
    """The word for an adjusted p-value; NaN means that it is not defined."""
    if not np.isfinite(adjusted):
        return "no verdict"
    return "shown" if adjusted < 0.05 else "not shown"


def spread_of(values: Sequence[float]) -> dict[str, float]:
    """Mean, and the standard deviation if there are several values."""
    return {"mean": statistics.mean(values)} | ({"sd": statistics.stdev(values)} if len(values) > 1 else {})


def numbers_of(found: Difference) -> dict[str, float]:
    """The columns of a difference."""
    both, seeds = found.new_seeds_and_examples, found.new_seeds
    ends = {"low": both.low, "high": both.high, "low_new_seeds": seeds.low, "high_new_seeds": seeds.high}
    return {"difference": found.estimate, **ends}


def detail_table(results: Mapping[str, Sequence[AlignmentScores]]) -> str:
    """A row per arm: error rate, precision, recall, and the threshold that was chosen on the selection verses."""
    names = ("error_rate", "precision", "recall", "threshold")
    rows = [[arm, *(spread([getattr(it, name) for it in scores]) for name in names)] for arm, scores in results.items()]
    return table(["", "AER", "precision", "recall", "threshold"], rows)


if __name__ == "__main__":
    main()
