"""What the documentation tells people to type: every snippet runs, every command is sound, the main ones are run."""

import itertools
import json
import re
import shlex
import textwrap

import pytest
import runs
import torch
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from attnorm.config import overrides as rerun
from attnorm.config import validate as config
from attnorm.data.sources.gigaword import FILES

README = (runs.ROOT / "README.md").read_text()
ANSWER = {"text": "a", "answer_start": 0}
DOCUMENTS = [
    runs.ROOT / "README.md",
    *(p for f in ("docs", "experiments") for p in sorted((runs.ROOT / f).rglob("*.md"))),
]
SQUAD = {  # the smallest file of its form
    "data": [{"paragraphs": [{"context": "a", "qas": [{"id": "1", "question": "b", "answers": [ANSWER]}]}]}]
}
COMMAND = re.compile(r"(?:[A-Z_]+=\S+ )*python (train|eval|generate)\.py\b[^`\n]*")
REAL = (  # those that are run, tiny
    "python train.py attention=hnas task=gigaword",
    "python train.py -m attention=softmax,dnas,hnas seed=1,2,3",
    "python train.py -m hparams_search=attention",
    "python train.py debug=fdr",
)


def commands():
    """(where, door, arguments) for each command of the documents and of the first comments of conf/."""
    for file in [*DOCUMENTS, *sorted(runs.CONF.rglob("*.yaml"))]:
        text = file.read_text()
        if file.suffix == ".yaml":
            text = "\n".join(itertools.takewhile(lambda line: line.startswith("#"), text.splitlines()))
        for found in COMMAND.finditer(text):
            typed = re.split(r"\s+[#>|]\s*|\s+&&", found[0])[0]
            if not typed.endswith(("...", "--help")):
                yield str(file.relative_to(runs.ROOT)), found[1], typed


COMMANDS = list(dict.fromkeys(commands()))


@pytest.fixture
def material(tmp_path, monkeypatch):
    """What placeholders stand for. A function from a typed command to its arguments."""
    run, visual = runs.copied_run(tmp_path), runs.finished_run("vqa_v2")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATTNORM_LOGS", str(tmp_path))
    monkeypatch.setenv("ATTNORM_CACHE", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(config, "check_trainer", lambda trainer: [])  # Lightning itself sees no GPU
    for name in itertools.chain(*FILES.values()):
        (tmp_path / name).write_text("an article\n")
    for folder in ("my/books", "squad"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("train.jsonl", "valid.jsonl", "my/train.jsonl", "my/books/one.txt", "train.csv", "valid.csv"):
        (tmp_path / name).write_text('{"text": "a", "headline": "b", "article": "a", "title": "b"}\n')
    for name in ("train-v1.1.json", "dev-v1.1.json", "train-v2.0.json", "dev-v2.0.json", "predictions.json"):
        for folder in (tmp_path, tmp_path / "squad"):
            (folder / name).write_text(json.dumps(SQUAD if name.startswith("dev") else {}))
    for name in ("q", "a", "vq", "va", "results", "annotations", "questions"):
        (tmp_path / f"{name}.json").write_text("{}")
    (tmp_path / "my/valid.csv").write_text("article,title\na,b\n")
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]) + "\n")
    for name in ("articles", "headlines", "titles", "task1_ref1"):
        (tmp_path / f"{name}.txt").write_text("an article\n")
    page = (runs.ROOT / "docs/add_your_own.md").read_text()
    (tmp_path / "my_normalizer.py").write_text(re.search(r"```python\n(.*?)```", page, re.S)[1])
    monkeypatch.syspath_prepend(tmp_path)

    def arguments(typed):
        typed = re.sub(r"\[([\w.]+=[^\]]*)\]", r"\1", typed)  # [split=test] is optional
        for pattern, value in (
            (r"logs/vqa/[\w/]*<run[^>]*>", str(visual)),
            (r"(?:logs/)?<run[^>]*>", str(run)),
            (r"<BERT's vocab.txt>|bert/vocab.txt", f"{tmp_path}/vocab.txt"),
            (r"<owner/name>", "owner/name"),
            (r"<BERT folder(?: or run)?>", str(run)),
            (r"<text>|<wikipedia>|<novels>", f"{tmp_path}/my/books"),
            (r"<Reuters>", str(tmp_path)),
            (r"<file or ->", f"{tmp_path}/articles.txt"),
            (r"data\.dir=(<[^>]*>|/data/gigaword)", f"data.dir={tmp_path}"),
        ):
            typed = re.sub(pattern, value, typed)
        words = shlex.split(typed)
        return words[words.index("python") + 2 :]

    return arguments


def each(arguments):
    """The jobs of a sweep, or the one job."""
    parsed = OverridesParser.create().parse_overrides([word for word in arguments if word != "-m"])
    choices = [
        [f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()]
        if override.is_sweep_override()
        else [override.input_line]
        for override in parsed
    ]
    return list(itertools.product(*choices))


