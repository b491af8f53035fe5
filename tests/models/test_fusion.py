"""Fusion: views side by side, or the primary's boxes attending to the others' with any normalizer, all or each view."""

import pytest
import torch
from runs import tiny
from torch.testing import assert_close
from visual_builders import (
    MOST,
    TIGHT,
    WIDTHS,
    as_floats,
    attend_by_loops,
    boxes_by_formula,
    chosen,
    dense_from,
    image_views,
    masked,
    normed,
    questions,
    reordered,
    rough_fusion,
    rough_module,
    rough_visual,
    visual_shape,
    visual_tables,
)

from attnorm.attention import build_normalizer
from attnorm.attention.multihead import attention_layers, observe, smallest_column_mass
from attnorm.attention.registry import NORMALIZERS
from attnorm.errors import ConfigError
from attnorm.models.config import VqaModelConfig
from attnorm.models.vqa.fusion import Fusion
from attnorm.models.vqa.pythia import Pythia

pytestmark = pytest.mark.numerical

WIDTH = 8
LEAST = {"attention": 2, "concat": 1, "single": 1}  # views
ORDER_BLIND = ["softmax", "dnas", "hnas", "sinkhorn", "ot", "fenchel", "sparsemax", "entmax"]


def weights_per_view(fusion, views):
    """The weights (B, H, N, M) and what is allowed, of each attention in turn."""
    seen = []
    with observe(fusion, lambda name, weights, allowed: seen.append((weights, allowed))):
        fusion(views)
    return seen


def weights_of(fusion, views):
    """The weights and what is allowed, (B, H, N, M) each."""
    [seen] = weights_per_view(fusion, views)  # one call of attention for all views
    return seen


# ----------------------------------------------------------------------------------------------------------- formulas


def test_single_is_the_first_view_and_concat_all_of_them():
    views = image_views()
    single, concat = rough_fusion("single"), rough_fusion("concat")
    states, present = single(views)
    assert_close(states, normed(boxes_by_formula(single, views)[0], single.norm), **TIGHT)
    assert torch.equal(present, views[0][1])
    states, present = concat(views)
    assert_close(states, normed(torch.cat(boxes_by_formula(concat, views), 1), concat.norm), **TIGHT)
    assert torch.equal(present, torch.cat([here for _, here, _ in views], 1))
    assert len(single.views) == 1 and len(concat.views) == 3
    assert (single.boxes, concat.boxes, rough_fusion().boxes) == (MOST[0], sum(MOST), MOST[0])


@pytest.mark.parametrize("together", [True, False], ids=["joint", "per_view"])
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("normalizer", ["softmax", "dnas", "hnas", "sinkhorn"])
def test_the_primary_boxes_attend_to_the_boxes_of_the_other_views(normalizer, heads, together):
    """To all of them together, or to those of each view, whose contributions are added."""
    settings = {"fusion_heads": heads, "fusion_views": "joint" if together else "per_view"}
    views, fusion = image_views(), rough_fusion(normalizer=normalizer, **settings)
    primary, *others = boxes_by_formula(fusion, views)
    here, *existing = (present for _, present, _ in views)
    if together:
        others, existing = [torch.cat(others, 1)], [torch.cat(existing, 1)]
    expected = primary
    for attention, other, those in zip(attention_layers(fusion).values(), others, existing, strict=True):
        added = attend_by_loops(attention, normalizer, primary, other, here, those)
        expected = expected + added * (here & those.any(1, keepdim=True))[..., None]
    expected = normed(expected, fusion.norm)
    states, present = fusion(views)
    assert_close(states, expected, **TIGHT)
    slopes = (torch.autograd.grad(x.pow(3).sum(), [*fusion.parameters()]) for x in (states, expected))
    assert_close(*slopes, rtol=1e-8, atol=1e-8)
    assert torch.equal(present, here) and all(layer.heads == heads for layer in attention_layers(fusion).values())


