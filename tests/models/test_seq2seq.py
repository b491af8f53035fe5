"""The encoder-decoder: padding and the future change nothing, a cache neither, and a seed decides the parameters."""

import math

import builders
import pytest
import torch
import torch.nn.functional as F
from builders import PAD, PLACEMENTS, build_model, rough_lstm, rough_model, sources, targets
from torch import nn
from torch.testing import assert_close

from attnorm.errors import DataError
from attnorm.models.decoder import DecoderCache
from attnorm.models.embeddings import sinusoids

pytestmark = pytest.mark.numerical

TIGHT = {"rtol": 1e-10, "atol": 1e-10}
AS_BERT = {"activation": "relu", "type_vocab_size": 2, "norm_eps": 1e-12}
FORMS = {
    "learned_pre_tied": {},
    "sinusoidal": {"positions": "sinusoidal"},
    "post": {"norm_first": False, "encoder_layers": 2},
    "untied": {"tie_embeddings": False},
    "as_bert": {"norm_first": False, "embedding_norm": True, **AS_BERT},
}
PRIORS = {"encoder": ["t5"], "decoder": ["t5", "alibi"], "cross": ["alibi"]}
PREFERENCE = {"encoder": ["content", "t5"], "decoder": ["content", "t5"], "cross": ["content", "learned"]}
EVERY_MODEL = [
    *[pytest.param(placement, {}, id=placement) for placement in PLACEMENTS],
    *[pytest.param("hnas_prefix", settings, id=f"hnas_prefix-{form}") for form, settings in FORMS.items() if settings],
    *[pytest.param(placement, {"priors": PRIORS}, id=f"{placement}-priors") for placement in ("dnas", "dnas_prefix")],
    *[
        pytest.param(name, {"priors": PREFERENCE}, id=f"{name}-preference")
        for name in ("softmax", "hnas", "dnas_prefix")
    ],
    pytest.param(
        "softmax", {"priors": PREFERENCE, "norm_first": False, "positions": "sinusoidal"}, id="preference-post"
    ),
]
SCORED = [("dnas_prefix", "length_dot"), ("hnas_prefix", "dot"), ("dnas", "bilinear"), ("hnas_prefix", "additive")]
SCORED += [("dnas_prefix", "gaussian"), ("dnas_prefix", "qk_norm"), ("dnas", "softcap")]
FEW_KEYS = {"length_dot": {"length": 2, "slope": 0.7}}  # so that few keys have a temperature
CONTENT = {"decoder": ["content"], "cross": ["content"]}
EVERY_MODEL += [
    pytest.param(name, {"scorers": dict.fromkeys(builders.SITES, it), "priors": CONTENT, "options": FEW_KEYS}, id=it)
    for name, it in SCORED
]
every_model = pytest.mark.parametrize("placement, settings", EVERY_MODEL)
LSTM_PRIORS = ["positional", "content", "learned", "t5"]
LSTMS = ["softmax", "dnas_prefix", "hnas_prefix", "sparsemax", "entmax", "fusedmax", "ot", "fenchel"]
every_model_and_lstm = pytest.mark.parametrize(
    "placement, settings", [*EVERY_MODEL, *(pytest.param(name, None, id=f"lstm-{name}") for name in LSTMS)]
)


def made(placement, settings):
    """One of `every_model_and_lstm`."""
    return rough_lstm(placement, LSTM_PRIORS) if settings is None else rough_model(placement, **settings)


def logits(model, source, target):
    return model.logits(model(source, target))


# ----------------------------------------------------------------------------------------------- padding and the future


@every_model_and_lstm
def test_padding_of_source_and_target_never_changes_a_real_output(placement, settings):
    model = made(placement, settings)
    source_lengths, target_lengths = [8, 1, 4], [3, 9, 1]
    source, target = sources(source_lengths), targets(target_lengths)
    batch = logits(model, source, target)
    for row, (n_source, n_target) in enumerate(zip(source_lengths, target_lengths, strict=True)):
        n_source, n_target = n_source + 1, n_target + 1  # with the end and the begin token
        alone = logits(model, source[row : row + 1, :n_source], target[row : row + 1, :n_target])
        assert_close(batch[row : row + 1, :n_target], alone, **TIGHT)


@every_model
def test_what_an_article_says_changes_the_output_at_every_position(placement, settings):
    model, target = rough_model(placement, **settings), targets([5])
    first, second = (model(sources([6], seed), target) for seed in (0, 1))
    assert ((first - second).abs().amax(-1) > 1e-6).all()


