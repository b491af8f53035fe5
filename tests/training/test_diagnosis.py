"""A run that goes wrong says so: values that are not finite, and missing memory."""

import json
import math
from pathlib import Path

import marks
import pytest
import runs
import torch
from pytorch_lightning.plugins.precision import MixedPrecision
from torch import nn

import attnorm
from attnorm.attention.normalizers.softmax import Softmax
from attnorm.errors import RunError, UserError
from attnorm.tasks import pairs as headlines
from attnorm.tasks.headlines import HeadlineModule
from attnorm.training import diagnosis
from attnorm.training.callbacks.nonfinite import NonFiniteUpdates
from attnorm.training.diagnosis import replay
from attnorm.training.module import NonFiniteLoss, TrainingModule
from attnorm.training.out_of_memory import NotEnoughMemory

LONG = ("attention=hnas", "data.train_size=60", "task.max_steps=14", "task.validations=2")
NAN, INF = float("nan"), float("inf")
TARGET = "layers.0.cross.normalizer"


def poison(monkeypatch, *steps: int, value: float = NAN, pieces: int = 1) -> None:
    """Multiplies the output of one normalizer in the last microbatch of these updates, also when it is repeated."""
    bad: list[int] = []
    guilty: list[nn.Module] = []

    def choose(self, batch, index):
        chosen = self.trainer.global_step + 1 in steps and index % pieces == pieces - 1
        bad[:] = batch["rows"].tolist() if chosen else []

    attend, original = Softmax.attend, HeadlineModule.loss

    def loss(self, batch):
        guilty[:] = [self.model.get_submodule(TARGET)] if batch["rows"].tolist() == bad else []
        try:
            return original(self, batch)
        finally:
            guilty.clear()

    def planted(self, *arguments, **options):
        return attend(self, *arguments, **options) * (value if self in guilty else 1.0)

    runs.before(monkeypatch, TrainingModule, "training_step", choose)
    monkeypatch.setattr(HeadlineModule, "loss", loss)
    monkeypatch.setattr(Softmax, "attend", planted)


def report(run: Path, step: int) -> dict:
    return json.loads((run / f"failures/step_{step:06d}.json").read_text())


def tensors(trainer) -> dict[str, torch.Tensor]:
    """Copies of the parameters, and of the state of the optimizer."""
    [optimizer] = trainer.optimizers
    found = {name: value.clone() for name, value in trainer.lightning_module.state_dict().items()}
    for number, values in enumerate(optimizer.state.values()):
        found |= {f"{name} {number}": torch.as_tensor(value).clone() for name, value in values.items()}
    return found


# where it comes from


@pytest.mark.slow
def test_the_report_names_the_first_module_and_the_examples(monkeypatch, tmp_path):
    """The update is not made: the checkpoint of the validation before it stays, and is finite."""
    poison(monkeypatch, 4)
    with pytest.raises(NonFiniteLoss) as caught:
        runs.tiny_run(tmp_path, "task.max_steps=6")
    found = report(tmp_path, 4)
    assert found["output"] == f"{TARGET} (Softmax)"
    assert (found["what"], found["step"], found["epoch"], found["skipped"]) == ("the loss is nan", 4, 0, False)
    [part] = found["microbatches"]
    assert part["examples"] == list(map(str, part["rows"])) and part["batch"] == 3
    assert part["shapes"].keys() == {"source", "target"}
    assert part["repeated"] == part["objective"] == "nan"
    message = str(caught.value)
    assert "at step 4 (batch 3 of epoch 0)" in message and found["output"] in message
    assert f"examples {', '.join(part['examples'][:8])}" in message
    assert str(tmp_path / "failures/step_000004.json") in message and "run.skip_updates=" in message
    summary = runs.summary_of(tmp_path)
    assert summary["skipped_updates"] == 0 and summary["state"] != "finished" and message in summary["why"]
    assert runs.load(tmp_path)["global_step"] == 3
    assert all(value.isfinite().all() for value in runs.parameters(tmp_path).values())


