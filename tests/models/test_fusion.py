"""Fusion: views side by side, or the primary's boxes attending to the others' with any normalizer."""

import pytest
import torch
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
    reordered,
    rough_fusion,
    rough_module,
    rows_of,
    visual_shape,
    visual_tables,
)

from attnorm.attention.multihead import observe, smallest_column_mass
from attnorm.attention.names import NORMALIZERS
from attnorm.models.vqa.config import VqaModelConfig
from attnorm.models.vqa.fusion import Fusion

pytestmark = pytest.mark.numerical

WIDTH = 8
ORDER_BLIND = ["softmax", "dnas", "hnas", "sinkhorn", "ot", "fenchel", "sparsemax", "entmax"]


def weights_of(fusion, views):
    """The weights and what is allowed, (B, H, N, M) each."""
    seen = []
    with observe(fusion, lambda name, weights, allowed: seen.append((weights, allowed))):
        fusion(views)
    assert len(seen) == 1  # one call of attention for all views
    return seen[0]


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


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("normalizer", ["softmax", "dnas", "hnas", "sinkhorn"])
def test_the_primary_boxes_attend_to_the_boxes_of_all_other_views(normalizer, heads):
    views, fusion = image_views(), rough_fusion(normalizer=normalizer, fusion_heads=heads)
    primary, *others = boxes_by_formula(fusion, views)
    here, there = views[0][1], torch.cat([views[1][1], views[2][1]], 1)
    found = attend_by_loops(fusion.attention, normalizer, primary, torch.cat(others, 1), here, there)
    live = here & there.any(1, keepdim=True)
    expected = normed(primary + found * live[..., None], fusion.norm)
    states, present = fusion(views)
    assert_close(states, expected, **TIGHT)
    parameters = list(fusion.parameters())
    found, wanted = (torch.autograd.grad(x.pow(3).sum(), parameters) for x in (states, expected))
    for one, other in zip(found, wanted, strict=True):
        assert_close(one, other, rtol=1e-8, atol=1e-8)
    assert torch.equal(present, here) and fusion.attention.heads == heads


@pytest.mark.parametrize("normalizer", ["softmax", "dnas", "hnas"])
def test_the_memory_linear_path_gives_the_same(normalizer, monkeypatch):
    views, fusion = image_views(), rough_fusion(normalizer=normalizer)
    dense, _ = fusion(views)
    dense_from(0, monkeypatch)
    assert_close(fusion(views)[0], dense, **TIGHT)


def test_where_a_box_is_counts_if_the_shape_says_so():
    views = image_views()
    moved = [(features, here, place / 2) for features, here, place in views]
    nowhere = [(features, here, None) for features, here, _ in views]
    assert not torch.isclose(rough_fusion()(views)[0], rough_fusion()(moved)[0]).all(-1).any()
    blind = rough_fusion(geometry=False)
    assert torch.equal(blind(views)[0], blind(moved)[0]) and torch.equal(blind(views)[0], blind(nowhere)[0])
    with pytest.raises(ValueError, match="geometry=True: this view has no box positions; use geometry=False"):
        rough_fusion()(nowhere)


# ------------------------------------------------------------------------------------------- fusion without other views


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


# ------------------------------------------------------------------------------------------------------- absent boxes


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


@pytest.mark.parametrize("normalizer", ["softmax", "dnas", "hnas", "sinkhorn", "ot"])
@pytest.mark.parametrize("priors", [(), ("content",)])
def test_what_stands_at_an_absent_box_changes_nothing(normalizer, priors):
    views, fusion = image_views(), rough_fusion(tables=visual_tables(normalizer, priors))
    junk = [(x.where(here[..., None], 50.0), here, g.where(here[..., None], 0.9)) for x, here, g in views]
    states, present = fusion(views)
    assert_close(fusion(junk)[0][present], states[present], **TIGHT)
    weights, allowed = weights_of(fusion, views)
    assert not weights[~allowed.expand_as(weights)].any()


