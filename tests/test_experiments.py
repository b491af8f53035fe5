"""experiments/stages.py: runs that are made once, go on where they stopped, and are never taken for others."""

import importlib.util
import json
import subprocess

import pytest
import runs

SPEC = importlib.util.spec_from_file_location("stages", runs.ROOT / "experiments/stages.py")
stages = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(stages)


@pytest.fixture
def commands(monkeypatch):
    """The commands that were run: a first one fails, later ones finish; each leaves a checkpoint."""
    run = []

    def train(command, stdout, **options):
        named = ("hydra.run.dir=", "resume=")
        [folder] = [runs.Path(word.partition("=")[2]) for word in command if word.startswith(named)]
        (folder / "config.yaml").touch()
        run.append(command)
        stdout.write(f"line {len(run)}\n")
        state = "finished" if len(run) > 1 else "failed"
        (folder / "summary.json").write_text(json.dumps({"state": state, "number": len(run)}))
        return subprocess.CompletedProcess(command, int(len(run) == 1))

    monkeypatch.setattr(stages.subprocess, "run", train)
    return run


def test_a_stage_that_failed_goes_on_and_one_that_finished_is_not_run_again(tmp_path, commands):
    folder = tmp_path / "softmax_1"
    with pytest.raises(SystemExit, match=r"line 1\nsoftmax_1 failed; all of it is in .*softmax_1\.log"):
        stages.stage(folder, "task=mlm", "seed=1")
    assert stages.stage(folder, "task=mlm", "seed=1")["number"] == 2
    assert stages.stage(folder, "seed=1", "task=mlm")["number"] == 2 and len(commands) == 2
    assert {"task=mlm", "seed=1"} < set(commands[0])
    assert commands[1][2:] == [f"resume={folder}"]  # its settings are in the folder


def test_a_run_with_other_overrides_is_not_taken_for_this_one(tmp_path, commands):
    commands.append(None)  # nothing fails
    stages.stage(tmp_path / "run", "task=mlm", "model=bert_tiny")
    with pytest.raises(SystemExit, match="differs in model=bert_base, model=bert_tiny; choose another --folder"):
        stages.stage(tmp_path / "run", "task=mlm", "model=bert_base")
    (tmp_path / "foreign").mkdir()
    with pytest.raises(SystemExit, match="foreign holds another run"):
        stages.stage(tmp_path / "foreign", "task=mlm")


def test_a_table_and_its_spread():
    assert stages.table(["", "F1"], [["dnas", "1.00"]]) == "|  | F1 |\n| --- | --- |\n| dnas | 1.00 |"
    assert [stages.spread([2.0]), stages.spread([1.0, 2.0, 3.0])] == ["2.00", "2.00 +- 1.00"]