@pytest.mark.long
@every_model_and_lstm
def test_changing_a_target_token_changes_no_state_before_it(placement, settings):
    """Through the decoder's self-attention and through its cross-attention, whose column step sees all queries."""
    model, source, target = made(placement, settings), sources([6, 3]), targets([7, 4])
    before = model(source, target)
    for t in range(1, target.shape[1]):
        changed = target.clone()
        changed[:, t] = torch.where(target[:, t] == PAD, PAD, 3 + (target[:, t] - 2) % 8)
        after = model(source, changed)
        assert torch.equal(after[:, :t], before[:, :t])
        assert ((after[0, t:] - before[0, t:]).abs().amax(-1) > 1e-9).all()  # it does change itself and the later ones


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_no_gradient_flows_from_a_state_to_a_later_target_token(placement):
    model, source, target = rough_model(placement), sources([6]), targets([6])
    embedded = []
    model.embeddings.register_forward_hook(lambda module, inputs, x: embedded.append(x.retain_grad() or x))
    states = model(source, target)
    states[:, 3].square().sum().backward()
    gradient = embedded[0].grad[0].abs().amax(-1)
    assert not gradient[4:].any() and (gradient[:4] > 0).all()


# -------------------------------------------------------------------------------------------------------------- cache


@pytest.mark.long
@every_model_and_lstm
def test_one_token_at_a_time_gives_the_states_of_the_full_pass(placement, settings):
    """Also after the rows of the cache were put into another order and one was dropped, as beam search does."""
    model, source, target = made(placement, settings), sources([6, 3, 1]), targets([7, 7, 7])
    memory, real, cache = model.encode(source), source != PAD, model.new_cache()
    for t in range(target.shape[1]):
        if t in (3, 5):
            rows = torch.tensor([2, 0, 0]) if t == 3 else torch.tensor([1, 0])
            memory, real, target = memory[rows], real[rows], target[rows]
            cache.select(rows)
        step = model.decode(target[:, t : t + 1], memory, real, cache)
        assert cache.length == t + 1
        assert_close(step, model.decode(target[:, : t + 1], memory, real)[:, t:], **TIGHT)


def test_a_cache_remembers_embeddings_only_where_a_prior_may_look_at_them():
    source, target = sources([6, 3]), targets([4, 4])
    for priors in ({}, {"encoder": ["content"], "cross": ["content"]}, {"decoder": ["content"]}):
        model = rough_model(priors=priors)
        memory, cache = model.encode(source), DecoderCache(len(model.layers))
        for t in range(4):
            model.decode(target[:, t : t + 1], memory, source != PAD, cache)
        if "decoder" in priors:
            assert_close(cache.states, model.embeddings(target[:, :4]), **TIGHT)
        else:
            assert cache.states is None


def test_more_keys_than_a_learned_prior_has_positions_are_refused():
    model = build_model(priors={"cross": ["learned"]})
    memory, real = torch.randn(1, 11, 8), torch.ones(1, 11, dtype=torch.bool)
    with pytest.raises(ValueError, match="learned prior has 10 positions, got 11 keys"):
        model.decode(targets([3]), memory, real)


# --------------------------------------------------------------------------------------------------- embeddings, forms