@pytest.mark.parametrize("normalizer", ["softmax", "dnas", "hnas", "sinkhorn", "entmax"])
def test_an_image_without_any_box_is_finite_in_value_and_gradient(normalizer):
    views, fusion = image_views(), rough_fusion(tables=visual_tables(normalizer, ["content", "learned"]))
    for _, present, _ in views:
        present[2:] = False
    states, _ = fusion(views)
    states.square().sum().backward()
    assert states.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in fusion.parameters())


@pytest.mark.parametrize("normalizer", ["dnas", "hnas"])
def test_an_absent_primary_box_stays_out_of_the_column_step(normalizer):
    views, fusion = image_views(), rough_fusion(normalizer=normalizer)
    before, present = fusion(views)
    views[0][0][:, 1] += 3  # absent in the second and third image
    after = fusion(views)[0]
    others = present.clone()
    others[:, 1] = False
    assert_close(after[1:][others[1:]], before[1:][others[1:]], **TIGHT)
    assert not torch.isclose(after[0][others[0]], before[0][others[0]]).all()


# --------------------------------------------------------------------------------------------------- order and batches


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


@pytest.mark.parametrize(
    ("normalizer", "priors"),
    [("dnas", ["learned"]), ("hnas", ["t5"]), ("softmax", ["alibi", "content"]), ("fusedmax", []), ("dnas_prefix", [])],
)
def test_the_place_of_a_box_does_not_depend_on_the_batch(normalizer, priors):
    views, fusion = image_views(), rough_fusion(tables=visual_tables(normalizer, priors))
    states, present = fusion(views)
    for row, last in enumerate([[4, 3, 5], [4, 3, 5], [2, 3, 0], [0, 1, 3]]):
        cut = [torch.arange(n) for n in last]  # what stands behind is absent
        alone, here = fusion(chosen(views, row, cut))
        assert_close(alone[here], states[row, present[row]], **TIGHT)
    single_row = fusion(rows_of(views, [1]))[0]
    assert_close(single_row[0], states[1], **TIGHT)


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


# ------------------------------------------------------------------------------------------------- not explained away


def test_every_box_that_is_seen_keeps_its_share_with_dnas_and_not_with_softmax():
    views = image_views()
    least = {}
    for normalizer in ("softmax", "dnas", "hnas"):
        fusion = rough_fusion(normalizer=normalizer)
        with torch.no_grad():
            fusion.attention.query.weight *= 20  # sharp weights
        weights, allowed = weights_of(fusion, views)
        keys = allowed.any(-2).sum(-1)  # (B, 1), those that some primary box may see
        mass = smallest_column_mass(weights, allowed) * keys
        least[normalizer] = mass[keys > 0].min().item()
        assert (weights.sum(-1)[allowed.any(-1)] - 1).abs().max() < 1e-12
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


def test_every_parameter_gets_a_gradient():
    fusion = rough_fusion(tables=visual_tables("hnas", ["content", "learned"], "additive"))
    weight = torch.randn(WIDTH, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    states, present = fusion(image_views())
    (states[present] @ weight).square().sum().backward()
    idle = [n for n, p in fusion.named_parameters() if p.grad is None or not (p.grad.isfinite().all() and p.grad.any())]
    assert idle == []


@pytest.mark.parametrize(
    ("kind", "views", "message"),
    [
        ("attention", 1, "fusion='attention': requires at least 2 views of an image, but the data has 1"),
        ("attention", 0, "fusion='attention': requires at least 2 views of an image, but the data has 0"),
        ("concat", 0, "fusion='concat': requires at least 1 views of an image, but the data has 0"),
        ("single", 0, "fusion='single': requires at least 1 views of an image, but the data has 0"),
    ],
)
def test_a_fusion_wants_its_views(kind, views, message):
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
    sizes = {"d_model": 8, "n_heads": 4, "ffn_dim": 20, "norm_first": norm_first, "dropout": 0.3}
    shape = VqaModelConfig(fusion="none", word_width=3, hidden=5, max_question=7, layers=3, **sizes).transformer()
    assert {name: getattr(shape, name) for name in sizes} == sizes
    assert (shape.encoder_layers, shape.max_source, shape.type_vocab_size) == (3, 7, 0)
