"""Building by names, options and dotted paths, with errors that say what was wrong and what would be right."""

import re

import builders
import pytest
import torch
from torch.testing import assert_close

from attnorm.attention import Normalizer, build_normalizer, check_attention
from attnorm.attention.names import PRIORS, SCORERS, build_prior, build_scorer
from attnorm.attention.priors import needs_of
from attnorm.attention.scorers import Scorer
from attnorm.attention.site import Site

pytestmark = pytest.mark.numerical

NAMES = ["softmax", "dnas", "hnas"]

USERS_MODULE = """
from attnorm.attention import Normalizer


class Uniform(Normalizer):
    couples_queries = "none"

    def __init__(self, sharpness=1.0):
        super().__init__()
        self.sharpness = sharpness

    def forward(self, scores, mask=None, *, log_prior=None, keys=None, scale=None):
        return (self.sharpness * scores).softmax(-1)
"""


@pytest.fixture
def users_module(tmp_path, monkeypatch):
    """An importable module of a user's own, under a name of its own in each test."""
    name = f"users_normalizers_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(USERS_MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def assert_mentions(error, *words):
    missing = [word for word in words if word not in str(error.value)]
    assert not missing, f"{missing} not in: {error.value}"


def named(word, error):
    """How often the message says `word`, not counting longer names that contain it."""
    return len(re.findall(rf"\b{word}\b", str(error.value)))


@pytest.mark.parametrize("name", NAMES)
def test_a_name_builds_a_normalizer_that_is_a_module_with_both_calls(name):
    module = build_normalizer(name)
    assert isinstance(module, Normalizer) and isinstance(module, torch.nn.Module)
    q, k, v = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 4)
    assert module(q @ k.transpose(-1, -2)).shape == (1, 2, 3, 5)
    assert module.attend(q, k, v).shape == (1, 2, 3, 4)


@pytest.mark.parametrize("wrong, nearest", [("sofmax", "softmax"), ("dnass", "dnas"), ("hnaz", "hnas")])
def test_a_wrong_name_is_refused_with_the_names_and_the_nearest(wrong, nearest):
    with pytest.raises(ValueError) as error:
        build_normalizer(wrong)
    assert_mentions(error, wrong, *NAMES)
    assert named(nearest, error) >= 2, f"in the list, and as the nearest: {error.value}"


def test_a_name_that_resembles_nothing_still_lists_the_names():
    with pytest.raises(ValueError) as error:
        build_normalizer("zzzzzz")
    assert_mentions(error, "zzzzzz", *NAMES)


def test_a_wrong_option_is_refused_with_the_options_and_the_nearest():
    with pytest.raises(ValueError) as error:
        build_normalizer("hnas", strat=0.3)
    assert_mentions(error, "hnas", "strat", "start", "form", "per", "heads")
    assert named("start", error) >= 2, f"in the list, and as the nearest: {error.value}"


@pytest.mark.parametrize("name", ["softmax", "dnas"])
def test_an_option_for_a_normalizer_without_options_is_refused(name):
    with pytest.raises(ValueError) as error:
        build_normalizer(name, start=0.3)
    assert_mentions(error, name, "start")


# ------------------------------------------------------------------------------------------ dotted paths


def test_a_dotted_path_builds_a_users_class_with_its_options(users_module):
    assert type(build_normalizer(f"{users_module}:Uniform")).__name__ == "Uniform"
    assert build_normalizer(f"{users_module}:Uniform", sharpness=2.0).sharpness == 2.0


def test_a_users_class_gets_attend_from_its_forward(users_module):
    module = build_normalizer(f"{users_module}:Uniform", sharpness=2.0)
    q, k, v = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 4)
    assert_close(module.attend(q, k, v), (2.0 * q @ k.transpose(-1, -2) / 2).softmax(-1) @ v)
    assert_close(module.attend(q, k, v, scale=3.0), (6.0 * q @ k.transpose(-1, -2)).softmax(-1) @ v)


def test_a_wrong_option_for_a_users_class_is_refused_in_the_same_words(users_module):
    with pytest.raises(ValueError) as error:
        build_normalizer(f"{users_module}:Uniform", sharpnes=2.0)
    assert_mentions(error, "sharpnes", "sharpness")


