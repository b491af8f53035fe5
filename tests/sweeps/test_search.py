"""Searches: which values are tried, and that an interrupted search is the search that was not interrupted."""

import math
import os
import signal

import pytest
from sweeping import attempts, begin, end, events, kill, report, steps, sweep, wait_for

from attnorm.sweeps.jobs import choices, parse

optuna = pytest.importorskip("optuna")
from attnorm.sweeps.search import PRUNERS, STUDY, Dimension  # noqa: E402

pytestmark = [pytest.mark.training, pytest.mark.slow]  # it starts processes
SPACE = ("x=interval(0,1)", "n=range(1,9,2)", "shift=choice(0,0.5)", "z=tag(log,interval(1e-4,1e-1))")


def tried(folder):
    """The overrides of each trial, in order."""
    return [it["label"] for it in sorted(events(folder, "job"), key=lambda it: it["trial"])]


def study_of(folder):
    backend = optuna.storages.journal.JournalFileBackend(str(folder / STUDY))
    return optuna.load_study(study_name="sweep", storage=optuna.storages.JournalStorage(backend))


def test_the_space_is_that_of_hydra():
    [interval] = map(Dimension, parse(["x=interval(0.5,2)"]))
    assert (interval.distribution.low, interval.distribution.high, interval.distribution.log) == (0.5, 2.0, False)
    [logarithmic] = map(Dimension, parse(["++x=tag(log,interval(1e-4,1e-2))"]))
    assert logarithmic.distribution.log and logarithmic.override(0.001) == "++x=0.001"
    [whole] = map(Dimension, parse(["x=int(interval(1,9))"]))
    assert isinstance(whole.distribution, optuna.distributions.IntDistribution) and whole.distribution.high == 9
    for typed in ("x=range(1,9,2)", "x=range(0,0.5,step=0.1)", "x=a,b,'c d'", "x=choice(1,true,[1,2])"):
        [override] = parse([typed])
        it = Dimension(override)
        grid = choices(override)
        if isinstance(it.distribution, optuna.distributions.CategoricalDistribution):
            values = it.distribution.choices
        else:
            step, low = it.distribution.step, it.distribution.low
            values = [low + number * step for number in range(len(grid))]
            assert math.isclose(values[-1], it.distribution.high)
        assert [it.override(value) for value in values] == grid
        assert it.extremes() == (grid if isinstance(values, tuple) else [grid[0], grid[-1]])


@pytest.mark.parametrize("search", ["random", "optuna"])
def test_a_search_that_is_killed_again_and_again_tries_the_same_values(tmp_path, search):
    typed = (f"search={search}", "trials=14", "search_seed=3", "steps=4", *SPACE)
    sweep(tmp_path, "dir=whole", *typed)
    running, kills = begin(tmp_path, "dir=cut", *typed), 0
    for target in (0, 9, 22, 41, 50):
        wait_for(lambda target=target, it=running: steps(tmp_path / "cut") > target or it.poll() is not None)
        if running.poll() is None:
            kill(running)
            running, kills = begin(tmp_path, "dir=cut", *typed), kills + 1
    end(running)
    assert kills >= 3
    assert tried(tmp_path / "cut") == tried(tmp_path / "whole") and len(set(tried(tmp_path / "cut"))) == 14
    assert [len(job) for job in attempts(tmp_path / "cut")] == [1] * 14
    cut, whole = study_of(tmp_path / "cut"), study_of(tmp_path / "whole")
    assert [it.value for it in cut.trials] == [it.value for it in whole.trials]
    assert all(it.state.is_finished() for it in cut.trials)


def test_a_kill_between_two_values_of_a_trial_does_not_change_them(tmp_path):
    """The study is cut off after every line that asking wrote, also in the middle of a line."""
    typed = ("search=optuna", "trials=12", "steps=1", *SPACE)
    sweep(tmp_path, "dir=s", *typed)
    expected = tried(tmp_path / "s")
    lines = (tmp_path / "s" / STUDY).read_bytes().splitlines(keepends=True)
    asked = [number for number, line in enumerate(lines) if b"datetime_start" in line][-1]  # of the last trial
    events_before = (tmp_path / "s/jobs.jsonl").read_bytes().splitlines(keepends=True)
    cut = next(n for n, line in enumerate(events_before) if b'"event": "job"' in line and b'"trial": 11' in line)
    for kept in (asked + 1, asked + 3):
        (tmp_path / "s" / STUDY).write_bytes(b"".join(lines[:kept]) + lines[kept][:20])
        (tmp_path / "s/jobs.jsonl").write_bytes(b"".join(events_before[:cut]))
        sweep(tmp_path, "dir=s", *typed)
        assert tried(tmp_path / "s") == expected