@pytest.mark.parametrize("normalizer", ["softmax", "dnas", "hnas"])
def test_the_memory_linear_path_gives_the_same(normalizer, monkeypatch):
    views, fusion = image_views(), rough_fusion(normalizer=normalizer)
    dense, _ = fusion(views)
    dense_from(0, monkeypatch)
    assert_close(fusion(views)[0], dense, **TIGHT)


def test_where_a_box_is_counts_if_the_shape_says_so():
    views = image_views()
    moved = [(features, here, position / 2) for features, here, position in views]
    nowhere = [(features, here, None) for features, here, _ in views]
    assert not torch.isclose(rough_fusion()(views)[0], rough_fusion()(moved)[0]).all(-1).any()
    blind = rough_fusion(geometry=False)
    assert torch.equal(blind(views)[0], blind(moved)[0]) and torch.equal(blind(views)[0], blind(nowhere)[0])
    with pytest.raises(ValueError, match="geometry=True: this view has no box positions; use geometry=False"):
        rough_fusion()(nowhere)


# ----------------------------------------------------------------------------------------------- absent views and boxes


@pytest.mark.parametrize(
    ("normalizer", "priors", "scorer"),
    [
        *((name, [], "scaled_dot") for name in NORMALIZERS),
        ("dnas", ["content", "learned"], "scaled_dot"),
        ("hnas", ["t5"], "additive"),
        ("softmax", ["alibi", "uniform"], "gaussian"),
        ("entmax", ["content"], "bilinear"),
    ],
)
def test_attention_is_single_bit_for_bit_where_no_other_box_is_present(normalizer, priors, scorer):
    views, tables = as_floats(masked(image_views())), visual_tables(normalizer, priors, scorer)
    shapes = [visual_shape(fusion=kind) for kind in ("single", "attention")]
    for noise in (0.0, 0.3):
        single, fusion = (rough_module(Fusion(s, tables, WIDTHS, MOST), torch.float32, noise) for s in shapes)
        shared = dict(single.named_parameters())
        assert shared and all(torch.equal(p, fusion.get_parameter(name)) for name, p in shared.items())
        (expected, _), (states, _) = single(views), fusion(views)
        assert torch.equal(states, expected)
        for output in (expected, states):
            output.square().sum().backward()
        for name, parameter in shared.items():
            assert torch.equal(parameter.grad, fusion.get_parameter(name).grad), name
        others = [p.grad for n, p in fusion.named_parameters() if n not in shared and p.grad is not None]
        assert all(grad.isfinite().all() and not grad.any() for grad in others)


def test_that_is_so_for_one_image_among_others():
    views = image_views()
    for _, present, _ in views[1:]:
        present[1] = False
    single, fusion = rough_fusion("single")(views)[0], rough_fusion(normalizer="dnas")(views)[0]
    assert torch.equal(single[1], fusion[1])
    assert not torch.isclose(single[0], fusion[0]).any()


@pytest.mark.long
@pytest.mark.parametrize("normalizer, priors", [*((name, ()) for name in NORMALIZERS), ("dnas", ("content",))])
def test_absent_boxes_are_as_if_they_were_not_there(normalizer, priors):
    views = image_views()
    for kind in ("single", "concat", "attention"):
        fusion = rough_fusion(kind, tables=visual_tables(normalizer, priors))
        states, present = fusion(views)
        for row in range(len(present)):
            alone, here = fusion(chosen(views, row))
            assert alone.shape[1] == states.shape[1] == fusion.boxes
            assert_close(states[row, present[row]], alone[0, here[0]], **TIGHT)


# ----------------------------------------------------------------------------------------------------- order and shares


@pytest.mark.parametrize("normalizer", ORDER_BLIND)
def test_the_order_of_boxes_within_a_view_means_nothing(normalizer):
    views = image_views()
    again, orders = reordered(views)
    for kind in ("single", "attention"):
        fusion = rough_fusion(kind, tables=visual_tables(normalizer, ["content"]))
        assert_close(fusion(again)[0], fusion(views)[0][:, orders[0]], **TIGHT)
    starts = [sum(MOST[:number]) for number in range(3)]
    order = torch.cat([start + order for start, order in zip(starts, orders, strict=True)])
    assert_close(rough_fusion("concat")(again)[0], rough_fusion("concat")(views)[0][:, order], **TIGHT)


