"""Where metrics go: CSV files that grow, histories that go on, wandb and TensorBoard without a network."""

import functools
import importlib.util
import json
import struct
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import runs
import yaml
from marks import slow
from pytorch_lightning.loggers import Logger

from attnorm.analysis.run_figures import draw_run
from attnorm.cli.train import resume_in
from attnorm.run.csv_files import CsvTable, cut_history, read_csv
from attnorm.training import loggers as tracking
from attnorm.training import run_loggers
from attnorm.training import train as training
from attnorm.training.callbacks.throughput import Throughput
from attnorm.training.loggers import MetricsFile, has_wandb_key, samples_text
from attnorm.training.train import train

WANDB = importlib.util.find_spec("wandb") is not None
needs_wandb = pytest.mark.skipif(not WANDB, reason="wandb is not installed")


def table(path, rows):
    """A CSV file with these rows."""
    file = CsvTable(path)
    for row in rows:
        file.append(row)
    return file


# tables


@pytest.mark.parametrize(
    ("written", "lines"),
    [
        ([[{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25}]], ["step,loss", "1,0.5", "2,0.25"]),
        ([[{"step": 1, "a": 1}, {"step": 2, "b": 2}, {"a": 3, "step": 3}]], ["step,a,b", "1,1,", "2,,2", "3,3,"]),
        ([[{"step": 1, "a": 1}], [{"step": 2, "a": 2}, {"step": 3, "b": 3}]], ["step,a,b", "1,1,", "2,2,", "3,,3"]),
    ],
)
def test_rows_are_appended(tmp_path, written, lines):
    for rows in written:
        table(tmp_path / "t.csv", rows)
    assert (tmp_path / "t.csv").read_text().splitlines() == lines
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


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


def test_rows_reach_the_file_at_once_whatever_their_text(tmp_path):
    """A killed run keeps its curve."""
    file, rows = CsvTable(tmp_path / "t.csv"), [{"step": str(step), "note": 'a, "b"\nc'} for step in range(3)]
    for number, row in enumerate(rows, start=1):
        file.append(row)
        assert read_csv(tmp_path / "t.csv") == rows[:number]


def test_a_metrics_file_drops_lightnings_own_step_and_keeps_ours(tmp_path):
    MetricsFile(tmp_path).log_metrics({"loss": 0.5, "step": 99.0, "epoch": 0}, step=7)
    assert read_csv(tmp_path / "metrics.csv") == [{"step": "7", "loss": "0.5", "epoch": "0"}]


STEPS = [{"step": step, "loss": step / 10} for step in (1, 2, 3, 4)]


def test_a_history_is_cut_behind_the_checkpoint_and_otherwise_keeps_its_columns_and_rows(tmp_path):
    path = tmp_path / "metrics.csv"
    table(path, STEPS)
    cut_history([path, tmp_path / "not_there.csv"], 2)
    assert [row["step"] for row in read_csv(path)] == ["1", "2"]
    table(path, [{"step": 3, "loss": 9}])
    assert [row["loss"] for row in read_csv(path)] == ["0.1", "0.2", "9"]
    assert [*tmp_path.iterdir()] == [path]
    table(path, [{"step": 4, "a": 1}, {"step": 5, "b": 0.30000000000000004}])
    before = path.read_text()
    cut_history([path], 9)
    assert path.read_text() == before


def test_damaged_rows_of_a_history_are_left_out(tmp_path, caplog):
    path, binary = tmp_path / "metrics.csv", tmp_path / "attention.csv"
    table(path, STEPS)
    path.write_bytes(path.read_bytes().replace(b"2,", b"\xff\x00,").replace(b"3,", b"3,9,9,") + b"5,0.5\n6,\xff\n7,0.")
    binary.write_bytes(b"\xff\n1\n")
    before = path.read_bytes()
    cut_history([path, binary], 9)
    assert [row["step"] for row in read_csv(path)] == ["1", "4", "5"] and not binary.exists()
    assert (tmp_path / "metrics.csv.damaged").read_bytes() == before
    assert (tmp_path / "attention.csv.damaged").read_bytes() == b"\xff\n1\n"
    assert "metrics.csv: left out 3 rows that cannot be read" in caplog.text


