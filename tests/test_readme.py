"""What the documentation tells people to type: every code block of every page is checked, the main commands are run."""

import contextlib
import functools
import importlib
import importlib.util
import itertools
import json
import os
import pkgutil
import re
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import runs
import torch
import yaml
from gpt_builders import write_bpe
from made_up_runs import make_runs
from marks import slow
from safetensors.torch import save_file
from scripts import load
from test_house import BELOW

import attnorm
from attnorm.analysis.score_files import read_scores
from attnorm.analysis.verdict import p_is
from attnorm.attention.registry import NORMALIZERS, PARTS
from attnorm.cli import main
from attnorm.cli import train as front
from attnorm.cli.attention import read_attention
from attnorm.cli.check import CheckKeys
from attnorm.cli.compare import CompareSettings
from attnorm.cli.evaluate import EvalKeys, files_to_score
from attnorm.cli.generate import GenerateKeys
from attnorm.cli.ls import LsKeys
from attnorm.cli.probe import read_probe
from attnorm.cli.report import read_report
from attnorm.cli.verbs import VERBS
from attnorm.config import lightning
from attnorm.config import recorded as rerun
from attnorm.config.command import read
from attnorm.config.compose import plain_settings
from attnorm.config.read import read_recorded, read_settings
from attnorm.data.sources.gigaword import FILES
from attnorm.errors import ConfigError, Interrupted
from attnorm.experiments.papers.figures import read_figures
from attnorm.imports import find, parameters
from attnorm.probes.experiment import ProbePlan
from attnorm.run.csv_files import read_csv
from attnorm.run.opening import read_run
from attnorm.run.run import Run
from attnorm.sweeps import tuning
from attnorm.sweeps.command import read_sweep
from attnorm.tasks.results import LOWER_IS_BETTER, NAMES
from attnorm.training.module import TrainingModule

LAB = runs.ROOT / "src/attnorm/skeleton/lab"
README = (runs.ROOT / "README.md").read_text()
PACKAGES = ("bible_alignments",)  # of sources; commands with them are refused where they are not installed
ANSWER = {"text": "a", "answer_start": 0}
DOCUMENTS = [runs.ROOT / name for name in ("README.md", "CONTRIBUTING.md")]
DOCUMENTS += [page for name in ("docs", "experiments") for page in sorted((runs.ROOT / name).rglob("*.md"))]
QUESTION = {"id": "1", "question": "b", "answers": [ANSWER]}
SQUAD = {"data": [{"paragraphs": [{"context": "a", "qas": [QUESTION]}]}]}  # the smallest file of its form
BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.M | re.S)
VERB = (
    r"(?:(?:python|\.venv/bin/python|torchrun(?: --\S+)+) (?P<script>train|eval|generate)\.py"
    rf"|(?:srun(?: --\S+)+ )?attnorm (?P<verb>(?:{'|'.join(main.VERBS)})(?!=)))"
)
COMMAND = re.compile(rf"(?:[A-Z_]+=\S+ )*{VERB}\b[^`\n]*")
TOOLS = ("source .venv/bin/activate", "docker build ", "docker run ", "pip install ", "pre-commit ", "tar ")
REAL = (  # those that are run, tiny
    "python train.py attention=hnas task=gigaword",
    slow("attnorm train -m attention=softmax,dnas,hnas seed=1,2,3"),  # a process for each of its jobs
    slow("attnorm train debug=fdr"),
)


def blocks(document: Path, language: str) -> list[str]:
    """The code blocks of a page in this language, without their indentation."""
    found = BLOCK.findall(document.read_text())
    return [textwrap.dedent(code) for _, name, code in found if name == language]


def lines_of(*documents: Path) -> list[str]:
    """The lines of the bash blocks of pages."""
    return [line for page in documents for code in blocks(page, "bash") for line in code.splitlines()]


hooks = functools.cache(functools.partial(load, "docs/hooks"))


def name_of(file: Path) -> str:
    return str(file.relative_to(runs.ROOT))


def commands():
    """(where, verb, command) for each command of the documents and of the first comments of conf/."""
    for file in [*DOCUMENTS, *sorted(runs.CONF.rglob("*.yaml"))]:
        text = file.read_text()
        if file.suffix == ".yaml":
            text = "\n".join(itertools.takewhile(lambda line: line.startswith("#"), text.splitlines()))
        for found in COMMAND.finditer(text):
            typed = re.split(r"\s+[#>|]\s*|\s+&&", found[0])[0]
            if not typed.endswith(("...", "--help")):
                yield name_of(file), found["script"] or found["verb"], typed


COMMANDS = list({(verb, typed): (where, verb, typed) for where, verb, typed in commands()}.values())
PLACES = ("README.md", "CONTRIBUTING.md", "docs/", "experiments/", "conf/")


@pytest.mark.parametrize("page", [*DOCUMENTS, LAB.parent / "README.md"], ids=name_of)
def test_the_tables_of_a_page_are_whole(page):
    """Every row has the cells of its header. A blank line would end a table, and leave its other rows as text."""
    lines = BLOCK.sub("", page.read_text()).splitlines()
    for is_table, grouped in itertools.groupby(lines, lambda line: line.lstrip().startswith("|")):
        if is_table:
            header, rule, *rows = [re.split(r"(?<!\\)\|", line.strip())[1:-1] for line in grouped]
            assert all(re.fullmatch(r" *:?-+:? *", cell) for cell in rule), f"no header above {header}"
            assert {len(row) for row in [rule, *rows]} == {len(header)}, header


