"""Scorers: each formula as a loop, gradients, precision, additive's memory, and their way into a model."""

import math

import builders
import pytest
import torch
from builders import build_model, rough_model
from reference import BATCH, HEADS, WIDTH, assert_same, gradients, leaves, make_qkv, observed, randn
from simulated_gpu import LargestTensor
from tolerance import tolerance
from torch.testing import assert_close

from attnorm.attention import Mask, MultiHeadAttention, build_normalizer, check_attention, scorers
from attnorm.attention.multihead import attention_layers
from attnorm.attention.registry import SCORERS, build_scorer
from attnorm.attention.scorers import Scorer
from attnorm.models.recording import record
from attnorm.optim import ParamGroups

pytestmark = pytest.mark.numerical

TIGHT = {"rtol": 1e-10, "atol": 1e-10}
DOT_TYPES = ["scaled_dot", "dot", "length_dot", "bilinear", "qk_norm"]
OTHERS = ["additive", "gaussian", "softcap"]
TRAINED = ["bilinear", "additive", "qk_norm"]
FEW_KEYS = {"length_dot": {"length": 2, "slope": 0.7}}  # so that few keys have a temperature
PLACED = [  # placements in a model, with each scorer once
    ("softmax", "scaled_dot"),
    ("dnas_prefix", "length_dot"),
    ("hnas_prefix", "dot"),
    ("dnas", "bilinear"),
    ("hnas_prefix", "additive"),
    ("dnas_prefix", "gaussian"),
    ("dnas_prefix", "qk_norm"),
    ("dnas", "softcap"),
]
# About half the operations of a layer: autocast rounds the inputs and the result of each of them.
COARSE = tolerance(torch.bfloat16, depth=0.5, size=WIDTH)


def make(name, heads=HEADS, width=WIDTH):
    """A scorer in float64 with random parameters."""
    facts = {"heads": heads, "width": width} if name in TRAINED else {}
    scorer = build_scorer(name, **facts, **FEW_KEYS.get(name, {})).double()
    for seed, parameter in enumerate(scorer.parameters()):
        parameter.data = randn(*parameter.shape, seed=seed)
    return scorer


# ------------------------------------------------------------------------------------------------------------ formulas


def dot(x, y):
    return sum(a * b for a, b in zip(x, y, strict=True))


