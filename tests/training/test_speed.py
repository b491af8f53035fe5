"""The measured speed of training: tokens, padding and waiting for data; and profilers."""

from collections import Counter

import pytest
import runs
import torch
from marks import slow
from simulated_gpu import OnMeta, SimulatedGPU
from torch import nn

from attnorm.attention.transfer import remember
from attnorm.data.loader import ResumableLoader
from attnorm.models import generation
from attnorm.run.csv_files import read_csv
from attnorm.tasks.mlm import MaskedLMModule
from attnorm.tasks.module import TaskModule
from attnorm.tasks.task import task_of
from attnorm.training.callbacks.checkpointing import AtomicCheckpointIO
from attnorm.training.callbacks.run_files import RunFiles
from attnorm.training.callbacks.throughput import TIMING_COLUMNS, Throughput
from attnorm.training.datamodule import TaskDataModule
from attnorm.training.module import TrainingModule
from attnorm.training.size import flops_per_token

LONG = ("data.train_size=60", "task.max_steps=14", "task.validations=2", "trainer.log_every_n_steps=5")
NAMES = ("tokens_per_second", "padding_share", "data_wait_share")


class Clock:
    """A clock that stands still, except when it is told how much time has passed."""

    def __init__(self, monkeypatch):
        self.now = 1.0
        monkeypatch.setattr("attnorm.training.callbacks.throughput.time.perf_counter", lambda: self.now)

    def passes(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch) -> Clock:
    """2 s per step, and 3 s for the data of each batch; also 100 s per validation and for saving a checkpoint."""
    found = Clock(monkeypatch)
    original = ResumableLoader.__iter__

    def load(self):
        for batch in original(self):  # the loader itself sees no time pass
            self.waited += 3.0
            found.passes(3.0)
            yield batch

    monkeypatch.setattr(ResumableLoader, "__iter__", load)
    monkeypatch.setattr(AtomicCheckpointIO, "save_checkpoint", lambda *_, **__: found.passes(100.0))
    monkeypatch.setattr("attnorm.training.callbacks.checkpointing.replace_by_copy", lambda *_: None)
    runs.before(monkeypatch, TrainingModule, "backward", lambda *_, **__: found.passes(2.0))
    runs.before(monkeypatch, TrainingModule, "on_validation_epoch_start", lambda *_: found.passes(100.0))
    return found


@pytest.mark.slow
def test_the_logged_values_are_means_over_the_updates_since_they_were_logged_last(monkeypatch, tmp_path, clock):
    """Validation and saving are not counted, and neither are waits that fall into them."""
    tokens, positions = {}, {}

    def count(self, trainer, module, outputs, batch, index):
        step = trainer.global_step
        sides = batch["source"], batch["target"][:, 1:]
        tokens[step] = sum(int((side != module.task_module.tokenizer.pad_id).sum()) for side in sides)
        positions[step] = sum(side.numel() for side in sides)

    def save(self, trainer, *_):
        if trainer.global_step == 3:
            trainer.save_checkpoint(tmp_path / "between.ckpt")

    monkeypatch.setattr("attnorm.training.train.keep_best", lambda _: None)
    monkeypatch.setattr("attnorm.training.train.evaluate_best", lambda *_: {"best_value": None})
    runs.before(monkeypatch, Throughput, "on_train_batch_end", count)
    runs.before(monkeypatch, RunFiles, "on_train_batch_end", save)
    summary = runs.tiny_run(tmp_path, *LONG)
    shares = runs.logged(tmp_path, "train/padding_share")
    assert shares.keys() == {5, 10}
    for last, share in shares.items():
        steps = range(last - 4, last + 1)
        expected = 1 - sum(tokens[step] for step in steps) / sum(positions[step] for step in steps)
        assert share == pytest.approx(expected, rel=1e-5)
    # not on the clock: the first wait, the one after saving at update 3, and the one after the validation at update 7
    seconds = {5: 5 * 2 + 3 * 3, 10: 5 * 2 + 4 * 3}
    for last, speed in runs.logged(tmp_path, "train/tokens_per_second").items():
        assert speed == pytest.approx(sum(tokens[step] for step in range(last - 4, last + 1)) / seconds[last], rel=1e-5)
    waits = runs.logged(tmp_path, "train/data_wait_share")
    assert waits == {5: pytest.approx(9 / 19, rel=1e-5), 10: pytest.approx(12 / 22, rel=1e-5)}
    total = 14 * 2 + 11 * 3
    assert summary["tokens_per_second"] == pytest.approx(sum(tokens.values()) / total, abs=0.1)
    assert summary["data_wait_share"] == pytest.approx(33 / total, abs=1e-3)
    assert summary["seconds_per_update"] == pytest.approx(total / 14, rel=1e-5)
    assert summary["padding_share"] == pytest.approx(1 - sum(tokens.values()) / sum(positions.values()), abs=1e-3)


