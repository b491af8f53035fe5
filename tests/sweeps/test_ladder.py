"""Ladders in a sweep: what a rung may set, how long it trains, and that its jobs are jobs like any others."""

import json
import math

import pytest
import runs
import yaml
from sweeping import assert_each_once, attempts, begin, kill, report, steps, sweep, wait_for

from attnorm.analysis.ladder.ladder_runs import ladder_of, scores_of_places
from attnorm.choices import CONF
from attnorm.cli import sweep as command
from attnorm.cli import train as single
from attnorm.run.run import Run
from attnorm.sweeps.check import Sized
from attnorm.sweeps.command import read_sweep
from attnorm.sweeps.jobs import override_key
from attnorm.sweeps.ladder import read_ladder
from attnorm.sweeps.rungs import with_rungs

RUNGS = [{"model.d_model": 16, "data.batch_tokens": 64}, {"model.d_model": 32, "data.batch_tokens": 128}]
RUNGS += [{"model.d_model": 64, "optimizer.lr": 0.01, "beyond": True}]


def write(folder, content=None, name="own", **changes):
    """A file of the group in a configuration folder; returns the option that finds it."""
    path = folder / "conf/ladder" / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"tokens_per_parameter": 5, "rungs": RUNGS, **changes} if content is None else content
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False))
    return f"--config-dir={folder}/conf"


class SizesOfWidth:
    """Says how large a job is from its width: a model of another attention has 7 more parameters."""

    def check(self, jobs):
        from driver import NoChecker

        return NoChecker([]).check(jobs)

    def sizes(self, jobs):
        self.jobs, found = jobs, []
        for job in jobs:
            typed = dict(override.lstrip("+").split("=", 1) for override in job)
            width, more = int(typed["model.d_model"]), 7 * (typed["attention"] != "softmax")
            found.append(Sized(12 * width**2 + more, 6.0 * width, 50.0, updates_per_epoch=100))
        return found


def planned(*typed):
    return with_rungs(read_sweep(typed), SizesOfWidth())


def values(job):
    return dict(override.lstrip("+").split("=", 1) for override in job)


BAD = {  # the content of the file, or changes to it: words of the message
    "no yaml: [": "while parsing a flow node",
    "- 1": "expected tokens_per_parameter and rungs",
    '{"tokens_per_parameter": 0}': "tokens_per_parameter=0: allowed: numbers above 0",
    '{"tokens_per_parameter": "5"}': "tokens_per_parameter=5: allowed: numbers above 0",
    '{"rungs": []}': "rungs: expected at least one that is not beyond",
    '{"rungs": [{"model.d_model": 8, "beyond": true}]}': "rungs: expected at least one that is not beyond",
    '{"rungs": [{"model.d_model": 8, "beyond": 1}]}': "rung 1: beyond=1: allowed: true, false",
    '{"rungs": 3}': "rungs=3: allowed:",
    '{"tokens": 3}': "tokens=3: a ladder has no such option; it has rungs, tokens_per_parameter",
    '{"rungs": [{"model.d_model": 8}, {"model.d_model": 4}, {"model.d_model": 8}]}': "rungs 1 and 3 are equal",
    '{"rungs": [{"model.d_model": 8, "task.mask_prob": 0.1}]}': "rung 1: task.mask_prob may not differ between rungs",
    '{"rungs": [{"data.batch_tokens": 8, "data.train_size": 9}]}': "rung 1: data.train_size may not differ",
    '{"rungs": [{"model": 8}]}': "rung 1: model may not differ",
    **{
        json.dumps({"rungs": [{"model.d_model": 8, key: 8}]}): f"rung 1: {key} may not differ between rungs; allowed:"
        for key in ("model.max_target", "model.max_source", "trainer.max_steps", "trainer.max_epochs", "tokenizer.x")
    },
}  # fmt: skip
TYPED = {
    "ladder=owm": "ladder=owm: allowed: gpt, mlm, own. Did you mean 'own'?",
    "ladder=own model.d_model=8": "model.d_model: is set by the rungs of ladder=own; leave it out",
    "ladder=own +optimizer.lr=1": "optimizer.lr: is set by the rungs of ladder=own; leave it out",
    "ladder=own trainer.max_steps=8": "trainer.max_steps: the rungs of ladder=own set the number of updates",
    "ladder=own task.max_steps=8": "task.max_steps: the rungs of ladder=own set the number of updates",
    "ladder=own trainer.max_epochs=8": "trainer.max_epochs: the rungs of ladder=own set the number of updates",
    "ladder=own model.dropout=0.1,0.2": "model.dropout: with a ladder, arms differ in keys of attention, optimizer",
    "ladder=own tune=model.d_model=8,16 tune_seeds=5": "tune=model.d_model: with a ladder, keys of attention",
    "ladder=own tune=trainer.max_steps=8,16 tune_seeds=5": "tune=trainer.max_steps: with a ladder, keys of attention",
    "ladder=own,gpt": "ladder=own,gpt: allowed: gpt, mlm, own",
    "run.ladder=8": "run.ladder=8: the rungs of a ladder set it; use ladder=<file>",
}


