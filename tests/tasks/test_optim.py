"""Parameter groups, the shape of the schedules, and hybrid weights that stay a share."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from builders import PAD, PLACEMENTS, SMALL, attention_tables, build_model, sources, targets
from torch import nn

from attnorm.attention.normalizers.hnas import HNAS
from attnorm.attention.normalizers.softmax import Softmax
from attnorm.errors import ConfigError
from attnorm.models.config import EncoderConfig
from attnorm.models.heads import MaskedLM
from attnorm.optim import DECAYS, ParamGroups, read_optimization

OPTIMIZER = {
    "_target_": "torch.optim.AdamW", "_partial_": True,
    "lr": 0.01, "weight_decay": 0.1, "betas": [0.9, 0.98], "eps": 1e-8, "hybrid_lr_factor": 20.0,
}  # fmt: skip
SCHEDULER = {"_target_": "attnorm.optim.warmup_decay", "_partial_": True}
GROUPS = ParamGroups(lr=0.01, weight_decay=0.1, hybrid_lr_factor=20.0)
CLAMP = {name: {"form": "clamp"} for name in ("hnas", "hnas_prefix")}


def names_by_group(model, groups=GROUPS):
    name_of = {id(parameter): name for name, parameter in model.named_parameters()}
    return {group["name"]: [name_of[id(p)] for p in group["params"]] for group in groups.of(model)}


def optimization(optimizer=None, **scheduler):
    """The settings above with these changes."""
    return read_optimization({"optimizer": OPTIMIZER | (optimizer or {}), "scheduler": SCHEDULER | scheduler})


def build(model, total_steps=10, optimizer=None, **scheduler):
    """The optimizer of a model and its scheduler."""
    built = optimization(optimizer, **scheduler).build(model, total_steps, fused=False)
    assert built["lr_scheduler"]["interval"] == "step"
    return built["optimizer"], built["lr_scheduler"]["scheduler"]


def factors_of(total_steps, count, **scheduler):
    """The shares of the peak learning rate that the first `count` updates of a run are made with."""
    return optimization(**scheduler).learning_rates(total_steps, count)


# ------------------------------------------------------------------------------------------------------------- groups


@pytest.mark.parametrize(
    "settings", [{"tie_embeddings": True}, {"tie_embeddings": False}, {"embedding_norm": True}], ids=str
)
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_parameter_is_in_exactly_one_group(placement, settings):
    model = build_model(placement, **settings)
    grouped = [name for names in names_by_group(model).values() for name in names]
    assert sorted(grouped) == sorted(name for name, _ in model.named_parameters())  # tied ones have one name


def test_matrices_decay_and_norms_biases_and_hybrid_weights_do_not():
    model = build_model("hnas_prefix", embedding_norm=True)
    matrices, others, hybrids = set(), set(), set()
    for prefix, module in model.named_modules():
        for name, _ in module.named_parameters(prefix, recurse=False):
            if isinstance(module, HNAS):
                hybrids.add(name)
            elif isinstance(module, nn.LayerNorm) or name.endswith("bias"):
                others.add(name)
            else:
                matrices.add(name)
    matrices.discard("output.weight")  # the token embedding
    found = names_by_group(model)
    assert (set(found["decay"]), set(found["no_decay"]), set(found["hybrid"])) == (matrices, others, hybrids)
    assert len(hybrids) == 5 and "tokens.weight" in matrices
    assert set(names_by_group(build_model("dnas_prefix"))) == {"decay", "no_decay"}
    decays = {group["name"]: group["weight_decay"] for group in GROUPS.of(model)}
    assert decays == {"decay": 0.1, "no_decay": 0.0, "hybrid": 0.0}


def test_parts_are_frozen_or_learn_at_a_factor_of_their_rate():
    """The module "decoder" is more than the site of this name; "cross" is a site in it, with fewer parameters."""
    model = build_model("hnas_prefix")
    parts = replace(GROUPS, freeze=("encoder", "tokens"), lr_factors={"cross": 0.1, "decoder": 0.5})
    parts.freeze_parts(model)
    names, rates = names_by_group(model, parts), {group["name"]: group.get("lr") for group in parts.of(model)}
    assert {name for name, parameter in model.named_parameters() if not parameter.requires_grad} == {
        name for name, _ in model.named_parameters() if name.startswith(("encoder.", "tokens."))
    }
    hybrid = {"hybrid x 0.1": pytest.approx(0.02), "hybrid x 0.5": pytest.approx(0.1)}
    slower = {
        f"{kind} x {factor}": pytest.approx(0.01 * factor) for kind in ("decay", "no_decay") for factor in (0.1, 0.5)
    }
    assert rates == {"decay": None, "no_decay": None, **hybrid, **slower}
    for group, grouped in names.items():
        assert all((".cross." in name) == group.endswith("0.1") for name in grouped)
        assert all(name.startswith("layers.") == (" x " in group) for name in grouped)
    assert sum(map(len, names.values())) == sum(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("name", ["encoder.0", "encoder/0", "encoder.layers.0"])
def test_a_layer_is_frozen_by_the_name_that_curves_give_it(name):
    model = build_model()
    replace(GROUPS, freeze=(name,)).freeze_parts(model)
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert frozen == {name for name, _ in model.named_parameters() if name.startswith("encoder.layers.0.")} != set()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"freeze": ("encodr",)}, "freeze=encodr: .* no such part; allowed: encoder, .*Did you mean 'encoder'"),
        ({"freeze": ("encoder.9",)}, "freeze=encoder.9: .* no such part"),
        ({"lr_factors": {"self": 2.0}}, "lr_factors=self: .* no such part; allowed: .*decoder, cross, .*tokens"),
        ({"freeze": ("decoder",), "lr_factors": {"cross": 2.0}}, "lr_factors=cross: has no effect, since this part"),
        ({"freeze": ("embeddings", "encoder", "decoder", "norm", "output", "tokens")}, "leaves nothing to train"),
    ],
)
def test_a_part_that_does_not_exist_or_cannot_learn_is_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        replace(GROUPS, **changes).freeze_parts(build_model())


@pytest.mark.parametrize("cls", [torch.optim.AdamW, torch.optim.Adam, torch.optim.NAdam])
def test_hybrid_weights_learn_at_their_own_rate_throughout_the_schedule(cls):
    optimizer, schedule = build(build_model("hnas"), 20, {"_target_": f"torch.optim.{cls.__name__}"})
    assert type(optimizer) is cls
    for factor in factors_of(20, 20):
        rates = {group["name"]: group["lr"] for group in optimizer.param_groups}
        assert rates["decay"] == rates["no_decay"] == pytest.approx(0.01 * factor)
        assert rates["hybrid"] == pytest.approx(20 * rates["decay"])
        optimizer.step()
        schedule.step()


def test_betas_and_eps_reach_the_optimizer_as_configured():
    optimizer, _ = build(build_model(), optimizer={"betas": [0.5, 0.75], "eps": 1e-3})
    assert all(group["betas"] == (0.5, 0.75) and group["eps"] == 1e-3 for group in optimizer.param_groups)


def test_decay_shrinks_matrices_and_nothing_else():
    model = build_model("hnas")
    for parameter in model.parameters():
        parameter.data.fill_(0.5)
        parameter.grad = torch.zeros_like(parameter)
    optimizer, _ = build(model, decay="constant", warmup=0.0)
    optimizer.step()
    for parameter in model.parameters():
        assert parameter.unique().tolist() == [pytest.approx(0.5 * (1 - 0.01 * 0.1 * (parameter.ndim > 1)), rel=1e-6)]


# ---------------------------------------------------------------------------------------------------------------- Muon

MUON = {**{key: OPTIMIZER[key] for key in ("_partial_", "lr", "weight_decay", "hybrid_lr_factor")},
        "_target_": "attnorm.optim.muon.MuonAdamW", "betas": [0.9, 0.98]}  # fmt: skip


def with_muon(model, **schedule):
    """An optimizer with Muon, its scheduler, and the names of the parameters that Muon moves."""
    built = read_optimization({"optimizer": MUON, "scheduler": SCHEDULER | schedule}).build(model, 10, fused=True)
    optimizer, names = built["optimizer"], {id(parameter): name for name, parameter in model.named_parameters()}
    moved = {names[id(p)] for group in optimizer.param_groups if group["use_muon"] for p in group["params"]}
    return optimizer, built["lr_scheduler"]["scheduler"], moved


def set_gradients(model, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


@pytest.mark.parametrize("tied", [True, False])
def test_muon_moves_the_matrices_of_attention_and_feed_forward_layers(tied):
    model = build_model("hnas", tie_embeddings=tied)
    layers = ("attention", "cross", "feed_forward")
    expected = {name for name, p in model.named_parameters() if p.ndim == 2 and any(f".{it}." in name for it in layers)}
    assert with_muon(model)[2] == expected != set() and ("output.weight" in dict(model.named_parameters())) != tied
    small = {key: SMALL[key] for key in ("d_model", "n_heads", "ffn_dim", "encoder_layers")}
    untied = MaskedLM(EncoderConfig(**small, max_source=10, tie_embeddings=False), attention_tables(), 11, PAD)
    assert {name.split(".")[1] for name in with_muon(untied)[2]} == {"layers", "transform"}  # not the output matrix


def orthogonalized(matrix):
    """Newton-Schulz iterations (Jordan et al., 2024)."""
    x = matrix / matrix.norm()
    x = x.T if x.shape[0] > x.shape[1] else x
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.775 * gram + 2.0315 * gram @ gram) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


def test_an_update_with_muon_is_that_of_its_paper_and_of_adamw_for_the_rest():
    model, twin = build_model("hnas"), build_model("hnas")
    optimizer, _, moved = with_muon(model, decay="constant", warmup=0)
    adamw, _ = build(twin, decay="constant", warmup=0)
    for each in (model, twin):
        set_gradients(each)
    optimizer.step()
    adamw.step()
    for (name, after), (_, other), (_, before) in zip(
        *(each.named_parameters() for each in (model, twin, build_model("hnas"))), strict=True
    ):
        if name not in moved:
            torch.testing.assert_close(after, other, rtol=1e-6, atol=1e-7)
            continue
        nesterov = 0.05 * after.grad + 0.95 * 0.05 * after.grad  # the momentum is 0.05 of the first gradient
        step = 0.2 * max(after.shape) ** 0.5 * orthogonalized(nesterov)
        change = after - before * (1 - 0.01 * 0.1) + 0.01 * step
        assert change.norm() < 0.05 * (0.01 * step).norm()  # the iterations are in bfloat16


def test_muon_goes_on_exactly_from_a_saved_state_and_keeps_the_ratio_of_rates():
    model = build_model("hnas")
    optimizer, schedule, _ = with_muon(model)
    runs = [(model, optimizer, schedule)]
    for update in range(4):
        if update == 2:
            again = copy.deepcopy(model)
            resumed, its_schedule, _ = with_muon(again)
            resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            its_schedule.load_state_dict(schedule.state_dict())
            runs.append((again, resumed, its_schedule))
        for each, its_optimizer, scheduler in runs:
            set_gradients(each, update)
            its_optimizer.step()
            scheduler.step()
            rates = {group["name"]: group["lr"] for group in its_optimizer.param_groups}
            assert rates["hidden"] == rates["decay"] == pytest.approx(rates["hybrid"] / 20)
    assert all(map(torch.equal, model.parameters(), again.parameters()))


# ----------------------------------------------------------------------------------------------------------- schedules


@pytest.mark.parametrize("floor", [0.0, 0.2])
@pytest.mark.parametrize(("rising", "share", "start"), [(0.2, 1.0, 10), (10, 0.4, 30)])
@pytest.mark.parametrize("decay", DECAYS)
def test_the_schedule_rises_to_the_peak_and_falls_in_its_shape_to_the_floor(decay, rising, share, start, floor):
    steps, warmup = 50, 10
    factors = factors_of(steps, steps + 8, decay=decay, min_lr_ratio=floor, warmup=rising, decay_share=share)
    for step in range(warmup):
        assert factors[step] == pytest.approx((step + 1) / (warmup + 1))  # equal rises, and the first update moves
    assert factors[warmup] == 1.0 == max(factors)
    for step in range(warmup, steps + 1):
        done = max(0, step - start) / (steps - start)
        left = {"constant": 1.0, "linear": 1 - done, "cosine": math.cos(math.pi * done / 2) ** 2}[decay]
        assert factors[step] == pytest.approx(floor + (1 - floor) * left, abs=1e-12)
    if decay != "constant":
        assert factors[steps] == pytest.approx(floor, abs=1e-12)
    assert factors[steps + 7] == pytest.approx(factors[steps])  # and stays there


@pytest.mark.parametrize("decay", DECAYS)
def test_without_warmup_the_first_update_is_at_the_peak(decay):
    assert factors_of(10, 1, decay=decay, warmup=0.0) == [1.0]


@pytest.mark.parametrize("warmup", [0.0, 0.5, 0.99])
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_run_of_few_updates_has_rates_above_zero(steps, warmup):
    factors = factors_of(steps, steps, warmup=warmup)
    assert len(factors) == steps and all(0 < factor <= 1 for factor in factors)


# ------------------------------------------------------------------------------------ hybrid weights and declared hooks


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("placement", ["hnas", "hnas_prefix"])
def test_clamped_hybrid_weights_stay_shares_after_huge_steps(placement, sign):
    options = CLAMP if placement == "hnas_prefix" else {"hnas": CLAMP["hnas"]}
    model = build_model(placement, options=options)
    hybrids = [module for module in model.modules() if isinstance(module, HNAS)]
    optimizer, schedule = build(model, optimizer={"lr": 10.0}, decay="constant")
    for _ in range(3):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, -sign)
        optimizer.step()
        schedule.step()
        assert [hybrid.trained.tolist() for hybrid in hybrids] == [[float(sign > 0)]] * len(hybrids)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, sign * 1e4)
    optimizer.step()
    assert all(hybrid.trained.item() == float(sign < 0) for hybrid in hybrids)  # it can leave the edge again


def test_a_sigmoid_hybrid_weight_is_free_to_move_and_still_a_share():
    model = build_model("hnas")
    (hybrid,) = (module for module in model.modules() if isinstance(module, HNAS))
    optimizer, _ = build(model, optimizer={"lr": 0.2}, warmup=0.0)
    hybrid.trained.grad = torch.tensor([-1.0])
    optimizer.step()
    assert hybrid.trained.item() == pytest.approx(4.0)  # lr times the factor
    assert 0.98 < hybrid.hybrid_weight().item() < 1


def test_training_moves_every_parameter():
    model = build_model(
        "hnas_prefix", tie_embeddings=False, priors={"encoder": ["t5"], "decoder": ["t5"], "cross": ["t5"]}
    )
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer, _ = build(model, optimizer={"weight_decay": 0.0})
    model.logits(model(sources([6, 4]), targets([5, 3]))).logsumexp(-1).sum().backward()
    optimizer.step()
    assert [name for name, parameter in model.named_parameters() if torch.equal(parameter, before[name])] == []


class Sharpened(Softmax):
    """A normalizer of a user's own: `power` learns fast and stays above 0.5, `offset` learns like any other vector."""

    def __init__(self):
        super().__init__()
        self.power, self.offset = nn.Parameter(torch.ones(1)), nn.Parameter(torch.zeros(1))

    def fast_parameters(self):
        return [self.power]

    def project_(self):
        self.power.clamp_(min=0.5)


def test_a_normalizer_declares_its_fast_parameters_and_its_projection():
    model = nn.ModuleDict({"layer": nn.Linear(2, 2), "normalizer": Sharpened()})
    others = {"no_decay": ["layer.bias", "normalizer.offset"], "hybrid": ["normalizer.power"]}
    assert names_by_group(model) == {"decay": ["layer.weight"], **others}
    optimizer, _ = build(model, optimizer={"lr": 0.04}, warmup=0.0, decay="constant")
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()  # Adam moves each parameter by its learning rate: 0.04 * 20 would leave 0.2
    assert model["normalizer"].power.item() == 0.5
    assert model["normalizer"].offset.item() == pytest.approx(-0.04)
