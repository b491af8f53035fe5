"""Models for visual questions. Pythia: a question pooled, one look at the fused boxes, a product. MCAN: self-attention
over the question, boxes guided by one another and by the question, both pooled. And what every such model has in
common."""

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
    MAX_QUESTION,
    MOST,
    TIGHT,
    VISUAL_SITES,
    WIDTHS,
    as_floats,
    attend_by_loops,
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

from attnorm.attention.multihead import attention_layers, observe
from attnorm.attention.registry import NORMALIZERS
from attnorm.choices import choices
from attnorm.models.encoder import Encoder
from attnorm.models.initialize import initialize
from attnorm.models.vqa.mcan import MCAN
from attnorm.models.vqa.pythia import Pythia
from attnorm.parts import class_of

pytestmark = pytest.mark.numerical

FUSIONS = ["none", "single", "concat", "attention"]
KINDS = [(fusion, question) for fusion in FUSIONS for question in ("gru", "transformer")]
MODELS = pytest.mark.parametrize("kind", [Pythia, MCAN])
PLACED = [("dnas", ["learned"]), ("hnas", ["t5", "alibi"]), ("softmax", ["alibi", "content"])]  # by the place of a key
PLACED += [("fusedmax", []), ("dnas_prefix", [])]


def linear(layer, x):
    return x @ layer.weight.T + (0 if layer.bias is None else layer.bias)


def pooled(pool, states, real):
    return average_by_loops(states, linear(pool.score, linear(pool.inner, states).clamp(min=0)).squeeze(-1), real)


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


# ------------------------------------------------------------------------------------------------------------- formulas


@pytest.mark.parametrize(("fusion", "question"), KINDS)
def test_the_scores_of_pythia_are_those_of_the_formula(fusion, question):
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
    q = normed(pooled(model.pool, states, real)[0], model.norm)
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


@pytest.mark.long
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize(("fusion", "normalizer"), [("none", "dnas"), *((kind, "hnas") for kind in FUSIONS[1:])])
def test_the_scores_of_mcan_are_those_of_the_formula(fusion, normalizer, norm_first):
    model = rough_visual(MCAN, normalizer, fusion=fusion, norm_first=norm_first)
    ids, views = questions(), image_views()
    real = ids != PAD
    question = model.encoder(ids, real)
    q, _ = pooled(model.question_pool, question, real)
    joint, weights = linear(model.question, q), None
    if fusion != "none":
        x, present = model.fusion(views)
        for layer in model.guided:
            x = layer_by_loops(layer, normalizer, x, question, present, real, norm_first)
        x = normed(x, model.last_norm) if norm_first else x
        v, weights = pooled(model.pool, x, present)
        joint = joint + linear(model.image, v)
    expected = linear(model.classifier, normed(joint, model.norm))
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


def test_a_transformer_reads_the_question_with_the_settings_and_the_site_of_the_encoder():
    model = visual_model(Pythia, "hnas", question="transformer", layers=3, norm_first=True)
    assert isinstance(model.encoder, Encoder) and model.words.gru is None
    layers = [name for name in attention_layers(model) if name.startswith("encoder")]
    assert len(layers) == 3 and not isinstance(model.encoder.norm, nn.Identity)
    tables = visual_tables("hnas", only="encoder")
    model = visual_model(Pythia, tables=tables, question="transformer")
    names = {n: type(layer.normalizer).__name__ for n, layer in attention_layers(model).items()}
    assert set(names.values()) == {"HNAS", "Softmax"} and names["fusion.attention"] == "Softmax"


@pytest.mark.parametrize("question", ["gru", "transformer"])
def test_the_question_attends_to_itself_after_a_gru_or_not(question):
    model, ids = rough_visual(MCAN, question=question, layers=3), questions()
    assert (model.words.gru is None) == (question == "transformer") and len(model.encoder.layers) == 3
    states = model.words(ids) + model.encoder.embeddings.positions.weight[: ids.shape[1]]
    assert_close(model.encoder.embeddings(ids), states, **TIGHT)


# ---------------------------------------------------------------------------------------------- padding, batches, order


