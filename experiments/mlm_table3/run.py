"""Pretraining by masked language modelling, then fine-tuning on SQuAD and MNLI, for each normalizer: one table.

    python experiments/mlm_table3/run.py --squad <train.json> <dev.json> --mnli <train.jsonl> <valid.jsonl>

Run it again to go on where it stopped. Every stage is `python train.py ...` with the overrides that it prints.
"""

import argparse
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from stages import ROOT, spread, stage, table

SIZES = {  # overrides of pretraining, of SQuAD, of MNLI
    "small": (
        ["model=bert_tiny", "task.max_steps=1200", "optimizer.lr=3e-3", "data.batch_tokens=2048"],
        ["model.max_source=128", "task.max_query=32", "task.stride=64", "task.max_steps=250", "optimizer.lr=1e-3"],
        ["task.max_steps=400", "optimizer.lr=1e-3"],
    ),
    "full": (
        ["model=bert_base", "trainer=gpu", "task.max_steps=1000000", "optimizer.lr=1e-4", "data.batch_tokens=131072"],
        ["trainer=gpu", "trainer.max_epochs=2", "optimizer.lr=3e-5", "data.batch_tokens=12288"],
        ["trainer=gpu", "trainer.max_epochs=3", "optimizer.lr=2e-5", "data.batch_tokens=8192"],
    ),
}
SLICES = {  # of the small version: rows of train and validation
    "squad": ["data.max_train=4000", "data.max_valid=1000"],
    "mnli": ["data.max_train=7000", "data.max_valid=1000"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="small", choices=SIZES)
    parser.add_argument("--arms", nargs="+", default=["softmax", "dnas", "hnas"], help="attention=<arm>")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--text", nargs="+", help="text files, folders, globs; without: the built-in corpus")
    parser.add_argument("--squad", nargs=2, metavar=("TRAIN", "DEV"), help="SQuAD 1.1, official JSON")
    parser.add_argument("--mnli", nargs=2, metavar=("TRAIN", "VALID"), help="JSON lines: premise, hypothesis, label")
    parser.add_argument("--folder", type=Path, help="of the runs; default logs/mlm_table3_<size>")
    args = parser.parse_args()

    root = args.folder or ROOT / "logs" / f"mlm_table3_{args.size}"
    pretrain, squad, mnli = SIZES[args.size]
    texts = ",".join(str(Path(file).resolve()) for file in args.text or ())
    text = ["data=text", f"data.files=[{texts}]"] if texts else []
    tasks = {"squad": (args.squad, squad), "mnli": (args.mnli, mnli)}
    rows = []
    for arm in args.arms:
        found: dict[str, list[float]] = {"loss": [], "accuracy": [], "squad": [], "mnli": []}
        for seed in args.seeds:
            name = f"{arm}_{seed}"
            shared = [f"attention={arm}", f"seed={seed}"]
            folder = root / f"{name}_mlm"
            metrics = stage(folder, "task=mlm", *shared, *text, *pretrain)["validation"]["metrics"]
            found["loss"].append(metrics["loss"])
            found["accuracy"].append(metrics["accuracy"])
            for task, (files, overrides) in tasks.items():
                if files:
                    train, valid = (Path(file).resolve() for file in files)
                    data = [f"data.train={train}", f"data.validation={valid}", f"model.init={folder.resolve()}"]
                    data += SLICES[task] if args.size == "small" else []
                    summary = stage(root / f"{name}_{task}", f"task={task}", *shared, *data, *overrides)
                    found[task].append(summary["validation"]["metrics"]["f1" if task == "squad" else "accuracy"])
        rows.append([arm, *(spread(values) if values else "-" for values in found.values())])
    print(table(["", "MLM loss", "MLM accuracy", "SQuAD 1.1 F1", "MNLI accuracy"], rows))


if __name__ == "__main__":
    main()