def offline(patch: pytest.MonkeyPatch, home: Path) -> None:
    for name in ("WANDB_API_KEY", "WANDB_MODE", "NETRC"):
        patch.delenv(name, raising=False)
    patch.setenv("HOME", str(home))


@pytest.fixture
def nobody(monkeypatch, tmp_path):
    """Neither a key in the environment nor a netrc file."""
    offline(monkeypatch, tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("netrc", "key", "found"),
    [
        (None, None, False),
        ("machine api.wandb.ai login user password key\n", None, True),
        ("machine example.com login user password key\n", None, False),
        ("not a netrc file {\n", None, False),
        (None, "abc", True),
        (None, "", False),
    ],
)
def test_a_wandb_key_is_found_in_netrc_and_in_the_environment(nobody, monkeypatch, netrc, key, found):
    if netrc is not None:
        (nobody / ".netrc").write_text(netrc)
        (nobody / ".netrc").chmod(0o600)
    if key is not None:
        monkeypatch.setenv("WANDB_API_KEY", key)
    assert has_wandb_key() is found


@needs_wandb
@pytest.mark.parametrize(
    ("asked", "key", "made_with"),
    [("null", None, "offline"), ("null", "k" * 40, None), ("offline", "k" * 40, "offline"), ("online", None, "online")],
)
def test_wandb_is_offline_without_a_key_unless_asked(nobody, monkeypatch, asked, key, made_with):
    made = {}

    def init(self, **settings):
        self._wandb_init = {"anonymous": None}
        made.update(settings, init=self._wandb_init)

    monkeypatch.setattr(tracking.WandbLogger, "__init__", init)
    monkeypatch.setattr(tracking.WandbLogger, "log_hyperparams", lambda *_: None)
    if key:
        monkeypatch.setenv("WANDB_API_KEY", key)
    cfg = runs.tiny("logger=wandb", f"logger.wandb.mode={asked}", "tags=[a]", "seed=3", "attention=hnas")
    run_loggers.RunLoggers(cfg, nobody).open()
    assert made["mode"] == made_with and "anonymous" not in made["init"]  # wandb warns of it
    assert made["name"] == "gigaword hnas seed 3"
    assert (made["tags"], made["project"]) == (["a"], "attnorm")
    first = made["id"]
    run_loggers.RunLoggers(cfg, nobody).open()
    assert made["id"] == first == (nobody / "wandb_id.txt").read_text().strip()  # a resumed run goes on there


# what arrives


class Plain(Logger):
    """A logger with Lightning's own methods only. It refuses everything once it was finalized."""

    name, version = "plain", ""
    made: list["Plain"] = []  # noqa: RUF012 - in order of their creation

    def __init__(self):
        super().__init__()
        self.params, self.metrics, self.status = [], [], []
        self.made.append(self)

    def log_hyperparams(self, params):
        self.params.append(params)

    def log_metrics(self, metrics, step=None):
        assert not self.status
        self.metrics.append((step, dict(metrics)))

    def finalize(self, status):
        self.status.append(status)


class Broken(Logger):
    """A logger that fails as soon as training has ended."""

    name, version = "broken", ""

    def log_hyperparams(self, params):
        pass

    def log_metrics(self, metrics, step=None):
        if any(name.startswith("final/") for name in metrics):
            raise OSError("no network")

    def _fail(self, *_):
        raise OSError("no network")

    finalize = log_image = _fail

    def log_table(self, key, *_, **__):
        if key == "samples/final":
            self._fail()


def own(name: str, entry: str) -> str:
    """The override that adds a logger of this file."""
    return f"+logger.{entry}._target_={__name__}.{name}"


