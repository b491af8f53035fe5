"""Whole runs, tiny ones: what they leave behind, that they repeat, go on, stop and divide their batches exactly."""

import errno
import json
import math
import shutil
import subprocess
import unicodedata
from pathlib import Path
from types import SimpleNamespace

import pytest
import runs
import torch
import yaml
from marks import slow
from torch.testing import assert_close

from attnorm import source_code
from attnorm.cli.evaluate import evaluate
from attnorm.data.sampler import TokenBatches
from attnorm.errors import ConfigError
from attnorm.run.csv_files import read_csv
from attnorm.run.record import run_key
from attnorm.run.run import Run
from attnorm.source_code import git_state
from attnorm.tasks import data_notes
from attnorm.tasks.classification import ClassificationTask
from attnorm.tasks.task import task_of
from attnorm.training.callbacks import throughput as callbacks
from attnorm.training.module import TrainingModule
from attnorm.training.trainer import validation_interval

EPOCHS = ("attention=hnas", "data.train_size=60", *runs.of("task", "max_steps=14 validations=4"))  # at 4, 8, 12, 14
EXACT = ("attention=hnas", "model.dropout=0", "trainer.precision=64-true")  # so that only rounding can differ


def scores_of(run):
    """The final scores, without the times."""
    scores = runs.summary_of(run)["validation"]
    return {name: value for name, value in scores.items() if "second" not in name}


def loss_of(run):
    return scores_of(run)["metrics"]["loss"]


def updates_an_epoch(*overrides):
    cfg = runs.tiny(*overrides)
    split = task_of(cfg).splits()["train"]
    return len(TokenBatches(split.lengths, cfg["data"]["batch_tokens"]))


# what a run leaves behind


def test_a_summary_holds_the_promised_fields():
    summary = runs.summary_of(runs.finished_run())
    assert summary["state"] == "finished"
    assert "why" not in summary
    assert (summary["task"], summary["attention"], summary["seed"]) == ("gigaword", "hnas", 1)
    assert summary["data"]["source"] == "attnorm.data.sources.newswire.Newswire"
    assert (summary["data"]["train"]["kept"], summary["data"]["validation"]["kept"]) == (200, 20)
    assert summary["steps"] == summary["best_step"] == 4
    assert 0 < summary["padding_share"] < 1
    assert summary["vocabulary"] == 300
    assert summary["parameters"] == parameters_of(runs.finished_run())
    assert summary["attention_layers"] == 3
    assert summary["tokens_per_second"] > 0
    assert summary["peak_memory"]["process_mb"] > 1
    assert summary["wall_seconds"] > 0
    scores = summary["validation"]
    assert (scores["split"], scores["unit"], scores["size"]) == ("validation", "pairs", 20)
    rouge = {"rouge1", "rouge2", "rougeL"}
    assert set(scores["metrics"]) == {*rouge, "loss"} and set(scores["baselines"]["lead-8"]) == rouge
    assert scores["settings"]["beam_size"] == 2
    assert "stemmer" in scores["note"]


def parameters_of(run):
    """The number of parameters; the embedding table is in the checkpoint under several names, and counts once."""
    values = {name: value for name, value in runs.parameters(run).items() if "tokens" not in name}
    del values["model.output.weight"]
    return sum(map(torch.Tensor.numel, values.values())) + runs.parameters(run)["model.tokens.weight"].numel()


def test_the_record_says_what_was_set_and_where():
    run = runs.finished_run()
    cfg = yaml.safe_load((run / "config.yaml").read_text())
    assert cfg["attention"]["encoder"] == "hnas"
    assert cfg["seed"] == 1 and cfg["model"]["d_model"] == 16
    record = Run(run).recorded
    assert record["settings"] == cfg and record["key"] == run_key(cfg)
    assert record["versions"]["torch"] == torch.__version__ and "resumed" not in record
    assert {"format", "command", "commit", "code", "gpus", "cpu", "modules", "attention_kernels"} <= record.keys()
    assert record["fingerprints"] == {name: runs.load(run)["run"][name] for name in ("data", "tokenizer")}


