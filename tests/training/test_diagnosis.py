"""A run that goes wrong says so: values that are not finite, and missing memory."""

import math

import pytest
import runs
import torch
from pytorch_lightning.plugins.precision import MixedPrecision
from torch import nn

from attnorm.attention.normalizers.softmax import Softmax
from attnorm.tasks.headlines import HeadlineModule
from attnorm.training import diagnosis
from attnorm.training.module import NonFiniteLoss, TrainingModule

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


# where it comes from


@pytest.mark.slow
def test_the_error_names_the_first_module_and_the_examples(monkeypatch, tmp_path):
    """The update is not made: the checkpoint of the validation before it stays, and is finite."""
    rows: list[list[int]] = []
    runs.before(
        monkeypatch, TrainingModule, "training_step", lambda _, batch, index: rows.append(batch["rows"].tolist())
    )
    poison(monkeypatch, 4)
    with pytest.raises(NonFiniteLoss) as caught:
        runs.tiny_run(tmp_path, "task.max_steps=6")
    message = str(caught.value)
    assert message.startswith("the loss is nan at step 4 (batch 3 of epoch 0); the first output that is not finite is ")
    assert f"that of {TARGET} (Softmax); examples {', '.join(map(str, rows[-1][:8]))}" in message
    assert message.endswith("The update was not made. Try a smaller optimizer.lr.")
    summary = runs.summary_of(tmp_path)
    assert summary["state"] != "finished" and message in summary["why"]
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
    with pytest.raises(NonFiniteLoss, match=rf"a gradient is not finite at step 3 .*gradient that is .* of .*{guilty}"):
        runs.tiny_run(tmp_path, "task.max_steps=6", "model.dropout=0.0")


@pytest.mark.slow
def test_the_repeated_passes_have_the_same_dropout(monkeypatch, tmp_path):
    """The objective of the microbatch that was all right is the same number when it is repeated."""
    found: list[torch.Tensor] = []
    original = HeadlineModule.loss

    def loss(self, batch):
        result = original(self, batch)
        found.append(result.objective.item())
        return result

    monkeypatch.setattr(HeadlineModule, "loss", loss)
    poison(monkeypatch, 3, pieces=2)
    torch.get_rng_state()
    with pytest.raises(NonFiniteLoss, match=rf"batch 5 of epoch 0.* that of {TARGET}"):
        runs.tiny_run(tmp_path, "task.max_steps=6", "trainer.accumulate_grad_batches=2", "model.dropout=0.5")
    *_, good, bad, again, bad_again = found
    assert good == again and all(map(math.isnan, (bad, bad_again))) and not math.isnan(good)


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
    with pytest.raises(NonFiniteLoss) as caught:
        runs.tiny_run(tmp_path, "attention=hnas", task=task)
    message = str(caught.value)
    assert (
        "a gradient is not finite at step 1 " in message and f"gradients that are not finite: {names[0]}; ex" in message
    )


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_all_ranks_stop_together_if_one_of_them_fails(monkeypatch, tmp_path, ranks):
    original, latest = HeadlineModule.loss, {}

    def note(self, batch, index):
        latest.update(step=self.trainer.global_step, rank=self.trainer.global_rank)

    def fail_on_the_last_rank(self, batch):
        found = original(self, batch)
        if latest.get("step") == 2 and latest["rank"] == ranks - 1:
            return found._replace(objective=found.objective + INF)  # its gradients are finite
        return found

    runs.before(monkeypatch, TrainingModule, "training_step", note)
    monkeypatch.setattr(HeadlineModule, "loss", fail_on_the_last_rank)
    typed = ("trainer.strategy=ddp_fork", "trainer.devices=2") * (ranks - 1)
    with pytest.raises(Exception, match=r"the loss is inf at step 3 .*; the outputs of all modules are finite; "):
        runs.tiny_run(tmp_path, *LONG, "model.dropout=0.0", *typed)
    assert (
        "the loss is inf at step 3" in runs.summary_of(tmp_path)["why"]
    )  # the first rank says what the last one found


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
    assert summary["state"] == "finished"
    assert runs.load(tmp_path)["HalfPrecision"]["scale"] == 2.0**9
    assert all(0 < norm < 100 for step, norm in runs.logged(tmp_path, "train/gradient_norm").items() if step != 3)


@pytest.mark.slow
def test_with_half_precision_a_loss_that_is_not_finite_ends_the_run(monkeypatch, tmp_path, half_precision):
    poison(monkeypatch, 3)
    with pytest.raises(NonFiniteLoss, match="the loss is nan at step 3"):
        runs.tiny_run(tmp_path, "task.max_steps=6", *half_precision)


# missing memory


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "notes"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), 1),
        (MemoryError(), 1),
        (RuntimeError("a bug"), 0),
    ],
)
def test_an_error_about_missing_memory_has_a_note_with_the_keys_that_help(monkeypatch, tmp_path, error, notes):
    def fail(*_, **__):
        raise error

    runs.before(monkeypatch, TrainingModule, "backward", fail)
    with pytest.raises(type(error)) as caught:
        runs.tiny_run(tmp_path)
    assert caught.value is error
    note = "\n".join(getattr(error, "__notes__", []))
    assert [note.count(key) for key in ("trainer.accumulate_grad_batches", "data.batch_tokens")] == [notes] * 2