@pytest.mark.parametrize("path", ["no_such_package.module:Class", "attnorm.no_such_module:Class"])
def test_a_dotted_path_to_no_module_is_refused_by_name(path):
    with pytest.raises((ValueError, ImportError)) as error:
        build_normalizer(path)
    assert_mentions(error, path)


def test_a_dotted_path_to_no_class_is_refused_by_name(users_module):
    with pytest.raises((ValueError, ImportError)) as error:
        build_normalizer(f"{users_module}:Unifrom")
    assert_mentions(error, users_module, "Unifrom")


def test_a_dotted_path_to_what_is_not_a_normalizer_is_refused_by_name():
    with pytest.raises((ValueError, ImportError)) as error:
        build_normalizer("collections:OrderedDict")
    assert_mentions(error, "collections:OrderedDict", "Normalizer")


@pytest.mark.parametrize("build", [build_normalizer, build_scorer, build_prior])
@pytest.mark.parametrize("path", ["collections:OrderedDict", "math:sqrt"])
def test_a_dotted_path_to_what_is_not_of_the_kind_is_refused_by_name(build, path):
    with pytest.raises(ValueError) as error:
        build(path)
    assert_mentions(
        error, path, "must be a subclass of", {"build_prior": "Module"}.get(build.__name__, "attnorm.attention")
    )


# ------------------------------------------------------------------------------------------ priors and scorers

SITES = {"encoder": False, "decoder": True, "cross": True}
OF_THE_MODEL = "not an option here; the model determines it"
PART_OPTIONS = {  # what a part needs to be built by itself
    "t5": {"heads": 2},
    "alibi": {"heads": 2},
    "positional": {"heads": 2},
    "learned": {"positions": 32, "heads": 2},
    "content": {"width": 16, "heads": 2},
    "bilinear": {"width": 16, "heads": 2},
    "additive": {"width": 16, "heads": 2},
    "qk_norm": {"width": 16, "heads": 2},
}


def tables(scorer="scaled_dot", priors=(), **options):
    """Attention tables with these at every site."""
    found = builders.attention_tables(priors={site: list(priors) for site in SITES}, options=options)
    return {**found, "scorer": dict.fromkeys(SITES, scorer)}


@pytest.mark.parametrize("name", PRIORS)
def test_a_prior_can_be_built_and_called_alone(name):
    prior = build_prior(name, **PART_OPTIONS.get(name, {}))
    facts = {"masked_positions": torch.rand(3, 5) < 0.5}
    given = {fact: facts[fact] for fact in needs_of(prior)}
    log_u = prior(4, 5, 0, torch.randn(3, 5, 16), None, **given)
    assert torch.broadcast_shapes(log_u.shape, (3, 2, 4, 5)) == (3, 2, 4, 5) and not log_u.isnan().any()


@pytest.mark.parametrize("name", SCORERS)
def test_a_scorer_can_be_built_and_called_alone(name):
    scorer = build_scorer(name, **PART_OPTIONS.get(name, {}))
    scores = scorer(torch.randn(3, 2, 4, 16), torch.randn(3, 2, 5, 16))
    assert isinstance(scorer, Scorer) and scores.shape == (3, 2, 4, 5)


@pytest.mark.parametrize("scorer", SCORERS)
def test_tables_with_any_prior_and_scorer_are_sound(scorer):
    for priors in ([], *([name] for name in PRIORS), list(PRIORS)):
        assert check_attention(tables(scorer, priors), SITES) == []


