"""One view, three views concatenated, three views fused by softmax, dnas and hnas: the paper's Table 1 as one sweep.

    python experiments/vqa_table1/run.py                       # the built-in scenes, CPU
    python experiments/vqa_table1/run.py --data easy_vqa --seeds 1 2 3
    python experiments/vqa_table1/run.py --size full -- data=vqa_v2 data.train_questions=... data.features=[...]

Run it again to go on where it stopped. Every run is `python train.py ...` with the overrides that it prints; what is
typed behind `--` goes to all of them.
"""

import argparse
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from stages import ROOT, spread, stage, table

ARMS = {
    "one view": ["model.fusion=single"],
    "concatenated": ["model.fusion=concat"],
    "fused, softmax": ["model.fusion=attention", "attention=softmax"],
    "fused, dnas": ["model.fusion=attention", "attention=dnas"],
    "fused, hnas": ["model.fusion=attention", "attention=hnas"],
}
SIZES = {"small": ["model=vqa_tiny"], "full": ["model=vqa_paper", "trainer=gpu", "task.max_steps=22000"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="small", choices=SIZES)
    parser.add_argument("--data", choices=["scenes", "easy_vqa"], help="of the small size; default scenes")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--folder", type=Path, help="of the runs; default logs/vqa_table1_<data>")
    parser.add_argument("overrides", nargs="*", help="behind --: for every run")
    args = parser.parse_args()
    if args.size == "full" and args.data:
        parser.error("--data is for --size small; type data=... behind --")

    small = args.data or "scenes"
    data = [f"data={small}"] if args.size == "small" else []
    folder = args.folder or ROOT / "logs" / f"vqa_table1_{small if args.size == 'small' else 'full'}"
    metrics: dict[str, list[dict[str, float]]] = {arm: [] for arm in ARMS}
    for seed in args.seeds:  # an interrupted sweep then has as many seeds of every arm
        for arm, overrides in ARMS.items():
            name = f"{arm.replace(', ', '_').replace(' ', '_')}_{seed}"
            settings = ["task=vqa", f"seed={seed}", *SIZES[args.size], *data, *overrides, *args.overrides]
            metrics[arm].append(stage(folder / name, *settings)["validation"]["metrics"])
    columns = [name for name in metrics["one view"][0] if name != "loss"]
    rows = [[arm, *(spread([found[name] for found in runs]) for name in columns)] for arm, runs in metrics.items()]
    print(table(["", *columns], rows))
    try:
        draw(folder, args.seeds[0])
    except ValueError as error:  # nothing was watched
        print(f"no figure: {error}")


def draw(folder: Path, seed: int) -> None:
    """The paper's Figure 1 from the runs of one seed: how little attention the least attended box gets."""
    from attnorm.analysis.figures import compare_column_mass

    runs = {arm: folder / f"fused_{arm}_{seed}" for arm in ("softmax", "dnas", "hnas")}
    print(f"figure: {compare_column_mass(runs, folder / 'smallest_mass.png', 'fusion')}")


if __name__ == "__main__":
    main()
