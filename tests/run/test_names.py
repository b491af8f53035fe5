"""A run is named by its path, by "last", or by the beginning of the name of its folder, wherever a run is named."""

import os
import re

import pytest
from made_up_runs import make_run

from attnorm.analysis import compare
from attnorm.analysis.loaded_run import load_run
from attnorm.cli import main
from attnorm.cli.attention import AttentionKeys
from attnorm.cli.report import read_report
from attnorm.errors import ConfigError, RunError
from attnorm.run.folder import find_folder

RUNS = {  # in the order in which they were written last
    "a": "logs/gigaword/softmax/2026-01-02_03-04-05",
    "b": "logs/gigaword/softmax/2026-01-02_03-04-05_2",
    "c": "logs/mlm/hnas/2026-02-01_00-00-00",
    "d": "logs/sweeps/mlm_1a2b/seed=1_77",
    "e": "other/2027",
}
SWEEP = "logs/sweeps/mlm_1a2b"


@pytest.fixture
def here(monkeypatch, tmp_path):
    """A working directory with runs, of which that of "d" is the job of a sweep."""
    monkeypatch.chdir(tmp_path)
    for time, folder in enumerate(RUNS.values(), start=1):
        os.makedirs(folder)
        (tmp_path / folder / "run.json").write_text("{}")
        os.utime(tmp_path / folder / "run.json", (time, time))
    (tmp_path / SWEEP / "jobs.jsonl").touch()
    os.utime(tmp_path / SWEEP / "jobs.jsonl", (1, 1))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "sweeps", "meant"),
    [
        ("last", False, RUNS["d"]),
        ("last", True, RUNS["c"]),  # neither the run of the sweep, nor the sweep, which is older
        ("logs/gigaword/last", False, RUNS["b"]),
        ("other/last", False, RUNS["e"]),
        ("2026-01-02_03-04-05", False, RUNS["a"]),  # the whole name of one, with which another begins
        ("2026-02", True, RUNS["c"]),
        ("logs/mlm/2026", False, RUNS["c"]),
        ("seed=1", True, RUNS["d"]),
        ("mlm_1", True, SWEEP),
        ("mlm_1", False, "mlm_1"),  # no run
        ("nothing", True, "nothing"),
        (RUNS["e"], False, RUNS["e"]),
        ("logs", False, "logs"),
    ],
)
def test_a_path_last_and_the_beginning_of_a_name_mean_a_folder(here, name, sweeps, meant):
    assert find_folder(name, sweeps=sweeps) == here.relative_to(here) / meant


def test_what_exists_is_meant_before_any_name(here):
    for name in ("last", "2026-02"):
        (here / name).mkdir()
        assert str(find_folder(name)) == name


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("2026", f"run=2026: 3 runs below logs have names that begin so: {RUNS['a']}, {RUNS['b']}, {RUNS['c']}"),
        ("nowhere/last", "run=nowhere/last: there is no run below nowhere"),
    ],
)
def test_a_name_that_several_runs_or_none_have_is_refused(here, name, message):
    with pytest.raises(RunError, match=f"^{re.escape(message)}$"):
        find_folder(name, "run")


@pytest.fixture
def attnorm(capsys):
    """Runs a verb, and returns what it prints."""

    def run(verb, *arguments):
        main.run(verb, arguments)
        return "".join(capsys.readouterr())

    return run


@pytest.mark.parametrize(
    "typed",
    [
        ("eval", "last"),
        ("generate", "run=last", "input=-"),
        ("attention", "run=last", "text=a"),
        ("compare", "logs/sweeps/mlm_1a2b/last"),
        ("train", "resume=last"),
    ],
)
def test_every_setting_that_names_a_run_knows_names(here, attnorm, typed):
    assert f"{RUNS['d']}/run.json: expected the record of a run" in attnorm(*typed)


def test_python_reports_and_two_runs_of_a_figure_know_names(here):
    with pytest.raises(RunError, match=re.escape(f"{RUNS['d']}/run.json")):
        load_run("last")
    assert str(read_report(["last"]).path) == f"{RUNS['c']}/report.html"
    names = AttentionKeys(run="last,2026-02", against="other/2")
    assert [*map(str, names.folders)] == [RUNS["d"], RUNS["c"], RUNS["e"]]


def test_the_baseline_of_a_comparison_is_a_label_before_it_is_a_name(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for attention in ("softmax", "hnas"):
        for seed in (1, 2):
            make_run(tmp_path / f"logs/{attention}_{seed}", attention, seed)
    labelled, named = (compare(baseline, "logs").baseline for baseline in ("hnas", "hnas_1"))
    assert labelled == named == "hnas"
    with pytest.raises(RunError, match="baseline=hnas_: 2 runs below logs have names"):
        compare("hnas_", "logs")
    with pytest.raises(ConfigError, match="baseline=dnas: there is neither such a folder nor such an arm"):
        compare("dnas", "logs")