class Wandb:
    """What the offline files of a run folder say. By key: `history` has {update: values}, `summary` the last value."""

    def __init__(self, run: Path, project: str = "attnorm"):
        self.runs, self.exits, self.config, self.summary = [], [], {}, {}
        self.history: dict[str, dict[int, list]] = defaultdict(lambda: defaultdict(list))
        self.folders = sorted(run.glob("wandb/offline-run-*"))
        for folder in self.folders:
            [file] = folder.glob("*.wandb")
            records = list(wandb_records(file))
            if any(record.run.project == project for record in records):
                for record in records:
                    self._add(record)

    def _add(self, record) -> None:
        kind = record.WhichOneof("record_type")
        if kind == "run":
            self.runs.append(record.run)
        elif kind == "config":
            self.config |= {name_of(item): json.loads(item.value_json) for item in record.config.update}
        elif kind == "summary":
            self.summary |= {name_of(item): json.loads(item.value_json) for item in record.summary.update}
        elif kind == "exit":
            self.exits.append(record.exit.exit_code)
        elif kind == "history":
            row = {name_of(item): json.loads(item.value_json) for item in record.history.item}
            for name, value in row.items():
                self.history[name][row["trainer/global_step"]].append(value)

    def files(self, key: str) -> dict[int, list[Path]]:
        """The files of a table or of images by update."""
        table, images = self.history.get(f"{key}/path", {}), self.history.get(f"{key}/filenames", {})
        names = table or {step: [name for row in rows for name in row] for step, rows in images.items()}
        return {
            step: [next(f / "files" / name for f in self.folders if (f / "files" / name).exists()) for name in found]
            for step, found in names.items()
        }


def name_of(item) -> str:
    return item.key or "/".join(item.nested_key)


def wandb_records(path: Path) -> Iterator:
    """The records of a .wandb file: LevelDB's log format, after a header of seven bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    block, data, place, parts = 32768, path.read_bytes(), 7, b""
    while place + 7 <= len(data):
        if (left := block - place % block) < 7:
            place += left
            continue
        _, size, kind = struct.unpack("<IHB", data[place : place + 7])
        parts += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # a whole record, or its last part
            yield Record.FromString(parts)
            parts = b""


def events_of(folder: Path):
    """Everything in a folder of TensorBoard's event files."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder), {"scalars": 0}).Reload()


def curves(run: Path) -> dict[str, dict[int, float]]:
    """The curves in metrics.csv, by column and update."""
    rows = read_csv(run / "metrics.csv")
    columns = [column for column in rows[0] if column not in ("step", "epoch")]
    return {column: {int(row["step"]): float(row[column]) for row in rows if row[column]} for column in columns}


ENTRIES = (
    "logger=many",
    "+logger.team={_target_: attnorm.training.loggers.Wandb, project: other}",
    "+logger.csv._target_=pytorch_lightning.loggers.CSVLogger",
    "+logger.lightning._target_=pytorch_lightning.loggers.TensorBoardLogger",
    own("Plain", "plain"),
)


def forget_wandb():
    """Ends the run of another test, and forgets the environment, of which wandb keeps what it has read first."""
    if WANDB:
        wandb = importlib.import_module("wandb")
        wandb.finish()
        wandb.teardown()


@functools.cache
def tracked_run() -> Path:
    """A finished run with many loggers, to be read only."""
    folder = runs.scratch("tracked") / "run"
    with pytest.MonkeyPatch.context() as patch:
        offline(patch, folder.parent)
        patch.setenv("WANDB_RUN_GROUP", "sweep 1")
        forget_wandb()
        train(runs.tiny("attention=hnas", *ENTRIES), folder, draw=draw_run)
        forget_wandb()
    return folder


@pytest.mark.slow
@needs_wandb
def test_wandb_and_tensorboard_get_the_whole_configuration():
    cfg = yaml.safe_load((tracked_run() / "config.yaml").read_text())
    wandb = Wandb(tracked_run())
    assert cfg == {key: value for key, value in wandb.config.items() if not key.startswith("_wandb")}
    assert wandb.runs[0].run_group == "sweep 1"
    assert yaml.safe_load((tracked_run() / "tensorboard/hparams.yaml").read_text()) == cfg


