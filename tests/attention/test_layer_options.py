"""Options of the attention layer: each formula as loops, with every normalizer; masks, caches, packing; refusals."""

import copy
import math
from itertools import product

import builders
import pytest
import torch
from marks import FEW
from reference import case, gradients, observed, randn
from simulated_gpu import OnMeta, SimulatedGPU
from tolerance import tolerance
from torch import nn
from torch.testing import assert_close

from attnorm.attention import Mask, MultiHeadAttention, build_normalizer, check_attention
from attnorm.attention.layer_options import LAYER_OPTIONS, LayerOptions, laser, without_own_value
from attnorm.attention.multihead import Cache
from attnorm.attention.priors import needs_of
from attnorm.attention.registry import GATES, NORMALIZERS, PRIORS, SCORERS, build, build_scorer
from attnorm.attention.site import SMALLEST, Site
from attnorm.models.initialize import initialize
from attnorm.models.recording import record

pytestmark = pytest.mark.numerical

TIGHT = {"rtol": 1e-9, "atol": 1e-10}
STATES, HEADS, BATCH, LENGTH = 6, 2, 2, 5
SIZE = STATES // HEADS
CHOICES = {
    "headwise": {"gate": "headwise"},
    "elementwise": {"gate": "elementwise"},
    "exclusive": {"exclusive": True},
    "differential": {"differential": True},
    "laser": {"laser": True},
    "all but laser": {"gate": "elementwise", "exclusive": True, "differential": True},
    "all but differential": {"gate": "headwise", "exclusive": True, "laser": True},
}
SITES = {"encoder": False, "decoder": True, "cross": True}


def tables(normalizer="softmax", *, scorer="scaled_dot", **chosen):
    """Tables of the site "decoder" with these options of the layer."""
    options = {table: {"decoder": value} for table, value in chosen.items()}
    return {"decoder": normalizer, "prior": {}, "scorer": {"decoder": scorer}, "options": {}, **options}


def make_layer(normalizer="softmax", *, rough=True, dropout=0.0, **chosen):
    """A layer in float64, with random parameters, so that no option is at its initial value."""
    torch.manual_seed(0)
    layer = Site(tables(normalizer, **chosen), "decoder").layer(STATES, HEADS, dropout=dropout)
    layer = layer.double().eval()
    for seed, (name, parameter) in enumerate(layer.named_parameters()):
        if rough and not name.startswith("normalizer"):
            parameter.data = randn(*parameter.shape, seed=seed)
    return layer


TRAINED = [  # the normalizers that a layer can be trained with and that contribute something
    name
    for name in NORMALIZERS
    if name != "none" and build("normalizer", name, {}, SMALLEST["normalizer"]).differentiable
]


def defined(names=TRAINED):
    """All (normalizer, choice of options) that are accepted."""
    for name, (choice, chosen) in product(names, CHOICES.items()):
        if check_attention(tables(name, **chosen), {"decoder": False}) == []:
            yield name, choice


def chosen_for(normalizer):
    """The accepted choices: all of them for a few normalizers, else those that are no part of another one."""
    accepted = [choice for _, choice in defined([normalizer])]
    parts = [CHOICES[choice].items() for choice in accepted]
    return [it for it in accepted if normalizer in FEW or not any(CHOICES[it].items() < part for part in parts)]


# ------------------------------------------------------------------------------------------------------------ formulas