def test_only_tracked_files_count_as_changes_to_the_code(tmp_path):
    def git(*arguments):
        who = ("-c", "user.name=a", "-c", "user.email=a@b.example", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)

    (tmp_path / "code.py").write_text("a = 1\n")
    git("init"), git("add", "code.py"), git("commit", "-m", "Start")
    (tmp_path / "exported").mkdir()
    (tmp_path / "exported" / "model.txt").write_text("written by a script\n")
    assert git_state(tmp_path)["changed"] is False
    (tmp_path / "code.py").write_text("a = 2\n")
    assert git_state(tmp_path)["changed"] is True
    git("add", "code.py")
    assert git_state(tmp_path)["changed"] is True
    (tmp_path / "site-packages").mkdir()
    assert git_state(tmp_path / "site-packages") is None, "a package that is installed inside the repository"


def test_an_edit_of_attnorm_changes_its_digest(tmp_path, monkeypatch):
    recorded, digest = source_code.digest_of_attnorm(), source_code.digest_of_attnorm.__wrapped__
    copy = shutil.copytree(Path(source_code.__file__).parent, tmp_path / "attnorm", symlinks=True)
    monkeypatch.setattr(source_code, "HERE", copy)
    digests = [digest()]
    with open(copy / "attention" / "normalizers" / "softmax.py", "a") as file:
        file.write("\n")
    digests.append(digest())
    (copy / "wording.py").rename(copy / "renamed.py")
    assert digests[0] == recorded and len({*digests, digest()}) == 3


def test_metrics_are_at_the_updates_they_belong_to():
    run = runs.finished_run()
    assert list(runs.logged(run, "train/loss")) == [1, 2, 3, 4]
    assert list(runs.logged(run, "val/loss")) == list(runs.logged(run, "val/rouge1")) == [2, 4]
    assert list(runs.logged(run, "hybrid_weights/encoder/0")) == [0, 1, 2, 3, 4]
    assert list(runs.logged(run, "column_mass/encoder/0/min")) == [0, 2, 4]


def test_the_hybrid_curve_starts_at_a_half_and_has_every_layer_at_every_look_and_moves(tmp_path):
    typed = ("model.encoder_layers=2", "callbacks.learned_scalars.every_n_steps=2", "task.max_steps=5")
    runs.tiny_run(tmp_path, "attention=hnas_prefix", *typed)
    rows = read_csv(tmp_path / "hybrid_weights.csv")
    layers = ["encoder/0", "encoder/1", "decoder/0", "decoder/0/cross"]
    assert [(int(row["step"]), row["layer"]) for row in rows] == [
        (step, layer) for step in (0, 2, 4, 5) for layer in layers
    ]
    assert all(row["value"] == "0.5" for row in rows[:4])
    assert all(row["value"] != "0.5" and 0 < float(row["value"]) < 1 for row in rows[4:])


@pytest.mark.slow
def test_a_hybrid_weight_per_head_has_a_row_per_head(tmp_path):
    typed = ("attention.options.hnas.per=head", "attention.options.hnas.start=0.3", "task.max_steps=1")
    runs.tiny_run(tmp_path, "attention=hnas", *typed)
    rows = read_csv(tmp_path / "hybrid_weights.csv")
    assert [(row["step"], row["head"]) for row in rows] == [("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")]
    assert [float(row["value"]) for row in rows[:2]] == pytest.approx([0.3, 0.3], abs=1e-6)


