"""What is typed for `attention`: groups, sites, lists and paths, from the command line to the record of a run."""

import json
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import runs
import yaml
from marks import slow
from torch import nn

from attnorm.attention.model_sites import Sites
from attnorm.config.compose import values_typed
from attnorm.config.read import Checked
from attnorm.errors import ConfigError
from attnorm.models.grid import GridClassifier
from attnorm.models.vqa.mcan import MCAN
from attnorm.parts import class_of
from attnorm.schema import defaults_of
from attnorm.sweeps.jobs import as_typed, readable

FILES = sorted(file.stem for file in (runs.CONF / "attention").glob("*.yaml"))
MODELS = sorted(file.stem for file in (runs.CONF / "model").glob("*.yaml"))
SITES = ("encoder", "decoder", "cross", "fusion", "guided")
BIDIRECTIONAL = [
    "dnas",
    "hnas",
    "sinkhorn",
    "em_routing",
    "mix",
    "dnas_slack",
    "dnas_slack_u",
    "lotformer",
    "espformer",
]
EVERYWHERE = (
    *("softmax", "constrained_softmax", "constrained_sparsemax", "entmax", "asentmax", "forgetting", "fenchel"),
    *("fusedmax", "ot", "sparsemax", "continuous", "sink", "off_by_one", "ssmax", "sigmoid", "relu", "softpick"),
    *("uniform", "none"),
)
PREFIXED, FERTILE = ("dnas", "hnas", "dnas_slack"), ("fertility_softmax", "fertility_sparsemax")
PLACED = {  # what each file of conf/attention puts at these sites
    **{name: (name,) * 5 for name in EVERYWHERE},
    **{name: (name, "softmax", "softmax", name, "softmax") for name in BIDIRECTIONAL},
    **{
        f"{name}_prefix": (name, f"{name}_prefix", f"{name}_prefix", name, "softmax")
        for name in ("dnas", "hnas", "dnas_slack")
    },
    **{name: ("softmax", name, "softmax", "softmax", "softmax") for name in ("stick_breaking", "selective")},
    **{
        name: ("softmax", "softmax", name, "softmax", "softmax")
        for name in ("fertility_softmax", "fertility_sparsemax")
    },
    "dnas_slack_u": ("dnas_slack", "softmax", "softmax", "dnas_slack", "softmax"),
    "preference": ("softmax",) * 5,
}
PRIORS = {
    "preference": (["content", "t5"], ["content", "t5"], ["content"], ["content"], ["content"]),
    "dnas_slack_u": (["content"], [], [], ["content"], []),
}
MODEL_SITES = {
    **dict.fromkeys(("tiny", "small", "base", "transformer_tiny"), ("encoder", "decoder", "cross")),
    **dict.fromkeys(("bert_tiny", "bert_small", "bert_base"), ("encoder",)),
    **dict.fromkeys(("vqa_tiny", "vqa_small", "vqa_paper"), ("fusion",)),
    "mcan_small": ("fusion", "encoder", "guided"),
    **dict.fromkeys(("lstm_seq2seq", "lstm_captioner"), ("cross",)),
    "transformer_captioner": ("decoder", "cross"),
    **dict.fromkeys(("gpt_tiny", "gpt_small"), ("decoder",)),
}
WITH_OTHER_SITES = {"grid_tiny", "flat_tiny", "hierarchical_tiny"}  # sites that are not in PLACED

VARIANTS = {  # settings that change the sites of a model
    ("vqa_tiny", "question=transformer"): ("fusion", "encoder"),
    ("vqa_tiny", "fusion=none"): (),
    ("mcan_small", "fusion=single"): ("encoder", "guided"),
    ("mcan_small", "fusion=none"): ("encoder",),
}


@pytest.fixture(scope="module")
def models():
    """The settings of each file of conf/model."""
    return {name: runs.group("model", name) for name in MODELS}


@pytest.fixture(scope="module")
def softmax():
    return runs.group("attention", "softmax")


def tables_of(cfg, typed=()):
    """The attention tables for the configured model."""
    model = class_of("model", cfg["model"])
    options = {**defaults_of(getattr(model, "Config", model)), **cfg["model"]}
    return Sites.of_model(model, options, cfg.get("attention", {}), typed)


