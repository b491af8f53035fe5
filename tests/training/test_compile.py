"""run.compile=true: the same results, a bounded number of graphs, and a record of what was compiled."""

import logging
from pathlib import Path

import pytest
import runs
import torch
from builders import build_model
from runs import ENCODER, logged, parameters, tiny, tiny_run, unequal, uninterrupted
from tolerance import rounding

from attnorm.attention.multihead import observe
from attnorm.attention.normalizers.shared import key_bias
from attnorm.errors import ConfigError
from attnorm.training import compiled
from attnorm.training.compiled import CompiledModel
from attnorm.training.module import TrainingModule

# each task, and each kind of attention
PAIRS = (
    *(("gigaword", "dnas"), ("mlm", "softmax"), ("squad", "hnas"), ("classify", "softmax"), ("vqa", "hnas")),
    *(("causal_lm", "softmax"), ("causal_lm", "hnas_prefix")),
)


@pytest.fixture(autouse=True)
def python_only(request, monkeypatch):
    """Graphs are captured as ever, and then run by torch's own operations: that takes seconds instead of minutes."""
    if "inductor" not in request.node.name:
        monkeypatch.setattr(compiled, "BACKEND", "eager")
    yield
    torch.compiler.reset()


def environment(run: Path) -> dict:
    return runs.record_of(run)


def both(folder: Path, *overrides: str, task: str = "gigaword") -> tuple[Path, Path]:
    """The folders of an uncompiled and a compiled run."""
    tiny_run(folder, *overrides, "run.compile=true", task=task)
    return uninterrupted(*overrides, task=task), folder


def assert_same_losses(plain: Path, compiled_run: Path, updates: int = 4) -> None:
    for name in ("train/loss", "val/loss"):
        found, wanted = logged(compiled_run, name), logged(plain, name)
        assert list(found) == list(wanted) != []
        for step, loss in wanted.items():
            assert abs(found[step] - loss) <= rounding(torch.float32, depth=2 * updates, size=16) * abs(loss)


@pytest.mark.slow
def test_a_compiled_run_has_the_losses_names_and_files_of_an_uncompiled_one(tmp_path):
    plain, found = both(tmp_path, "attention=hnas")
    assert_same_losses(plain, found)
    assert parameters(found).keys() == parameters(plain).keys()
    files = [{file.relative_to(run) for file in run.rglob("*") if "wandb" not in file.parts} for run in (plain, found)]
    assert files[0] == files[1]
    assert logged(found, "entropy/encoder/0").keys() == logged(plain, "entropy/encoder/0").keys() != set()
    facts = environment(found)["compile"]
    assert 2 <= facts["graphs"] <= 8 and facts["graph_breaks"] == 0 and not facts["graph_limit_reached"]
    assert facts["seconds"] > 0 and "compile" not in environment(plain)


@pytest.mark.slow
def test_the_kernels_in_use_are_recorded_also_by_a_run_that_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(key_bias, "DENSE_UP_TO", {"cpu": 0})
    tiny_run(tmp_path / "run", "attention=dnas", "task.max_steps=1", "task.validations=1")
    outcomes = environment(tmp_path / "run")["attention_kernels"]
    assert outcomes["cpu float32 8"] == {"kernel": "flash_attention_for_cpu", "refused": {}}

    def fail(self, *_):
        raise RuntimeError("planted")

    monkeypatch.setattr(TrainingModule, "on_before_optimizer_step", fail)
    with pytest.raises(RuntimeError, match="planted"):
        tiny_run(tmp_path / "failed", "attention=dnas")
    assert "cpu float32 8" in environment(tmp_path / "failed")["attention_kernels"]


@pytest.mark.slow
def test_beyond_the_limit_batches_run_uncompiled_with_one_warning(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(compiled, "GRAPHS", 1)
    with caplog.at_level(logging.WARNING):
        plain, found = both(tmp_path)
    assert_same_losses(plain, found)
    assert environment(found)["compile"]["graphs"] == 1 and environment(found)["compile"]["graph_limit_reached"]
    messages = [record.getMessage() for record in caplog.records if "run.compile" in record.getMessage()]
    assert len(messages) == 1 and "1 graphs have been compiled" in messages[0]


def guarded(model: torch.nn.Module) -> CompiledModel:
    """The callback, and the model compiled as it does."""
    torch.compiler.reset()
    callback = CompiledModel()
    callback.start = compiled.counts()
    model.forward = callback.guarded(model)
    return callback


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["hnas", "hnas_prefix"])  # which compute softmax and dnas as well
@torch._dynamo.config.patch(recompile_limit=compiled.GRAPHS)  # as in a run
def test_the_number_of_graphs_does_not_grow_with_the_number_of_shapes(attention):
    model = build_model(attention, max_source=300, max_target=40, decoder_layers=1)
    callback, generator = guarded(model), torch.Generator().manual_seed(0)
    counts = []
    for number in range(60):
        rows, source, target = (int(torch.randint(1, n, (), generator=generator)) for n in (6, 300, 40))
        model.train(number % 3 != 0)
        with torch.inference_mode(number % 3 == 0):
            model(*(torch.randint(3, 11, (rows, n), generator=generator) for n in (source, target)))
        counts.append(callback.graphs)
        assert callback.graphs <= 12
    assert counts[0] < counts[40] == counts[-1] and callback.breaks == 0