# how long a run is


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "steps"),
    [
        (("trainer.max_steps=2",), 2),
        (("trainer.max_steps=2", "task.max_steps=1"), 2),
        (("trainer.max_steps=1", "trainer.max_epochs=5"), 1),
        (("trainer.max_epochs=1", "data.train_size=30", "task.max_steps=1"), None),
        (("trainer.max_epochs=2", "data.train_size=30", "trainer.accumulate_grad_batches=2"), None),
        (("trainer.max_epochs=1", "trainer.limit_train_batches=3"), 3),
        (("trainer.max_epochs=1", "trainer.limit_train_batches=0.5", "data.train_size=60"), 3),
    ],
)
def test_a_run_makes_the_updates_it_was_asked_for(tmp_path, overrides, steps):
    summary = runs.tiny_run(tmp_path, *overrides, "task.validations=1")
    if steps is None:
        steps = runs.tiny(*overrides)["trainer"]["max_epochs"] * updates_an_epoch(*overrides)
    assert summary["steps"] == steps
    assert list(runs.logged(tmp_path, "train/loss")) == list(range(1, steps + 1))
    assert max(runs.logged(tmp_path, "val/loss")) == steps  # the last validation is at the end


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        slow(("task.max_steps=6", "task.validations=3"), [2, 4, 6]),
        (("task.max_steps=7", "task.validations=3"), [3, 6, 7]),
        (("task.max_steps=3", "task.validations=5"), [1, 2, 3]),
        slow(("trainer.accumulate_grad_batches=3",), [2, 4]),
        slow(("task.max_steps=3", "trainer.val_check_interval=2", "+trainer.min_epochs=9"), [2, 3]),  # too early a stop
    ],
)
def test_validations_are_even_and_the_last_is_at_the_end(tmp_path, typed, expected):
    runs.tiny_run(tmp_path, *typed)
    assert list(runs.logged(tmp_path, "val/loss")) == expected
    assert runs.load(tmp_path)["global_step"] == expected[-1]


@pytest.mark.parametrize("updates", [1, 4, 5, 9, 14, 41, 1987])
@pytest.mark.parametrize("validations", [1, 3, 5, 20])
def test_there_are_no_more_validations_than_asked_for(updates, validations):
    data = SimpleNamespace(cfg=SimpleNamespace(trainer=SimpleNamespace(val_check_interval=None)))
    data.cfg.task = SimpleNamespace(validations=validations)
    every = validation_interval(data, updates)
    assert math.ceil(updates / every) <= validations
    assert every == 1 or math.ceil(updates / (every - 1)) > validations  # and as many as fit


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "share"), [(None, 1.0), (3, None), (0.25, 0.25), (1e-9, 0.0), (10**6, 1.0)])
def test_a_limit_of_validation_batches_leaves_short_and_long_texts(tmp_path, limit, share):
    typed = ("data.valid_size=200", "data.batch_tokens=800", "task.max_steps=1", "task.rouge_pairs=0")
    found = {}

    def keep(trainer, module):
        found["rows"] = [row for batch in trainer.val_dataloaders for row in batch["rows"].tolist()]
        found["batches"] = len(trainer.val_dataloaders)
        found["lengths"] = trainer.datamodule.splits["validation"].lengths.sum(1)
        found["all"] = trainer.datamodule.task.selecting(trainer.datamodule.splits["validation"])

    with pytest.MonkeyPatch.context() as patch:
        runs.before(patch, callbacks.Throughput, "on_validation_end", lambda _, *args: keep(*args))
        runs.tiny_run(tmp_path, *typed, *([] if limit is None else [f"trainer.limit_val_batches={limit}"]))
    rows, selecting = found["rows"], sorted(map(int, found["all"]))
    assert set(rows) <= set(selecting) and len(set(rows)) == len(rows)
    if share is not None:
        assert len(rows) == max(1, round(share * len(selecting)))
    else:
        assert abs(found["batches"] - limit) <= 1
    if len(rows) > 20:
        lengths = found["lengths"]
        assert lengths[rows].mean() == pytest.approx(lengths[selecting].mean(), rel=0.1)


@pytest.mark.slow
def test_a_share_of_an_epoch_below_one_update_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"trainer\.limit_train_batches=1e-09: less than one update"):
        runs.tiny_run(tmp_path, "trainer.limit_train_batches=1e-9")


