"""The callback of `callbacks=measures`: what it records, on which examples, and that a resumed run continues it."""

import math

import pytest
import runs
import torch
import yaml

from attnorm.config.read import read_recorded
from attnorm.data.sampler import TokenBatches
from attnorm.models.recording import record
from attnorm.run.checkpoint import load_weights
from attnorm.run.csv_files import read_csv
from attnorm.tasks.task import task_of
from attnorm.training.callbacks.attention_stats import in_evaluation

EVERY_2 = ("callbacks=measures", "callbacks.attention_measures.every_n_steps=2")
FEW = (*EVERY_2, "callbacks.attention_measures.examples=3", "model.dropout=0.5")
LAYERS = {
    "gigaword": ["encoder/0", "decoder/0", "decoder/0/cross"],
    "mlm": ["encoder/0"],
    "squad": ["encoder/0"],
    "vqa": ["fusion"],
}


@pytest.mark.slow
@pytest.mark.parametrize("task", LAYERS)
def test_every_head_and_every_state_of_every_layer_has_a_row_at_every_recorded_step(tmp_path, task):
    runs.tiny_run(tmp_path, *FEW, "attention=hnas", task=task)
    heads, states = (read_csv(tmp_path / name) for name in ("head_measures.csv", "state_measures.csv"))
    n_heads = 1 if task == "vqa" else 2
    assert [(int(row["step"]), row["layer"], int(row["head"])) for row in heads] == [
        (step, layer, head) for step in (0, 2, 4) for layer in LAYERS[task] for head in range(n_heads)
    ]
    places = ("output",) if task == "vqa" else ("output", "residual")
    assert [(int(row["step"]), row["layer"], row["place"]) for row in states] == [
        (step, layer, place) for step in (0, 2, 4) for layer in LAYERS[task] for place in places
    ]
    logged = runs.logged(tmp_path, f"attention/entropy/{LAYERS[task][0]}")
    means = [sum(float(row["entropy"]) for row in heads if row["step"] == str(step)) for step in logged]
    if len(LAYERS[task]) == 1:
        assert list(logged.values()) == pytest.approx([mean / n_heads for mean in means], rel=1e-6)
    assert f"states/cosine/{LAYERS[task][0]}/output" in read_csv(tmp_path / "metrics.csv")[0]


@pytest.mark.slow
def test_the_values_are_those_of_the_first_examples_without_dropout(tmp_path):
    runs.tiny_run(tmp_path, *FEW, "attention=hnas")
    cfg = read_recorded(yaml.safe_load((tmp_path / "config.yaml").read_text()))
    task = task_of(cfg, tmp_path)
    split = task.splits()["validation"]
    model = task.model(split.tokenizer).eval()
    load_weights(model, tmp_path / "checkpoints/last.ckpt")
    first = next(iter(TokenBatches(split.lengths, cfg.data.batch_tokens, shuffle=False)))
    batch = task.collator(split)[first]
    with torch.no_grad(), record(model) as layers:
        model(batch["source"][:3], batch["target"][:3])
    records = dict(zip(LAYERS["gigaword"], layers.values(), strict=True))
    heads, states = (read_csv(tmp_path / name) for name in ("head_measures.csv", "state_measures.csv"))
    for row in [row for row in heads if row["step"] == "4"]:
        for name, values in records[row["layer"]].of_heads().items():
            expected = values[:, int(row["head"])].nanmean().item()
            found = float(row[name] or "nan")
            assert found == pytest.approx(expected, rel=1e-3, abs=1e-4, nan_ok=True), name
    for row in [row for row in states if row["step"] == "4"]:
        for name, values in records[row["layer"]].of_states()[row["place"]].items():
            assert float(row[name]) == pytest.approx(values.nanmean().item(), rel=1e-3, abs=1e-4), name
    assert all(row["objective_both"] == "" for row in heads if row["layer"] == "decoder/0")  # it is causal
    assert all(math.isfinite(float(row["objective_both"])) for row in heads if row["layer"] == "encoder/0")


@pytest.mark.slow
def test_a_resumed_run_continues_the_tables_and_training_is_not_touched(tmp_path):
    typed = (*EVERY_2, "scheduler=constant", "task.validations=1")
    runs.tiny_run(tmp_path / "first", *typed, "task.max_steps=2", task="mlm")
    resume = f"ckpt_path={tmp_path}/first/checkpoints/last.ckpt"
    runs.tiny_run(tmp_path / "second", *typed, "task.max_steps=4", resume, task="mlm")
    runs.tiny_run(tmp_path / "plain", "scheduler=constant", "task.validations=1", "task.max_steps=4", task="mlm")
    for name in ("head_measures.csv", "state_measures.csv"):
        assert [int(row["step"]) for row in read_csv(tmp_path / "second" / name)] == [0, 0, 2, 2, 4, 4]
        assert not (tmp_path / "plain" / name).exists()  # off by default
    assert runs.different_ends(tmp_path / "second", tmp_path / "plain") == []


def test_a_model_trains_on_after_an_error_in_evaluation():
    model = torch.nn.Dropout()
    with pytest.raises(RuntimeError), in_evaluation(model):
        raise RuntimeError
    assert model.training
