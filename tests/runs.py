"""Tiny runs for the tests: a configuration that trains in about a second, and one folder of tokenized data for all."""

import atexit
import functools
import hashlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pandas
import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf, flag_override

from attnorm.cli import main
from attnorm.config.compose import compose_files, plain_settings, run_folder
from attnorm.config.compose import composed as compose_settings
from attnorm.config.read import read_settings
from attnorm.errors import ConfigError, Interrupted
from attnorm.run.csv_files import read_csv
from attnorm.settings import Settings
from attnorm.tasks.results import Results
from attnorm.training import console
from attnorm.training.callbacks import throughput as callbacks
from attnorm.training.callbacks.throughput import TIMING_COLUMNS
from attnorm.training.train import train

ROOT = Path(__file__).parents[1]
CONF = ROOT / "conf"
SENTENCEPIECE = "attnorm.data.tokenizers.sentencepiece.SentencePiece"  # the path of its class


def of(group: str, settings: str) -> tuple[str, ...]:
    """The overrides of one group: `of("model", "d_model=16 n_heads=2")` sets model.d_model and model.n_heads."""
    return tuple(f"{group}.{setting}" for setting in settings.split())


SHORT = (  # of every tiny run
    *of("task", "max_steps=4 validations=2"),
    *of("callbacks", "progress.samples=2 learned_scalars.every_n_steps=1 attention_stats.every_n_steps=2"),
    *of("trainer", "accelerator=cpu log_every_n_steps=1"),
    "optimizer.lr=1.0e-2",
)
SMALL = "d_model=16 n_heads=2 ffn_dim=32"
SIZES = (
    *of("model", f"{SMALL} encoder_layers=1 decoder_layers=1 max_source=64 max_target=32"),
    *of("model", "dropout=0.1 positions=learned"),
)
DATA = of("data", "train_size=200 valid_size=20 test_size=12 batch_tokens=1000")
TINY = (
    *SIZES,
    *DATA,
    *of("tokenizer", "model_type=bpe vocab_size=300"),
    "task.rouge_pairs=6",
    *of("decoding", "beam_size=2 max_length=6"),
    *SHORT,
)
ENCODER = (  # of the tasks that train a BERT-shaped encoder
    *of("model", f"{SMALL} encoder_layers=1 max_source=64"),
    "tokenizer.vocab_size=300",
    "data.batch_tokens=1000",
    *SHORT,
)
VISUAL = (  # of the task that asks questions about images
    "task=vqa",
    *of("model", f"{SMALL} word_width=12 hidden=16 layers=1 max_question=16"),
    *of("tokenizer", "model_type=bpe vocab_size=120"),
    "data.batch_tokens=300",
    "task.min_count=2",
    *SHORT,
)
IMAGES = (  # of the task that classifies images
    "task=image_classification",
    *of("model", "patch=2 d_model=16 ffn_dim=16 n_heads=2"),
    *of("data", "max_train=96 max_valid=40 batch_tokens=256"),
    *SHORT,
)
TEXTS = (  # of the task that classifies documents
    "task=document_classification",
    "data=base",
    "data._target_=attnorm.experiments.hierarchical.passages.Passages",
    *of("model", "d_model=16 word_width=16 n_heads=2 max_tokens=64 dropout=0"),
    "tokenizer.vocab_size=300",
    *of("data", "words=20 parts=8 validation=[3,6] test=[1] gap=5 batch_tokens=300"),
    *SHORT,
)
TRANSLATION = ("task=translation", *DATA, *(it for it in TINY[len(SIZES) + len(DATA) :] if "rouge" not in it))
CAPTIONING = (  # of the task that writes captions of images
    "task=captioning",
    *of("model", "channels=[4,6,8] d_model=16"),
    *of("tokenizer", "model_type=bpe vocab_size=120"),
    *of("data", "side=32 batch_tokens=600"),
    "task.scored_images=6",
    *of("decoding", "beam_size=2 max_length=6"),
    *SHORT,
)
LANGUAGE = (  # of the task that models texts: the windows of its documents have 128 tokens
    "task=causal_lm",
    *of("model", f"{SMALL} decoder_layers=1 max_target=16"),
    "tokenizer.vocab_size=300",
    *of("data", "train_size=6 valid_size=4 test_size=3 words=600 batch_tokens=600"),
    *SHORT,
)
SCENES = of("data", "train_size=48 valid_size=24 test_size=12")
SQUAD = of("task", "max_query=16 stride=16 max_answer=4")