@functools.cache
def encoder_run() -> Path:
    """A run of task=mlm with as many positions as BERT has, to start from."""
    folder = runs.scratch("encoder")
    few = ("task.max_steps=1", "task.validations=1", "callbacks.attention_stats.every_n_steps=0")
    runs.tiny_run(folder, "model.max_source=512", *few, task="mlm")
    return folder


OF_TASKS = {"vqa_v2": "logs/vqa", "captioning": "logs/captioning", "translation": "logs/translation"}
OF_TASKS |= {"causal_lm": "decoding.t"}  # what the commands have that need a run of this task


@pytest.fixture
def material(request, tmp_path, monkeypatch):
    """Makes what the commands of a page name as <...>. Returns a function from a typed command to its arguments."""
    run, place = runs.copied_run(tmp_path), request.node.callspec.params["place"]
    every = "".join(typed for where, _, typed in COMMANDS if where.startswith(place))
    made = {task: runs.finished_run(task) for task, sign in OF_TASKS.items() if sign in every}
    encoder = encoder_run() if "<BERT folder" in every else None
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATTNORM_LOGS", str(tmp_path))
    monkeypatch.setenv("ATTNORM_CACHE", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(lightning, "refused_by_lightning", lambda *_: [])  # Lightning itself sees no GPU
    for folder in ("my/books", "my/novels", "more", "squad", "images", "train2014", "val2014", "bert", "t5", "gpt2"):
        (tmp_path / folder).mkdir(parents=True)
    parallel = (f"{stem}.{language}" for stem in ("train", "val") for language in ("de", "en", "fr"))
    texts = ("articles.txt", "headlines.txt", "titles.txt", "task1_ref1.txt")
    for name in itertools.chain(*FILES.values(), parallel, texts):
        (tmp_path / name).write_text("an article\n")
    for name in ("one.txt", "two.txt", "Doyle_one.txt", "Stevenson_one.txt"):
        (tmp_path / "my/novels" / name).write_text("a novel\n")
    for name in (
        "train.jsonl",
        "valid.jsonl",
        "first.jsonl",
        "my/train.jsonl",
        "my/books/one.txt",
        "train.csv",
        "valid.csv",
    ):
        (tmp_path / name).write_text('{"text": "a", "headline": "b", "article": "a", "title": "b"}\n')
    for name in ("train-v1.1.json", "dev-v1.1.json", "train-v2.0.json", "dev-v2.0.json", "predictions.json"):
        for folder in (tmp_path, tmp_path / "squad"):
            (folder / name).write_text(json.dumps(SQUAD if name.startswith("dev") else {}))
    records = (f"{name}.json" for name in ("q", "a", "vq", "va", "t", "v", "results", "annotations", "questions"))
    for name in (
        *records,
        "token.txt",
        "trainImages.txt",
        "devImages.txt",
        "images.txt",
        "spiece.model",
        "tokenizer.json",
    ):
        (tmp_path / name).write_text("{}\n")
    save_file({"1": torch.zeros(1, 3)}, tmp_path / "grid.safetensors")
    save_file({"1": torch.zeros(1, 3), "1.boxes": torch.zeros(1, 4)}, tmp_path / "view.safetensors")
    for name in ("my/valid.csv", "more/second.csv"):
        (tmp_path / name).write_text("article,title\na,b\n")
    (tmp_path / "chats.jsonl").write_text('{"messages": [{"content": "a"}, {"content": "b"}]}\n')
    for kind in ("bert", "t5"):
        (tmp_path / kind / "config.json").write_text(json.dumps({"model_type": kind}))
    shape = {"model_type": "gpt2", "n_positions": 1024, "vocab_size": write_bpe(tmp_path / "gpt2")}
    (tmp_path / "gpt2/config.json").write_text(json.dumps(shape))
    (tmp_path / "gpt2/model.safetensors").touch()
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]) + "\n")
    shutil.copytree(LAB, tmp_path / "lab", ignore=shutil.ignore_patterns("__pycache__"))
    modules = {"add_your_own": "my_normalizer", "regularized": "my_omega", "probe": "first_half", "paper": "damped"}
    for page, module in modules.items():
        text = (runs.ROOT / f"docs/{page}.md").read_text()
        (tmp_path / f"{module}.py").write_text(re.search(r"```python\n(.*?)```", text, re.S)[1])
    own = "experiments/ot_synonyms"  # an experiment with parts of its own
    shutil.copytree(runs.ROOT / own, tmp_path / own, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.syspath_prepend(tmp_path)

    def arguments(typed):
        typed = re.sub(r"\[([\w.]+=[^\]]*)\]", r"\1", typed)  # [split=test] is optional
        for pattern, value in (
            *((rf"{OF_TASKS[task]}/[\w/]*<run[^>]*>", str(folder)) for task, folder in made.items()),
            (r"(?:logs/)?<run[^>]*>", str(run)),
            (r"logs/(?:sweeps/)?<sweep folder>", str(tmp_path)),
            (r"<BERT's vocab.txt>|bert/vocab.txt", f"{tmp_path}/vocab.txt"),
            (r"t5/spiece.model", f"{tmp_path}/spiece.model"),
            (r"llama/tokenizer.json|<tokenizer.json>", f"{tmp_path}/tokenizer.json"),
            (r"<owner/name>", "owner/name"),
            (r"(model=\[?)<BERT folder>", rf"\1{tmp_path}/bert"),
            (r"<GPT-2 folder>", f"{tmp_path}/gpt2"),
            (r"<T5 folder>", f"{tmp_path}/t5"),
            (r"<view \d>", f"{tmp_path}/view.safetensors"),
            (r"<BERT folder(?: or run)?>", str(encoder)),
            (r"<text>|<wikipedia>", f"{tmp_path}/my/books"),
            (r"<novels>", f"{tmp_path}/my/novels"),
            (r"<Reuters>", str(tmp_path)),
            (r"<file or ->", f"{tmp_path}/articles.txt"),
            (r"\$SLURM_NTASKS_PER_NODE", "4"),
            (r"\$SLURM_NNODES", "1"),
            (r"\$\{run%/run.json\}", str(run)),
            (r' "\$@"', ""),
            (r"data\.dir=(<[^>]*>|/data/\w+)", f"data.dir={tmp_path}"),
        ):
            typed = re.sub(pattern, value, typed)
        return shlex.split(typed[re.search(VERB, typed).end() :])

    yield arguments
    for module in modules.values():
        sys.modules.pop(module, None)


def searched(arguments: list[str]) -> tuple[str, ...]:
    """The settings of a job, with the folder of --config-dir on the search path."""
    if "--config-dir" not in arguments:
        return (*arguments,)
    place = arguments.index("--config-dir")
    path = f"hydra.searchpath=[file://{Path(arguments[place + 1]).resolve()}]"
    return (*arguments[:place], *arguments[place + 2 :], path)


def problems_in(check, *given) -> list[str]:
    """What a check of settings refuses."""
    try:
        check(*given)
    except ConfigError as error:
        return error.problems
    return []


def problems_of_job(overrides: tuple[str, ...]) -> list[str]:
    """What is wrong with one training job."""
    return problems_in(lambda: runs.checked(runs.composed(*overrides), overrides))


READERS = {
    "probe": read_probe,
    "report": read_report,
    "figures": read_figures,
    "check": lambda typed: read(VERBS["check"].with_key(typed), CheckKeys, "attnorm check"),
    "ls": lambda typed: read(VERBS["ls"].with_key(typed), LsKeys, "attnorm ls"),
    "compare": functools.partial(read, keys=CompareSettings, owner="attnorm compare"),
}


def problems_of(verb: str, arguments: list[str]) -> list[str]:
    """What is wrong with a command, without running it."""
    if any("<" in word or ">" in word for word in arguments):
        return ["a placeholder without a value"]
    if verb == "train" and "-m" in arguments:
        verb, arguments = "sweep", [word for word in arguments if word != "-m"]
    if verb == "train" and "".join(arguments[:1]).startswith("from="):
        before, *typed = arguments
        cfg = runs.composed(*typed, of_files=rerun.from_run(Path(before.removeprefix("from=")), typed))
        return problems_in(read_settings, rerun.without_unused(plain_settings(cfg), typed), typed)
    if verb == "train":
        found = problems_of_job(searched(arguments))
        # the run at hand is a tiny one, so its settings differ from those of the command
        return [it for it in found if "the run being resumed" not in it and "resuming repeats" not in it]
    if verb == "sweep":
        jobs = read_sweep(arguments).samples()
        return [it for job in jobs for it in problems_of_job(job)]
    if verb == "new":
        return [] if len(arguments) == 1 else ["expected a folder"]
    if verb in ("eval", "generate", "attention", "compare", "report") and not arguments:
        return []  # it prints its help
    if verb in READERS:
        READERS[verb](arguments)
        return []
    if verb == "attention":
        command = read_attention(arguments)
        folders = command.settings.folders
    else:
        command = read(arguments, {"eval": EvalKeys, "generate": GenerateKeys}[verb], verb, rerun.OVERRIDABLE)
        of_language = any(key in ("decoding.temperature", "decoding.top_p") for key, _ in command.changes)
        folders = [runs.finished_run("causal_lm") if of_language else Path(command.settings.run or "")]
    if getattr(command.settings, "metric", None):
        return [f"no file {path}" for path in files_to_score(command.settings) if not Path(path).is_file()]
    if any(key.startswith("task.") for key, _ in command.changes):
        return []  # of another task than that of the run at hand
    cfgs = [rerun.changed(read_run(folder), command.changes) for folder in folders]
    return [it for cfg in cfgs for it in problems_in(read_recorded, cfg, ("validation",))]


def test_there_are_commands_to_look_at():
    assert len(COMMANDS) > 80
    missing = {*main.VERBS} - {verb for where, verb, _ in commands() if not where.startswith("conf/")}
    assert not missing, f"document on a page a command of: {', '.join(sorted(missing))}"
    missing = {*main.VERBS} - {*READERS, "train", "sweep", "new", "eval", "generate", "attention"}
    assert not missing, f"READERS has no entry for: {', '.join(sorted(missing))}"
    assert {where for where, *_ in commands()} >= {"README.md", "docs/hnas.md", "docs/paper.md", "conf/train.yaml"}
    assert any(typed.startswith("torchrun") for *_, typed in COMMANDS)
    assert any(typed.startswith("attnorm") for *_, typed in COMMANDS)
    assert all(where.startswith(PLACES) for where, *_ in COMMANDS)


@pytest.mark.training
@pytest.mark.parametrize("place", ["README.md", *map(slow, ("docs/", "experiments/", "conf/"))])
def test_the_commands_of_the_documents_are_sound(material, place):
    wrong = []
    for where, verb, typed in COMMANDS:
        if not where.startswith(place):
            continue
        if any(f"data={name}" in typed and not importlib.util.find_spec(name) for name in PACKAGES):
            continue
        try:
            found = problems_of(verb, material(typed))
        except Exception as error:
            found = [f"{type(error).__name__}: {error}"]
        wrong += [f"{where}: {typed}: {problem}" for problem in found]
    assert wrong == []


def unchecked(line: str) -> str | None:
    """Why a line of a bash block cannot be right, or why nothing checks it; None if it is fine."""
    found = COMMAND.search(line)
    if found and line.startswith((found[0], "zcat ")):
        return None  # test_the_commands_of_the_documents_are_sound
    if line.startswith(("# ", *TOOLS)):
        return None
    if line.startswith("make "):
        targets = re.findall(r"^([a-z][\w-]*):", (runs.ROOT / "Makefile").read_text(), re.M)
        return None if line.split()[1] in targets else "no such target"
    script = re.match(r"(?:[A-Z_]+=\S+ )*python (?:-m (?P<module>[\w.]+)|(?P<file>[\w/]+\.py))", line)
    if script is None:
        return "no test checks this kind of command"
    file = script["file"] or f"src/{script['module'].replace('.', '/')}.py"
    if not (runs.ROOT / file).is_file():
        return "no such file"
    source = (runs.ROOT / file).read_text()
    options = re.findall(r"(?<=\s)--[a-z][\w-]*", re.split(r"\s+#", line)[0])
    return next((f"no option {option}" for option in options if f'"{option}"' not in source), None)


def test_blocks_are_in_languages_and_lines_of_bash_are_commands_that_are_checked():
    lines = [(name_of(doc), line) for doc in DOCUMENTS for line in lines_of(doc)]
    assert len(lines) > 100
    assert [(where, line, why) for where, line in lines if (why := unchecked(line))] == []
    found = {name for document in DOCUMENTS for _, name, _ in BLOCK.findall(document.read_text())}
    assert found == {"bash", "python", "text"}
    fences = {name_of(doc): len(re.findall(r"^ *```", doc.read_text(), re.M)) for doc in DOCUMENTS}
    assert fences == {name_of(doc): 2 * len(BLOCK.findall(doc.read_text())) for doc in DOCUMENTS}


@pytest.mark.training
@pytest.mark.parametrize("typed", REAL)
def test_a_main_command_runs(monkeypatch, tmp_path, typed):
    assert typed in lines_of(*DOCUMENTS)
    arguments = shlex.split(typed)[2:]
    monkeypatch.chdir(tmp_path)
    arguments = [re.sub("softmax,dnas,hnas", "softmax,hnas", word).replace("1,2,3", "1,2") for word in arguments]
    tiny = ["trainer.max_steps=2", "callbacks.attention_stats.every_n_steps=0", "task.validations=1"]
    assert runs.call(monkeypatch, "train", *arguments, *runs.tiny_overrides(), *tiny) == 0
    assert len(list(tmp_path.rglob("summary.json"))) == (4 if "-m" in arguments else 1)


def test_the_commands_after_training_run(monkeypatch, tmp_path, capsys):
    run = runs.copied_run(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "articles.txt").write_text("an article\nanother one\n")
    (tmp_path / "dev-v1.1.json").write_text(json.dumps(SQUAD))
    (tmp_path / "predictions.json").write_text('{"1": "the a"}')
    lines = lines_of(runs.ROOT / "README.md", runs.ROOT / "docs/training.md")
    lines = [line for line in lines if re.match(r"attnorm (?:eval|generate) ", line)]
    assert len(lines) >= 5
    for typed in dict.fromkeys(re.split(r"\s+>", line)[0] for line in lines):
        verb, *arguments = shlex.split(typed.replace("logs/<run folder>", str(run)))[1:]
        assert runs.call(monkeypatch, verb, *arguments) == 0
    assert {path.name for path in run.glob("eval_*.json")} >= {"eval_validation.json", "eval_test.json"}


@pytest.mark.slow
def test_the_python_blocks_run_and_print_what_they_say(monkeypatch, tmp_path, capsys):
    """The blocks of a page run one after the other; `print(...)  # x` has to print x."""
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "logs/gigaword/hnas/2026-01-31_12-00-00"  # what docs/load_run.md opens
    shutil.copytree(runs.finished_run(), run)
    make_runs(tmp_path / "logs/sweeps/gigaword_1a2b3c4d", {"softmax": 0.0, "hnas": 0.0})  # for docs/compare.md
    capsys.readouterr()
    pages = {document: codes for document in DOCUMENTS if (codes := blocks(document, "python"))}
    del pages[runs.ROOT / "docs/paper.md"], pages[runs.ROOT / "docs/sweeps.md"]  # in tests of their own
    assert len(pages) >= 10
    for document, codes in pages.items():
        names: dict = {"__name__": "page"}
        for code in codes:
            if "check_normalizer(" in code or "rows.append(" in code:
                continue  # tests/test_add_your_own.py, and the next test
            if document.stem == "in_transformers" and not importlib.util.find_spec("transformers"):
                continue
            exec(compile(code, name_of(document), "exec"), names)
            said = re.findall(r"^print\(.*\)  # (.*)$", code, re.M)
            printed = capsys.readouterr().out
            assert not said or printed.splitlines() == said, name_of(document)


def test_the_recipes_of_a_page_make_tables_of_the_logs_of_other_programs(monkeypatch, tmp_path):
    """The fields are those of lm-evaluation-harness 0.4 and of inspect_ai 0.3, whose functions have a stand-in here."""
    monkeypatch.chdir(tmp_path)
    of_harness, of_inspect = (it for it in blocks(runs.ROOT / "docs/compare.md", "python") if "rows.append(" in it)
    for arm, seed in itertools.product(("softmax", "my_dnas"), (1, 2, 3)):
        file = tmp_path / f"out/{arm}_{seed}/model/samples_arc_easy_2026-11-27T05-37-38.1.jsonl"
        file.parent.mkdir(parents=True)
        samples = [{"doc_id": n, "doc_hash": f"h{n}", "acc": (n + seed) % 2, "filter": "none"} for n in range(4)]
        file.write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    exec(of_harness, {})
    found = read_scores([tmp_path / "arc_easy.csv"])
    assert found.values["my_dnas"][3] == {"0 h0": 1, "1 h1": 0, "2 h2": 1, "3 h3": 0}
    assert list(found.values) == ["my_dnas", "softmax"] and list(found.values["softmax"]) == [1, 2, 3]

    def read_eval_log(file):
        epochs = ("CI", "CC") if file == "d.eval" else ("IN", "IP")  # of two samples
        scored = [(n, {"match": SimpleNamespace(value=it)}) for its in epochs for n, it in enumerate(its)]
        return SimpleNamespace(status="success", samples=[SimpleNamespace(id=n, scores=it) for n, it in scored])

    number = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}
    monkeypatch.setitem(sys.modules, "inspect_ai", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "inspect_ai.log", SimpleNamespace(read_eval_log=read_eval_log))
    monkeypatch.setitem(sys.modules, "inspect_ai.scorer", SimpleNamespace(value_to_float=lambda: number.get))
    exec(of_inspect, {})
    values = read_scores([tmp_path / "match.parquet"]).values
    assert values == {"softmax": {1: {"0": 0, "1": 0.25}, 2: {"0": 0, "1": 0.25}}} | {
        "dnas": {1: {"0": 0, "1": 0.25}, 2: {"0": 1, "1": 0.5}}
    }


