"""Run folders that are broken, or that a stranger made: one line on what is wrong, and no code of theirs is run."""

import io
import json
import os
import pickle
import re
import shutil
import sys
import zipfile
from pathlib import Path

import pandas
import pytest
import runs
import torch
from safetensors.torch import save_file

from attnorm.analysis.loaded_run import load_run
from attnorm.analysis.scores import example_table
from attnorm.config.read import read_settings
from attnorm.config.recorded import recorded_settings
from attnorm.errors import ConfigError, RunError
from attnorm.run.folder import leave_out, read_record
from attnorm.run.opening import read_run
from attnorm.run.record import REQUIRED_GROUPS
from attnorm.run.run import Run
from attnorm.run.writing import MEANINGS
from attnorm.sweeps.state import Journal

EVIL = "import pathlib\npathlib.Path({mark!r}).write_text('run')\nfrom attnorm.attention.normalizers.hnas import HNAS\n"


@pytest.fixture
def attacked(monkeypatch, tmp_path, capfd):
    """A function that spoils a copied run, calls a script on it and returns the one line that it prints."""

    def attack(spoil, *typed, script="eval", task="gigaword"):
        run = runs.copied_run(tmp_path, task)
        spoil(run)
        return refusal(monkeypatch, capfd, script, f"run={run}", *typed)

    return attack


def refusal(monkeypatch, capfd, script, *arguments):
    """The only line of standard error of a command that has to fail, and to leave every folder that it names alone."""
    capfd.readouterr()
    folders = [path for path in (Path(it.partition("=")[2]) for it in arguments) if (path / "run.json").is_file()]
    before = list(map(runs.contents, folders))
    code = runs.call(monkeypatch, script, *arguments)
    assert list(map(runs.contents, folders)) == before
    printed = capfd.readouterr()
    lines = printed.err.splitlines()
    assert code == 2 and printed.out == ""
    assert len(lines) == 1 and lines[0].startswith("error: "), printed.err
    assert "Traceback" not in printed.err and "weights_only" not in printed.err
    return lines[0]


# code


FOREIGN_NAMES = {
    "a source": ("data._target_", "os.system"),
    "a tokenizer": ("tokenizer._target_", "os.system"),
    "a normalizer": ("attention.encoder", "evil:HNAS"),
    "a normalizer of a longer prefix": ("attention.encoder", "attnormx:HNAS"),
    "a normalizer inside a package": ("attention.encoder", "evil.attnorm:HNAS"),
    "a prior": ("attention.prior.encoder", ["evil:HNAS"]),
    "a scorer": ("attention.scorer.encoder", "evil:HNAS"),
    "a cost, among the options": ("attention.options", {"ot": {"cost": "evil:cost"}}),
    "a normalizer, with a dot": ("attention.encoder", "evil.HNAS"),
    "a normalizer of several layers": ("attention.encoder", ["evil.HNAS*2"]),
    "a prior, with a dot": ("attention.prior.encoder", ["evil.HNAS"]),
    "a member of a mix": ("attention.options", {"mix": {"members": ["softmax", {"name": "evil.HNAS"}]}}),
    "a bank, with a dot": ("attention.bank", {"encoder": "evil.HNAS"}),
}


@pytest.mark.parametrize(
    ("script", "what"), [*(("eval", it) for it in FOREIGN_NAMES), *(("generate", it) for it in ("a source", "a prior"))]
)
def test_code_that_a_run_folder_names_is_not_imported(monkeypatch, tmp_path, attacked, script, what):
    """Also when the folder is the current one and on sys.path, as with `python -m`."""
    key, value = FOREIGN_NAMES[what]

    def spoil(run):
        monkeypatch.chdir(run)
        for entry in ("", str(run)):
            monkeypatch.syspath_prepend(entry)
        for name in ("evil", "attnormx"):
            (run / f"{name}.py").write_text(EVIL.format(mark=str(tmp_path / "mark")))
        runs.edit(run, key, value)

    line = attacked(spoil, *["input=-"] * (script == "generate"), script=script)
    assert line.startswith(f"error: {key}") and "ATTNORM_TRUST" in line and "trust_code=true" in line
    assert not (tmp_path / "mark").exists()
    assert "" not in sys.path and str(tmp_path / "run") not in sys.path


