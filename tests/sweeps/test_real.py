"""Sweeps of real, tiny runs: checking before the first one starts, and being killed and continued."""

import hashlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing

import pytest
import runs
from sweeping import events, report, wait_for
from sweeping import kill as kill_sweep

from attnorm.errors import RunError
from attnorm.run.record import run_key
from attnorm.run.run import Run
from attnorm.sweeps.check import CheckedJob, Checker
from attnorm.sweeps.jobs import readable
from attnorm.sweeps.planner import refuse_other_code
from attnorm.sweeps.state import Journal

pytestmark = [pytest.mark.training, pytest.mark.slow]  # it starts processes


def attnorm(cwd, *arguments):
    """`python -m attnorm sweep <arguments>` with tiny runs."""
    return runs.command("-m", "attnorm", "sweep", *runs.tiny_overrides(), *arguments, cwd=cwd, env=source())


def source():
    paths = (str(runs.ROOT / "src"), os.environ.get("PYTHONPATH", ""))
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths))}  # an empty entry is the working directory


def test_every_job_is_checked_before_the_first_one_starts(tmp_path):
    wrong = ("seed=1,2,3", "model.dropout=0.1,1.5", "model.n_heads=2,3", "optimizer.rate=1", "out=s")
    ended = attnorm(tmp_path, *wrong)
    assert ended.returncode == 2 and not list(tmp_path.rglob("*.jsonl")) and not list(tmp_path.rglob("config.yaml"))
    said = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
    assert len(said) == len(set(said)) == 2, ended.stderr  # what groups demand of each other follows once each is right
    words = ("model.dropout=1.5", "n_heads=2 model.dropout=1.5 seed=1;", "and 3 more")
    assert any(all(word in it for word in words) for it in said)
    assert any("optimizer.rate" in it and "(in " not in it for it in said)  # all jobs have it


def test_the_key_of_a_job_is_that_of_its_run():
    overrides = readable([*runs.tiny_overrides("mlm"), "attention=hnas", "seed=3", "tags=[a]"])
    changed = (*overrides, "seed=4"), (*overrides, "++paths.log_dir=x")
    with closing(Checker([runs.CONF])) as checker:
        default = readable([*runs.tiny_overrides("mlm"), "attention=hnas"])
        jobs = [overrides, *changed, default, [*overrides, "attention=hans"]]
        [found, other, same, equal, unknown] = checker.check(jobs)
    assert not found.problems and found.task == "mlm" and (found.monitor, found.mode) == ("val/loss", "min")
    assert found.key == same.key != other.key and not found.uses_gpu
    recorded = run_key(Run(runs.finished_run("mlm")).config)
    assert equal.key == recorded != found.key  # which has another seed and label
    [(key, problem)] = unknown.problems  # a file that is not there is a problem of its job
    assert key == "attention" and "hans" in problem and "hnas" in problem


@pytest.mark.parametrize(("task", "mode"), [("squad", "max"), ("classify", "max"), ("vqa", "max"), ("gigaword", "min")])
def test_the_metric_of_a_search_is_that_of_the_task(task, mode):
    from attnorm.parts import class_of
    from attnorm.tasks.task import Task

    monitor, found = class_of("task", runs.tiny(task=task)["task"], Task).objective()
    assert found == mode and monitor.startswith("val/")


def test_a_sweep_of_real_runs_is_killed_and_continued(tmp_path):
    """Two runs; kill -9 of the sweep, then of a run, then SIGTERM: each job finishes once, with the curves of a run
    that was not interrupted."""
    lab = runs.ROOT / "src/attnorm/skeleton/lab"
    shutil.copytree(lab, tmp_path / "lab", ignore=shutil.ignore_patterns("__pycache__"))
    typed = ("attention=softmax,lab.normalizer:Tempered", "seed=1", "out=s", "task.max_steps=150", "retries=1")
    typed += ("task.validations=6", "run.save_every_steps=5", "callbacks.attention_stats.every_n_steps=0")
    begin = [*runs.tiny_overrides(), *typed]

    def start():
        command = [sys.executable, "-m", "attnorm", "sweep", *begin]
        return subprocess.Popen(command, cwd=tmp_path, env={**os.environ, **source(), "OMP_NUM_THREADS": "1"})

    def step_of(lock):
        return Run(lock.parent).progress["step"]

    sweep = start()
    wait_for(lambda: (tmp_path / "s/jobs.jsonl").exists() and len(events(tmp_path / "s", "place")) == 1, 60)
    time.sleep(1)  # its run imports its libraries
    kill_sweep(sweep)
    sweep = start()
    wait_for(lambda: len(list((tmp_path / "s").glob("*/checkpoints/last.ckpt"))) == 2, 90)
    [running] = [path for path in (tmp_path / "s").glob("*/run.lock") if Run(path.parent).state == "running"]
    os.kill(int(running.read_text()), signal.SIGKILL)
    killed_at = step_of(running)
    wait_for(lambda: len(events(tmp_path / "s", "start")) == 3 and step_of(running) > killed_at, 90)
    sweep.send_signal(signal.SIGTERM)
    assert sweep.wait(60) == 143
    sweep = start()
    assert sweep.wait(180) == 0
    found = report(tmp_path / "s")
    assert [it["state"] for it in found["jobs"]] == ["finished"] * 2 and found["unfinished"] == 0
    whole = runs.tiny_run(tmp_path / "whole", "attention=softmax", "seed=1", *typed[3:4], *typed[5:])
    [same] = [it for it in found["jobs"] if "attention=softmax" in it["overrides"]]
    assert same["best_value"] == whole["best_value"] and same["steps"] == 150
    for folder in (tmp_path / "s").glob("*/"):
        assert sorted(runs.logged(folder, "train/loss")) == list(range(1, 151))


