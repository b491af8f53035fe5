"""Whole runs, tiny ones: what they leave behind, that they repeat, go on, stop and divide their batches exactly."""

import errno
import json
import math
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pandas
import pytest
import runs
import torch
import yaml
from marks import slow
from tolerance import rounding
from torch.testing import assert_close

from attnorm import source_code
from attnorm.cli.evaluate import evaluate
from attnorm.data.sampler import TokenBatches
from attnorm.errors import ConfigError
from attnorm.run.tables import read_csv
from attnorm.tasks import leaks
from attnorm.tasks.classification import ClassificationTask
from attnorm.tasks.task import task_of
from attnorm.training.callbacks import throughput as callbacks
from attnorm.training.environment import git_state
from attnorm.training.module import TrainingModule
from attnorm.training.trainer import validation_interval

EPOCHS = (
    "attention=hnas",
    "data.train_size=60",
    "task.max_steps=14",
    "task.validations=4",
)  # validates after 4, 8, 12, 14
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
    environment = json.loads((run / "environment.json").read_text())
    assert environment["packages"]["torch"] == torch.__version__
    assert {"command", "git", "code", "python", "gpus"} <= set(environment) and environment["modules"] == {}


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
    monkeypatch.setattr(source_code, "__file__", str(copy / "source_code.py"))
    digests = [digest()]
    with open(copy / "attention" / "normalizers" / "softmax.py", "a") as file:
        file.write("\n")
    digests.append(digest())
    (copy / "optim.py").rename(copy / "renamed.py")
    assert digests[0] == recorded and len({*digests, digest()}) == 3


def test_final_headlines_and_samples_are_one_line_each():
    run = runs.finished_run()
    assert len((run / "samples/validation.txt").read_text().split("\n")) == 20 + 1
    assert (run / "samples/step_000004.txt").read_text().count("headline  ") == 2


def test_metrics_are_at_the_updates_they_belong_to():
    run = runs.finished_run()
    assert list(runs.logged(run, "train/loss")) == [1, 2, 3, 4]
    assert list(runs.logged(run, "val/loss")) == list(runs.logged(run, "val/rouge1")) == [2, 4]
    assert list(runs.logged(run, "hybrid_weights/encoder/0")) == [0, 1, 2, 3, 4]
    assert list(runs.logged(run, "column_mass/encoder/0/min")) == [0, 2, 4]


@pytest.mark.numerical
def test_the_last_validation_loss_is_that_of_the_summary():
    """One is computed in training, the other from best.ckpt: the same model, the same pairs."""
    run = runs.finished_run()
    tables = (runs.selecting(run), pandas.read_parquet(run / "predictions/validation.parquet"))
    losses = [rows["loss_sum"].sum() / rows["n_tokens"].sum() for rows in tables]
    found = [runs.logged(run, "val/loss")[4], loss_of(run)]
    assert_close(found, losses, rtol=rounding(torch.float32, depth=3, size=300), atol=0)


def test_the_hybrid_curve_starts_at_a_half_and_has_every_layer_at_every_look_and_moves(tmp_path):
    runs.tiny_run(
        tmp_path,
        "attention=hnas_prefix",
        "model.encoder_layers=2",
        "callbacks.learned_scalars.every_n_steps=2",
        "task.max_steps=5",
    )
    rows = read_csv(tmp_path / "hybrid_weights.csv")
    layers = ["encoder/0", "encoder/1", "decoder/0", "decoder/0/cross"]
    assert [(int(row["step"]), row["layer"]) for row in rows] == [
        (step, layer) for step in (0, 2, 4, 5) for layer in layers
    ]
    assert all(row["value"] == "0.5" for row in rows[:4])
    assert all(row["value"] != "0.5" and 0 < float(row["value"]) < 1 for row in rows[4:])


@pytest.mark.slow
def test_a_hybrid_weight_per_head_has_a_row_per_head(tmp_path):
    runs.tiny_run(
        tmp_path,
        "attention=hnas",
        "attention.options.hnas.per=head",
        "attention.options.hnas.start=0.3",
        "task.max_steps=1",
    )
    rows = read_csv(tmp_path / "hybrid_weights.csv")
    assert [(row["step"], row["head"]) for row in rows] == [("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")]
    assert [float(row["value"]) for row in rows[:2]] == pytest.approx([0.3, 0.3], abs=1e-6)


