"""Paths on the command line: whatever a file is called, Hydra and OmegaConf read its name as it was typed."""

import json
import re
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
import runs
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from attnorm.choices import CONF
from attnorm.config.command import read as read_command
from attnorm.config.compose import PATH_KEYS, settings_of
from attnorm.errors import ConfigError
from attnorm.schema import Share, Text, WholeNumber
from attnorm.sweeps.jobs import as_typed, readable

NASTY = [
    "my file (1).json",
    "a,b.json",
    "run=1/step=3.ckpt",
    "[x]",
    "[x],y",
    "{a}",
    "{a: b}",
    "it's.json",
    "'quoted'",
    '"quoted"',
    "both ' and \".json",
    "back\\slash",
    "back\\' (1)",
    "end (1)\\",
    "end\\\\",
    "\\(1\\)",
    "caf\u00e9 \u65e5\u672c.json",
    "${home}.json",
    "a (1) ${home}",
    "\\${home}\\",
    "${home",
    "$x{1}",
    " leading and trailing ",
    "tab\there, newline\nthere",
    "f(x)",
    "#1; 50% & more!|*?~",
    "2024",
    "1e5",
    "true",
    "-1",
    ":",
]


def read(arguments):
    """What the arguments set, after OmegaConf has read it; a sweep gives each of its jobs the same."""
    values = OmegaConf.create({setting.key: setting.value for setting in settings_of(arguments)})
    assert values == OmegaConf.create({it.key: it.value for it in settings_of(as_typed(readable(arguments)))})
    return OmegaConf.to_container(values, resolve=True)


@pytest.mark.parametrize("name", NASTY, ids=ascii)
def test_the_name_of_a_file_is_read_as_it_is(monkeypatch, tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    assert read([f"data.train={name}"]) == {"data.train": name}
    assert read([f"+data.train={tmp_path}/{name}"]) == {"data.train": f"{tmp_path}/{name}"}
    assert readable(readable([f"data.train={name}"])) == readable([f"data.train={name}"])


@pytest.mark.parametrize("name", ["my file (1).json", "run=1/step=3.ckpt", "it's", "caf\u00e9", "${home", "x]", "2024"])
def test_a_name_without_a_file_is_text_too(name):
    assert read([f"data.train={name}"]) == {"data.train": name}


@pytest.mark.parametrize(
    "argument",
    [
        "seed=1",
        "seed=1,2,3",
        "optimizer.lr=1e-3",
        "tags=[a,b]",
        "data.features=[a,'b (1)']",
        "data.options={hnas: {start: 0.5}}",
        'data.train="my file (1).json"',
        "data.train=a\\ b.json",
        "data.train=a b.json",
        "data.test=null",
        "paths.log_dir=${oc.env:HOME}/x",
        "seed=range(1,4)",
        "~data.test",
        "key=",
        "key",
        "-m",
        "--config-dir=a (1)",
        "",
        "a b=c (1)",
    ],
)
@pytest.mark.parametrize("is_sweep", [False, True])
def test_what_hydra_reads_or_has_to_refuse_stays_as_it_was_typed(monkeypatch, tmp_path, argument, is_sweep):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "1").touch()  # a number is a number
    key, equals, _ = argument.partition("=")
    prefix = "++" if equals and re.fullmatch(r"[\w.]+", key) else ""  # Hydra then accepts keys that no file sets
    assert readable([argument], is_sweep) == [f"{prefix}{argument}"]
    assert as_typed(readable([argument], is_sweep)) == [argument]


@pytest.mark.parametrize("text", ["{'lr': 0.01, 'b': [0.9, 'x: 1']}", '{"lr": 0.01, "b" : [0.9, "x: 1"]}'])
def test_a_mapping_may_have_quotes_around_its_keys(text):
    assert read([f"optimizer={text}"]) == {"optimizer": {"lr": 0.01, "b": [0.9, "x: 1"]}}


