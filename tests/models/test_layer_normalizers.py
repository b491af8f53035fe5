"""A list of normalizers at a site: one for each layer, and nothing else of the model changes."""

import pytest
import torch
from builders import PAD, SMALL, attention_tables, build_model
from visual_builders import visual_model, visual_tables

from attnorm.attention.multihead import attention_layers
from attnorm.models.config import TransformerConfig
from attnorm.models.encoder import Encoder
from attnorm.models.seq2seq import Seq2Seq
from attnorm.models.vqa.mcan import MCAN
from attnorm.models.vqa.pythia import Pythia

pytestmark = pytest.mark.numerical

THREE = ["hnas", "dnas_prefix", "softmax"]  # three layers, no two alike
CLASSES = ["HNAS", "DNASPrefix", "Softmax"]
LAYERS = {"encoder_layers": 3, "decoder_layers": 3}


def classes(model):
    """The class of each attention's normalizer, by the attention's name."""
    return {name: type(layer.normalizer).__name__ for name, layer in attention_layers(model).items()}


def tables_with(site, value):
    return {**attention_tables(), site: value}


def seq2seq(tables):
    return Seq2Seq(TransformerConfig(**{**SMALL, **LAYERS, "max_source": 10, "max_target": 12}), tables, 11, PAD)


@pytest.mark.parametrize(
    ("site", "name"),
    [("encoder", "encoder.layers.{}.attention"), ("decoder", "layers.{}.attention"), ("cross", "layers.{}.cross")],
)
def test_each_layer_at_a_site_has_its_own_normalizer(site, name):
    result, plain = classes(seq2seq(tables_with(site, THREE))), classes(seq2seq(attention_tables()))
    assert result == plain | {name.format(layer): kind for layer, kind in enumerate(CLASSES)}


@pytest.mark.parametrize("site", ["encoder", "guided"])
def test_each_layer_of_a_visual_model_has_its_own_normalizer(site):
    actual = classes(visual_model(MCAN, tables={**visual_tables(), site: THREE}, layers=3))
    for layer, kind in enumerate(CLASSES):
        at = {
            name: actual[name] for name in actual if name.startswith((f"encoder.layers.{layer}.", f"guided.{layer}."))
        }
        assert len(at) == 3  # one in the encoder, two in the guided layer
        assert {name: kind if name.startswith(site) else "Softmax" for name in at} == at


def test_a_list_of_one_name_is_that_name_and_what_two_lists_share_starts_bit_equal():
    """Names and numbers of the parameters are the same, too."""
    same, one, mixed, plain = (
        seq2seq(tables_with("encoder", value)).state_dict() for value in (["hnas"] * 3, "hnas", THREE, "softmax")
    )
    assert [*same] == [*one] and all(torch.equal(same[name], one[name]) for name in same)
    assert {*mixed} - {*plain} == {"encoder.layers.0.attention.normalizer.hybrid"} and {*plain} <= {*mixed}
    assert all(torch.equal(mixed[name], plain[name]) for name in plain)


@pytest.mark.parametrize("encoder_layers", [1, 3])
@pytest.mark.parametrize("decoder_layers", [1, 2])
def test_models_tell_how_many_layers_they_have_at_each_site(encoder_layers, decoder_layers):
    settings = {"encoder_layers": encoder_layers, "decoder_layers": decoder_layers}
    model = build_model(**settings)
    layers = Seq2Seq.site_layers(settings)
    assert layers == {"encoder": len(model.encoder.layers), "decoder": len(model.layers), "cross": len(model.layers)}
    assert [*layers] == [*Seq2Seq.sites]
    assert Encoder.site_layers(settings) == {"encoder": encoder_layers}
    assert Seq2Seq.site_layers({}) == dict.fromkeys(Seq2Seq.sites)  # nothing is raised for what is lacking


@pytest.mark.parametrize("kind", [Pythia, MCAN])
@pytest.mark.parametrize("fusion", ["none", "single", "attention"])
@pytest.mark.parametrize("question", ["gru", "transformer"])
def test_visual_models_tell_how_many_layers_they_have_at_each_site(kind, fusion, question):
    settings = {"fusion": fusion, "question": question, "layers": 3}
    layers = kind.site_layers(settings)
    assert [*layers] == [*kind.sites_of(settings)]
    plain = classes(visual_model(kind, **settings))
    for site, number in layers.items():
        outcome = classes(visual_model(kind, tables={**visual_tables(), site: ["entmax"] * number}, **settings))
        changed = {name for name in outcome if outcome[name] != plain[name]}
        assert len({name.replace(".cross", ".attention") for name in changed}) == number
    assert kind.site_layers({}).keys() == kind.sites_of({}).keys()
