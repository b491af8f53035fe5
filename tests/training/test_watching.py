"""What is recorded during training: every head's attention and all learned scalars, without touching the training."""

import math

import pytest
import runs
import torch
from torch import nn
from torch.testing import assert_close

from attnorm.analysis.run_figures import draw_run
from attnorm.attention import MultiHeadAttention, build_normalizer, build_scorer
from attnorm.attention.multihead import observe
from attnorm.attention.normalizers.softmax import Softmax
from attnorm.data.sampler import TokenBatches
from attnorm.run.checkpoint import load_weights
from attnorm.run.csv_files import NO_EVIDENCE, rate_note, read_csv
from attnorm.run.run import Run
from attnorm.tasks.mlm import MaskedLMModule
from attnorm.tasks.task import task_of
from attnorm.training import console
from attnorm.training.callbacks import attention_stats as watching
from attnorm.training.callbacks.attention_stats import AttentionStats
from attnorm.training.callbacks.learned_scalars import fast_scalars, learned_scalars

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


def by_hand(recipe, model):
    """{(layer, head): (entropy, mean and least column mass)} on the first validation batch, query by query."""
    split = recipe.splits()["validation"]
    first = next(iter(TokenBatches(split.lengths, recipe.cfg["data"]["batch_tokens"], shuffle=False)))
    task = recipe.module(model.eval(), split.tokenizer, split)
    batch, seen = recipe.collator(split)[first], {}
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


@pytest.mark.slow
def test_small_masses_and_nan_are_kept_and_examples_without_keys_do_not_count(monkeypatch, tmp_path):
    masses = torch.tensor([[1e-9, torch.nan], [torch.inf, 0.5], [2e-9, 0.5]])
    monkeypatch.setattr(watching, "smallest_column_mass", lambda weights, allowed: masses)
    runs.tiny_run(tmp_path, "task.max_steps=1", "task.validations=1", task="mlm")
    of_heads = [table(tmp_path)[0, "encoder/0", head][1:] for head in (0, 1)]
    assert of_heads[0] == pytest.approx((1.5e-9, 1e-9), rel=1e-6) and all(map(math.isnan, of_heads[1]))


@pytest.mark.slow
@pytest.mark.parametrize("task", ["mlm", "squad", "classify", "gigaword"])
def test_every_head_of_every_layer_has_a_row_at_every_recorded_step(task):
    layers = ["encoder/0", "decoder/0", "decoder/0/cross"] if task == "gigaword" else ["encoder/0"]
    found = table(runs.finished_run(task))
    assert list(found) == [(step, layer, head) for step in (0, 2, 4) for layer in layers for head in (0, 1)]
    for spread, mass, least in found.values():
        assert 0 < spread < math.log(64) and 0 < least <= mass


@pytest.mark.numerical
def test_the_numbers_are_those_of_the_first_validation_batch_by_hand(watched):
    recipe = task_of(runs.tiny(*TWO, task="mlm"))
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
    for layer in ("encoder/0", "encoder/1"):
        columns = (f"entropy/{layer}", f"column_mass/{layer}/mean", f"column_mass/{layer}/min")
        logged = [runs.logged(watched, column) for column in columns]
        for step in range(4):
            first, second = (found[step, layer, head] for head in (0, 1))
            expected = [(first[0] + second[0]) / 2, (first[1] + second[1]) / 2, min(first[2], second[2])]
            assert [values[step] for values in logged] == pytest.approx(expected, abs=2e-6)


@pytest.mark.slow
def test_each_look_is_at_the_same_batch_without_dropout(monkeypatch, tmp_path):
    seen, modes = [], []
    original = AttentionStats.on_step

    def on_step(self, trainer, task):
        with monkeypatch.context() as patch:
            runs.before(patch, MaskedLMModule, "forward", lambda model, batch: note(model, batch))
            original(self, trainer, task)
        modes.append(task.model.training)

    def note(task, batch):
        seen.append({name: tensor.clone() for name, tensor in batch.items()})
        assert not task.model.training and not torch.is_grad_enabled()

    monkeypatch.setattr(AttentionStats, "on_step", on_step)
    typed = ("callbacks.attention_stats.every_n_steps=1", "model.dropout=0.5", "task.validations=1")
    runs.tiny_run(tmp_path, *typed, task="mlm")
    assert len(seen) == 5 and all(runs.unequal(seen[0], batch) == [] for batch in seen)
    assert modes[1:] == [True] * 4


