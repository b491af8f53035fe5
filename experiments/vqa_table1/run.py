"""One view, three views concatenated, three views fused by softmax, dnas and hnas: Table 1 of the paper, as sweeps.

    python experiments/vqa_table1/run.py                                                      # the built-in scenes, CPU
    python experiments/vqa_table1/run.py --data easy_vqa --seeds 1 2 3                        # real images, CPU
    python experiments/vqa_table1/run.py --data <folder of VQA v2>                            # questions alone, CPU
    python experiments/vqa_table1/run.py --size full --data <VQA v2> --features <view 1> <view 2> <view 3>    # GPU

Repeat the command to continue where it stopped. Overrides after `--` apply to all runs.
"""

import argparse
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from sweeps import ROOT, Run, beside_paper, report, several, sweep, values_of

PAPER = {  # accuracy on VQA v2, test-dev and test-std; LNAS is softmax
    "one view": [68.33, None],
    "concatenated": [68.79, 69.22],
    "fused, softmax": [69.14, 69.50],
    "fused, dnas": [69.70, 70.01],
    "Pythia, one view (Jiang et al. 2018)": [68.31, None],
}
PAPER_COLUMNS = ["test-dev", "test-std"]
ATTENTIONS = ("softmax", "dnas", "hnas")
BUILT_IN = {
    "scenes": ["data=scenes"],
    "easy_vqa": ["data=base", "data._target_=attnorm.experiments.vqa_table1.shape_questions.EasyVqa"],
}
SIZES = {
    "small": ["task=vqa", "model=vqa_tiny"],
    "full": ["experiment=vqa_paper"],
}
QUESTIONS_ALONE = ["model.fusion=none", "model.dropout=0.3", "task.max_steps=2500"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="small", choices=SIZES)
    parser.add_argument("--data", default="scenes", help=f"{', '.join(BUILT_IN)}, or a folder with the files of VQA v2")
    parser.add_argument("--features", nargs="+", default=[], help="of a folder: the views, as in data.features")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--folder", type=Path, help="of the sweeps; default logs/vqa_table1_<data>")
    parser.add_argument("overrides", nargs="*", help="behind --: for every run, and keys of the sweep such as jobs=2")
    args = parser.parse_args()
    built_in = args.data in BUILT_IN
    if built_in and (args.size == "full" or args.features):
        parser.error("--size full and --features need --data <folder of VQA v2>")

    folder = args.folder or ROOT / "logs" / f"vqa_table1_{args.data if built_in else f'vqa_v2_{args.size}'}"
    data = BUILT_IN[args.data] if built_in else vqa_v2(Path(args.data).resolve(), args.features)
    shared = [*SIZES[args.size], *data, f"seed={several(args.seeds)}"]
    if not built_in and not args.features:
        print("no --features: without boxes there is nothing to fuse, so only the question alone is run")
        runs = sweep(folder, *shared, *QUESTIONS_ALONE, *args.overrides)
        arms = {"question alone": {"model.fusion": "none"}}
    else:
        alone, fused = ["model.fusion=single,concat"], ["model.fusion=attention", f"attention={several(ATTENTIONS)}"]
        if args.size == "full":
            alone.append("model.fusion_views=joint")  # the experiment sets it for the fusion; here it has no effect
        runs = [run for arms in (alone, fused) for run in sweep(folder, *shared, *arms, *args.overrides)]
        arms = {"one view": {"model.fusion": "single"}, "concatenated": {"model.fusion": "concat"}}
        arms |= {f"fused, {name}": {"model.fusion": "attention", "attention": name} for name in ATTENTIONS}
    metrics = [name for name in runs[0].metrics if name != "loss"]
    ours = {arm: values_of(runs, metrics, **settings) for arm, settings in arms.items()}
    print(f"\n{beside_paper(metrics, ours, PAPER, PAPER_COLUMNS)}")
    draw(folder, runs, args.seeds[0])
    report(folder)


def vqa_v2(folder: Path, features: list[str]) -> list[str]:
    """The overrides for the official files in a folder: questions and annotations of train and validation."""
    chosen = ["data=vqa_v2"]
    for split, short in (("train", "train"), ("validation", "val")):
        for kind in ("questions", "annotations"):
            found = [file for file in sorted(folder.glob("*.json*")) if short in file.name and kind in file.name]
            if len(found) != 1:
                names = ", ".join(file.name for file in found) or "none"
                sys.exit(f"{folder}: expected one .json file named *{short}* and *{kind}*; found {names}")
            chosen.append(f"data.{split}_{kind}={found[0]}")
    views = ",".join(str(Path(view).resolve()) for view in features)
    return [*chosen, f"data.features=[{views}]"] if features else chosen


def draw(folder: Path, runs: list[Run], seed: int) -> None:
    """The paper's Figure 1 from the runs of one seed: how little attention the least attended box gets."""
    from attnorm.analysis.run_figures import compare_column_mass

    chosen = [it for it in runs if it.settings["seed"] == str(seed) and it.settings["model.fusion"] == "attention"]
    named = {it.settings["attention"]: it.folder for it in chosen}
    if not named:
        return
    try:
        compare_column_mass(named, "fusion").savefig(folder / "smallest_mass.png", dpi=150)
        print(f"figure: {folder / 'smallest_mass.png'}")
    except ValueError as error:  # attention was not recorded
        print(f"no figure: {error}")


if __name__ == "__main__":
    main()
