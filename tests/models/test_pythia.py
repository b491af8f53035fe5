"""Pythia: a question pooled, one look at the fused boxes, a product; and what every such model has in common."""

from itertools import cycle

import pytest
import torch
import torch.nn.functional as F
from builders import PAD
from marks import few, slow
from torch import nn
from torch.testing import assert_close
from visual_builders import (
    ANSWERS,
    CLOSE,
    LENGTHS,
    MOST,
    TIGHT,
    VISUAL_SITES,
    WIDTHS,
    as_floats,
    average_by_loops,
    chosen,
    gru_by_loops,
    image_views,
    masked,
    normed,
    questions,
    reordered,
    rough_visual,
    rows_of,
    visual_model,
    visual_tables,
)

from attnorm.attention.multihead import attention_layers
from attnorm.attention.names import NORMALIZERS
from attnorm.choices import choices
from attnorm.models.encoder import Encoder
from attnorm.models.initialize import initialize
from attnorm.models.vqa.mcan import MCAN
from attnorm.models.vqa.pythia import Pythia
from attnorm.parts import class_of

pytestmark = pytest.mark.numerical

KINDS = [
    (fusion, question) for fusion in ("none", "single", "concat", "attention") for question in ("gru", "transformer")
]


def linear(layer, x):
    return x @ layer.weight.T + (0 if layer.bias is None else layer.bias)


def pooled(pool, states, real):
    return average_by_loops(states, linear(pool.score, linear(pool.inner, states).clamp(min=0)).squeeze(-1), real)[0]


# ----------------------------------------------------------------------------------------------------------- formulas


@pytest.mark.parametrize(("fusion", "question"), KINDS)
def test_the_scores_are_those_of_the_formula(fusion, question):
    model = rough_visual(Pythia, "dnas", fusion=fusion, question=question)
    ids, views = questions(), image_views()
    real = ids != PAD
    vectors = model.words.table.weight[ids]
    if question == "gru":
        states = gru_by_loops(model.words.gru, vectors)
    else:
        encoder = model.encoder
        encoder.embeddings.tokens = nn.Embedding.from_pretrained(linear(model.words.linear, model.words.table.weight))
        states = encoder(ids, real)
    q = normed(pooled(model.pool, states, real), model.norm)
    joint, weights = linear(model.question, q).clamp(min=0), None
    if fusion != "none":
        boxes, present = model.fusion(views)
        top = model.top_down
        each = linear(top.box, boxes).clamp(min=0) * linear(top.question, q).clamp(min=0)[:, None]
        v, weights = average_by_loops(boxes, linear(top.score, each).squeeze(-1), present)
        joint = joint * linear(model.image, v).clamp(min=0)
    expected = linear(model.classifier, linear(model.hidden, joint).clamp(min=0))
    assert_close(model(ids, views), expected, **TIGHT)
    assert expected.shape == (len(ids), ANSWERS)
    if fusion != "none":
        assert_close(model.attention_over_boxes(ids, views)[0], weights, **TIGHT)


def test_a_transformer_reads_the_question_with_the_settings_and_the_site_of_the_encoder():
    model = visual_model(Pythia, "hnas", question="transformer", layers=3, norm_first=True)
    assert isinstance(model.encoder, Encoder) and model.words.gru is None
    layers = [name for name in attention_layers(model) if name.startswith("encoder")]
    assert len(layers) == 3 and not isinstance(model.encoder.norm, nn.Identity)
    tables = visual_tables("hnas", only="encoder")
    model = visual_model(Pythia, tables=tables, question="transformer")
    names = {n: type(layer.normalizer).__name__ for n, layer in attention_layers(model).items()}
    assert set(names.values()) == {"HNAS", "Softmax"} and names["fusion.attention"] == "Softmax"


# ---------------------------------------------------------------------------------------------- padding, batches, order


