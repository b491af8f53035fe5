"""The decoder-only model: packed, padded and cached are as one text at a time; positions and layers as written here."""

import math
from itertools import cycle

import pytest
import torch
from gpt_builders import LONGEST, VOCABULARY, build_gpt, rough_gpt, texts
from marks import few
from tolerance import OPERATIONS, tolerance
from torch.testing import assert_close

from attnorm.attention import masking
from attnorm.attention.multihead import attention_layers
from attnorm.attention.normalizers import sink
from attnorm.attention.normalizers.base import AT_MOST_ONE, Normalizer, add_log_prior
from attnorm.attention.registry import NORMALIZERS, PRIORS, build
from attnorm.attention.rotary import Rotary, rotate
from attnorm.choices import choices
from attnorm.errors import DataError
from attnorm.models.config import GPTConfig
from attnorm.models.gpt import GPT
from attnorm.parts import class_of

pytestmark = pytest.mark.numerical

TIGHT = {"rtol": 1e-10, "atol": 1e-10}
POSITIONS = ("rotary", "alibi", "learned", "none")
SIZES = {"heads": 2, "width": 4, "state_width": 8}
CAUSAL = [name for name in NORMALIZERS if build("normalizer", name, {}, SIZES).couples_queries != "all"]
SCALED = ("sink", "off_by_one", "sigmoid", "relu", "softpick", "stick_breaking")  # the scale of the prior matters
COMBINED = [*zip(CAUSAL, cycle(POSITIONS), strict=False), *(("softmax", it) for it in POSITIONS)]
COMBINED += [("dnas_prefix", it) for it in POSITIONS]


def packed():
    """ids and segments of several texts in each row with padding before, between and behind, and the texts' slices."""
    lengths = [[(0, 3), (3, 9), (9, 10)], [(2, 6), (6, 8), (10, 15)], [(1, 2), (2, 11)]]
    ids, segments = texts(len(lengths), 16), torch.zeros(len(lengths), 16, dtype=torch.int64)
    actual = []
    for row, places in enumerate(lengths):
        for number, (start, end) in enumerate(places, 1):
            segments[row, start:end] = number
            actual.append((row, slice(start, end)))
    return ids, segments, actual


# ----------------------------------------------------------------------------------------------------- plain formulas