@pytest.mark.slow
@pytest.mark.training
def test_the_recipe_of_a_search_continues_where_it_was_stopped(monkeypatch, tmp_path, capsys):
    optuna = pytest.importorskip("optuna", reason="the recipe needs optuna")
    monkeypatch.chdir(tmp_path)
    [code] = blocks(runs.ROOT / "docs/sweeps.md", "python")
    tiny = [it for it in runs.tiny_overrides() if not it.startswith("optimizer.lr=")]
    train, step, steps = attnorm.train, TrainingModule.training_step, itertools.count(1)

    def stopped_in_the_second_run(module, *given):
        if next(steps) == 6:  # runs have four updates
            signal.raise_signal(signal.SIGINT)
        return step(module, *given)

    monkeypatch.setattr(attnorm, "train", lambda overrides: train([*overrides, *tiny]))
    monkeypatch.setattr(TrainingModule, "training_step", stopped_in_the_second_run)
    with pytest.raises(Interrupted):
        exec(code.replace("< 20", "< 3"), {})
    exec(code.replace("< 20", "< 3"), {})
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend("search.jsonl"))
    trials = optuna.load_study(study_name="search", storage=storage).trials
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 3
    found = [Run(path.parent) for path in tmp_path.rglob("summary.json")]
    assert sorted(run.best_value for run in found) == sorted(trial.value for trial in trials)
    assert "optimizer.lr" in capsys.readouterr().out


