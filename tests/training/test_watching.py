"""What is watched while a model trains: head by head, by hand, on the same batch, and without touching the training."""

import math

import pytest
import runs
import torch
from torch.testing import assert_close

from attnorm.attention.multihead import observe
from attnorm.data.sampler import TokenBatches
from attnorm.tasks.mlm.module import MaskedLMModule
from attnorm.tasks.task import recipe_of
from attnorm.training.callbacks import attention_stats as watching
from attnorm.training.callbacks.attention_stats import AttentionWatch, layer_label
from attnorm.training.loggers import read_csv
from attnorm.training.run_folder import load_weights

TWO = ("model.encoder_layers=2", "callbacks.attention_stats.every_n_steps=1", "task.max_steps=3")


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    folder = tmp_path_factory.mktemp("watched") / "run"
    runs.tiny_run(folder, *TWO, task="mlm")
    return folder


def table(run):
    """{(step, layer, head): (entropy, column_mass, column_mass_min)}"""
    rows = read_csv(run / "attention.csv")
    keys = [(int(row["step"]), row["layer"], int(row["head"])) for row in rows]
    assert len(set(keys)) == len(keys)
    names = ("entropy", "column_mass", "column_mass_min")
    return {key: tuple(float(row[name]) for name in names) for key, row in zip(keys, rows, strict=True)}


def metrics(run, step):
    """The columns of metrics.csv at a step, without empty ones."""
    rows = [row for row in read_csv(run / "metrics.csv") if int(row["step"]) == step]
    return {name: float(value) for row in rows for name, value in row.items() if value}


def by_hand(recipe, model):
    """{(layer, head): (entropy, mean and least column mass)} on the first validation batch, query by query."""
    split = recipe.splits()["validation"]
    first = next(iter(TokenBatches(split.lengths, recipe.cfg["data"]["batch_tokens"], shuffle=False)))
    task = recipe.task(model.eval(), split.tokenizer, split)
    batch, seen = recipe.batches(split)[first], {}
    with torch.no_grad(), observe(model, lambda name, weights, allowed: seen.update({name: weights})):
        task(batch)
    found = {}
    for number, weights in enumerate(seen.values()):
        real = batch["ids"] != 0
        for head in range(weights.shape[1]):
            entropies, least = [], []
            for example, length in enumerate(real.sum(1).tolist()):
                rows = weights[example, head, :length, :length]
                entropies += [-sum(w * math.log(w) for w in row if w > 0) for row in rows.tolist()]
                least.append(rows.sum(0).min().item())
            mean = sum(least) / len(least)
            found[f"encoder/{number}", head] = (sum(entropies) / len(entropies), mean, min(least))
    return found


def test_labels_of_layers():
    assert layer_label("encoder.layers.0.attention") == "encoder/0"
    assert layer_label("layers.3.attention") == "decoder/3"
    assert layer_label("layers.1.cross") == "decoder/1/cross"


def test_small_masses_are_kept_and_examples_without_keys_do_not_count(monkeypatch, tmp_path):
    masses = torch.tensor([[1e-9, 3e-9], [torch.inf, torch.inf], [2e-9, 1e-9]])
    monkeypatch.setattr(watching, "smallest_column_mass", lambda weights, allowed: masses)
    runs.tiny_run(tmp_path, "task.max_steps=1", "task.validations=1", task="mlm")
    rows = table(tmp_path)
    for head, expected in ((0, (1.5e-9, 1e-9)), (1, (2e-9, 1e-9))):
        assert rows[0, "encoder/0", head][1:] == pytest.approx(expected, rel=1e-6)


def test_a_mass_that_is_no_number_is_not_hidden(monkeypatch, tmp_path):
    masses = torch.tensor([[torch.nan, 0.5], [0.5, 0.5]])
    monkeypatch.setattr(watching, "smallest_column_mass", lambda weights, allowed: masses)
    runs.tiny_run(tmp_path, "task.max_steps=1", "task.validations=1", task="mlm")
    assert all(map(math.isnan, table(tmp_path)[0, "encoder/0", 0][1:]))


@pytest.mark.parametrize("task", ["mlm", "squad", "classify", "gigaword"])
def test_every_head_of_every_layer_has_a_row_at_every_look(task):
    layers = ["encoder/0", "decoder/0", "decoder/0/cross"] if task == "gigaword" else ["encoder/0"]
    found = table(runs.finished_run(task))
    assert list(found) == [(step, layer, head) for step in (0, 2, 4) for layer in layers for head in (0, 1)]
    for spread, mass, least in found.values():
        assert 0 < spread < math.log(64) and 0 < least <= mass


@pytest.mark.numerical
def test_the_numbers_are_those_of_the_first_validation_batch_by_hand(watched):
    recipe = recipe_of(runs.tiny(*TWO, task="mlm"))
    model = recipe.model(recipe.splits()["validation"].tokenizer)
    found = table(watched)
    assert len(found) == 4 * 2 * 2
    for step in (0, 3):
        if step:
            load_weights(model, watched / "checkpoints/last.ckpt")
        for (layer, head), expected in by_hand(recipe, model).items():
            assert found[step, layer, head] == pytest.approx(expected, rel=2e-4, abs=2e-6)