@pytest.mark.slow
def test_training_stops_when_validations_stop_improving(tmp_path):
    still = ("optimizer.lr=1.0e-30", "optimizer.hybrid_lr_factor=1", "task.max_steps=12", "task.validations=12")
    summary = runs.tiny_run(tmp_path, *still, "callbacks.early_stopping.patience=3")
    assert summary["steps"] == 4  # the first sets the best, three more do not improve it
    assert summary["state"] == "finished"
    assert summary["best_step"] == 1


# scoring again


@pytest.mark.slow
def test_eval_with_other_settings_records_them_and_overwrites_nothing(monkeypatch, tmp_path):
    run = runs.copied_run(tmp_path)
    before = runs.summary_of(run)
    assert runs.call(monkeypatch, "eval", f"run={run}", "split=test") == 0
    assert runs.call(monkeypatch, "eval", f"run={run}", "split=test", "decoding.beam_size=1", "task.stemmer=false") == 0
    first, second = (json.loads((run / f"{name}.json").read_text()) for name in ("eval_test", "eval_test_2"))
    assert (first["typed"], first["split"], first["size"]) == ({}, "test", 12)
    assert second["typed"] == {"decoding.beam_size": 1, "task.stemmer": False}
    assert (first["settings"]["beam_size"], second["settings"]["beam_size"]) == (2, 1)
    assert "with Porter" in first["note"] and "without" in second["note"]
    assert first["metrics"]["loss"] == second["metrics"]["loss"]
    assert (run / "eval_test_2.txt").exists()
    assert runs.summary_of(run) == before


@pytest.mark.slow
@pytest.mark.parametrize("checkpoint", ["best", "last"])
def test_eval_takes_the_checkpoint_that_is_asked_for(monkeypatch, tmp_path, checkpoint):
    run = runs.copied_run(tmp_path)
    file = run / f"checkpoints/{checkpoint}.ckpt"
    content = torch.load(file, weights_only=True)
    content["state_dict"]["model.output.bias"].normal_()
    content["global_step"] = 99
    torch.save(content, file)
    assert runs.call(monkeypatch, "eval", f"run={run}", f"ckpt={checkpoint}") == 0
    record = json.loads((run / "eval_validation.json").read_text())
    assert (record["checkpoint"], record["step"]) == (checkpoint, 99)
    assert record["metrics"]["loss"] != loss_of(run)


# the same again


@pytest.mark.slow
def test_the_same_seed_gives_bit_equal_parameters_and_another_seed_or_no_dropout_others(tmp_path):
    runs.tiny_run(tmp_path / "again", "attention=hnas")
    assert runs.different_ends(runs.finished_run(), tmp_path / "again") == []
    assert scores_of(runs.finished_run()) == scores_of(tmp_path / "again")
    for number, typed in enumerate(("seed=2", "model.dropout=0.0")):  # or the above would prove little
        runs.tiny_run(tmp_path / str(number), "attention=hnas", typed)
        names = runs.unequal(runs.parameters(runs.finished_run()), runs.parameters(tmp_path / str(number)))
        assert "model.tokens.weight" in names


LESS = ("callbacks.attention_stats.every_n_steps=0", "callbacks.progress.samples=0", "task.rouge_pairs=0")
MORE = (
    "callbacks.attention_stats.every_n_steps=1",
    "callbacks.learned_scalars.every_n_steps=3",
    "task.validations=4",
    "data.num_workers=1",
)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [slow(LESS), MORE], ids=["less", "more"])
def test_looking_more_or_less_does_not_change_what_is_trained(tmp_path, settings):
    runs.tiny_run(tmp_path, "attention=hnas", *settings)
    assert runs.unequal(runs.parameters(runs.finished_run()), runs.parameters(tmp_path)) == []


