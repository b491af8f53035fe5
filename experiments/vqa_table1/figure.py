"""The smallest attention mass of any key, update by update, of several runs in one picture (the paper's Figure 1).

python experiments/vqa_table1/figure.py logs/vqa/softmax/<run> logs/vqa/dnas/<run> --out smallest_mass.png
"""

import argparse
from pathlib import Path

import yaml

from attnorm.analysis.figures import compare_column_mass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="run folders")
    parser.add_argument("--out", type=Path, default=Path("smallest_mass.png"))
    args = parser.parse_args()
    named = {f"{label(run)} ({run.name})": run for run in args.runs}
    print(compare_column_mass(named, args.out))


def label(run: Path) -> str:
    """The normalizer that a run is about: of its fusion, or of the first site it has."""
    attention = yaml.safe_load((run / "config.yaml").read_text())["attention"]
    return attention.get("fusion") or next(iter(attention.values()))


if __name__ == "__main__":
    main()