@pytest.mark.slow
@pytest.mark.parametrize("task", ["mlm", "squad", "classify"])
def test_looking_takes_nothing_from_the_random_streams(tmp_path, task):
    for every in ("0", "1"):
        typed = ("attention=hnas", f"callbacks.attention_stats.every_n_steps={every}")
        runs.tiny_run(tmp_path / every, *typed, task=task)
    ends = [runs.load(tmp_path / every) for every in ("0", "1")]
    assert torch.equal(*(end["random_streams"][0]["cpu"] for end in ends))
    assert runs.different_ends(tmp_path / "0", tmp_path / "1") == []
    assert not (tmp_path / "0/attention.csv").exists()


@pytest.mark.slow
def test_looks_are_by_updates_also_at_the_last_and_never_twice_after_a_resume(tmp_path):
    """Not by the pieces of an update."""
    typed = (f"attention.encoder=[hnas,'{OWN}']", "model.encoder_layers=2", "task.validations=1", "scheduler=constant")
    typed += runs.of("callbacks", "attention_stats.every_n_steps=2 learned_scalars.every_n_steps=2")
    typed += ("trainer.accumulate_grad_batches=3",)
    runs.tiny_run(tmp_path / "first", *typed, "task.max_steps=3", task="mlm")
    for folder, steps, expected in (
        ("again", 3, [0, 2, 3]),  # nothing is left to do
        ("longer", 7, [0, 2, 3, 4, 6, 7]),
        ("even", 6, [0, 2, 3, 4, 6]),
    ):
        resume = f"ckpt_path={tmp_path}/first/checkpoints/last.ckpt"
        runs.tiny_run(tmp_path / folder, *typed, f"task.max_steps={steps}", resume, task="mlm")
        for column in ("entropy/encoder/0", "hybrid_weights/encoder/0", "temperature/encoder/1"):
            rows = [row for row in read_csv(tmp_path / folder / "metrics.csv") if row.get(column)]
            assert [int(row["step"]) for row in rows] == expected
        assert list(dict.fromkeys(step for step, *_ in table(tmp_path / folder))) == expected
        for name, heads in (("hybrid_weights", 1), ("temperature", 2)):
            rows = read_csv(tmp_path / folder / f"{name}.csv")
            assert [int(row["step"]) for row in rows] == [step for step in expected for _ in range(heads)]


# learned scalars


class Tempered(Softmax):
    """A normalizer of a user's own, with one learned temperature per head that stays in [0.9, 1.1]."""

    def __init__(self, heads: int, lowest: float = 0.9):
        super().__init__()
        self.inverse, self.lowest = nn.Parameter(torch.linspace(1, 1.05, heads)), lowest

    def forward(self, scores, mask=None, *, log_prior=None, keys=None, scale=None):
        return super().forward(scores * self.inverse[:, None, None], mask, log_prior=log_prior)

    def learned_scalars(self):
        return {"temperature": 1 / self.inverse}

    def fast_parameters(self):
        return [self.inverse]

    def project_(self):
        self.inverse.clamp_(1 / 1.1, 1 / self.lowest)


OWN = f"{Tempered.__module__}:Tempered"


@pytest.mark.slow
def test_a_learned_temperature_gets_its_table_its_logger_entry_its_figure_and_its_closing_table(tmp_path, capsys):
    typed = (f"attention.encoder={OWN}", "model.encoder_layers=2", "callbacks.learned_scalars.every_n_steps=3")
    runs.tiny_run(tmp_path, *typed, task="mlm")
    rows = read_csv(tmp_path / "temperature.csv")
    layers = ("encoder/0", "encoder/1")
    assert [(int(row["step"]), row["layer"], row["head"]) for row in rows] == [
        (step, layer, head) for step in (0, 3, 4) for layer in layers for head in "01"
    ]
    values = torch.tensor([float(row["value"]) for row in rows]).view(3, 2, 2)  # steps, layers, heads
    assert_close(1 / values[0], torch.tensor([[1, 1.05]] * 2))
    assert (values[1:] != values[0]).all() and values.min() >= 0.9 and values.max() <= 1.1 + 1e-6
    trained = runs.parameters(tmp_path)
    for number, layer in enumerate(layers):
        assert_close(values[2, number], 1 / trained[f"model.encoder.layers.{number}.attention.normalizer.inverse"])
        logged = runs.logged(tmp_path, f"temperature/{layer}")
        assert list(logged) == [0, 3, 4]
        assert_close(torch.tensor(list(logged.values())), values[:, number].mean(-1))
    printed = capsys.readouterr().out
    assert "temperature by update" in printed and "hybrid weights" not in printed
    assert "\nTrained with optimizer.hybrid_lr_factor=10.\n" in printed and "half" not in printed
    assert tmp_path / "figures/temperature.png" in draw_run(tmp_path)