def test_every_value_is_in_one_row_and_in_the_summary(tmp_path):
    summary = runs.tiny_run(tmp_path, *LONG)
    rows = [row for row in read_csv(tmp_path / "metrics.csv") if row["train/tokens_per_second"]]
    assert [int(row["step"]) for row in rows] == [5, 10]
    assert all(row[f"train/{name}"] for row in rows for name in NAMES)
    for name in NAMES:
        assert runs.logged(tmp_path, f"train/{name}").keys() == {5, 10}
        assert summary[name] > 0
    assert all(0 <= share < 1 for share in runs.logged(tmp_path, "train/data_wait_share").values())
    assert {f"train/{name}" for name in NAMES} - {"train/padding_share"} == set(TIMING_COLUMNS)


def parts(*overrides: str, task: str) -> tuple[TaskModule, ResumableLoader]:
    """The module and the training loader of a tiny run."""
    cfg = runs.tiny(*overrides, task=task)
    made = task_of(cfg)
    splits = made.splits()
    tokenizer = splits["train"].tokenizer
    module = made.module(made.model(tokenizer), tokenizer, splits["validation"])
    data = TaskDataModule(made, splits)
    sampler = data._sampler("train")
    return module, data._loader("train", sampler)


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["softmax", "dnas", "sinkhorn"])
def test_the_counted_operations_are_those_of_the_formula(monkeypatch, attention):
    """6 per parameter of a matrix and token, and 12 N d for the attention of a row of N tokens and width d."""
    module, loader = parts(f"attention={attention}", task="mlm")
    lengths, masked = [], []

    def note(self, batch):
        lengths.append(batch["ids"].shape[1])
        masked.append(len(batch["labels"]))

    runs.before(monkeypatch, MaskedLMModule, "loss", note)
    before = torch.get_rng_state()
    found = flops_per_token(module, loader)
    assert torch.equal(torch.get_rng_state(), before) and module.model.training
    assert len(lengths) == 3 and sorted(lengths) == lengths
    matrices = {name: m.weight.numel() for name, m in module.model.named_modules() if isinstance(m, nn.Linear)}
    of_tokens = sum(size for name, size in matrices.items() if name.startswith("encoder."))
    width, vocabulary = module.model.encoder.layers[0].attention.query.in_features, module.tokenizer.vocab_size
    of_masked = sum(size for name, size in matrices.items() if not name.startswith("encoder."))
    if not any(size == width * vocabulary for size in matrices.values()):  # the output layer is the embedding
        of_masked += width * vocabulary
    expected = sum(
        6 * of_tokens * length + 6 * of_masked * count + 12 * length**2 * width
        for length, count in zip(lengths, masked, strict=True)
    )
    assert found == pytest.approx(expected / sum(lengths), rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["gigaword", "squad", "classify", "vqa"])
def test_the_operations_of_every_task_can_be_counted(task):
    module, loader = parts("attention=hnas", task=task)
    parameters = sum(it.numel() for it in module.model.parameters())
    assert 0.1 * parameters < flops_per_token(module, loader) < 100 * parameters