@pytest.mark.slow
def test_every_file_gives_every_model_the_normalizers_it_always_gave(models):
    attention = {name: runs.group("attention", name) for name in FILES}
    assert {*PLACED} == {*attention} and {*MODEL_SITES} | WITH_OTHER_SITES == {*models}
    cases = {(name, ""): sites for name, sites in MODEL_SITES.items()} | VARIANTS
    for (name, change), sites in cases.items():
        key, _, value = change.partition("=")
        model = {**models[name], **({key: value} if change else {})}
        for file, tables in attention.items():
            cfg = {"model": model, "attention": tables}
            coupled = file in (*BIDIRECTIONAL, "dnas_slack_u")
            if coupled and sites and not {*sites} - {"decoder", "cross"}:  # no site can have it
                [problem] = tables_of(cfg).problems
                assert "no site uses it" in str(problem)
                continue
            assert tables_of(cfg).problems == []
            normalizers = dict(zip(SITES, PLACED[file], strict=True))
            priors = dict(zip(SITES, PRIORS.get(file, [[]] * 5), strict=True))
            found = tables_of(cfg).resolved
            assert {site: found[site] for site in sites} == {site: normalizers[site] for site in sites}, (name, file)
            assert found["prior"] == {site: priors[site] for site in sites}
            assert found["scorer"] == dict.fromkeys(sites, "scaled_dot")
            used = {normalizers[site] for site in sites} | {prior for site in sites for prior in priors[site]}
            assert found["options"] == {name: tables["options"][name] for name in tables["options"] if name in used}
            assert [*found] == [*sites, "prior", "scorer", "options"]


@pytest.mark.slow
def test_exclusive_attention_is_refused_where_the_queries_are_not_the_keys(models, softmax):
    allowed = {"encoder", "decoder", "grid"}
    for name, settings in models.items():
        model = class_of("model", settings)
        sites = [*Sites.of_model(model, settings, softmax, ())]
        cfg = {**softmax, "exclusive": dict.fromkeys(sites, True)}
        found = [str(problem).partition("=")[0] for problem in Sites.of_model(model, settings, cfg, ()).problems]
        assert found == [f"attention.exclusive.{site}" for site in sites if site not in allowed], name
    of_grid = {**models["grid_tiny"], "query_grid": [2, 2]}
    assert Sites.of_model(GridClassifier, of_grid, {**softmax, "exclusive": {"grid": True}}, ()).problems == [
        "attention.exclusive.grid=true: the queries of this site are not its keys, so that they have no value that "
        "could be excluded"
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["stick_breaking", "selective"])
def test_normalizers_of_causal_self_attention_are_refused_at_all_other_sites(models, softmax, name):
    for model_name, settings in models.items():
        model = class_of("model", settings)
        sites = [*Sites.of_model(model, settings, softmax, ())]
        problems = Sites.of_model(model, settings, {**softmax, **dict.fromkeys(sites, name)}, ()).problems
        found = [problem.partition(":")[0] for problem in problems]
        assert found == [f"attention.{site}={name}" for site in sites if site != "decoder"], model_name
    mixed = f"[softmax,{{name: {name}}}]"
    assert runs.problems(runs.plain("task=gigaword", f"attention._default_={name}", "attention.cross=dnas_prefix")) == [
        f"attention._default_={name}: {name} is defined for causal self-attention only, which encoder is not; allowed "
        "at decoder"
    ]
    [problem] = runs.problems(
        runs.plain("task=gigaword", "attention.cross=mix", f"attention.options.mix.members={mixed}")
    )
    assert problem.startswith("attention.cross=mix: mix is defined for causal self-attention only")


class Captioner(nn.Module):
    """A model with sites that no file of conf/ names."""

    sites = {"image": False, "caption": True}  # noqa: RUF012

    @classmethod
    def site_layers(cls, settings):
        return {"image": settings["layers"], "caption": 1}


def of_model(cls, *typed):
    """A configuration of this model with what was typed for `attention`."""
    path = f"{cls.__module__}:{cls.__qualname__}"
    return {"model": {"_target_": path, "layers": 2}, "attention": runs.plain(*typed)["attention"]}


@pytest.mark.parametrize("file", FILES)
def test_a_model_with_a_new_site_needs_no_change_of_a_file(file):
    model = {"_target_": f"{Captioner.__module__}:{Captioner.__qualname__}", "layers": 2}
    tables = tables_of({"model": model, "attention": runs.group("attention", file)})
    found = tables.resolved
    default = {"dnas_slack_u": "dnas_slack"}.get(file, file)
    default = "softmax" if file in ("preference", "stick_breaking", "selective") else default
    assert found["image"] == default
    assert found["caption"] == ("softmax" if default in BIDIRECTIONAL else default)
    assert tables.problems == []