@pytest.mark.long
@MODELS
@pytest.mark.parametrize("normalizer, question", few(zip(NORMALIZERS, cycle(["transformer", "gru"]), strict=False)))
def test_neither_padding_nor_absent_boxes_nor_the_rest_of_the_batch_matter(kind, normalizer, question):
    model = rough_visual(kind, tables=visual_tables(normalizer, ["content"]), question=question)
    ids, views = questions(), image_views()
    scores, longer = model(ids, views), model(F.pad(ids, (0, 1), value=PAD), views)
    assert_close(longer, scores, **TIGHT)
    for row, length in enumerate(LENGTHS):
        alone = model(ids[row : row + 1, :length], rows_of(views, [row]))
        assert_close(alone[0], scores[row], **TIGHT)
        shorter = model(ids[row : row + 1, :length], chosen(views, row))
        assert_close(shorter[0], scores[row], **TIGHT)


@pytest.mark.parametrize("fusion", ["single", "concat", "attention"])
@pytest.mark.parametrize(("normalizer", "priors"), PLACED)
def test_the_place_of_a_box_does_not_depend_on_the_batch(fusion, normalizer, priors):
    model = rough_visual(MCAN, tables=visual_tables(normalizer, priors), fusion=fusion)
    ids, views = questions(), image_views()
    scores = model(ids, views)
    for row, last in enumerate([[4, 3, 5], [4, 3, 5], [2, 3, 0], [0, 1, 3]]):
        cut = [torch.arange(n) for n in last]  # what stands behind is absent
        alone = model(ids[row : row + 1, : LENGTHS[row]], chosen(views, row, cut))
        assert_close(alone[0], scores[row], **TIGHT)


@MODELS
@pytest.mark.parametrize("fusion", FUSIONS[1:])
@pytest.mark.parametrize("normalizer", ["softmax", "dnas", "hnas"])
def test_the_order_of_boxes_within_a_view_changes_no_answer_and_that_of_words_does(kind, fusion, normalizer):
    model = rough_visual(kind, normalizer, torch.float32, fusion=fusion)
    ids, views = questions(), as_floats(image_views())
    scores = model(ids, views)
    for only in (None, 0, 2):
        again, _ = reordered(views, only)
        assert_close(model(ids, again), scores, **CLOSE)
    assert not torch.isclose(model(ids[:1].flip(1), rows_of(views, [0])), scores[:1]).any()


@pytest.mark.parametrize("fusion", FUSIONS[1:])
def test_each_view_that_is_used_counts(fusion):
    model, ids, views = rough_visual(Pythia, fusion=fusion), questions(), image_views()
    scores = model(ids, views)
    for number in range(3):
        changed = list(views)
        changed[number] = (views[number][0] + 1, *views[number][1:])
        moved = not torch.isclose(model(ids, changed)[0], scores[0]).any()
        assert moved == (number == 0 or fusion != "single")


# ---------------------------------------------------------------------------------------------------- what is not there


@MODELS
@pytest.mark.parametrize("normalizer", ["softmax", "dnas", "hnas", "sinkhorn", "sparsemax"])
def test_without_other_views_all_fusions_agree(kind, normalizer):
    ids, views = questions(), masked(as_floats(image_views()))
    actual = {
        fusion: rough_visual(kind, normalizer, torch.float32, fusion=fusion)(ids, views) for fusion in FUSIONS[1:]
    }
    assert torch.equal(actual["attention"], actual["single"])
    assert_close(actual["concat"], actual["single"], **CLOSE)


@pytest.mark.parametrize(("kind", "question"), [(Pythia, "gru"), (Pythia, "transformer"), (MCAN, "gru")])
def test_the_question_alone(kind, question):
    model, ids = rough_visual(kind, "dnas", fusion="none", question=question, widths=[], most=[]), questions()
    scores = model(ids, [])
    assert scores.shape == (4, ANSWERS) and scores.isfinite().all()
    assert not torch.isclose(model(ids[:1].flip(1), []), scores[:1]).any()  # the order of words matters
    assert torch.equal(scores, rough_visual(kind, "dnas", fusion="none", question=question)(ids, image_views()))
    parts = ("fusion", "top_down", "image", "guided")
    assert not [name for name, _ in model.named_parameters() if name.startswith(parts)]
    with pytest.raises(ValueError, match="fusion='none': this model does not use boxes"):
        model.attention_over_boxes(ids, [])