def test_the_lines_of_a_table_on_the_page_of_a_paper_are_those_that_compare_writes(monkeypatch, tmp_path):
    def written_lines():
        assert runs.call(monkeypatch, "compare", f"against={tmp_path}/pilot", f"out={tmp_path}/result.tex") == 0
        return (tmp_path / "result.tex").read_text().splitlines()

    folders = make_runs(tmp_path / "pilot", {"softmax": 0.0, "dnas": 1.0})
    written = written_lines()
    [shown] = [code.splitlines() for code in blocks(runs.ROOT / "docs/paper.md", "text") if "tabular" in code]
    of_table = [re.sub("accuracy", "ROUGE-L F1", line) for line in shown if line.startswith(("\\", "arm &"))]
    assert len(of_table) == 5 and [line for line in of_table if line not in written] == []
    cells = [[len(line.split("&")) for line in lines if line.endswith(r" \\")] for lines in (shown, written)]
    assert cells[0] == cells[1] == [10, 10, 10]
    pattern = r"The task is \S+ with data of \S+ \(\S+ examples for training\)\. The model is \w+ "
    assert re.match(pattern, shown[-1]) and re.match(pattern, written[-1])
    assert re.search(r"The code is attnorm \S+, commit \w{10}\.", written[-1])
    for path in [folder / "run.json" for folder in folders]:  # as if attnorm were installed, without its repository
        path.write_text(json.dumps({**json.loads(path.read_text()), "commit": None, "code": "0123456789abcdef"}))
    assert re.search(r"The code is attnorm \S+, an installed package, version 0123456789abcdef\.", written_lines()[-1])


