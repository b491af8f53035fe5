"""A laboratory of one's own: every part comes from outside the repository, named in YAML files outside it.

The files that `attnorm new` writes are copied into an empty folder, from which the installed command runs. None of the
classes extends a shipped task or model.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import runs

LAB = runs.ROOT / "src/attnorm/skeleton/lab"
TRAIN = ("train", "--config-dir", "lab/conf", "task=sums", "attention=lab.normalizer:Tempered", "paths.log_dir=logs")
pytestmark = pytest.mark.training


@pytest.fixture
def folder(tmp_path):
    """An empty folder with a copy of the laboratory."""
    shutil.copytree(LAB, tmp_path / "lab", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Such a folder after a training, of which `git` sees nothing. It is to be read only."""
    before, folder = git_state(), tmp_path_factory.mktemp("trained")
    shutil.copytree(LAB, folder / "lab", ignore=shutil.ignore_patterns("__pycache__"))
    ended = attnorm(folder, *TRAIN)
    assert ended.returncode == 0, ended.stderr
    assert git_state() == before or not runs.ROOT.joinpath(".git").exists()
    return folder


def attnorm(folder: Path, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess:
    """`python -m attnorm <arguments>` in that folder."""
    return runs.command("-m", "attnorm", *arguments, cwd=folder, env=env)


def run_of(folder: Path, log_dir: str = "logs") -> Path:
    """The only run folder."""
    [config] = (folder / log_dir).rglob("config.yaml")
    return config.parent


def git_state() -> str:
    return subprocess.run(["git", "status", "--porcelain"], cwd=runs.ROOT, capture_output=True, text=True).stdout


@pytest.mark.slow
def test_every_part_can_come_from_outside(trained):
    run = run_of(trained)
    summary = json.loads((run / "summary.json").read_text())
    assert summary["state"] == "finished" and summary["monitor"] == "val/solved" and summary["attention"] == "Tempered"
    examples = pd.read_parquet(run / "predictions/validation.parquet")  # what runs of the task are compared on
    assert len(examples) == 120 and ((examples["reference"] == examples["output"]) == (examples["solved"] == 100)).all()
    assert examples["solved"].mean() == pytest.approx(summary["validation"]["metrics"]["solved"])
    assert (run / "steps.txt").read_text().split() == [str(step) for step in range(1, 41)]  # the callback
    assert "val/solved" in (run / "lines.txt").read_text()  # the logger
    rates = {round(rate, 6) for rate in runs.logged(run, "train/lr").values()}  # logged in float32
    assert rates == {0.005, 0.0025, 0.00125}  # the optimizer and the scheduler
    temperatures = (run / "temperatures.csv").read_text().splitlines()  # the normalizer's learned scalar
    assert temperatures[0] == "step,layer,head,value,lr_factor"
    assert len({line.split(",")[3] for line in temperatures[1:]}) > 2
    assert (run / "figures" / "temperatures.png").is_file()


@pytest.mark.slow
def test_a_new_folder_trains_at_once(monkeypatch, tmp_path):
    """Without options, with its own normalizer, from the command and from Python, and its test passes."""
    monkeypatch.chdir(tmp_path)
    assert runs.call(monkeypatch, "new", "my_lab") == 0
    folder = tmp_path / "my_lab"
    assert {path.name for path in folder.iterdir()} == {"README.md", "conf", "my_lab", "tests", "train.sbatch"}
    assert f"```text\n{(folder / 'train.sbatch').read_text()}```" in (runs.ROOT / "docs/clusters.md").read_text()
    assert subprocess.run(["bash", "-n", folder / "train.sbatch"]).returncode == 0
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) == 19 and not [path for path in files if re.search(r"\blab\b", path.read_text())]
    [trained, *_] = [line for line in (folder / "README.md").read_text().splitlines() if "my_lab.normalizer." in line]
    ended = attnorm(folder, *shlex.split(trained)[1:])
    assert ended.returncode == 0, ended.stderr
    summary = json.loads((run_of(folder) / "summary.json").read_text())
    assert summary["state"] == "finished" and summary["attention"] == "Tempered"
    code = "import attnorm; print(attnorm.train(task='sums', attention='my_lab.normalizer.Tempered', seed=2).scores)"
    ended = runs.command("-c", code, cwd=folder)
    assert ended.returncode == 0 and "solved" in ended.stdout.splitlines()[-1], ended.stderr
    tested = runs.command("-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=folder)
    assert tested.returncode == 0, tested.stdout
    ruff = "-m ruff check --isolated --line-length=120 --select=E,F,W,B,UP --no-cache ."
    checked = runs.command(*ruff.split(), cwd=folder)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("full", "full: must be new or empty"),
        ("my-lab", "my-lab: 'my-lab' cannot be the name of a package: use letters, digits and _"),
        ("torch", "torch: there is a module called torch already; choose another name"),
        ("__main__", "__main__: there is a module called __main__ already; choose another name"),
        ("dangling", "dangling: must be new or empty"),
        ("a" * 300, f"{'a' * 300}: cannot be made: File name too long"),
    ],
)
def test_a_folder_that_cannot_be_written_is_refused(monkeypatch, tmp_path, capsys, name, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file.txt").touch()
    (tmp_path / "dangling").symlink_to("nowhere")
    assert runs.call(monkeypatch, "new", name) == 2
    assert capsys.readouterr().err == f"error: folder={message}\n"
    left = [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*"))]
    assert left == ["dangling", "full", "full/file.txt"]


@pytest.mark.slow
def test_a_run_of_own_parts_is_scored_only_if_they_are_trusted(trained, tmp_path):
    folder = Path(shutil.copytree(trained, tmp_path / "copy"))
    run = run_of(folder)
    summary = json.loads((run / "summary.json").read_text())
    refused = attnorm(folder, "eval", f"run={run}")
    assert refused.returncode == 2
    for part in ("task", "model", "data", "tokenizer"):
        assert f"error: {part}._target_='lab." in refused.stderr
    assert "optimizer" not in refused.stderr and "trust_code=true" in refused.stderr
    for options, env in (((f"run={run}", "trust_code=true"), None), ((f"run={run}",), {"ATTNORM_TRUST": "lab"})):
        evaluated = attnorm(folder, "eval", *options, env=env)
        assert evaluated.returncode == 0, evaluated.stderr
    for name in ("eval_validation", "eval_validation_2"):
        assert json.loads((run / f"{name}.json").read_text())["metrics"] == summary["validation"]["metrics"]


@pytest.mark.slow
def test_a_run_of_own_parts_that_was_killed_resumes_bit_for_bit(trained, folder):
    killed = subprocess.Popen(
        [sys.executable, "-m", "attnorm", *TRAIN[:-1], "paths.log_dir=killed", "task.validations=8"],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until = time.monotonic() + 90
    while not list((folder / "killed").rglob("last.ckpt")) and time.monotonic() < until and killed.poll() is None:
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    [checkpoint] = (folder / "killed").rglob("last.ckpt")
    resumed = attnorm(folder, *TRAIN, "task.validations=8", f"ckpt_path={checkpoint}", "paths.log_dir=resumed")
    assert resumed.returncode == 0, resumed.stderr
    first, second = run_of(trained), run_of(folder, "resumed")
    assert runs.unequal(runs.parameters(first), runs.parameters(second)) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "messages",
    [
        {
            "model.sise=3": "Mixer has no such option; it has depth, heads, longest, size. Did you mean 'size'?",
            "optimizer.momentun=1": "Did you mean 'momentum'?",
        },
        {"callbacks.steps.nam=x": "Steps has no such option; it has name. Did you mean 'name'?"},
        {"data.largest=10000000": "data.largest=10000000: allowed: up to 9,999,999, so that a sum fits model.longest"},
        {"task._target_=lab.source.Sums": "must be a subclass of attnorm.tasks.task.Task"},
        {
            "data=newswire": "Newswire yields pairs, but this task needs sums",
            "model=tiny": "has the interface 'seq2seq', but this task trains models with 'digits'",
        },
    ],
    ids=["options", "callback", "positions", "class", "interfaces"],
)
def test_mistakes_in_own_parts_are_named(monkeypatch, capsys, folder, messages):
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    for name in [name for name in sys.modules if name.partition(".")[0] == "lab"]:
        monkeypatch.delitem(sys.modules, name)
    assert runs.call(monkeypatch, *TRAIN, *messages) == 2
    printed = capsys.readouterr().err
    assert [message for message in messages.values() if message not in printed] == []