def by_hand(layer, x, memory, chosen, allowed=None, log_prior=None):
    """The output (B, N, W), head by head where an option is concerned. The weights are the normalizer's.

    The two maps of differential attention are computed apart, from queries and keys of their own.
    """
    maps = 2 if chosen.get("differential") else 1
    kv = layer.key_value(memory)
    k, v = (y.unflatten(-1, (HEADS, SIZE)) for y in (kv[..., :STATES], kv[..., STATES:]))  # (B, M, H, D)
    queries = [layer.query(x)] + ([layer.options.differential.query(x)] if maps == 2 else [])
    q = [y.unflatten(-1, (HEADS, SIZE)) for y in queries]
    batch, length = x.shape[:2]
    scores = x.new_zeros(batch, maps * HEADS, length, memory.shape[1])
    keys = x.new_zeros(batch, maps * HEADS, memory.shape[1], SIZE)
    for h, number in product(range(HEADS), range(maps)):
        scores[:, maps * h + number] = torch.einsum("bnd,bmd->bnm", q[number][:, :, h], k[:, :, h]) / math.sqrt(SIZE)
        keys[:, maps * h + number] = k[:, :, h]
    normalizer, own = layer.normalizer, {}
    if normalizer.needs_states != "none":
        own["features"] = normalizer.features_of(x if normalizer.needs_states == "queries" else memory)
    if normalizer.needs_queries:
        own["queries"] = torch.stack(q, 3).flatten(2, 3).transpose(1, 2)
    weights = normalizer(scores, allowed, log_prior=log_prior, keys=keys, scale=SIZE**-0.5, **own)
    rows = []
    for b, i, h in product(range(batch), range(length), range(HEADS)):
        outputs = []
        for number in range(maps):
            w, values = weights[b, maps * h + number, i], v[b, :, h]  # (M,), (M, D)
            if chosen.get("laser"):
                sums = w @ values.exp()
                outputs.append(sums.log() if sums.any() else 0 * sums)  # 0 at a dead row
            else:
                outputs.append(w @ values)
        o = outputs[0]
        if maps == 2:
            share = 1 / (1 + (-(layer.options.differential.weight[h] * x[b, i]).sum()).exp())
            o = o - share * outputs[1]
        if chosen.get("exclusive"):
            own = v[b, i, h]
            o = o - (o * own).sum() / (own * own).sum() * own
        if gate := chosen.get("gate"):
            weight = layer.options.gate.weight
            weight = weight[h : h + 1] if gate == "headwise" else weight[h * SIZE : (h + 1) * SIZE]
            o = o * 2 / (1 + (-(weight @ x[b, i])).exp())
        rows.append(o)
    return layer.output(torch.stack(rows).reshape(batch, length, STATES))


def test_every_option_is_tested_here():
    assert {table for chosen in CHOICES.values() for table in chosen} == {*LAYER_OPTIONS}
    assert {chosen["gate"] for chosen in CHOICES.values() if "gate" in chosen} == {*GATES}
    pairs = [*defined()]
    assert {name for name, _ in pairs} == {*TRAINED}
    assert {choice for _, choice in pairs} == {*CHOICES}
    sums = {name: build("normalizer", name, {}, SMALLEST["normalizer"]).total for name in TRAINED}
    assert {name for name, choice in pairs if choice == "laser"} == {name for name in sums if sums[name] == 1}