FILES = {  # what a run of four updates with two validations leaves behind, whatever its task
    *("config.yaml", "run.json", "run.lock", "run.log", "summary.json"),
    *("metrics.csv", "hybrid_weights.csv", "attention.csv", "predictions/validation.parquet"),
    *("checkpoints/best.ckpt", "checkpoints/last.ckpt", "checkpoints/previous.ckpt"),
    *("samples/step_000002.txt", "samples/step_000004.txt"),
}


@functools.cache
def scratch(name: str) -> Path:
    """A folder that all tests of a session share, removed at its end."""
    folder = Path(tempfile.mkdtemp(prefix=f"attnorm-{name}-"))
    owner = os.getpid()
    atexit.register(lambda: shutil.rmtree(folder, ignore_errors=True) if os.getpid() == owner else None)
    return folder


TINY_TASKS: dict[str, Callable[[], tuple[str, ...]]] = {  # what makes a run of a task tiny
    "gigaword": lambda: TINY,
    "mlm": lambda: ("task=mlm", *ENCODER, "data.train_size=40", "data.valid_size=8", "data.test_size=5"),
    "squad": lambda: ("task=squad", *ENCODER, *SQUAD, *squad_files()),
    "classify": lambda: ("task=classify", *ENCODER, "data.batch_tokens=300", *labelled_files()),
    "translation": lambda: (*TRANSLATION, *SIZES, "task.scored_pairs=6"),
    "translation_lstm": lambda: (*TRANSLATION, "model=lstm_seq2seq", "model.d_model=16", "task.scored_pairs=6"),
    "vqa": lambda: (*VISUAL, *SCENES),
    "image_classification": lambda: IMAGES,
    "document_classification": lambda: (*TEXTS, f"data.folder={text_folder()}"),
    "causal_lm": lambda: LANGUAGE,
    "captioning": lambda: (*CAPTIONING, *SCENES),
    "vqa_v2": lambda: (*VISUAL, "data=vqa_v2", *vqa_files()),
}


def tiny_overrides(task: str = "gigaword") -> tuple[str, ...]:
    """What makes a run tiny, typed as on the command line; tokenized data goes to the session's own folder."""
    return (*TINY_TASKS[task](), f"paths.cache_dir={scratch('cache')}")


# data of a few made-up sentences

ANIMALS, CITIES = ("cat", "dog", "fox", "owl", "hen"), ("Paris", "Rome", "Oslo", "Lima")
COLOURS, MEALS = ("red", "blue", "old", "tiny"), ("fish", "bread", "corn")


def sentences(first: int, count: int) -> list[tuple[str, str, str, str]]:
    """(colour, animal, city, meal) of so many sentences, no two of them equal."""
    every = itertools.product(COLOURS, ANIMALS, CITIES, MEALS)
    return sorted(every, key=lambda words: hash_of(" ".join(words)))[first : first + count]


def hash_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def squad_records(first: int, count: int, impossible: int = 0) -> list[dict]:
    """Official paragraphs: each fourth context is several windows long, with its answer behind the first; the first
    `impossible` questions have no answer."""
    records = []
    for number, (colour, animal, city, meal) in enumerate(sentences(first, count), start=first):
        context = f"The {colour} {animal} of {city} likes {meal}."
        if number % 4 == 0:
            context = " ".join(["Many others have never been seen here at all, so they say."] * 5) + f" {context}"
        question, answer = (f"Where is the {animal} from?", city) if number % 2 else ("What does it like?", meal)
        none = number - first < impossible
        answers = [{"text": answer, "answer_start": context.rindex(answer)}] * 2
        qa = {"id": f"q{number}", "question": question, "answers": [] if none else answers}
        qa |= {"is_impossible": none} if impossible else {}
        records.append({"context": context, "qas": [qa]})
    return records


def write_squad(path: Path, records: list[dict]) -> Path:
    """An official file of these paragraphs."""
    path.write_text(json.dumps({"version": "1.1", "data": [{"title": "made up", "paragraphs": records}]}))
    return path


