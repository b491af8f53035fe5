"""Building by names, options and dotted paths, with errors that say what was wrong and what would be right."""

import itertools
import math

import builders
import pytest
import torch
from torch.testing import assert_close

from attnorm.attention import build_normalizer, check_attention
from attnorm.attention.priors import needs_of
from attnorm.attention.registry import NORMALIZERS, PARTS, PRIORS, build_prior, build_scorer
from attnorm.attention.site import Site
from attnorm.imports import find, parameters

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
    return builders.users_module(tmp_path, monkeypatch, USERS_MODULE)


def assert_mentions(error, *words):
    missing = [word for word in words if word not in str(error.value)]
    assert not missing, f"{missing} not in: {error.value}"


FROM_1, ABOVE_0 = "allowed: whole numbers from 1", "allowed: numbers above 0"
BOOL, FINITE = "allowed: true, false", "allowed: finite numbers"
CLASS = "must be a subclass of attnorm.attention"
TWO = {"members": ["softmax", "dnas"]}
NAN, INF = math.nan, math.inf
WRONG_NORMALIZERS = [  # a name, options, and what the message says
    *(
        (wrong, {}, wrong, *NAMES, f"Did you mean '{near}'?")
        for wrong, near in (("sofmax", "softmax"), ("hnaz", "hnas"))
    ),
    *(("zzzzzz", {}, "zzzzzz", *NAMES), ("argmx", {}, "Did you mean 'argmax'?")),
    *((path, {}, path) for path in ("no_such_package.module:Class", "attnorm.no_such_module:Class")),
    *((path, {}, path, CLASS) for path in ("collections:OrderedDict", "math:sqrt")),
    *((name, {"start": 0.3}, name, "start") for name in ("softmax", "dnas")),
    ("hnas", {"strat": 0.3}, "hnas", "strat", "allowed: start, form, per", "Did you mean 'start'?"),
    *(("hnas", {"start": it, "form": "sigmoid"}, "start", "clamp", str(it)) for it in (0.0, 1.0, 0, 1)),
    *(
        ("hnas", {"start": start, "form": form}, "start", str(start), "0", "1")
        for start in (-0.1, 1.1, NAN)
        for form in ("sigmoid", "clamp")
    ),
    ("hnas", {"form": "tanh"}, "form", "tanh", "sigmoid", "clamp"),
    ("hnas", {"per": "query"}, "per", "query", "layer", "head"),
    ("hnas", {"per": "head"}, "heads"),
    ("hnas", {"fixed": 2}, "fixed=2: allowed: a number from 0 to 1, or a list with one per head"),
    ("dnas", {"beta": "norm"}, "beta='norm': allowed: None and 'learned'"),
    ("dnas", {"queries": 4}, "queries=4: has no effect without beta='learned'"),
    *(("sinkhorn", {"n_iters": it}, f"n_iters={it!r}: {FROM_1}") for it in (0, -1, 1.5, True, "two")),
    ("em_routing", {"n_iters": 0}, f"n_iters=0: {FROM_1}"),
    ("em_routing", {"beta": "normal"}, "beta='normal': allowed: norm, uniform, estimated, learned"),
    ("em_routing", {"sigma": 1.0}, "sigma=1.0: allowed: fixed, estimated"),
    ("em_routing", {"min_sigma": 0}, f"min_sigma=0: {ABOVE_0}"),
    ("em_routing", {"min_sigma": 0.2}, "min_sigma=0.2: has no effect with sigma='fixed'"),
    ("em_routing", {"n_iters": 1, "sigma": "estimated"}, "sigma='estimated': has no effect with n_iters=1"),
    ("em_routing", {"n_iters": 1, "beta": "uniform"}, "beta='uniform': has no effect with n_iters=1"),
    ("em_routing", {"queries": 4}, "queries=4: has no effect with beta='norm'"),
    ("em_routing", {"beta": "learned", "heads": 2}, "beta='learned': needs queries=<number of queries>"),
    *(("fenchel", {"order": it}, f"order={it!r}: allowed: 1, 2 and 'exact'") for it in (3, 0, "2", True, 1.0, None)),
    ("fenchel", {"order": [1]}, "order="),
    ("fenchel", {"tolerance": 0}, "tolerance=0: allowed: numbers between 0 and 1"),
    ("fenchel", {"tolerance": "small"}, "tolerance='small'"),
    *(("fenchel", {"max_steps": it}, f"max_steps={it}: {FROM_1}") for it in (0, 2.5)),
    ("fenchel", {"ordr": 2}, "ordr=2: no such option; allowed: order, tolerance, max_steps", "Did you mean 'order'"),
    *(("ot", {"gamma": it}, f"gamma={it!r}: {ABOVE_0}") for it in (0, -1.0, NAN, INF, True, "small")),
    ("ot", {"cost": "squared_distanc"}, "allowed: squared_distance", "Did you mean 'squared_distance'"),
    ("ot", {"cost": "no.such.module:cost"}, "no.such.module"),
    ("ot", {"cost": "math:no_such_function"}, "no_such_function"),
    ("ot", {"cost": "math:pi"}, "cost='math:pi'"),
    ("ot", {"cost": "torch.nn:Linear"}, "cost='torch.nn:Linear': needs in_features=<number> and out_features=<number>"),
    ("ot", {"cost": "attnorm.attention:Mask"}, "cost='attnorm.attention:Mask': not a function"),
    ("ot", {"cost": 3}, "cost 3"),
    ("ot", {"costs": "squared_distance"}, "costs=", "no such option", "gamma, cost"),
    *(("ot", {"order": it}, f"order={it}: allowed: 1, 2 and 'exact'") for it in (3, True)),
    *(("ot", {"tolerance": 0}, "tolerance=0"), ("ot", {"max_steps": 0}, "max_steps=0")),
    ("ot", {"cost": "learned"}, "cost='learned': needs heads=<number> and width=<number>"),
    ("lotformer", {"width": 4, "heads": 2, "pivots": 0}, f"pivots=0: {FROM_1}"),
    ("lotformer", {"width": 4, "heads": 2, "eps": 0}, f"eps=0: {ABOVE_0}"),
    ("lotformer", {"width": 4, "heads": 2, "half_steps": 2.5}, f"half_steps=2.5: {FROM_1}"),
    ("espformer", {"tau": -1}, f"tau=-1: {ABOVE_0}"),
    ("espformer", {"temperature": -1}, "temperature=-1: allowed: numbers from 0"),
    *(("entmax", {"alpha": it}, "alpha=", "> 1") for it in (1, 0.5, -2, NAN, INF, True, "1.5", None)),
    ("entmax", {"learn": "all"}, "learn='all': allowed: null, layer, head"),
    ("entmax", {"learn": "layer", "alpha": 2}, "alpha=2: with learn='layer', allowed: numbers between 1.01 and 2"),
    ("entmax", {"learn": "head"}, "learn='head': needs heads=<number of heads>"),
    *(("fusedmax", {"lam": it}, "lam=", ">= 0") for it in (-0.1, NAN, INF, True, "0.1", None)),
    ("sink", {"fixed": INF}, f"fixed=inf: {FINITE}"),
    ("sink", {"start": None}, f"start=None: {FINITE}"),
    ("off_by_one", {"n": 0}, f"n=0: {ABOVE_0}"),
    *(("ssmax", {"heads": 1, key: NAN}, f"{key}=nan: {FINITE}") for key in ("start", "fixed")),
    ("ssmax", {"plus_one": 1}, f"plus_one=1: {BOOL}"),
    ("ssmax", {"bias": 0.5}, f"bias=0.5: {BOOL}"),
    ("sigmoid", {"bias": "log n"}, "bias='log n': allowed: null (-log n), finite numbers"),
    ("sigmoid", {"learn": "head"}, f"learn='head': {BOOL}"),
    ("relu", {"power": 0}, f"power=0: {ABOVE_0}"),
    ("softpick", {"eps": -1.0}, f"eps=-1.0: {ABOVE_0}"),
    ("dnas_slack", {"start": None}, f"start=None: {FINITE}"),
    ("dnas_slack", {"per_query": "yes"}, f"per_query='yes': {BOOL}"),
    ("dnas_slack_prefix", {"fixed": NAN}, f"fixed=nan: {FINITE}"),
    ("asentmax", {"heads": 1, "state_width": 4, "delta": -1}, "delta=-1: allowed: numbers from 0"),
    ("asentmax", {"heads": 1, "state_width": 4, "alpha": 1}, "alpha=1: allowed: numbers > 1"),
    ("stick_breaking", {"remainder": "sink"}, "remainder='sink': allowed: residual, value"),
    ("constrained_sparsemax", {"upper": -1}, "upper=-1: allowed: finite numbers >= 0"),
    (
        "fertility_softmax",
        {"fertility": "guessed"},
        "fertility='guessed': allowed: finite numbers above 0, or predicted",
    ),
    ("fertility_softmax", {"most": 2.0}, "most=2.0: has no effect with fertility=1.0"),
    ("fertility_softmax", {"sink": 1}, f"sink=1: {BOOL}"),
    (
        "stick_breaking",
        {"remainder": "value", "heads": 2},
        "remainder='value': needs heads=<number of heads> and width=",
    ),
    *(("mix", {"members": it}, "a list of at least two normalizers") for it in (["softmax"], "softmax")),
    ("mix", {"members": ["softmax", 3]}, "3 is neither a name nor"),
    ("mix", {"members": ["softmax", {"n_iters": 3}]}, "is neither a name nor"),
    ("mix", {"members": ["softmax", "dnass"]}, "Did you mean 'dnas'?"),
    ("mix", {"members": ["softmax", {"name": "sinkhorn", "n_iter": 3}]}, "Did you mean 'n_iters'?"),
    ("mix", {"members": ["softmax", {"name": "hnas", "heads": 3}], "heads": 2}, "heads=3: not an option here"),
    *(("mix", {**TWO, "start": it}, "2 numbers from 0 to 1 with the sum 1") for it in ([0.5, 0.6], [0.5, 0.3, 0.2])),
    ("mix", {**TWO, "start": [0, 1]}, "use form='project'"),
    ("mix", {**TWO, "form": "sigmoid"}, "form='sigmoid': allowed: softmax, project"),
    ("mix", {**TWO, "per": "head"}, "needs heads="),
    ("mix", {**TWO, "fixed": [0.2, 0.2]}, "fixed=[0.2, 0.2]: allowed: 2 numbers"),
    ("mix", {**TWO, "fixed": [[0.2, 0.8]] * 3, "heads": 2}, "3 values for 2 heads"),
    (
        *("mix", {"members": ["forgetting", "asentmax"], "heads": 1, "state_width": 4}),
        "some need the states of the queries, and others those of the keys",
    ),
    (
        *("mix", {"members": ["softmax", {"name": "stick_breaking", "remainder": "value"}], "heads": 2, "width": 4}),
        "a mix gives what its members leave to no value of its own",
    ),
]
WRONG_PRIORS = [
    *((path, {}, path, "must be a subclass of", "Module") for path in ("collections:OrderedDict", "math:sqrt")),
    ("contents", {"heads": 2}, "contents", "Did you mean 'content'?"),
    *(
        ("content", {"width": 4, "heads": 2, "hidden": it}, "content", f"hidden={it}: {FROM_1}")
        for it in (0, 2.5, True)
    ),
    ("content", {"width": 4, "heads": 2, "activation": "relu"}, "activation='relu': allowed: tanh, gelu"),
    ("content", {"width": 4, "heads": 2, "hiden": 3}, "Did you mean 'hidden'?"),
    ("learned", {"positions": 0, "heads": 2}, "learned", f"positions=0: {FROM_1}"),
    ("learned", {"position": 9, "heads": 2}, "Did you mean 'positions'?"),
    *(("t5", {"heads": 2, "buckets": it}, "t5", f"buckets={it!r}: allowed: whole numbers from 4") for it in (3, "x")),
    ("t5", {"heads": 2, "buckets": 1, "bidirectional": False}, "buckets=1: allowed: whole numbers from 2"),
    ("t5", {"heads": 2, "max_distance": 8}, "max_distance=8: allowed: whole numbers from 9"),
    ("t5", {}, "prior 't5': needs a value for heads"),
]
WRONG_SCORERS = [
    *(
        (path, {}, path, f"{CLASS}.scorers.Scorer")
        for path in ("collections:OrderedDict", "math:sqrt", "torch.nn:Linear")
    ),
    ("aditive", {}, "Did you mean 'additive'?"),
    ("bilinear", {"heads": 2, "widht": 4}, "Did you mean 'width'?"),
    ("gaussian", {"sigma": 2.0}, "it takes none"),
    ("softcap", {"cap": 0}, f"cap=0: {ABOVE_0}"),
    ("qk_norm", {"start": 0, "heads": 1, "width": 1}, f"start=0: {ABOVE_0}"),
    *(("dot", {key: it}, f"{key}={it}: {ABOVE_0}") for key, it in (("alpha", 0), ("alpha", INF), ("tau", -1.0))),
    ("dot", {"alpha": 1.0, "tau": 4.0}, "tau=4.0: sets alpha"),
    ("dot", {"learn": "layer"}, "learn='layer': allowed: null, head, query"),
    ("dot", {"learn": "head"}, "needs heads="),
    ("dot", {"learn": "query", "hidden": 0, "heads": 2, "width": 4}, f"hidden=0: {FROM_1}"),
    ("dot", {"hidden": 8}, "hidden=8: has no effect without learn='query'"),
    ("dot", {"unit_keys": "yes"}, f"unit_keys='yes': {BOOL}"),
    ("length_dot", {"form": "llama4"}, "form='llama4': allowed: floor, late_floor, max"),
    ("length_dot", {"slope": 0}, f"slope=0: {ABOVE_0}"),
    ("length_dot", {"length": 0.5}, f"length=0.5: {FROM_1}"),
]