@pytest.mark.slow
def test_the_examples_of_squad_are_its_questions(monkeypatch, tmp_path):
    def spoil(self, batch, index):
        self.model.encoder.layers[0].attention_residual.norm.weight.data[0] = NAN

    runs.before(monkeypatch, TrainingModule, "training_step", spoil)
    with pytest.raises(
        NonFiniteLoss, match=r"parameters are not finite: encoder\.layers\.0\.att\w+\.norm\.weight; examples q\d+, q\d+"
    ):
        runs.tiny_run(tmp_path, task="squad")
    found = report(tmp_path, 1)
    assert found["parameters"] == ["encoder.layers.0.attention_residual.norm.weight"]
    assert found["output"] == "encoder.layers.0.attention_residual.norm (LayerNorm)"
    [part] = found["microbatches"]
    assert len(part["examples"]) == len(part["rows"]) and {it[0] for it in part["examples"]} == {"q"}


class InfiniteGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * INF


@pytest.mark.slow
def test_an_infinite_gradient_of_a_finite_loss_is_traced_to_the_module_closest_to_the_loss(monkeypatch, tmp_path):
    guilty = "encoder.layers.0.feed_forward.2"

    def plant(self, batch, index):
        if self.trainer.global_step == 2:
            module = self.model.get_submodule(guilty)
            module.forward = lambda x: InfiniteGradient.apply(nn.Linear.forward(module, x))

    runs.before(monkeypatch, TrainingModule, "training_step", plant)
    with pytest.raises(NonFiniteLoss, match=r"a gradient is not finite at step 3 .*the first gradient that is not"):
        runs.tiny_run(tmp_path, "task.max_steps=6", "model.dropout=0.0")
    found = report(tmp_path, 3)
    assert found["output"] is None and found["what"] == "a gradient is not finite"
    assert guilty in found["gradient"]
    assert f"{guilty}.weight" in found["gradients"]
    assert not any(name.startswith(("layers.", "output.")) for name in found["gradients"])  # behind it, seen from there
    assert isinstance(found["microbatches"][0]["objective"], float)


@pytest.mark.slow
def test_a_failed_update_can_be_replayed(monkeypatch, tmp_path):
    """With the same dropout, the parameters of that moment, and nothing but plain tensors in the file."""
    overrides = (*LONG, "model.dropout=0.3")

    def overflow(self, batch, index):
        if self.trainer.global_step == 9:
            self.model.get_submodule("layers.0.cross.query").weight.data.mul_(1e38)

    with monkeypatch.context() as patch, pytest.raises(NonFiniteLoss):
        runs.before(patch, TrainingModule, "training_step", overflow)
        runs.tiny_run(tmp_path, *overrides)
    run = attnorm.load_run(tmp_path, checkpoint="last")
    splits = run.task.splits(run.tokenizer)
    module = run.task.module(run.model, run.tokenizer, splits["validation"])
    before = torch.get_rng_state()
    [found] = replay(tmp_path / "failures/step_000010.pt", module)
    assert torch.equal(torch.get_rng_state(), before)
    recorded = report(tmp_path, 10)
    assert found.output == recorded["output"] is not None
    assert not math.isfinite(found.objective)
    content = torch.load(tmp_path / "failures/step_000010.pt", weights_only=True)
    assert content["step"] == 10 and content["microbatches"][0]["batch"].keys() >= {"source", "target", "rows"}
    with pytest.raises(RunError, match="not a file of a failed update"):
        replay(tmp_path / "checkpoints/last.ckpt", module)


@pytest.mark.slow
def test_a_replay_repeats_dropout(monkeypatch, tmp_path):
    """The objective of a microbatch that was all right is the same number when it is repeated."""
    poison(monkeypatch, 3, pieces=2)
    with pytest.raises(NonFiniteLoss):
        runs.tiny_run(tmp_path, "task.max_steps=6", "trainer.accumulate_grad_batches=2", "model.dropout=0.5")
    good, bad = report(tmp_path, 3)["microbatches"]
    assert good["repeated"] == good["objective"] and isinstance(good["objective"], float)
    assert good["output"] is None and bad["output"] == f"{TARGET} (Softmax)"
    assert (good["batch"], bad["batch"]) == (4, 5)


def test_outputs_that_mark_what_is_masked_are_no_fault():
    class Masked(nn.Module):
        def forward(self, x):
            return {"scores": (x.masked_fill(x < 0, -INF),)}

    class Last(nn.Module):
        def forward(self, scores):
            return scores["scores"][0].exp() / 0.0

    model = nn.Sequential(Masked(), Last())
    with diagnosis._watched(model) as seen:
        model(torch.tensor([-1.0, 1.0]))
    assert seen == {"output": "1 (Last)"}


