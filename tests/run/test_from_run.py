"""`from=<run>`: a new run with the settings of another one, and what is typed after it."""

import json

import pytest
import runs

from attnorm.cli import main, train
from attnorm.errors import is_in
from attnorm.run.run import Run
from attnorm.settings import leaves

AFRESH = ("paths", "resume", "ckpt_path")


@pytest.fixture
def old(monkeypatch, tmp_path):
    """A finished run with settings that no file has, in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    run = runs.copied_run(tmp_path)
    runs.edit(run, "paths", {"log_dir": "elsewhere", "cache_dir": ".cache"})
    runs.edit(run, "run.ladder", {"rung": 1, "compute": 1e6})
    runs.edit(run, "optimizer.lr", 0.0123)
    runs.edit(run, "tags", ["${seed}"])
    return run


@pytest.fixture
def started(monkeypatch, capsys):
    """The command: it returns the settings and the folder of the run that it would start, or what it refuses."""

    def command(*typed):
        told = []
        monkeypatch.setattr(train, "start", lambda *facts: told.append(facts))
        code = main.run("train", [*typed])
        said = capsys.readouterr().err
        assert (code, len(told)) in ((0, 1), (2, 0)), said
        assert told or "error" in said
        return told[0] if told else said

    return command


def differences(before, after):
    """The flat keys in which settings differ, without those that a run does not take."""
    pair = [{key: value for key, value in leaves(each) if key.split(".")[0] not in AFRESH} for each in (before, after)]
    return {key for key in {**pair[0], **pair[1]} if pair[0].get(key) != pair[1].get(key)}


@pytest.mark.parametrize(
    ("typed", "changed"),
    [
        ((), set()),
        (("seed=7", "model.dropout=0.2"), {"seed", "model.dropout"}),
        (("optimizer=adam",), {"optimizer"}),
        (("attention.encoder=dnas",), {"attention.encoder", "attention.options"}),  # those of hnas have no effect
        (("attention=dnas",), {"attention.encoder", "attention.options"}),
        (("callbacks=null",), {"callbacks"}),
    ],
)
def test_the_settings_are_those_of_the_run_but_for_what_is_typed(old, started, tmp_path, typed, changed):
    before, files = Run(old).config, runs.contents(old)
    config, folder, overrides = started("from=run", *typed)
    differing = differences(before, config.settings)
    groups = {*changed, "run.ladder"}
    assert {group for group in groups for key in differing if is_in(key, group)} == groups
    assert all(any(is_in(key, group) for group in groups) for key in differing)
    assert config.settings["run"]["ladder"] is None and config.settings["paths"]["log_dir"] == "logs"
    assert folder.is_relative_to(tmp_path / "logs/gigaword") and runs.contents(old) == files
    assert overrides == [*Run(old).recorded.get("overrides", []), *typed]


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (("from=nowhere",), "error: from=nowhere: no such folder\n"),
        (("from=conf",), "error: from=conf: no run.json there, so it is not a run folder\n"),
        (("from=last",), "error: from=last: there is no run below logs\n"),
        (("from=run", "task=mlm"), "error: task=mlm: sets keys of several groups, which are those of from=run here"),
        (("from=run", "optimizer.rate=1"), "optimizer.rate=1"),
        (("from=run", "--cfg", "job"), "error: from=run: the settings of a run are in its config.yaml, and not shown"),
        (("from=run", "attention=hnsa"), "Did you mean 'hnas'?"),
    ],
)
def test_what_is_no_run_or_would_replace_it_is_refused(old, started, tmp_path, typed, message):
    (tmp_path / "conf").mkdir()
    files = runs.contents(tmp_path)
    assert message in started(*typed)
    assert runs.contents(tmp_path) == files


def test_code_that_a_run_names_is_imported_if_it_is_trusted_or_another_class_is_typed(old, started, tmp_path):
    (tmp_path / "planted.py").write_text(
        "from attnorm.attention.normalizers.softmax import Softmax\nopen('mark', 'w')\nclass Mine(Softmax): pass\n"
    )
    runs.edit(old, "attention.encoder", "planted.Mine")
    assert "this run folder names code outside attnorm" in started("from=run")
    config, *_ = started("from=run", "attention.encoder=softmax")
    assert config.settings["attention"]["encoder"] == "softmax" and not (tmp_path / "mark").exists()
    config, *_ = started("from=run", "trust_code=true")
    assert config.settings["attention"]["encoder"] == "planted.Mine" and (tmp_path / "mark").exists()


def test_a_sweep_has_no_other_run(capsys):
    assert main.run("sweep", ["from=run", "seed=1,2"]) == 2
    assert "from=run: each job of a sweep is composed of the settings that are typed" in capsys.readouterr().err


@pytest.mark.training
def test_a_run_from_another_one_is_bit_equal_to_it(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    old = runs.finished_run()
    assert main.run("train", [f"from={old}", "tags=[again]"]) == 0
    [new] = (tmp_path / "logs").glob("*/*/*")
    assert runs.same_run(old, new) and json.loads((new / "run.json").read_text())["settings"]["tags"] == ["again"]
