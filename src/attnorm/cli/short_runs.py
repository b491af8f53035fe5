"""Short runs for figures that show the course of training, for when no runs are given."""

import subprocess
import sys
from pathlib import Path

from attnorm import progress
from attnorm.errors import UserError

VQA = (
    "task=vqa",
    "data.train_size=4000",
    "data.valid_size=200",
    "data.test_size=200",
    "task.max_steps=200",
    "callbacks.attention_stats.every_n_steps=5",
)
MLM = (
    "task=mlm",
    "data.train_size=600",
    "data.valid_size=50",
    "data.test_size=10",
    "data.batch_tokens=512",
    "tokenizer.vocab_size=1000",
    "model.encoder_layers=12",
    "model.d_model=64",
    "model.ffn_dim=128",
    "model.max_source=64",
    "task.max_steps=200",
    "callbacks.attention_stats.every_n_steps=0",
)
RUNS = {  # the overrides of each run
    "vqa_softmax": (*VQA, "attention=softmax"),
    "vqa_dnas": (*VQA, "attention=dnas"),
    "vqa_hnas": (*VQA, "attention=hnas"),
    "mlm_hnas": (*MLM, "attention=hnas"),
}
ALWAYS = ("task.validations=1", "callbacks.progress.bar=false", "logger=csv")


def short_run(name: str, folder: Path) -> Path:
    """Trains the run into <folder>/<name>, unless it is there already, in a process of its own. Returns its folder.

    It takes about half a minute on one CPU core. Raises UserError with the last lines of its output if it fails.
    """
    run = folder / name
    if (run / "checkpoints").is_dir() and (run / "summary.json").is_file():
        return run
    folder.mkdir(parents=True, exist_ok=True)
    # the folder of an absolute path, because a comma or an equals sign in it would have to be escaped
    overrides = (*RUNS[name], *ALWAYS, f"hydra.run.dir={name}", "paths.cache_dir=cache")
    progress.console.print(f"no runs are given: training {run} ({' '.join(RUNS[name])})")
    command = [sys.executable, "-m", "attnorm", "train", *overrides]
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise UserError("\n".join([*done.stdout.splitlines()[-12:], f"{run}: training failed"]))
    return run
