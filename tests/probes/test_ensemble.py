"""Member e of an ensemble is the model that is trained alone, and the optimizer is that of torch."""

import math

import pytest
import torch
from marks import slow
from tolerance import rounding

from attnorm.attention.hooks import TrainingHooks
from attnorm.probes import PROBES, ensemble
from attnorm.probes.arm import Arm, every_arm
from attnorm.probes.ensemble import AdamW, evaluate, schedule, train
from attnorm.probes.experiment import ProbePlan
from attnorm.probes.jobs import Cell, cells_of
from attnorm.probes.model import WIDTH, generator

CROSS, CAUSAL = Cell("hub", "0.9"), Cell("recall")
SEEDS, RATES = (3, 4, 3), (1e-3, 1e-2, 3e-2)
UPDATES, LAYERS = 5, 4  # MLP, attention, readout
ARMS = [
    *(("softmax", CROSS), ("dnas", CROSS), ("hnas", CROSS), ("sink", CROSS), ("asentmax", CROSS)),
    *(("dnas_slack+content", CROSS), ("probe_parts.Temperature", CROSS), ("probe_parts.Gate", CROSS)),
    *(("selective", CAUSAL), ("dnas", Cell("slots", "distinct"))),
]


def small(cell, examples=4):
    """The probe of a cell with few examples per update."""
    probe = cell.probe()
    probe.examples = examples
    return probe


@pytest.fixture(autouse=True)
def few_examples(monkeypatch):
    monkeypatch.setattr(ensemble, "SELECTION", 8)


def outputs_of(probe, trained, members):
    batch = probe.batch(3, probe.size, torch.Generator().manual_seed(1))
    with torch.no_grad():
        return trained.model(type(batch)(*(None if x is None else x.expand(members, *x.shape) for x in batch)))


def assert_members_equal(cell, label, options=None):
    """Trains an ensemble and each of its members alone; compares their outputs and what they have learned."""
    arm = Arm(label, options or {})
    together = train(small(cell), arm, SEEDS, RATES, UPDATES)
    found = outputs_of(small(cell), together, len(SEEDS))
    assert found.isfinite().all() and not torch.allclose(found[0], found[2], atol=1e-4), "the rate makes no difference"
    for e, (seed, rate) in enumerate(zip(SEEDS, RATES, strict=True)):
        alone = train(small(cell), arm, [seed], [rate], UPDATES)
        bound = rounding(torch.float32, depth=UPDATES * LAYERS, size=WIDTH)
        expected = outputs_of(small(cell), alone, 1)[0]
        # outputs, not parameters: one without effect, as a bias of the keys under softmax, moves by rounding alone
        assert (found[e] - expected).norm() <= bound * expected.norm(), (label, e)
        for name, value in alone.learned_scalars().items():
            assert together.learned_scalars()[name][e].item() == pytest.approx(value.item(), rel=bound, abs=bound)


@pytest.mark.parametrize(("label", "cell"), ARMS)
def test_a_member_is_the_model_that_is_trained_alone(label, cell):
    assert_members_equal(cell, label)


@pytest.mark.slow
@pytest.mark.parametrize("label", every_arm())
@pytest.mark.parametrize("cell", [CROSS, CAUSAL, Cell("histogram")], ids=lambda cell: cell.name)
def test_every_arm_has_members_that_are_trained_alone(label, cell):
    if Arm(label).unfit(cell.probe().site) is None:
        assert_members_equal(cell, label)


@pytest.mark.parametrize(
    ("label", "together"),
    [
        *(("softmax", True), ("hnas", True), ("sink", True), ("dnas_slack+content", True)),
        *(("probe_parts.Gate", True), ("asentmax", False), ("probe_parts.Temperature", False), ("selective", False)),
        *(("probe_parts.Slopes", False), ("probe_parts.Talking", False)),
    ],
)
def test_members_are_heads_of_one_normalizer_where_heads_do_not_see_each_other(label, together):
    cell = CAUSAL if label == "selective" else CROSS
    assert small(cell).model(Arm(label), [1, 2]).attention.together == together