@pytest.mark.parametrize(
    ("build", "case"),
    [
        *((build_normalizer, case) for case in WRONG_NORMALIZERS),
        *((build_prior, case) for case in WRONG_PRIORS),
        *((build_scorer, case) for case in WRONG_SCORERS),
    ],
)
def test_what_is_wrong_is_named_with_what_is_allowed(build, case):
    name, options, *words = case
    with pytest.raises(ValueError) as error:
        build(name, **options)
    assert_mentions(error, *words)


def test_each_option_of_a_normalizer_is_given_a_wrong_value_here():
    """One row is enough for classes that have their constructor in common."""
    facts = {
        "heads",
        "width",
        "state_width",
        "place",
        "queries",
        "builder",
    }  # what a model passes, and a mix its members
    classes = {name: find("normalizer", name, *PARTS["normalizer"]) for name in NORMALIZERS}
    options = [(name, option) for name, cls in classes.items() for option in parameters(cls) if option not in facts]
    rows = [(name, option) for name, options, *_ in WRONG_NORMALIZERS if name in classes for option in options]
    tried = {(classes[name].__init__, option) for name, option in rows}
    without = [f"{name}: {option}" for name, option in options if (classes[name].__init__, option) not in tried]
    assert len(options) > 50 and not without, f"no row of WRONG_NORMALIZERS has a wrong value for: {without}"


