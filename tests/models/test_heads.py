"""Heads of an encoder: two scores at each token, a label from the first state, and scores of masked tokens, of which
those at the masked places only are those of all places."""

import pytest
import torch
import torch.nn.functional as F
from builders import PAD, attention_tables, roughen, sources
from torch.testing import assert_close
from visual_builders import normed

from attnorm.models.config import TransformerConfig
from attnorm.models.encoder import Encoder
from attnorm.models.heads import Classifier, MaskedLM, SpanModel

pytestmark = pytest.mark.numerical

TIGHT = {"rtol": 1e-10, "atol": 1e-10}
VOCABULARY, LABELS = 11, 3
SIZES = {"d_model": 8, "n_heads": 2, "ffn_dim": 12, "encoder_layers": 2, "max_source": 12, "dropout": 0.0}
AS_BERT = {"norm_first": False, "embedding_norm": True, "type_vocab_size": 2, "norm_eps": 1e-3}


def masked_lm(normalizer="softmax", seed=0, priors=(), **settings):
    attention = {**attention_tables(priors={"encoder": list(priors)}), "encoder": normalizer}
    return MaskedLM(TransformerConfig(**{**SIZES, **settings}), attention, VOCABULARY, PAD, seed=seed)


def batch():
    """ids (B, N) with padding, segments or types, and places: some of the real ones, none in the last row."""
    ids = sources([9, 4, 6, 2])
    segments = (torch.arange(ids.shape[1]) >= 3).long().expand_as(ids)
    places = (torch.rand(ids.shape, generator=torch.Generator().manual_seed(2)) < 0.6) & (ids != PAD)
    places[-1] = False
    assert 5 < places.sum() < 15
    return ids, segments, places


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("settings", [{}, AS_BERT, {"tie_embeddings": False}], ids=["pre", "as_bert", "untied"])
@pytest.mark.parametrize("normalizer", ["softmax", "hnas"])
def test_scores_at_places_have_the_loss_and_gradients_of_all_scores(normalizer, settings, packed):
    model = roughen(masked_lm(normalizer, **settings))
    ids, segments, places = batch()
    segments = segments if packed else None
    labels = torch.randint(0, VOCABULARY, (int(places.sum()),), generator=torch.Generator().manual_seed(3))
    sparse, full = model(ids, segments, places), model(ids, segments)
    assert sparse.shape == (len(labels), VOCABULARY) and full.shape == (*ids.shape, VOCABULARY)
    expected = torch.stack([full[row, position] for row, position in places.nonzero().tolist()])
    assert_close(sparse, expected, **TIGHT)
    slopes = (torch.autograd.grad(F.cross_entropy(it, labels), [*model.parameters()]) for it in (sparse, expected))
    assert_close(*slopes, **TIGHT)


def test_no_places_give_no_scores_and_no_nan():
    model = roughen(masked_lm())
    ids, segments, places = batch()
    scores = model(ids, segments, torch.zeros_like(places))
    assert scores.shape == (0, VOCABULARY)
    scores.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_the_head_is_linear_activation_norm_and_the_token_embedding(activation):
    model, (ids, segments, _) = roughen(masked_lm(activation=activation, **AS_BERT)), batch()
    states, head = model.encoder(ids, ids != PAD, segments), model.head
    x = getattr(F, activation)(states @ head.transform.weight.T + head.transform.bias)
    x = normed(x, head.norm)
    assert_close(model(ids, segments), x @ model.encoder.embeddings.tokens.weight.T + head.output.bias, **TIGHT)


@pytest.mark.parametrize("tied", [True, False])
def test_the_output_matrix_is_the_token_embedding_only_if_tied(tied):
    model = masked_lm(tie_embeddings=tied)
    assert (model.head.output.weight is model.encoder.embeddings.tokens.weight) == tied
    assert ("head.output.weight" in dict(model.named_parameters())) == (not tied)
    assert model.head.output.bias.shape == (VOCABULARY,)


