"""Attention tables: defaults, one normalizer per layer, what is refused, and the name of the result."""

import copy
import json
import re
from pathlib import Path

import pytest

from attnorm.attention import check_attention, resolve_attention
from attnorm.attention.model_sites import Sites
from attnorm.attention.registry import NORMALIZERS, build
from attnorm.attention.site import Site

pytestmark = pytest.mark.numerical

SITES = {"encoder": False, "decoder": True, "cross": True}
LAYERS = {"encoder": 3, "decoder": 2, "cross": 2}
FACTS = {"heads": 2, "width": 4, "state_width": 8}  # a normalizer takes those that it needs
COUPLED = [name for name in NORMALIZERS if build("normalizer", name, {}, FACTS).couples_queries == "all"]


def test_some_normalizers_couple_all_queries_and_others_do_not():
    assert {"dnas", "hnas", "sinkhorn"} <= {*COUPLED} < {*NORMALIZERS}


TABLES = [json.loads(line) for line in (Path(__file__).parent / "attention_tables.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("number", range(len(TABLES)))
def test_recorded_tables_are_resolved_and_refused_as_ever(number):
    """Tables with what they resolve to and the label of their run, or the keys under which they are refused."""
    case = copy.deepcopy(TABLES[number])
    sites = Sites(case["attention"], case["sites"], case["layers"], case["typed"], case["heads"])
    if refused := case.get("refused"):
        assert {re.split("[=:]", problem)[0] for problem in sites.problems} == {*refused}
    else:
        assert sites.problems == []
        assert (sites.resolved, sites.label) == (case["resolved"], case["label"])
        again = Sites(sites.resolved, case["sites"])
        assert (again.resolved, again.label) == (case["resolved"], case["label"])
    assert case == TABLES[number]  # nothing is written into what was given


# defaults


def test_priors_and_scorers_may_leave_sites_out():
    tables = {"prior": {}, "scorer": {}, "options": {}}
    assert Site(tables, "encoder").prior(heads=2, bidirectional=True, positions=9, width=12) is None
    assert type(Site({**tables, "encoder": "softmax"}, "encoder").layer(12, 3).scorer).__name__ == "ScaledDot"


@pytest.mark.parametrize("name", COUPLED)
def test_a_default_that_no_site_can_have_is_refused_with_what_to_use(name):
    sites = {"decoder": True, "cross": True}
    [problem] = check_attention({"_default_": name}, sites)
    assert problem.startswith(f"attention._default_={name}: no site uses it.")
    assert "(decoder, cross)" in problem and "attention.<site>=" in problem
    assert (f"{name}_prefix" in problem) == (f"{name}_prefix" in NORMALIZERS)


def test_a_default_that_is_left_to_no_site_is_refused_if_it_was_typed():
    tables = {"_default_": "dnas", **dict.fromkeys(SITES, "softmax")}
    [problem] = check_attention(tables, SITES, typed={"attention._default_"})
    assert problem.startswith("attention._default_=dnas: has no effect") and "encoder, decoder, cross" in problem
    assert check_attention(tables, SITES, typed={"attention.encoder"}) == []


UNKNOWN = {"hnass": "Did you mean 'hnas'?", "argmax": "has no gradient", "nowhere:Nothing": "No module named 'nowhere'"}
WRONG = [  # a key, its value, and what the problem says
    *(("_default_", it, words) for it, words in UNKNOWN.items()),
    *(("_default_", it, "expected a name") for it in (3, None, [], ["dnas", 3])),
    *((it, value, "expected ") for it in ("prior", "scorer", "options") for value in (None, 3, "t5", ["t5"])),
    *(("encoder", it, "expected a name, or a list") for it in ([], [3], ["dnas", None], {"a": "dnas"}, 3, None)),
]


@pytest.mark.parametrize(("key", "value", "words"), WRONG)
def test_a_wrong_value_is_one_problem_that_names_it(key, value, words):
    [problem] = check_attention({"_default_": "softmax", key: value}, SITES, LAYERS)
    assert problem.startswith(f"attention.{key}={value}: ") and words in problem


def test_a_site_that_nothing_sets_is_named():
    tables = {"encoder": "dnas", "cross": "softmax"}
    [problem] = check_attention(tables, SITES)
    assert problem == "attention.decoder: missing; set it, or set attention._default_ for all sites"


def test_a_wrong_value_under_the_name_of_the_default_is_refused():
    [problem] = check_attention({"_default_": "softmax", "bank": {"_default_": 3}}, SITES, typed=())
    assert problem.startswith("attention.bank._default_=3: expected a name")


# one normalizer per layer


def test_a_list_gives_each_layer_its_own_normalizer_with_the_options_of_its_name():
    tables = {"_default_": "softmax", "encoder": ["hnas*2", "dnas"], "options": {"hnas": {"start": 0.25}}}
    assert check_attention(tables, SITES, LAYERS) == []
    resolved = resolve_attention(tables, SITES)
    assert resolved["encoder"] == ["hnas", "hnas", "dnas"]
    for attention in (tables, resolved):
        built = [Site(attention, "encoder").normalizer(2, layer) for layer in range(3)]
        assert [type(normalizer).__name__ for normalizer in built] == ["HNAS", "HNAS", "DNAS"]
        assert [float(hybrid.hybrid_weight()) for hybrid in built[:2]] == [0.25, 0.25]


@pytest.mark.parametrize(
    ("tables", "problem"),
    [
        ({"encoder": ["dnas"] * 2}, "attention.encoder: 2 normalizers for 3 layers"),
        ({"encoder": ["hnas*6", "softmax*6"]}, "attention.encoder: 12 normalizers for 3 layers"),
        ({"cross": ["softmax"]}, "attention.cross: 1 normalizer for 2 layers"),
        ({"_default_": ["hnas*4"]}, "attention._default_: 4 normalizers for 3 layers at encoder"),
    ],
    ids=str,
)
def test_a_list_has_as_many_normalizers_as_its_site_has_layers(tables, problem):
    tables = {"_default_": "softmax", **tables}
    assert check_attention(tables, SITES, LAYERS) == [problem]
    assert check_attention(tables, SITES) == []  # the number of layers is not known yet
    assert check_attention(tables, SITES, dict.fromkeys(SITES, "x")) == []  # it is a problem of its own


def test_a_list_at_a_site_whose_layers_the_model_does_not_tell_is_refused():
    [problem] = check_attention({"_default_": "softmax", "encoder": ["dnas", "hnas"]}, SITES, {})
    assert problem.startswith("attention.encoder=[dnas,hnas]: the model does not say how many layers encoder has")


def test_each_layer_of_a_list_is_checked_once_by_its_name():
    problems = check_attention({"_default_": "softmax", "cross": ["dnas", "dnass", "dnas"]}, SITES, LAYERS)
    assert sorted(problem.partition(": ")[0] for problem in problems) == [
        "attention.cross",
        "attention.cross=dnas",
        "attention.cross=dnass",
    ]


@pytest.mark.parametrize("item", ["hnas*0", "hnas*x", "hnas*99999", "*3", "3*hnas"])
def test_a_repetition_that_is_none_is_a_name_that_is_unknown(item):
    [problem, *_] = check_attention({"_default_": "softmax", "encoder": [item]}, SITES)
    assert problem.startswith(f"attention.encoder={item}: normalizer {item!r} is unknown")


# what was typed, and what a file sets


@pytest.mark.parametrize("table", ["", "prior.", "scorer."])
def test_a_site_the_model_does_not_have_is_refused_if_it_was_typed(table):
    value = {"": "dnas", "prior.": ["t5"], "scorer.": "dot"}[table]
    tables = {"_default_": "softmax"} | ({"encodr": value} if not table else {table[:-1]: {"encodr": value}})
    key = f"attention.{table}encodr"
    expected = f"{key}: the model has no such site; it has encoder, decoder, cross. Did you mean 'encoder'?"
    assert check_attention(tables, SITES) == check_attention(tables, SITES, typed={key}) == [expected]
    assert check_attention(tables, SITES, typed={f"{key}.x"}) == [expected]
    assert check_attention(tables, SITES, typed={f"{key}s", "attention.encoder"}) == []


@pytest.mark.parametrize(("table", "value"), [("prior", ["t5"]), ("scorer", "dot")])
def test_a_chosen_file_whose_priors_or_scorers_no_site_of_the_model_has_is_refused(table, value):
    tables = {"_default_": "softmax", table: {"grid": value, "pool": value}}
    [problem] = check_attention(tables, SITES, typed={"attention"})
    assert problem == (
        f"attention.{table}: has no effect, because it is set for grid, pool, "
        "and the model has only encoder, decoder, cross"
    )
    assert check_attention(tables, SITES, typed=()) == []  # a model that is opened again
    tables[table]["cross"] = value
    assert check_attention(tables, SITES, typed={"attention"}) == []


@pytest.mark.parametrize(
    ("tables", "problem"),
    [
        ({"decoder": "stick_breaking"}, "decoder=stick_breaking: has no effect, because the model has only encoder"),
        ({"decoder": ["sink", "softmax"]}, "decoder=[sink,softmax]: has no effect, because the model has only encoder"),
        (
            {"_default_": "sink", "encoder": "softmax"},
            "_default_=sink: has no effect, because softmax is set for encoder",
        ),
    ],
)
def test_a_chosen_file_whose_normalizers_no_site_of_the_model_has_is_refused(tables, problem):
    """Otherwise, softmax would be trained under another name."""
    tables = {"_default_": "softmax", **tables}
    assert check_attention(tables, {"encoder": False}, typed={"attention"}) == [f"attention.{problem}"]
    assert check_attention(tables, {"encoder": False}, typed=()) == []
    assert check_attention({**tables, "encoder": "dnas"}, {"encoder": False}, typed={"attention"}) == []
    assert check_attention({**tables, "prior": {"encoder": ["t5"]}}, {"encoder": False}, typed={"attention"}) == []
    typed = {"attention", "attention.encoder"}  # a baseline in a sweep over attention.encoder
    assert check_attention({**tables, "encoder": "softmax"}, {"encoder": False}, typed=typed) == []


def test_options_of_a_part_that_a_file_names_are_no_problem_unless_they_were_typed():
    tables = {"_default_": "softmax", "guided": "hnas", "options": {"hnas": {"start": 0.3}}}
    assert check_attention(tables, SITES, typed=()) == []
    for typed in ({"attention.options.hnas"}, {"attention.options.hnas.start"}):
        [problem] = check_attention(tables, SITES, typed=typed)
        assert problem.startswith("attention.options.hnas: has no effect, because no site uses 'hnas'")
        assert problem.endswith("in use: scaled_dot, softmax.")
    [problem] = check_attention({**tables, "options": {"hnass": {}}}, SITES, typed=())
    assert problem.startswith("attention.options.hnass: has no effect, because no site uses 'hnass'")