NOT_CLASSES = {  # trusted or of attnorm, but not what is expected there
    "a module": ("attention.encoder", "attnorm.training.environment:subprocess"),
    "a function": ("attention.encoder", "attnorm.run.checkpoint:sync_folder"),
    "another class": ("attention.encoder", "attnorm.attention.scorers:Dot"),
    "the base class": ("attention.encoder", "attnorm.attention.normalizers.base:Normalizer"),
    "a dotted attribute": ("attention.encoder", "attnorm.training.environment:subprocess.run"),
    "a relative module": ("attention.encoder", "attnorm..attention:HNAS"),
    "a path": ("attention.encoder", "attnorm./tmp/evil:HNAS"),
    "no module": ("attention.encoder", "attnorm:"),
    "a normalizer as a scorer": ("attention.scorer.encoder", "attnorm.attention.normalizers.hnas:HNAS"),
    "a source that is a module": ("data._target_", "attnorm.data.sources.base.SPLITS"),
    "a source that is abstract": ("data._target_", "attnorm.data.sources.base.Source"),
    "a tokenizer that is abstract": ("tokenizer._target_", "attnorm.data.tokenizers.base.Tokenizer"),
}


@pytest.mark.parametrize("what", NOT_CLASSES)
def test_only_classes_of_the_right_kind_are_called(attacked, what):
    key, value = NOT_CLASSES[what]

    def spoil(run):
        runs.edit(run, "attention.options", {})  # they are those of hnas
        runs.edit(run, "attention.encoder", "softmax")
        runs.edit(run, key, value)

    assert value in attacked(spoil)


@pytest.mark.parametrize(("variable", "typed"), [("os, shutil", ()), ("", ("trust_code=true",))])
def test_trusted_code_still_has_to_be_of_the_right_kind(monkeypatch, attacked, variable, typed):
    monkeypatch.setenv("ATTNORM_TRUST", variable)
    monkeypatch.setattr(os, "system", lambda *_: pytest.fail("os.system was called"))
    line = attacked(lambda run: runs.edit(run, "data._target_", "os.system"), *typed)
    assert line == "error: data._target_=os.system: must be a subclass of attnorm.data.sources.base.Source"


@pytest.mark.slow
@pytest.mark.parametrize(("variable", "typed"), [("my_own", ()), ("", ("trust_code=true",))])
def test_code_that_the_user_trusts_is_imported(monkeypatch, tmp_path, variable, typed):
    run = runs.copied_run(tmp_path)
    (tmp_path / "my_own.py").write_text(EVIL.format(mark=str(tmp_path / "mark")))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("ATTNORM_TRUST", variable)
    runs.edit(run, "attention.encoder", "my_own:HNAS")
    runs.edit(run, "attention.options", {"HNAS": {"start": 0.5}})
    try:
        assert runs.call(monkeypatch, "eval", f"run={run}", *typed) == 0
    finally:
        sys.modules.pop("my_own", None)
    assert (tmp_path / "mark").exists()


@pytest.mark.slow
def test_what_is_typed_in_the_same_command_is_trusted(monkeypatch, tmp_path):
    run = runs.copied_run(tmp_path)
    (tmp_path / "my_source.py").write_text("from attnorm.data.sources.newswire import Newswire as Mine\n")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        assert runs.call(monkeypatch, "eval", f"run={run}", "data._target_=my_source.Mine") == 0
    finally:
        sys.modules.pop("my_source", None)


def test_a_source_that_is_replaced_by_what_is_typed_is_still_not_imported(monkeypatch, attacked):
    """It would be asked how the run cleaned its texts."""
    assert "data._target_='os.system'" in attacked(
        lambda run: runs.edit(run, "data._target_", "os.system"), "data=newswire"
    )