def test_a_search_continues_with_more_trials_and_finds_the_best_value(tmp_path):
    sweep(tmp_path, "dir=s", "search=optuna", "trials=5", "x=interval(0,1)", "steps=1")
    said = sweep(tmp_path, "dir=s", "search=optuna", "trials=40", "x=interval(0,1)", "steps=1", "jobs=2")
    found = report(tmp_path / "s")
    search, [best, *_] = found["search"], found["jobs"]
    assert search["trials"][search["best"]]["job"] == best["name"] and len(search["trials"]) == 40
    assert search["command"] == f"attnorm train {best['overrides'][0]} steps=1" and search["command"] in said
    said = " ".join(said.split())
    assert f"Best trial: number {search['best']} of 40 trials, 40 of which have finished." in said
    assert f" is {best['best_value']:.4g} (lower is better) with x=" in said
    assert len(found["jobs"]) == 40 and found["unfinished"] == 0
    values = [it["best_value"] for it in found["jobs"]]
    assert values == sorted(values) and values[0] < 1e-3  # the minimum is at x=0.3
    study = study_of(tmp_path / "s")
    assert study.direction == optuna.study.StudyDirection.MINIMIZE and study.best_value == values[0]
    assert sorted(it.value for it in study.trials) == values


def test_equal_trials_run_once_and_other_values_need_another_folder(tmp_path):
    sweep(tmp_path, "dir=s", "search=random", "trials=12", "x=1,2", "steps=2")
    assert len(attempts(tmp_path / "s")) == 2 and len(study_of(tmp_path / "s").trials) == 12
    sweep(tmp_path, "dir=s", "search=random", "trials=13", "x=1,2", "steps=2")
    assert len(attempts(tmp_path / "s")) == 2 and all(it.value for it in study_of(tmp_path / "s").trials)
    search = report(tmp_path / "s")["search"]
    assert search["trials"][search["best"]]["job"] and search["mode"] == "min"
    said = sweep(tmp_path, "dir=s", "search=random", "trials=12", "x=1,3", "steps=2", code=2)
    assert "error: dir=s: holds a search over other values (search=random" in said


def test_trials_that_fail_are_tried_again_by_the_repeated_command(tmp_path):
    typed = ("dir=s", "search=random", "trials=6", "x=interval(0,1)", "broken=0,9", "retries=1")
    said = sweep(tmp_path, *typed, code=1)
    states = [it.state.name for it in study_of(tmp_path / "s").trials]
    assert set(states) == {"COMPLETE", "RUNNING"} and len(states) == 6
    assert f"{states.count('RUNNING')} of 6 jobs are unfinished; repeat the command" in said
    before = sorted(map(len, attempts(tmp_path / "s")))
    sweep(tmp_path, *typed, code=1)
    assert [it.state.name for it in study_of(tmp_path / "s").trials] == states
    assert sum(map(len, attempts(tmp_path / "s"))) == sum(before) + 2 * states.count("RUNNING")


def test_searches_with_different_seeds_have_no_trial_in_common(tmp_path):
    for seed in (0, 1):
        sweep(tmp_path, f"dir={seed}", "search=random", f"search_seed={seed}", "trials=5", "x=interval(0,1)", "steps=1")
    assert not {*tried(tmp_path / "0")} & {*tried(tmp_path / "1")}


def test_an_interrupted_trial_is_resumed_and_told(tmp_path):
    typed = ("dir=s", "search=random", "trials=2", "x=interval(0,1)", "steps=30", "pause=0.02")
    running = begin(tmp_path, *typed)
    wait_for(lambda: steps(tmp_path / "s") > 4)
    os.kill(running.pid, signal.SIGTERM)
    end(running, 143)
    assert [it.state.name for it in study_of(tmp_path / "s").trials] == ["RUNNING"]
    sweep(tmp_path, *typed)
    assert [len(job) for job in attempts(tmp_path / "s")] == [2, 1]
    assert [it.state.name for it in study_of(tmp_path / "s").trials] == ["COMPLETE"] * 2


@pytest.mark.parametrize("pruner", ["median", "none"])
def test_unpromising_trials_are_pruned(tmp_path, pruner):
    """The first trials are good; then one whose metric gets worse with every validation is stopped early."""
    typed = ("dir=s", "search=random", f"pruner={pruner}", "y=interval(0,1)")
    sweep(tmp_path, *typed, "trials=6", "steps=3", "pause=0.5", "jobs=6", "bad=0")
    folder = tmp_path / "s"
    study, names = study_of(folder), sorted(path.name for path in folder.glob("trial-*"))
    assert [it.state.name for it in study.trials] == ["COMPLETE"] * 6 and len(names) == 6
    assert all(len(it.intermediate_values) >= 1 for it in study.trials)
    lines = (folder / STUDY).read_text().replace('"bad=0"', '"bad=5"')  # the same study, for runs that are worse
    (folder / STUDY).write_text(lines.replace('"steps=3"', '"steps=8"'))
    sweep(tmp_path, *typed, "trials=7", "steps=8", "pause=0.5", "bad=5")
    last = study_of(folder).trials[-1]
    if pruner == "none":
        assert last.state.name == "COMPLETE" and not events(folder, "prune")
    else:
        assert last.state.name == "PRUNED" and len(last.intermediate_values) < 8
        [state] = [it["state"] for it in report(folder)["jobs"] if it["name"].startswith("trial-0006")]
        assert state == "pruned" and len(events(folder, "prune")) == 1


def test_every_pruner_can_be_used(tmp_path):
    assert set(PRUNERS) == {"none", "median", "halving", "hyperband"}
    for name in PRUNERS:
        sweep(tmp_path, f"dir={name}", "search=optuna", f"pruner={name}", "trials=3", "x=interval(0,1)", "steps=2")