@pytest.mark.long
@pytest.mark.parametrize("normalizer, question", few(zip(NORMALIZERS, cycle(["transformer", "gru"]), strict=False)))
def test_neither_padding_nor_the_rest_of_the_batch_matters(normalizer, question):
    tables = visual_tables(normalizer, ["content"])
    model = rough_visual(Pythia, tables=tables, question=question)
    ids, views = questions(), image_views()
    scores, longer = model(ids, views), model(F.pad(ids, (0, 1), value=PAD), views)
    assert_close(longer, scores, **TIGHT)
    for row, length in enumerate(LENGTHS):
        alone = model(ids[row : row + 1, :length], rows_of(views, [row]))
        assert_close(alone[0], scores[row], **TIGHT)
        shorter = model(ids[row : row + 1, :length], chosen(views, row))
        assert_close(shorter[0], scores[row], **TIGHT)


@pytest.mark.parametrize(("fusion", "question"), KINDS)
def test_the_order_of_words_matters(fusion, question):
    model, ids, views = rough_visual(Pythia, fusion=fusion, question=question), questions(), image_views()
    turned = ids[:1].flip(1)
    assert not torch.isclose(model(ids[:1], rows_of(views, [0])), model(turned, rows_of(views, [0]))).any()


@pytest.mark.parametrize("fusion", ["single", "concat", "attention"])
@pytest.mark.parametrize("normalizer", ["softmax", "dnas", "hnas"])
def test_the_order_of_boxes_within_a_view_changes_no_answer(fusion, normalizer):
    model = rough_visual(Pythia, normalizer, torch.float32, fusion=fusion)
    ids, views = questions(), as_floats(image_views())
    scores = model(ids, views)
    for only in (None, 0, 2):
        again, _ = reordered(views, only)
        assert_close(model(ids, again), scores, **CLOSE)


@pytest.mark.parametrize("fusion", ["single", "concat", "attention"])
def test_each_view_that_is_used_counts(fusion):
    model, ids, views = rough_visual(Pythia, fusion=fusion), questions(), image_views()
    scores = model(ids, views)
    for number in range(3):
        changed = list(views)
        changed[number] = (views[number][0] + 1, *views[number][1:])
        moved = not torch.isclose(model(ids, changed)[0], scores[0]).any()
        assert moved == (number == 0 or fusion != "single")


# -------------------------------------------------------------------------------------------------- what is not there


@pytest.mark.parametrize("normalizer", ["softmax", "dnas", "hnas", "sinkhorn", "sparsemax"])
def test_without_other_views_all_fusions_agree(normalizer):
    ids, views = questions(), masked(as_floats(image_views()))
    found = {
        fusion: rough_visual(Pythia, normalizer, torch.float32, fusion=fusion)(ids, views)
        for fusion in ("single", "concat", "attention")
    }
    assert torch.equal(found["attention"], found["single"])
    assert_close(found["concat"], found["single"], **CLOSE)


@pytest.mark.parametrize("question", ["gru", "transformer"])
def test_the_question_alone(question):
    model, ids = rough_visual(Pythia, fusion="none", question=question, widths=[], most=[]), questions()
    scores = model(ids, [])
    assert scores.shape == (4, ANSWERS) and scores.isfinite().all()
    assert torch.equal(scores, rough_visual(Pythia, fusion="none", question=question)(ids, image_views()))
    assert not [name for name, _ in model.named_parameters() if name.startswith(("fusion", "top_down", "image"))]
    with pytest.raises(ValueError, match="fusion='none': this model does not use boxes"):
        model.attention_over_boxes(ids, [])


@pytest.mark.parametrize(("fusion", "question"), KINDS)
def test_without_boxes_or_words_all_is_finite(fusion, question):
    tables = visual_tables("hnas", ["content"])
    model = rough_visual(Pythia, tables=tables, fusion=fusion, question=question)
    ids, views = questions(), image_views()
    ids[3] = PAD
    for _, present, _ in views:
        present[:2] = False
    scores = model(ids, views)
    scores.square().sum().backward()
    assert scores.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


# ---------------------------------------------------------------------------------------------------------- attention


