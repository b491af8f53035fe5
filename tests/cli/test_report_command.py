"""`attnorm report` from the command line, while runs train, and at the end of a sweep."""

import pytest
from made_up_runs import make_run, make_runs

from attnorm.cli import report as command
from attnorm.cli import sweep
from attnorm.cli.main import run
from attnorm.cli.report import read_report, run_report, write_report_of_sweep
from attnorm.errors import ConfigError
from attnorm.run.folder import EVENTS, FolderLock
from attnorm.sweeps.job_record import SweepRecord
from attnorm.sweeps.jobs import Job
from attnorm.sweeps.plan import Plan
from attnorm.sweeps.state import SWEEP_LOCK, Journal

SMALL = {"examples": 40, "steps": 600}


def test_places_are_typed_with_or_without_a_key_and_the_page_is_written_into_the_only_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lr=0.1").mkdir()
    settings = read_report(
        ["lr=0.1", "b", "runs=[c,d]", "out=1", "metric=f1", "level=0.9", "formats=pdf,svg", "column=3.25"]
    )
    assert settings.runs == ("lr=0.1", "b", "c", "d")
    assert (settings.out, settings.metric, settings.level) == ("1", "f1", 0.9)
    assert (settings.formats, settings.column) == (("pdf", "svg"), 3.25)
    assert read_report(["runs=e"]).runs == ("e",)
    assert read_report([str(tmp_path)]).path == tmp_path / "report.html"
    assert read_report([str(tmp_path), "b"]).path.parts == ("report.html",)
    assert read_report([f"{tmp_path}/*"]).path.parts == ("report.html",)
    assert read_report([str(tmp_path), "out=x/y.html"]).path.parts == ("x", "y.html")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a", "formats=pdf,gif"], "formats=gif: allowed: png, svg, pdf"),
        (["a", f"out={__file__}/a.html", "formats=pdf"], f"formats: {__file__}/figures: expected a folder"),
        (["a", "column=33"], "column=33: "),
        (["a", "split=train"], "split=train: allowed: auto, test, validation"),
        (["a", "metrik=f1"], "metrik=f1: attnorm report has no such option"),
        (["a", "runs=x,y"], "runs=x,y: type several values as a list, runs=[x,y]"),
    ],
)
def test_wrong_keys_are_named(arguments, message):
    with pytest.raises(ConfigError) as error:
        read_report(arguments)
    assert message in str(error.value)


@pytest.mark.slow
def test_a_page_from_the_command_line_and_many_verdicts_in_one_sentence(tmp_path, capsys, monkeypatch):
    opened = []
    monkeypatch.setattr(command.webbrowser, "open", lambda url: opened.append(url) or True)
    make_runs(tmp_path, {"softmax": 0, "hnas": 9, "dnas": 9}, **SMALL)
    out = tmp_path / "a b.html"
    assert run_report([str(tmp_path), f"out='{out}'", "open=true", "formats=svg"]) == 0
    assert "ROUGE-L" in (tmp_path / "figures/difference_from_softmax_in_rouge_l_f1.svg").read_text()
    assert "<h1>softmax, dnas, hnas on gigaword</h1>" in out.read_text() and opened == [out.as_uri()]
    assert capsys.readouterr().out.count(" minus softmax: ") == 2
    monkeypatch.setattr(command, "MOST_VERDICTS", 1)
    assert run_report([str(tmp_path)]) == 0
    first, _ = capsys.readouterr().out.splitlines()
    assert first.startswith("2 of 2 arms differ from softmax")
    assert run("report", [str(tmp_path), "baseline=sotfmax"]) == 2
    assert "Did you mean 'softmax'" in capsys.readouterr().err


def sweep_of(folder):
    """A sweep folder with six finished runs and one that failed."""
    made = make_runs(folder, {"softmax": 0, "hnas": 9}, **SMALL)
    made.append(make_run(folder / "failed", "hnas", 4, state="failed", why="no memory", **SMALL))
    journal = Journal(folder)
    jobs = []
    for path in made:
        journal.add("job", path.name, key=path.name, label=path.name, overrides=[])
        jobs.append(Job(path.name, path.name, path.name, (), path))
    return jobs, journal


def close(folder, jobs, journal):
    """What a sweep does at its end, with its lock held."""
    lock = FolderLock(folder, SWEEP_LOCK)
    assert lock.acquire()
    try:
        return sweep.close(folder, SweepRecord("attnorm sweep seed=1", Plan(jobs), journal, "min"), 0)
    finally:
        lock.release()


def test_a_sweep_ends_with_a_page_and_the_verdicts(tmp_path, capsys):
    jobs, journal = sweep_of(tmp_path)
    assert close(tmp_path, jobs, journal) == 1  # of the run that failed
    [verdict] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("hnas minus softmax: +")]
    assert ": shown, adjusted p = 0.0" in verdict
    text = (tmp_path / "report.html").read_text()
    assert "hnas differs from softmax in ROUGE-L F1: +" in text and "no memory" in text  # and not: no verdict yet


@pytest.mark.slow
def test_a_page_that_cannot_be_written_does_not_change_how_a_sweep_ends(tmp_path, monkeypatch, capsys):
    jobs, journal = sweep_of(tmp_path)
    monkeypatch.setattr("attnorm.analysis.report.page.write_report", lambda *_: 1 / 0)
    assert close(tmp_path, jobs, journal) == 1
    assert "no report.html: ZeroDivisionError: division by zero" in capsys.readouterr().out
    assert not (tmp_path / "report.html").exists()


@pytest.mark.slow
def test_the_page_waits_for_jobs_that_a_sweep_has_not_started(tmp_path):
    _, journal = sweep_of(tmp_path)
    journal.add("job", "later", key="later", label="attention=dnas seed=1", overrides=[])
    assert (tmp_path / EVENTS).exists()
    write_report_of_sweep(tmp_path)
    text = (tmp_path / "report.html").read_text()
    assert "No verdict yet" in text and "6 of 8" in text
