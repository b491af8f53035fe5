"""docs/add_your_own.md does what it says: its file is written, checked, trained with and evaluated."""

import ast
import inspect
import json
import re
import shlex
import sys

import pytest
import runs
import torch
from omegaconf import OmegaConf

from attnorm.attention import Normalizer, build_normalizer
from attnorm.attention.normalizers.base import Given
from attnorm.cli import main

PAGE = (runs.ROOT / "docs/add_your_own.md").read_text()
FILE, *BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.S)
[CHECK] = [block for block in BLOCKS if "check_normalizer(" in block]
LINES = [line for block in re.findall(r"```bash\n(.*?)```", PAGE, re.S) for line in block.splitlines()]
SHELL_CHECK, *COMMANDS = [line for line in LINES if not line.startswith("#")]
PATH = "attention.encoder=my_normalizer.Power"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the page's file; it is the current one and on the path."""
    (tmp_path / "my_normalizer.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("my_normalizer", None)


def arguments(typed):
    return shlex.split(typed)[2:]


def test_the_page_has_the_commands_that_are_run_here():
    verbs = [re.match(r"(?:\w+=\w+ )?attnorm (\w+) ", typed)[1] for typed in COMMANDS]
    assert verbs == [*["train"] * 5, "eval", "generate"] and SHELL_CHECK.startswith("attnorm check ")
    assert len(FILE.splitlines()) <= 22


def test_the_page_and_the_docstring_say_what_a_formula_is_given():
    rows = re.findall(r"^\| `(\w+)` \| (.+) \| (.+) \| (.+) \|$", PAGE.partition("`given`, a")[2], re.M)
    assert [name for name, *_ in rows] == [*Given._fields]
    assert re.findall(r"^(\w+): ", inspect.getdoc(Given), re.M) == [*Given._fields]
    assert {name: none.startswith("never") for name, *_, none in rows} == {
        name: default is not None for name, default in Given._field_defaults.items()
    }


def test_the_form_for_decoders_is_dnas_prefix_for_a_power_of_1_and_sees_nothing_later():
    names: dict = {}
    [prefix] = [block for block in BLOCKS if "class PowerPrefix" in block]
    for code in (FILE, prefix):
        exec(compile(code, "docs/add_your_own.md", "exec"), names)
    scores = 3 * torch.randn(2, 2, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    later = torch.cat([scores[..., :4, :], scores[..., 4:, :] + 5], -2)
    mask = torch.ones(6, 6).tril().bool()
    for p in (1.0, 1.5):
        weights = names["PowerPrefix"](p)(scores, mask)
        assert torch.equal(weights[..., :4, :], names["PowerPrefix"](p)(later, mask)[..., :4, :])
        assert torch.allclose(weights, build_normalizer("dnas_prefix")(scores, mask)) == (p == 1)
        assert not weights.masked_select(~mask).any()


@pytest.mark.slow
def test_the_file_of_the_page_passes_the_check_of_the_page(folder, capsys):
    exec(compile(CHECK, "docs/add_your_own.md", "exec"), {})
    assert main.run("check", arguments(SHELL_CHECK)) == 0
    printed = capsys.readouterr().out
    assert printed.count("Power(): ") == 3 and "FAIL" not in printed


def test_without_its_promise_it_fails_as_the_page_shows(folder, capsys):
    (folder / "my_normalizer.py").write_text(FILE.replace('    couples_queries = "all"\n', ""))
    with pytest.raises(AssertionError, match=r"failed: couples_queries_as_declared \("):
        exec(compile(CHECK, "docs/add_your_own.md", "exec"), {})
    printed = capsys.readouterr().out
    [shown] = re.findall(r"```text\n(FAIL.*?)```", PAGE, re.S)
    assert shown in printed
    names = re.findall(r"^FAIL  (\w+)", printed, re.M)
    assert names == ["couples_queries_as_declared"]


@pytest.mark.slow
def test_it_trains_from_the_command_line_and_is_evaluated_from_its_folder(folder, monkeypatch):
    typed = COMMANDS[1]
    assert "+attention.options.Power.p=2" in typed
    few = (*runs.tiny_overrides(), "task.validations=1", "callbacks.attention_stats.every_n_steps=0")
    train, path = str(runs.ROOT / "train.py"), {"PYTHONPATH": str(folder)}
    ended = runs.command(train, *arguments(typed), *few, cwd=folder, env=path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    [summary] = folder.rglob("summary.json")
    run = summary.parent
    assert run.parent == folder / "logs/gigaword/Power"
    assert json.loads(summary.read_text())["state"] == "finished"
    saved = OmegaConf.load(run / "config.yaml")
    assert saved.attention.encoder == "my_normalizer.Power" and saved.attention.options.Power.p == 2
    (folder / "articles.txt").write_text("an article\n")
    for command in COMMANDS[5:]:
        setting, words = re.match(r"(\w+=\w+ )?attnorm (.*)", command.replace("logs/<run folder>", str(run))).groups()
        verb, *typed = shlex.split(words)
        with monkeypatch.context() as patch:
            if setting is not None:
                patch.setenv(*setting.strip().split("="))
            assert runs.call(patch, verb, *typed) == 0

    assert runs.call(monkeypatch, "generate", *typed) == 2  # without the setting
    assert (run / "eval_validation.json").exists()


def test_the_docstring_lists_every_attribute_that_a_normalizer_may_declare_and_the_page_the_defaults():
    rows = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", PAGE, re.M))
    members = {name: value for name, value in vars(Normalizer).items() if not name.startswith("_")}
    attributes = {name for name, value in members.items() if not callable(value) and name != "takes_bank"}
    listed = re.findall(r"^([a-z_, ]+): ", inspect.getdoc(Normalizer), re.M)
    assert {name for names in listed for name in names.split(", ")} == attributes
    assert rows and rows.keys() <= attributes
    for name, default in rows.items():
        assert ast.literal_eval(default) == getattr(Normalizer, name), name


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ((PATH, "+attention.options.Power.q=2"), "attention.options.Power.q=2: no such option; allowed: p."),
        ((PATH, "+attention.options.Power.p=-1"), "p=-1: allowed: numbers above 0"),
        (("attention.decoder=my_normalizer.Power",), "couples queries and would leak the future"),
        (("attention.encoder=my_normalizer.Powr",), "my_normalizer has no Powr. Did you mean 'Power'?"),
        (("attention.encoder=your_normalizer.Power",), "No module named 'your_normalizer'"),
    ],
)
def test_what_the_page_says_is_refused(folder, monkeypatch, capsys, typed, words):
    assert runs.call(monkeypatch, "train", *typed) == 2
    assert words in capsys.readouterr().err
    assert not list(folder.glob("logs/**/config.yaml"))


def test_the_sweep_of_the_page_composes(folder):
    for normalizer in re.search(r"attention\.encoder=(\S+)", COMMANDS[2])[1].split(","):
        assert runs.tiny(f"attention.encoder={normalizer}")["attention"]["encoder"] == normalizer
