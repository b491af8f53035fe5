"""A refused command leaves every folder byte for byte as it was: one table of what the verbs refuse.

How a run folder of a stranger is refused is in `run/test_broken_runs.py`, which compares the folder as well.
"""

import gzip
import json
import shutil
import sys
from pathlib import Path

import pytest
import runs
import torch
from made_up_runs import make_run, make_runs

from attnorm.cli import sweep as sweep_verb
from attnorm.config.recorded import DEVICES, recorded_settings
from attnorm.errors import ConfigError
from attnorm.run.folder import folder_lock
from attnorm.sweeps import planner
from attnorm.training.train import train

sys.path.insert(0, str(Path(__file__).parent / "sweeps"))
import driver
from sweeping import sweep

pytestmark = pytest.mark.training
SWEEP = ("x=0.1,0.2", "steps=1", "jobs=2")
TUNE = ("seed=110", "tune=x=0.1,0.2,0.4", "tune_seeds=100", "steps=1", "jobs=3")
PROBE = ("normalizers=softmax,dnas", "probes=demand:2", "preset=quick")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Folders of every kind. They are copied for each test."""
    folder = tmp_path_factory.mktemp("made")
    shutil.copytree(runs.finished_run(), folder / "run")
    shutil.copytree(runs.finished_run("mlm"), folder / "mlm")
    (folder / "empty").mkdir()
    (folder / "file").write_text("x")
    (folder / "latin1.txt").write_bytes("caf\xe9\n".encode("latin-1"))
    (folder / "torn.gz").write_bytes(gzip.compress(b"x" * 999)[:-9])
    write_pairs(folder)
    make_runs(folder / "runs", {"softmax": 0, "dnas": 0}, (1, 2), examples=20, steps=6)
    make_run(folder / "others/mlm", "dnas", 1, task="mlm", examples=20, steps=6)
    (folder / "probe/results").mkdir(parents=True)
    (folder / "probe/probe.csv").write_text("probe\n")
    return folder


def write_pairs(folder):
    """A run on files, and other files."""
    for name, first, count in (("train", 0, 120), ("validation", 120, 20), ("other", 140, 90)):
        rows = (
            {"article": f"The {colour} {animal} of {city} likes {meal} .", "title": f"{animal} likes {meal}"}
            for colour, animal, city, meal in runs.sentences(first, count)
        )
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = ("data=pair_files", f"data.train={folder}/train.jsonl", f"data.validation={folder}/validation.jsonl")
    typed = (*(it for it in runs.tiny_overrides() if it not in runs.DATA), *files, "data.batch_tokens=1000")
    train(runs.checked(runs.composed(*typed)), folder / "files")


@pytest.fixture(scope="module")
def swept(made):
    """The same with sweeps that have ended."""
    kinds = {"grid": SWEEP, "tuned": TUNE}
    for name, typed in kinds.items():
        sweep(made, *typed, f"out={name}")
    return made


def edit(key, value):
    """A function that sets a key of the settings of a run."""
    return lambda folder: runs.edit(folder / "run", key, value)


def unfinished(folder):
    (folder / "run/summary.json").unlink()


def without_checkpoints(folder):
    unfinished(folder)
    shutil.rmtree(folder / "run/checkpoints")


def with_torn_checkpoints(folder):
    unfinished(folder)
    for path in (folder / "run/checkpoints").iterdir():
        path.write_bytes(path.read_bytes()[:500])


def copied_without_checkpoints(folder):
    without_checkpoints(folder)
    (folder / "run/metrics.csv").unlink()
    edit("ckpt_path", "elsewhere/last.ckpt")(folder)


def of_another_shape(folder):
    """The settings agree with the checkpoint, and its parameters do not."""
    runs.tiny_run(folder / "other", "attention=hnas", "model.ffn_dim=24", "trainer.max_steps=1")
    own, other = runs.load(folder / "run"), runs.load(folder / "other")
    unfinished(folder)
    shutil.rmtree(folder / "run/checkpoints")
    shutil.rmtree(folder / "other")
    (folder / "run/checkpoints").mkdir()
    torch.save({**own, "state_dict": other["state_dict"]}, folder / "run/checkpoints/last.ckpt")


def remove(name):
    return lambda folder: (folder / name).unlink()


def write(name, content):
    return lambda folder: (folder / name).write_text(content)


def without_ids(folder):
    import pandas

    path = folder / "runs/dnas_1/predictions/validation.parquet"
    pandas.read_parquet(path).drop(columns="id").to_parquet(path)


OTHER_DATA = "data.corpus_seed=9"
CSV_ELSEWHERE = {"_target_": "pytorch_lightning.loggers.CSVLogger", "save_dir": "/x"}
PARTS = (*runs.tiny_overrides(), "hydra.run.dir={}/new")  # the names of a model's parts are known after the data
REFUSED = {  # verb: (what is spoilt, what is typed, words of the message); {} is the folder of the test
    "train": [
        (None, (*PARTS, "optimizer.freeze=[encodr]"), "the model has no such part"),
        (None, (*PARTS, "optimizer.lr_factors={encodr: 0.5}"), "the model has no such part"),
    ],
    "resume": [
        (None, ("resume={}/run", "--seed=2"), "has no meaning when a run continues"),
        (None, ("resume={}/nowhere",), "no such folder"),
        (None, ("resume={}/empty",), "no run.json there"),
        (write("empty/jobs.jsonl", ""), ("resume={}/empty",), "this is a sweep folder"),
        (None, ("resume={}/run", "ckpt_path=x"), "cannot be set when a run continues"),
        (None, ("resume={}/run", "hydra.run.dir=x"), "cannot be set when a run continues"),
        (None, ("resume={}/run", "attention=softmax"), "cannot be set when a run continues"),
        (None, ("resume={}/run", "~callbacks.nothing"), "has no such entry to remove"),
        (None, ("resume={}/run", "~callbacks"), "has no such entry to remove"),
        (None, ("resume={}/run", "task.monitor=rouge1"), "the run being resumed does not have this key"),
        (None, ("resume={}/run", "trainer=nothing"), "trainer=nothing: allowed: "),
        (None, ("resume={}/run", "model.drop=1"), "has no such option"),
        (None, ("resume={}/run", "trainer.devices=0"), "trainer.devices=0"),
        (None, ("resume={}/run", "model.dropout=0.3"), "the run being resumed has 0.1"),
        (None, ("resume={}/run", "trainer.precision=bf16-mixed"), "the run being resumed has 32-true"),
        (None, ("resume={}/run", "trainer.max_steps=100"), "would have had other learning rates"),
        (None, ("resume={}/run", "task.max_steps=2"), "but this run ends after 2"),
        (None, ("resume={}/run", "trainer.max_steps=5", OTHER_DATA), "the run being resumed has"),
        (None, ("resume={}/run", "trainer.accumulate_grad_batches=900"), "fewer rows than that"),
        (edit("attention.encoder", "theirs:HNAS"), ("resume={}/run", "seed=1"), "names code outside attnorm"),
        (edit("logger", {"x": CSV_ELSEWHERE}), ("resume={}/run", "seed=1"), "says where to write"),
        (edit("seed", "one"), ("resume={}/run",), "expected a whole number"),
        (lambda folder: (folder / "run/figures").symlink_to(folder), ("resume={}/run", "seed=1"), "is a link to"),
        (without_checkpoints, ("resume={}/run",), "has no checkpoints"),
        (copied_without_checkpoints, ("resume={}/run",), "has no checkpoints"),
        (with_torn_checkpoints, ("resume={}/run",), "none of its checkpoints can be used"),
        (of_another_shape, ("resume={}/run",), "does not fit the model and the tokenizer"),
        (None, ("resume={}/files", "data.train={}/nowhere.csv"), "no such file"),
        (None, ("resume={}/files", "data.train={}/other.jsonl", "run.keep_best=2"), "the train split differs"),
        (None, ("resume={}/files", "data.validation={}/other.jsonl", "run.keep_best=2"), "validation split differs"),
        (None, ("resume={}/files", "data.train={}/torn.gz", "run.keep_best=2"), "torn.gz"),
        (None, ("resume={}/files", "tokenizer.file={}/mlm", "run.keep_best=2"), "tokenizer"),
    ],
    "eval": [
        (None, ("run={}/nowhere",), "no such folder"),
        (None, ("run={}/empty",), "no run.json there"),
        (None, ("run={}/run", "ckpt=other"), "allowed: best, last"),
        (None, ("run={}/run", "seed=2"), "seed: cannot be set here"),
        (None, ("run={}/run", "model.dropout=0.3"), "cannot be set here"),
        (None, ("run={}/run", "data.nothing=1"), "the run's config has no such key"),
        (None, ("run={}/run", "data=nothing"), "data=nothing: allowed: "),
        (None, ("run={}/files", "split=test"), "data.test=null"),
        (None, ("run={}/files", "data.validation={}/torn.gz"), "torn.gz"),
        (None, ("run={}/run", "metric=rouge"), "metric scores a file, not a run"),
        (remove("run/checkpoints/best.ckpt"), ("run={}/run",), "no checkpoint best.ckpt there"),
        (remove("run/sentencepiece.model"), ("run={}/run",), "sentencepiece.model"),
        (edit("model.ffn_dim", 24), ("run={}/run",), "does not fit the model"),
        (edit("attention.encoder", "theirs:HNAS"), ("run={}/run",), "names code outside attnorm"),
        (with_torn_checkpoints, ("run={}/run",), "damaged"),
    ],
    "generate": [
        (None, ("run={}/run",), "input: must be given"),
        (None, ("run={}/run", "input={}/nowhere"), "no such file"),
        (None, ("run={}/run", "input={}/empty"), "this is a folder"),
        (None, ("run={}/run", "input={}/latin1.txt"), "latin1.txt"),
        (None, ("run={}/run", "input={}/file", "chunk=0"), "chunk=0"),
        (None, ("run={}/mlm", "input={}/file"), "write no text"),
        (None, ("run={}/run", "input={}/file", "decoding.beam_size=x"), "decoding.beam_size=x"),
        (remove("run/checkpoints/best.ckpt"), ("run={}/run", "input={}/file"), "no checkpoint best.ckpt there"),
    ],
    "report": [
        (None, ("level=0.9",), "runs: must be given"),
        (None, ("{}/nowhere",), "nowhere: no such folder"),
        (None, ("{}/empty",), "no run folder there"),
        (None, ("{}/runs", "baseline=nothing"), "baseline=nothing"),
        (None, ("{}/runs", "metric=nothing"), "metric=nothing"),
        (None, ("{}/runs", "level=2"), "level=2"),
        (None, ("{}/runs", "out={}/empty"), "out={}/empty: expected a file, found a folder"),
        (None, ("{}/runs", "out={}/file/page.html"), "page.html: expected a folder, found a file"),
        (
            None,
            ("{}/runs", "out={}/run/run.json"),
            "run.json: is there already, in the folder of a run or a sweep; choose another name",
        ),
        (None, ("{}/runs", "out={}/run/checkpoints/best.ckpt"), "best.ckpt: is there already"),
    ],
    "compare": [
        (None, ("metric=rouge1",), "against: must be given"),
        (None, ("against={}/nowhere",), "nowhere: no such folder"),
        (None, ("against={}/runs", "baseline={}/runs"), "must be one arm"),
        (None, ("against={}/runs/softmax_1", "baseline={}/runs/softmax_2"), "nothing to compare with the baseline"),
        (None, ("against={}/runs/dnas_2", "baseline={}/runs/softmax_1"), "dnas and softmax have no seed in common"),
        (None, ("against=[{}/runs,{}/others]",), "runs of different tasks cannot be compared: "),
        (None, ("against={}/runs", "metric=nothing"), "metric=nothing"),
        (None, ("against={}/runs", "plan=0"), "plan=0: allowed: numbers above 0"),
        (None, ("against={}/runs", "out={}/run/summary.json"), "summary.json: is there already"),
        (None, ("against={}/runs", "out={}/run/metrics.csv"), "metrics.csv: is there already"),
        (without_ids, ("against={}/runs",), "has no column id"),
        (write("runs/dnas_1/predictions/validation.parquet", "x"), ("against={}/runs",), "cannot be read"),
    ],
    "sweep": [
        (None, ("--x", *SWEEP, "out={}/grid"), "no such option"),
        (None, (*SWEEP, "tune=y=1,2", "out={}/grid"), "seed: must be given with tune"),
        (None, ("upper=0.1", *SWEEP, "out={}/grid"), "x=0.2: at most 0.1"),
        (None, (*SWEEP, "launcher=ray", "ray.nothing=1", "out={}/grid"), "ray"),
        (None, ("x=0.2,0.4", *TUNE[:1], *TUNE[3:], "out={}/tuned", "seed=100,101"), "is there already, to tune"),
        (lambda folder: (folder / "grid/figures").symlink_to(folder), (*SWEEP, "out={}/grid"), "is a link to"),
        (None, (*SWEEP, "out={}/run"), "out={}/run: is the folder of a run; choose another one"),
    ],
    "probe": [
        (None, (*PROBE, "out={}/probe", "normalizers=softmax,nothing"), "nothing"),
        (None, (*PROBE, "out={}/probe", "probes=nothing"), "nothing"),
        (None, (*PROBE, "out={}/file"), "expected a folder, found a file"),
    ],
}


@pytest.fixture
def refused(monkeypatch, tmp_path, capfd):
    """A function that checks that a command is refused with these words, and leaves a folder as it is."""

    def check(folder, verb, typed, words):
        monkeypatch.chdir(tmp_path)
        typed = [it.replace("{}", str(folder)) for it in typed]
        before = runs.contents(folder)
        capfd.readouterr()
        code = runs.call(monkeypatch, {"resume": "train"}.get(verb, verb), *typed)
        said = capfd.readouterr().err
        assert code in (1, 2) and words.replace("{}", str(folder)) in said and "Traceback" not in said, said
        assert runs.contents(folder) == before

    return check


CASES = [(verb, number) for verb, cases in REFUSED.items() for number in range(len(cases))]


@pytest.mark.parametrize(("verb", "number"), CASES, ids=lambda value: str(value))
def test_a_refused_command_leaves_everything_as_it_was(monkeypatch, request, tmp_path, refused, verb, number):
    spoil, typed, words = REFUSED[verb][number]
    if verb == "sweep":
        monkeypatch.setattr(sweep_verb, "Checker", driver.NoChecker)
        monkeypatch.setattr(planner, "TRAIN", driver.PROGRAM)
    folder = Path(shutil.copytree(request.getfixturevalue("swept" if verb == "sweep" else "made"), tmp_path / "x"))
    if spoil is not None:
        spoil(folder)
    refused(folder, verb, typed, words)


def test_a_run_that_is_going_is_left_alone(tmp_path, refused):
    run = runs.copied_run(tmp_path)
    (run / "summary.json").unlink()
    with folder_lock(run):
        for verb, typed in {"resume": ("resume={}/run",), "train": ("resume={}/run", "run.keep_best=2")}.items():
            refused(tmp_path, verb, typed, "is still going")


@pytest.mark.parametrize(("typed", "said"), [("trainer=cpu", ""), ("trainer=ddp", "trainer.devices=auto: was 1")])
def test_another_trainer_changes_only_the_devices(tmp_path, caplog, typed, said):
    run = runs.copied_run(tmp_path)
    settings, _ = recorded_settings(run, [f"resume={run}", typed])
    before = runs.record_of(run)["settings"]
    differing = {key for key in before["trainer"] if settings["trainer"][key] != before["trainer"][key]}
    assert differing <= set(DEVICES) and said in caplog.text
    assert {**settings, "trainer": before["trainer"], "resume": None} == before


def test_a_further_rank_may_find_an_entry_removed_by_the_first_one(tmp_path):
    run, typed = runs.copied_run(tmp_path), ["~callbacks.attention_stats"]
    settings, changes = recorded_settings(run, typed)
    runs.write_settings(run, settings)
    assert recorded_settings(run, typed, is_first=False) == (settings, changes)
    with pytest.raises(ConfigError, match="has no such entry to remove"):
        recorded_settings(run, typed)