def test_a_run_folder_is_taken_off_the_path_and_nothing_else(monkeypatch, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "run")
    (tmp_path / "run/inside").mkdir(parents=True)
    kept = [str(tmp_path), str(tmp_path / "run/inside")]
    monkeypatch.chdir(tmp_path / "run")
    monkeypatch.setattr(sys, "path", ["", str(tmp_path / "run"), *kept, ".", str(tmp_path / "link")])
    leave_out(tmp_path / "run")
    assert sys.path == kept


@pytest.mark.slow
def test_modules_of_a_run_folder_do_not_shadow_libraries(tmp_path):
    """`python -m` puts the current folder first on the path."""
    run = runs.copied_run(tmp_path)
    for name in ("torch", "evil"):
        (run / f"{name}.py").write_text(EVIL.format(mark=str(tmp_path / "mark")))
    runs.edit(run, "attention.encoder", "evil:HNAS")
    path = os.pathsep.join([str(runs.ROOT / "src"), str(runs.ROOT)])
    ended = runs.command("-m", "eval", "run=.", cwd=run, env={"PYTHONPATH": path})
    assert ended.returncode == 2 and ended.stderr.startswith("error: attention.encoder='evil:HNAS'"), ended.stderr
    assert not (tmp_path / "mark").exists()


# run.json

GROUPS = '"task": {"name": "a"}, "model": {}, "attention": {}, "data": {}, "optimizer": {"lr": 1}'
RECORDS = {
    "empty": "",
    "binary": bytes(range(256)),
    "YAML": "format: 1",
    "half of a record": '{"format": 1, "settings": {',
    "a list": "[1]",
    "a number": "3",
    "no format": "{}",
    "another format": '{"format": 2}',
    "a format that is a text": '{"format": "1"}',
    "no settings": '{"format": 1}',
    "settings that are a list": '{"format": 1, "settings": [1]}',
    "digests that are a list": f'{{"format": 1, "settings": {{{GROUPS}, "seed": 1}}, "modules": [1]}}',
    "deep lists": "[" * 100_000,
    "deep mappings": '{"a":' * 100_000,
    "a huge number": '{"format": ' + "9" * 10_000 + "}",
    "a seed that is a fraction": f'{{"format": 1, "settings": {{{GROUPS}, "seed": 1.5}}}}',
    "a group that is a number": f'{{"format": 1, "settings": {{{GROUPS}, "seed": 1, "model": 3}}}}',
    "a group that is null": f'{{"format": 1, "settings": {{{GROUPS}, "seed": 1, "data": null}}}}',
}


@pytest.mark.parametrize("what", RECORDS)
def test_a_record_that_is_none_is_refused_in_one_line(attacked, what):
    content = RECORDS[what]
    content = content if isinstance(content, bytes) else content.encode()
    line = attacked(lambda run: (run / "run.json").write_bytes(content))
    assert "run.json" in line


@pytest.mark.slow
def test_the_same_file_is_refused_by_a_warm_start(monkeypatch, tmp_path, capfd):
    run = runs.copied_run(tmp_path, "mlm")
    (run / "run.json").write_text('{"format": 2}')
    monkeypatch.chdir(tmp_path)
    assert "run.json: has the format 2" in refusal(monkeypatch, capfd, "train", "task=mlm", f"model.init={run}")


@pytest.mark.parametrize("key", ["data.train_size", "tags", "model.positions"])
def test_interpolations_are_not_resolved(monkeypatch, attacked, key):
    monkeypatch.setenv("SECRET", "swordfish")
    line = attacked(lambda run: runs.edit(run, key, "${oc.env:SECRET}"))
    assert f"{key}=${{oc.env:SECRET}}: " in line and "swordfish" not in line


@pytest.mark.slow
def test_an_interpolation_in_a_path_is_a_name(monkeypatch, tmp_path):
    run = runs.copied_run(tmp_path)
    monkeypatch.setenv("SECRET", "swordfish")
    monkeypatch.chdir(tmp_path)
    runs.edit(run, "paths.cache_dir", "${oc.env:SECRET}")
    assert runs.call(monkeypatch, "eval", f"run={run}", "trust_code=true") == 0
    assert (tmp_path / "${oc.env:SECRET}").is_dir() and not (tmp_path / "swordfish").exists()