def test_parameters_that_models_and_attentions_share_start_bit_equal_for_one_seed():
    shape = TransformerConfig(**SIZES, **AS_BERT)
    tables = {**attention_tables(priors={"encoder": ["t5"]}), "encoder": "hnas"}
    span = SpanModel(shape, attention_tables(), VOCABULARY, PAD, seed=5)
    classifier = Classifier(shape, tables, VOCABULARY, PAD, seed=5, labels=3)
    models = [span, classifier, masked_lm("dnas", 5, ["content"], **AS_BERT)]
    base = dict(masked_lm(seed=5, **AS_BERT).named_parameters())
    encoder = {name for name in base if name.startswith("encoder.")}
    assert len(encoder) == 5 + 2 * 14  # embeddings and their norm; 5 matrices with biases and 2 norms a layer
    for model in models:
        torch.manual_seed(17)  # the global stream does not matter
        other = dict(model.named_parameters())
        assert encoder <= other.keys()
        assert all(torch.equal(base[name], other[name]) for name in base.keys() & other.keys())
    another = dict(masked_lm(seed=6, **AS_BERT).named_parameters())
    assert not any(torch.equal(base[name], another[name]) for name in base if base[name].ndim > 1)


def test_the_site_is_the_encoder_and_not_autoregressive():
    assert MaskedLM.sites == SpanModel.sites == Classifier.sites == Encoder.sites == {"encoder": False}


# ------------------------------------------------------------------------------------------------- spans and labels


def rough_head(kind, normalizer="softmax", **settings):
    """A model in float64 and evaluation mode, with noise on every parameter."""
    labels = {"labels": LABELS} if kind is Classifier else {}
    shape = TransformerConfig(**{**SIZES, "type_vocab_size": 2, **settings})
    return roughen(kind(shape, {**attention_tables(), "encoder": normalizer}, VOCABULARY, PAD, **labels))


@pytest.mark.parametrize("normalizer", ["softmax", "hnas"])
def test_a_span_has_two_finite_scores_at_each_token(normalizer):
    model, (ids, types, _) = rough_head(SpanModel, normalizer), batch()
    scores = model(ids, types)
    assert scores.shape == (*ids.shape, 2) and scores.isfinite().all()
    states = model.encoder(ids, ids != PAD, types=types)
    for end in range(2):
        assert_close(scores[..., end], states @ model.spans.weight[end] + model.spans.bias[end], **TIGHT)


@pytest.mark.parametrize("normalizer", ["softmax", "hnas"])
def test_a_label_comes_from_the_first_state_through_the_pooler(normalizer):
    model, (ids, types, _) = rough_head(Classifier, normalizer), batch()
    first = model.encoder(ids, ids != PAD, types=types)[:, 0]
    pooled = torch.tanh(first @ model.pooler.weight.T + model.pooler.bias)
    expected = pooled @ model.classifier.weight.T + model.classifier.bias
    assert expected.shape == (len(ids), LABELS)
    assert_close(model(ids, types), expected, **TIGHT)


@pytest.mark.parametrize("kind", [SpanModel, Classifier])
def test_padding_changes_nothing_and_types_do(kind):
    model, (ids, types, _) = rough_head(kind, "hnas"), batch()
    scores = model(ids, types)
    for row, length in enumerate((ids != PAD).sum(1).tolist()):
        one = model(ids[row : row + 1, :length], types[row : row + 1, :length])[0]
        assert_close(scores[row, :length] if kind is SpanModel else scores[row], one, **TIGHT)
    assert torch.equal(model(ids), model(ids, torch.zeros_like(ids)))
    assert not torch.isclose(model(ids), scores)[:3].any()  # the last text is all of type 0


def test_dropout_acts_on_what_the_pooler_gives_and_in_training_only():
    model, (ids, types, _) = rough_head(Classifier, dropout=0.5), batch()
    assert torch.equal(model(ids, types), model(ids, types))
    model.dropout.train()  # the encoder's stay off
    torch.manual_seed(3)
    actual = model(ids, types)
    pooled = model.pooler(model.encoder(ids, ids != PAD, types=types)[:, 0]).tanh()
    torch.manual_seed(3)
    assert_close(actual, model.classifier(model.dropout(pooled)), **TIGHT)
    assert not torch.isclose(actual, model.eval()(ids, types)).all()


@pytest.mark.parametrize("kind", [SpanModel, Classifier])
def test_an_encoder_without_token_types_reads_both_parts_alike(kind):
    model, (ids, types, _) = rough_head(kind, type_vocab_size=0), batch()
    assert torch.equal(model(ids, types), model(ids))
