"""The first ladder, in three steps. What a step finds is committed before the next one starts.

    python experiments/ladder/texts.py train-v1.1.json dev-v1.1.json ladder/texts
    python experiments/ladder/run.py rates
    python experiments/ladder/run.py rungs
    python experiments/ladder/run.py beyond

rates:  trains every arm on the first three rungs at five learning rates and on the fifth at three, with one seed, and
        writes a rule for each arm into conf/ladder/<arm>.yaml.
rungs:  trains every arm on the five rungs of conf/ladder/<arm>.yaml, and scores it on the test articles.
beyond: trains the sixth rung, which is then at the end of the same files with `beyond: true`, and scores it.

A step that was interrupted continues when it is repeated.
"""

import argparse
import csv
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

import attnorm.run.run
from attnorm.analysis.ladder.ladder_runs import ladder_of

sys.path.append(str(Path(__file__).parents[1]))
from sweeps import Run, on_test, several, sweep

HERE = Path(__file__).parent
ARMS = ("softmax", "hnas_prefix", "stick_breaking")
ARMS_BEYOND = ("softmax", "hnas_prefix")
RATES, RATES_LARGEST = (2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2), (4e-3, 8e-3, 1.6e-2)
RUNGS = ((48, 2, 2, 512), (64, 2, 2, 768), (96, 3, 2, 1536), (112, 4, 3, 2560), (128, 4, 4, 4096))
VOCABULARY = 1000
TUNING_SEED = 100
SEEDS, SEEDS_BEYOND = (110, 111, 112, 113, 114), (110, 111, 112)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=STEPS)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=ARMS)
    parser.add_argument("--texts", type=Path, default=Path("ladder/texts"))
    parser.add_argument("--folder", type=Path, default=Path("logs/ladder"), help="of the sweeps")
    parser.add_argument("overrides", nargs="*", help="behind --: for every run, and keys of the sweep such as jobs=2")
    args = parser.parse_intermixed_args()
    STEPS[args.step](args)


def trained(args: argparse.Namespace, folder: str, ladder: str, arm: str, *overrides: str) -> list[Run]:
    """The runs of an arm on the rungs of a ladder."""
    texts = ("data=folders", f"data.folder={args.texts}", "data.document=paragraph", "data.test=[test_*]")
    own = ("--config-dir", str(HERE / "conf"), f"ladder={ladder}", "task=causal_lm", f"attention={arm}")
    return sweep(args.folder / folder, *own, *texts, *overrides, *args.overrides, failures=True)


def rates(args: argparse.Namespace) -> None:
    for arm in args.arms:
        found = {}
        for folder, ladder, tried in (("rates", "untuned", RATES), ("rates_largest", "largest", RATES_LARGEST)):
            typed = (f"optimizer.lr={several(tried)}", f"seed={TUNING_SEED}")
            found |= losses(trained(args, f"{folder}/{arm}", ladder, arm, *typed))
        sizes = sorted({size for size, _ in found})
        best = {size: best_rate({rate: loss for (of, rate), loss in found.items() if of == size}) for size in sizes}
        slope, constant = np.polyfit([math.log(size) for size in best], [math.log(rate) for rate in best.values()], 1)
        minima = ", ".join(f"{rate:.2g}" for rate in best.values())
        print(f"{arm}: minima {minima}", flush=True)
        write_ladder(arm, constant, slope)
        with open(HERE / f"rates_{arm}.csv", "w", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(["parameters", "rate", "validation loss"])
            writer.writerows([size, rate, f"{loss:.4f}"] for (size, rate), loss in sorted(found.items()))


def write_ladder(arm: str, constant: float, slope: float) -> None:
    """Writes the five rungs, with the learning rate exp(constant) N^slope for N parameters of matrix products."""
    lines = [
        f"# The learning rate is {math.exp(constant):.3g} N^{slope:.3f} for N parameters, see rates_{arm}.csv.",
        "tokens_per_parameter: 5",
        "rungs:",
    ]
    for width, heads, layers, tokens in RUNGS:
        rate = math.exp(constant) * (12 * layers * width**2 + VOCABULARY * width) ** slope
        sizes = {"d_model": width, "n_heads": heads, "ffn_dim": 4 * width, "decoder_layers": layers}
        keys = {**{f"model.{key}": size for key, size in sizes.items()}, "data.batch_tokens": tokens}
        keys["optimizer.lr"] = f"{rate:.3g}"
        lines.append(f"  - {{{', '.join(f'{key}: {value}' for key, value in keys.items())}}}")
    (HERE / f"conf/ladder/{arm}.yaml").write_text("\n".join(lines) + "\n")


def losses(runs: Sequence[Run]) -> dict[tuple[int, float], float]:
    """The validation losses of runs, by number of parameters and learning rate."""
    opened = [attnorm.run.run.Run(run.folder) for run in runs]
    keys = [(ladder_of(run)["parameters"], run.settings["optimizer.lr"]) for run in opened]
    return {key: run.metrics["loss"] for key, run in zip(keys, runs, strict=True)}


def best_rate(losses: Mapping[float, float]) -> float:
    """The minimum of the parabola through the best learning rate and its neighbours, of the loss over the log rate; the
    best one, if it is the lowest or the highest."""
    tried = sorted(losses)
    place = min(range(len(tried)), key=lambda it: losses[tried[it]])
    if place in (0, len(tried) - 1):
        return tried[place]
    near = tried[place - 1 : place + 2]
    curvature, slope, _ = np.polyfit([math.log(rate) for rate in near], [losses[rate] for rate in near], 2)
    return math.exp(-slope / (2 * curvature))


def rungs(args: argparse.Namespace) -> None:
    for arm in args.arms:
        on_test(trained(args, arm, arm, arm, f"seed={several(SEEDS)}"))


def beyond(args: argparse.Namespace) -> None:
    for arm in (arm for arm in args.arms if arm in ARMS_BEYOND):
        on_test(trained(args, arm, arm, arm, f"seed={several(SEEDS_BEYOND)}"))


STEPS = {"rates": rates, "rungs": rungs, "beyond": beyond}


if __name__ == "__main__":
    main()