class Stack(nn.Module):
    """A model whose sites, layers and heads follow from options that all have defaults."""

    interface = "seq2seq"

    def __init__(self, attention, *, depth: int = 3, width: int = 2, gated: bool = True):
        super().__init__()

    @classmethod
    def sites_of(cls, settings):
        return {"stack": False, **({"gate": True} if settings["gated"] else {})}

    @classmethod
    def site_layers(cls, settings):
        return dict.fromkeys(cls.sites_of(settings), settings["depth"])

    @classmethod
    def site_heads(cls, settings):
        return dict.fromkeys(cls.sites_of(settings), settings["width"])


@dataclass
class Shape:
    depth: int
    width: int = 2
    gated: bool = field(default_factory=bool)


class Shaped(Stack):
    """The same options, in a dataclass; one of them has to be given."""

    Config = Shape


def test_a_model_sees_the_defaults_of_its_options_when_it_names_its_sites():
    def sites(cls, **options):
        settings = {"_target_": f"{Stack.__module__}:{cls.__name__}", **options}
        shape = Checked.read_model(settings, SimpleNamespace(data={"model_class": cls}))
        return Sites.of_model(cls, vars(shape), {}, ())

    assert sites(Stack).autoregressive == {"stack": False, "gate": True}
    assert sites(Stack).layers == {"stack": 3, "gate": 3} and sites(Stack).heads == {"stack": 2, "gate": 2}
    assert sites(Stack, gated=False, depth=1).layers == {"stack": 1}
    assert sites(Shaped, depth=4).layers == {"stack": 4} and sites(Shaped, depth=4).heads == {"stack": 2}


@pytest.mark.slow
def test_a_model_with_a_new_site_is_set_without_a_plus():
    typed = ("attention=hnas", "attention.caption=dnas_prefix", "attention.image=[hnas,softmax]")
    cfg = of_model(Captioner, *typed)
    assert tables_of(cfg, values_typed(typed)).problems == []
    assert tables_of(cfg).label == "hnas+softmax_caption-dnas_prefix"
    assert tables_of(of_model(Captioner, "attention.image=[dnas*3]"), None).problems == [
        "attention.image: 3 normalizers for 2 layers"
    ]


def test_the_label_of_many_layers_is_a_name_that_a_folder_can_have():
    names = ["entmax", "dnas"] * 20
    encoders = [f"attention.encoder=[{','.join([*names[:-1], last])}]" for last in ("dnas", "softmax")]
    labels = [runs.tiny("model.encoder_layers=40", encoder).label for encoder in encoders]
    assert labels[0] != labels[1] and all(label.startswith("entmax+dnas+") for label in labels)
    assert max(len(label.encode()) for label in labels) < 255


def test_keys_are_typed_one_by_one_or_as_a_table():
    overrides = ["attention=hnas", "attention.encoder=[dnas]", "attention.prior={encoder: [t5], x: [t5]}", "~data.test"]
    t5 = {"attention.prior.encoder": ["t5"], "attention.prior.x": ["t5"]}
    assert values_typed(overrides) == {"attention": "hnas", "attention.encoder": ["dnas"], **t5}


# arguments


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("attention.encoder=dnas", "++attention.encoder=dnas"),
        ("+attention.encoder=dnas", "++attention.encoder=dnas"),
        ("attention.encoder=[hnas*6,softmax*6]", "++attention.encoder=[hnas*6,softmax*6]"),
        ("attention.encoder=dnas,a.b:Mine", "++attention.encoder=dnas,a.b:Mine"),
        ("attention.options.hnas.start=0.3,0.4", "++attention.options.hnas.start=0.3,0.4"),
        ("attention.options={hnas: {start: 0.5}}", "++attention.options={hnas: {start: 0.5}}"),
        ("attention.prior.encoder=[t5]", "++attention.prior.encoder=[t5]"),
        ("attention=hnas", "attention=hnas"),
        ("attention=[dnas*2,a.b:Mine]", "attention='[dnas*2,a.b:Mine]'"),
        ("attention=softmax,[dnas*2,a.b:Mine]", "attention=softmax,'[dnas*2,a.b:Mine]'"),
        ("attention=softmax, [dnas, 'a.b:Mine']", "attention=softmax,'[dnas,a.b:Mine]'"),
        ("~attention.encoder", "~attention.encoder"),
        ("attention_of.mine=x", "++attention_of.mine=x"),
    ],
)
@pytest.mark.parametrize("is_sweep", [False, True])
def test_sites_need_no_plus_and_lists_are_one_choice(typed, read, is_sweep):
    assert readable([typed], is_sweep) == [read]
    assert readable([read], is_sweep) == [read]


def test_a_run_records_what_was_typed():
    for typed in ("attention=hnas", "attention=[dnas*2,a.b:Mine]", "attention.encoder=[hnas*6,a.b:Mine]"):
        assert as_typed(readable([typed])) == [typed]


