"""The smallest attention mass of any key, update by update, of several runs in one picture (the paper's Figure 1).

python experiments/vqa_table1/figure.py logs/vqa/softmax/<run> logs/vqa/dnas/<run> --out smallest_mass.png
"""

import argparse
from pathlib import Path

from attnorm.analysis.run_figures import compare_column_mass
from attnorm.run.opening import read_run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="run folders")
    parser.add_argument("--site", default="fusion", help="whose layers; default fusion")
    parser.add_argument("--out", type=Path, default=Path("smallest_mass.png"))
    args = parser.parse_args()
    try:
        named = {f"{label(run, args.site)} ({run.name})": run for run in args.runs}
        compare_column_mass(named, args.site).savefig(args.out, dpi=150)
        print(args.out)
    except ValueError as error:
        parser.error(str(error))


def label(run: Path, site: str) -> str:
    """The normalizer of a run at a site, or at the first that it has. Raises ValueError for what is no run."""
    attention = read_run(run)["attention"]
    names = [value for value in attention.values() if isinstance(value, str)]
    return attention.get(site) or next(iter(names), "no attention")


if __name__ == "__main__":
    main()