def notebook_cells() -> list[str]:
    """The code cells of the notebook of docs/paper.md."""
    page = (runs.ROOT / "docs/paper.md").read_text()
    return [it["source"] for it in load("docs/notebook").notebook(page)["cells"] if "outputs" in it]


def smaller(line: str) -> str:
    """A command of the notebook with fewer arms and seeds, and with tiny models."""
    line = re.sub(",dnas(?=,)|,uniform(?= )|,112,113,114|(?<==1,2),3|,1e-2|,101", "", line)
    if shlex.split(line)[:2] not in (["attnorm", "train"], ["attnorm", "sweep"]):
        return line
    tiny = [it for it in runs.tiny_overrides("image_classification")[1:] if not it.startswith("optimizer.lr")]
    return shlex.join([*shlex.split(line), *tiny, "callbacks.attention_stats.every_n_steps=0"])


@pytest.mark.slow
@pytest.mark.training
def test_the_notebook_of_a_paper_runs_in_an_empty_folder(monkeypatch, tmp_path, capsys):
    """Its code cells are the blocks of the page."""
    cells, page = notebook_cells(), (runs.ROOT / "docs/paper.md").read_text()
    shown = [code.rstrip() for _, language, code in BLOCK.findall(page) if language != "text"]
    assert [re.sub(r"\A%%.*\n", "", cell) for cell in cells] == shown
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    job = ProbePlan.job
    monkeypatch.setattr(ProbePlan, "job", lambda *given, **named: replace(job(*given, **named), updates=10))
    monkeypatch.setattr(tuning, "MOST_ADDED", 0)
    for cell in cells:
        magic, _, code = cell.partition("\n")
        if magic.startswith("%%writefile "):
            Path(magic.split()[1]).write_text(code)
        elif magic != "%%bash":
            exec(compile(cell, "a cell", "exec"), {})
        for line in code.splitlines() if magic == "%%bash" else ():
            program, verb, *arguments = shlex.split(smaller(line))
            if program == "tar":
                assert subprocess.run([program, verb, *arguments]).returncode == 0
                continue
            assert runs.call(monkeypatch, verb, *arguments) == 0, line
    assert "Damped minus softmax" in capsys.readouterr().out
    files = ("result.tex", "result.json", "logs/digits/report.html", "logs/probe/probe.html", "runs.tar.xz")
    assert [name for name in files if not (tmp_path / name).is_file()] == []
    assert all([*(tmp_path / "logs" / folder / "figures").glob("*.pdf")] for folder in ("probe", "digits"))


