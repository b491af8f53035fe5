"""Language modelling of novels: a screen of normalizers, and a comparison of those that it chooses with softmax.

    python experiments/causal_lm/run.py --texts <folder of novels>
    python experiments/causal_lm/run.py --texts <folder> --screen experiments/causal_lm/screen.csv
    python experiments/causal_lm/run.py --texts <folder> --screen ... --arms dnas_prefix forgetting ... --out second.csv
    python experiments/causal_lm/run.py --texts <folder> --seeds 110 111 112 --folder t --out t.csv -- task.max_steps=9

Repeat the command to continue where it stopped. Overrides after `--` apply to all runs.
"""

import argparse
import csv
import math
import shlex
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from bounds import ABOVE, BELOW, Claim, claim, decide, tables_of, write_claims
from sweeps import NOTHING, ROOT, Run, on_test, print_cost, report, several, sweep, table
from verdicts import write_verdicts

BASELINE, GATED = "softmax", "gated softmax"
NULL_ARMS = ("uniform", "none")
PAIR = ("dnas_prefix", "hnas_prefix")  # the better one is always compared
NORMALIZERS = ("sink", "ssmax", "sigmoid", "softpick", "stick_breaking", "forgetting", *PAIR)
CANDIDATES = (BASELINE, *NORMALIZERS, GATED)
ARMS = (*CANDIDATES, *NULL_ARMS)
CHOSEN = 5
SIMPLE, SCORE = "bigram", "perplexity"
RATES = (1e-3, 2e-3, 4e-3)
SCREEN_SEED, SEEDS = 100, (110, 111, 112, 113, 114)
UPDATES = 900
RECIPE = [
    *("task=causal_lm", "data=base", "data._target_=attnorm.experiments.causal_lm.chapters.Chapters"),
    *("data.test=[Doyle_*,Stevenson_*]", "task.selection=all"),
    *("model.decoder_layers=2", "model.max_target=128", f"task.max_steps={UPDATES}"),
]
UNTIMED = 0.45  # of the arms that have not been timed
TIMED = {BASELINE: 0.22, "sink": 0.23, "ssmax": 0.21, "sigmoid": 0.26, "softpick": 0.32}
TIMED |= {"stick_breaking": 0.45, "forgetting": 0.41}
SECONDS = dict.fromkeys(ARMS, UNTIMED) | dict.fromkeys(PAIR, 0.55) | TIMED  # CPU seconds of an update
OTHERS = 80  # CPU seconds of a run besides its updates
BANDS = ("loss_1x", "loss_2x", "loss_4x", "loss_8x")
GROWTH = "loss_8x - loss_1x"
LOSS_2, LOSS_3 = math.log(1.02), math.log(1.03)  # the loss per token of 2 % and 3 % more perplexity
CLAIMS = [
    *(claim("P1", arm, BASELINE, SCORE, BELOW) for arm in ("forgetting", "stick_breaking")),
    *(claim("P2", arm, BASELINE, GROWTH, BELOW) for arm in ("forgetting", "stick_breaking")),
    claim("P3", "ssmax", BASELINE, "loss_8x", BELOW),
    claim("P4", GATED, BASELINE, "loss", (-LOSS_2, 0)),
    claim("P5", "dnas_prefix", BASELINE, SCORE, ABOVE),
    claim("P5", "hnas_prefix", BASELINE, "loss", (-LOSS_2, LOSS_2)),
    *(claim("P6", arm, BASELINE, "loss", (-LOSS_3, LOSS_3)) for arm in ("sink", "sigmoid", "softpick")),
    claim("P8", "dnas_prefix", BASELINE, GROWTH, BELOW),
    Claim("P9", ("dnas_prefix", BANDS[-1]), ("dnas_prefix", BANDS[0]), (-0.05, 0.05)),
    claim("P10", "dnas_prefix", BASELINE, BANDS[-1], BELOW),
    claim("P10", "forgetting", BASELINE, BANDS[-1], BELOW),
    claim("P11", "sigmoid", BASELINE, GROWTH, ABOVE),
]