def test_what_the_user_types_may_be_an_interpolation(monkeypatch, tmp_path):
    run = runs.copied_run(tmp_path)
    monkeypatch.setenv("CACHE", str(tmp_path / "cache"))
    assert runs.call(monkeypatch, "eval", f"run={run}", "paths.cache_dir=${oc.env:CACHE}") == 0
    assert (tmp_path / "cache").is_dir()


# files of the folder


def put(name, make):
    """A function that puts a thing in the place of a file or a folder of a run. make: gets the path."""

    def spoil(run):
        path = run / name
        path.parent.mkdir(exist_ok=True)
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        make(path)

    return spoil


def write(name, content):
    return put(name, lambda path: path.write_bytes(content))


def edited(key, value):
    return lambda run: runs.edit(run, key, value)


def remove(name):
    return lambda run: (run / name).unlink()


def other_tokenizer(task, name, *overrides):
    """A function that puts the tokenizer of another run there."""

    def spoil(run):
        runs.tiny_run(run.parent / "other", "debug=fdr", *overrides, task=task)
        shutil.copy(run.parent / "other" / name, run / name)

    return spoil


def answers(**changes):
    """A function that changes answers.json; None takes a key away."""

    def spoil(run):
        kept = json.loads((run / "answers.json").read_text()) | changes
        (run / "answers.json").write_text(json.dumps({k: v for k, v in kept.items() if v is not None}))

    return spoil


MODEL, JSON = "sentencepiece.model", "tokenizer.json"
FOLDERS = {  # what is spoilt: (task, how, what the line has to mention)
    "no tokenizer": ("gigaword", remove(MODEL), MODEL),
    "an empty tokenizer": ("gigaword", write(MODEL, b""), MODEL),
    "a binary tokenizer": ("gigaword", write(MODEL, bytes(range(256)) * 9), MODEL),
    "a tokenizer of another task": ("gigaword", lambda run: (run / MODEL).rename(run / JSON), MODEL),
    "a smaller vocabulary": ("gigaword", other_tokenizer("gigaword", MODEL, "tokenizer.vocab_size=200"), MODEL),
    "another vocabulary of that size": ("gigaword", other_tokenizer("gigaword", MODEL, "data.corpus_seed=9"), MODEL),
    "no wordpiece": ("mlm", remove(JSON), JSON),
    "an empty wordpiece": ("mlm", write(JSON, b""), JSON),
    "a wordpiece that is a list": ("mlm", write(JSON, b"[1]"), JSON),
    "a wordpiece without a model": ("mlm", write(JSON, b'{"model": {}}'), JSON),
    "deep JSON": ("mlm", write(JSON, b"[" * 100_000), JSON),
    "no answers": ("vqa", remove("answers.json"), "answers.json"),
    "empty answers": ("vqa", write("answers.json", b""), "answers.json"),
    "binary answers": ("vqa", write("answers.json", bytes(range(256))), "answers.json"),
    "deep answers": ("vqa", write("answers.json", b"[" * 100_000), "answers.json"),
    "answers that are a list": ("vqa", write("answers.json", b"[1]"), "answers.json"),
    "answers without texts": ("vqa", answers(answers=None), "answers.json"),
    "answers that are numbers": ("vqa", answers(answers=[1, 2]), "answers.json"),
    "other answers": ("vqa", lambda run: answers(answers=[*map(str, range(40))])(run), "does not fit"),
    "widths that are texts": ("vqa", answers(widths=["a"]), "answers.json"),
    "widths without boxes": ("vqa", answers(boxes=[]), "answers.json"),
    "a model for which there is no memory": ("gigaword", edited("model.d_model", 2**40), "run.json"),
    "far more layers": ("gigaword", edited("model.encoder_layers", 1000), "over 1,"),  # before all of them are built
    "another model": ("gigaword", edited("model.encoder_layers", 2), "encoder.layers.1"),
    "another shape": ("gigaword", edited("model.ffn_dim", 31), "(32, 16)"),
    "no such task": ("gigaword", edited("task._target_", ["mlm"]), "task._target_=[mlm]"),
}