@pytest.mark.slow
@pytest.mark.training
@pytest.mark.timeout(1200)
def test_a_kernel_runs_the_notebook_of_a_paper_whatever_it_draws_with(monkeypatch, tmp_path):
    """Here with a backend that is not installed, as if the kernel were that of another environment. The commands that
    draw and that the notebook does not call are called at its end."""
    pytest.importorskip("ipykernel", reason="needs a Jupyter kernel: pip install ipykernel")
    from jupyter_client.manager import start_new_kernel

    monkeypatch.setenv("MPLBACKEND", "module://ipympl.backend_nbagg")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(runs.ROOT / "tests"))
    attention = "attnorm attention $(dirname $(ls logs/pilot/*/summary.json | head -1)) example=1079 trust_code=true"
    manager, client = start_new_kernel(cwd=str(tmp_path))
    said: list[str] = []
    try:
        for cell in [*notebook_cells(), "\n".join(["%%bash", attention, "attnorm figures dnas_fig2"])]:
            if cell.startswith("%%bash"):
                cell = "\n".join(["%%bash", "set -e", *(smaller(line) for line in cell.splitlines()[1:])])
                cell = cell.replace("hub:0.9,demand:16,demand:4", "probe_parts.Tiny")
            reply = client.execute_interactive(cell, output_hook=lambda out: said.append(str(out["content"])))
            assert reply["content"]["status"] == "ok", "\n".join([cell, *said[-3:]])
    finally:
        client.stop_channels()
        manager.shutdown_kernel()


@pytest.mark.parametrize("name", ["TrainedPower", slow("HeadPower")])
def test_a_normalizer_of_a_page_keeps_its_promises(name):
    """docs/add_your_own.md: the mask is applied after multiplying, and `attend` agrees with `forward`."""
    from attnorm.attention.testing import check_normalizer

    names: dict = {}
    [code] = [code for code in blocks(runs.ROOT / "docs/add_your_own.md", "python") if name in code]
    exec(code, names)
    check_normalizer(names[name])


def test_the_page_on_own_parts_shows_every_file_of_the_laboratory():
    """docs/extend.md links to every file of the package of `attnorm new`, with which tests/test_lab.py trains, and the
    site shows their texts."""
    page = (runs.ROOT / "docs/extend.md").read_text()
    written = [LAB.parent / "tests/test_task.py", *(it for it in LAB.rglob("*.*") if it.suffix in (".py", ".yaml"))]
    assert sorted(re.findall(r"^\[`(\S+)`\]", page, re.M)) == sorted(str(it.relative_to(LAB.parent)) for it in written)
    shown = hooks().links_of_site(page, "extend.md")
    assert [file for file in written if f"{file.relative_to(LAB.parent)}\n{file.read_text()}```\n" not in shown] == []


