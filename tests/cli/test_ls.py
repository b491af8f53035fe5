"""`attnorm ls`: the runs and sweeps below a folder."""

import csv
import os
import re

import pytest
from made_up_runs import make_run

from attnorm.cli import main
from attnorm.run.folder import FolderLock
from attnorm.sweeps.state import SWEEP_LOCK, Journal

HOUR, DAY = 3600, 86400


@pytest.fixture
def ls(monkeypatch, tmp_path, capsys):
    """Runs `attnorm ls`, as on a terminal of 100 columns, and returns its exit code and what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("attnorm.cli.ls.console.width", 100)

    def run(*typed):
        code = main.run("ls", [*typed])
        return code, "".join(capsys.readouterr())

    return run


def aged(folder, seconds, file="run.json"):
    """Makes a run or a sweep this old."""
    then = os.stat(folder / file).st_mtime - seconds
    os.utime(folder / file, (then, then))


def make_sweep(folder, attentions, **options):
    """A sweep with a finished run for each attention, one that tunes, and one that waits."""
    folder.mkdir(parents=True)
    journal = Journal(folder)
    for number, (attention, gain) in enumerate(attentions.items(), start=1):
        make_run(folder / f"run{number}", attention, number, gain=gain, **options)
    make_run(folder / "tune/tried", "uniform", 9, gain=50.0, **options)
    for name in (*(f"run{number}" for number in range(1, len(attentions) + 1)), "waits", "tried"):
        purpose = {"purpose": "tune"} if name == "tried" else {}
        journal.add("job", name, key=name, label=name, overrides=[], **purpose)
    return folder


@pytest.fixture
def logs(tmp_path):
    """Four entries, of which the first one is the oldest: a sweep, and runs that ended in different ways."""
    place = tmp_path / "logs"
    aged(make_sweep(place / "sweeps/gigaword_1a", {"softmax": 0.0, "dnas": 3.0}), 4 * DAY, "jobs.jsonl")
    paused = {"progress": {"monitor": "val/loss", "best_value": 4.25}}
    aged(make_run(place / "gigaword/hnas/2026-01-02", "hnas", 4, state="interrupted", summary=paused), 5 * HOUR)
    aged(make_run(place / "gigaword/softmax/2026-01-01", "softmax", 3, gain=2.0), 3 * HOUR)
    make_run(place / "gigaword/dnas/2026-01-03", "dnas", 5, state=None)
    return place


def test_runs_and_sweeps_are_listed_with_the_newest_last(ls, logs):
    lock = FolderLock(logs / "sweeps/gigaword_1a", SWEEP_LOCK)
    assert lock.acquire()
    code, said = ls()
    lock.release()
    header, *rows = [re.split(r"  +", line.strip()) for line in said.splitlines()]
    assert header == ["name", "task", "attention", "seed", "state", "best score", "age"]
    # the run that tunes counts as a run of the sweep, but has no score there
    assert code == 0 and rows == [
        ["gigaword_1a/", "gigaword", "softmax, dnas", "1, 2", "3/4 running", "rougeL 30.45", "4 days"],
        ["2026-01-02", "gigaword", "hnas", "4", "interrupted", "val/loss 4.250", "5 h"],
        ["2026-01-01", "gigaword", "softmax", "3", "finished", "rougeL 29.50", "3 h"],
        ["2026-01-03", "gigaword", "dnas", "5", "killed", *rows[3][5:]],
    ]
    assert re.fullmatch(r"\d s", rows[3][-1])
    _, inside = ls("logs/sweeps/gigaword_1a")
    assert [line.split()[0] for line in inside.splitlines()[1:]] == ["run1", "run2", "tried"]


def test_the_table_fits_the_terminal_and_the_file_has_whole_folders(ls, logs, monkeypatch):
    monkeypatch.setattr("attnorm.cli.ls.console.width", 60)
    code, said = ls("logs", "out=runs.csv")
    assert code == 0 and said.endswith("written to runs.csv\n") and max(map(len, said.splitlines())) <= 60
    assert "…" not in said  # nothing is cut off
    with open("runs.csv") as file:
        rows = [*csv.DictReader(file)]
    assert [row["folder"] for row in rows][2:] == ["logs/gigaword/softmax/2026-01-01", "logs/gigaword/dnas/2026-01-03"]
    assert (rows[2]["metric"], round(float(rows[2]["score"]), 2)) == ("rougeL", 29.50)


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (("nowhere",), "error: place=nowhere: no such folder\n"),
        (("out=runs.txt",), "error: out=runs.txt: must end with .csv\n"),
        (("out=logs/gigaword/dnas/2026-01-03/metrics.csv",), "is there already, in the folder of a run or a sweep"),
    ],
)
def test_what_cannot_be_listed_or_written_is_refused(ls, logs, typed, message):
    code, said = ls(*typed)
    assert code == 2 and message in said and "2026-01-01" not in said


def test_a_folder_without_runs_and_a_run_that_cannot_be_read(ls, logs):
    os.makedirs("empty")
    assert ls("empty") == (0, "empty: no runs\n")
    (logs / "gigaword/hnas/2026-01-02/run.json").write_text("{}")
    code, said = ls()
    assert code == 0 and said.count("2026-01-02") == 1
    assert "logs/gigaword/hnas/2026-01-02/run.json: expected the record of a run" in said