@pytest.mark.parametrize("what", FOLDERS)
def test_a_broken_run_folder_is_refused_in_one_line(attacked, what):
    task, spoil, words = FOLDERS[what]
    assert words in attacked(spoil, task=task)


class Evil:
    def __reduce__(self):
        return os.mkdir, ("evil",)


def saved(content, **options):
    """The bytes of torch.save."""
    file = io.BytesIO()
    torch.save(content, file, **options)
    return file.getvalue()


def zipped(**entries):
    """The bytes of a zip archive."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return file.getvalue()


def resaved(change):
    """A function from a run to its checkpoint with changed content: `change` gets the content and the state_dict."""

    def content_of(run):
        content = runs.load(run, "best")
        return saved(change(content, content["state_dict"]) or content)

    return content_of


def first(state):
    return next(name for name in state if name.endswith("weight"))


def replaced(function):
    """A change of the first matrix."""
    return resaved(lambda content, state: state.update({first(state): function(state[first(state)])}))


def of_safetensors(run):
    save_file({"w": torch.zeros(3)}, run / "w.safetensors")
    return (run / "w.safetensors").read_bytes()


def of_torchscript(run):
    file = io.BytesIO()
    torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2)), file)
    return file.getvalue()


CHECKPOINTS = {  # from the run to the bytes of its best.ckpt
    "empty": lambda run: b"",
    "a text": lambda run: b"hello\n" * 99,
    "half of it": lambda run: (run / "checkpoints/best.ckpt").read_bytes()[:20_000],
    "all but the last byte": lambda run: (run / "checkpoints/best.ckpt").read_bytes()[:-1],
    "a pickle": lambda run: pickle.dumps({"state_dict": {}}),
    "a pickle that runs code": lambda run: pickle.dumps(Evil()),
    "a torch file that runs code": lambda run: saved({"state_dict": {}, "global_step": Evil()}),
    "a torch file of the old format": lambda run: saved(
        {"state_dict": {}, "global_step": 1}, _use_new_zipfile_serialization=False
    ),
    "a whole module": lambda run: saved(torch.nn.Linear(2, 2)),
    "TorchScript": of_torchscript,
    "safetensors": of_safetensors,
    "a zip": lambda run: zipped(a="b"),
    "a zip bomb": lambda run: zipped(**{"archive/data.pkl": b"\0" * 50_000_000}),
    "a list": lambda run: saved([1]),
    "a tensor": lambda run: saved(torch.zeros(3)),
    "no state_dict": lambda run: saved({"global_step": 1}),
    "a state_dict that is a list": lambda run: saved({"global_step": 1, "state_dict": [torch.zeros(2)]}),
    "a state_dict of numbers": lambda run: saved({"global_step": 1, "state_dict": {"model.a": 1}}),
    "an empty state_dict": lambda run: saved({"global_step": 1, "state_dict": {}}),
    "a step that is a text": resaved(lambda content, state: content.update(global_step="1")),
    "a missing key": resaved(lambda content, state: state.pop(first(state)) is None),
    "an extra key": resaved(lambda content, state: state.update(a=torch.zeros(1))),
    "a name that is a number": resaved(lambda content, state: state.update({1: torch.zeros(1)})),
    "another shape": replaced(lambda tensor: tensor[:1].clone()),
    "whole numbers": replaced(lambda tensor: tensor.int()),
    "complex numbers": replaced(lambda tensor: tensor.to(torch.complex64)),
    "a sparse tensor": replaced(lambda tensor: tensor.to_sparse()),
    "a meta tensor": replaced(lambda tensor: tensor.to("meta")),
    "a tensor of which there is one value": replaced(lambda tensor: torch.zeros(1).expand(10**12)),
    "infinity": replaced(lambda tensor: tensor / 0),
    "parameters of another model": lambda run: (runs.finished_run("mlm") / "checkpoints/best.ckpt").read_bytes(),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize("what", CHECKPOINTS)
def test_a_file_that_is_not_the_runs_checkpoint_is_refused_in_one_line(monkeypatch, tmp_path, attacked, what):
    monkeypatch.chdir(tmp_path)
    line = attacked(lambda run: (run / "checkpoints/best.ckpt").write_bytes(CHECKPOINTS[what](run)))
    assert "checkpoints/best.ckpt" in line and len(line) < 600
    assert not (tmp_path / "evil").exists()


def test_each_file_that_gives_ids_their_meaning_is_copied():
    kept = {path.name for task in ("gigaword", "mlm", "vqa") for path in runs.finished_run(task).iterdir()}
    assert set(MEANINGS) <= kept


# what is in the folder


def link(name, target="outside"):
    """A function that makes a file or a folder of a run a link to a file or a folder outside of it."""

    def spoil(run):
        path, there = run / name, run.parent / target
        if path.exists():
            there = there.with_suffix(path.suffix)
            path.rename(there)
        path.parent.mkdir(exist_ok=True)
        path.symlink_to(there)

    return spoil


LINKS = ("run.lock", "run.log", "summary.json", "metrics.csv", "report.html", "checkpoints", "figures", "samples")
WRITERS = {
    "eval": ("eval", "run={run}"),
    "resume": ("train", "resume={run}", "run.keep_best=2"),
    "attention": ("attention", "run={run}", "text=news"),
    "report": ("report", "{run}"),
}


@pytest.mark.parametrize("name", LINKS)
@pytest.mark.parametrize("typed", [(), ("run.follow_links=false",)], ids=["not typed", "typed as false"])
def test_a_run_with_a_link_in_its_folder_is_not_written_into(monkeypatch, tmp_path, capfd, name, typed):
    """The settings of the folder cannot allow it."""
    run = runs.copied_run(tmp_path)
    link(name)(run)
    runs.edit(run, "run.follow_links", True)
    before = runs.contents(tmp_path)
    said = refusal(monkeypatch, capfd, "eval", f"run={run}", *typed)
    assert f"{run / name}: is a link to" in said and "type run.follow_links=true" in said
    assert runs.contents(tmp_path) == before


@pytest.mark.slow
@pytest.mark.parametrize("writer", WRITERS)
def test_every_command_that_writes_into_a_run_looks_for_links(monkeypatch, tmp_path, capfd, writer):
    run = runs.copied_run(tmp_path)
    link("figures")(run)
    before = runs.contents(tmp_path)
    monkeypatch.chdir(tmp_path)
    verb, *typed = (it.format(run=run) for it in WRITERS[writer])
    assert f"{run}/figures: is a link" in refusal(monkeypatch, capfd, verb, *typed)
    assert runs.contents(tmp_path) == before


def test_readers_follow_links(tmp_path):
    run = runs.copied_run(tmp_path)
    for name in ("run.json", "summary.json", "checkpoints", "sentencepiece.model"):
        link(name, f"outside_{name}")(run)
    (run / "wandb/run-1").mkdir(parents=True)
    (run / "wandb/latest-run").symlink_to("run-1")
    (tmp_path / "link").symlink_to(run)
    opened = load_run(tmp_path / "link")
    assert opened.config["seed"] == 1 and opened.summary["state"] == "finished" and opened.model is not None


@pytest.mark.parametrize("writer", ["eval", "resume"])
def test_checkpoints_may_be_a_link_if_that_was_typed(monkeypatch, tmp_path, writer):
    run, other = runs.copied_run(tmp_path), runs.copied_run(tmp_path / "other")
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").symlink_to(other / "checkpoints")
    verb, *arguments = (it.format(run=run) for it in WRITERS[writer])
    assert runs.call(monkeypatch, verb, *arguments, "run.follow_links=true") == 0


@pytest.mark.slow
def test_a_sweep_with_a_link_in_its_folder_is_not_written_into(monkeypatch, tmp_path, capfd):
    (tmp_path / "sweep").mkdir()
    run = runs.copied_run(tmp_path / "sweep")
    job = {"event": "job", "time": 1, "key": "k", "label": "l", "overrides": []}
    for name in (run.name, "../victim", ".."):
        with open(tmp_path / "sweep/jobs.jsonl", "a") as file:
            file.write(json.dumps({**job, "name": name}) + "\n[1]\n{}\n" + "[" * 100_000 + "\n")
    assert [it["name"] for it in Journal(tmp_path / "sweep").added()] == [run.name]
    command = ("sweep", f"out={tmp_path}/sweep", "seed=1")
    (run / "console.log").symlink_to(tmp_path / "victim")
    assert "console.log: is a link" in refusal(monkeypatch, capfd, *command)
    (tmp_path / "sweep/sweep.lock").symlink_to(tmp_path / "victim")
    assert "sweep.lock: is a link" in refusal(monkeypatch, capfd, *command)
    assert not (tmp_path / "victim").exists()


@pytest.mark.parametrize(
    ("group", "options"),
    [
        ("logger", {"_target_": "pytorch_lightning.loggers.CSVLogger", "save_dir": "elsewhere"}),
        ("logger", {"_target_": "pytorch_lightning.loggers.CSVLogger", "name": "../../elsewhere"}),
        ("logger", {"_target_": "attnorm.training.loggers.Wandb", "run_folder": "elsewhere"}),
        ("logger", {"_target_": "attnorm.training.loggers.Wandb", "entry": "/elsewhere"}),
        ("logger", {"_target_": "pytorch_lightning.loggers.MLFlowLogger", "tracking_uri": "http://a.b"}),
        ("logger", {"_target_": "pytorch_lightning.loggers.WandbLogger", "settings": [{"root_dir": "elsewhere"}]}),
        ("callbacks", {"_target_": "pytorch_lightning.callbacks.ModelCheckpoint", "dirpath": "elsewhere"}),
    ],
)
def test_a_run_folder_does_not_say_where_a_resumed_run_writes(tmp_path, group, options):
    run = runs.copied_run(tmp_path)
    runs.edit(run, f"{group}.mine", options)
    key = f"{group}.mine.{[*options][1]}"
    with pytest.raises(ConfigError, match=f"type ~{group}.mine|type {key}") as caught:
        recorded_settings(run, [])
    assert "trust_code=true" in str(caught.value) and key in str(caught.value)
    for typed in ("trust_code=true", f"~{group}.mine"):
        recorded_settings(run, [typed])
    if isinstance(options[[*options][1]], str):
        settings, _ = recorded_settings(run, [f"++{key}=here"])
        assert settings[group]["mine"][[*options][1]] == "here"


def test_an_entry_is_not_named_like_a_path(tmp_path):
    run = runs.copied_run(tmp_path)
    runs.edit(run, "logger", {"../x": {"_target_": "attnorm.training.loggers.Wandb"}})
    settings, _ = recorded_settings(run, [])
    with pytest.raises(ConfigError, match=re.escape("logger.../x: an entry must have a name without /")):
        read_settings(settings)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["../../x", "/x", "..", "a/b", ""])
def test_the_name_of_a_task_is_that_of_a_folder(monkeypatch, tmp_path, capfd, name):
    monkeypatch.chdir(tmp_path)
    typed = (*runs.tiny_overrides(), f"task.name={name}", "paths.log_dir=a/b/logs")
    assert "task.name" in refusal(monkeypatch, capfd, "train", *typed)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    run = runs.copied_run(tmp_path)
    runs.edit(run, "task.name", name)
    assert "task.name" in refusal(monkeypatch, capfd, "eval", f"run={run}")


def test_the_cache_that_a_run_folder_names_is_used_only_if_it_is_one(tmp_path):
    run = runs.copied_run(tmp_path)
    (tmp_path / "other").mkdir()
    for folder in ("none", "other"):
        runs.edit(run, "paths.cache_dir", str(tmp_path / folder))
        assert read_run(run)["paths"]["cache_dir"] == ".cache"
        assert recorded_settings(run, [])[0]["paths"]["cache_dir"] == ".cache"
        assert read_run(run, trust_code=True)["paths"]["cache_dir"] == str(tmp_path / folder)
        assert read_run(run, typed=["paths.cache_dir"])["paths"]["cache_dir"] == str(tmp_path / folder)
    (tmp_path / "other/rows-1").mkdir()
    (tmp_path / "other/rows-1/manifest.json").touch()
    assert read_run(run)["paths"]["cache_dir"] == str(tmp_path / "other")


# files of any content


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("seed", [1]), ("seed", None), ("seed", "1"), ("task.name", 3), *((it, ...) for it in REQUIRED_GROUPS)),
        *(("run", "abc"), ("decoding", [1]), ("callbacks", "abc"), ("logger", 1)),
    ],
)
def test_what_every_run_records_is_there(monkeypatch, tmp_path, capfd, key, value):
    run = runs.copied_run(tmp_path)
    if value is ...:
        record = json.loads((run / "run.json").read_text())
        del record["settings"][key]
        (run / "run.json").write_text(json.dumps(record))
    else:
        runs.edit(run, key, value)
    for command in (("eval", f"run={run}"), ("compare", f"against={run}"), ("train", f"resume={run}")):
        assert f"run.json: {key}" in refusal(monkeypatch, capfd, *command)


@pytest.mark.parametrize("name", ["summary.json", "eval_test.json"])
@pytest.mark.parametrize("content", ["[" * 200_000, "[1]", "nothing", '{"a": 1'])
def test_other_json_is_as_good_as_none(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    assert read_record(tmp_path / name) == {}


@pytest.mark.parametrize(
    ("column", "values", "words"),
    [
        ("rouge1", lambda it: it.astype(str), "rouge1"),
        ("loss_sum", lambda it: it.astype(str), "loss_sum"),
        ("n_tokens", lambda it: [[1]] * len(it), "n_tokens"),
        ("id", lambda it: [[name] for name in it], "id"),
        ("id", lambda it: ["a"] * len(it), "id"),
        ("group", lambda it: [[name] for name in it], "group"),
        ("selecting", lambda it: it.astype(str), "selecting"),
    ],
)
def test_predictions_of_other_types_are_refused(tmp_path, column, values, words):
    run = runs.copied_run(tmp_path)
    path = run / "predictions/validation.parquet"
    table = pandas.read_parquet(path)
    table[column] = values(table[column])
    table.to_parquet(path)
    with pytest.raises(RunError, match=words):
        example_table(Run(run), "validation")


def junk(change):
    """A function that changes the content of the last checkpoint of a run."""

    def spoil(run):
        path = run / "checkpoints/last.ckpt"
        content = runs.load(run, "last")
        change(content)
        torch.save(content, path)

    return spoil


def in_optimizer(change):
    return junk(lambda content: change(content["optimizer_states"][0]))


RESUMED = {  # content of a checkpoint
    "no optimizer states": junk(lambda content: content.update(optimizer_states=[])),
    "optimizer states of numbers": junk(lambda content: content.update(optimizer_states=[1])),
    "no groups of parameters": in_optimizer(lambda it: it.update(param_groups=[])),
    "loops of texts": junk(lambda content: content.update(loops={"fit_loop": "x"})),
    "callbacks of texts": junk(lambda content: content.update(callbacks=dict.fromkeys(content["callbacks"], "x"))),
    "schedules of texts": junk(lambda content: content.update(lr_schedulers=["x"])),
    "settings with numbers as keys": junk(lambda content: content["run"]["settings"].update({1: 2})),
    "a logged row that is a list": junk(lambda content: content.update(logged=[1])),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", RESUMED)
def test_a_checkpoint_that_no_run_saves_is_not_resumed_from(monkeypatch, tmp_path, capfd, what):
    run = runs.copied_run(tmp_path)
    (run / "summary.json").unlink()
    RESUMED[what](run)
    for name in ("best", "previous"):
        (run / f"checkpoints/{name}.ckpt").unlink()
    assert "last.ckpt: " in refusal(monkeypatch, capfd, "train", f"resume={run}")