@pytest.mark.slow
@pytest.mark.training
def test_a_run_takes_the_paths_that_the_page_on_the_architecture_lists(monkeypatch, tmp_path):
    """The modules of the list, and of the tour, are entered by such a run, with nothing in its cache."""
    pages = [(runs.ROOT / f"docs/{page}.md").read_text() for page in ("architecture", "tour")]
    listed, tour = (set(re.findall(r"^(?:## )?\d+\. `(\S+\.py)`", text, re.M)) for text in pages)
    assert len(listed) > 25 and len(tour) == 14
    listed |= tour | set(re.findall(r"`(\S+\.py)`", pages[1].partition("## From the command")[2]))
    source, entered = f"{Path(front.__file__).parents[1]}/", set()

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_name != "<module>":
            entered.add(str(frame.f_code.co_filename).removeprefix(source))

    monkeypatch.chdir(tmp_path)
    few = ("attention.encoder=dnas", "trainer.max_steps=1", "task.validations=1", "paths.cache_dir=cache")
    sys.setprofile(note)
    try:
        assert runs.call(monkeypatch, "train", *runs.tiny_overrides(), "model.dropout=0", *few) == 0
        assert runs.call(monkeypatch, "check", "normalizer=no_such_one") == 2
    finally:
        sys.setprofile(None)
    assert sorted(listed - entered) == []


def test_the_pages_name_files_and_objects_that_exist():
    """All pages, and the tour also the names in its files. Those of its headings have about 2,400 lines."""
    source, wrong = runs.ROOT / "src/attnorm", []
    for page, text in [(name_of(path), path.read_text()) for path in DOCUMENTS]:
        names = re.findall(r"(?<!\[)`((?:src|tests|conf|benchmarks|experiments)/[\w/]+\.(?:py|yaml))`", text)
        names += re.findall(r"`([a-z][\w/]*\.py)`", text) if page in ("docs/architecture.md", "docs/tour.md") else []
        wrong += [(page, it) for it in names if not ((runs.ROOT / it).is_file() or (source / it).is_file())]
        wrong += [
            (page, it) for it in re.findall(r"`(attnorm(?:\.(?!py\b)\w+)+)(?:\([^`]*\))?`", text) if not importable(it)
        ]
    tour = (runs.ROOT / "docs/tour.md").read_text()
    code = "\n".join((source / name).read_text() for name in re.findall(r"`([\w/]+\.py)`", tour))
    names = re.findall(r"`([A-Za-z_]\w*(?:\.\w+)*)(?: = [^`]*|\([^`]*\))?`", tour)
    wrong += [("the tour", it) for it in names if not all(re.search(rf"\b{part}\b", code) for part in it.split("."))]
    entered = [(source / name).read_text() for name in re.findall(r"^## \d+\. `(\S+)`", tour, re.M)]
    assert wrong == [] and 2300 < len("".join(entered).splitlines()) <= 2500


def importable(name: str) -> bool:
    with contextlib.suppress(ImportError, AttributeError):
        return pkgutil.resolve_name(name) is not None
    return False


def test_the_page_on_the_architecture_has_the_layers_of_the_house():
    text = (runs.ROOT / "docs/architecture.md").read_text().partition("## Parts")[0]
    rows = re.findall(r"^\| `(\w+)` \|.*\| (.*?) ?\|$", text, re.M)
    shown = {name: set(re.findall(r"`(\w+)`", below)) for name, below in rows}
    assert shown == {name: below for name, below in BELOW.items() if name != "__main__"}


def test_the_readme_fits_on_two_screens_and_its_results_are_those_of_the_experiments():
    assert len(README.splitlines()) <= 100
    rows = re.findall(r"^\| \[[^]]*\]\((experiments/\S+)/README.md\) \| (.*) \|$", README, re.M)
    assert len(rows) == len(re.findall(r"^\| \[.*experiments/", README, re.M)) > 5
    for folder, row in rows:
        metric, arm, softmax, difference, interval, p, seeds, verdict = row.split(" | ")
        files = [path for path in (runs.ROOT / folder).glob("verdicts*.csv") if name_of(path) in VERDICTS]
        decimals = 3 if metric.startswith("loss") else 2
        matching = [
            (it, of_file)
            for of_file in map(read_csv, files)
            for it in of_file
            if NAMES.get(it["metric"], it["metric"]).removesuffix(" F1") == metric[:-2]
            and arm.split()[0] in (it["arm"], re.split("[_ ]", it["arm"])[0])
            and f"{float(it['difference'] or 'nan'):+.{decimals}f}" == difference
        ]
        assert len(matching) == 1, (folder, row)
        [(found, of_file)] = matching
        [baseline] = [it for it in of_file if it["metric"] == found["metric"] and it["verdict"] == "baseline"]
        assert baseline["arm"] == "softmax" and f"{float(baseline['mean']):.{decimals}f}" == softmax, (folder, row)
        low, high = (f"{float(found[end]):+.{decimals}f}" for end in ("low", "high"))
        assert interval == f"{low} to {high}" and seeds == found["seeds"], (folder, row)
        assert p == p_is(float(found["adjusted_p"])).removeprefix("= "), (folder, row)
        word = "better" if (float(found["difference"]) < 0) == (found["metric"] in LOWER_IS_BETTER) else "worse"
        assert verdict == {"shown": f"shown: {word}"}.get(found["verdict"], found["verdict"]), (folder, row)
        assert metric[-1] == ("\N{DOWNWARDS ARROW}" if found["metric"] in LOWER_IS_BETTER else "\N{UPWARDS ARROW}")
        assert " " in arm and found["primary"] == "true"  # the site is named
        assert arm.split()[0] not in ("uniform", "none")  # a null arm says nothing about normalizers