def test_the_factor_is_named_only_where_it_has_an_effect(capsys):
    """It is that of a scalar that is computed from fast parameters, and not of all scalars of the same class."""
    fast, slow_one, both = Tempered(2), Tempered(2), Tempered(2)
    slow_one.fast_parameters, both.shift = list, nn.Parameter(torch.ones(2))
    both.learned_scalars = lambda: {"temperature": 1 / both.inverse, "shift": both.shift}
    assert fast_scalars(attention_with(fast)) == {"temperature"} and fast_scalars(attention_with(slow_one)) == set()
    assert fast_scalars(attention_with(both)) == {"temperature"}
    mixed = fast_scalars(attention_with(build_normalizer("mix", members=["softmax", "hnas"])))
    assert mixed == {"mix_softmax", "mix_hnas", "hnas_hybrid_weights"}
    for name, factor in (("temperature", "10"), ("temperature", ""), ("mix_dnas", "10"), ("mix_dnas", "")):
        console.show_learned_scalar(name, {"encoder/0": {0: 0.5}}, rate_note([{"lr_factor": factor}]))
    notes = [line for line in capsys.readouterr().out.splitlines() if "=" in line or "weight" in line]
    sentence = "Trained with optimizer.hybrid_lr_factor=10."
    assert notes == [sentence, f"{sentence} {NO_EVIDENCE}", NO_EVIDENCE]


def attention_with(normalizer=None, scorer=None):
    """A model of one attention layer of two heads, with the name that a stack would give it."""
    normalizer, scorer = normalizer or build_normalizer("softmax"), scorer or build_scorer("scaled_dot")
    return nn.ModuleDict({"fusion": nn.ModuleDict({"attention": MultiHeadAttention(4, 2, normalizer, scorer)})})


def test_scalars_are_those_that_normalizers_and_scorers_declare():
    assert learned_scalars(attention_with()) == {}
    upper = nn.Parameter(torch.tensor([0.5, 0.75])[:, None, None])
    for model, name, expected in (
        (attention_with(build_normalizer("hnas", start=0.25, form="clamp")), "hybrid_weights", [0.25]),
        (attention_with(build_normalizer("constrained_softmax", upper=upper)), "upper", [0.5, 0.75]),
        (attention_with(scorer=declaring(build_scorer("dot"), sharpness=torch.tensor(2.0))), "sharpness", [2.0]),
    ):
        [(found, layers)] = learned_scalars(model).items()
        assert (found, list(layers)) == (name, ["fusion"])
        assert layers["fusion"].tolist() == expected and not layers["fusion"].requires_grad


def declaring(part, **scalars):
    """A part that declares these scalars."""
    part.learned_scalars = lambda: scalars
    return part


@pytest.mark.parametrize(
    ("scalars", "words"),
    [
        ({"metrics": torch.ones(1)}, "'metrics' must be a Python identifier other than attention, head_measures, me"),
        ({"../../x": torch.ones(1)}, "'../../x' must be a Python identifier"),
        ({"upper": torch.ones(3)}, r"'upper' has shape \(3,\); expected \(1,\) or \(2,\), the number of heads"),
        ({"upper": torch.ones(2, 1)}, r"'upper' has shape \(2, 1\)"),
    ],
)
def test_scalars_that_have_no_place_are_refused(scalars, words):
    with pytest.raises(ValueError, match=f"Softmax.learned_scalars: {words}"):
        learned_scalars(attention_with(declaring(build_normalizer("softmax"), **scalars)))


def test_a_name_that_both_parts_of_a_layer_use_is_refused():
    parts = (declaring(build_normalizer("softmax"), t=torch.ones(1)), declaring(build_scorer("dot"), t=torch.ones(1)))
    with pytest.raises(ValueError, match="'t' is declared by the normalizer and by the scorer of fusion; rename one"):
        learned_scalars(attention_with(*parts))


def test_recorded_scalars_are_told_from_other_tables_of_a_run():
    assert Run(runs.finished_run()).learned_scalars == ["hybrid_weights"]