@needs_wandb
def test_every_metric_reaches_every_logger_once_and_the_final_scores_stay_out_of_metrics_csv():
    wanted, events, wandb = curves(tracked_run()), events_of(tracked_run() / "tensorboard"), Wandb(tracked_run())
    names = {"train/lr", "train/gradient_norm", "val/loss", "entropy/encoder/0", "column_mass/encoder/0/min"}
    assert names | {"hybrid_weights/encoder/0"} <= wanted.keys()
    final = [name for name in events.Tags()["scalars"] if name.startswith("final/")]
    assert sorted(events.Tags()["scalars"]) == sorted([*wanted, *final])
    for name, curve in wanted.items():
        points = [(event.step, event.value) for event in events.Scalars(name)]
        assert [step for step, _ in points] == list(curve), name
        assert dict(points) == pytest.approx(curve, rel=1e-6), name  # events are stored in single precision
        assert dict(wandb.history[name]) == {step: [pytest.approx(value)] for step, value in curve.items()}, name
    scores = runs.summary_of(tracked_run())["validation"]["metrics"]
    ended = {f"final/{name}": value for name, value in scores.items()}
    assert {"final/rougeL", "final/loss"} <= ended.keys() and not ended.keys() & wanted.keys()
    for name, value in ended.items():
        assert [(event.step, event.value) for event in events.Scalars(name)] == [(4, pytest.approx(value, rel=1e-6))]
        assert dict(wandb.history[name]) == {4: [pytest.approx(value)]}
        assert wandb.summary[name] == pytest.approx(value)


@needs_wandb
def test_samples_of_each_validation_and_of_the_end_arrive():
    wandb = Wandb(tracked_run())
    assert {name: list(wandb.files(f"samples/{name}")) for name in ("validation", "final")} == {
        "validation": [2, 4],
        "final": [4],
    }
    for step, [file] in wandb.files("samples/validation").items():
        table = json.loads(file.read_text())
        samples = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
        assert samples_text(samples) + "\n" == (tracked_run() / f"samples/step_{step:06d}.txt").read_text()
    [[file]] = wandb.files("samples/final").values()
    assert len(json.loads(file.read_text())["data"]) == training.SAMPLES


@needs_wandb
def test_figures_arrive_as_images_before_the_loggers_are_closed_and_hybrid_weights_as_one_chart():
    wandb = Wandb(tracked_run())
    figures = sorted(path.stem for path in (tracked_run() / "figures").glob("*.png"))
    assert figures == ["attention", "hybrid_weights"]
    for name in figures:
        [[file]] = wandb.files(f"figures/{name}").values()
        assert file.read_bytes() == (tracked_run() / f"figures/{name}.png").read_bytes()
    assert chart_of(wandb) == hybrid_weights(tracked_run())


def chart_of(wandb: Wandb) -> list[tuple[int, str, float]]:
    """The points of the chart of hybrid weights."""
    [[file]] = wandb.files("charts/hybrid_weights_table").values()
    table = json.loads(file.read_text())
    places = [table["columns"].index(name) for name in ("step", "lineKey", "lineVal")]
    return sorted(tuple(row[place] for place in places) for row in table["data"])


def hybrid_weights(run: Path) -> list[tuple[int, str, float]]:
    rows = read_csv(run / "hybrid_weights.csv")
    return sorted((int(row["step"]), row["layer"], float(row["value"])) for row in rows)


@needs_wandb
def test_a_long_chart_is_thinned_to_what_wandb_takes(monkeypatch):
    import wandb

    drawn = {}
    monkeypatch.setattr(wandb.plot, "line_series", lambda **chart: drawn.update(chart))
    logger = object.__new__(tracking.Wandb)
    logger._experiment = SimpleNamespace(log=lambda row: None)
    curve = {step: step / 2 for step in range(1000)}
    monkeypatch.setattr(tracking, "LARGEST", 100)
    logger.log_curves("hybrid_weights", {"a": curve, "b": curve}, 1000)
    assert drawn["xs"] == [[*range(0, 1000, 20)]] * 2 and drawn["ys"] == [[step / 2 for step in range(0, 1000, 20)]] * 2
    logger.log_curves("hybrid_weights", {"a": {1: 0.5, 2: 0.25}}, 2)
    assert drawn["xs"] == [[1, 2]]


@needs_wandb
def test_entries_of_one_class_do_not_replace_each_other():
    first, second = Wandb(tracked_run()), Wandb(tracked_run(), "other")
    assert len({run.run_id for wandb in (first, second) for run in wandb.runs}) == 2
    assert first.history.keys() == second.history.keys()