@pytest.mark.slow
@pytest.mark.parametrize("task", ["mlm", "classify", "vqa"])
def test_no_module_of_a_healthy_model_is_accused(monkeypatch, tmp_path, task):
    def plant(self, loss, *_, **__):
        loss.backward()
        names[:], parameters = zip(*self.model.named_parameters(), strict=True)
        parameters[0].grad[0] = INF

    names: list[str] = []
    monkeypatch.setattr(TrainingModule, "backward", plant)
    with pytest.raises(NonFiniteLoss, match=r"a gradient is not finite at step 1 .*gradients that are not finite: "):
        runs.tiny_run(tmp_path, "attention=hnas", task=task)
    found = report(tmp_path, 1)
    assert (found["output"], found["gradient"]) == (None, None)
    [name] = found["gradients"]
    assert name == names[0]


# skipping


@pytest.mark.slow
@pytest.mark.parametrize("pieces", [1, marks.slow(2)])
@pytest.mark.parametrize("optimizer", ["adamw", marks.slow("adam"), "sgd"])
def test_a_skipped_update_changes_neither_parameters_nor_the_state_of_the_optimizer(
    monkeypatch, tmp_path, caplog, optimizer, pieces
):
    states = {}

    def before(self, trainer, *_):
        states["before"] = tensors(trainer)

    def after(self, trainer, *_):
        if trainer.global_step == 3:
            states.setdefault("after", tensors(trainer))

    poison(monkeypatch, 3, pieces=pieces)
    runs.before(monkeypatch, NonFiniteUpdates, "handle", before)
    runs.before(monkeypatch, NonFiniteUpdates, "on_train_batch_end", after)
    typed = [f"optimizer={optimizer}", f"trainer.accumulate_grad_batches={pieces}", "optimizer.lr=1.0e-3"]
    summary = runs.tiny_run(tmp_path, *LONG, *typed, "run.skip_updates=1")
    assert states["before"].keys() == states["after"].keys() and len(states["after"]) > 20
    assert runs.unequal(states["before"], states["after"]) == []
    assert runs.unequal(states["after"], runs.parameters(tmp_path)) != []  # and then it went on
    assert (summary["skipped_updates"], summary["state"], summary["steps"]) == (1, "finished", 14)
    assert report(tmp_path, 3)["skipped"] is True
    assert torch.load(tmp_path / "failures/step_000003.pt", weights_only=True)["parameters"] is None
    assert runs.logged(tmp_path, "train/skipped_updates") == {3: 1.0}
    rates = runs.logged(tmp_path, "train/lr")
    assert len(set(rates.values())) == 14  # the schedule advances with every update, also a skipped one
    [line] = [line.getMessage() for line in caplog.records if "Skipped" in line.getMessage()]
    assert "at step 3" in line and "examples" in line and "1 of at most 1" in line


@pytest.mark.slow
def test_the_bound_ends_the_run(monkeypatch, tmp_path):
    poison(monkeypatch, 2, 3, 5)
    with pytest.raises(NonFiniteLoss, match=r"at step 5 .* run\.skip_updates=2 updates have been skipped\."):
        runs.tiny_run(tmp_path, *LONG, "run.skip_updates=2")
    assert runs.summary_of(tmp_path)["skipped_updates"] == 2
    assert [report(tmp_path, step)["skipped"] for step in (2, 3, 5)] == [True, True, False]


@pytest.mark.slow
def test_a_run_that_skips_nothing_equals_one_that_may_not_skip(tmp_path):
    for skip in (0, 3):
        runs.tiny_run(tmp_path / str(skip), *LONG, f"run.skip_updates={skip}")
    assert runs.different_ends(tmp_path / "0", tmp_path / "3") == []