@pytest.mark.parametrize("width", [6, 7])
def test_sinusoids_are_those_of_the_paper(width):
    table = sinusoids(9, width)
    assert table.shape == (9, width)
    for position in range(9):
        for i in range(width):
            wave = math.cos if i % 2 else math.sin
            expected = wave(position / 10000 ** (2 * (i // 2) / width))
            assert table[position, i].item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
def test_more_tokens_than_positions_are_refused(positions):
    model = build_model(positions=positions)
    model(sources([9]), targets([11]))
    with pytest.raises(DataError, match=r"model\.max_source=10: allowed: at least 11, the tokens of a text"):
        model(sources([10]), targets([3]))
    with pytest.raises(DataError, match=r"model\.max_target=12: allowed: at least 13, the tokens of a text"):
        model(sources([3]), targets([12]))


@pytest.mark.parametrize("norm_first", [True, False])
def test_the_residual_normalizes_before_or_after_its_sublayer(norm_first):
    """Pre-norm: without sublayers the states are the embeddings under the final norm. Post-norm: each layer norms."""
    model = rough_model(norm_first=norm_first, decoder_layers=1)
    for name, module in model.named_modules():
        if name.endswith(("attention.output", "cross.output", "feed_forward.2")):
            nn.init.zeros_(module.weight)
            nn.init.zeros_(module.bias)
    target, layer = targets([4]), model.layers[0]
    expected = model.embeddings(target)
    post = [layer.attention_residual.norm, layer.cross_residual.norm, layer.feed_forward_residual.norm]
    for module in [model.norm] if norm_first else post:
        expected = module(expected)
    assert_close(model(sources([5]), target), expected, **TIGHT)


@pytest.mark.parametrize("tied", [True, False])
def test_the_output_matrix_is_the_token_embedding_only_if_tied(tied):
    model = build_model(tie_embeddings=tied)
    assert (model.output.weight is model.tokens.weight) == tied
    assert model.encoder.embeddings.tokens is model.embeddings.tokens is model.tokens  # one vocabulary for both sides
    names = [name for name, _ in model.named_parameters()]
    assert ("output.weight" in names) == (not tied) and "output.bias" in names
    states = torch.randn(2, 8)
    assert_close(model.logits(states), states @ model.output.weight.T + model.output.bias)


# ---------------------------------------------------------------------------------------------------------- parameters

VARIANTS = {
    **{placement: (placement, {}) for placement in PLACEMENTS},
    "priors": ("softmax", {"priors": PRIORS}),
    "preference": ("hnas", {"priors": PREFERENCE}),
    "n_heads": ("hnas_prefix", {"options": {name: {"per": "head"} for name in ("hnas", "hnas_prefix")}}),
    "untied": ("softmax", {"tie_embeddings": False}),
    "post": ("dnas", {"norm_first": False}),
}


def parameters(variant, seed):
    placement, settings = VARIANTS[variant]
    torch.manual_seed(seed + len(variant))  # the global stream must not matter
    return dict(build_model(placement, seed=seed, **settings).named_parameters())


@pytest.mark.parametrize("variant", VARIANTS)
def test_parameters_that_variants_share_start_bit_equal_for_one_seed(variant):
    base, other = parameters("softmax", 3), parameters(variant, 3)
    shared = base.keys() & other.keys()
    assert len(shared) >= len(base) - 4  # all but the final norms
    assert all(torch.equal(base[name], other[name]) for name in shared)


@pytest.mark.parametrize("variant", ["softmax", "priors", "preference", "untied"])
def test_every_matrix_starts_different_for_another_seed_and_in_every_module(variant):
    tables = [parameters(variant, seed) for seed in (3, 4)]
    assert not any(p.any() for table in tables for name, p in table.items() if name.endswith("log_u"))  # no preference
    matrices = [p for table in tables for name, p in table.items() if p.ndim > 1 and not name.endswith("log_u")]
    for index, first in enumerate(matrices):
        assert not any(torch.equal(first, second) for second in matrices[index + 1 :])


def test_initial_parameters_have_the_documented_spread():
    model = build_model(d_model=64, ffn_dim=128, vocab_size=500, tie_embeddings=False)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            bound = math.sqrt(6 / (module.in_features + module.out_features))
            assert 0.97 * bound < module.weight.abs().max() <= bound
            assert not module.bias.any()
        elif isinstance(module, nn.LayerNorm):
            assert (module.weight == 1).all() and not module.bias.any()
    assert model.tokens.weight.std().item() == pytest.approx(1 / 8, rel=0.02)


# --------------------------------------------------------------------------------------------------------- determinism


def test_evaluation_is_deterministic_and_dropout_acts_in_training_only():
    model = build_model("hnas_prefix", dropout=0.3).eval()
    source, target = sources([6, 3]), targets([5, 2])
    assert torch.equal(model(source, target), model(source, target))
    plain = build_model("hnas_prefix").eval()
    assert torch.equal(model(source, target), plain(source, target))
    model.train()
    first, second = model(source, target), model(source, target)
    assert not torch.allclose(first, second)
    torch.manual_seed(1)
    again = model(source, target)
    torch.manual_seed(1)
    assert torch.equal(again, model(source, target))


@pytest.mark.parametrize("norm_first", [True, False])
def test_dropout_acts_on_what_the_sublayer_adds(norm_first):
    residual = build_model(norm_first=norm_first, dropout=0.4).train().layers[0].cross_residual
    x, ones = torch.randn(2, 3, 8), torch.ones(2, 3, 8)
    torch.manual_seed(1)
    actual = residual(x, lambda y: y + 1)
    torch.manual_seed(1)
    keep = F.dropout(ones, 0.4)
    expected = x + keep * (residual.norm(x) + 1) if norm_first else residual.norm(x + keep * (x + 1))
    assert_close(actual, expected)


def test_dropout_acts_on_the_embeddings():
    embeddings, ids = build_model(dropout=0.4).train().embeddings, targets([11])
    dropped = embeddings(ids) == 0
    assert 0.2 < dropped.float().mean() < 0.6 and not (embeddings.eval()(ids) == 0).any()


def test_the_sites_say_which_are_autoregressive():
    assert build_model().sites == dict(zip(builders.SITES, (False, True, True), strict=True))