@pytest.mark.parametrize(
    "label", ["softmax", "dnas", "asentmax", "dnas_slack+content", *(slow(it) for it in every_arm())]
)
def test_a_diverged_member_leaves_the_others_and_scores_as_zeros_do(label):
    cell = CROSS if Arm(label).unfit("cross") is None else CAUSAL
    if Arm(label).unfit(cell.probe().site):
        return
    probe = small(cell)
    arm, seeds = Arm(label), [3, 4, 5]
    trained = [train(probe, arm, seeds, [1e-2, rate, 1e-2], UPDATES) for rate in (1e-2, 1e30)]
    good, bad = (outputs_of(probe, it, 3) for it in trained)
    assert not bad[1].isfinite().all()
    bound = rounding(torch.float32, depth=UPDATES * LAYERS, size=WIDTH)
    for e in (0, 2):
        assert (good[e] - bad[e]).norm() <= bound * good[e].norm()
    scores, diverged = evaluate(probe, trained[1].model, 3, "test", probe.size, 40)
    assert diverged.tolist() == [False, True, False]
    [batch] = ensemble.batches(probe, "test", probe.size, 40, 3, pieces=1)
    zeros = torch.zeros_like(trained[1].model(batch))
    assert torch.equal(scores[1], probe.score(zeros, batch)[1])


def test_training_examples_come_again_in_the_same_order(monkeypatch):
    probe, seen = small(CROSS), []
    probe.train_examples, real = 2 * probe.examples + 1, probe.batch
    monkeypatch.setattr(probe, "batch", lambda *given: seen.append(real(*given)) or seen[-1], raising=False)
    train(probe, Arm("softmax"), [1], [1e-2], 5)
    keys = [batch.keys for batch in seen if len(batch.keys) == probe.examples]
    first, second = ([torch.equal(a, b) for b in keys] for a in keys[:2])
    assert first == [True, False] * 2 + [True] and second == [False, True] * 2 + [False]


def test_scores_do_not_depend_on_the_pieces_in_which_they_are_computed(monkeypatch):
    probe, arm = small(CROSS), Arm("dnas")
    model = train(probe, arm, [1, 2], [1e-2] * 2, 2).model
    whole = evaluate(probe, model, 2, "test", 8, 50)[0]
    monkeypatch.setattr(ensemble, "PAIRS", 2 * 8 * 32 * 7)  # seven examples at once
    assert len(list(ensemble.batches(probe, "test", 8, 50, 2))) == 8
    assert torch.equal(evaluate(probe, model, 2, "test", 8, 50)[0], whole)


def test_all_arms_and_rates_start_from_the_same_shared_parameters():
    probe = CROSS.probe()
    started = {"softmax": [7, 7, 8], "hnas": [7], "dnas": [8]}
    softmax, hnas, again = (probe.model(Arm(arm), seeds).state_dict() for arm, seeds in started.items())
    shared = [name for name in softmax if "normalizers" not in name]
    assert len(shared) == 12
    assert not torch.equal(softmax["q.first.weight"], softmax["k.first.weight"]), "each has a name of its own"
    for name in shared:
        values = softmax[name]
        assert torch.equal(values[0], values[1]) and torch.equal(values[0], hnas[name][0])
        assert torch.equal(values[2], again[name][0]) and not torch.equal(values[0], values[2])


def test_linear_layers_start_as_those_of_torch():
    model = CROSS.probe().model(Arm("softmax"), range(40))
    for values, inputs in ((model.readout.weight, WIDTH), (model.readout.bias, WIDTH), (model.v.weight, 16)):
        bound = 1 / math.sqrt(inputs)
        assert -bound <= values.min() < -0.95 * bound and 0.95 * bound < values.max() <= bound
        assert values.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1)


def test_a_parameter_with_axes_for_heads_starts_as_that_of_its_seed():
    """Also random initial values of a normalizer follow from the seed alone, not from the place in the ensemble."""
    many, one = (CROSS.probe().model(Arm("asentmax"), seeds).attention.state_dict() for seeds in ([5, 6], [6]))
    names = [name.partition(".0.")[2] for name in one]
    assert names
    for name in names:
        assert torch.equal(many[f"normalizers.1.{name}"], one[f"normalizers.0.{name}"])
    matrices = [name for name in names if many[f"normalizers.0.{name}"].dim() > 1]
    assert any(not torch.equal(many[f"normalizers.0.{name}"], many[f"normalizers.1.{name}"]) for name in matrices)


