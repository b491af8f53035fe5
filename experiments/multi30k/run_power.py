"""Translation of captions with tuned rates and ten seeds: normalizers in the encoder of a Transformer.

    python experiments/multi30k/run_power.py --data <folder of Multi30k>
    python experiments/multi30k/run_power.py --data <folder> --seeds 110 111 112 --folder t --out t.csv -- jobs=2

Repeat the command to continue where it stopped. Overrides after `--` apply to all runs.
"""

import argparse
import math
import shlex
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from bounds import ABOVE, BELOW, claim, decide, tables_of, write_claims
from sweeps import ROOT, on_test, report
from tuned import add_options, by_arm, print_tuned_cost, tuned_sweep
from verdicts import write_verdicts

ARMS = ("softmax", "dnas", "hnas", "dnas_slack", "dnas_slack_u")
RATES = (1e-3, 2e-3, 4e-3)
TUNING_SEEDS, SEEDS = (100, 101), tuple(range(110, 120))
UPDATES = 3000
HELD_OUT, PAIRS = 1014, 29000  # one pair is held out of every 28.6
LANGUAGES = ("de", "en")
RECIPE = [
    *("task=translation", "data=multi30k", "data.validation=held_out", "data.test=val", "task.selection=all"),
    *("tokenizer.vocab_size=6000", "model=transformer_tiny", "model.dropout=0.1", f"task.max_steps={UPDATES}"),
]
SECONDS = {"softmax": 0.20} | dict.fromkeys(ARMS[1:], 0.25)  # CPU seconds of an update; only softmax has been timed
CLAIMS = [
    *(claim(name, arm, "softmax", "BLEU", ABOVE) for name, arm in zip(("P1", "P2", "P3", "P4"), ARMS[1:], strict=True)),
    *(claim(name, arm, "softmax", "BLEU", (0.3, 1.0)) for name, arm in (("P1", "dnas"), ("P2", "hnas"))),
    claim("P3", "dnas_slack", "dnas", "BLEU", (-0.4, 0.4)),
    claim("P4", "dnas_slack_u", "dnas_slack", "BLEU", (-0.2, math.inf)),
    *(claim("P5", arm, "softmax", "loss", bounds) for arm in ARMS[1:] for bounds in (BELOW, (-0.03, -0.01))),
]
OTHERS = 120  # CPU seconds of a run besides its updates, not measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of Multi30k")
    add_options(parser, RATES, TUNING_SEEDS, SEEDS)
    parser.add_argument("--folder", type=Path, default=ROOT / "logs" / "multi30k_power", help="of data and runs")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("verdicts_power.csv"), help="the CSV file")
    args = parser.parse_args()
    print_tuned_cost(args, SECONDS, UPDATES, OTHERS)
    hold_out(args.data, args.folder / "data")
    data = f"data.dir={(args.folder / 'data').resolve()}"
    runs = on_test(tuned_sweep(args.folder / "runs", args, ARMS, *RECIPE, data))
    command = shlex.join(["python", "experiments/multi30k/run_power.py", *sys.argv[1:]])
    write_verdicts([args.folder / "runs"], args.out, command, metrics=["loss", "chrF"])
    tables = tables_of(by_arm(runs), ("BLEU", "loss"), "test")
    write_claims(args.out.with_name(f"{args.out.stem}_predictions.csv"), decide(CLAIMS, tables))
    report(args.folder / "runs")


def hold_out(source: Path, folder: Path) -> None:
    """Writes `train`, `held_out` and `val` into a folder.

    The held-out pairs are evenly spaced: pair i, counted from 0, is held out if there is a whole number above
    i * 1014 / 29000 and not above (i + 1) * 1014 / 29000.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for language in LANGUAGES:
        lines = (source / f"train.{language}").read_text().removesuffix("\n").split("\n")
        parts: dict[str, list[str]] = {"train": [], "held_out": []}
        for number, line in enumerate(lines):
            is_held_out = (number + 1) * HELD_OUT // PAIRS > number * HELD_OUT // PAIRS
            parts["held_out" if is_held_out else "train"].append(line)
        parts["val"] = (source / f"val.{language}").read_text().removesuffix("\n").split("\n")
        for name, its in parts.items():
            path, text = folder / f"{name}.{language}", "".join(f"{line}\n" for line in its)
            if not path.is_file() or path.read_text() != text:  # runs may be reading it
                path.write_text(text)


if __name__ == "__main__":
    main()