@pytest.mark.parametrize(("fusion", "question"), KINDS)
@pytest.mark.parametrize(("kind", "norm_first"), [(Pythia, False), (MCAN, False), (MCAN, True)])
def test_without_boxes_or_words_all_is_finite_and_the_question_still_counts(kind, fusion, question, norm_first):
    tables = visual_tables("hnas", ["content", "learned"])
    model = rough_visual(kind, tables=tables, fusion=fusion, question=question, norm_first=norm_first)
    ids, views = questions(), image_views()
    ids[3] = PAD
    for _, present, _ in views:
        present[:2] = False
    scores = model(ids, views)
    scores.square().sum().backward()
    assert scores.isfinite().all()
    assert kind is Pythia or not torch.isclose(scores[0], scores[1]).any()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


# -------------------------------------------------------------------------------------------------- attention and sites


@pytest.mark.parametrize(
    ("kind", "fusion"), [*((Pythia, fusion) for fusion in FUSIONS[1:]), (MCAN, "attention")], ids=str
)
def test_the_question_weighs_the_boxes_that_are_present(kind, fusion):
    model, ids, views = rough_visual(kind, "dnas", fusion=fusion, fusion_heads=2), questions(), image_views()
    before = model(ids, views)
    weights, fused = model.attention_over_boxes(ids, views)
    here = torch.cat([present for _, present, _ in (views if fusion == "concat" else views[:1])], 1)
    assert weights.shape == here.shape and not weights[~here].any() and (weights[here] > 0).all()
    assert_close(weights.sum(1), here.any(1).double(), **TIGHT)
    assert not weights.requires_grad
    other, _ = model.attention_over_boxes(ids[[2, 2, 2, 2]], views)
    assert not torch.isclose(weights[0], other[0]).any()  # the question decides where to look
    if fusion == "attention":
        existing = torch.cat([views[1][1], views[2][1]], 1)
        seen = here[:, None, :, None] & existing[:, None, None, :]
        assert fused.shape == (4, 2, MOST[0], MOST[1] + MOST[2]) and not fused[~seen.expand_as(fused)].any()
        assert_close(fused.sum(-1), seen.any(-1).expand(4, 2, -1).double(), **TIGHT)
        share = fused.sum(-2) * existing.sum(-1)[:, None, None]
        assert (share[existing[:, None].expand_as(share) & here.any(1)[:, None, None]] >= 1 - 1e-9).all()  # Lemma 1
    else:
        assert fused is None
    assert all(layer.observer is None for layer in attention_layers(model).values())
    assert torch.equal(model(ids, views), before)


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


@MODELS
def test_the_sites_are_those_that_the_settings_use(kind):
    for fusion, question in KINDS:
        sites = kind.sites_of({"fusion": fusion, "question": question, "d_model": 8})
        layers = attention_layers(visual_model(kind, fusion=fusion, question=question))
        assert list(sites) == [site for site in kind.sites if site in {name.split(".")[0] for name in layers}]
        assert not any(sites.values())
    assert class_of("model", choices("model")["vqa_tiny" if kind is Pythia else "mcan_small"]) is kind
    assert kind.sites == dict.fromkeys(["fusion", "encoder"] + ["guided"] * (kind is MCAN), False)
    unset = [] if kind is Pythia else ["encoder", "guided"]
    assert list(kind.sites_of({})) == list(kind.sites_of({"fusion": 3, "question": None})) == unset


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