def test_elements_of_lists_are_quoted_one_by_one():
    found = read(["references=[my file (1).txt, b=c.txt,plain.txt]"])
    assert found == {"references": ["my file (1).txt", "b=c.txt", "plain.txt"]}


def test_sweeps_keep_their_commas_only_with_several_runs(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    [argument] = readable(["data.train=a (1).json,b.json"], is_sweep=True)
    parsed = OverridesParser.create().parse_override(argument)
    assert [getattr(value, "text", value) for value in parsed.value().list] == ["a (1).json", "b.json"]
    assert read(["data.train=a (1).json,b.json"]) == {"data.train": "a (1).json,b.json"}
    (tmp_path / "a,b.json").touch()
    assert readable(["data.train=a,b.json"], is_sweep=True) == ["++data.train=a,b.json"]
    assert read(["data.train=a,b.json"]) == {"data.train": "a,b.json"}


@pytest.mark.slow
def test_null_is_no_choice_among_several_files_of_a_group_and_a_refused_sweep_leaves_no_run(
    monkeypatch, tmp_path, capsys
):
    monkeypatch.chdir(tmp_path)
    assert runs.call(monkeypatch, "train", "-m", "scheduler=null,linear", "attention.cross=dnas,softmax") == 2
    said = capsys.readouterr().err
    assert "error: scheduler=null: allowed: constant, cosine, linear, wsd. (in " in said
    assert "error: attention.cross=dnas: dnas couples queries" in said and not [*tmp_path.rglob("config.yaml")]
    typed = ["tokenizer.file=null,x", "data.train=null"]
    assert readable(typed, is_sweep=True) == [f"++{it}" for it in typed]


def test_interpolations_beside_other_signs_still_resolve(monkeypatch, tmp_path):
    monkeypatch.setenv("PLACE", "here")
    assert read(["data.train=${oc.env:PLACE}/a (1).json"]) == {"data.train": "here/a (1).json"}
    assert read(["input=a=b/${oc.env:PLACE}"]) == {"input": "a=b/here"}


@pytest.mark.slow
def test_each_key_of_a_path_is_one_of_the_configuration():
    from attnorm.config.hydra_errors import known_keys

    of_verbs = {key for verb in ("eval", "generate") for key in OmegaConf.load(CONF / f"{verb}.yaml")}
    assert {*known_keys(), *of_verbs} >= PATH_KEYS


@pytest.mark.slow
def test_a_run_keeps_the_true_path_and_is_scored_again(tmp_path):
    """Through the real commands, in a folder with a name of every trouble."""
    folder = tmp_path / "my ${data} (1), it's=\u00e9"
    folder.mkdir()
    pairs = [
        {"article": f"the {c} {a} of {p} likes {m} .", "title": f"{a} likes {m}"}
        for c, a, p, m in runs.sentences(0, 60)
    ]
    (folder / "a=b [1].jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    kept = [it for it in runs.tiny_overrides() if not it.startswith("data.") or "batch_tokens" in it]
    path = "a=b [1].jsonl"
    typed = (
        "tokenizer.vocab_size=100",
        "data=pair_files",
        f"data.train={path}",
        f"data.validation={folder}/{path}",
        "hydra.run.dir=the run (1)",
    )
    ended = runs.command(str(runs.ROOT / "train.py"), *kept, *typed, cwd=folder)
    assert (ended.returncode, ended.stderr) == (0, "")
    run = folder / "the run (1)"
    cfg = yaml.safe_load((run / "config.yaml").read_text())
    assert cfg["data"]["train"] == path and cfg["data"]["validation"] == f"{folder}/{path}"
    assert runs.record_of(run)["command"][-5:] == list(typed)
    ended = runs.command(str(runs.ROOT / "eval.py"), "run=the run (1)", f"data.train={folder}/{path}", cwd=folder)
    assert (ended.returncode, ended.stderr) == (0, "")
    record = json.loads((run / "eval_validation.json").read_text())
    assert record["data"]["validation"] == f"{folder}/{path}" and record["data"]["train"] == f"{folder}/{path}"
    assert record["metrics"] == json.loads((run / "summary.json").read_text())["validation"]["metrics"]


@dataclass(frozen=True, kw_only=True)
class Keys:
    run: Text
    text: str | None = None
    split: Literal["validation", "test"] = "validation"
    files: tuple[Text, ...] | None = None
    heads: tuple[WholeNumber, ...] = ()
    level: Share = 0.5
    ray: dict[str, Any] = field(default_factory=dict)


@pytest.mark.parametrize(
    ("typed", "settings"),
    [
        ("run=01 ; level=0", {"run": "01", "level": 0}),
        ("run='a, b' ; text='${x} (y'", {"run": "a, b", "text": "${x} (y"}),
        ("run=a ; files=b ; heads=3", {"run": "a", "files": ("b",), "heads": (3,)}),
        ("run=a ; files=[1,b=c.txt] ; heads=[0,1]", {"run": "a", "files": ("1", "b=c.txt"), "heads": (0, 1)}),
        ("run=a ; files=2024 ; text=null", {"run": "a", "files": ("2024",), "text": None}),
        ("+run=a ; ray.num_cpus=2 ; ray.address=auto", {"run": "a", "ray": {"num_cpus": 2, "address": "auto"}}),
    ],
)
def test_the_keys_of_a_command_have_the_types_of_its_dataclass(typed, settings):
    command = read_command(typed.split(" ; "), Keys, "attnorm x")
    assert command.settings == Keys(**settings) and command.typed == set(settings)


@pytest.mark.parametrize(
    ("typed", "problems"),
    [
        ("", ["run: must be given, as in run=<value>"]),
        ("run=??? level=2", ["level=2: allowed: numbers from 0 and below 1", "run: must be given, as in run=<value>"]),
        ("run", ["run: expected key=value; the keys are run, text, split, files, heads, level, ray"]),
        ("run=a heads=0,1", ["heads=0,1: type several values as a list, heads=[0,1]"]),
        ("run=a level=0,1", ["level=0,1: expected a single value"]),
        ("run=a ray=3 level.x=1", ["ray=3: expected ray.<name>=<value>", "level.x=1: expected a single value"]),
        ("run=a split=tset", ["split=tset: allowed: validation, test"]),
        ("run= text=", ["run: must be given, as in run=<value>"]),
        ("run=[a] text=[a]", [r"run=\[a\]: expected a single value, without brackets"]),
        (
            "run={a:1} split=[test]",
            ["run={a:1}: expected a single value, without brackets", r"split=\[test\]: expected a single value"],
        ),
        ("run=a heads=first", ["heads=first: allowed: whole numbers from 0"]),
        ("run=a heads=[0,x,-1]", [f"heads={it}: allowed: whole numbers from 0" for it in ("x", "-1")]),
        ("run=a data.dir=x", ["data.dir=x: attnorm x has no such option; it has .*"]),
        ("run=a lvel=1", ["lvel=1: attnorm x has no such option; it has .* Did you mean 'level'?"]),
    ],
)
def test_every_problem_of_a_command_is_reported(typed, problems):
    with pytest.raises(ConfigError) as caught:
        read_command(typed.split(), Keys, "attnorm x")
    assert len(caught.value.problems) == len(problems)
    for problem, expected in zip(caught.value.problems, problems, strict=True):
        assert problem == expected or re.fullmatch(expected.replace("?", r"\?"), problem)


def test_other_keys_change_the_run_if_the_command_can_do_that():
    command = read_command(["run=a", "data.dir=1", "++paths.x=b", "data=mine"], Keys, "attnorm x", ("data", "paths"))
    assert command.changes == (("data.dir", "1"), ("paths.x", "b"), ("data", "mine"))
    with pytest.raises(ConfigError, match=r"rnu: cannot be set here; allowed: run, .*, data. Did you mean 'run'"):
        read_command(["run=a", "rnu=3"], Keys, "attnorm x", ("data",))
