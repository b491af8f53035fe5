"""Run folders that no training has written, as many as a test needs: files of the right form with made-up content."""

import atexit
import csv
import functools
import json
import math
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np

from attnorm.files import write_json
from attnorm.run.folder import RUN, SUMMARY
from attnorm.run.record import FORMAT
from attnorm.run.run import Run
from attnorm.tasks.results import Predictions

LAYERS = ("encoder/0", "encoder/1", "decoder/0", "decoder/0/cross", "decoder/1", "decoder/1/cross")
PEOPLE = ("minister", "union leader", "central bank", "opposition party", "coast guard", "oil company", "court")
DEEDS = ("rejects", "announces", "postpones", "signs", "defends", "cancels", "wins")
THINGS = ("budget cuts", "new trade deal", "rescue operation", "election date", "rate increase", "ceasefire")
PLACES = ("in maduva", "in bulgovia", "after talks", "before summit", "for third time", "amid protests")
CONFIG: dict[str, Any] = {
    "data": {"_target_": "attnorm.data.sources.newswire.Newswire", "batch_tokens": 4000, "train_size": 20000},
    "tokenizer": {"_target_": "attnorm.data.tokenizers.sentencepiece.SentencePiece", "vocab_size": 4000},
    "model": {"_target_": "attnorm.models.seq2seq.Seq2Seq", "d_model": 128, "n_heads": 4, "dropout": 0.1},
    "attention": {"encoder": "softmax", "decoder": "softmax", "cross": "softmax", "options": {}},
    "optimizer": {"_target_": "torch.optim.AdamW", "lr": 0.001, "hybrid_lr_factor": 10.0},
    "scheduler": {"_target_": "attnorm.optim.warmup_decay", "warmup": 0.1},
    "trainer": {"accelerator": "cpu", "precision": "32-true", "max_steps": None},
    "task": {"_target_": "attnorm.tasks.headlines.HeadlineTask", "name": "gigaword", "max_steps": 3000},
    "decoding": {"beam_size": 4, "max_length": 30},
    "paths": {"log_dir": "logs", "cache_dir": ".cache"},
    "logger": {},
    "callbacks": {},
    "run": {"keep_best": 1},
}


def make_run(folder: Path, attention: str = "softmax", seed: int = 1, **options: Any) -> Path:
    """Writes a run folder as `write_run` does: a copy, if one was made with the same arguments before."""
    made = place_of_made() / f"{hash_of(repr((attention, seed, sorted(options.items()))))}"
    if not made.exists():
        write_run(made, attention, seed, **options)
    return Path(shutil.copytree(made, folder, copy_function=shutil.copyfile))