@pytest.mark.parametrize(
    ("kind", "settings"),
    [(Pythia, {"fusion": "concat", "question": "transformer"}), (Pythia, {"fusion": "attention"})]
    + [(MCAN, {"fusion": fusion}) for fusion in FUSIONS],
    ids=str,
)
def test_tables_need_no_more_than_the_sites_that_are_used(kind, settings):
    used, full = kind.sites_of({"question": "gru", **settings}), visual_tables("hnas")
    tables = {**dict.fromkeys(used, "hnas"), "prior": {site: [] for site in used}, "options": {}}
    tables["scorer"] = dict.fromkeys(used, "scaled_dot")
    ids, views = questions(), as_floats(image_views())
    expected, outcome = (visual_model(kind, tables=it, **settings).eval()(ids, views) for it in (full, tables))
    assert torch.equal(expected, outcome)
    full |= {site: "nothing that exists" for site in VISUAL_SITES if site not in used}
    visual_model(kind, tables=full, **settings)


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


# --------------------------------------------------------------------------------------------------- initial parameters


@MODELS
def test_variants_start_bit_equal_in_what_they_share(kind):
    seen = {}
    for fusion, question in KINDS:
        for tables in (visual_tables(), visual_tables("hnas", ["content", "t5"], "additive")):
            model = visual_model(kind, tables=tables, fusion=fusion, question=question)
            for name, parameter in model.named_parameters():
                assert torch.equal(parameter, seen.setdefault(name, parameter)), name
    pythia = dict(visual_model(Pythia).named_parameters())
    shared = [name for name in pythia if name.startswith(("words.", "fusion."))]
    assert len(shared) > 10 and all(torch.equal(pythia[name], seen[name]) for name in shared)
    other = dict(visual_model(kind, seed=1).named_parameters())
    matrices = [name for name in other if other[name].any() and other[name].ndim > 1]
    assert matrices and not any(torch.equal(other[name], seen[name]) for name in matrices)


@MODELS
@pytest.mark.parametrize(
    ("normalizer", "fusion_views"), [("softmax", "joint"), ("dnas", "joint"), ("hnas", "joint"), ("hnas", "per_view")]
)
def test_a_model_that_fuses_starts_as_that_of_the_primary_view(kind, normalizer, fusion_views):
    ids, views = questions(), as_floats(image_views())
    alone = visual_model(kind, normalizer, fusion="single").eval()
    fused = visual_model(kind, normalizer, fusion_views=fusion_views).eval()
    assert torch.equal(fused(ids, views), alone(ids, views))
    fused(ids, views).square().sum().backward()
    layers = attention_layers(fused.fusion).values()
    assert all(layer.output.weight.grad.any() for layer in layers)  # and may leave it


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


# ------------------------------------------------------------------------------------------------------------- training


@pytest.mark.parametrize(("fusion", "question"), KINDS)
@pytest.mark.parametrize(("kind", "priors"), [(Pythia, ["content"]), (MCAN, ["content", "learned"])])
def test_every_parameter_gets_a_gradient(kind, priors, fusion, question):
    tables = visual_tables("hnas", priors)
    model = rough_visual(kind, tables=tables, fusion=fusion, question=question, norm_first=kind is MCAN)
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


def test_dropout_acts_in_training_only():
    model, plain = rough_visual(MCAN, dropout=0.5), rough_visual(MCAN)
    ids, views = questions(), image_views()
    assert torch.equal(model(ids, views), plain(ids, views))
    dropouts = {name for name, part in model.named_modules() if isinstance(part, nn.Dropout) and part.p == 0.5}
    residuals = ("encoder.layers.0.attention", "guided.1.cross", "guided.0.feed_forward")
    assert {f"{it}_residual.dropout" for it in residuals} <= dropouts
    assert {"fusion.dropout", "fusion.views.1.dropout", "encoder.embeddings.dropout"} <= dropouts
    assert not torch.isclose(model.train()(ids, views), plain(ids, views)).all(1).any()


@pytest.mark.parametrize(("kind", "question"), [(Pythia, "gru"), (Pythia, "transformer"), (MCAN, "gru")])
def test_it_runs_under_autocast(kind, question):
    model, ids, views = visual_model(kind, "hnas", question=question), questions(), as_floats(image_views())
    expected = model(ids, views)
    with torch.autocast("cpu", torch.bfloat16):
        found = model(ids, views)
    found.float().sum().backward()
    assert_close(found.float(), expected, rtol=0.1, atol=0.02 if kind is Pythia else 0.05)
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