@pytest.mark.slow
@pytest.mark.parametrize("stop", [3, marks.slow(5)])  # right after a skipped update, and between two
def test_a_resumed_run_counts_on_and_equals_the_uninterrupted_one(monkeypatch, tmp_path, stop):
    poison(monkeypatch, 3, 6)
    overrides = (*LONG, "run.skip_updates=2")
    runs.tiny_run(tmp_path / "whole", *overrides)
    first = runs.stopped(monkeypatch, tmp_path / "first", stop, *overrides)
    summary = runs.tiny_run(tmp_path / "second", *overrides, f"ckpt_path={first}/checkpoints/last.ckpt")
    assert summary["skipped_updates"] == 2
    assert runs.different_ends(tmp_path / "whole", tmp_path / "second") == []
    assert runs.metric_rows(tmp_path / "second") == runs.metric_rows(tmp_path / "whole")
    with pytest.raises(NonFiniteLoss, match=r"at step 6 .*run\.skip_updates=1 updates have been skipped"):
        runs.tiny_run(tmp_path / "bound", *LONG, "run.skip_updates=1", f"ckpt_path={first}/checkpoints/last.ckpt")


@pytest.mark.slow
def test_all_ranks_skip_together_if_one_of_them_fails(monkeypatch, tmp_path):
    original, latest = HeadlineModule.loss, {}

    def note(self, batch, index):
        latest.update(step=self.trainer.global_step, rank=self.trainer.global_rank, ranks=self.trainer.world_size)

    def fail_on_the_last_rank(self, batch):
        found = original(self, batch)
        if latest.get("step") == 2 and latest["rank"] == latest["ranks"] - 1:
            return found._replace(objective=found.objective + INF)  # its gradients are finite
        return found

    runs.before(monkeypatch, TrainingModule, "training_step", note)
    monkeypatch.setattr(HeadlineModule, "loss", fail_on_the_last_rank)
    typed = (*LONG, "model.dropout=0.0", "trainer.precision=64-true", "run.skip_updates=1")
    runs.tiny_run(tmp_path / "one", *typed)
    runs.tiny_run(tmp_path / "two", *typed, "trainer.strategy=ddp_fork", "trainer.devices=2")
    ends = [runs.parameters(tmp_path / name) for name in ("one", "two")]
    assert all(torch.allclose(ends[0][name], ends[1][name], rtol=1e-7, atol=1e-9) for name in ends[0])
    for name in ("one", "two"):
        assert runs.logged(tmp_path / name, "train/skipped_updates") == {3: 1.0}
        steps = {int(s["step"]) for s in runs.load(tmp_path / name)["optimizer_states"][0]["state"].values()}
        assert steps == {13}
    parts = report(tmp_path / "two", 3)["microbatches"]
    assert [part["rank"] for part in parts] == [0, 1]
    assert isinstance(parts[0]["objective"], float) and parts[1]["objective"] == "inf"
    assert (tmp_path / "two/failures/step_000003_rank_1.pt").is_file()


class HalfPrecision(MixedPrecision):
    """What Lightning uses on a GPU for 16-mixed; on a CPU it would take bfloat16 instead."""

    def __init__(self, precision: str, device: str):
        super().__init__("16-mixed", device, torch.amp.GradScaler(device, init_scale=2.0**10))


@pytest.fixture
def half_precision(monkeypatch):
    monkeypatch.setattr("pytorch_lightning.trainer.connectors.accelerator_connector.MixedPrecision", HalfPrecision)
    return ("trainer.precision=bf16-mixed", "task.label_smoothing=0")


@pytest.mark.slow
def test_with_half_precision_an_overflow_of_the_scaled_gradients_is_the_scalers_business(
    monkeypatch, tmp_path, half_precision
):
    def backward(self, loss, *_, **__):
        loss.backward()
        if self.trainer.global_step == 2:
            self.model.output.bias.grad[3] = INF

    monkeypatch.setattr(TrainingModule, "backward", backward)
    summary = runs.tiny_run(tmp_path, "task.max_steps=6", *half_precision)
    assert (summary["state"], summary["skipped_updates"]) == ("finished", 0)
    assert not (tmp_path / "failures").exists()
    assert runs.load(tmp_path)["HalfPrecision"]["scale"] == 2.0**9
    assert all(0 < norm < 100 for step, norm in runs.logged(tmp_path, "train/gradient_norm").items() if step != 3)