@pytest.mark.long
@pytest.mark.parametrize("normalizer", TRAINED)
def test_the_output_and_its_gradient_are_those_of_the_formula_with_every_normalizer(normalizer):
    for choice in chosen_for(normalizer):
        chosen = CHOICES[choice]
        layer, x = make_layer(normalizer, **chosen), randn(BATCH, LENGTH, STATES, seed=20).requires_grad_()
        allowed = torch.ones(BATCH, 1, LENGTH, LENGTH, dtype=torch.bool)
        allowed[0, :, :, 3:], allowed[1, :, 2] = False, False  # padded keys, and a dead row
        if layer.normalizer.couples_queries != "all":
            allowed = allowed & torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
        for mask, prior in ((None, None), (allowed, randn(1, layer.maps, 1, LENGTH, seed=21))):
            of_layer = prior if prior is None or layer.maps == HEADS else prior[:, ::2]
            given = None if of_layer is None else of_layer.repeat_interleave(layer.maps // HEADS, 1)
            found = layer(x, x, mask, log_prior=of_layer)
            expected = by_hand(layer, x, x, chosen, mask, given)
            inputs = [x, *(p for p in layer.parameters() if p.requires_grad)]
            mine, theirs = (gradients(y, inputs) for y in (found, expected))
            assert any((x != 0).any() for x in mine)
            with case(choice):
                assert_close(found, expected, **TIGHT)
                assert_close(mine, theirs, rtol=1e-6, atol=1e-8)


def test_the_layer_computes_the_same_with_and_without_the_weights():
    """Dot types go to `attend`, others and observed layers to the weights."""
    x, mask = randn(BATCH, LENGTH, STATES, seed=20), Mask(queries=torch.tensor([[True] * 5, [True] * 3 + [False] * 2]))
    for normalizer, choice in defined(("softmax", "dnas", "hnas_prefix", "ot")):
        layer, seen = make_layer(normalizer, **CHOICES[choice]), []
        expected = layer(x, x, mask)
        layer.observer = seen.append
        assert_close(layer(x, x, mask), expected, **TIGHT)
        [record] = seen
        assert record.weights.shape == (BATCH, layer.maps, LENGTH, LENGTH)
        assert record.q.shape == record.k.shape == record.v.shape == (BATCH, layer.maps, LENGTH, SIZE)


@pytest.mark.parametrize("rough", [True, False])
def test_both_maps_of_a_head_are_observed_one_after_the_other_and_share_keys_and_values(rough):
    layer, x = make_layer(rough=rough, differential=True), randn(BATCH, LENGTH, STATES, seed=20)
    seen = observed(layer, x, x)
    for number, projection in enumerate((layer.query, layer.options.differential.query)):
        queries = layer._split(projection(x))
        assert_close(seen.q[:, number::2], queries, **TIGHT)
        assert_close(seen.weights[:, number::2], (queries @ seen.k[:, ::2].mT * SIZE**-0.5).softmax(-1))
    assert torch.equal(seen.k[:, ::2], seen.k[:, 1::2]) and torch.equal(seen.v[:, ::2], seen.v[:, 1::2])
    assert_close(seen.v[:, ::2], layer._split(layer.key_value(x)[..., STATES:]), **TIGHT)
    if not rough:  # half of the second map is subtracted at first
        context = (seen.weights[:, ::2] - seen.weights[:, 1::2] / 2) @ seen.v[:, ::2]
        assert_close(layer(x, x), layer.output(context.transpose(1, 2).flatten(2)), **TIGHT)


# -------------------------------------------------------------------------------------------------- masks and caches

AUTOREGRESSIVE = ("softmax", "dnas_prefix", "hnas_prefix", "sparsemax", "fenchel", "asentmax")


@pytest.mark.parametrize("normalizer, choice", [*defined(AUTOREGRESSIVE)])
def test_cached_decoding_equals_the_causal_pass_and_no_output_depends_on_the_future(normalizer, choice):
    layer, x = make_layer(normalizer, **CHOICES[choice]), randn(BATCH, LENGTH, STATES, seed=20)
    prior = randn(1, HEADS, LENGTH, LENGTH, seed=4)
    full, cache = layer(x, x, Mask(causal=True), log_prior=prior), Cache(grows=True)
    for t in range(LENGTH):
        now = x[:, t : t + 1]
        step = layer(now, now, Mask(), log_prior=prior[..., t : t + 1, : t + 1], cache=cache)
        assert_close(step, full[:, t : t + 1], **TIGHT)
    other = torch.cat([x[:, :3], 100 * x[:, 3:]], 1)
    assert_close(layer(other, other, Mask(causal=True), log_prior=prior)[:, :3], full[:, :3], **TIGHT)


@pytest.mark.parametrize("normalizer, choice", [*defined(("softmax", "dnas", "hnas", "sparsemax", "ot"))])
def test_padded_equals_unpadded_and_packed_equals_separate(normalizer, choice):
    layer, texts = make_layer(normalizer, **CHOICES[choice]), (randn(1, 3, STATES, seed=1), randn(1, 4, STATES, seed=2))
    alone = [layer(text, text, Mask()) for text in texts]
    padded = torch.cat([texts[0], 50 * randn(1, 2, STATES, seed=3)], 1)
    real = torch.tensor([[True] * 3 + [False] * 2])
    assert_close(layer(padded, padded, Mask(queries=real, keys=real))[:, :3], alone[0], **TIGHT)
    packed = torch.cat(texts, 1)
    together = layer(packed, packed, Mask(segments=torch.tensor([[0] * 3 + [1] * 4])))
    assert_close(together, torch.cat(alone, 1), **TIGHT)


def test_cross_attention_takes_gates_and_lambda_from_the_queries_also_with_a_cache():
    x, memory = randn(BATCH, 3, STATES, seed=1), randn(BATCH, LENGTH, STATES, seed=2)
    for choice in ("headwise", "elementwise", "differential", "laser"):
        layer, cache = make_layer(**CHOICES[choice]), Cache(grows=False)
        steps = [layer(x[:, t : t + 1], memory, cache=cache) for t in range(3)]
        with case(choice):
            assert_close(layer(x, memory), by_hand(layer, x, memory, CHOICES[choice]), **TIGHT)
            assert_close(torch.cat(steps, 1), layer(x, memory), **TIGHT)


def test_a_bank_has_the_same_options_as_the_input():
    bank = nn.Module()
    bank.forward = lambda: randn(3, STATES, seed=5)
    x = randn(BATCH, LENGTH, STATES, seed=1)
    for choice in ("elementwise", "differential", "laser"):
        layer = make_layer("ot", **CHOICES[choice])
        layer.bank = bank
        weights = []
        layer.observer = lambda seen, weights=weights: weights.append(torch.cat([seen.outside, seen.weights], -1))
        found = layer(x, x)
        v = layer._split(layer.key_value(torch.cat([bank().expand(BATCH, -1, -1), x], 1))[..., STATES:])
        if choice == "laser":
            expected = (weights[0] @ v.exp()).log()
        else:
            context = weights[0] @ v.repeat_interleave(layer.maps // HEADS, 1)
            expected = layer.options.output(context, x, v)
        assert_close(found, layer.output(expected.transpose(1, 2).flatten(2)), **TIGHT)


# ------------------------------------------------------------------------------------------------------ initial values


def test_a_layer_without_options_has_the_parameters_and_the_random_numbers_of_before():
    torch.manual_seed(0)
    layer = Site(tables(), "decoder").layer(STATES, HEADS)
    after = torch.rand(1)
    torch.manual_seed(0)
    expected = {}
    for name, width in (("query", STATES), ("key_value", 2 * STATES), ("output", STATES)):
        linear = nn.Linear(STATES, width)
        expected |= {f"{name}.weight": linear.weight, f"{name}.bias": linear.bias}
    assert torch.equal(after, torch.rand(1))
    assert [*layer.state_dict()] == [*expected]
    assert all(torch.equal(layer.state_dict()[name], value) for name, value in expected.items())


@pytest.mark.parametrize(
    ("choice", "more"),
    [
        ("headwise", STATES * HEADS),
        ("elementwise", STATES * STATES),
        ("differential", STATES * (STATES + 1) + STATES * HEADS),
        ("all but laser", STATES * (2 * STATES + 1 + HEADS)),
        ("all but differential", STATES * HEADS),
    ],
)
def test_options_add_the_documented_number_of_parameters_and_shared_ones_start_bit_equal(choice, more):
    plain, layer = (nn.Sequential(make_layer(rough=False, **chosen)).float() for chosen in ({}, CHOICES[choice]))
    initialize(plain, 3)
    initialize(layer, 3)
    for name, value in plain.state_dict().items():
        assert torch.equal(layer.state_dict()[name], value)
    count = [sum(parameter.numel() for parameter in module.parameters()) for module in (plain, layer)]
    assert count[1] - count[0] == more


@pytest.mark.parametrize("gate", GATES)
def test_a_gate_starts_as_the_identity_bit_by_bit_and_with_scale_1_as_one_half(gate):
    x = randn(BATCH, LENGTH, STATES, seed=20).float()
    for scale, factor in ((None, 1.0), (1.0, 0.5)):
        chosen = tables(gate=gate)
        chosen["options"] = {} if scale is None else {gate: {"scale": scale}}
        layers = [nn.Sequential(Site(it, "decoder").layer(STATES, HEADS)) for it in (tables(), chosen)]
        for layer in layers:
            initialize(layer, 1)
        plain, gated = (layer[0](x, x, Mask(causal=True)) for layer in layers)
        assert torch.equal(gated, factor * plain)
        gated.square().sum().backward()
        assert (layers[1][0].options.gate.weight.grad != 0).all()  # and leaves it


# ------------------------------------------------------------------------------------------------------------ details


def test_exclusive_outputs_are_orthogonal_to_the_own_value_also_if_it_is_0():
    o, v = randn(2, 3, 4, 5), randn(2, 3, 4, 5, seed=1)
    v[0, 0, 0] = 0
    found = without_own_value(o, v)
    assert_close((found * v).sum(-1), torch.zeros(2, 3, 4).double(), **TIGHT)
    assert torch.equal(found[0, 0, 0], o[0, 0, 0])
    inputs = [o.float().requires_grad_(), v.float().requires_grad_()]
    without_own_value(*inputs).sum().backward()
    assert all(x.grad.isfinite().all() for x in inputs)


def test_exclusive_attention_to_another_sequence_is_an_error():
    x, memory = randn(BATCH, LENGTH, STATES, seed=1), randn(BATCH, LENGTH, STATES, seed=2)
    with pytest.raises(ValueError, match="exclusive attention needs the value of each query"):
        make_layer(exclusive=True)(x, memory)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_laser_is_the_logarithm_of_the_mean_of_exponentials_over_its_whole_range(dtype):
    weights, v = randn(2, 1, 4, 6, seed=1).softmax(-1), (60 * randn(2, 1, 6, 3, seed=2)).clamp(-64, 64).to(dtype)
    weights[0, 0, 0] = 0
    exact = (weights.log()[..., None] + v.double()[:, :, None]).logsumexp(-2)
    exact[0, 0, 0] = 0
    found = laser(lambda values: weights.to(values.dtype) @ values, v)
    assert found.dtype == dtype
    eps = torch.finfo(dtype).eps
    assert_close(
        found.double(), exact, rtol=4 * eps, atol=64 * 4 * min(eps, 2**-23)
    )  # exp multiplies errors of v by |v|


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_rounds_no_exponential_and_no_average_of_laser(dtype):
    weights, v = randn(1, 1, 4, 6, seed=1).float().softmax(-1), 20 * randn(1, 1, 6, 3, seed=2).float()
    exact = laser(lambda values: weights @ values, v)
    with torch.autocast("cpu", dtype=dtype):
        assert torch.equal(laser(lambda values: weights @ values, v), exact)


def test_huge_values_saturate_and_change_no_bit_of_earlier_outputs():
    """With the largest value subtracted, e^(-1e4) would push all earlier values below the smallest number."""
    weights = randn(1, 1, 5, 5, seed=1).float().masked_fill(~torch.ones(5, 5).bool().tril(), -torch.inf).softmax(-1)
    v = randn(1, 1, 5, 3, seed=2).float()
    found = laser(lambda values: weights @ values, v)
    for huge in (1e4, -1e4, torch.inf):
        other = v.clone()
        other[..., 3:, :] = huge
        changed = laser(lambda values: weights @ values, other)
        assert torch.equal(changed[..., :3, :], found[..., :3, :]) and changed.isfinite().all()


@pytest.mark.parametrize("choice", CHOICES)
def test_mixed_precision_stays_close_to_float32(choice):
    layer, x = make_layer(**CHOICES[choice]).float(), randn(BATCH, LENGTH, STATES, seed=20).float()
    expected = layer(x, x, Mask(causal=True))
    for observer in (None, lambda _: None):
        layer.observer = observer
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = layer(x, x, Mask(causal=True))
        assert found.dtype == torch.bfloat16
        assert_close(found.float(), expected, **tolerance(torch.bfloat16, size=STATES, scale=expected.abs().max()))


def test_dropout_of_all_weights_of_a_row_gives_0_before_the_output_projection():
    layer, x = make_layer(laser=True, dropout=0.999999).train(), randn(BATCH, LENGTH, STATES, seed=20)
    assert_close(layer(x, x), layer.output.bias.expand(BATCH, LENGTH, -1), **TIGHT)


# ---------------------------------------------------------------------------------------------------------- refusals


def problems(sites=SITES, *, default="softmax", **given):
    return check_attention({"_default_": default, **given}, sites)


REFUSED = {
    "attention.laser.encoder=true: not defined with attention.encoder=continuous, whose weights may be negative, "
    "because laser takes the logarithm of an average; use a normalizer whose rows sum to 1, such as softmax": {
        "encoder": "continuous",
        "laser": {"encoder": True},
    },
    "attention.laser.encoder=true: not defined with attention.encoder=sink, whose weights need not sum to 1, because": {
        "encoder": "sink",
        "laser": {"encoder": True},
    },
    "attention.laser.decoder=true: not defined with attention.differential.decoder=true, because the difference of two "
    "maps can be negative, and laser takes the logarithm of an average; use one of them": {
        "laser": {"decoder": True},
        "differential": {"decoder": True},
    },
    "attention.gate.encoder=headwize: gate 'headwize' is unknown; allowed: headwise, elementwise": {
        "gate": {"encoder": "headwize"}
    },
    "attention.options.headwise.scale=0: allowed: numbers above 0": {
        "gate": {"encoder": "headwise"},
        "options": {"headwise": {"scale": 0}},
    },
    "attention.options.headwise: has no effect, because no site uses 'headwise'": {
        "gate": {"encoder": "elementwise"},
        "options": {"headwise": {"scale": 1}},
    },
    "attention.gate.encoder=none: ": {"gate": {"encoder": "none"}},
    "attention.gate.encoder=True: expected a name, or null for no gate": {"gate": {"encoder": True}},
    "attention.laser.encoder=yes please: allowed: true, false": {"laser": {"encoder": "yes please"}},
    "attention.exclusive=True: expected true or false by site, such as {encoder: true}": {"exclusive": True},
    "attention.exclusive.encodr: the model has no such site; it has encoder, decoder, cross. Did you mean": {
        "exclusive": {"encodr": True}
    },
    "attention.scorer.encoder=qk_norm: learns alpha, and must not, because attention.encoder=fenchel contains alpha as "
    "a fixed number; use scaled_dot or dot": {"encoder": "fenchel", "scorer": {"encoder": "qk_norm"}},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_not_defined_is_refused_with_its_key_its_value_and_the_reason(message):
    found = problems(**copy.deepcopy(REFUSED[message]))
    assert any(problem.startswith(message) for problem in found), found


@pytest.mark.parametrize("table", LAYER_OPTIONS)
def test_an_option_of_a_layer_without_attention_is_refused(table):
    value = "headwise" if table == "gate" else True
    [problem] = problems({"encoder": False}, encoder="none", **{table: {"encoder": value}})
    assert problem == (
        f"attention.{table}.encoder={'headwise' if table == 'gate' else 'true'}: has no effect, because "
        "attention.encoder=none"
    )


def test_shares_per_head_are_those_of_each_map():
    attention = {**tables("hnas", differential=True), "options": {"hnas": {"per": "head"}}}
    layer = Site(attention, "decoder").layer(STATES, HEADS)
    assert layer.maps == 2 * HEADS and layer.normalizer.hybrid_weight().numel() == 2 * HEADS


# ------------------------------------------------------------------------------------------------------------- models


def test_each_site_of_a_model_has_the_options_that_are_set_for_it():
    model_tables = builders.attention_tables("dnas_prefix") | {"gate": {"encoder": "headwise"}}
    model_tables |= {"differential": {"cross": True}, "laser": {"decoder": True}}
    layers = {name: Site(model_tables, name).layer(STATES, HEADS).options for name in builders.SITES}
    assert [layers["encoder"].gate is not None, layers["cross"].maps, layers["decoder"].laser] == [True, 2, True]
    assert [layers["decoder"].maps, layers["encoder"].laser, layers["cross"].gate] == [1, False, None]


def test_a_layer_has_options_only_if_a_table_has_its_site():
    assert Site(tables(gate=None, laser=False), "decoder").layer(STATES, HEADS).options is None
    assert MultiHeadAttention(STATES, HEADS, build_normalizer("softmax"), build_scorer("dot")).options is None
    assert isinstance(make_layer(laser=True).options, LayerOptions)


def test_the_measures_of_a_differential_layer_are_those_of_layers_with_the_queries_of_one_map():
    layer, plain, x = make_layer(differential=True), make_layer(), randn(BATCH, LENGTH, STATES, seed=20)
    with record(layer) as records:
        layer(x, x)
    found = records[""].of_heads()
    shared = {name: value for name, value in layer.state_dict().items() if name in plain.state_dict()}
    for number, query in enumerate((layer.query, layer.options.differential.query)):
        plain.load_state_dict(shared | {"query.weight": query.weight, "query.bias": query.bias})
        with record(plain) as records:
            plain(x, x)
        for name, expected in records[""].of_heads().items():
            if name != "objective_both":  # an iteration that ends once all examples and maps have converged
                with case(name):
                    assert_close(found[name][:, number::2], expected, **TIGHT)


@pytest.mark.parametrize("name", ["sigmoid", "softpick", "off_by_one"])
def test_a_layer_refuses_laser_where_rows_need_not_sum_to_one(name):
    with pytest.raises(ValueError, match=r"laser=True: .* need not sum to 1; use a normalizer whose rows do"):
        make_layer(name, laser=True)
    with pytest.raises(ValueError, match="laser=True: not defined with differential=True"):
        LayerOptions(8, 2, differential=True, laser=True)


# ------------------------------------------------------------------------------------------------------------- devices

PARTS_OF_LAYERS = [
    *[("normalizer", name) for name in TRAINED],
    *[("scorer", name) for name in SCORERS],
    *[("prior", name) for name in PRIORS],
    *[("choice", name) for name in CHOICES],
]
LOOK_AT_VALUES = {  # the functions that read values from the device
    "ot": {"attention/normalizers/ot.py:first_order"},  # whether the iteration is stable
    "fusedmax": {  # the search for the knots
        *(f"attention/normalizers/fusedmax.py:{it}" for it in ("row_weights", "total_variation_prox", "taut_string")),
        "another package",
    },
}


@pytest.mark.parametrize("kind, name", PARTS_OF_LAYERS)
def test_an_update_stays_on_its_device_and_reads_no_values(kind, name):
    """The device meta has no values, and shows where tensors are made; the simulated GPU shows what is read."""
    normalizer = name if kind == "normalizer" else "softmax"
    chosen = CHOICES[name] if kind == "choice" else {}
    site = Site(
        tables(normalizer, **chosen) | {"scorer": {"decoder": name if kind == "scorer" else "scaled_dot"}}, "decoder"
    )
    facts = {"heads": HEADS, "bidirectional": True, "positions": LENGTH, "width": STATES}
    prior = build("prior", name, {}, facts) if kind == "prior" else None
    layer = site.layer(STATES, HEADS, dropout=0.1).train()
    modules = nn.ModuleList([layer, *([] if prior is None else [prior])])

    def update(device):
        x = torch.randn(BATCH, LENGTH, STATES, device=device, requires_grad=True)
        real = torch.arange(LENGTH, device=device).expand(BATCH, -1) < LENGTH - 1
        mask = Mask(queries=real, keys=real, causal=layer.normalizer.needs_causal)
        parameters = list(modules.parameters())
        optimizer = torch.optim.SGD([x, *parameters], lr=0.1, momentum=0.9)
        given = {} if prior is None else dict.fromkeys(needs_of(prior), real)
        log_prior = None if prior is None else prior(LENGTH, LENGTH, 0, x, mask, **given)
        layer(x, x, mask, log_prior=log_prior).square().sum().backward()
        optimizer.step()

    with SimulatedGPU() as gpu:
        modules.to(torch.device("cpu"))
        gpu.transfers.clear()
        update(torch.device("cpu"))
    assert not gpu.mixed, "a GPU would refuse this"
    assert {place for _, _, place, _ in gpu.transfers} == LOOK_AT_VALUES.get(name, set())
    modules.to("meta")
    with OnMeta():
        update("meta")