@pytest.mark.parametrize(
    ("task", "variant"),
    [
        ("gigaword", "attention=dnas"),
        slow("gigaword", "attention=softmax"),
        slow("gigaword", "attention.prior.encoder=[t5]"),
        slow("gigaword", "attention=hnas_prefix"),
        *(slow("mlm", it) for it in ("attention=dnas", "attention.prior.encoder=[learned]")),
    ],
)
def test_variants_start_equal_and_see_the_same_batches_in_the_same_order(monkeypatch, tmp_path, task, variant):
    """Of masked language modelling, with the same hidden tokens."""
    seen: dict[str, list] = {}

    def note(self, batch, index):
        start = {name: value.clone() for name, value in self.model.state_dict().items()}
        batches, _ = seen.setdefault(self.label, [[], start])
        batches.append({name: value.clone() for name, value in batch.items()})

    monkeypatch.setattr("attnorm.training.train.evaluate_best", lambda *_: {"best_value": None})
    runs.before(monkeypatch, TrainingModule, "training_step", note)
    for label, overrides in (("hnas", ("attention=hnas",)), ("other", (variant,)), ("seed", (variant, "seed=2"))):
        monkeypatch.setattr(TrainingModule, "label", label, raising=False)
        runs.tiny_run(tmp_path / label, *overrides, "data.train_size=60", "task.max_steps=8", task=task)
    (ours, start), (theirs, other), (of_seed, _) = seen.values()
    assert [runs.unequal(*pair) for pair in zip(ours, theirs, strict=True)] == [[]] * 8
    assert [it["rows"].tolist() for it in ours] != [it["rows"].tolist() for it in of_seed]
    shared = start.keys() & other.keys()
    assert len(shared) > 20 and len(shared) >= len(start) - 1
    assert [name for name in shared if not torch.equal(start[name], other[name])] == []
    assert (tmp_path / "other/hybrid_weights.csv").exists() == ("hnas" in variant)


@pytest.mark.slow
@pytest.mark.parametrize("pieces", [2, 3])
def test_other_accumulation_steps_in_mid_epoch_are_refused_or_change_nothing(monkeypatch, tmp_path, pieces):
    overrides = (*EPOCHS, *EXACT)
    runs.stopped(monkeypatch, tmp_path / "first", 3, *overrides)
    changed = (f"trainer.accumulate_grad_batches={pieces}", f"ckpt_path={tmp_path}/first/checkpoints/last.ckpt")
    try:
        runs.tiny_run(tmp_path / "second", *overrides, *changed)
    except ValueError as error:
        assert "trainer.accumulate_grad_batches" in str(error)
    else:
        expected = runs.parameters(runs.uninterrupted(*overrides))
        assert_close(runs.parameters(tmp_path / "second"), expected, rtol=1e-7, atol=1e-9)


@pytest.mark.slow
def test_another_metric_selects_the_checkpoint_if_asked(tmp_path):
    summary, values = runs.tiny_run(tmp_path, "task.monitor=rouge1"), runs.logged(tmp_path, "val/rouge1").values()
    assert (summary["monitor"], summary["mode"], summary["best_value"]) == ("val/rouge1", "max", max(values))