def score(name, scorer, h, q, k, n=None):
    """The score of one query and one key of head h, lists of D numbers, from the scorer's parameters.

    n: the number of keys that the query may see.
    """
    width = len(q)
    if name == "dot":
        k = [x / dot(k, k) ** 0.5 for x in k] if not scorer.keeps_keys else k
        return alpha_of(scorer, h, q) * dot(q, k)
    if name == "scaled_dot":
        return dot(q, k) / math.sqrt(width)
    if name == "length_dot":
        return (1 + 0.7 * math.log(1 + n // 2)) * dot(q, k) / math.sqrt(width)
    if name == "bilinear":
        return dot(k, [dot(row, q) for row in scorer.weight[h]]) / math.sqrt(width)
    if name == "qk_norm":
        return scorer.log_alpha[h].exp() * dot(q, k) / (dot(q, q) * dot(k, k)) ** 0.5
    if name == "softcap":
        return scorer.cap * (dot(q, k) / math.sqrt(width) / scorer.cap).tanh()
    if name == "gaussian":
        return -sum((a - b) ** 2 for a, b in zip(q, k, strict=True)) / 2
    of_k, of_q = ([dot(row, x) for row in w] for w, x in ((scorer.key.weight, k), (scorer.query.weight, q)))
    return dot(scorer.v[h], [(a + b).tanh() for a, b in zip(of_k, of_q, strict=True)])


def alpha_of(scorer, h, q):
    """The alpha of one query of head h."""
    if scorer.learn is None:
        return scorer.start
    if scorer.learn == "head":
        return scorer.log_alpha[h].exp()
    return scorer.start * dot(scorer.v[h], [dot(row, q).tanh() for row in scorer.network.weight]).exp()


def by_hand(name, scorer, q, k):
    """Scores (B, H, N, M), number by number."""
    shape = (*q.shape[:-1], k.shape[-2])
    entries = [
        score(name, scorer, h, list(q[b, h, i]), list(k[b, h, j]), shape[3])
        for b in range(shape[0])
        for h in range(shape[1])
        for i in range(shape[2])
        for j in range(shape[3])
    ]
    return torch.stack(entries).reshape(shape)


def test_every_scorer_is_tested_here():
    assert set(SCORERS) == {*DOT_TYPES, *OTHERS}


@pytest.mark.parametrize("name", SCORERS)
def test_scores_and_their_gradients_are_those_of_the_formula(name):
    scorer, (q, k, _) = make(name), leaves(*make_qkv(4, 5))
    inputs = [q, k, *scorer.parameters()]
    actual, expected = scorer(q, k), by_hand(name, scorer, q, k)
    assert actual.shape == (BATCH, HEADS, 4, 5)
    assert all((gradient != 0).all() for gradient in gradients(expected, inputs))  # each number counts
    assert_same(actual, expected, inputs, **TIGHT)
    assert scorer.is_dot == (name in DOT_TYPES)
    assert scorer.scale(4) == (0.5 if name in ("scaled_dot", "length_dot", "bilinear") else 1)


TEMPERATURES = {  # of the query at position i, from 0, in causal self-attention
    "floor": lambda i: 1 + 0.3 * math.log(1 + math.floor((i + 1) / 4)),  # Llama 4
    "late_floor": lambda i: 1 + 0.3 * math.log(1 + math.floor(i / 4)),  # Ministral 3
    "max": lambda i: 1 + 0.3 * math.log(max((i + 1) / 4, 1)),  # Inkling 2
}


@pytest.mark.parametrize("form", TEMPERATURES)
def test_the_temperature_of_a_causal_query_is_that_of_its_position_in_its_own_text(form):
    """Padding, earlier texts of the same row and later positions do not count, and a cache changes nothing."""
    scorer, (q, k, _) = build_scorer("length_dot", form=form, slope=0.3, length=4).double(), make_qkv(11, 11)
    texts = torch.tensor([[0] * 11, [0] * 4 + [1] * 7])
    places = [list(range(11)), [*range(4), *range(7)]]
    mask = Mask(causal=True, segments=texts)
    expected = torch.tensor([[TEMPERATURES[form](i) for i in row] for row in places], dtype=torch.float64)
    for given in (mask, mask.dense(11, 11)):
        projected, same = scorer.project(q, k, given)
        assert same is k
        assert_close(projected, q * expected[:, None, :, None], **TIGHT)
    step, _ = scorer.project(q[:, :, 5:6], k[:, :, :6], Mask(causal=True))
    assert_close(step, q[:, :, 5:6] * expected[0, 5], **TIGHT)
    real = torch.arange(11) < torch.tensor([[9], [5]])
    assert_close(scorer.project(q, k, Mask(keys=real))[0][1], q[1] * TEMPERATURES[form](4), **TIGHT)


def test_late_floor_is_the_temperature_of_ministral_in_transformers():
    theirs = pytest.importorskip("transformers.models.ministral3.modeling_ministral3").get_llama_4_attn_scale
    positions = torch.arange(40, dtype=torch.float64)
    found = build_scorer("length_dot", form="late_floor", slope=0.3, length=7).temperature(positions + 1)
    assert_close(found, theirs(positions[None], 0.3, 7).flatten(), **TIGHT)


ALPHAS = {
    "fixed": {"alpha": 0.3},
    "tau": {"tau": 64},
    "head": {"learn": "head"},
    "query": {"learn": "query", "alpha": 0.7, "hidden": 3},
    "unit_keys": {"alpha": 2.0, "unit_keys": True},
    "all": {"tau": 4.0, "learn": "head", "unit_keys": True},
}


@pytest.mark.parametrize("options", ALPHAS.values(), ids=ALPHAS)
def test_scores_with_alpha_and_unit_keys_are_those_of_the_formula(options):
    scorer, (q, k, _) = build_scorer("dot", heads=HEADS, width=WIDTH, **options).double(), make_qkv(4, 5)
    start = options.get("alpha") or (options["tau"] ** -0.5 if "tau" in options else WIDTH**-0.5)
    unit = torch.nn.functional.normalize(k, dim=-1) if "unit_keys" in options else k
    assert_close(scorer(q, k), start * q @ unit.mT, rtol=1e-6, atol=1e-6)  # where training starts, in float32
    for seed, parameter in enumerate(scorer.parameters()):
        parameter.data = randn(*parameter.shape, seed=seed)
    q, k = leaves(q, k)
    inputs = [q, k, *scorer.parameters()]
    assert len(inputs) == {None: 2, "head": 3, "query": 4}[options.get("learn")]
    assert_same(scorer(q, k), by_hand("dot", scorer, q, k), inputs, **TIGHT)


def test_a_learned_alpha_is_recorded_per_head_and_learns_fast():
    layer = MultiHeadAttention(8, 2, build_normalizer("dnas"), build_scorer("dot", learn="head", heads=2, width=4))
    assert_close(layer.scorer.learned_scalars(), {"alpha": torch.tensor([0.5, 0.5])})
    groups = {group["name"]: group["params"] for group in ParamGroups(lr=0.1, hybrid_lr_factor=5).of(layer)}
    assert [id(it) for it in groups["hybrid"]] == [id(layer.scorer.log_alpha)]
    x = torch.randn(3, 6, 8)
    layer(x, x).square().sum().backward()
    assert layer.scorer.log_alpha.grad.all()


@pytest.mark.parametrize("name", ["softmax", "fenchel", "continuous"])
def test_a_fixed_alpha_is_that_of_the_inference_problem(name):
    """The normalizers of the paper get it as the scale of the scores, beside the evidence and the templates."""
    layer = MultiHeadAttention(8, 2, build_normalizer(name), build_scorer("dot", tau=16.0)).double().eval()
    x = randn(2, 5, 8)
    seen = observed(layer, x, x)
    expected = build_normalizer(name)(0.25 * seen.q @ seen.k.mT, keys=seen.k, scale=0.25)
    assert_close(seen.weights, expected, **TIGHT)


def test_the_deviation_stays_bounded_in_a_layer_whose_keys_grow():
    found = {}
    for unit_keys in (True, False):
        scorer = build_scorer("dot", alpha=0.5, unit_keys=unit_keys)
        layer = MultiHeadAttention(WIDTH, 1, build_normalizer("softmax"), scorer).double()
        with torch.no_grad():
            layer.key_value.weight.mul_(30)
        states = randn(2, 6, WIDTH)
        with record(layer) as records:
            layer(states, states)
        found[unit_keys] = records[""].of_heads()
    assert found[True]["deviation_keys"].max() <= 0.5 < found[False]["deviation_keys"].max()
    assert "deviation" in found[False] and "deviation" not in found[True]


SITE = {"encoder": False}
CONTAIN_ALPHA = {  # normalizer: options
    "continuous": {},
    "em_routing": {},
    "ot": {"ot": {"order": 2}},
    "mix": {"mix": {"members": ["softmax", {"name": "ot", "order": "exact"}]}},
}


def test_a_learned_alpha_beside_a_normalizer_with_a_fixed_one_is_refused():
    tables = {"_default_": "fenchel", "scorer": {"encoder": "dot"}, "options": {"dot": {"learn": "head"}}}
    [problem] = check_attention(tables, {"encoder": False})
    assert problem.startswith("attention.options.dot.learn: has to be null, because attention.encoder=fenchel")
    for name, options in CONTAIN_ALPHA.items():
        [problem] = check_attention(
            tables | {"_default_": name, "options": {"dot": {"learn": "query"}, **options}}, SITE
        )
        assert f"because attention.encoder={name} contains alpha" in problem
    first_order = {"fenchel": {"order": 1}, "em_routing": {"n_iters": 1}, "ot": {"order": 1}, "softmax": {}}
    for name, options in first_order.items():
        found = tables | {"_default_": name, "options": {"dot": {"learn": "head"}, name: options}}
        assert check_attention(found, SITE) == []


def test_likelihoods_and_deviations_are_left_out_where_alpha_is_learned():
    """They need alpha by itself, as the scale of the templates."""
    x, found = randn(2, 6, HEADS * WIDTH), {}
    for learn in (None, "head", "query"):
        scorer = build_scorer("dot", learn=learn, heads=HEADS, width=WIDTH)
        layer = MultiHeadAttention(HEADS * WIDTH, HEADS, build_normalizer("softmax"), scorer).double()
        with record(layer) as records:
            layer(x, x)
        found[learn] = records[""].of_heads().keys()
    assert found[None] - found["head"] == {"query_likelihood", "key_likelihood", "deviation", "deviation_keys"}
    assert found["head"] == found["query"] and "objective" in found["head"]


def test_bilinear_starts_equal_to_scaled_dot_in_every_bit():
    (q, k, _), bilinear = make_qkv(4, 5, width=16, dtype=torch.float32), build_scorer("bilinear", heads=HEADS, width=16)
    assert torch.equal(bilinear(q, k), build_scorer("scaled_dot")(q, k))
    assert all(torch.equal(mine, given) for mine, given in zip(bilinear.project(q, k), (q, k), strict=True))


def test_normalized_queries_and_keys_start_at_the_scale_of_released_models():
    """They divide queries and keys by their root mean square, and the product by sqrt(D)."""
    q, k, _ = make_qkv(4, 5, width=16)
    by_rms = torch.einsum("bhnd,bhmd->bhnm", *(x / x.square().mean(-1, keepdim=True).sqrt() for x in (q, k))) / 4
    scorer = build_scorer("qk_norm", heads=HEADS, width=16)
    assert_close(scorer.double()(q, k), by_rms, rtol=1e-6, atol=1e-6)  # g starts in float32
    assert_close(scorer(100 * q, 0.01 * k), scorer(q, k), **TIGHT)
    assert_close(
        build_scorer("qk_norm", heads=HEADS, width=16, start=7.0).learned_scalars()["alpha"], torch.full((2,), 7.0)
    )


# ----------------------------------------------------------------------------------------------------------- precision


@pytest.mark.parametrize("name", SCORERS)
def test_scores_are_float32_in_16_bits_and_under_autocast(name):
    for dtype in (torch.bfloat16, torch.float16):
        scorer, (q, k, _) = make(name).to(dtype), make_qkv(4, 5, dtype=dtype)
        scores = scorer(q, k)
        assert scores.dtype == torch.float32
        assert_close(scores.double(), scorer.double()(q.double(), k.double()), **COARSE)
        if name not in (*TRAINED, "length_dot"):  # nothing is rounded on the way
            assert_close(scores.double(), by_hand(name, scorer, q.double(), k.double()), rtol=1e-5, atol=1e-5)
    scorer, (q, k, _) = make(name).float(), make_qkv(4, 5, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = scorer(q, k)
    assert scores.dtype == torch.float32
    assert_close(scores, scorer(q, k), **COARSE if list(scorer.parameters()) else {"rtol": 0, "atol": 0})


@pytest.mark.parametrize("shift", [1e2, 1e4])
def test_gaussian_does_not_cancel_far_from_the_origin(shift):
    q, k, _ = make_qkv(4, 5, width=8, dtype=torch.float32)
    q, k = q + shift, k + shift  # |q|^2 is 8e8 where |q - k|^2 is about 16
    expected = -((q.double()[..., :, None, :] - k.double()[..., None, :, :]) ** 2).sum(-1) / 2
    assert_close(make("gaussian")(q, k).double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", OTHERS)
def test_the_scores_of_a_row_and_key_depend_on_no_other_row_or_later_key_bit_for_bit(name):
    scorer, (q, k, _) = make(name), make_qkv(4, 5)
    before = scorer(q, k)
    changed_q, changed_k = q.clone(), k.clone()
    changed_q[:, :, 2:] += 7.0
    changed_k[:, :, 3:] -= 5.0
    after = scorer(changed_q, changed_k)
    assert torch.equal(after[:, :, :2, :3], before[:, :, :2, :3])
    assert not torch.isclose(after[:, :, 2:, 3:], before[:, :, 2:, 3:]).all()


# -------------------------------------------------------------------------------------------------- memory of additive


@pytest.mark.parametrize("limit", [1, 200, 500, 10**6])
def test_additive_a_few_queries_at_a_time_gives_the_same_scores_and_gradients(monkeypatch, limit):
    scorer, (q, k, _) = make("additive"), make_qkv(7, 5)
    q, k = leaves(q, k)
    whole = scorer(q, k)
    monkeypatch.setattr(scorers, "LARGEST", limit)
    assert_same(scorer(q, k), whole, [q, k, *scorer.parameters()], **TIGHT)
    with torch.no_grad():
        assert_close(scorer(q, k), whole, **TIGHT)


@pytest.mark.parametrize("name", OTHERS)
def test_no_tensor_of_queries_times_keys_times_width_is_made(monkeypatch, name):
    """Forward and backward, and none is kept between them: additive's stays below its limit."""
    n, m, width = 40, 30, 16
    limit = BATCH * HEADS * m * width * 4  # four queries at a time
    monkeypatch.setattr(scorers, "LARGEST", limit)
    scorer, (q, k, _), kept = make(name, width=width), make_qkv(n, m, width=width), []
    q.requires_grad_(), k.requires_grad_()
    with (
        LargestTensor() as largest,
        torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x),
    ):
        scorer(q, k).square().sum().backward()
    assert BATCH * HEADS * n * m <= largest.elements <= limit < BATCH * HEADS * n * m * width / 2
    assert kept and max(tensor.numel() for tensor in kept) <= BATCH * HEADS * n * m


# ----------------------------------------------------------------------------------------------------------- in a model


def model_settings(scorer, options=None, **settings):
    """Of `builders.build_model`: this scorer at every site, or those of {site: name}."""
    scorers = scorer if isinstance(scorer, dict) else dict.fromkeys(builders.SITES, scorer)
    return {"scorers": scorers, "options": {**FEW_KEYS, **(options or {})}, **settings}


ACTING = {"additive": "encoder", "gaussian": "decoder", "bilinear": "cross", "dot": "encoder", "qk_norm": "decoder"}


@pytest.mark.parametrize("scorer, site", ACTING.items())
def test_a_scorer_acts_at_its_site_only(scorer, site):
    model, plain = (rough_model("softmax", **model_settings(scorers), noise=0.6) for scorers in ({site: scorer}, {}))
    plain.load_state_dict({name: model.state_dict()[name] for name in plain.state_dict()})
    layers, plain_layers = attention_layers(model), attention_layers(plain)
    kinds = {name: type(layer.scorer) is not type(plain_layers[name].scorer) for name, layer in layers.items()}
    of_site = {
        "encoder": ("encoder.",),
        "decoder": ("layers.0.att", "layers.1.att"),
        "cross": ("layers.0.c", "layers.1.c"),
    }
    assert kinds == {name: name.startswith(of_site[site]) for name in layers} and any(kinds.values())
    source, target = builders.sources([6, 4]), builders.targets([5, 3])
    assert not torch.allclose(model(source, target), plain(source, target), atol=1e-4)


@pytest.mark.parametrize("placement, scorer", PLACED)
def test_cached_generation_equals_uncached(placement, scorer):
    settings = model_settings(scorer, tie_embeddings=False, seed=1)
    model = rough_model(placement, **settings, noise=0.6, sharpness=3.0)
    texts = builders.generated_with_and_without_cache(model, [6, 4, 2, 8, 1], max_length=7)
    assert len({tuple(headline) for headline in texts}) > 1  # they depend on the article


@pytest.mark.parametrize("placement, scorer", PLACED)
def test_gradients_are_finite_and_reach_every_parameter_of_priors_and_scorers(placement, scorer):
    priors = {site: ["content", "t5"] for site in builders.SITES}
    model = build_model(placement, **model_settings(scorer, tie_embeddings=False, priors=priors)).double()
    model.logits(model(builders.sources([6, 4]), builders.targets([5, 3]))).logsumexp(-1).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all(), name
        if "scorer" in name or "prior" in name:  # dnas takes back the bias of queries, softmax that of keys
            assert parameter.grad.abs().max() > 1e-9, name


@pytest.mark.parametrize("scorer", SCORERS)
def test_parameters_depend_on_the_seed_alone_and_shared_ones_are_bit_equal(scorer):
    tables = []
    for placement, name in (("softmax", "scaled_dot"), ("hnas", scorer), ("hnas", scorer)):
        torch.manual_seed(len(tables))
        tables.append(dict(build_model(placement, **model_settings(name), seed=3).named_parameters()))
    base, first, second = tables
    assert base.keys() <= first.keys() == second.keys()
    assert all(torch.equal(parameter, second[name]) for name, parameter in first.items())
    assert all(torch.equal(parameter, first[name]) for name, parameter in base.items())
    assert any("scorer" in name for name in first) == (scorer in TRAINED)


USERS_SCORERS = """
import torch
from attnorm.attention.scorers import Scorer


class Cosine(Scorer):
    def __init__(self, heads, sharpness=1.0):
        super().__init__()
        self.sharpness = torch.nn.Parameter(torch.full((heads, 1, 1), sharpness))

    def project(self, q, k):
        return self.sharpness * torch.nn.functional.normalize(q, dim=-1), torch.nn.functional.normalize(k, dim=-1)


class Manhattan(Scorer):
    is_dot = False

    def forward(self, q, k):
        return -torch.cdist(q, k, p=1.0)
"""


@pytest.mark.parametrize("placement, kind", [("softmax", "Cosine"), ("hnas_prefix", "Manhattan")])
def test_a_users_scorer_works_by_its_dotted_path(tmp_path, monkeypatch, placement, kind):
    path = f"{builders.users_module(tmp_path, monkeypatch, USERS_SCORERS)}:{kind}"
    options = {"Cosine": {"sharpness": 4.0}} if kind == "Cosine" else {}
    model = rough_model(placement, **model_settings(path, options, tie_embeddings=False), noise=0.6)
    layers = list(attention_layers(model).values())
    assert all(isinstance(layer, MultiHeadAttention) and isinstance(layer.scorer, Scorer) for layer in layers)
    q, k, _ = make_qkv(4, 5)
    if kind == "Cosine":
        scorer = build_scorer(path, sharpness=4.0, heads=HEADS)
        expected = 4.0 * torch.cosine_similarity(q[..., None, :], k[..., None, :, :], dim=-1)
    else:
        scorer, expected = build_scorer(path), -(q[..., None, :] - k[..., None, :, :]).abs().sum(-1)
    assert_close(scorer(q, k), expected)
    builders.generated_with_and_without_cache(model, [6, 4, 2], max_length=5)