def by_loops(model, ids):
    """The scores of one text, (T, V), for softmax: one query and one head at a time."""
    shape, (length,) = model.shape, ids.shape
    heads, width = shape.n_heads, shape.d_model // shape.n_heads

    def linear(layer, x):
        return layer.weight @ x + (0 if layer.bias is None else layer.bias)

    def normed(norm, x):
        return (x - x.mean()) / (x.var(unbiased=False) + norm.eps).sqrt() * norm.weight + norm.bias

    def turned(x, position):
        pairs = torch.complex(x[: width // 2], x[width // 2 :])
        angles = [position * shape.rotary_base ** (-2 * c / width) for c in range(width // 2)]
        pairs = pairs * torch.polar(torch.ones(width // 2, dtype=x.dtype), torch.tensor(angles, dtype=x.dtype))
        return torch.cat([pairs.real, pairs.imag])

    def attended(layer, states):
        q, k, v = ([] for _ in range(3))
        for position, x in enumerate(states):
            of_key, of_value = linear(layer.key_value, x).chunk(2)
            for each, projected in ((q, linear(layer.query, x)), (k, of_key), (v, of_value)):
                by_head = list(projected.chunk(heads))
                rotates = shape.positions == "rotary" and each is not v
                each.append([turned(entry, position) for entry in by_head] if rotates else by_head)
        found = []
        for i in range(length):
            context = []
            for h in range(heads):
                slope = 2 ** (-8 * (h + 1) / heads) if shape.positions == "alibi" else 0.0
                scores = [q[i][h] @ k[j][h] / math.sqrt(width) - slope * (i - j) for j in range(i + 1)]
                weights = torch.stack(scores).exp()
                context.append(sum(w * v[j][h] for j, w in enumerate(weights / weights.sum())))
            found.append(linear(layer.output, torch.cat(context)))
        return found

    def fed(layer, x):
        inner, outer = layer[0], layer[2]
        h = linear(inner, x)
        if shape.activation == "swiglu":
            a, b = h.chunk(2)
            h = a * torch.sigmoid(a) * b
        elif shape.activation == "relu":
            h = h.clamp(min=0)
        elif shape.activation == "gelu_new":
            h = h / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)))
        else:
            h = h / 2 * (1 + torch.erf(h / math.sqrt(2)))
        return linear(outer, h)

    states = [model.embeddings.tokens.weight[token] for token in ids]
    if shape.positions == "learned":
        states = [x + model.embeddings.positions.weight[position] for position, x in enumerate(states)]
    for layer in model.layers:
        first, second = layer.attention_residual.norm, layer.feed_forward_residual.norm
        if shape.norm_first:
            changes = attended(layer.attention, [normed(first, x) for x in states])
            states = [x + change for x, change in zip(states, changes, strict=True)]
            states = [x + fed(layer.feed_forward, normed(second, x)) for x in states]
        else:
            changes = attended(layer.attention, states)
            states = [normed(first, x + change) for x, change in zip(states, changes, strict=True)]
            states = [normed(second, x + fed(layer.feed_forward, x)) for x in states]
    if shape.norm_first:
        states = [normed(model.norm, x) for x in states]
    return torch.stack([model.output.weight @ x for x in states])


@pytest.mark.parametrize(
    "settings",
    [
        *({"positions": it} for it in POSITIONS),
        *({"activation": it} for it in ("gelu", "gelu_new", "relu", "swiglu")),
        {"norm_first": False},
        {"tie_embeddings": False, "rotary_base": 100.0},
    ],
    ids=str,
)
def test_the_scores_are_those_of_the_formula(settings):
    model, ids = rough_gpt(**settings), texts(1)
    assert (model.output.weight is model.embeddings.tokens.weight) == model.shape.tie_embeddings
    exact = {"rtol": 2e-5, "atol": 2e-5} if model.rotary else TIGHT  # angles are computed in float32
    assert_close(model(ids)[0], by_loops(model, ids[0]), **exact)


# -------------------------------------------------------------------------------------- packed, padded, cached, causal


@pytest.mark.parametrize(("normalizer", "positions"), few(COMBINED))
def test_packed_and_padded_texts_have_the_scores_of_one_text_at_a_time(normalizer, positions):
    ids, segments, each = packed()
    for dtype in (torch.float32, torch.float64):
        model = rough_gpt(normalizer, positions, dtype=dtype)
        scores = model(ids, segments)
        assert scores.dtype == dtype and scores.isfinite().all()
        for row, text in each:
            alone = model(ids[row : row + 1, text])[0]
            close = tolerance(dtype, depth=2, size=12, scale=alone.abs().max())
            assert_close(scores[row, text], alone, **close)


@pytest.mark.parametrize(("normalizer", "positions"), few(COMBINED))
def test_cached_decoding_has_the_scores_of_the_full_pass(normalizer, positions):
    model, ids = rough_gpt(normalizer, positions), texts()
    scores = model(ids)
    for prompt in (1, 4, LONGEST):
        cache = model.new_cache()
        for length in range(prompt, LONGEST + 1):
            found = model.next_logits(ids[:, :length], cache)
            assert cache.length == length
            assert_close(found, scores[:, length - 1], **TIGHT)
            assert_close(model(ids[:, :length])[:, -1], scores[:, length - 1], **TIGHT)


@pytest.mark.parametrize("prior", [name for name in PRIORS if name != "unmasked"])
@pytest.mark.parametrize("normalizer", ["softmax", "hnas_prefix"])
def test_priors_are_the_same_packed_and_cached(normalizer, prior):
    model = rough_gpt(normalizer, "rotary", [prior, "t5"])
    ids, segments, each = packed()
    scores = model(ids, segments)
    for row, text in each:
        assert_close(scores[row, text], model(ids[row : row + 1, text])[0], **TIGHT)
    cache, ids = model.new_cache(), texts()
    result = [model.next_logits(ids[:, :length], cache) for length in range(3, LONGEST + 1)]
    assert_close(torch.stack(result, 1), model(ids)[:, 2:], **TIGHT)


def test_rows_of_the_cache_can_be_selected():
    model, ids, rows = rough_gpt("hnas_prefix", priors=["content"]), texts(), torch.tensor([2, 0])
    cache = model.new_cache()
    model.next_logits(ids[:, :4], cache)
    cache.select(rows)
    assert_close(model.next_logits(ids[rows, :5], cache), model(ids[rows])[:, 4], **TIGHT)


@pytest.mark.parametrize(("normalizer", "positions"), few(COMBINED))
def test_a_token_changes_no_earlier_score_and_none_of_another_text(normalizer, positions):
    model = rough_gpt(normalizer, positions)
    ids, segments, _ = packed()
    changed = ids.clone()
    changed[1, 12] = (ids[1, 12] + 1) % VOCABULARY
    difference = (model(changed, segments) - model(ids, segments)).abs().amax(-1)
    reached = torch.zeros_like(ids, dtype=torch.bool)
    reached[1, 12:15] = True
    assert difference[~reached].max() < 1e-12
    assert difference[1, 12] > 1e-6 and (normalizer != "softmax" or difference[reached].min() > 1e-6)


def test_the_mask_is_made_once_for_all_layers(monkeypatch):
    made, dense = [], masking.Mask.dense
    monkeypatch.setattr(masking.Mask, "dense", lambda *args: made.append(dense(*args)) or made[-1])
    ids, segments, _ = packed()
    for positions in POSITIONS:
        made.clear()
        build_gpt("softmax", positions, decoder_layers=3)(ids, segments)
        assert made and all(mask is made[0] for mask in made)
    made.clear()
    build_gpt(decoder_layers=3)(texts())  # torch's own causal attention needs none
    assert not made


# ----------------------------------------------------------------------------------------------------------- positions


def test_only_learned_positions_end():
    longer = texts(length=LONGEST + 4)
    for positions in POSITIONS:
        model = rough_gpt(positions=positions)
        assert model.longest == (LONGEST if positions == "learned" else None)
        if positions == "learned":
            for scores in (model, lambda ids, model=model: model.next_logits(ids, model.new_cache())):
                with pytest.raises(DataError, match=rf"model\.max_target={LONGEST}: allowed: at least 13, the tokens"):
                    scores(longer)
            short = torch.tensor([[1] * LONGEST + [2] * 4]).expand(3, -1)
            assert model(longer, short).isfinite().all()  # packed, no text is too long
        else:
            assert_close(model(longer)[0], by_loops(model, longer[0]), rtol=2e-5, atol=2e-5)


class Sink(Normalizer):
    """exp(s_ij) u_j / (1 + sum_j' exp(s_ij') u_j'): a factor of u does not cancel."""

    total, prior_scale_invariant = AT_MOST_ONE, False

    def weights(self, s, given):
        s = torch.cat([add_log_prior(s, given.log_prior), torch.zeros_like(s[..., :1])], -1)
        return s.softmax(-1)[..., :-1]


@pytest.mark.parametrize("normalizer", [*CAUSAL, f"{__name__}.Sink"])
def test_alibi_is_a_bias_of_keys_where_a_number_per_query_cancels(normalizer):
    ids, segments, _ = packed()
    model = rough_gpt(normalizer, "alibi")
    alibi, scores = model.prior.priors["alibi"], model(ids, segments)[segments > 0]
    cancels = all(layer.normalizer.prior_scale_invariant for layer in attention_layers(model).values())
    mask = masking.Mask(causal=True)
    assert alibi.of_keys == cancels == (normalizer not in SCALED and "Sink" not in normalizer)
    assert alibi(5, 5, 0, torch.zeros(1, 5, 8), mask).shape[-2] == (1 if cancels else 5)
    alibi.of_keys = not cancels
    other = model(ids, segments)[segments > 0]
    if cancels:
        assert_close(other, scores, **TIGHT)
    else:
        assert (other - scores).abs().max() > 1e-3


@pytest.mark.parametrize("positions", POSITIONS)
def test_the_order_of_tokens_matters_unless_there_are_no_positions(positions):
    model, ids = rough_gpt(positions=positions, decoder_layers=1), texts(1)
    turned = torch.cat([ids[:, :-1].flip(1), ids[:, -1:]], 1)
    same = torch.allclose(model(ids)[0, -1], model(turned)[0, -1])
    assert same == (positions == "none")


def test_rotated_scores_depend_on_the_distance_alone_and_keep_their_norm():
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 3, 1, 8, generator=generator, dtype=torch.float64)
    rotary = Rotary(8)

    def score(of_query, of_key):
        turned = [rotate(x, rotary(torch.tensor([index]))) for x, index in ((q, of_query), (k, of_key))]
        for x, y in zip(turned, (q, k), strict=True):
            assert_close(x.norm(dim=-1), y.norm(dim=-1), rtol=1e-6, atol=0)
        return (turned[0] * turned[1]).sum(-1)

    assert_close(score(7, 3), score(104, 100), rtol=1e-4, atol=1e-5)
    assert not torch.isclose(score(7, 3), score(3, 7)).any()
    assert_close(score(0, 0), (q * k).sum(-1), rtol=1e-12, atol=1e-12)


def test_rotation_under_sixteen_bits_is_rounded_once():
    x = torch.randn(2, 3, 50, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    rotation = Rotary(8)(torch.arange(1000, 1050))
    outcome = rotate(x, rotation)
    assert outcome.dtype == torch.bfloat16 and torch.equal(outcome, rotate(x.float(), rotation).bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(rotate(x, Rotary(8)(torch.arange(1000, 1050))), outcome)


def test_heads_of_odd_width_cannot_be_rotated():
    with pytest.raises(ValueError, match="rotary positions need heads of even width, got 3"):
        build_gpt(d_model=6)
    build_gpt(d_model=6, positions="alibi")


# ------------------------------------------------------------------------------------- initial parameters and precision


def test_the_initial_parameters_are_those_of_gpt2_and_of_every_normalizer():
    sizes = {"d_model": 256, "n_heads": 4, "ffn_dim": 512, "decoder_layers": 8, "positions": "learned"}
    model = build_gpt(max_target=300, tie_embeddings=False, **sizes)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            into_residual = name.endswith(("attention.output.weight", "feed_forward.2.weight"))
            expected = 0.02 / 4 if into_residual else 0.02  # sqrt(2 * 8 layers) = 4
            few = 6 / math.sqrt(2 * parameter.numel())  # six standard errors
            assert parameter.std().item() == pytest.approx(expected, rel=few), name
            assert abs(parameter.mean().item()) < 6 * expected / math.sqrt(parameter.numel()), name
        elif name.endswith("bias"):
            assert not parameter.any(), name
        else:
            assert (parameter == 1).all(), name
    softmax = dict(build_gpt().named_parameters())
    other = dict(build_gpt("hnas_prefix", priors=["content"]).named_parameters())
    assert all(torch.equal(other[name], x) for name, x in softmax.items())
    assert not torch.equal(build_gpt(seed=1).output.weight, build_gpt().output.weight)


def test_the_configured_models_can_be_built():
    tiny = choices("model")["gpt_tiny"]
    assert class_of("model", tiny) is GPT
    for settings in (tiny, {**tiny, **choices("model")["gpt_small"]}):
        shape = GPTConfig(
            **{key: item for key, item in settings.items() if key not in ("_target_", "init", "defaults")}
        )
        small = GPTConfig(**{**vars(shape), "d_model": 24, "ffn_dim": 32, "decoder_layers": 2})
        tables = {"decoder": "softmax", "prior": {}, "scorer": {}, "options": {}}
        assert GPT(small, tables, VOCABULARY)(texts()).shape == (3, LONGEST, VOCABULARY)


@pytest.mark.parametrize("name", ["softmax", "sink", "hnas_prefix"])
@pytest.mark.parametrize("mixed", [True, False], ids=["mixed", "true"])
def test_scores_and_losses_in_bfloat16_are_close_to_those_in_float32(monkeypatch, name, mixed):
    """A layer has 16 roundings to 8 bits in sequence, which are independent, so the error of the scores relative to the
    largest one has a standard deviation of at most sqrt(16 layers) * 2 ** -8. The gradient of the loss of a token has a
    norm of at most sqrt(2)."""
    layers, lines = 4, texts(8, 65)
    sizes = {"d_model": 32, "ffn_dim": 64, "decoder_layers": layers, "max_target": 64}
    model = rough_gpt(name, noise=0.1, dtype=torch.float32, **sizes)
    expected, dtypes = model(lines[:, :-1]), []

    def loss(scores):
        return torch.nn.functional.cross_entropy(scores.float().flatten(0, 1), lines[:, 1:].flatten())

    formula = sink.Sink.weights

    def weights(self, scores, given):
        dtypes.append(scores.dtype)
        return formula(self, scores, given)

    monkeypatch.setattr(sink.Sink, "weights", weights)
    with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
        found = (model if mixed else model.bfloat16())(lines[:, :-1])
    assert found.dtype == torch.bfloat16
    error = math.sqrt(OPERATIONS * layers) * 2.0**-8 * expected.abs().max()
    assert 2.0**-10 * expected.abs().max() < (found.float() - expected).abs().max() < 4 * error  # rounded, but not more
    assert abs(loss(found) - loss(expected)) < math.sqrt(2) * error
    assert dtypes == [torch.float32] * (layers if name == "sink" else 0)
