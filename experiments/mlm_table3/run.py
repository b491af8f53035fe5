"""Pretraining by masked language modelling, then SQuAD 1.1, SQuAD 2.0 and MNLI: Table 3 of the paper, as sweeps.

    python experiments/mlm_table3/run.py --squad11 <train> <dev> --squad20 <train> <dev> --mnli <train> <valid>
    python experiments/mlm_table3/run.py --init <BERT folder> --squad11 <train> <dev>    # fine-tuning alone
    python experiments/mlm_table3/run.py --size full --text <books> <wikipedia> --vocabulary <BERT's vocab.txt> ...

The first sweep pretrains, the others start from its runs: one sweep per normalizer and task. Repeat the command to
continue where it stopped. Overrides after `--` apply to all runs.
"""

import argparse
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from sweeps import ROOT, Run, beside_paper, report, several, sweep, values_of

PAPER = {  # F1 and EM of SQuAD 1.1, of SQuAD 2.0, accuracy of MNLI; LNAS is softmax
    "softmax": [90.5, 83.6, 80.3, 77.0, 84.3],
    "hnas": [90.9, 84.0, 80.5, 77.4, 84.7],
    "BERT base (Devlin et al. 2019)": [90.5, 83.3, 80.3, 77.3, 84.1],
}
PAPER_COLUMNS = ["1.1 F1", "1.1 EM", "2.0 F1", "2.0 EM", "MNLI"]
PRETRAINING = {  # size: overrides
    "small": ["task=mlm", "model=bert_tiny", "task.max_steps=1200", "optimizer.lr=3e-3", "data.batch_tokens=2048"],
    "full": ["experiment=mlm_paper"],
}
SMALL_SQUAD = [
    *("model.max_source=128", "task.max_query=32", "task.stride=64", "task.max_steps=250"),
    *("data.max_train=4000", "data.max_valid=1000"),
]
AFTER_SMALL_PRETRAINING = ["optimizer.lr=1e-3"]  # weights of trained models need the smaller default
FULL_SQUAD = ["trainer=gpu", "trainer.max_epochs=2", "optimizer.lr=3e-5", "data.batch_tokens=12288"]
TASKS = {  # task: its scores, and for each size its overrides
    "squad11": (["f1", "exact"], {"small": ["task=squad", *SMALL_SQUAD], "full": ["task=squad", *FULL_SQUAD]}),
    "squad20": (
        ["f1", "exact"],
        {
            "small": ["task=squad", "task.no_answer=true", *SMALL_SQUAD],
            "full": ["task=squad", "task.no_answer=true", *FULL_SQUAD],
        },
    ),
    "mnli": (
        ["accuracy"],
        {
            "small": [*("task=mnli", "task.max_steps=400", "data.max_train=7000", "data.max_valid=1000")],
            "full": ["task=mnli", "trainer=gpu", "trainer.max_epochs=3", "optimizer.lr=2e-5", "data.batch_tokens=8192"],
        },
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="small", choices=PRETRAINING)
    parser.add_argument("--arms", nargs="+", default=["softmax", "dnas", "hnas"], help="attention=<arm>")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--text", nargs="+", help="text files, folders, globs; without: the built-in corpus")
    parser.add_argument("--vocabulary", type=Path, help="BERT's vocab.txt; without: a vocabulary trained on the text")
    parser.add_argument("--init", type=Path, help="folder of a BERT model to start from, instead of pretraining")
    two = {"nargs": 2, "type": Path, "metavar": ("TRAIN", "VALID")}
    parser.add_argument("--squad11", **two, help="SQuAD 1.1, official JSON")
    parser.add_argument("--squad20", **two, help="SQuAD 2.0, official JSON")
    parser.add_argument("--mnli", **two, help="JSON lines: premise, hypothesis, label")
    parser.add_argument("--folder", type=Path, help="of the sweeps; default logs/mlm_table3_<size>")
    parser.add_argument("overrides", nargs="*", help="behind --: for every run, and keys of the sweep such as jobs=2")
    args = parser.parse_args()
    if args.init and (args.text or args.vocabulary):
        parser.error("--text and --vocabulary are for pretraining, which --init replaces")
    if args.size == "full" and not (args.text or args.init):
        parser.error("--size full needs --text or --init")

    root = args.folder or ROOT / "logs" / f"mlm_table3_{args.size}"
    seeds = f"seed={several(args.seeds)}"
    columns, ours = [], {arm: [] for arm in args.arms}
    if not args.init:
        text = [f"data.files=[{several(Path(file).resolve() for file in args.text)}]"] if args.text else []
        text += ["data=text"] if args.text and args.size == "small" else []
        text += [f"tokenizer.file={args.vocabulary.resolve()}"] if args.vocabulary else []
        shared = [*PRETRAINING[args.size], *text, f"attention={several(args.arms)}", seeds, *args.overrides]
        pretrained = sweep(root / "mlm", *shared)
        link(pretrained, root / "pretrained")
        columns += ["MLM loss", "MLM accuracy"]
        for arm in args.arms:
            ours[arm] += values_of(pretrained, ["loss", "accuracy"], attention=arm)
    folders = [] if args.init else [root / "mlm"]
    for task, (metrics, overrides) in TASKS.items():
        names = [f"{task} {name}" for name in metrics]
        columns += names
        if not (files := getattr(args, task)):
            print(f"no --{task}: this task is not run")
        for arm in args.arms:
            if not files:
                ours[arm] += [[] for _ in metrics]
                continue
            start = args.init.resolve() if args.init else f"{root.resolve()}/pretrained/{arm}_${{seed}}"
            data = [
                f"data.{split}={file.resolve()}" for split, file in zip(("train", "validation"), files, strict=True)
            ]
            data += AFTER_SMALL_PRETRAINING if args.size == "small" and not args.init else []
            settings = [*overrides[args.size], *data, f"attention={arm}", seeds, f"model.init={start}"]
            ours[arm] += values_of(sweep(root / f"{task}_{arm}", *settings, *args.overrides), metrics)
            folders.append(root / f"{task}_{arm}")
    print(f"\n{beside_paper(columns, ours, PAPER, PAPER_COLUMNS)}")
    report(*folders)


def link(runs: list[Run], folder: Path) -> None:
    """Links to the pretraining runs, named after normalizer and seed, so that a sweep over seeds can name them."""
    folder.mkdir(parents=True, exist_ok=True)
    for run in runs:
        path = folder / f"{run.settings['attention']}_{run.settings['seed']}"
        path.unlink(missing_ok=True)
        path.symlink_to(run.folder.resolve())


if __name__ == "__main__":
    main()