Row = dict[str, str]  # of the screen: an arm, a rate and validation scores; the simple method has no rate
Curves = dict[str, dict[float, float]]  # arm -> rate -> validation perplexity; without the rates at which a run failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, required=True, help="folder of novels")
    screened = parser.add_mutually_exclusive_group()
    screened.add_argument("--screen", type=Path, help="CSV file of an earlier screen, instead of a new one")
    screened.add_argument("--rates", type=float, nargs="+", default=list(RATES), help="learning rates, for every arm")
    parser.add_argument("--arms", nargs="+", choices=CANDIDATES[1:], help="to compare, instead of those of the rule")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS), help="of the comparison")
    parser.add_argument("--folder", type=Path, default=ROOT / "logs" / "causal_lm_novels", help="of the sweeps")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("verdicts.csv"), help="the CSV file")
    parser.add_argument("overrides", nargs="*", help="behind --: for every run, and keys of the sweep such as jobs=2")
    args = parser.parse_args()
    if args.screen and not args.screen.is_file():
        parser.error(f"--screen {args.screen}: no such file")
    shared = [*RECIPE, f"data.folder={args.texts.resolve()}", *args.overrides]
    table_of_screen = args.screen or args.out.with_name("screen.csv")
    if args.screen is None:
        write_screen(table_of_screen, screen(args.folder, shared, sorted(args.rates)))
    curves, simple = read_screen(table_of_screen)
    arms = [BASELINE, *(args.arms or chosen(curves, simple))]
    if failed := [arm for arm in arms if arm not in curves]:
        sys.exit(f"{', '.join(failed)}: failed at all rates, so there is nothing to compare")
    print(f"\n{curve_table(curves, arms, simple)}\n\nthe comparison:")
    print_cost({arm: SECONDS[arm] for arm in arms}, len(args.seeds), UPDATES, OTHERS)
    compared = {}
    for arm in arms:
        settings = [*attention(arm), f"optimizer.lr={best_rate(curves[arm])}", f"seed={several(args.seeds)}"]
        folder = args.folder / "arms" / f"{arm.replace(' ', '_')}_{best_rate(curves[arm]):g}"
        compared[arm] = on_test(sweep(folder, *shared, *settings, failures=True))
    command = shlex.join(["python", "experiments/causal_lm/run.py", *sys.argv[1:]])
    folders = [run.folder for runs in compared.values() for run in runs]
    write_verdicts(folders, args.out, command, metrics=BANDS, gate=SIMPLE, grouped=False)
    tables = tables_of(fit(compared), (SCORE, "loss", *BANDS), "test")
    tables |= {
        (arm, GROWTH): tables[arm, BANDS[-1]] - tables[arm, BANDS[0]] for arm in arms if (arm, BANDS[0]) in tables
    }
    write_claims(args.out.with_name(f"{args.out.stem}_predictions.csv"), decide(CLAIMS, tables))
    report(*folders)


# --------------------------------------------------------------------------------------------------------------- screen


def attention(*arms: str) -> list[str]:
    """The overrides of some arms: several normalizers, or the gated softmax alone."""
    return (
        ["attention=softmax", "attention.gate.decoder=headwise"] if arms == (GATED,) else [f"attention={several(arms)}"]
    )


def screen(folder: Path, shared: Sequence[str], rates: Sequence[float]) -> list[Row]:
    """The rows of all arms at all rates, and of those that may be compared at the rates beyond an edge."""
    print("the screen:")
    print_cost(SECONDS, len(rates), UPDATES, OTHERS)
    runs = train(folder / "screen", shared, ARMS, rates)
    rows = [{"arm": SIMPLE, "rate": "", SCORE: str(runs[0].baselines[SIMPLE][SCORE])}, *map(row_of, runs)]
    for rate in beyond(curves_of(rows), rates):
        rows += map(row_of, train(folder / "screen_beyond", shared, CANDIDATES, [rate]))
    return rows