@pytest.mark.slow
def test_a_run_without_hybrid_weights_has_no_curve(tmp_path):
    runs.tiny_run(tmp_path, "attention=dnas", "task.max_steps=1")
    assert not (tmp_path / "hybrid_weights.csv").exists()


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
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_run_makes_the_updates_it_was_asked_for(tmp_path, overrides, steps):
    summary = runs.tiny_run(tmp_path, *overrides, "task.validations=1")
    if steps is None:
        steps = runs.tiny(*overrides)["trainer"]["max_epochs"] * updates_an_epoch(*overrides)
    assert summary["steps"] == steps
    assert list(runs.logged(tmp_path, "train/loss")) == list(range(1, steps + 1))
    assert max(runs.logged(tmp_path, "val/loss")) == steps  # the last validation is at the end


@pytest.mark.parametrize(
    ("steps", "validations", "expected"), [(6, 3, [2, 4, 6]), (7, 3, [3, 6, 7]), (3, 5, [1, 2, 3])]
)
def test_validations_are_even_and_the_last_is_at_the_end(tmp_path, steps, validations, expected):
    runs.tiny_run(tmp_path, f"task.max_steps={steps}", f"task.validations={validations}")
    assert list(runs.logged(tmp_path, "val/loss")) == expected


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
def test_the_last_validation_is_at_the_end_whatever_lightning_thinks_is_too_early(tmp_path):
    runs.tiny_run(tmp_path, "task.max_steps=3", "trainer.val_check_interval=2", "+trainer.min_epochs=9")
    assert list(runs.logged(tmp_path, "val/loss")) == [2, 3]
    assert runs.load(tmp_path)["global_step"] == 3


@pytest.mark.slow
def test_a_share_of_an_epoch_below_one_update_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"trainer\.limit_train_batches=1e-09: less than one update"):
        runs.tiny_run(tmp_path, "trainer.limit_train_batches=1e-9")


@pytest.mark.slow
def test_validations_count_updates_under_accumulation(tmp_path):
    runs.tiny_run(tmp_path, "trainer.accumulate_grad_batches=3")
    assert list(runs.logged(tmp_path, "val/loss")) == [2, 4]


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
def test_eval_on_another_corpus_keeps_the_runs_tokenizer(monkeypatch, tmp_path):
    run = runs.copied_run(tmp_path)
    typed = ("data=newswire", "data.corpus_seed=7", "data.valid_size=9")
    assert runs.call(monkeypatch, "eval", f"run={run}", *typed) == 0
    record = json.loads((run / "eval_validation.json").read_text())
    assert record["size"] == 9
    assert record["data"]["corpus_seed"] == 7
    assert record["data"]["batch_tokens"] == 1000  # the run's own, not today's default
    assert record["metrics"]["loss"] != loss_of(run)


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
def test_the_same_seed_gives_bit_equal_parameters_and_another_seed_others(tmp_path):
    runs.tiny_run(tmp_path / "again", "attention=hnas")
    runs.tiny_run(tmp_path / "other", "attention=hnas", "seed=2")
    assert runs.different_ends(runs.finished_run(), tmp_path / "again") == []
    assert scores_of(runs.finished_run()) == scores_of(tmp_path / "again")
    names = runs.unequal(runs.parameters(runs.finished_run()), runs.parameters(tmp_path / "other"))
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


@pytest.mark.slow
def test_column_mass_is_logged_as_finite_numbers_or_not_at_all(tmp_path):
    columns = [
        f"column_mass/{layer}/{kind}"
        for layer in ("encoder/0", "decoder/0", "decoder/0/cross")
        for kind in ("mean", "min")
    ]
    rows = read_csv(runs.finished_run() / "metrics.csv")
    looks = [[float(row[column]) for column in columns] for row in rows if row[columns[0]]]
    assert len(looks) == 3
    assert torch.tensor(looks).isfinite().all()
    runs.tiny_run(tmp_path, "attention=hnas", "callbacks.attention_stats.every_n_steps=0", "task.max_steps=2")
    assert "column_mass" not in (tmp_path / "metrics.csv").read_text()
    assert not (tmp_path / "attention.csv").exists()