def test_the_logger_gets_means_over_heads_and_the_least(watched):
    found = table(watched)
    for step in range(4):
        logged = metrics(watched, step)
        for layer in ("encoder/0", "encoder/1"):
            first, second = (found[step, layer, head] for head in (0, 1))
            assert logged[f"entropy/{layer}"] == pytest.approx((first[0] + second[0]) / 2, abs=2e-6)
            assert logged[f"column_mass/{layer}/mean"] == pytest.approx((first[1] + second[1]) / 2, abs=2e-6)
            assert logged[f"column_mass/{layer}/min"] == pytest.approx(min(first[2], second[2]), abs=2e-6)


@pytest.mark.numerical
def test_even_attention_has_the_entropy_of_the_number_of_its_keys(monkeypatch, tmp_path):
    """Without queries every key gets as much: log of the length of the query's own document, column mass 1."""

    def flatten(watch, trainer, task):
        for layer in task.model.encoder.layers:
            layer.attention.query.weight.data.zero_()
            layer.attention.query.bias.data.zero_()

    runs.before(monkeypatch, AttentionWatch, "on_fit_start", flatten)
    runs.tiny_run(tmp_path, "task.max_steps=1", "callbacks.attention_stats.every_n_steps=1", task="mlm")
    recipe = recipe_of(runs.tiny(task="mlm"))
    split = recipe.splits()["validation"]
    first = next(iter(TokenBatches(split.lengths, 1000, shuffle=False)))
    lengths = [length for row in first.rows for length in split.rows[row]["documents"]]
    assert len(lengths) > len(first.rows)  # some blocks hold several
    expected = sum(length * math.log(length) for length in lengths) / sum(lengths)
    for head in (0, 1):
        assert table(tmp_path)[0, "encoder/0", head] == pytest.approx((expected, 1.0, 1.0), abs=1e-5)


def test_each_look_is_at_the_same_batch_without_dropout(monkeypatch, tmp_path):
    seen, modes = [], []
    original = AttentionWatch.look

    def look(self, trainer, task, batch):
        with monkeypatch.context() as patch:
            runs.before(patch, MaskedLMModule, "forward", lambda model, batch: note(model, batch))
            original(self, trainer, task, batch)
        modes.append(task.model.training)

    def note(task, batch):
        seen.append({name: tensor.clone() for name, tensor in batch.items()})
        assert not task.model.training and not torch.is_grad_enabled()

    monkeypatch.setattr(AttentionWatch, "look", look)
    runs.tiny_run(
        tmp_path, "callbacks.attention_stats.every_n_steps=1", "model.dropout=0.5", "task.validations=1", task="mlm"
    )
    assert len(seen) == 5 and all(runs.unequal(seen[0], batch) == [] for batch in seen)
    assert modes[1:] == [True] * 4


def test_a_model_that_does_not_move_looks_the_same_at_every_step(tmp_path):
    still = (
        "optimizer.lr=1.0e-30",
        "optimizer.hybrid_lr_factor=1",
        "model.dropout=0.5",
        "callbacks.attention_stats.every_n_steps=1",
    )
    runs.tiny_run(tmp_path, *still, task="classify")
    found = table(tmp_path)
    for head in (0, 1):
        assert len({found[step, "encoder/0", head] for step in range(5)}) == 1


@pytest.mark.parametrize("task", ["mlm", "squad", "classify"])
def test_looking_takes_nothing_from_the_random_streams(tmp_path, task):
    for every in (0, 1):
        runs.tiny_run(
            tmp_path / str(every), "attention=hnas", f"callbacks.attention_stats.every_n_steps={every}", task=task
        )
    ends = [runs.load(tmp_path / every) for every in ("0", "1")]
    assert runs.unequal(*(end["state_dict"] for end in ends)) == []
    assert torch.equal(*(end["random_streams"][0]["cpu"] for end in ends))
    assert runs.different_ends(tmp_path / "0", tmp_path / "1") == []
    assert not (tmp_path / "0/attention.csv").exists()


def test_looks_are_by_updates_not_by_pieces(tmp_path):
    runs.tiny_run(tmp_path, "trainer.accumulate_grad_batches=3", task="mlm")
    assert list(dict.fromkeys(step for step, *_ in table(tmp_path))) == [0, 2, 4]


@pytest.mark.parametrize("step", [2, 3])
def test_a_resumed_run_goes_on_with_the_table(monkeypatch, tmp_path, step):
    long = ("attention=hnas", "task.max_steps=6", "task.validations=1")
    runs.tiny_run(tmp_path / "straight", *long, task="mlm")
    runs.stopped(monkeypatch, tmp_path / "first", step, *long, task="mlm")
    runs.tiny_run(tmp_path / "second", *long, f"ckpt_path={tmp_path}/first/checkpoints/last.ckpt", task="mlm")
    for name in ("attention.csv", "hybrid_weights.csv"):
        assert (tmp_path / "second" / name).read_text() == (tmp_path / "straight" / name).read_text()
    assert [key[0] for key in table(tmp_path / "second")] == [0, 0, 2, 2, 4, 4, 6, 6]


@pytest.mark.slow
def test_one_of_two_processes_looks(tmp_path):
    typed = ("trainer.precision=64-true", "model.dropout=0", "data.batch_tokens=500")
    runs.tiny_run(tmp_path / "one", *typed, task="mlm")
    runs.tiny_run(tmp_path / "two", *typed, "trainer.strategy=ddp_fork", "trainer.devices=2", task="mlm")
    one, two = table(tmp_path / "one"), table(tmp_path / "two")
    assert list(one) == list(two)
    assert_close(torch.tensor(list(one.values())), torch.tensor(list(two.values())), rtol=1e-4, atol=1e-5)