@pytest.mark.slow
def test_with_half_precision_a_loss_that_is_not_finite_is_counted(monkeypatch, tmp_path, half_precision):
    poison(monkeypatch, 3)
    with pytest.raises(NonFiniteLoss, match="the loss is nan at step 3"):
        runs.tiny_run(tmp_path / "stopped", "task.max_steps=6", *half_precision)
    summary = runs.tiny_run(tmp_path / "skipped", *LONG, *half_precision, "run.skip_updates=1")
    assert (summary["state"], summary["skipped_updates"]) == ("finished", 1)
    steps = {int(s["step"]) for s in runs.load(tmp_path / "skipped")["optimizer_states"][0]["state"].values()}
    assert steps == {13}


@pytest.mark.slow
def test_a_buffer_that_is_no_longer_finite_cannot_be_skipped(monkeypatch, tmp_path):
    """As the running means of a batch normalization."""

    def spoil(self, batch, index):
        self.model.register_buffer("running_mean", torch.full((1,), NAN), persistent=False)

    runs.before(monkeypatch, TrainingModule, "training_step", spoil)
    poison(monkeypatch, 2)
    with pytest.raises(NonFiniteLoss, match="The buffer running_mean is no longer finite"):
        runs.tiny_run(tmp_path, "run.skip_updates=5")


# missing memory


GPU = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
CPU = RuntimeError("[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory")


def raiser(error: BaseException, step: int):
    def fail(self, *_, **__):
        if self.trainer.global_step == step:
            raise error.with_traceback(None)  # without the frames of an earlier test

    return fail


@pytest.mark.slow
@pytest.mark.parametrize("error", [GPU, CPU, MemoryError()])
def test_memory_that_runs_out_in_training_names_the_batch_and_what_to_change(monkeypatch, tmp_path, error):
    runs.before(monkeypatch, TrainingModule, "backward", raiser(error, 2))
    typed = ("attention=sparsemax", "model.attention_dropout=0.1", "trainer.accumulate_grad_batches=2")
    with pytest.raises(NotEnoughMemory) as caught:
        runs.tiny_run(tmp_path, *typed)
    message = str(caught.value)
    assert caught.value.__cause__ is error
    assert isinstance(caught.value, UserError)
    assert "out of memory during training at step 3. The batch has" in message
    assert "source " in message and " x " in message and "tokens with padding" in message
    assert "Peak memory: process " in message
    advice = ("accumulate_grad_batches=4", "model.attention_dropout=0", "Sparsemax", "bf16-mixed", "batch_tokens")
    assert [words for words in advice if words not in message] == []
    assert "out of memory during training" in runs.summary_of(tmp_path)["why"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "error", "kind", "said"),
    [
        ("backward", CPU, NotEnoughMemory, r"^((?!normalizer|attention_dropout)[\s\S])*$"),  # softmax needs no table
        ("validation_step", CPU, NotEnoughMemory, r"at step 2\. The batch has \d+ rows: source \d+ x "),
        ("backward", RuntimeError("a bug"), RuntimeError, "^a bug$"),
    ],
)
def test_of_missing_memory_is_said_what_is_true(monkeypatch, tmp_path, method, error, kind, said):
    runs.before(monkeypatch, TrainingModule, method, raiser(error, 2))
    with pytest.raises(kind, match=said) as caught:
        runs.tiny_run(tmp_path, "attention=softmax")
    assert error in (caught.value, caught.value.__cause__)


@pytest.mark.slow
def test_memory_that_runs_out_in_decoding_names_the_beam(monkeypatch, tmp_path):
    original = headlines.generate

    def fail(model, source, special, decoding):
        if decoding.beam_size > 1:
            raise GPU.with_traceback(None)
        return original(model, source, special, decoding)

    monkeypatch.setattr(headlines, "generate", fail)
    with pytest.raises(NotEnoughMemory, match=r"during scoring.*\d+ rows: source .*decoding\.beam_size \(now 2\)"):
        runs.tiny_run(tmp_path)
    assert runs.load(tmp_path)["global_step"] == 4


def test_memory_that_runs_out_in_eval_is_a_message_too(monkeypatch, tmp_path, capsys):
    def fail(*_, **__):
        raise GPU.with_traceback(None)

    run = runs.copied_run(tmp_path)
    monkeypatch.setattr(headlines, "generate", fail)
    assert runs.call(monkeypatch, "eval", f"run={run}", "decoding.beam_size=3") == 1
    assert "error: out of memory during scoring. The batch has" in (printed := capsys.readouterr().err)
    assert "decoding.beam_size (now 3)" in printed