@pytest.mark.parametrize(
    "variant",
    ["attention=dnas", *map(slow, ("attention=softmax", "attention.prior.encoder=[t5]", "attention=hnas_prefix"))],
)
def test_variants_start_equal_and_see_the_same_batches_in_the_same_order(monkeypatch, tmp_path, variant):
    seen: dict[str, list] = {}

    def note(self, batch, index):
        rows, starts = seen.setdefault(self.label, [[], None])
        rows.append(batch["rows"].tolist())
        if starts is None:
            seen[self.label][1] = {name: value.clone() for name, value in self.model.state_dict().items()}

    runs.before(monkeypatch, TrainingModule, "training_step", note)
    for label, overrides in (("hnas", ("attention=hnas",)), ("other", (variant,)), ("seed", (variant, "seed=2"))):
        monkeypatch.setattr(TrainingModule, "label", label, raising=False)
        runs.tiny_run(tmp_path / label, *overrides, "data.train_size=60", "task.max_steps=8")
    assert seen["hnas"][0] == seen["other"][0] != seen["seed"][0]
    shared = seen["hnas"][1].keys() & seen["other"][1].keys()
    assert len(shared) > 20
    assert [name for name in shared if not torch.equal(seen["hnas"][1][name], seen["other"][1][name])] == []


# going on


@pytest.mark.parametrize("interval", [slow(3), slow(6)], ids=["mid-epoch", "epoch's end"])
def test_a_crashed_run_goes_on_from_its_last_validation(monkeypatch, tmp_path, interval):
    """Two updates after a validation it crashes; these are made again, and are in the curves once."""
    overrides = (*EPOCHS, f"trainer.val_check_interval={interval}")

    def crash(self, batch, index):
        if self.trainer.global_step == interval + 2:
            raise RuntimeError("planted")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="planted"):
        runs.before(patch, TrainingModule, "training_step", crash)
        runs.tiny_run(tmp_path / "first", *overrides)
    assert runs.load(tmp_path / "first")["global_step"] == interval
    assert max(runs.logged(tmp_path / "first", "train/loss")) == interval + 2
    second = tmp_path / "second"
    runs.tiny_run(second, *overrides, f"ckpt_path={tmp_path}/first/checkpoints/last.ckpt")
    assert runs.same_run(runs.uninterrupted(*overrides), second)
    assert runs.summary_of(second)["state"] == "finished"


@pytest.mark.slow
def test_a_run_stopped_between_the_pieces_of_an_update_goes_on_bit_for_bit(monkeypatch, tmp_path):
    overrides = (*EPOCHS, "trainer.accumulate_grad_batches=4")
    in_mid_update = lambda trainer, index: trainer.global_step == 3 and index % 4 == 1  # noqa: E731
    runs.stopped(monkeypatch, tmp_path / "first", in_mid_update, *overrides)
    runs.tiny_run(tmp_path / "second", *overrides, f"ckpt_path={tmp_path}/first/checkpoints/last.ckpt")
    assert runs.different_ends(runs.uninterrupted(*overrides), tmp_path / "second") == []
    curves = [(run / "hybrid_weights.csv").read_text() for run in (tmp_path / "second", runs.uninterrupted(*overrides))]
    assert curves[0] == curves[1]


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
def test_the_best_model_survives_a_resume_into_another_folder(monkeypatch, tmp_path):
    """The best validation lies before the stop: what goes on must not crown a worse one."""
    losses = {4: 1.0, 8: 2.0, 12: 3.0, 14: 4.0}
    original = TrainingModule.log

    def log(self, name, value, *arguments, **options):
        value = losses[self.trainer.global_step] if name == "val/loss" else value
        return original(self, name, value, *arguments, **options)

    monkeypatch.setattr(TrainingModule, "log", log)
    runs.stopped(monkeypatch, tmp_path / "first", 6, *EPOCHS)
    summary = runs.tiny_run(tmp_path / "second", *EPOCHS, f"ckpt_path={tmp_path}/first/checkpoints/last.ckpt")
    assert summary["best_step"] == 4


