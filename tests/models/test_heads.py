"""Heads for fine-tuning: two scores at each token, and a label from the first state."""

import pytest
import torch
from builders import PAD, attention_tables, sources
from torch.testing import assert_close

from attnorm.models.config import TransformerConfig
from attnorm.models.heads import Classifier, SpanModel

pytestmark = pytest.mark.numerical

TIGHT = {"rtol": 1e-10, "atol": 1e-10}
VOCABULARY, LABELS = 11, 3
SIZES = {
    "d_model": 8,
    "n_heads": 2,
    "ffn_dim": 12,
    "encoder_layers": 2,
    "max_source": 12,
    "dropout": 0.0,
    "type_vocab_size": 2,
}


def rough(kind, normalizer="softmax", **settings):
    """A model in float64 and evaluation mode, with noise on every parameter."""
    labels = {"labels": LABELS} if kind is Classifier else {}
    shape = TransformerConfig(**{**SIZES, **settings})
    model = kind(shape, {**attention_tables(), "encoder": normalizer}, VOCABULARY, PAD, **labels).double().eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.rand(parameter.shape, generator=generator, dtype=torch.float64)
    return model


def batch():
    ids = sources([9, 4, 6, 2])
    types = (torch.arange(ids.shape[1]) >= 3).long().expand_as(ids)
    return ids, types


@pytest.mark.parametrize("normalizer", ["softmax", "hnas"])
def test_a_span_has_two_finite_scores_at_each_token(normalizer):
    model, (ids, types) = rough(SpanModel, normalizer), batch()
    scores = model(ids, types)
    assert scores.shape == (*ids.shape, 2) and scores.isfinite().all()
    states = model.encoder(ids, ids != PAD, types=types)
    for end in range(2):
        assert_close(scores[..., end], states @ model.spans.weight[end] + model.spans.bias[end], **TIGHT)


@pytest.mark.parametrize("normalizer", ["softmax", "hnas"])
def test_a_label_comes_from_the_first_state_through_the_pooler(normalizer):
    model, (ids, types) = rough(Classifier, normalizer), batch()
    first = model.encoder(ids, ids != PAD, types=types)[:, 0]
    pooled = torch.tanh(first @ model.pooler.weight.T + model.pooler.bias)
    expected = pooled @ model.classifier.weight.T + model.classifier.bias
    assert expected.shape == (len(ids), LABELS)
    assert_close(model(ids, types), expected, **TIGHT)


@pytest.mark.parametrize("kind", [SpanModel, Classifier])
def test_padding_changes_nothing_and_types_do(kind):
    model, (ids, types) = rough(kind, "hnas"), batch()
    scores = model(ids, types)
    for row, length in enumerate((ids != PAD).sum(1).tolist()):
        one = model(ids[row : row + 1, :length], types[row : row + 1, :length])[0]
        assert_close(scores[row, :length] if kind is SpanModel else scores[row], one, **TIGHT)
    assert torch.equal(model(ids), model(ids, torch.zeros_like(ids)))
    assert not torch.isclose(model(ids), scores)[:3].any()  # the last text is all of type 0


def test_dropout_acts_on_what_the_pooler_gives_and_in_training_only():
    model, (ids, types) = rough(Classifier, dropout=0.5), batch()
    assert torch.equal(model(ids, types), model(ids, types))
    model.dropout.train()  # the encoder's stay off
    torch.manual_seed(3)
    found = model(ids, types)
    pooled = model.pooler(model.encoder(ids, ids != PAD, types=types)[:, 0]).tanh()
    torch.manual_seed(3)
    assert_close(found, model.classifier(model.dropout(pooled)), **TIGHT)
    assert not torch.isclose(found, model.eval()(ids, types)).all()


@pytest.mark.parametrize("kind", [SpanModel, Classifier])
def test_every_parameter_gets_a_gradient(kind):
    model, (ids, types) = rough(kind, "hnas"), batch()
    model(ids, types).square().sum().backward()
    idle = [n for n, p in model.named_parameters() if p.grad is None or not (p.grad.isfinite().all() and p.grad.any())]
    assert idle == []


@pytest.mark.parametrize("kind", [SpanModel, Classifier])
def test_an_encoder_without_token_types_reads_both_parts_alike(kind):
    model, (ids, types) = rough(kind, type_vocab_size=0), batch()
    assert torch.equal(model(ids, types), model(ids))