@pytest.mark.parametrize("fusion", ["single", "concat", "attention"])
def test_the_question_weighs_the_boxes_that_are_present(fusion):
    model, ids, views = rough_visual(Pythia, "dnas", fusion=fusion, fusion_heads=2), questions(), image_views()
    before = model(ids, views)
    weights, fused = model.attention_over_boxes(ids, views)
    here = torch.cat([present for _, present, _ in (views if fusion == "concat" else views[:1])], 1)
    assert weights.shape == here.shape and not weights[~here].any() and (weights[here] > 0).all()
    assert_close(weights.sum(1), here.any(1).double(), **TIGHT)
    assert not weights.requires_grad
    if fusion == "attention":
        there = torch.cat([views[1][1], views[2][1]], 1)
        seen = here[:, None, :, None] & there[:, None, None, :]
        assert fused.shape == (4, 2, MOST[0], MOST[1] + MOST[2]) and not fused[~seen.expand_as(fused)].any()
        assert_close(fused.sum(-1), seen.any(-1).expand(4, 2, -1).double(), **TIGHT)
        share = fused.sum(-2) * there.sum(-1)[:, None, None]
        assert (share[there[:, None].expand_as(share) & here.any(1)[:, None, None]] >= 1 - 1e-9).all()  # Lemma 1
    else:
        assert fused is None
    assert all(layer.observer is None for layer in attention_layers(model).values())
    assert torch.equal(model(ids, views), before)


def test_the_question_decides_where_to_look():
    model, views = rough_visual(Pythia), rows_of(image_views(), [0, 0])
    weights, _ = model.attention_over_boxes(questions()[[0, 2]], views)
    assert not torch.isclose(weights[0], weights[1]).any()


# ------------------------------------------------------------------------------------------------------------- sites


def test_the_sites_are_those_that_the_settings_use():
    assert class_of("model", choices("model")["vqa_tiny"]) is Pythia
    assert Pythia.sites == {"fusion": False, "encoder": False}
    assert Pythia.sites_of({}) == Pythia.sites_of({"fusion": 3, "question": None}) == {}
    for fusion, question in KINDS:
        sites = Pythia.sites_of({"fusion": fusion, "question": question, "d_model": 8})
        model = visual_model(Pythia, fusion=fusion, question=question)
        assert list(sites) == [
            site for site in Pythia.sites if site in {n.split(".")[0] for n in attention_layers(model)}
        ]
        assert not any(sites.values())


@pytest.mark.parametrize("site", ["fusion", "encoder"])
def test_tables_need_no_more_than_the_sites_that_are_used(site):
    settings = {"fusion": "attention"} if site == "fusion" else {"fusion": "concat", "question": "transformer"}
    full = visual_tables("hnas")
    tables = {site: "hnas", "prior": {site: []}, "scorer": {site: "scaled_dot"}, "options": {}}
    expected = visual_model(Pythia, tables=full, **settings).eval()(questions(), as_floats(image_views()))
    found = visual_model(Pythia, tables=tables, **settings).eval()(questions(), as_floats(image_views()))
    assert torch.equal(expected, found)
    for other in VISUAL_SITES:
        if other != site:
            full[other] = "nothing that exists"
    visual_model(Pythia, tables=full, **settings)


# ------------------------------------------------------------------------------------------------- initial parameters


def test_variants_start_bit_equal_in_what_they_share():
    models = [
        visual_model(Pythia, tables=tables, fusion=fusion, question=question)
        for fusion, question in KINDS
        for tables in (visual_tables(), visual_tables("hnas", ["content", "t5"], "additive"))
    ]
    seen = {}
    for model in models:
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter, seen.setdefault(name, parameter)), name
    other = dict(visual_model(Pythia, seed=1).named_parameters())
    matrices = [name for name in other if other[name].ndim > 1 and name != "fusion.attention.output.weight"]
    assert matrices and not any(torch.equal(other[name], seen[name]) for name in matrices)


@pytest.mark.parametrize("kind", [Pythia, MCAN])
@pytest.mark.parametrize("normalizer", ["softmax", "dnas", "hnas"])
def test_a_model_that_fuses_starts_as_that_of_the_primary_view(kind, normalizer):
    ids, views = questions(), as_floats(image_views())
    alone, fused = (visual_model(kind, normalizer, fusion=fusion).eval() for fusion in ("single", "attention"))
    assert torch.equal(fused(ids, views), alone(ids, views))
    fused(ids, views).square().sum().backward()
    assert fused.fusion.attention.output.weight.grad.any()  # and may leave it