# dividing a batch


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


# stopping


# where it goes


@pytest.mark.slow
def test_run_folders_go_where_they_are_typed_to_go(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    typed = (
        f"paths.log_dir={tmp_path}/elsewhere",
        "task.max_steps=1",
        "attention=hnas",
        "attention.prior.encoder=[t5]",
    )
    assert runs.call(monkeypatch, "train", *runs.tiny_overrides(), *typed, "task.max_steps=1") == 0
    [summary] = tmp_path.rglob("summary.json")
    assert summary.parent.parent == tmp_path / "elsewhere/gigaword/hnas_prior-encoder-t5"
    assert (summary.parent / "figures/hybrid_weights.png").stat().st_size > 1000
    assert [path.name for path in tmp_path.iterdir()] == ["elsewhere"]


@pytest.mark.slow
def test_several_runs_of_one_command_record_their_own_overrides(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    assert runs.call(monkeypatch, "train", "-m", "seed=1,2", *runs.tiny_overrides(), "task.max_steps=1") == 0
    assert "attnorm sweep jobs=1 seed=1,2 " in capsys.readouterr().out.splitlines()[0]
    summaries = [json.loads(path.read_text()) for path in tmp_path.rglob("summary.json")]
    assert sorted(it["seed"] for it in summaries) == [1, 2]
    assert all(f"seed={it['seed']}" in it["overrides"] for it in summaries)


@pytest.mark.slow
def test_a_dry_run_trains_one_batch_and_keeps_no_checkpoint(tmp_path):
    summary = runs.tiny_run(tmp_path, "debug=fdr")
    assert (summary["state"], summary["steps"]) == ("finished", 1)
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.slow
def test_dropout_differs_between_updates_and_follows_the_seed(tmp_path):
    """Or 'bit for bit with dropout' above would prove little."""
    runs.tiny_run(tmp_path, "attention=hnas", "model.dropout=0.0")
    assert runs.unequal(runs.parameters(runs.finished_run()), runs.parameters(tmp_path)) != []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("repeated", "said"), [(0, ""), (3, "3 of 8 {} occur in train, too"), (8, "all 8 {} occur in train")]
)
def test_rows_that_occur_in_an_earlier_split_are_counted(tmp_path, capsys, repeated, said):
    def write(name, first, count):
        every = [" ".join(words) for words in runs.sentences(first, count)]
        rows = [json.dumps({"text": text, "label": ("no", "yes")[text.startswith("red")]}) for text in every]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows))
        return f"data.{name}={tmp_path}/{name}.jsonl"

    files = [write("train", 0, 60), write("validation", 60 - repeated, 8), write("test", 68, 8)]
    runs.tiny_run(tmp_path / "run", *files, f"paths.cache_dir={tmp_path}/cache", task="classify")
    printed, said = " ".join(capsys.readouterr().out.split()), said.format(ClassificationTask.unit)
    assert ("occur in" in printed) == bool(said) and (f"validation: {said}" if said else "") in printed
    (tmp_path / "test.jsonl").write_bytes((tmp_path / "validation.jsonl").read_bytes())
    evaluate([f"run={tmp_path}/run", "split=test"])
    printed = " ".join("".join(capsys.readouterr()).split())
    assert (
        f"test: all 8 {ClassificationTask.unit} occur in validation, too; do both splits have the same file?" in printed
    )
    assert (f"test: {said}" if said else "") in printed and (" train, too" in printed) == bool(said)


@pytest.mark.slow
def test_a_cache_that_takes_no_hashes_ends_no_run(monkeypatch, tmp_path, capsys):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(leaks, "write_hashes", full)
    runs.tiny_run(tmp_path / "run", f"paths.cache_dir={tmp_path}/cache", task="classify")
    assert "are not counted: [Errno 28] No space left" in " ".join(capsys.readouterr().out.split())