@functools.cache
def squad_files(impossible: int = 0) -> tuple[str, ...]:
    """The keys of a train and a validation file, made once."""
    folder = scratch(f"squad-{impossible}")
    train = write_squad(folder / "train.json", squad_records(0, 40, 2 * impossible))
    validation = write_squad(folder / "dev.json", squad_records(40, 12, impossible))
    return f"data.train={train}", f"data.validation={validation}"


@functools.cache
def labelled_files() -> tuple[str, ...]:
    """The keys of a train, a validation and a test file, made once: "yes" wherever no animal miaows or barks."""
    folder = scratch("labelled")
    for name, first, count in (("train", 0, 60), ("validation", 60, 21), ("test", 81, 6)):
        lines = [
            f"The {colour} {animal} of {city} likes {meal}.,{'no' if animal in ('cat', 'dog') else 'yes'}"
            for colour, animal, city, meal in sentences(first, count)
        ]
        (folder / f"{name}.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    paths = (f"data.{name}={folder}/{name}.csv" for name in ("train", "validation", "test"))
    return (*paths, "data.labels=[no,yes]")


@functools.cache
def text_folder() -> Path:
    """A folder of two texts, made once: one is about cats and dogs, the other about all other animals."""
    folder = scratch("texts")
    every = sentences(0, 240)
    for name, about in (("pets", ("cat", "dog")), ("wild", ("fox", "owl", "hen"))):
        lines = [f"The {colour} {it} of {city} likes {meal}." for colour, it, city, meal in every if it in about]
        (folder / f"{name}.txt").write_text("\n\n".join(lines * 2) + "\n")
    return folder


def vqa_records(first: int, count: int) -> tuple[list[dict], list[dict]]:
    """Official questions and annotations, two on an image: on the colour the ten annotators differ, and one of them is
    always wrong; on whether it is a cat they agree."""
    asked, annotated = [], []
    for number, (colour, animal, city, _) in enumerate(sentences(first, count), start=first):
        given = [colour] * 3 + [f"The {colour}."] * 4 + [colour.title()] * 2 + ["green"]
        about = {
            "other": (f"What colour is the {animal} of {city}?", given),
            "yes/no": (f"Is the {animal} of {city} a cat?", ["yes" if animal == "cat" else "no"] * 10),
        }
        for place, (kind, (question, answers)) in enumerate(about.items()):
            ids = {"question_id": 2 * number + place, "image_id": number}
            asked.append({**ids, "question": question})
            answers = [{"answer": answer} for answer in answers]
            annotated.append({**ids, "answers": answers, "answer_type": kind, "question_type": question.split()[0]})
    return asked, annotated


def write_vqa(folder: Path, split: str, asked: list[dict], annotated: list[dict]) -> tuple[str, str]:
    """The keys of the split's two official files, which are made in `folder`."""
    folder.mkdir(exist_ok=True)
    for part, records in (("questions", asked), ("annotations", annotated)):
        (folder / f"{split}_{part}.json").write_text(json.dumps({part: records}))
    return tuple(f"data.{split}_{part}={folder}/{split}_{part}.json" for part in ("questions", "annotations"))


@functools.cache
def vqa_files() -> tuple[str, ...]:
    """The keys of train, validation and test files, made once."""
    places = {"train": (0, 20), "validation": (20, 8), "test": (28, 3)}
    keys = (write_vqa(scratch("vqa"), split, *vqa_records(*place)) for split, place in places.items())
    return tuple(key for pair in keys for key in pair)


files_once = functools.cache(compose_files)  # takes a fifth of a second


def composed(*overrides: str, of_files: Callable = files_once) -> DictConfig:
    """conf/train.yaml with these overrides, as the command line would compose it."""
    cfg = compose_settings([*overrides], of_files=of_files)
    with flag_override(cfg, ["struct", "readonly"], False):
        del cfg["hydra"]
    return cfg


def folder_of(*overrides: str) -> str:
    """The folder of a new run with these overrides."""
    cfg = compose_settings([*overrides], of_files=files_once)
    return os.path.relpath(run_folder(cfg, checked(cfg).label))


def checked(cfg: DictConfig, overrides: Iterable[str] = ()) -> Settings:
    """The checked settings of a composed configuration. overrides: those that were typed."""
    return read_settings(plain_settings(cfg), [*overrides])


def plain(*overrides: str) -> dict:
    """The composed configuration as plain values, unchecked."""
    return OmegaConf.to_container(composed(*overrides), resolve=True)


def group(name: str, file: str) -> dict:
    """The settings of conf/<name>/<file>.yaml, composed without all other groups: a third of the time of `plain`."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return OmegaConf.to_container(compose(f"{name}/{file}"))[name]


def problems(settings: Mapping, *, overrides: Iterable[str] = (), **known: Mapping) -> list[str]:
    """Every problem of plain settings; empty if they can be trained. known: further arguments of `resolve`."""
    try:
        read_settings(dict(settings), list(overrides), **known)
    except ConfigError as error:
        return error.problems
    return []


def tiny(*overrides: str, task: str = "gigaword") -> Settings:
    """A checked configuration of a very small run; `overrides` come last."""
    cfg = composed(*tiny_overrides(task), *overrides)
    return checked(cfg, overrides=[it.lstrip("+") for it in overrides])


def tiny_language(folder: Path, *overrides: str) -> Settings:
    """A checked configuration of a very small language model on other data and with another tokenizer than its own,
    which the overrides choose. Its cache is in `folder`."""
    sizes = [it for it in LANGUAGE if not it.startswith(("data.", "tokenizer."))]
    cache = f"paths.cache_dir={folder / 'cache'}"
    return checked(composed(*sizes, "data.batch_tokens=600", cache, *overrides), overrides)


def tiny_run(folder: Path, *overrides: str, task: str = "gigaword") -> dict:
    """Trains `tiny(*overrides)` into `folder`; returns its summary."""
    train(tiny(*overrides, task=task), folder)
    return summary_of(folder)


def finished_run(task: str = "gigaword") -> Path:
    """A finished run, made once, with hnas if a site of the model can have it. It is to be read only; `copied_run` is
    for tests that write."""
    return uninterrupted(f"attention={HYBRIDS.get(task, 'hnas')}", task=task)


HYBRIDS = {  # where all sites are autoregressive
    "translation_lstm": "softmax",
    "captioning": "hnas_prefix",
    "causal_lm": "hnas_prefix",
}


def uninterrupted(*overrides: str, task: str = "gigaword") -> Path:
    """A run of these overrides, made once. It is to be read only."""
    return _uninterrupted(task, *overrides)


@functools.cache
def _uninterrupted(*key: str) -> Path:
    folder = scratch("run") / f"{_uninterrupted.cache_info().currsize}" / key[0]
    tiny_run(folder, *key[1:], task=key[0])
    return folder


def copied_run(folder: Path, task: str = "gigaword") -> Path:
    """A copy of `finished_run` in `folder`."""
    return Path(shutil.copytree(finished_run(task), folder / "run"))


def record_of(run: Path) -> dict:
    """The content of the run.json of a run."""
    return json.loads((run / "run.json").read_text())


def write_settings(folder: Path, settings: Mapping) -> None:
    """Writes these settings into the run.json of a folder, whose other entries stay."""
    others = record_of(folder) if (folder / "run.json").exists() else {"format": 1}
    (folder / "run.json").write_text(json.dumps({**others, "settings": settings}))


def edit(run: Path, key: str, value: object) -> None:
    """Sets a key, such as "model.d_model", in the recorded settings of a run."""
    record = record_of(run)
    *groups, name = key.split(".")
    group = record["settings"]
    for part in groups:
        group = group[part]
    group[name] = value
    (run / "run.json").write_text(json.dumps(record))


def load(run: Path, checkpoint: str = "last") -> dict:
    """A run's checkpoint."""
    return torch.load(run / "checkpoints" / f"{checkpoint}.ckpt", map_location="cpu", weights_only=True)


def parameters(run: Path, checkpoint: str = "last") -> dict[str, torch.Tensor]:
    """The parameters in a run's checkpoint."""
    return load(run, checkpoint)["state_dict"]


def unequal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> list[str]:
    """Names of the parameters that differ in a bit, or that only one side has."""
    names = first.keys() | second.keys()
    return sorted(n for n in names if n not in first or n not in second or not torch.equal(first[n], second[n]))


def stopped(monkeypatch, folder: Path, step: int | Callable, *overrides: str, task: str = "gigaword") -> Path:
    """A run that got a SIGTERM at the end of this update, or after the first batch where step(trainer, index) holds."""

    def look(self, trainer, module, outputs, batch, index):
        if step(trainer, index) if callable(step) else trainer.global_step == step:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        before(patch, callbacks.Throughput, "on_train_batch_end", look)
        tiny_run(folder, *overrides, task=task)
    return folder


def different_ends(first: Path, second: Path) -> list[str]:
    """What two runs end with that is not bit-equal: parameters, last and best, and states of the optimizer."""
    ends, bests = ([load(run, name) for run in (first, second)] for name in ("last", "best"))
    names = [f"best {name}" for name in unequal(*(best["state_dict"] for best in bests))]
    names += unequal(*(end["state_dict"] for end in ends))
    groups, states = ([end["optimizer_states"][0][part] for end in ends] for part in ("param_groups", "state"))
    names += ["param_groups"] * (groups[0] != groups[1])
    moments = [{f"{key} {number}": v for number, s in state.items() for key, v in s.items()} for state in states]
    steps = [[content["global_step"] for content in pair] for pair in (ends, bests)]
    return names + unequal(*moments) + [f"steps {pair}" for pair in steps if pair[0] != pair[1]]


def same_run(first: Path, second: Path) -> bool:
    """Whether two runs end bit-equal, and have the same curves without a gap or a repeated row."""

    def curves(run: Path) -> list:
        tables = [sorted(map(str, read_csv(run / name))) for name in ("hybrid_weights.csv", "attention.csv")]
        return [metric_rows(run), *tables]

    return different_ends(first, second) == [] and curves(first) == curves(second)


def selecting(run: Path) -> pandas.DataFrame:
    """The rows of the final predictions on which the best checkpoint was selected."""
    rows = pandas.read_parquet(run / "predictions/validation.parquet")
    return rows[rows["selecting"]]


def summary_of(run: Path) -> dict:
    return json.loads((run / "summary.json").read_text())


def files_of(run: Path) -> set[str]:
    return {str(path.relative_to(run)) for path in run.rglob("*") if path.is_file()}


def contents(folder: Path) -> dict[str, str]:
    """The SHA-256 of each file in a folder, and what else lies there: folders, links and pipes."""

    def content(path: Path) -> str:
        if path.is_symlink():
            return os.readlink(path)
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else str(path.is_dir())

    return {str(path.relative_to(folder)): content(path) for path in sorted(folder.rglob("*"))}


def call(monkeypatch, door: str, *arguments: str) -> int:
    """The exit code of `python <door>.py <arguments>`, run in this process."""
    monkeypatch.setattr(sys, "argv", [f"{door}.py", *arguments])
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    GlobalHydra.instance().clear()
    try:
        return main.run(door, list(arguments))
    finally:
        GlobalHydra.instance().clear()


def scored_file(monkeypatch, *typed: str) -> Results:
    """The scores that `eval.py metric=... <typed>` shows."""
    shown = []
    with monkeypatch.context() as patch:
        patch.setattr(console, "show_scores", lambda *arguments: shown.append(arguments))
        assert call(patch, "eval", *typed) == 0
    [(scores, label)] = shown
    assert f"metric={label}" in typed
    return scores


def before(monkeypatch, owner: object, name: str, action: Callable) -> None:
    """Calls `action(*arguments)` before each call of the method or function `owner.name`."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapper(*arguments, **options):
        action(*arguments, **options)
        return original(*arguments, **options)

    monkeypatch.setattr(owner, name, wrapper)


def command(*arguments: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess:
    """Runs `python <arguments>` in the folder `cwd`, on one thread and without anyone's keys or settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB", "HYDRA", "ATTNORM"))}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**kept, "OMP_NUM_THREADS": "1", **(env or {})},
        capture_output=True,
        text=True,
        timeout=600,  # on a machine that is busy with other work
        check=False,
    )


def metric_rows(run: Path) -> list[tuple]:
    """What each row of metrics.csv holds, sorted, without the columns that depend on the speed of the machine."""
    return sorted(
        tuple(sorted((k, v) for k, v in row.items() if v and k not in TIMING_COLUMNS))
        for row in read_csv(run / "metrics.csv")
    )


def logged(run: Path, column: str) -> dict[int, float]:
    """{step: value} of a column of metrics.csv."""
    return {int(row["step"]): float(row[column]) for row in read_csv(run / "metrics.csv") if row.get(column)}
