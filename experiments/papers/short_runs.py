"""Short runs for figures that show the course of training, for when no runs are given."""

import os
import subprocess
from pathlib import Path
from subprocess import PIPE, STDOUT
from tempfile import TemporaryDirectory

import attnorm
from attnorm import progress
from attnorm.data.readers.text import read_json
from attnorm.errors import UserError
from attnorm.sweeps.process import TRAIN

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
ALWAYS = ("task.validations=1", "callbacks.progress.bar=false", "paths.cache_dir=../cache")


def short_run(name: str, folder: Path) -> Path:
    """Trains the run into <folder>/<name>, unless it is there already, in a process of its own. Returns its folder.

    It takes 15 to 30 seconds on one CPU core. Raises UserError with the last lines of its output if it fails.
    """
    run = folder / name
    if run.exists():
        if (run / "summary.json").is_file() and read_json(run / "summary.json").get("state") == "finished":
            return run
        raise UserError(f"{run}: not a finished run; remove it, or choose another folder with out=<folder>")
    progress.console.print(f"no runs are given: training {run} ({' '.join(RUNS[name])})")
    folder.mkdir(parents=True, exist_ok=True)
    package = str(Path(attnorm.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))}
    with TemporaryDirectory(dir=folder, prefix=f"{name}-") as unfinished:
        # run there, because in an override of a whole path some characters would have to be escaped
        command = [*TRAIN, *RUNS[name], *ALWAYS, f"hydra.run.dir={name}"]
        done = subprocess.run(
            command, cwd=unfinished, env=environment, stdout=PIPE, stderr=STDOUT, text=True, check=False
        )
        if done.returncode:
            raise UserError("\n".join([*done.stdout.splitlines()[-12:], f"{name}: training failed"]))
        (Path(unfinished) / name).rename(run)
    return run