VERDICTS = [name_of(path) for path in (runs.ROOT / "experiments").glob("*/verdicts*.csv")]
VERDICTS = [name for name in VERDICTS if not name.endswith(("_hypotheses.csv", "_predictions.csv"))]


@pytest.mark.parametrize("file", VERDICTS)
def test_the_verdicts_of_an_experiment_are_on_its_page(monkeypatch, file):
    monkeypatch.syspath_prepend(runs.ROOT / "experiments")
    shown = importlib.import_module("verdicts").shown
    page = (runs.ROOT / file).with_name("README.md").read_text()
    rows = [" | ".join(shown(row)).replace("  ", " ") for row in read_csv(runs.ROOT / file)]
    assert rows and [row for row in rows if f"| {row} |" not in page] == []


def test_linked_files_exist():
    broken = []
    for document in [*DOCUMENTS, runs.ROOT / "CHANGELOG.md"]:
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text()):
            if not (document.parent / link).exists():
                broken.append(f"{name_of(document)}: {link}")
    assert broken == []


def test_the_makefile_declares_its_targets_and_its_first_command_is_that_of_the_readme():
    makefile = (runs.ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z][\w-]*):", makefile, re.M))
    assert targets >= {"train", "test", "lint", "setup", "docs"}
    assert targets == set(re.search(r"^\.PHONY: (.*)$", makefile, re.M)[1].split())
    assert f"$(BIN)/{REAL[0]}" in makefile and f"`{REAL[0]}`" in README
    typed = [line for line in lines_of(runs.ROOT / "README.md") if not line.startswith("#")]
    assert typed[:2] == ["make train", "make test"]


def test_the_site_has_every_page():
    def pages(entry: str | dict | list) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        return [page for part in (entry.values() if isinstance(entry, dict) else entry) for page in pages(part)]

    listed = pages(yaml.safe_load((runs.ROOT / "mkdocs.yml").read_text())["nav"])
    written = [*(runs.ROOT / "docs").glob("*.md"), *(runs.ROOT / "experiments").rglob("*.md")]
    assert sorted(listed) == sorted(name_of(page).removeprefix("docs/") for page in written)


def test_the_site_has_a_table_with_every_option_of_a_normalizer():
    folder = runs.CONF / "attention"
    pages = "".join(hooks().links_of_site(path.read_text(), path.name) for path in (runs.ROOT / "docs").glob("*.md"))
    shown = re.findall(r"^\| `(\w+\.\w+)` \| `.+` \| .+ \|$", pages, re.M)
    files = {path.stem: yaml.safe_load(path.read_text()).get("options") or {} for path in folder.glob("*.yaml")}
    listed = [f"{name}.{key}" for name, options in files.items() for key in options.get(name) or ()]
    assert len(listed) > 40 and [key for key in listed if shown.count(key) != 1] == [], "see conf/attention/<name>.yaml"
    facts = {"heads", "width", "state_width", "place", "queries", "builder"}
    prose = {"dnas.beta", "hnas.fixed", "mix.fixed"}  # which pages explain in their text
    classes = {name: find("normalizer", name, *PARTS["normalizer"]) for name in NORMALIZERS}
    options = [(name, key) for name, cls in classes.items() for key in parameters(cls) if key not in facts]
    tables = {(classes[name].__init__, key) for name, key in options if f"{name}.{key}" in {*listed, *prose}}
    without = [f"{name}.{key}" for name, key in options if (classes[name].__init__, key) not in tables]
    assert not without, f"no file of conf/attention/ has: {without}"


def test_links_of_the_site_lead_to_files_of_the_site():
    pages = {name_of(path): path for path in hooks().outside_files(runs.ROOT)}
    pages |= {path.relative_to(runs.ROOT / "docs").as_posix(): path for path in (runs.ROOT / "docs").rglob("*.*")}
    broken = []
    for page, path in pages.items():
        if path.suffix == ".md":
            for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", hooks().links_of_site(path.read_text(), page)):
                if os.path.normpath(Path(page).parent / link) not in pages:
                    broken.append(f"{page}: {link}")
    assert len(pages) > 80 and broken == []


def test_the_files_at_the_top_agree():
    project = tomllib.loads((runs.ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((runs.ROOT / "CITATION.cff").read_text())
    assert citation["version"] == project["version"] and citation["license"] == project["license"] == "Apache-2.0"
    assert "Apache License" in (runs.ROOT / "LICENSE").read_text()
    hooks = yaml.safe_load((runs.ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [repo["repo"] for repo in hooks] == ["local"]
    used = {it for hook in hooks[0]["hooks"] for it in hook.get("additional_dependencies", ()) if it[:4] == "ruff"}
    assert used <= set((runs.ROOT / "constraints.txt").read_text().splitlines())
