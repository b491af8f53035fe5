"""MCAN: self-attention over the question, boxes guided by one another and by the question, both pooled."""

from itertools import cycle

import pytest
import torch
import torch.nn.functional as F
from builders import PAD
from marks import few
from torch import nn
from torch.testing import assert_close
from visual_builders import (
    ANSWERS,
    CLOSE,
    LENGTHS,
    MAX_QUESTION,
    MOST,
    TIGHT,
    VISUAL_SITES,
    as_floats,
    attend_by_loops,
    average_by_loops,
    chosen,
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

from attnorm.attention.multihead import attention_layers, observe
from attnorm.attention.names import NORMALIZERS
from attnorm.choices import choices
from attnorm.models.vqa.mcan import MCAN
from attnorm.models.vqa.pythia import Pythia
from attnorm.parts import class_of

pytestmark = pytest.mark.numerical

FUSIONS = ["none", "single", "concat", "attention"]


def pooled(pool, states, real):
    inner = (states @ pool.inner.weight.T + pool.inner.bias).clamp(min=0)
    return average_by_loops(states, (inner @ pool.score.weight.T).squeeze(-1), real)


def layer_by_loops(layer, name, x, question, present, real, norm_first):
    """One guided layer: self-attention, attention to the question, feed-forward, each in its residual."""

    def forward(y):
        first, _, last = layer.feed_forward
        return (y @ first.weight.T + first.bias).clamp(min=0) @ last.weight.T + last.bias

    steps = [
        (layer.attention_residual, lambda y: attend_by_loops(layer.attention, name, y, y, present, present)),
        (layer.cross_residual, lambda y: attend_by_loops(layer.cross, name, y, question, present, real)),
        (layer.feed_forward_residual, forward),
    ]
    for residual, step in steps:
        if norm_first:
            x = x + step(normed(x, residual.norm))
        else:
            x = normed(x + step(x), residual.norm)
    return x


# ----------------------------------------------------------------------------------------------------------- formulas


@pytest.mark.long
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize(("fusion", "normalizer"), [("none", "dnas"), *((kind, "hnas") for kind in FUSIONS[1:])])
def test_the_scores_are_those_of_the_formula(fusion, normalizer, norm_first):
    model = rough_visual(MCAN, normalizer, fusion=fusion, norm_first=norm_first)
    ids, views = questions(), image_views()
    real = ids != PAD
    question = model.encoder(ids, real)
    q, _ = pooled(model.question_pool, question, real)
    joint, weights = q @ model.question.weight.T + model.question.bias, None
    if fusion != "none":
        x, present = model.fusion(views)
        for layer in model.guided:
            x = layer_by_loops(layer, normalizer, x, question, present, real, norm_first)
        x = normed(x, model.last_norm) if norm_first else x
        v, weights = pooled(model.pool, x, present)
        joint = joint + v @ model.image.weight.T + model.image.bias
    expected = normed(joint, model.norm) @ model.classifier.weight.T + model.classifier.bias
    assert expected.shape == (len(ids), ANSWERS)
    scores = model(ids, views)
    assert_close(scores, expected, **TIGHT)
    found, wanted = (torch.autograd.grad(x.square().sum(), model.words.table.weight)[0] for x in (scores, expected))
    assert_close(found, wanted, **TIGHT)
    if fusion != "none":
        assert len(model.guided) == 2
        found, fused = model.attention_over_boxes(ids, views)
        assert_close(found, weights, **TIGHT)
        assert (fused is not None) == (fusion == "attention")


@pytest.mark.parametrize("question", ["gru", "transformer"])
def test_the_question_attends_to_itself_after_a_gru_or_not(question):
    model, ids = rough_visual(MCAN, question=question, layers=3), questions()
    assert (model.words.gru is None) == (question == "transformer") and len(model.encoder.layers) == 3
    states = model.words(ids) + model.encoder.embeddings.positions.weight[: ids.shape[1]]
    assert_close(model.encoder.embeddings(ids), states, **TIGHT)


# ---------------------------------------------------------------------------------------------- padding, batches, order


@pytest.mark.long
@pytest.mark.parametrize("normalizer, question", few(zip(NORMALIZERS, cycle(["transformer", "gru"]), strict=False)))
def test_neither_padding_nor_absent_boxes_nor_the_rest_of_the_batch_matter(normalizer, question):
    model = rough_visual(MCAN, tables=visual_tables(normalizer, ["content"]), question=question)
    ids, views = questions(), image_views()
    scores, longer = model(ids, views), model(F.pad(ids, (0, 1), value=PAD), views)
    assert_close(longer, scores, **TIGHT)
    for row, length in enumerate(LENGTHS):
        alone = model(ids[row : row + 1, :length], rows_of(views, [row]))
        assert_close(alone[0], scores[row], **TIGHT)
        shorter = model(ids[row : row + 1, :length], chosen(views, row))
        assert_close(shorter[0], scores[row], **TIGHT)


@pytest.mark.parametrize("priors", [["learned"], ["t5", "alibi"]])
@pytest.mark.parametrize("fusion", ["single", "concat", "attention"])
def test_the_place_of_a_box_does_not_depend_on_the_batch(fusion, priors):
    model = rough_visual(MCAN, tables=visual_tables("dnas", priors), fusion=fusion)
    ids, views = questions(), image_views()
    scores = model(ids, views)
    for row, last in enumerate([[4, 3, 5], [4, 3, 5], [2, 3, 0], [0, 1, 3]]):
        cut = [torch.arange(n) for n in last]  # what stands behind is absent
        alone = model(ids[row : row + 1, : LENGTHS[row]], chosen(views, row, cut))
        assert_close(alone[0], scores[row], **TIGHT)


@pytest.mark.parametrize("fusion", ["single", "concat", "attention"])
@pytest.mark.parametrize("normalizer", ["softmax", "dnas", "hnas"])
def test_the_order_of_boxes_within_a_view_changes_no_answer_and_that_of_words_does(fusion, normalizer):
    model = rough_visual(MCAN, normalizer, torch.float32, fusion=fusion)
    ids, views = questions(), as_floats(image_views())
    scores = model(ids, views)
    for only in (None, 0, 2):
        again, _ = reordered(views, only)
        assert_close(model(ids, again), scores, **CLOSE)
    assert not torch.isclose(model(ids[:1].flip(1), rows_of(views, [0])), scores[:1]).any()


# -------------------------------------------------------------------------------------------------- what is not there


@pytest.mark.parametrize("normalizer", ["softmax", "dnas", "hnas", "sinkhorn", "sparsemax"])
def test_without_other_views_all_fusions_agree(normalizer):
    ids, views = questions(), masked(as_floats(image_views()))
    found = {
        fusion: rough_visual(MCAN, normalizer, torch.float32, fusion=fusion)(ids, views)
        for fusion in ("single", "concat", "attention")
    }
    assert torch.equal(found["attention"], found["single"])
    assert_close(found["concat"], found["single"], **CLOSE)


def test_the_question_alone():
    model, ids = rough_visual(MCAN, "dnas", fusion="none", widths=[], most=[]), questions()
    scores = model(ids, [])
    assert scores.shape == (4, ANSWERS) and scores.isfinite().all()
    assert torch.equal(scores, rough_visual(MCAN, "dnas", fusion="none")(ids, image_views()))
    assert {name.split(".")[0] for name in attention_layers(model)} == {"encoder"}
    with pytest.raises(ValueError, match="fusion='none': this model does not use boxes"):
        model.attention_over_boxes(ids, [])


@pytest.mark.parametrize("fusion", FUSIONS)
@pytest.mark.parametrize("norm_first", [True, False])
def test_without_boxes_or_words_all_is_finite_and_the_question_still_counts(fusion, norm_first):
    model = rough_visual(
        MCAN, tables=visual_tables("hnas", ["content", "learned"]), fusion=fusion, norm_first=norm_first
    )
    ids, views = questions(), image_views()
    ids[3] = PAD
    for _, present, _ in views:
        present[:2] = False
    scores = model(ids, views)
    scores.square().sum().backward()
    assert scores.isfinite().all() and not torch.isclose(scores[0], scores[1]).any()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


# ---------------------------------------------------------------------------------------------------------- attention


def test_boxes_attend_to_boxes_and_to_words_that_are_there():
    model, ids, views = rough_visual(MCAN, "dnas", fusion="concat"), questions(), image_views()
    here, real, seen = torch.cat([present for _, present, _ in views], 1), ids != PAD, {}
    with observe(model, lambda name, weights, allowed: seen.update({name: weights})):
        model(ids, views)
    assert sorted(seen) == sorted(
        [f"encoder.layers.{i}.attention" for i in (0, 1)]
        + [f"guided.{i}.{which}" for i in (0, 1) for which in ("attention", "cross")]
    )
    for name, weights in seen.items():
        queries, keys = {"encoder": (real, real), "attention": (here, here), "cross": (here, real)}[
            "encoder" if name.startswith("encoder") else name.split(".")[-1]
        ]
        allowed = (queries[:, None, :, None] & keys[:, None, None, :]).expand_as(weights)
        assert not weights[~allowed].any()
        share = weights.sum(-2) * keys.sum(-1)[:, None, None]
        assert (share[allowed.any(-2)] >= 1 - 1e-9).all()  # Lemma 1


def test_the_pool_looks_at_boxes_that_are_present():
    model, ids, views = rough_visual(MCAN, "hnas", fusion_heads=2), questions(), image_views()
    weights, fused = model.attention_over_boxes(ids, views)
    here = views[0][1]
    assert weights.shape == here.shape and not weights[~here].any() and (weights[here] > 0).all()
    assert_close(weights.sum(1), here.any(1).double(), **TIGHT)
    assert fused.shape == (4, 2, MOST[0], MOST[1] + MOST[2]) and not weights.requires_grad
    other, _ = model.attention_over_boxes(ids[[2, 2, 2, 2]], views)
    assert not torch.isclose(weights[0], other[0]).any()  # it is the question that guides


# ------------------------------------------------------------------------------------------------------------- sites


def test_the_sites_are_those_that_the_settings_use():
    assert class_of("model", choices("model")["mcan_small"]) is MCAN
    assert MCAN.sites == {"fusion": False, "encoder": False, "guided": False}
    found = {fusion: MCAN.sites_of({"fusion": fusion, "question": "gru"}) for fusion in FUSIONS}
    assert list(found["attention"]) == ["fusion", "encoder", "guided"]
    assert list(found["concat"]) == list(found["single"]) == ["encoder", "guided"]
    assert list(found["none"]) == ["encoder"]
    assert MCAN.sites_of({}) == found["single"]
    assert not any(value for sites in found.values() for value in sites.values())


def test_each_site_has_its_own_normalizer_scorer_and_priors():
    for site, prefixes in (("fusion", ("fusion",)), ("encoder", ("encoder",)), ("guided", ("guided.0", "guided.1"))):
        model = visual_model(MCAN, tables=visual_tables("hnas", ["learned"], "additive", only=site))
        for name, layer in attention_layers(model).items():
            there = name.startswith(prefixes)
            assert (type(layer.normalizer).__name__, type(layer.scorer).__name__) == (
                ("HNAS", "Additive") if there else ("Softmax", "ScaledDot")
            )
        priors = {"fusion": model.fusion.prior, "encoder": model.encoder.prior, "guided": model.prior}
        assert [where for where, prior in priors.items() if prior is not None] == [site]
        assert (model.cross_prior is not None) == (site == "guided")


@pytest.mark.parametrize("fusion", FUSIONS)
def test_tables_need_no_more_than_the_sites_that_are_used(fusion):
    tables = visual_tables("hnas")
    for site in VISUAL_SITES:
        if site not in MCAN.sites_of({"fusion": fusion, "question": "gru"}):
            tables[site] = "nothing that exists"
            del tables["prior"][site], tables["scorer"][site]
    visual_model(MCAN, tables=tables, fusion=fusion)


@pytest.mark.parametrize("fusion", ["single", "concat", "attention"])
def test_guided_priors_are_about_boxes_and_about_words(fusion):
    model = rough_visual(MCAN, tables=visual_tables("softmax", ["learned", "content"]), fusion=fusion)
    boxes = sum(MOST) if fusion == "concat" else MOST[0]
    assert model.prior.priors["learned"].log_u.shape == (2, boxes)
    assert model.cross_prior.priors["learned"].log_u.shape == (2, MAX_QUESTION)
    ids, views, seen = questions(), image_views(), {}
    with torch.no_grad():
        model.prior.priors["learned"].log_u[:, 0] = 30.0
        model.cross_prior.priors["learned"].log_u[:, 1] = 30.0
    with observe(model, lambda name, weights, allowed: seen.update({name: weights})):
        model(ids, views)
    for i in (0, 1):  # both layers use them
        assert (seen[f"guided.{i}.attention"][0, :, :3, 0] > 0.99).all()
        assert (seen[f"guided.{i}.cross"][0, :, :3, 1] > 0.99).all()
    assert not (seen["encoder.layers.0.attention"][0, ..., 1] > 0.99).all()


def test_guided_content_priors_read_the_boxes_and_the_states_of_the_question():
    model = rough_visual(MCAN, tables=visual_tables("dnas", ["content"], only="guided"))
    ids, views, seen = questions(), image_views(), []
    for prior in (model.prior, model.cross_prior):
        prior.register_forward_pre_hook(lambda layer, args: seen.append(args))
    model(ids, views)
    (n, m, offset, boxes, mask), (n_cross, t, offset_cross, states, cross_mask) = seen
    expected, present = model.fusion(views)
    real = ids != PAD
    assert (n, m, offset) == (MOST[0], MOST[0], 0) and (n_cross, t, offset_cross) == (MOST[0], ids.shape[1], 0)
    assert torch.equal(boxes, expected) and torch.equal(states, model.encoder(ids, real))
    assert mask.keys is present or torch.equal(mask.keys, present)
    assert torch.equal(cross_mask.keys, real) and torch.equal(cross_mask.queries, present)


# ------------------------------------------------------------------------------------------------- initial parameters


def test_variants_start_bit_equal_in_what_they_share_also_with_pythia():
    seen = {}
    for fusion in FUSIONS:
        for tables in (visual_tables(), visual_tables("hnas", ["content", "t5"], "additive")):
            for name, parameter in visual_model(MCAN, tables=tables, fusion=fusion).named_parameters():
                assert torch.equal(parameter, seen.setdefault(name, parameter)), name
    pythia = dict(visual_model(Pythia).named_parameters())
    shared = [name for name in pythia if name.startswith(("words.", "fusion."))]
    assert len(shared) > 10 and all(torch.equal(pythia[name], seen[name]) for name in shared)
    other = dict(visual_model(MCAN, seed=1).named_parameters())
    assert not any(torch.equal(other[name], seen[name]) for name in other if other[name].any() and other[name].ndim > 1)


# ----------------------------------------------------------------------------------------------------------- training


@pytest.mark.parametrize("fusion", FUSIONS)
@pytest.mark.parametrize("question", ["gru", "transformer"])
def test_every_parameter_gets_a_gradient(fusion, question):
    tables = visual_tables("hnas", ["content", "learned"])
    model = rough_visual(MCAN, tables=tables, fusion=fusion, question=question, norm_first=True)
    model(questions(), image_views()).square().sum().backward()
    idle = [n for n, p in model.named_parameters() if p.grad is None or not (p.grad.isfinite().all() and p.grad.any())]
    assert idle == []


def test_it_runs_under_autocast():
    model, ids, views = visual_model(MCAN, "hnas"), questions(), as_floats(image_views())
    expected = model(ids, views)
    with torch.autocast("cpu", torch.bfloat16):
        found = model(ids, views)
    found.float().sum().backward()
    assert_close(found.float(), expected, rtol=0.1, atol=0.05)
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_dropout_acts_in_training_only():
    model, plain = rough_visual(MCAN, dropout=0.5), rough_visual(MCAN)
    ids, views = questions(), image_views()
    assert torch.equal(model(ids, views), plain(ids, views))
    dropouts = {name for name, part in model.named_modules() if isinstance(part, nn.Dropout) and part.p == 0.5}
    for place in ("encoder.layers.0.attention_residual", "guided.1.cross_residual", "guided.0.feed_forward_residual"):
        assert f"{place}.dropout" in dropouts
    assert {"fusion.dropout", "fusion.views.1.dropout", "encoder.embeddings.dropout"} <= dropouts
    assert not torch.isclose(model.train()(ids, views), plain(ids, views)).all(1).any()