def test_a_job_of_a_sweep_records_no_escaped_colon():
    swept = ["attention=a.b\\:Mine", "++attention.encoder=[a.b\\:Mine,dnas]", "run=a\\:b"]
    assert as_typed(swept) == ["attention=a.b:Mine", "attention.encoder=[a.b:Mine,dnas]", "run=a\\:b"]


MINE = """
from attnorm.attention import build_normalizer


class Mine(type(build_normalizer("dnas"))):
    pass
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A normalizer in a module of the user's own that couples all queries; its path."""
    name = f"mine_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return f"{name}:Mine"


@pytest.mark.slow
def test_a_path_or_a_list_is_the_default_of_every_site(mine):
    assert runs.tiny(f"attention={mine}")["attention"] == runs.tiny(f"attention._default_={mine}")["attention"]
    found = runs.tiny(f"attention={mine}")["attention"]
    assert (found["encoder"], found["decoder"], found["cross"]) == (mine, "softmax", "softmax")
    found = runs.tiny("model.encoder_layers=2", f"attention='[{mine},hnas]'")["attention"]
    assert (found["encoder"], found["decoder"]) == ([mine, "hnas"], "softmax")


@pytest.mark.slow
def test_a_sweep_over_files_paths_and_lists_is_recorded_as_it_was_typed(mine, monkeypatch, tmp_path, capsys):
    attention, site = f"attention=softmax,{mine},[hnas,softmax]", "attention.cross=dnas_prefix"
    few = ("task.max_steps=1", "task.validations=1", "model.encoder_layers=2")
    assert runs.call(monkeypatch, "train", "-m", attention, site, *runs.tiny_overrides(), *few) == 0
    folders = {json.loads(path.read_text())["attention"]: path.parent for path in tmp_path.rglob("summary.json")}
    expected = {"softmax": "softmax", "Mine": mine, "hnas+softmax": "[hnas,softmax]"}
    assert {*folders} == {f"{name}_cross-dnas_prefix" for name in expected}
    printed = capsys.readouterr().out
    assert "attnorm sweep jobs=1 " in printed.splitlines()[0]
    for name, typed in expected.items():
        run = folders[f"{name}_cross-dnas_prefix"]
        for file in ("summary.json", "run.json"):
            assert json.loads((run / file).read_text())["overrides"][:2] == [f"attention={typed}", site]
        assert f"attention={typed}: finished" in printed
        recorded = yaml.safe_load((run / "config.yaml").read_text())["attention"]
        encoder = ["hnas", "softmax"] if typed.startswith("[") else typed
        assert (recorded["encoder"], recorded["decoder"], recorded["cross"]) == (encoder, "softmax", "dnas_prefix")
    run = folders["hnas+softmax_cross-dnas_prefix"]
    assert {line.split(",")[1] for line in (run / "hybrid_weights.csv").read_text().splitlines()[1:]} == {"encoder/0"}
    assert runs.call(monkeypatch, "eval", f"run={run}") == 0


@pytest.mark.parametrize(
    ("typed", "problem"),
    [
        ("attention.encodr=dnas", "attention.encodr: the model has no such site; it has encoder, decoder, cross. Did"),
        ("attention.prior={encodr: [t5]}", "attention.prior.encodr: the model has no such site"),
        slow("attention=[dnas,dnas,softmax]", "attention._default_: 3 normalizers for 2 layers at encoder"),
        ("attention=nowhere:Mine", "attention._default_=nowhere:Mine: normalizer 'nowhere:Mine': cannot import"),
    ],
)
def test_what_is_wrong_is_one_problem_under_its_key(monkeypatch, tmp_path, capsys, typed, problem):
    monkeypatch.chdir(tmp_path)
    assert runs.call(monkeypatch, "train", typed) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {problem}")


@pytest.mark.slow
def test_values_per_head_are_as_many_as_the_heads_of_the_site():
    typed = (*runs.tiny_overrides("mlm"), "attention=hnas", "+attention.options.hnas.fixed=[0.1,0.2,0.3]")
    with pytest.raises(ConfigError, match=r"attention.options.hnas.fixed: .*: 3 values for 2 heads"):
        runs.checked(runs.composed(*typed, "model.n_heads=2"))
    settings = {"fusion": "attention", "n_heads": 4, "fusion_heads": 1}
    assert MCAN.site_heads(settings) == {"fusion": 1, "encoder": 4, "guided": 4}
    assert MCAN.site_heads({}).keys() == MCAN.sites_of({}).keys()