def test_there_are_commands_to_look_at():
    assert len(COMMANDS) > 40
    assert {door for _, door, _ in COMMANDS} == {"train", "eval", "generate"}
    assert {where for where, *_ in COMMANDS} >= {"README.md", "docs/hnas.md", "conf/train.yaml"}


@pytest.mark.training
@pytest.mark.parametrize(("where", "door", "typed"), COMMANDS, ids=[f"{w}: {t}" for w, _, t in COMMANDS])
def test_a_command_in_the_documents_is_sound(material, where, door, typed):
    arguments = material(typed)
    assert not [word for word in arguments if "<" in word or ">" in word], "a placeholder without a value"
    if "data=easy_vqa" in arguments:
        pytest.importorskip("easy_vqa", reason="easy-vqa is not installed")
    if door == "train":
        for job in each(arguments):
            problems = config.check(runs.plain(*job), multirun="-m" in arguments)
            # the run at hand is a tiny one, so its settings differ from those of the command
            other = [it for it in problems if "the run being resumed" not in it and "resuming repeats" not in it]
            assert other == []
    else:
        defaults = OmegaConf.to_container(OmegaConf.load(runs.CONF / f"{door}.yaml"))
        command = rerun.read_command(arguments, defaults)
        if command.settings.get("metric"):
            references = command.settings["references"]
            paths = references if isinstance(references, list) else [references]
            assert all(rerun.Path(path).is_file() for path in (command.settings["predictions"], *paths))
            return
        if any(key.startswith("task.") for key, _ in command.typed):
            return  # of another task than that of the run at hand
        cfg = rerun.changed(rerun.read_run(rerun.Path(command.settings["run"])), command.typed, runs.CONF)
        assert [*config.check_values(cfg), *config.check_data(cfg, ("validation",))] == []


@pytest.mark.training
@pytest.mark.parametrize("typed", REAL)
def test_a_main_command_runs(monkeypatch, tmp_path, typed):
    assert typed in README
    arguments = shlex.split(typed)[2:]
    monkeypatch.chdir(tmp_path)
    few = ["attention=softmax,hnas", "seed=1,2"] if "hparams_search" in typed else []
    arguments = [re.sub("softmax,dnas,hnas", "softmax,hnas", word).replace("1,2,3", "1,2") for word in arguments]
    tiny = ["trainer.max_steps=2", "callbacks.attention_every=0", "task.validations=1"]
    assert runs.call(monkeypatch, "train", *arguments, *runs.tiny_overrides(), *few, *tiny) == 0
    assert len(list(tmp_path.rglob("summary.json"))) == (4 if "-m" in arguments else 1)


def test_the_commands_after_training_run(monkeypatch, tmp_path, capsys):
    run = runs.copied_run(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "articles.txt").write_text("an article\nanother one\n")
    (tmp_path / "dev-v1.1.json").write_text(json.dumps(SQUAD))
    (tmp_path / "predictions.json").write_text('{"1": "the a"}')
    for typed in re.findall(r"^python (?:eval|generate)\.py .*", README, re.M):
        door, *arguments = shlex.split(re.split(r"\s+[#>]", typed)[0].replace("logs/<run folder>", str(run)))[1:]
        assert runs.call(monkeypatch, door.removesuffix(".py"), *arguments) == 0
    assert {path.name for path in run.glob("eval_*.json")} == {"eval_validation.json", "eval_test.json"}


@pytest.mark.parametrize("number", range(README.count("```python")))
def test_a_python_snippet_of_the_readme_runs(number, capsys):
    snippet = re.findall(r"```python\n(.*?)```", README, re.S)[number]
    exec(compile(textwrap.dedent(snippet), f"README.md, snippet {number}", "exec"), {})
    assert capsys.readouterr().out


def test_the_snippet_prints_what_the_formula_promises(capsys):
    [snippet] = [s for s in re.findall(r"```python\n(.*?)```", README, re.S) if "hybrid_weight" in s]
    exec(snippet, {})
    assert capsys.readouterr().out == "torch.Size([2, 4, 10, 16]) 0.5\n"


def test_make_targets_and_linked_files_exist():
    makefile = (runs.ROOT / "Makefile").read_text()
    targets = set(re.findall(r"(?:^|`)make ([a-z][\w-]*)", README, re.M))
    assert targets >= {"train", "test", "lint", "setup"}
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.M), target
        assert re.search(rf"^\.PHONY:.* {target}\b", makefile, re.M), target
    for document in DOCUMENTS:
        for link in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / link).exists(), f"{document.name}: {link}"


def test_the_first_command_of_the_makefile_is_that_of_the_readme():
    makefile = (runs.ROOT / "Makefile").read_text()
    assert f"$(BIN)/{REAL[0]}" in makefile
