"""Takes the bank away from trained models and scores them again: is it needed for reading, or only for training?

    python experiments/ot_synonyms/without_bank.py logs/ot_synonyms/twins

The argument is the folder of a sweep; the runs with a bank are scored on the validation split.
"""

import argparse
import sys
from pathlib import Path

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]  # of `sweeps`, and of this package
from sweeps import table

from attnorm.analysis.loaded_run import LoadedRun, load_run
from attnorm.attention.banks import Vocabulary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of the sweep")
    runs = [load_run(path.parent, trust_code=True) for path in parser.parse_args().folder.glob("*/summary.json")]
    runs = [run for run in runs if "bank" in run.config["attention"]]
    rows = [[str(run.config["seed"]), f"{accuracy(run):.2f}", f"{accuracy(without_bank(run)):.2f}"] for run in runs]
    print(table(["seed", "with the bank", "without it"], sorted(rows)))


def without_bank(run: LoadedRun) -> LoadedRun:
    """The same run, whose banks are empty from now on."""
    for bank in run.model.modules():
        if isinstance(bank, Vocabulary):
            bank.register_forward_hook(lambda _bank, _inputs, templates: templates[:0])
    return run


def accuracy(run: LoadedRun) -> float:
    """The accuracy in percent on the validation split."""
    data = run.task.splits(run.tokenizer, ("validation",))["validation"]
    return run.task.score(run.task.module(run.model, run.tokenizer, data), data).metrics["accuracy"]


if __name__ == "__main__":
    main()