@functools.cache
def place_of_made() -> Path:
    """A folder that all tests of a session share, removed at its end."""
    folder = Path(tempfile.mkdtemp(prefix="attnorm-made-up-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def write_run(
    folder: Path,
    attention: str = "softmax",
    seed: int = 1,
    *,
    gain: float = 0.0,
    examples: int = 200,
    steps: int = 600,
    task: str = "gigaword",
    state: str | None = "finished",
    why: str | None = None,
    settings: Mapping[str, Any] | None = None,
    outputs: Iterable[str] | None = None,
    summary: Mapping[str, Any] | None = None,
    measures: bool = False,
    lead: float | None = None,
    record: Mapping[str, Any] | None = None,
) -> Path:
    """Writes a run folder.

    gain: how many points of ROUGE it is better than a run with gain 0. state: as in summary.json; None leaves the
    folder of a run that was killed. settings: changes to the configuration by flat key. outputs: the first texts that
    the model wrote. summary, record: further entries of summary.json and run.json. measures: whether
    `callbacks=measures` was set.
    lead: ROUGE-L of the simple baseline lead-8.
    """
    chance = np.random.default_rng(hash_of(f"{attention} {seed} {task} {gain}"))
    folder.mkdir(parents=True)
    config = changed(
        {**CONFIG, "seed": seed, "tags": [], "ckpt_path": None},
        {"task.name": task, "task.max_steps": steps, **options_of(attention), **(settings or {})},
    )
    versions = {"torch": "2.13.0", "attnorm": "0.1.0"}
    known = {"format": FORMAT, "settings": config, "attention": attention, "versions": versions, "gpus": []}
    write_json(folder / RUN, {**known, "commit": {"commit": "1c9edda192"}, **(record or {})})
    reached = steps if state == "finished" else 2 * steps // 3
    curve = write_metrics(folder / "metrics.csv", reached, steps, gain, chance)
    write_attention(folder / "attention.csv", attention, reached, chance)
    if measures:
        write_measures(folder, attention, reached)
    if attention == "hnas":
        write_weights(folder / "hybrid_weights.csv", reached, chance)
    progress = {"step": reached, "updates": steps, "monitor": "val/loss", "value": curve, "seconds_left": 95.0}
    content: dict[str, Any] = {"task": task, "attention": attention, "seed": seed, "progress": progress}
    if state is None:
        write_json(folder / SUMMARY, {**content, "state": "running"})
        return folder
    content |= {"state": state, "steps": reached}
    content |= {"monitor": "val/loss", "best_value": curve, "primary": "rougeL", "parameters": 1_442_208}
    if state == "finished":
        predictions = made_up_predictions(examples, gain, seed, attention, outputs)
        predictions.write(Run(folder).predictions_file())
        means = {name: float(np.mean(values)) for name, values in predictions.scores.items()}
        content["validation"] = {"split": "validation", "metrics": {**means, "loss": curve}}
        if lead is not None:
            content["validation"]["baselines"] = {"lead-8": {"rouge1": lead + 1, "rougeL": lead}}
    slower = {"softmax": 1.0, "dnas": 0.61, "hnas": 0.58}.get(attention, 0.8)
    content |= {"tokens_per_second": round(8325 * slower + chance.normal(0, 40), 1), "wall_seconds": 317 / slower}
    content |= {"seconds_per_update": 0.1 / slower}
    content |= {"peak_memory": {"process_mb": 1336 / slower**0.3}, **({"why": why} if why else {}), **(summary or {})}
    write_json(folder / SUMMARY, content)
    return folder


def write_state(folder: Path, content: Mapping[str, Any]) -> None:
    """Writes the state that a sweep has recorded last."""
    (folder / "jobs.jsonl").write_text(json.dumps({"event": "state", "time": 0, **content}) + "\n")


def make_runs(place: Path, arms: Mapping[str, float], seeds: Iterable[int] = (1, 2, 3), **settings: Any) -> list[Path]:
    """One run per arm and seed. arms: the gain of each attention. An arm "hnas+lr=0.01" has other settings as well."""
    folders = []
    for name, gain in arms.items():
        attention, _, key = name.partition("+")
        more = dict([key.split("=")]) if key else {}
        typed = {f"optimizer.{name}": float(value) for name, value in more.items()}
        for seed in seeds:
            folder = place / f"{name}_{seed}"
            folders.append(make_run(folder, attention, seed, gain=gain, settings=typed, **settings))
    return folders


def changed(config: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with some flat keys changed or added."""
    found: dict[str, Any] = deepcopy(dict(config))
    for key, value in settings.items():
        *groups, name = key.split(".")
        table = found
        for group in groups:
            table = table.setdefault(group, {})
        table[name] = value
    return found


def options_of(attention: str) -> dict[str, Any]:
    """The settings of an attention."""
    options = {"attention.options.hnas.start": 0.5} if attention == "hnas" else {}
    return {"attention.encoder": attention, **options}


def hash_of(text: str) -> int:
    """A number that is always the same for a text."""
    return zlib.crc32(text.encode())


def write_metrics(path: Path, reached: int, steps: int, gain: float, chance: np.random.Generator) -> float:
    """metrics.csv of a run of so many updates; returns the last validation loss."""
    columns = ["step", "train/loss", "train/gradient_norm", "val/loss", "val/rouge1", "val/rougeL"]
    loss = 0.0
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        for step in range(15, reached + 1, 15):
            at = 4.2 + 4.1 * math.exp(-step / 420) - 0.05 * gain * step / steps
            row: dict[str, Any] = {"step": step, "train/loss": at + chance.normal(0, 0.08)}
            row |= {"train/gradient_norm": 1.1 + math.exp(-step / 300) + chance.gamma(2, 0.08)}
            writer.writerow(row)
            if step % 300 == 0:
                loss = at + 0.25 + chance.normal(0, 0.01)
                score = 24 * (1 - math.exp(-step / 900)) + gain * step / steps + chance.normal(0, 0.3)
                writer.writerow({"step": step, "val/loss": loss, "val/rouge1": score + 1, "val/rougeL": score})
    return loss


def write_attention(path: Path, attention: str, reached: int, chance: np.random.Generator) -> None:
    """attention.csv with four heads per layer."""
    steps, rows = range(0, reached + 1, 50), ["step,layer,head,entropy,column_mass,column_mass_min"]
    draws = iter(chance.standard_normal(2 * 4 * len(LAYERS) * len(steps)).tolist())
    for step in steps:
        for depth, layer in enumerate(LAYERS):
            doubly = attention != "softmax" and layer.startswith("encoder")
            for head in range(4):
                entropy = 2.5 - (0.3 if doubly else 1.1) * (1 - math.exp(-step / 700)) - 0.05 * depth
                mass = 0.55 if doubly else 0.3 * math.exp(-step / 500) + 0.004
                entropy, mass = entropy + 0.06 * next(draws), mass * math.exp(0.2 * next(draws))
                rows.append(f"{step},{layer},{head},{entropy:.8g},{mass:.8g},{mass / 3:.8g}")
    path.write_text("\n".join(rows) + "\n")


def write_measures(folder: Path, attention: str, reached: int) -> None:
    """head_measures.csv and state_measures.csv at two steps: two heads per layer, no likelihoods in the decoder."""
    excess = 0 if attention == "softmax" else 0.25
    heads, states = ["step,layer,head,entropy,objective,objective_rows,objective_both,key_likelihood"], []
    for step in (0, reached):
        for layer in LAYERS:
            likelihood = "-3.5" if layer.startswith("encoder") else ""
            heads += [
                f"{step},{layer},{head},{(0.5 if step else 0.9) + 0.1 * head},{excess - 2},-2,-1.5,{likelihood}"
                for head in (0, 1)
            ]
            states += [f"{step},{layer},{place},{size},3" for place, size in (("output", 0.25), ("residual", 0.75))]
    (folder / "head_measures.csv").write_text("\n".join(heads) + "\n")
    (folder / "state_measures.csv").write_text("\n".join(["step,layer,place,cosine,kurtosis", *states]) + "\n")


def write_weights(path: Path, reached: int, chance: np.random.Generator) -> None:
    """hybrid_weights.csv of the encoder."""
    rows = ["step,layer,head,value,lr_factor"]
    for step in range(0, reached + 1, 10):
        for depth in range(2):
            value = 0.5 + (0.34 - 0.2 * depth) * (1 - math.exp(-step / 800)) + chance.normal(0, 0.004)
            rows.append(f"{step},encoder/{depth},,{value:.8g},10")
    path.write_text("\n".join(rows) + "\n")


def made_up_predictions(
    examples: int, gain: float, seed: int, attention: str, outputs: Iterable[str] | None
) -> Predictions:
    """Headlines whose scores follow the two-way random-effects model of the comparison."""
    shared = np.random.default_rng(0)
    of_arm = np.random.default_rng(hash_of(attention))
    own = np.random.default_rng(hash_of(f"{attention} {seed}"))
    sentences = [headline(shared) for _ in range(examples)]
    written = [varied(text, own) for text in sentences]
    for place, text in enumerate(outputs or ()):
        written[place] = text
    base = shared.normal(26, 15, examples) + of_arm.normal(0, 3, examples)
    scores = np.clip(base + gain + own.normal(0, 0.25) + own.normal(0, 6, examples), 0, 100)
    tokens = shared.integers(6, 12, examples)
    loss = np.clip(4.5 - 0.05 * gain + shared.normal(0, 0.8, examples) + own.normal(0, 0.2, examples), 0.1, None)
    return Predictions(
        ids=list(range(examples)),
        inputs=[
            f"the {text} , officials said on friday , according to a report by state radio ." for text in sentences
        ],
        references=sentences,
        outputs=written,
        scores={"rouge1": (scores + 1).tolist(), "rougeL": scores.tolist()},
        loss_sum=(loss * tokens).tolist(),
        n_tokens=tokens.tolist(),
        input_hashes=[f"{number:016x}" for number in range(examples)],
        checkpoint={"update": 600, "sha256": f"{hash_of(f'{attention} {seed}'):064x}"},
        selecting={str(number) for number in range(0, examples, 2)},
    )


def headline(chance: np.random.Generator) -> str:
    """A made-up headline."""
    return " ".join(one_of(words, chance) for words in (PEOPLE, DEEDS, THINGS, PLACES))


def one_of(words: Sequence[str], chance: np.random.Generator) -> str:
    """As `chance.choice`, which takes ten times as long for texts."""
    return words[chance.integers(len(words))]


def varied(text: str, chance: np.random.Generator) -> str:
    """A headline with some of its words replaced or left out."""
    others = headline(chance).split()
    words = [word if chance.random() < 0.72 else one_of(others, chance) for word in text.split()]
    return " ".join(words[: max(3, len(words) - int(chance.integers(0, 3)))])


def without_charts(monkeypatch: Any) -> None:
    """Reports have no charts from now on: drawing them takes most of the time."""
    from attnorm.analysis.report import task_page
    from attnorm.analysis.report.drawings import Drawings

    monkeypatch.setattr(task_page, "drawings_of", lambda *_: Drawings([], [], [], [], [], []))


def values_of(chart: Any) -> list[dict[str, Any]]:
    """The rows of the table behind a chart, by the names of their columns."""
    names = [column.name for column in chart.values.columns]
    cells = [[cell.text if cell.value is None else cell.value for cell in row] for row in chart.values.rows]
    return [dict(zip(names, row, strict=True)) for row in cells]
