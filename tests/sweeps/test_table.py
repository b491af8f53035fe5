"""What a person sees of a sweep."""

import io
import json
import os

import pytest
from rich.console import Console

from attnorm.run.folder import JOB_LOCK, FolderLock
from attnorm.sweeps import view as shown
from attnorm.sweeps.job_record import result_of
from attnorm.sweeps.jobs import Job
from attnorm.sweeps.plan import Plan
from attnorm.sweeps.state import Journal
from attnorm.sweeps.view import View, duration, print_results


@pytest.fixture
def screen(monkeypatch):
    def make(terminal, height=30):
        console = Console(file=io.StringIO(), force_terminal=terminal, width=100, height=height, color_system=None)
        monkeypatch.setattr(shown, "console", console)
        return console

    return make


def jobs(folder, count):
    """So many jobs: the first is running, the second has finished, all others wait."""
    found = [Job(f"j{n}", f"{n:064}", f"seed={n}", (f"++seed={n}",), folder / f"j{n}") for n in range(count)]
    for job in found[:2]:
        job.folder.mkdir()
        (job.folder / "run.json").touch()
    progress = {"phase": "training", "step": 1200, "updates": 8000, "seconds_left": 3723}
    progress |= {"monitor": "val/f1", "value": 61.25}
    (found[0].folder / "summary.json").write_text(json.dumps({"state": "running", "progress": progress}))
    (found[1].folder / "summary.json").write_text(
        json.dumps({"state": "finished", "monitor": "val/f1", "best_value": 63.5, "steps": 8000, "wall_seconds": 65})
    )
    lock = FolderLock(found[0].folder, JOB_LOCK)
    assert lock.acquire()
    return found, lock


def test_the_live_table_shows_state_updates_metric_and_time_left(tmp_path, screen):
    console, (found, lock) = screen(terminal=True), jobs(tmp_path, 5)
    with View(Plan(found), Journal(tmp_path)) as view:
        view.show()
        shown = console.file.getvalue()
    assert "1 finished, 1 running, 3 waiting" in shown
    [row] = [line for line in shown.splitlines() if "seed=0" in line]
    assert "running" in row and "1,200/8,000" in row and "val/f1 61.25" in row and "1:02:03" in row
    assert "seed=1" in shown and "seed=2" not in shown
    lock.release()


def test_the_table_names_the_phase_of_a_running_job(tmp_path, screen):
    (found, lock), journal = jobs(tmp_path, 2), Journal(tmp_path)
    progress = found[0].folder / "summary.json"

    def row():
        console = screen(terminal=True)
        with View(Plan(found), journal) as view:
            view.show()
            return next(line for line in console.file.getvalue().splitlines() if "seed=0" in line)

    assert "running: training" in row()
    progress.write_text(progress.read_text().replace('"training"', '"decoding"'))
    assert "running: decoding" in row()
    journal.add("start", found[0].name)
    os.utime(progress, (0, 0))  # of the process before
    assert "running: start" in row()
    progress.unlink()
    assert "running: start" in row()
    lock.release()


def test_the_live_table_fits_the_terminal(tmp_path, screen):
    console, (found, lock) = screen(terminal=True, height=12), jobs(tmp_path, 2)
    for number in range(40):
        folder = tmp_path / f"done{number}"
        folder.mkdir()
        (folder / "run.json").touch()
        (folder / "summary.json").write_text('{"state": "finished"}')
        found.append(Job(folder.name, f"d{number}", f"x={number}", (), folder))
    with View(Plan(found), Journal(tmp_path)) as view:
        view.show()
        shown = console.file.getvalue()
    assert "seed=0" in shown and "and 38 more" in shown and len(shown.splitlines()) <= 12
    lock.release()


def test_without_a_terminal_each_event_is_a_line(tmp_path, screen):
    console, (found, lock) = screen(terminal=False), jobs(tmp_path, 3)
    with View(Plan(found), Journal(tmp_path)) as view:
        view.said(found[2], "started")
        view.show()  # nothing new within a minute
        view.shown -= shown.QUIET
        view.show()
    assert console.file.getvalue().splitlines() == [
        "[3/3] seed=2: started",
        "seed=0: training, 1,200/8,000, val/f1 61.25, 1:02:03",
    ]
    lock.release()


def test_the_closing_table_has_the_values_simple_methods_and_why_a_job_failed(tmp_path, screen):
    console, (found, lock) = screen(terminal=False), jobs(tmp_path, 3)
    lock.release()
    journal = Journal(tmp_path)
    journal.add("end", "j2", code=2, failure=True, why="error: model.dropout=3")
    evaluation = {"metrics": {"rougeL": 5.6}, "baselines": {"lead-8": {"rouge1": 22.0, "rougeL": 19.5}}}
    summary = json.loads((found[1].folder / "summary.json").read_text())
    summary |= {"primary": "rougeL", "validation": evaluation}
    (found[1].folder / "summary.json").write_text(json.dumps(summary))
    results = [result_of(job, journal) for job in found[1:]]
    print_results(results)
    rows = console.file.getvalue().splitlines()
    header = ("job", "state", "best val/f1", "final rougeL", "updates", "time")
    assert any(all(name in row for name in header) for row in rows)
    assert any("63.5" in row and "5.60" in row and "8,000" in row and "01:05" in row for row in rows)
    assert [row for row in rows if "simple baseline lead-8" in row and "19.50" in row]
    assert "seed=2: failed: error: model.dropout=3" in rows
    assert (results[0].record()["score"], results[0].record()["simple"]) == (5.6, {"lead-8": 19.5})


@pytest.mark.parametrize(("seconds", "text"), [(0, "00:00"), (59.6, "01:00"), (3599, "59:59"), (3600, "1:00:00")])
def test_time_spans(seconds, text):
    assert duration(seconds) == text