@pytest.mark.parametrize("content", BAD)
def test_a_file_that_is_no_ladder_is_refused_with_what_is_wrong_in_it(tmp_path, capsys, content):
    option = write(tmp_path, **json.loads(content)) if content.startswith("{") else write(tmp_path, content)
    assert command.run_sweep([option, "ladder=own", "seed=1"]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert any(f"own.yaml: {BAD[content]}" in line and "ladder=own: " in line for line in said), said


@pytest.mark.parametrize("typed", TYPED)
def test_what_does_not_go_with_a_ladder_is_refused(tmp_path, capsys, typed):
    assert command.run_sweep([write(tmp_path), "seed=1", *typed.split()]) == 2
    assert any(TYPED[typed] in line for line in capsys.readouterr().err.splitlines() if line.startswith("error: "))


def test_a_single_run_has_no_ladder(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    assert single.run_train(["ladder=gpt", "task=causal_lm"]) == 2
    assert "ladder=gpt: the rungs of a ladder are trained by attnorm sweep" in capsys.readouterr().err


def test_arms_rungs_and_seeds_are_combined_and_the_updates_follow_from_softmax(tmp_path, capsys):
    found = planned(write(tmp_path), "ladder=own", "attention=dnas,hnas", "seed=1,2")
    jobs = [values(job) for job in found.samples()]
    assert len({json.dumps(job) for job in jobs}) == len(jobs) == 2 * 3 * 2
    for job in jobs:
        width = int(job["model.d_model"])
        updates = math.ceil(5 * 12 * width**2 / 50)
        assert int(job["trainer.max_steps"]) == updates and job["trainer.max_epochs"] == "null"
        assert ("optimizer.lr" in job) == (width == 64) and ("data.batch_tokens" in job) == (width < 64)
        record = yaml.safe_load(job["run.ladder"].replace(":", ": "))
        assert record == {
            "rung": {16: 1, 32: 2, 64: 3}[width],
            "beyond": width == 64,
            "parameters": 12 * width**2,
            "own_parameters": 12 * width**2 + 7,
            "train_tokens": updates * 50.0,
            "flops_per_token": 6.0 * width,
            "keys": ["model.d_model", "data.batch_tokens", "optimizer.lr", "trainer.max_steps"],
            "tuned": None,
        }
    assert found.label_of(found.samples()[0]) == "attention=dnas seed=1 rung=1"
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "rung 1: 3,072 parameters, 15,400 tokens, 308 updates, 1.48e+06 FLOPs, 3.08 epochs"
    assert said[1] == "rung 1 has fewer than 1,000 updates, so a trend may measure early training"
    assert said[-2].startswith("rung 3: 49,152 parameters, ") and said[-2].endswith(" 49.16 epochs, held out")
    assert said[-1].startswith("rung 3 repeats its data more than 4 times")
    alone = planned(write(tmp_path), "ladder=own", "attention=dnas", "seed=1")
    assert {values(job)["trainer.max_steps"] for job in alone.samples()} == {job["trainer.max_steps"] for job in jobs}


def test_every_arm_is_tuned_on_every_rung_and_the_values_of_the_rungs_are_replaced(tmp_path):
    typed = (write(tmp_path), "ladder=own", "attention=softmax,hnas", "seed=1,2", "tune=optimizer.lr=1e-3,1e-2")
    found = planned(*typed, "tune_seeds=5")
    jobs = found.samples()
    assert len(jobs) == 2 * 3 * (2 * 1 + 2)  # both values with the tuning seed, and the first with those that compare
    assert all([override_key(it) for it in job].count("optimizer.lr") == 1 for job in jobs)
    assert all("tuned:optimizer.lr" in values(job)["run.ladder"] for job in jobs)
    assert len({found.arm_of(job) for job in jobs}) == 6
    assert found.label_of(found.arm_of(jobs[0])) == "attention=softmax rung=1"


def test_a_rung_that_ends_before_its_first_validation_is_refused(tmp_path, monkeypatch):
    late = [Sized(3072, 1.0, 50.0, 100, validation=400)] * 6
    monkeypatch.setattr(SizesOfWidth, "sizes", lambda self, jobs: late)
    with pytest.raises(
        Exception, match="rung 1 of ladder=own has 308 updates, and the first validation comes after 400"
    ):
        planned(write(tmp_path), "ladder=own", "attention=softmax", "seed=1")


@pytest.mark.parametrize(("name", "task"), [("gpt", "causal_lm"), ("mlm", "mlm")])
def test_built_in_ladders_grow_and_have_valid_rungs(name, task):
    ladder = read_ladder(name, [CONF])
    widths = [rung.values["model.d_model"] for rung in ladder.rungs]
    assert len(widths) == 5 and widths == sorted(set(widths)) and not any(rung.is_beyond for rung in ladder.rungs)
    rates = [rung.values["optimizer.lr"] for rung in ladder.rungs]
    assert rates == sorted(rates, reverse=True)
    for rung in ladder.rungs:
        runs.checked(runs.composed(f"task={task}", *rung.overrides()))


@pytest.mark.training
def test_a_ladder_is_killed_continued_and_extended_as_any_sweep(tmp_path):
    option = write(tmp_path)
    typed = [option, "ladder=own", "out=s", "steps=12", "pause=0.05", "jobs=2"]
    running = begin(tmp_path, *typed, "attention=softmax,dnas", "seed=1")
    wait_for(lambda: steps(tmp_path / "s") > 12)
    kill(running)
    said = sweep(tmp_path, *typed, "attention=softmax,dnas", "seed=1")
    assert_each_once(tmp_path / "s", 6, 12)
    assert said.startswith("rung 1: ") and "attention=dnas rung=3" in " ".join(said.split())
    assert {job["arm"] for job in report(tmp_path / "s")["jobs"]} >= {"attention=dnas rung=1", "attention=dnas rung=3"}
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "s").glob("*/attempts.txt")}
    write(tmp_path, rungs=[*RUNGS, {"model.d_model": 96}])  # a rung, a seed and an arm are added
    sweep(tmp_path, *typed, "attention=softmax,dnas,hnas", "seed=1,2")
    assert len(attempts(tmp_path / "s")) == 3 * 4 * 2
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.training
def test_a_dry_ladder_shows_its_rungs_without_preparing_data_to_size_them(tmp_path):
    said = sweep(tmp_path, write(tmp_path), "ladder=own", "attention=softmax,dnas", "seed=1", "dry=true")
    labels = [f"attention={name} rung={rung}" for name in ("softmax", "dnas") for rung in (1, 2, 3)]
    assert said.splitlines()[1:-1] == labels


