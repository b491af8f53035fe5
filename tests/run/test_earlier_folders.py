"""Run folders and a sweep that an earlier version wrote: they open with the same contents, and go on where they were.

`fixtures/folders.tar.xz` has a finished run, a run that was killed in an epoch with early stopping, the curve with
which that version continued it (killed_on), a run with a normalizer of one's own, and a sweep that was killed.
`fixtures/targets.txt` has every class that the configuration files of that version name.
"""

import json
import tarfile
from importlib import import_module
from pathlib import Path

import pandas
import pytest
import runs

from attnorm.analysis.arms import find_runs
from attnorm.analysis.run import load_run
from attnorm.cli.train import resume_in
from attnorm.errors import ConfigError
from attnorm.moved import CALLBACKS
from attnorm.run.config_file import translate_targets
from attnorm.run.folder import RunState
from attnorm.run.key import with_first_names
from attnorm.run.run import Run
from attnorm.sweeps.check import check_job
from attnorm.sweeps.state import JobState, Journal, state_of_job

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture
def folders(monkeypatch, tmp_path):
    """The unpacked folders, in the working directory."""
    with tarfile.open(FIXTURES / "folders.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_finished_run_opens_with_the_same_scores_and_predictions(folders):
    run = load_run("finished")
    recorded = json.loads((folders / "finished/summary.json").read_text())
    assert run.summary == recorded and run.scores == recorded["validation"]["metrics"]
    results = run.evaluate()
    assert results.metrics == pytest.approx(recorded["validation"]["metrics"], rel=1e-4)
    before = pandas.read_parquet(folders / "finished/predictions/validation.parquet")
    assert list(run.predictions["output"]) == list(before["output"]) == list(results.predictions.outputs)


def test_a_killed_run_goes_on_with_the_same_losses(folders):
    run, expected = folders / "killed", runs.logged(folders / "killed_on", "val/loss")
    assert Run(run).state is RunState.KILLED
    states = runs.load(run)["callbacks"].keys()
    assert any(name.startswith("EarlyStopping") for name in states)
    assert resume_in(run, [f"resume={run}"]) == 0
    after = json.loads((run / "summary.json").read_text()), json.loads((folders / "killed_on/summary.json").read_text())
    assert [it["steps"] for it in after] == [14, 14] and after[0]["best_step"] == after[1]["best_step"]
    present = {CALLBACKS.get(name, name) for name in states}
    assert runs.load(run)["callbacks"].keys() == present, "the state of a callback was not found"
    assert runs.logged(run, "val/loss") == pytest.approx(expected, rel=1e-4)  # of another machine
    assert runs.logged(run, "train/loss") == pytest.approx(runs.logged(folders / "killed_on", "train/loss"), rel=1e-4)


def test_a_run_with_a_class_of_its_own_opens_if_it_is_trusted(monkeypatch, folders):
    with pytest.raises(ConfigError, match="names code outside attnorm"):
        load_run("own")
    monkeypatch.syspath_prepend(str(folders))
    run = load_run("own", trust_code=True)
    assert run.evaluate().metrics == pytest.approx(run.scores, rel=1e-4)


def test_a_killed_sweep_keeps_its_jobs(folders):
    journal = Journal(folders / "sweep")
    states = {job.label: state_of_job(job, journal) for job in journal.jobs()}
    assert list(states.values()) == [JobState.FINISHED] * 2 + [JobState.WAITING] * 2
    assert [run.summary["best_step"] for run in find_runs([folders / "sweep"])] == [60, 60]
    for job in journal.jobs():
        assert check_job(job.overrides).key == job.key, "the repeated command would train the job again"


def test_every_class_that_a_run_may_have_recorded_can_be_imported():
    for target in (FIXTURES / "targets.txt").read_text().split():
        config = {"x": [{"_target_": target}]}
        translate_targets(config)
        module, _, name = config["x"][0]["_target_"].rpartition(".")
        assert hasattr(import_module(module), name), target
        assert with_first_names(config) == {"x": [{"_target_": target}]}, "the key of a run would change"