def test_batches_follow_from_the_seed_and_not_from_the_arm(monkeypatch):
    seen, real = [], ensemble.stack
    monkeypatch.setattr(ensemble, "stack", lambda batches: seen.append(real(batches)) or seen[-1])
    for label in ("softmax", "asentmax"):
        train(small(CROSS), Arm(label), [3, 4, 3], [1e-3, 1e-3, 1e-2], 2)
    first, second, again = (batch.queries for batch in seen[:3])
    assert torch.equal(first, again)
    assert torch.equal(first[0], first[2]) and not torch.equal(first[0], first[1])
    assert not torch.equal(first, second)


def test_training_selection_and_test_have_streams_of_their_own():
    of_hub = [("Hub", "train", 3), ("Hub", "train", 4), ("Hub", "selection", 8), ("Hub", "test", 8)]
    drawn = [torch.rand(4, generator=generator(*name)) for name in (*of_hub, ("Match", "test", 8))]
    assert all(not torch.equal(a, b) for i, a in enumerate(drawn) for b in drawn[:i])


def test_all_members_see_the_same_size_in_an_update_which_the_sizes_of_training_are_drawn_from(monkeypatch):
    probe, sizes = small(Cell("max"), 2), []
    real = probe.batch
    monkeypatch.setattr(probe, "batch", lambda count, size, stream: sizes.append(size) or real(count, size, stream))
    monkeypatch.setattr(ensemble, "select", lambda *_: torch.zeros(2))
    train(probe, Arm("uniform"), [1, 2], [1e-3, 1e-3], 12)
    sizes = sizes[1:]  # the first one is the sample from which the model takes its widths
    assert sizes[::2] == sizes[1::2] and set(sizes) == set(probe.train_sizes)


@pytest.mark.parametrize("label", ["sink", "probe_parts.Temperature", "dnas_slack+content"])
@pytest.mark.parametrize("rates", [(1e-3, 3e-2), (1e-2,)], ids=str)
def test_the_optimizer_is_adamw_of_torch_with_a_rate_per_member(label, rates):
    """Each member is compared with torch's, which gets its slice: ten times the rate and no decay for fast ones."""
    seeds = range(len(rates))
    model = CROSS.probe().model(Arm(label), seeds)
    attention = model.attention
    hooks = [part for part in attention.modules() if isinstance(part, TrainingHooks)]
    fast = {id(it) for part in hooks for it in part.fast_parameters()}
    own = {id(it): e for parts in (attention.normalizers, attention.priors or ()) for e, part in enumerate(parts)
           for it in part.parameters() if parts is attention.priors or not attention.together}  # fmt: skip
    copies, groups = [], []
    for parameter in model.parameters():
        members = [own[id(parameter)]] if id(parameter) in own else list(seeds)
        slices = [parameter.detach().clone()] if id(parameter) in own else list(parameter.detach().clone())
        matrix = parameter.dim() - (id(parameter) not in own) >= 2 and id(parameter) not in fast
        for e, values in zip(members, slices, strict=True):
            copy = torch.nn.Parameter(values)
            rate = rates[e] * (ensemble.FAST if id(parameter) in fast else 1)
            decay = ensemble.WEIGHT_DECAY if matrix else 0.0
            groups.append({"params": [copy], "lr": rate, "weight_decay": decay})
            copies.append((parameter, None if id(parameter) in own else e, copy))
    assert fast
    reference, optimizer, updates = torch.optim.AdamW(groups), AdamW(model, rates), 6
    for update in range(updates):
        stream = torch.Generator().manual_seed(update)
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=stream)
        for parameter, e, copy in copies:
            copy.grad = (parameter.grad if e is None else parameter.grad[e]).clone()
        optimizer.step(1.0)
        reference.step()
    bound = rounding(torch.float32, depth=updates / 4)
    for parameter, e, copy in copies:
        torch.testing.assert_close(parameter if e is None else parameter[e], copy, rtol=bound, atol=bound)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_factor_of_a_step_scales_the_rates():
    first, second = (CROSS.probe().model(Arm("sink"), [1, 2]) for _ in range(2))
    one, other = AdamW(first, [1e-2, 1e-3]), AdamW(second, [5e-3, 5e-4])
    for model, optimizer, factor in ((first, one, 0.5), (second, other, 1.0)):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step(factor)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("updates", [100, 600])