@pytest.mark.training
def test_every_arm_of_a_ladder_is_compared_on_every_rung_at_its_own_best_value(tmp_path):
    rungs = [{"model.d_model": 16, "optimizer.lr": 0.1}, {"model.d_model": 32, "optimizer.lr": 0.2}]
    typed = [write(tmp_path, rungs=rungs), "ladder=own", "out=s", "steps=2", "jobs=3", "attention=softmax,dnas"]
    sweep(tmp_path, *typed, "seed=1,2", "tune=optimizer.lr=1,2,4", "tune_seeds=5")
    found = report(tmp_path / "s")
    arms = [f"attention={name} rung={rung}" for name in ("softmax", "dnas") for rung in (1, 2)]
    assert [(arm["arm"], arm["best"], len(arm["compare"])) for arm in found["tuning"]["arms"]] == [
        (arm, "2", 2) for arm in arms
    ]
    compared = [job["overrides"] for job in found["jobs"] if job["purpose"] == "compare"]
    assert len(compared) == 2 * 2 * 2 and all("optimizer.lr=2" in job for job in compared)


@pytest.mark.slow
@pytest.mark.training
@pytest.mark.timeout(900)
@pytest.mark.parametrize("task", ["mlm", "causal_lm"])
def test_a_real_ladder_trains_and_is_read_as_one(tmp_path, monkeypatch, capsys, task):
    """Two arms on two rungs of a tiny model, with their real sizes."""
    monkeypatch.chdir(tmp_path)
    layers = "encoder_layers" if task == "mlm" else "decoder_layers"
    rungs = [
        {"model.d_model": 16, "model.ffn_dim": 32},
        {"model.d_model": 32, "model.ffn_dim": 64, f"model.{layers}": 2},
    ]
    option = write(tmp_path, rungs=rungs, tokens_per_parameter=0.5)
    left_out = ("model.d_model", "model.ffn_dim", f"model.{layers}", "task.max_steps", "trainer.max_steps")
    tiny = [it for it in runs.tiny_overrides(task) if override_key(it) not in left_out]
    typed = [option, "ladder=own", "attention=softmax,hnas_prefix", "seed=1", "out=s", *tiny]
    assert command.run_sweep(typed) == 0, capsys.readouterr()
    jobs = report(tmp_path / "s")["jobs"]
    assert len(jobs) == 4 and {job["state"] for job in jobs} == {"finished"}
    of_arm = {}
    for job in jobs:
        run = Run(tmp_path / job["folder"])
        record = ladder_of(run)
        assert job["steps"] == run.config["trainer"]["max_steps"] > 1
        assert record["train_tokens"] >= 0.5 * record["parameters"]
        assert record["train_tokens"] < 0.5 * record["parameters"] * (1 + 1 / (job["steps"] - 1))
        same = {key: record[key] for key in ("parameters", "train_tokens", "flops_per_token")}
        assert of_arm.setdefault(record["rung"], same) == same
    assert of_arm[2]["parameters"] > of_arm[1]["parameters"]
    scores = scores_of_places([tmp_path / "s"], None, "auto")
    assert len({arm for arm, *_ in scores.runs}) == 2 and {rung for _, rung, _ in scores.runs} == {1, 2}
    capsys.readouterr()
    assert runs.call(monkeypatch, "sweep", *typed) == 0 and "finished before" in capsys.readouterr().out