@pytest.mark.parametrize(
    ("attention", "words"),
    [
        (tables(priors=["learnt"]), "Did you mean 'learned'?"),
        (tables(scorer="gausian"), "Did you mean 'gaussian'?"),
        (tables(scorer="math:sqrt"), "must be a subclass of attnorm.attention.scorers.Scorer"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_prior_or_scorer_is_one_problem_a_site_that_names_its_key(attention, words):
    table = "prior" if attention["prior"]["encoder"] else "scorer"
    problems = check_attention(attention, SITES)
    assert len(problems) == 3
    for site, problem in zip(SITES, problems, strict=True):
        assert problem.startswith(f"attention.{table}.{site}=") and words in problem


@pytest.mark.parametrize(
    ("attention", "expected"),
    [
        (tables(priors=["content"], content={"hidden": 0}), "content.hidden=0: allowed: whole numbers from 1"),
        (
            tables(priors=["content"], content={"hiden": 3}),
            "content.hiden=3: no such option; allowed: hidden, activation. Did you mean 'hidden'?",
        ),
        (tables(priors=["t5"], t5={"buckets": "x"}), "t5.buckets='x': allowed: whole numbers from 4"),
        (tables(scorer="gaussian", gaussian={"sigma": 2}), "gaussian.sigma=2: no such option; it takes none."),
        (tables(priors=["content"], content={"width": 3}), f"content.width=3: {OF_THE_MODEL}"),
        (tables(priors=["learned"], learned={"positions": 3}), f"learned.positions=3: {OF_THE_MODEL}"),
        (tables(scorer="bilinear", bilinear={"heads": 2}), f"bilinear.heads=2: {OF_THE_MODEL}"),
        (
            {"_default_": "hnas_prefix", "options": {"hnas_prefix": {"place": 2}}},
            f"hnas_prefix.place=2: {OF_THE_MODEL}",
        ),
        (
            {"_default_": "hnas_prefix", "options": {"hnas_prefix": {"heads": 2}}},
            f"hnas_prefix.heads=2: {OF_THE_MODEL}",
        ),
        (
            {"_default_": "hnas_prefix", "options": {"hnas_prefix": {"strt": 0.5}}},
            "hnas_prefix.strt=0.5: no such option; allowed: start, form, per, fixed. Did you mean 'start'?",
        ),
        (
            {
                "_default_": "mix",
                "encoder": "mix",
                "options": {"mix": {"members": ["softmax", {"name": "ot", "gama": 1}]}},
            },
            "mix.members=['softmax', {'name': 'ot', 'gama': 1}]: normalizer 'ot': gama=1: no such option; allowed:",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_option_is_one_problem_that_names_its_key_however_many_sites_use_it(attention, expected):
    [problem] = check_attention(attention, SITES)
    assert problem.startswith(f"attention.options.{expected}")


def test_a_site_gives_its_parts_the_sizes_of_the_model():
    attention = tables("additive", ["content", "learned", "t5"], content={"hidden": 7}, t5={"bidirectional": False})
    prior = Site(attention, "cross").prior(heads=3, bidirectional=True, positions=9, width=12)
    content, learned, t5 = prior.priors.values()
    assert [content.network[i].weight.shape for i in (0, 2)] == [(7, 12), (3, 7)]
    assert learned.log_u.shape == (3, 9)
    assert t5.bias.weight.shape == (32, 3) and not t5.bidirectional  # a direction may be typed, a size not
    scorer = Site(attention, "cross").layer(12, 3).scorer
    assert scorer.v.shape == (3, 4) and scorer.key.weight.shape == (4, 4)


def test_a_site_without_priors_has_none_and_a_prior_is_named_the_same_whichever_others_are_there():
    facts = {"heads": 2, "bidirectional": True, "positions": 9, "width": 12}
    assert Site(tables(), "encoder").prior(**facts) is None
    alone, beside = (Site(tables(priors=names), "encoder").prior(**facts) for names in (["t5"], ["alibi", "t5"]))
    assert [name for name, _ in alone.named_parameters()] == [name for name, _ in beside.named_parameters()]


def test_a_prior_named_twice_at_a_site_is_refused():
    problem, *_ = check_attention(tables(priors=["t5", "t5"]), SITES)
    assert problem == "attention.prior.encoder=['t5', 't5']: expected each name once"


def test_what_has_no_gradient_is_refused_for_training():
    [problem] = check_attention({**tables(), "encoder": "argmax"}, SITES)
    assert problem.startswith("attention.encoder=argmax: argmax has no gradient")


def test_an_option_without_a_default_has_to_be_given():
    with pytest.raises(ValueError, match=r"prior 't5': needs a value for heads"):
        build_prior("t5")


# ------------------------------------------------------------------------------------------ options of hnas


@pytest.mark.parametrize("name", ["softmax", "dnas"])
def test_a_normalizer_without_options_has_nothing_to_train(name):
    assert not list(build_normalizer(name).parameters())


@pytest.mark.parametrize("form", ["sigmoid", "clamp"])
@pytest.mark.parametrize("start", [0.1, 0.5, 0.9])
def test_hnas_starts_where_it_is_told_one_weight_a_layer_or_one_a_head(start, form):
    layer, heads = (
        build_normalizer("hnas", start=start, form=form),
        build_normalizer("hnas", start=start, form=form, per="head", heads=3),
    )
    for module, shape in ((layer, (1,)), (heads, (3,))):
        (parameter,) = module.parameters()
        assert parameter.requires_grad and parameter.numel() == shape[0]
        assert_close(module.hybrid_weight(), torch.full(shape, start))
        assert module.hybrid_weight().requires_grad


def test_hnas_without_options_starts_at_one_half_in_the_sigmoid_form():
    module = build_normalizer("hnas")
    (parameter,) = module.parameters()
    assert_close(module.hybrid_weight(), torch.tensor([0.5]))
    with torch.no_grad():
        parameter.fill_(3.0)
    assert_close(module.hybrid_weight(), torch.sigmoid(torch.tensor([3.0])))


@pytest.mark.parametrize("start", [0.0, 1.0, 0, 1])
def test_a_start_at_the_end_is_refused_by_the_sigmoid_form_and_taken_by_clamp(start):
    with pytest.raises(ValueError) as error:
        build_normalizer("hnas", start=start, form="sigmoid")
    assert_mentions(error, "start", "clamp", str(start))
    assert build_normalizer("hnas", start=start, form="clamp").hybrid_weight().tolist() == [float(start)]


@pytest.mark.parametrize("form", ["sigmoid", "clamp"])
@pytest.mark.parametrize("start", [-0.1, 1.1, float("nan")])
def test_a_start_outside_zero_to_one_is_refused(start, form):
    with pytest.raises(ValueError) as error:
        build_normalizer("hnas", start=start, form=form)
    assert_mentions(error, "start", str(start), "0", "1")


def test_an_unknown_form_is_refused_with_the_forms():
    with pytest.raises(ValueError) as error:
        build_normalizer("hnas", form="tanh")
    assert_mentions(error, "form", "tanh", "sigmoid", "clamp")


def test_an_unknown_per_is_refused_with_the_choices():
    with pytest.raises(ValueError) as error:
        build_normalizer("hnas", per="query")
    assert_mentions(error, "per", "query", "layer", "head")


def test_a_weight_per_head_without_the_number_of_heads_is_refused():
    with pytest.raises(ValueError) as error:
        build_normalizer("hnas", per="head")
    assert_mentions(error, "heads")


def test_project_puts_a_clamped_weight_back_between_zero_and_one_in_place():
    module = build_normalizer("hnas", form="clamp", per="head", heads=4)
    (parameter,) = module.parameters()
    address = parameter.data_ptr()
    with torch.no_grad():
        parameter.copy_(torch.tensor([1.7, -0.4, 0.25, 1.0]).reshape(parameter.shape))
    module.project_()
    assert module.hybrid_weight().tolist() == [1.0, 0.0, 0.25, 1.0]
    assert parameter.reshape(-1).tolist() == [1.0, 0.0, 0.25, 1.0]
    assert next(module.parameters()) is parameter and parameter.data_ptr() == address


@pytest.mark.parametrize("start, sign", [(0.0, 1.0), (1.0, -1.0)])
def test_a_clamped_weight_at_its_end_can_be_trained_away_from_it(start, sign):
    module = build_normalizer("hnas", start=start, form="clamp")
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    (-sign * module.hybrid_weight().sum()).backward()
    optimizer.step()
    module.project_()
    assert_close(module.hybrid_weight(), torch.tensor([start + 0.1 * sign]))


def test_the_hybrid_weight_travels_in_the_state_dict():
    source, target = build_normalizer("hnas", start=0.2), build_normalizer("hnas", start=0.8)
    target.load_state_dict(source.state_dict())
    assert torch.equal(target.hybrid_weight(), source.hybrid_weight())