def test_a_learned_prior_has_a_number_for_each_box_of_the_other_views():
    fusion = rough_fusion(tables=visual_tables("softmax", ["learned"]))
    learned = fusion.prior.priors["learned"]
    assert learned.log_u.shape == (1, MOST[1] + MOST[2])
    views = image_views()
    with torch.no_grad():
        learned.log_u[0, MOST[1] + 4] = 20.0  # the last box of the last view
    weights, _ = weights_of(fusion, views)
    assert (weights[0, 0, :, -1] > 0.999).all()


def test_a_content_prior_reads_the_boxes_of_the_other_views():
    views, fusion = image_views(), rough_fusion(tables=visual_tables("softmax", ["content"]))
    plain = rough_fusion()
    _, *others = boxes_by_formula(fusion, views)
    first, _, last = fusion.prior.priors["content"].network
    log_u = (torch.cat(others, 1) @ first.weight.T + first.bias).tanh() @ last.weight.T  # (B, M, 1)
    weights, expected = weights_of(fusion, views)[0], weights_of(plain, views)[0] * log_u.exp().transpose(1, 2)[:, None]
    live = expected.sum(-1, keepdim=True) > 0
    assert_close(weights, (expected / expected.sum(-1, keepdim=True)).where(live, 0.0), **TIGHT)


@pytest.mark.parametrize("fusion_views", ["joint", "per_view"])
def test_every_box_that_is_seen_keeps_its_share_with_dnas_and_not_with_softmax(fusion_views):
    """The bound of the paper: 1/100 for views of 100 boxes. One attention over two such views only promises 1/200."""
    least = {}
    for normalizer in ("softmax", "dnas", "hnas"):
        fusion, shares = rough_fusion(normalizer=normalizer, fusion_views=fusion_views), []
        with torch.no_grad():
            for layer in attention_layers(fusion).values():
                layer.query.weight *= 20  # sharp weights
        for weights, allowed in weights_per_view(fusion, image_views()):
            keys = allowed.any(-2).sum(-1)  # (B, 1), those that some primary box may see
            mass = smallest_column_mass(weights, allowed) * keys
            shares.append(mass[keys > 0].min().item())
            assert (weights.sum(-1)[allowed.any(-1)] - 1).abs().max() < 1e-12
            assert not weights[~allowed.expand_as(weights)].any()
        least[normalizer] = min(shares)
    assert least["dnas"] >= 1 - 1e-9 and least["hnas"] >= 0.5 - 1e-9 and least["softmax"] < 0.1


# ------------------------------------------------------------------------------------------------- training, mistakes


def test_dropout_acts_on_boxes_and_on_what_they_took_in_training_only():
    views, fusion = image_views(), rough_fusion(dropout=0.5)
    plain = rough_fusion()
    assert torch.equal(fusion(views)[0], plain(views)[0])
    for part in (fusion.dropout, fusion.views[0].dropout, fusion.views[2].dropout):
        fusion.eval()
        part.train()
        assert not torch.isclose(fusion(views)[0][0], plain(views)[0][0]).all()


@pytest.mark.parametrize(
    ("kind", "least", "views"), [("attention", 2, 1), *((it, least, 0) for it, least in LEAST.items())]
)
def test_a_fusion_wants_its_views(kind, least, views):
    message = f"fusion='{kind}': requires at least {least} views of an image, but the data has {views}"
    with pytest.raises(ValueError, match=message):
        Fusion(visual_shape(fusion=kind), visual_tables(), WIDTHS[:views], MOST[:views])