@pytest.mark.slow
def test_the_profiler_writes_into_the_run_folder(monkeypatch, tmp_path, capsys):
    run, typed = tmp_path / "run", (*LONG, "trainer.profiler=simple")
    first = runs.stopped(monkeypatch, tmp_path / "first", 8, *typed)
    assert "run_training_batch" in (first / "profile/fit-simple.txt").read_text()
    capsys.readouterr()
    runs.tiny_run(run, *typed, f"ckpt_path={first}/checkpoints/last.ckpt")
    assert "run_training_batch" in (run / "profile/fit-simple.txt").read_text()
    printed = capsys.readouterr().out
    assert "Profiler Report" in printed and f"profile: {run}/profile" in printed.replace("\n", "")
    runs.tiny_run(tmp_path / "without", *LONG)
    assert "Profiler Report" not in capsys.readouterr().out
    assert runs.different_ends(tmp_path / "without", run) == []
    assert not (tmp_path / "without/profile").exists()


TASKS = (
    "gigaword",
    *("mlm", "squad", "classify", "vqa", "image_classification", "document_classification"),
    *("translation", "translation_lstm", "captioning", "causal_lm"),
)
FINITE = "training/module.py:on_before_optimizer_step"
LOGGING = ("throughput.py:values", "attention_stats.py:on_step", "learned_scalars.py:on_step")
SELDOM = (  # the third and the sixth update are logged
    *("task.max_steps=6", "task.validations=1", "trainer.log_every_n_steps=3"),
    *("callbacks.attention_stats.every_n_steps=3", "callbacks.learned_scalars.every_n_steps=3"),
)


@pytest.mark.parametrize("task", list(map(slow, TASKS)))
def test_an_update_waits_for_the_device_once(monkeypatch, tmp_path, task):
    """So do a batch of a validation, a step of greedy decoding, and each callback that logs."""
    calls: Counter[str] = Counter()
    monkeypatch.setattr("attnorm.training.train.evaluate_best", lambda *_: {"best_value": None})
    runs.before(monkeypatch, TrainingModule, "validation_step", lambda *_: calls.update(["batch"]))
    for name in ("search", "_forbid"):
        original = getattr(generation, name)
        counted = lambda *given, name=name, original=original: (calls.update([name]), original(*given))[1]  # noqa: E731
        monkeypatch.setattr(generation, name, counted)
    with SimulatedGPU() as gpu:
        runs.tiny_run(tmp_path, *SELDOM, task=task)
    assert not gpu.mixed
    for update in (1, 2, 4, 5):
        assert gpu.places("train", update) == {FINITE: 1}, f"update {update + 1}"
    logged = gpu.places("train", 3) - Counter([FINITE])
    assert logged.keys() <= {f"training/callbacks/{it}" for it in LOGGING} and set(logged.values()) <= {1}
    validated = gpu.places("validate", 6)
    of_steps = Counter({"models/generation.py:search": calls["_forbid"]})
    if task == "translation_lstm":  # the lengths of the sources that are translated
        of_steps["models/recurrent/seq2seq.py:over_padded"] = calls["search"]
    packages = ("attention/", "models/", "tasks/")
    of_model = Counter({place: count for place, count in validated.items() if place.startswith(packages)}) - of_steps
    assert of_model.total() == calls["batch"] > 0, of_model


MODELS = (  # another one than that of the task
    *[(task, ()) for task in TASKS],
    slow("captioning", ("model=transformer_captioner", "model.n_heads=2")),
    slow("document_classification", ("model=flat_tiny",)),
    slow("vqa", ("model=mcan_small",)),
    slow("vqa", ("model.question=transformer",)),
)


@pytest.mark.parametrize("task, model", MODELS)
def test_every_model_trains_on_the_device_meta(task, model):
    """It has no values, so that reading one fails, and tensors that are made elsewhere are noticed."""
    module, loader = parts(*model, task=task)
    batch = next(iter(loader))
    module.model.eval()
    noted = {name: remember(x.clone(), x) for name, x in batch.items()}
    assert torch.equal(module.loss(noted).objective, module.loss(batch).objective)
    module.model.train().to("meta")
    optimizer = torch.optim.AdamW(module.model.parameters())
    batch = {name: remember(x.to("meta"), x) for name, x in batch.items()}
    with OnMeta():
        (module.loss(batch).objective / batch["divisor"]).backward()
        torch.nn.utils.get_total_norm([parameter.grad for parameter in module.model.parameters()])
        optimizer.step()
