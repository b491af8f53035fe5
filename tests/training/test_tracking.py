"""Where metrics go: CSV files that grow, histories that go on, wandb and TensorBoard without a network."""

import csv
import importlib.util

import pytest
import runs

from attnorm.training import loggers as tracking
from attnorm.training.loggers import CsvTable, MetricsFile, continue_history, has_wandb_key, read_csv

WANDB = importlib.util.find_spec("wandb") is not None


def table(path, rows):
    """A CSV file with these rows."""
    file = CsvTable(path)
    for row in rows:
        file.append(row)
    return file


# tables


def test_rows_are_appended_in_order_and_read_back_as_text(tmp_path):
    table(tmp_path / "t.csv", [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25}])
    assert read_csv(tmp_path / "t.csv") == [{"step": "1", "loss": "0.5"}, {"step": "2", "loss": "0.25"}]


def test_a_new_column_is_empty_in_the_rows_above(tmp_path):
    table(tmp_path / "t.csv", [{"step": 1, "a": 1}, {"step": 2, "b": 2}, {"a": 3, "step": 3}])
    assert (tmp_path / "t.csv").read_text().splitlines() == ["step,a,b", "1,1,", "2,,2", "3,3,"]
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_a_file_that_is_there_is_continued(tmp_path):
    table(tmp_path / "t.csv", [{"step": 1, "a": 1}])
    table(tmp_path / "t.csv", [{"step": 2, "a": 2}, {"step": 3, "b": 3}])
    assert (tmp_path / "t.csv").read_text().splitlines() == ["step,a,b", "1,1,", "2,2,", "3,,3"]


def test_a_table_opened_before_its_file_was_filled_does_not_lose_columns(tmp_path):
    """A resumed run opens its files, then takes over the old ones."""
    early = CsvTable(tmp_path / "t.csv")
    table(tmp_path / "t.csv", [{"step": 1, "a": 1, "b": 2}])
    early.append({"step": 2, "b": 3})
    early.append({"step": 3, "c": 4})
    assert read_csv(tmp_path / "t.csv") == [
        {"step": "1", "a": "1", "b": "2", "c": ""},
        {"step": "2", "a": "", "b": "3", "c": ""},
        {"step": "3", "a": "", "b": "", "c": "4"},
    ]


def test_rows_reach_the_file_at_once(tmp_path):
    """A killed run keeps its curve."""
    file = CsvTable(tmp_path / "t.csv")
    for step in range(3):
        file.append({"step": step})
        assert len(read_csv(tmp_path / "t.csv")) == step + 1


def test_awkward_text_survives(tmp_path):
    row = {"step": "1", "note": 'a, "b"\nc'}
    table(tmp_path / "t.csv", [row])
    assert read_csv(tmp_path / "t.csv") == [row]


def test_a_metrics_file_drops_lightnings_own_step_and_keeps_ours(tmp_path):
    MetricsFile(tmp_path / "metrics.csv").log_metrics({"loss": 0.5, "step": 99.0, "epoch": 0}, step=7)
    assert read_csv(tmp_path / "metrics.csv") == [{"step": "7", "loss": "0.5", "epoch": "0"}]


# histories

STEPS = [{"step": step, "loss": step / 10} for step in (1, 2, 3, 4)]


@pytest.mark.parametrize("folder", ["another", "the same"])
def test_a_history_is_cut_behind_the_checkpoint(tmp_path, folder):
    old = tmp_path / "old"
    old.mkdir()
    table(old / "metrics.csv", STEPS)
    new = old if folder == "the same" else tmp_path / "new"
    new.mkdir(exist_ok=True)
    continue_history(old, new, 2, ("metrics.csv", "not_there.csv"))
    assert [row["step"] for row in read_csv(new / "metrics.csv")] == ["1", "2"]
    table(new / "metrics.csv", [{"step": 3, "loss": 9}])
    assert [row["loss"] for row in read_csv(new / "metrics.csv")] == ["0.1", "0.2", "9"]
    assert not (new / "not_there.csv").exists()
    if folder == "another":
        assert len(read_csv(old / "metrics.csv")) == 4  # the old run's own record stays