def train(folder: Path, shared: Sequence[str], arms: Sequence[str], rates: Sequence[float]) -> list[Run]:
    """One run per arm and rate. Runs that fail are left out."""
    settings = [*shared, f"optimizer.lr={several(rates)}", f"seed={SCREEN_SEED}"]
    plain = [arm for arm in arms if arm != GATED]
    runs = sweep(folder / "normalizers", *settings, *attention(*plain), failures=True)
    return runs + sweep(folder / "gate", *settings, *attention(GATED), failures=True)


def row_of(run: Run) -> Row:
    """The row of a run of the screen."""
    arm = GATED if "attention.gate.decoder" in run.settings else run.settings["attention"]
    scores = {name: str(run.metrics[name]) for name in (SCORE, *BANDS) if name in run.metrics}
    return {"arm": arm, "rate": f"{float(run.settings['optimizer.lr']):g}", **scores}


def write_screen(path: Path, rows: Iterable[Row]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ("arm", "rate", SCORE, *BANDS), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read_screen(path: Path) -> tuple[Curves, float]:
    """The curves of a screen, and the perplexity of the simple method."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return curves_of(rows), next(float(row[SCORE]) for row in rows if row["arm"] == SIMPLE)


def curves_of(rows: Iterable[Row]) -> Curves:
    """The validation perplexity of every arm by its rate."""
    curves: Curves = {}
    for row in rows:
        if row["arm"] != SIMPLE:
            curves.setdefault(row["arm"], {})[float(row["rate"])] = float(row[SCORE])
    return curves


def best_rate(curve: Mapping[float, float]) -> float:
    """The rate with the lowest perplexity."""
    return min(curve, key=curve.__getitem__)


def chosen(curves: Curves, simple: float) -> list[str]:
    """The arms to compare with softmax: the better one of PAIR, and those with the lowest perplexity, CHOSEN in all.
    Null arms, and arms that do not beat the simple method at any rate, are left out."""
    best = {arm: min(curve.values()) for arm, curve in curves.items() if arm not in (BASELINE, *NULL_ARMS)}
    ranked = sorted((arm for arm in best if best[arm] < simple), key=best.__getitem__)
    first = [arm for arm in ranked if arm in PAIR][:1]
    kept = first + [arm for arm in ranked if arm not in first][: CHOSEN - len(first)]
    return [arm for arm in ranked if arm in kept]


def beyond(curves: Curves, rates: Sequence[float]) -> list[float]:
    """The rates to add: one beyond each edge that is the best rate of an arm that may be compared."""
    if len(rates) < 2:
        return []
    best = {best_rate(curves[arm]) for arm in CANDIDATES if arm in curves}
    edges = ((rates[0], rates[0] ** 2 / rates[1]), (rates[-1], rates[-1] ** 2 / rates[-2]))
    return [float(f"{value:.6g}") for edge, value in edges if edge in best]


def fit(compared: Mapping[str, Sequence[Run]]) -> dict[str, Sequence[Run]]:
    """The arms whose mean perplexity is below that of the simple method. The others get no verdict."""
    return {
        arm: runs
        for arm, runs in compared.items()
        if runs and statistics.mean(run.metrics[SCORE] for run in runs) < runs[0].baselines[SIMPLE][SCORE]
    }


def curve_table(curves: Curves, arms: Iterable[str], simple: float) -> str:
    """A row per arm: its validation perplexity at every rate, and whether it is compared."""
    rates = sorted({rate for curve in curves.values() for rate in curve})
    rows = []
    for arm, curve in sorted(curves.items(), key=lambda item: min(item[1].values())):
        cells = [f"{curve[rate]:.2f}" if rate in curve else NOTHING for rate in rates]
        rows.append([arm, *cells, "yes" if arm in arms else "no"])
    return table([f"{SIMPLE}: {simple:.2f}", *(f"{rate:g}" for rate in rates), "compared"], rows)


if __name__ == "__main__":
    main()
