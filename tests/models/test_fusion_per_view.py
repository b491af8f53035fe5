"""Fusion with one attention per other view: its formula, the share that each box keeps, and what stays as it is."""

import pytest
import torch
from runs import tiny
from torch.testing import assert_close
from visual_builders import (
    MOST,
    TIGHT,
    WIDTHS,
    attend_by_loops,
    boxes_by_formula,
    image_views,
    masked,
    normed,
    questions,
    rough_fusion,
    rough_module,
    rough_visual,
    visual_model,
    visual_shape,
    visual_tables,
)

from attnorm.attention import build_normalizer
from attnorm.attention.multihead import observe, smallest_column_mass
from attnorm.errors import ConfigError
from attnorm.models.vqa.fusion import Fusion
from attnorm.models.vqa.mcan import MCAN
from attnorm.models.vqa.pythia import Pythia

pytestmark = pytest.mark.numerical


def per_view(normalizer="softmax", **settings):
    return rough_fusion(normalizer=normalizer, fusion_views="per_view", **settings)


def weights_per_view(fusion, views):
    """The weights (B, H, N, M) and what is allowed, of each attention in turn."""
    seen = []
    with observe(fusion, lambda name, weights, allowed: seen.append((weights, allowed))):
        fusion(views)
    return seen


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("normalizer", ["softmax", "dnas", "hnas", "sinkhorn"])
def test_what_each_view_adds_is_summed(normalizer, heads):
    views, fusion = image_views(), per_view(normalizer, fusion_heads=heads)
    primary, *others = boxes_by_formula(fusion, views)
    here = views[0][1]
    expected = primary
    for layer, other, (_, there, _) in zip(fusion.layers, others, views[1:], strict=True):
        found = attend_by_loops(layer.attention, normalizer, primary, other, here, there)
        expected = expected + found * (here & there.any(1, keepdim=True))[..., None]
    expected = normed(expected, fusion.norm)
    states, present = fusion(views)
    assert_close(states, expected, **TIGHT)
    parameters = list(fusion.parameters())
    found, wanted = (torch.autograd.grad(x.pow(3).sum(), parameters) for x in (states, expected))
    for one, other in zip(found, wanted, strict=True):
        assert_close(one, other, rtol=1e-8, atol=1e-8)
    assert torch.equal(present, here) and len(fusion.layers) == 2


@pytest.mark.parametrize("normalizer", ["softmax", "dnas", "hnas"])
def test_with_one_other_view_both_ways_are_the_same(normalizer):
    tables = visual_tables(normalizer, ["content", "learned"])
    joint, one_each = (
        rough_module(Fusion(visual_shape(fusion_views=kind), tables, WIDTHS[:2], MOST[:2]))
        for kind in ("joint", "per_view")
    )
    names = {name: name.replace("layers.0.", "") for name, _ in one_each.named_parameters()}
    one_each.load_state_dict({name: joint.get_parameter(theirs) for name, theirs in names.items()})
    views = image_views()[:2]
    assert torch.equal(one_each(views)[0], joint(views)[0])


def test_each_box_keeps_one_over_the_boxes_of_its_own_view():
    """The bound of the paper, 1/100 for views of 100 boxes. One attention over all views only promises 1/200."""
    views, least = image_views(), {}
    for normalizer in ("softmax", "dnas", "hnas"):
        fusion = per_view(normalizer)
        with torch.no_grad():
            for layer in fusion.layers:
                layer.attention.query.weight *= 20  # sharp weights
        shares = []
        for (weights, allowed), (_, there, _) in zip(weights_per_view(fusion, views), views[1:], strict=True):
            seen = views[0][1].any(1) & there.any(1)
            mass = smallest_column_mass(weights, allowed)[seen]  # (B, H)
            shares.append((mass * there.sum(1)[seen, None]).min().item())
        least[normalizer] = min(shares)
    assert least["dnas"] >= 1 - 1e-9 and least["hnas"] >= 0.5 - 1e-9 and least["softmax"] < 0.1


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


@pytest.mark.parametrize("kind", [Pythia, MCAN])
def test_a_new_model_starts_from_the_primary_view_alone(kind):
    ids, views = questions(), [(x.float(), here, place.float()) for x, here, place in image_views()]
    alone, fused = (
        visual_model(kind, "hnas", **settings).eval()
        for settings in ({"fusion": "single"}, {"fusion": "attention", "fusion_views": "per_view"})
    )
    assert torch.equal(alone(ids, views), fused(ids, views))
    fused(ids, views).square().sum().backward()
    assert all(layer.attention.output.weight.grad.any() for layer in fused.fusion.layers)  # and may leave it


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