@pytest.mark.slow
def test_while_weights_are_observed_the_model_runs_uncompiled():
    model = build_model("hnas")
    callback = guarded(model)
    ids = torch.randint(3, 11, (2, 7), generator=torch.Generator().manual_seed(0))
    model(ids, ids[:, :5])
    graphs, seen = callback.graphs, []
    for _ in range(3):
        with observe(model, lambda *found: seen.append(found)):
            model(ids, ids[:, :5])
    assert callback.graphs == graphs == 1 and len(seen) == 3 * 5


@pytest.mark.slow
def test_a_model_that_the_compiler_passes_over_is_reported(caplog):
    """Modules of torch itself are such: nothing of them is compiled, and torch says nothing."""
    callback = guarded(torch.nn.Sequential(torch.nn.Linear(2, 2)))
    callback.model, callback.limit = torch.nn.Linear(2, 2), torch._dynamo.config.recompile_limit
    callback.model.forward = callback.model.forward
    with caplog.at_level(logging.WARNING):
        callback.release()
    assert "it had no effect" in caplog.text


@pytest.mark.slow
def test_checkpoints_cross_between_compiled_and_uncompiled_runs(tmp_path):
    whole = tmp_path / "whole"
    tiny_run(whole, "attention=hnas", "scheduler.decay=constant", "task.max_steps=4", "task.validations=2")
    for first, second in (("true", "false"), ("false", "true")):
        start, end = tmp_path / f"{first}_start", tmp_path / f"{first}_end"
        same = ("attention=hnas", "scheduler.decay=constant", "task.validations=1")
        tiny_run(start, *same, "task.max_steps=2", f"run.compile={first}")
        checkpoint = start / "checkpoints" / "last.ckpt"
        tiny_run(end, *same, "task.max_steps=4", f"run.compile={second}", f"ckpt_path={checkpoint}")
        # the bias of the keys of a softmax has a gradient of rounding errors, which Adam enlarges
        of_keys = ("model.layers.0.attention.key_value.bias", "model.layers.0.cross.key_value.bias")
        different = set(unequal(parameters(end), parameters(whole))) - {*of_keys}
        assert not different or max(
            (parameters(end)[name] - parameters(whole)[name]).abs().max() for name in different
        ) <= rounding(torch.float32, depth=40, size=16)


@pytest.mark.slow
@pytest.mark.parametrize(("task", "attention"), PAIRS)
def test_every_task_compiles(task, attention, tmp_path):
    plain, found = both(tmp_path, f"attention={attention}", task=task)
    assert_same_losses(plain, found)
    facts = environment(found)["compile"]
    assert 2 <= facts["graphs"] <= 16 and (facts["graph_breaks"] == 0 or task != "causal_lm")


@pytest.mark.slow
def test_packed_rows_of_any_length_stay_correct(tmp_path, monkeypatch):
    monkeypatch.setattr(key_bias, "DENSE_UP_TO", {"cpu": 0})  # each segment by itself, which is data-dependent
    assert "model.max_source=64" in ENCODER
    for value in ("false", "true"):
        tiny_run(tmp_path / value, "attention=dnas", f"run.compile={value}", task="mlm")
    assert_same_losses(tmp_path / "false", tmp_path / "true")


@pytest.mark.slow
@pytest.mark.parametrize("task", ["gigaword", "mlm"])
def test_inductor_gives_the_same_losses(task, tmp_path):
    """The backend of torch.compile itself, dropout included, which draws the same numbers."""
    assert tiny(task=task)["model"]["dropout"] > 0
    plain, found = both(tmp_path, "attention=hnas", task=task)
    assert_same_losses(plain, found)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dnas", "hnas"])
def test_inductor_and_the_memory_linear_path_agree(name, monkeypatch):
    from attnorm.attention import Mask, build_normalizer

    module = build_normalizer(name)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 2, 250, 16, generator=generator).requires_grad_() for _ in range(3))
    mask = Mask(queries=torch.arange(250).expand(2, -1) < 240, keys=torch.arange(250).expand(2, -1) < 245)
    attend = torch.compile(lambda *qkv: module.attend(*qkv, mask), fullgraph=True, dynamic=True)
    found, wanted = (
        [out, *torch.autograd.grad(out, (q, k, v), torch.ones_like(out) / 7)]
        for out in (attend(q, k, v), module.attend(q, k, v, mask))
    )
    for a, b in zip(found, wanted, strict=True):
        assert (a - b).norm() <= rounding(torch.float32, size=250) * b.norm()


@pytest.mark.slow
def test_a_compiler_that_fails_is_reported_before_training(tmp_path, monkeypatch):
    def broken(*_):
        raise OSError("Python.h: No such file or directory\nand much more")

    monkeypatch.setattr(compiled, "BACKEND", broken)
    with pytest.raises(
        ConfigError, match=r"^run\.compile=true: torch\.compile does not work here \(OSError: "
    ) as error:
        tiny_run(tmp_path, "run.compile=true")
    assert "Python.h" in str(error.value) and "much more" not in str(error.value)
