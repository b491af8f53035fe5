"""Words that training never shows: softmax, optimal transport, and optimal transport with the vocabulary as a bank.

    python experiments/ot_synonyms/run.py                          # CPU, 4 arms x 5 seeds, with and without twins

Repeat the command to continue where it stopped. Overrides after `--` apply to all runs.
"""

import argparse
import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from sweeps import ROOT, report, several, spread, sweep, table, values_of

OT = ["attention=ot", "attention.options.ot.cost=experiments.ot_synonyms.twins:sharp_distance"]
BANK = "attention.bank.encoder"
ARMS = {  # the settings by which the runs of an arm are found
    "uniform": {"attention": "uniform"},
    "softmax": {"attention": "softmax"},
    "ot": {"attention": "ot", BANK: "null"},
    "ot, bank": {"attention": "ot", BANK: "vocabulary"},
}
SWEEPS = (["attention=softmax,uniform"], [*OT, f"{BANK}=null,vocabulary"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--folder", type=Path, default=ROOT / "logs" / "ot_synonyms", help="of the sweeps")
    parser.add_argument("overrides", nargs="*", help="behind --: for every run, and keys of the sweep such as jobs=2")
    args = parser.parse_args()

    os.chdir(ROOT)  # where the runs find the package of this experiment
    sys.path.append(str(ROOT))
    shared = ["--config-dir=experiments/ot_synonyms/conf", "experiment=ot_synonyms", f"seed={several(args.seeds)}"]
    rows = []
    for words, twins in (("held-out twins", "true"), ("words of the training articles", "false")):
        folder = args.folder / ("twins" if twins == "true" else "words")
        settings = [*shared, f"data.twins={twins}", *args.overrides]
        runs = [run for arms in SWEEPS for run in sweep(folder, *settings, *arms)]
        rows.append([words, *(spread(values_of(runs, ["accuracy"], **found)[0]) for found in ARMS.values())])
    print(f"\n{table(['accuracy', *ARMS], rows)}")
    report(args.folder / "twins")


if __name__ == "__main__":
    main()