OWN = {
    "own_norm": "import own_base\nfrom own_helper import SCALE\nclass Mine(own_base.Base):\n    scale = SCALE\n",
    "own_base": "from attnorm.attention.normalizers.softmax import Softmax\nclass Base(Softmax):\n    pass\n",
    "own_helper": "SCALE = 1.0\n",
}
LIBRARIES = ("attnorm", "numpy", "pandas", "torch", *filter(importlib.util.find_spec, sys.stdlib_module_names))
COUNTED = """
import os, sys
from attnorm.cli.main import main
from attnorm.sweeps.forkserver import ForkServer

def start(*arguments, original=ForkServer.start):
    process = original(*arguments)
    print("forked:", process is not None)
    return process

ForkServer.start = start
sys.exit(main())
"""


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A folder with parts of one's own, with modules named like libraries, and with a sweep `s` of two runs that were
    forked. It is to be read only."""
    folder = tmp_path_factory.mktemp("swept")
    for name in LIBRARIES:
        (folder / f"{name}.py").write_text("raise RuntimeError('planted')")
    for name, text in OWN.items():
        (folder / f"{name}.py").write_text(text)
    typed = (*runs.tiny_overrides(), "attention=own_norm.Mine,hnas", "seed=4", "out=s")
    ended = runs.command("-P", "-c", COUNTED, "sweep", *typed, cwd=folder, env=source())
    assert ended.returncode == 0 and ended.stdout.count("forked: True") == 2, ended.stdout + ended.stderr
    return folder


def test_forked_runs_equal_another_one(swept):
    """Also the second run of a server."""
    other, [forked] = runs.uninterrupted("attention=hnas", "seed=4"), (swept / "s").glob("*hnas*")
    assert runs.same_run(other, forked)
    predictions = [f"predictions/{file.name}" for file in (other / "predictions").iterdir()]
    assert predictions and all((other / it).read_bytes() == (forked / it).read_bytes() for it in predictions)


def test_a_sweep_is_continued_elsewhere_without_the_checkpoints_of_finished_runs(swept, monkeypatch, tmp_path, capsys):
    shutil.copytree(swept / "s", tmp_path / "s", ignore=shutil.ignore_patterns("checkpoints"))
    for name in OWN:
        shutil.copy(swept / f"{name}.py", tmp_path)
    ended = attnorm(tmp_path, "attention=own_norm.Mine,hnas,uniform", "seed=4", "out=s")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("finished before") == 2
    assert [it["state"] for it in report(tmp_path / "s")["jobs"]] == ["finished"] * 3
    monkeypatch.chdir(tmp_path)
    assert runs.call(monkeypatch, "compare", "against=s", "baseline=hnas") == 0
    assert "uniform" in capsys.readouterr().out


def test_a_sweep_does_not_mix_two_versions_of_an_own_module(swept, tmp_path):
    def content():
        files = sorted(path for path in (tmp_path / "s").rglob("*") if path.is_file())
        return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}

    for name in OWN:
        shutil.copy(swept / f"{name}.py", tmp_path)
    shutil.copytree(swept / "s", tmp_path / "s")
    [record] = (tmp_path / "s").glob("*Mine*/run.json")
    digests = {name: hashlib.sha256(text.encode()).hexdigest()[:16] for name, text in OWN.items()}
    written = json.loads(record.read_text())
    assert written["modules"] == digests
    before = content()
    (tmp_path / "own_helper.py").write_text("SCALE = 2.0\n")
    ended = attnorm(tmp_path, "attention=own_norm.Mine,hnas", "seed=4", "out=s")
    assert ended.returncode == 2 and content() == before, ended.stdout + ended.stderr
    said, now = " ".join(ended.stderr.split()), hashlib.sha256(b"SCALE = 2.0\n").hexdigest()[:16]
    assert "own_helper was edited" in said and digests["own_helper"] in said and now in said
    refuse_other_code(Journal(tmp_path / "s"), [CheckedJob(modules=digests)])
    for name in OWN:
        with pytest.raises(RunError, match=f"{name} was edited"):
            refuse_other_code(Journal(tmp_path / "s"), [CheckedJob(), CheckedJob(modules=digests | {name: now})])
    del written["modules"]  # anyone may have written the record
    record.write_text(json.dumps(written))
    refuse_other_code(Journal(tmp_path / "s"), [CheckedJob(modules=dict.fromkeys(OWN, now))])


@pytest.mark.timeout(900)  # at least ten processes that import their libraries
def test_a_real_sweep_tunes_and_compares(tmp_path):
    typed = [it for it in runs.tiny_overrides() if not it.startswith("optimizer.lr=")]
    typed += ["attention=softmax,hnas", "seed=110", "tune=optimizer.lr=1e-2,1", "tune_seeds=100", "out=s"]
    ended = runs.command("-m", "attnorm", "sweep", *typed, "jobs=2", cwd=tmp_path, env=source())
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = report(tmp_path / "s")
    best = {it["arm"]: it["best"] for it in found["tuning"]["arms"]}
    compared = {it["arm"]: it["overrides"] for it in found["jobs"] if it["purpose"] == "compare"}
    assert compared.keys() == best.keys()
    assert all(f"optimizer.lr={best[arm]}" in overrides for arm, overrides in compared.items())
    assert (tmp_path / "s/report.html").is_file()