# ------------------------------------------------------------------------------------------ dotted paths


def test_a_dotted_path_builds_a_users_class_with_its_options(users_module):
    assert type(build_normalizer(f"{users_module}:Uniform")).__name__ == "Uniform"
    assert build_normalizer(f"{users_module}:Uniform", sharpness=2.0).sharpness == 2.0


def test_what_a_users_module_does_not_have_is_named(users_module):
    for path, options, words in (
        (f"{users_module}:Uniform", {"sharpnes": 2.0}, ("sharpnes", "sharpness")),
        (f"{users_module}:Unifrom", {}, (users_module, "Unifrom")),
    ):
        with pytest.raises(ValueError) as error:
            build_normalizer(path, **options)
        assert_mentions(error, *words)


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


# ------------------------------------------------------------------------------------------ options of hnas


@pytest.mark.parametrize(
    ("start", "form"),
    [*itertools.product([0.1, 0.5, 0.9], ["sigmoid", "clamp"]), *((it, "clamp") for it in (0.0, 1.0, 0, 1))],
)
def test_hnas_starts_where_it_is_told_one_weight_a_layer_or_one_a_head(start, form):
    assert build_normalizer("hnas").hybrid_weight().item() == 0.5
    layer, heads = (
        build_normalizer("hnas", start=start, form=form),
        build_normalizer("hnas", start=start, form=form, per="head", heads=3),
    )
    for module, shape in ((layer, (1,)), (heads, (3,))):
        (parameter,) = module.parameters()
        assert parameter.requires_grad and parameter.numel() == shape[0]
        assert_close(module.hybrid_weight(), torch.full(shape, float(start)))
        assert module.hybrid_weight().requires_grad


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
