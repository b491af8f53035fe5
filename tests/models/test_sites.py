"""What the attention tables say of a site is what every model builds there: normalizer, scorer, bank and options."""

import pytest
import torch
from builders import PAD, SMALL, sources, targets
from visual_builders import ANSWERS, MAX_QUESTION, MOST, VOCABULARY, WIDTHS, visual_shape

from attnorm.attention.model_sites import resolve_attention
from attnorm.attention.multihead import attention_layers
from attnorm.models.captioning.lstm import LSTMCaptioner, LSTMCaptionerConfig
from attnorm.models.captioning.transformer import TransformerCaptioner, TransformerCaptionerConfig
from attnorm.models.config import TransformerConfig
from attnorm.models.documents import DocumentConfig, Flat, Hierarchical
from attnorm.models.grid import GridClassifier, GridConfig
from attnorm.models.recurrent.seq2seq import LSTMSeq2Seq, LSTMSeq2SeqConfig
from attnorm.models.seq2seq import Seq2Seq
from attnorm.models.vqa.mcan import MCAN
from attnorm.models.vqa.pythia import Pythia

pytestmark = pytest.mark.numerical

DECODER = {"d_model": 8, "n_heads": 2, "decoder_layers": 1, "dropout": 0.0, "max_target": 12}
LENGTHS = {"max_source": 10, "max_target": 12}
BUILT = {
    Seq2Seq: lambda tables: Seq2Seq(TransformerConfig(**{**SMALL, **LENGTHS}), tables, 11, PAD),
    LSTMSeq2Seq: lambda tables: LSTMSeq2Seq(LSTMSeq2SeqConfig(**DECODER, max_source=10), tables, 11, PAD),
    LSTMCaptioner: lambda tables: LSTMCaptioner(LSTMCaptionerConfig(**DECODER), tables, 11, PAD, side=8),
    TransformerCaptioner: lambda tables: TransformerCaptioner(
        TransformerCaptionerConfig(**DECODER, ffn_dim=12), tables, 11, PAD, side=8
    ),
    GridClassifier: lambda tables: GridClassifier(
        GridConfig(patch=2, d_model=8, n_heads=2, ffn_dim=12, layers=2), tables, (4, 6, 3), labels=5
    ),
    Flat: lambda tables: Flat(DocumentConfig(d_model=8, word_width=6, n_heads=2), tables, 20, PAD, 3),
    Hierarchical: lambda tables: Hierarchical(DocumentConfig(d_model=8, word_width=6, n_heads=2), tables, 20, PAD, 3),
    Pythia: lambda tables: Pythia(visual_shape(question="transformer"), tables, VOCABULARY, PAD, ANSWERS, WIDTHS, MOST),
    MCAN: lambda tables: MCAN(visual_shape(max_question=MAX_QUESTION), tables, VOCABULARY, PAD, ANSWERS, WIDTHS, MOST),
}
INPUTS = {
    LSTMSeq2Seq: (sources([6, 4]), targets([5, 3])),
    GridClassifier: (torch.rand(2, 4, 6, 3),),
    Hierarchical: (torch.tensor([[3, 4, 5, 6], [7, 8, PAD, PAD]]), torch.tensor([[0, 0, 1, 2], [0, 1, 0, 0]])),
}


def build(kind, **settings):
    tables = {
        **{"_default_": "ot", "bank": dict.fromkeys(kind.sites, "templates")},
        **{"scorer": dict.fromkeys(kind.sites, "bilinear"), "gate": dict.fromkeys(kind.sites, "headwise")},
        "options": {"ot": {"cost": "learned"}, "templates": {"size": 3}},
    }
    return BUILT[kind](resolve_attention({**tables, **settings}, kind.sites))


@pytest.mark.parametrize("kind", BUILT)
def test_every_attention_has_the_parts_of_its_site(kind):
    layers = attention_layers(build(kind))
    assert len(layers) >= len(kind.sites)
    for name, layer in layers.items():
        parts = (layer.normalizer, layer.normalizer.cost, layer.scorer, layer.bank, layer.options.gate)
        kinds = [type(part).__name__ for part in parts]
        assert kinds == ["OptimalTransport", "LearnedDistance", "Bilinear", "Templates", "Headwise"], name


@pytest.mark.parametrize("kind", INPUTS)
def test_a_bank_is_trained_with_the_model(kind):
    model = build(kind)
    model(*INPUTS[kind]).square().sum().backward()
    for name, layer in attention_layers(model).items():
        assert layer.bank.table.weight.grad.abs().max() > 0, name


@pytest.mark.parametrize("kind", [Seq2Seq, *INPUTS])
def test_exclusive_attention_works_at_the_declared_sites_of_self_attention_and_at_no_other(kind):
    declared = kind.self_sites_of({}) if kind is GridClassifier else getattr(kind, "self_sites", ())
    inputs = INPUTS[LSTMSeq2Seq if kind is Seq2Seq else kind]
    for site in kind.sites:
        model = build(kind, exclusive={site: True}, bank={})
        if site in declared:
            assert model(*inputs).isfinite().all()
        else:
            with pytest.raises(ValueError, match="exclusive attention needs the value of each query"):
                model(*inputs)


def test_the_words_of_an_lstm_are_a_vocabulary_for_its_bank():
    model = build(LSTMSeq2Seq, bank={"cross": "vocabulary"}, options={})
    assert LSTMSeq2Seq.token_sites == ("cross",)
    assert model.decoder.cross.bank().shape == (11, 8)
    assert model(*INPUTS[LSTMSeq2Seq]).isfinite().all()