def test_views_that_do_not_fit_are_refused():
    views, fusion = image_views(), rough_fusion()
    with pytest.raises(ValueError, match="fusion='attention': expected 3 views, but got 2"):
        fusion(views[:2])
    doubled = [views[0], tuple(torch.cat([part, part], 1) for part in views[1]), views[2]]
    with pytest.raises(ValueError, match="view 1 has 6 boxes, but the model was built for 3"):
        fusion(doubled)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fusion": "atention"}, "fusion='atention': allowed: none, single, concat, attention"),
        ({"question": "lstm"}, "question='lstm': allowed: gru, transformer"),
        ({"n_heads": 3}, "n_heads=3: must divide d_model=8"),
        ({"fusion_heads": 5}, "fusion_heads=5: must divide d_model=8"),
    ],
)
def test_a_shape_that_cannot_be_is_refused(settings, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        visual_shape(**settings)


@pytest.mark.parametrize("norm_first", [True, False])
def test_the_transformers_are_shaped_as_the_settings_say(norm_first):
    sizes = {"d_model": 8, "n_heads": 4, "ffn_dim": 20, "norm_first": norm_first, "dropout": 0.3, "residual": 0.25}
    shape = VqaModelConfig(fusion="none", word_width=3, hidden=5, max_question=7, layers=3, **sizes).transformer()
    assert {name: getattr(shape, name) for name in sizes} == sizes
    assert (shape.encoder_layers, shape.max_source, shape.type_vocab_size) == (3, 7, 0)
    assert visual_shape().transformer().residual is True


# ------------------------------------------------------------------------------------- one attention per other view


def per_view(normalizer="softmax", **settings):
    return rough_fusion(normalizer=normalizer, fusion_views="per_view", **settings)


@pytest.mark.parametrize("normalizer", ["softmax", "dnas", "hnas"])
def test_with_one_other_view_both_ways_are_the_same(normalizer):
    tables = visual_tables(normalizer, ["content", "learned"])
    shapes = [visual_shape(fusion_views=kind) for kind in ("joint", "per_view")]
    joint, one_each = (rough_module(Fusion(shape, tables, WIDTHS[:2], MOST[:2])) for shape in shapes)
    names = {name: name.replace("layers.0.", "") for name, _ in one_each.named_parameters()}
    one_each.load_state_dict({name: joint.get_parameter(reference) for name, reference in names.items()})
    views = image_views()[:2]
    assert torch.equal(one_each(views)[0], joint(views)[0])


def test_a_box_of_one_view_keeps_more_than_a_box_of_two_views_together():
    """The worst case of Lemma 1: one query is alone in seeing all boxes but one, and has to divide its attention."""
    scores = torch.zeros(1, 1, 100, 200, dtype=torch.float64)
    scores[..., 0, 1:] = scores[..., 1:, 0] = 100.0
    dnas = build_normalizer("dnas")
    assert_close(smallest_column_mass(dnas(scores[..., :100]), None).item(), 1 / 99)
    assert_close(smallest_column_mass(dnas(scores), None).item(), 1 / 199)


@pytest.mark.parametrize("normalizer", ["softmax", "dnas"])
def test_a_view_without_boxes_adds_nothing(normalizer):
    views, fusion = image_views(), per_view(normalizer)
    without_last = fusion(masked(views, from_view=2))[0]
    fewer = rough_module(Fusion(visual_shape(fusion_views="per_view"), visual_tables(normalizer), WIDTHS[:2], MOST[:2]))
    assert_close(without_last, fewer(views[:2])[0], **TIGHT)
    assert torch.equal(fusion(masked(views))[0], rough_fusion("single")(views)[0])


def test_figures_see_the_weights_of_all_views():
    model, views = rough_visual(Pythia, "dnas", fusion_views="per_view", fusion_heads=2), image_views()
    _, fused = model.attention_over_boxes(questions(), views)
    assert fused.shape == (4, 2, MOST[0], MOST[1] + MOST[2])
    each = [weights for weights, _ in weights_per_view(model.fusion, views)]
    assert torch.equal(fused, torch.cat(each, -1)) and len(each) == 2


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.fusion_views=each"], r"model\.fusion_views=each: allowed: joint, per_view"),
        (["model.fusion=concat", "model.fusion_views=per_view"], r"model\.fusion_views.*model\.fusion=attention"),
    ],
)
def test_wrong_settings_are_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        tiny(*overrides, task="vqa")