@pytest.mark.slow
def test_the_ddp_command_gives_the_result_of_one_process(tmp_path):
    """As it is typed: Lightning starts the second process by the same command."""
    typed = ("trainer=ddp", "trainer.devices=2", *runs.tiny_overrides(), *EXACT, f"hydra.run.dir={tmp_path}/two")
    ended = runs.command(str(runs.ROOT / "train.py"), *typed, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    one, two = runs.uninterrupted(*EXACT), tmp_path / "two"
    assert_close(runs.parameters(one), runs.parameters(two), rtol=1e-7, atol=1e-9)
    assert list(runs.logged(two, "val/loss")) == [2, 4]
    assert (runs.summary_of(two)["state"], runs.summary_of(two)["steps"]) == ("finished", 4)
    assert (two / "hybrid_weights.csv").read_text() == (one / "hybrid_weights.csv").read_text()


# where it goes


@pytest.mark.slow
def test_run_folders_go_where_they_are_typed_to_go(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    typed = (f"paths.log_dir={tmp_path}/elsewhere", "attention=hnas", "attention.prior.encoder=[t5]")
    assert runs.call(monkeypatch, "train", *runs.tiny_overrides(), *typed, "task.max_steps=1") == 0
    [summary] = tmp_path.rglob("summary.json")
    assert summary.parent.parent == tmp_path / "elsewhere/gigaword/hnas_prior-encoder-t5"
    assert (summary.parent / "figures/hybrid_weights.png").stat().st_size > 1000
    assert [path.name for path in tmp_path.iterdir()] == ["elsewhere"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("repeated", "said"), [(0, ""), (3, "3 of 8 {} occur in train, too"), (8, "all 8 {} occur in train")]
)
def test_rows_that_occur_in_an_earlier_split_are_counted(tmp_path, capsys, repeated, said):
    def write(name, first, count, form=str, bad=()):
        every = [" ".join(words) + " é" for words in runs.sentences(first, count)]
        rows = [json.dumps({"text": form(text), "label": ("no", "yes")[text.startswith("red")]}) for text in every]
        (tmp_path / f"{name}.jsonl").write_text("\n".join([*rows, *bad]))
        return f"data.{name}={tmp_path}/{name}.jsonl"

    def decomposed(text):
        return unicodedata.normalize("NFD", text.title())

    files = [write("train", 0, 60, bad=["[]"]), write("validation", 60 - repeated, 8, decomposed), write("test", 68, 8)]
    typed = ("data.skip_bad=true", f"paths.cache_dir={tmp_path}/cache")
    notes = runs.tiny_run(tmp_path / "first", *files, *typed, task="classify")["data_notes"]
    assert notes[0] == "train: 1 bad row of its files skipped" and len(notes) == 2 + bool(said)
    assert notes[1].startswith("validation: 8 unknown characters (")  # the accents
    capsys.readouterr()
    assert (
        runs.tiny_run(tmp_path / "run", *files, *typed, task="classify")["data_notes"] == notes
    )  # also from the cache
    printed, said = " ".join(capsys.readouterr().out.split()), said.format(ClassificationTask.unit)
    assert ("occur in" in printed) == bool(said) and (f"validation: {said}" if said else "") in printed
    assert all(note in printed for note in notes)
    (tmp_path / "test.jsonl").write_bytes((tmp_path / "validation.jsonl").read_bytes())
    evaluate([f"run={tmp_path}/run", "split=test"])
    printed = " ".join("".join(capsys.readouterr()).split())
    assert (
        f"test: all 8 {ClassificationTask.unit} occur in validation, too; do both splits have the same file?" in printed
    )
    assert (f"test: {said}" if said else "") in printed and (" train, too" in printed) == bool(said)
    recorded = json.loads((tmp_path / "run/eval_test.json").read_text())["data_notes"]
    assert len(recorded) == 2 + bool(said) and all(note in printed for note in recorded)
    assert "the training is" not in printed
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    (tmp_path / "run/summary.json").write_text(json.dumps(summary | {"state": "interrupted"}))
    evaluate([f"run={tmp_path}/run", "split=test"])
    [step] = {json.loads(path.read_text())["step"] for path in (tmp_path / "run").glob("eval_test*.json")}
    assert f"the training is interrupted; this is its update {step}" in "".join(capsys.readouterr())


@pytest.mark.slow
def test_a_cache_that_takes_no_hashes_ends_no_run(monkeypatch, tmp_path, capsys):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(data_notes, "write_hashes", full)
    runs.tiny_run(tmp_path / "run", f"paths.cache_dir={tmp_path}/cache", task="classify")
    assert "are not counted: [Errno 28] No space left" in " ".join(capsys.readouterr().out.split())