def test_loggers_with_lightnings_methods_only_get_everything_and_are_closed_once():
    tracked_run()
    logger = Plain.made[0]
    assert logger.params == [yaml.safe_load((tracked_run() / "config.yaml").read_text())]
    assert [step for step, metrics in logger.metrics if "val/loss" in metrics] == [2, 4]
    assert [step for step, metrics in logger.metrics if "final/loss" in metrics] == [4]
    assert logger.status == ["success"]
    [file] = tracked_run().glob("lightning_logs/*/metrics.csv")
    assert [row["step"] for row in read_csv(file) if row["final/loss"]] == ["4"]
    [folder] = {path.parent for path in tracked_run().glob("lightning_logs/*/events.out.tfevents.*")}
    assert [event.step for event in events_of(folder).Scalars("final/loss")] == [4]


# runs that stop, fail, and are resumed


def stopped_run(monkeypatch, folder: Path, step: int, *overrides: str) -> Path:
    """A run with figures that got a SIGTERM at the end of this update."""
    monkeypatch.setattr(runs, "train", functools.partial(train, draw=draw_run))
    return runs.stopped(monkeypatch, folder, step, *overrides)


@pytest.mark.slow
@needs_wandb
@pytest.mark.parametrize("folder", [slow("another"), "the same"])
def test_a_resumed_run_continues_its_curves_and_its_wandb_run(nobody, monkeypatch, tmp_path, folder):
    old = stopped_run(monkeypatch, tmp_path / "old", 3, "attention=hnas", "logger=many")
    wandb = Wandb(old)
    assert list(wandb.files("figures/attention")) == [3]
    assert (wandb.exits, wandb.runs[0].run_group) == ([1], "")
    assert runs.load(old, "best")["global_step"] == 2  # before the last update that was logged
    if folder == "another":
        files = {path for path in runs.files_of(old) if not path.startswith("wandb/")}  # wandb logs on
        new, before = tmp_path / "new", {path: (old / path).read_bytes() for path in files}
        runs.tiny_run(new, "attention=hnas", "logger=many", f"ckpt_path={old}/checkpoints/best.ckpt")
        assert {path: (old / path).read_bytes() for path in files} == before
    else:
        new = old
        for name in ("last", "previous"):
            (old / f"checkpoints/{name}.ckpt").unlink()
        resume_in(old, [f"resume={old}"])
    events = events_of(new / "tensorboard")
    assert {event.step for event in events.Scalars("train/loss")} == {1, 2, 3, 4}
    assert [row["step"] for row in read_csv(new / "metrics.csv") if row["train/loss"]] == ["1", "2", "3", "4"]
    assert {run.run_id for run in [*wandb.runs, *Wandb(new).runs]} == {(new / "wandb_id.txt").read_text().strip()}


def test_a_logger_that_fails_after_training_is_a_warning(tmp_path):
    summary = runs.tiny_run(tmp_path / "run", own("Broken", "broken"), own("Plain", "plain"))
    assert summary["state"] == "finished" and summary["validation"]["metrics"]
    assert Plain.made[-1].status == ["success"] and "final/loss" in Plain.made[-1].metrics[-1][1]
    log = (tmp_path / "run/run.log").read_text()
    for what in ("log the final scores", "log the samples", "close"):
        assert f"Broken could not {what}: OSError: no network" in log


def test_a_logger_or_a_figure_that_fails_does_not_hide_why_the_run_failed(tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError("the run itself")

    def draw(folder):
        raise ValueError("cannot draw")

    runs.before(monkeypatch, Throughput, "on_train_batch_end", fail)
    with pytest.raises(RuntimeError, match="the run itself"):
        train(runs.tiny(own("Broken", "broken"), own("Plain", "plain")), tmp_path / "run", draw=draw)
    assert runs.summary_of(tmp_path / "run")["why"] == "RuntimeError: the run itself"
    assert Plain.made[-1].status == ["failed"]
    assert "could not draw the figures: ValueError: cannot draw" in (tmp_path / "run/run.log").read_text()


def test_a_stopped_run_closes_its_loggers_once(tmp_path, monkeypatch):
    stopped_run(monkeypatch, tmp_path, 2, own("Plain", "plain"))
    assert Plain.made[-1].status == ["failed"]