def test_the_schedule_rises_for_a_twentieth_and_falls_to_zero_in_equal_steps(updates):
    factors = torch.tensor([schedule(update, updates) for update in range(1, updates + 1)], dtype=torch.float64)
    top = updates // 20
    steps = factors.diff()
    assert factors[0].item() == pytest.approx(1 / top) and factors[top - 1] == factors.max() == 1
    assert steps[: top - 1].min().item() == pytest.approx(steps[: top - 1].max().item())
    falling = steps[top + 1 :]
    assert falling.max() < 0 and falling.min().item() == pytest.approx(falling.max().item())
    assert factors[-1].item() == pytest.approx(-falling[0].item()), "one more step would reach zero"


def test_projections_of_a_normalizer_are_applied_after_each_update():
    trained = train(small(CROSS), Arm("hnas", {"start": 0.99, "form": "clamp"}), [1, 2], [0.5, 1e-5], 1)
    [normalizer] = trained.model.attention.normalizers
    shares = normalizer.trained.detach()  # a step of 5 leads out of the range
    assert ((shares >= 0) & (shares <= 1)).all() and shares[0] in (0, 1) and 0.9 < shares[1] < 1


def test_the_curve_has_the_selection_scores_and_ends_with_the_last():
    trained = train(small(CROSS), Arm("softmax"), [1, 2], [1e-2] * 2, 20)
    assert trained.curve.shape == (2, ensemble.CHECKS)
    expected = evaluate(small(CROSS), trained.model, 2, "selection", 8, ensemble.SELECTION)[0].mean(1)
    assert torch.equal(trained.curve[:, -1], expected)


def test_sites_refuse_what_is_not_defined_there_and_softmax_fits_those_of_all_probes():
    assert Arm("argmax").unfit("cross") == "it has no gradient"
    assert "causal" in Arm("selective").unfit("cross") and "causal" in Arm("selective").unfit("bidirectional")
    assert Arm("selective").unfit("causal") is None
    for label in ("dnas", "hnas", "sinkhorn", "dnas_slack_u"):
        assert Arm(label).unfit("cross") is None and Arm(label).unfit("bidirectional") is None
        assert "future" in Arm(label).unfit("causal")
    plan = ProbePlan([CROSS, CAUSAL], ["softmax", "argmax", "dnas", "selective", "uniform"], [1e-3], [100], [110])
    assert [plan.fit(cell) for cell in plan.cells] == [["softmax", "dnas"], ["softmax", "selective"]]
    sites = {cell.probe().site for name in PROBES for cell in cells_of(name)}
    assert sites == {"cross", "bidirectional", "causal"}
    assert all(Arm(null).unfit(site) is None for site in sites for null in ("softmax", "uniform", "none"))


@pytest.mark.parametrize("label", ["softmax", "selective", "asentmax"])
def test_causal_members_do_not_see_the_future(label):
    probe = small(CAUSAL)
    model = probe.model(Arm(label), [1, 2])
    batch = probe.batch(2, 32, torch.Generator().manual_seed(0))
    batch = type(batch)(*(x.expand(2, *x.shape) for x in batch))
    weights = model.weights(batch)
    assert weights.triu(1).abs().max() == 0 and weights.tril().sum(-1)[..., 1:].min() > 0.5
    later = batch._replace(queries=batch.queries.clone(), keys=batch.keys.clone())
    later.queries[:, :, 20:] += 1
    later.keys[:, :, 20:] += 1
    assert torch.equal(model.weights(later)[:, :, :20], weights[:, :, :20])