def test_a_gru_starts_with_a_xavier_matrix_a_gate_by_name_and_seed():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.GRU(300, 200, num_layers=2), nn.GRU(300, 200, num_layers=2)

    torch.manual_seed(0)
    one, again, other = Two(), Two(), Two()
    for model, seed in ((one, 5), (again, 5), (other, 6)):
        initialize(model, seed)
    for name, parameter in one.named_parameters():
        assert torch.equal(parameter, again.get_parameter(name))
        if "bias" in name:
            assert not parameter.any()
            continue
        assert not torch.isclose(parameter, other.get_parameter(name)).all()
        for gate in parameter.chunk(3):
            bound = (6 / sum(gate.shape)) ** 0.5
            assert gate.shape[0] == 200 and 0.99 * bound < gate.abs().max() <= bound
            assert abs(gate.mean()) < 0.02 * bound and abs(gate.std() / bound - 3**-0.5) < 0.02
        reset, update, new = parameter.chunk(3)
        assert not (torch.equal(reset, update) or torch.equal(update, new))
    assert not torch.equal(one.first.weight_ih_l0, one.second.weight_ih_l0)
    assert not torch.equal(one.first.weight_hh_l0, one.first.weight_hh_l1)


# ----------------------------------------------------------------------------------------------------------- training


@pytest.mark.parametrize(("fusion", "question"), KINDS)
def test_every_parameter_gets_a_gradient(fusion, question):
    model = rough_visual(Pythia, tables=visual_tables("hnas", ["content"]), fusion=fusion, question=question)
    model(questions(), image_views()).square().sum().backward()
    idle = [n for n, p in model.named_parameters() if p.grad is None or not (p.grad.isfinite().all() and p.grad.any())]
    assert idle == []


def test_dropout_acts_on_the_joint_state_the_look_and_the_classifier_in_training_only():
    model, plain = rough_visual(Pythia, dropout=0.5), rough_visual(Pythia)
    ids, views = questions(), image_views()
    assert torch.equal(model(ids, views), plain(ids, views))
    for part in (model.dropout, model.top_down.dropout, model.fusion.dropout):
        model.eval()
        part.train()
        assert not torch.isclose(model(ids, views)[0], plain(ids, views)[0]).all()
    seen = []
    model.hidden.register_forward_pre_hook(lambda layer, args: seen.append(args[0]))
    model.eval()(ids, views)
    joint = seen[0]
    model.dropout.train()
    torch.manual_seed(2)
    found = model(ids, views)
    torch.manual_seed(2)
    hidden = model.dropout(linear(model.hidden, model.dropout(joint)).clamp(min=0))
    assert_close(found, linear(model.classifier, hidden), **TIGHT)


def test_it_runs_under_autocast():
    for question in ("gru", "transformer"):
        model = visual_model(Pythia, "hnas", question=question)
        ids, views = questions(), as_floats(image_views())
        expected = model(ids, views)
        with torch.autocast("cpu", torch.bfloat16):
            found = model(ids, views)
        found.float().sum().backward()
        assert_close(found.float(), expected, rtol=0.1, atol=0.02)
        assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.long
@pytest.mark.parametrize("normalizer", [slow("softmax"), slow("dnas"), "hnas"])
def test_it_learns_what_only_another_view_shows(normalizer):
    generator = torch.Generator().manual_seed(0)
    features = [torch.randn(32, most, width, generator=generator) for most, width in zip(MOST, WIDTHS, strict=True)]
    labels = (features[2][:, 0, 0] > 0).long() * 2
    features[2][:, 0, 0] = features[2][:, 0, 0].sign() * 3
    views = [(x, torch.ones(x.shape[:2], dtype=torch.bool), None) for x in features]
    ids = torch.ones(32, 3, dtype=torch.long)
    model = visual_model(Pythia, normalizer, geometry=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(80):
        loss = F.cross_entropy(model(ids, views), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.05