def test_a_history_keeps_its_columns_and_rows_as_they_were(tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    table(tmp_path / "old/metrics.csv", [{"step": 0, "a": 1}, {"step": 1, "b": 0.30000000000000004}])
    continue_history(tmp_path / "old", tmp_path / "new", 9, ("metrics.csv",))
    assert (tmp_path / "new/metrics.csv").read_text() == (tmp_path / "old/metrics.csv").read_text()


def test_a_checkpoint_outside_a_run_folder_has_no_history(tmp_path):
    (tmp_path / "new").mkdir()
    continue_history(tmp_path, tmp_path / "new", 5, ("metrics.csv",))
    assert list((tmp_path / "new").iterdir()) == []


# wandb and TensorBoard


@pytest.fixture
def nobody(monkeypatch, tmp_path):
    """Neither a key in the environment nor a netrc file."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("netrc", "found"),
    [
        (None, False),
        ("machine api.wandb.ai login user password key\n", True),
        ("machine example.com login user password key\n", False),
        ("not a netrc file {\n", False),
    ],
)
def test_a_wandb_key_is_found_in_netrc(nobody, netrc, found):
    if netrc is not None:
        (nobody / ".netrc").write_text(netrc)
        (nobody / ".netrc").chmod(0o600)
    assert has_wandb_key() is found


@pytest.mark.parametrize(("key", "found"), [("abc", True), ("", False)])
def test_a_wandb_key_is_found_in_the_environment(nobody, monkeypatch, key, found):
    monkeypatch.setenv("WANDB_API_KEY", key)
    assert has_wandb_key() is found


@pytest.mark.skipif(not WANDB, reason="wandb is not installed")
@pytest.mark.parametrize(
    ("mode", "key", "offline"),
    [("null", None, True), ("null", "k" * 40, False), ("offline", "k" * 40, True), ("online", None, False)],
)
def test_wandb_is_offline_without_a_key_unless_asked(nobody, monkeypatch, mode, key, offline):
    made = {}
    monkeypatch.setattr(tracking.WandbLogger, "__init__", lambda _, **settings: made.update(settings))
    monkeypatch.setattr(tracking.WandbLogger, "log_hyperparams", lambda *_: None)
    if key:
        monkeypatch.setenv("WANDB_API_KEY", key)
    cfg = runs.tiny("logger=wandb", f"logger.wandb.mode={mode}", "tags=[a]", "seed=3")
    tracking.RunLoggers(cfg, nobody, "hnas", group="sweep").open()
    assert made["offline"] is offline
    assert made["name"] == "gigaword hnas seed 3"
    assert (made["tags"], made["group"], made["project"]) == (["a"], "sweep", "attnorm")
    first = made["id"]
    tracking.RunLoggers(cfg, nobody, "hnas").open()
    assert made["id"] == first == (nobody / "wandb_id.txt").read_text().strip()  # a resumed run goes on there


@pytest.mark.skipif(not WANDB, reason="wandb is not installed")
@pytest.mark.slow
def test_a_run_is_recorded_by_wandb_without_a_network_and_by_tensorboard_beside_it(nobody, tmp_path):
    run = tmp_path / "run"
    summary = runs.tiny_run(run, "logger=many", "task.max_steps=2")
    assert summary["finished"] is True
    assert list(run.glob("tensorboard/events.out.tfevents.*"))
    [record] = run.glob("wandb/offline-run-*/*.wandb")
    assert record.stat().st_size > 0
    assert (run / "wandb_id.txt").read_text().strip() in record.name
    assert len(read_csv(run / "metrics.csv")) > 2  # beside metrics.csv, not instead


def test_a_run_is_recorded_by_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    runs.tiny_run(tmp_path, "attention=hnas", "logger=tensorboard")
    assert list((tmp_path / "tensorboard").glob("events.out.tfevents.*"))
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    for column, steps in (
        ("train/loss", [1, 2, 3, 4]),
        ("val/loss", [2, 4]),
        ("hybrid_weights/encoder/0", [0, 1, 2, 3, 4]),
    ):
        found = {event.step: event.value for event in events.Scalars(column)}
        assert list(found) == steps
        recorded = {int(r["step"]): float(r[column]) for r in read_csv(tmp_path / "metrics.csv") if r[column]}
        assert found == pytest.approx(recorded, rel=1e-6)


def test_metrics_are_a_table_that_any_reader_takes():
    with open(runs.finished_run() / "metrics.csv", newline="") as file:
        lengths = {len(row) for row in csv.reader(file)}
    assert len(lengths) == 1
