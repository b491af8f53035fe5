"""train.py, eval.py, generate.py: exit codes, messages, input and output, and that refused commands leave no trace."""

import errno
import gzip
import io
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import runs
from builders import build_source
from lightning_fabric.utilities.exceptions import MisconfigurationException
from made_up_runs import make_run
from marks import slow
from omegaconf import OmegaConf

from attnorm.cli import errors
from attnorm.cli import train as front
from attnorm.config.recorded import SHARED
from attnorm.data.sources.newswire import Newswire
from attnorm.data.tokenizers.sentencepiece import SentencePiece
from attnorm.errors import DataError
from attnorm.tasks import seq2seq as seq2seq

HEAVY = {  # libraries that take long to import
    *("torch", "torch._dynamo", "pytorch_lightning", "datasets", "transformers", "matplotlib", "pandas", "scipy"),
    *("wandb", "tensorboard"),
}
ARTICLE = "police in the capital said on monday that two men were arrested ."


def refused(monkeypatch, capsys, script, *arguments):
    """What a script prints to standard error when it ends with exit code 2 (and nothing else)."""
    capsys.readouterr()
    assert runs.call(monkeypatch, script, *arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "Traceback" not in printed.err
    return printed.err


# starting


SCRIPTS = {"train": "max_steps: ", "eval": "attnorm eval run=", "generate": "attnorm generate run="}
VERB = "import sys; from attnorm.cli.main import main; sys.argv = ['attnorm', *sys.argv[1:]]; sys.exit(main())"
VALID = ["trainer.max_steps=2", "trainer=cpu", "optimizer.lr=1e-4", "attention=hnas"]
LOADED = [  # a command or a program, the most modules and the heavy ones that it may load, and its exit code
    (("import attnorm.nn",), 1300, {"torch"}, 0),
    (("import attnorm; print(attnorm.load_run('{runs}/hnas-1').scores)",), 700, set(), 0),
    (("train", "--help"), 500, set(), 0),
    (("eval", "metric=rouge", "predictions={texts}", "references={texts}"), 2500, {"pandas", "scipy"}, 0),  # of nltk
    (("train", "trainer.max_step=3"), 1900, {"torch"}, 2),
    (("train", "optimizer.lrr=1"), 1900, {"torch"}, 2),
    ((f"import attnorm.sweeps.check as check; assert not check.check_job({VALID}).problems",), 1900, {"torch"}, 0),
    (("train", "task=squad", "data.batch_size=32"), 1900, {"torch"}, 2),
    (("train", "callbacks.progress.barr=x", "trainer.max_steps=9"), 1900, {"torch"}, 2),
    (("train", "resume=nowhere", "trainer.max_steps=9"), 900, set(), 2),
    (("compare", "{runs}"), 1700, {"pandas", "scipy"}, 0),
    (("report", "{runs}", "out={texts}.html"), 2000, {"matplotlib", "pandas", "scipy"}, 0),
    (("eval", "run={texts}"), 2000, {"torch"}, 2),
    (("probe", "normalizers=softmx"), 2300, {"torch", "scipy"}, 2),
]


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_shows_its_keys_and_writes_nothing(tmp_path, script):
    ended = runs.command(str(runs.ROOT / f"{script}.py"), "--help", cwd=tmp_path)
    assert ended.returncode == 0 and SCRIPTS[script] in ended.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("typed", "most", "needed", "code"),
    [slow(*case) if case[2] else case for case in LOADED],  # a heavy library takes seconds
    ids=[" ".join(it[0])[:30] for it in LOADED],
)
def test_a_command_loads_what_it_needs(tmp_path, typed, most, needed, code):
    places = {"texts": tmp_path / "texts", "runs": tmp_path / "runs"}
    places["texts"].write_text("the cat sat\n")
    if "{runs}" in " ".join(typed):
        for name in ("softmax-1", "softmax-2", "hnas-1", "hnas-2"):
            make_run(places["runs"] / name, name[:-2], int(name[-1]))
    program = () if typed[0].startswith("import ") else (VERB,)
    ended = runs.command("-X", "importtime", "-c", *program, *(it.format(**places) for it in typed), cwd=tmp_path)
    loaded = set(re.findall(r"\| +([\w.]+)$", ended.stderr, re.M))
    assert "attnorm.imports" in loaded  # the list is one
    assert loaded & HEAVY <= needed
    assert len(loaded) <= most
    assert ended.returncode == code, ended.stderr[-500:]


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        *((script, ()) for script in ("eval", "generate", "attention", "compare")),
        *itertools.product(("eval", "probe", "ls"), [("-h",), ("--help",), ("run=x", "--help")]),
    ],
)
def test_scripts_show_their_keys_when_asked_or_given_nothing(monkeypatch, capsys, script, arguments):
    assert runs.call(monkeypatch, script, *arguments) == 0
    assert capsys.readouterr().out == (runs.CONF / f"{script}.yaml").read_text()


# refusing


WRONG_COMMANDS = [
    (("attention=hnsa",), "Did you mean 'hnas'?"),
    (("trainer.max_step=3",), "Did you mean 'max_steps'?"),
    (("modle=tiny",), "Did you mean 'model'?"),
    (("lr=1e-3",), "error: lr: nothing reads this key. Did you mean 'optimizer.lr'?\n"),
    (("batch_size=32",), "Did you mean 'data.batch_tokens'?"),
    (("data.batch_size=32",), "Did you mean 'data.batch_tokens'?"),
    (("learning_rate=1",), "Did you mean 'optimizer.lr'?"),
    (("optimizer.learning_rate=1",), "Did you mean 'lr'?"),
    (("epochs=3",), "Did you mean 'trainer.max_epochs'?"),
    (("num_train_epochs=3",), "Did you mean 'trainer.max_epochs'?"),
    (("model.freeze=[encoder]",), "Did you mean 'optimizer.freeze'?"),
    (("callbacks.checkpoint.monitor=rougeL",), "package.module.Class. Did you mean 'task.monitor'"),
    (
        ("--output_dir=x",),
        "settings are typed without dashes. Did you mean 'paths.log_dir=x'?\n",
    ),
    (("--output-dir", "x"), "Did you mean 'paths.log_dir=<value>'?"),
    (("--lr=1",), "Did you mean 'optimizer.lr=1'?"),
    (("max_steps=5",), "Did you mean 'trainer.max_steps' or 'task.max_steps'?"),
    (("logger=wandb", "logger.wandb.offline=true"), "Did you mean 'mode=offline'?"),
    (("+experiment=reuters",), "error: experiment: one file of a group is chosen, without a plus, as in "),
    (("++optimizer=adam",), "one file of a group is chosen, without a plus, as in optimizer=adam"),
    (("scheduler=null",), "error: scheduler._target_: is not set; choose a file that sets it, with"),
    (("paths=null",), "error: paths.log_dir: must be given, as in paths.log_dir=<value>\n"),
    (("callbacks.a._target_=pytorch_lightning.callbacks.RichProgressBar",), "use callbacks.progress.bar\n"),
    (("callbacks.a._target_=pytorch_lightning.callbacks.StochasticWeightAveraging",), "averages the weights when"),
    (("-sc",), 'type eval "$(attnorm train -sc install=bash)"'),
    (("-sc", "install=tcsh"), 'type eval "$(attnorm train -sc install=bash)"'),
    (("data.features=[x]",), "data.features is a key of data=caption_files, data=vqa_v2."),
    (("task=vqa", "data.dir=x"), "data.dir is a key of data=gigaword, data=parallel_files."),
    (("data=gigaword",), "error: data.dir: must be given, as in data.dir=<value>"),
    (("data=base",), "error: "),
    (("task=headlines", "--help"), "error: task=headlines: allowed: captioning, causal_lm, classify, "),
    (("attention=softmax,hnsa", "--help"), "Did you mean 'hnas'?"),
    (("tags=[a,${x}]",), "error: tags[1]=${x}: there is no key x; type \\${x} for the text itself\n"),
    (("--pears=x", "seed=3"), "error: --pears=x: no such option; allowed: --help, "),
    (("callbacks.a._target_=pytorch_lightning.callbacks.LearningRateFinder",), "use tune=optimizer.lr=... of attnorm"),
    (("seed=x",), "error: seed=x: allowed: whole numbers"),
    (("trainer.max_steps=0", "seed=x"), "error: trainer.max_steps=0"),
    (("seed=1=2",), "error: "),
    (("~optimizer.lr",), "error: optimizer.lr: must be given, as in optimizer.lr=<value>"),
    (("~optimizer",), "error: optimizer._target_: is not set"),
    (("~decoding", "~attention.options", "~tokenizer"), "error: tokenizer._target_: is not set"),
    (("attention.encoder=[dnas]",), "error: attention.encoder"),
    (("task=headlines",), "error: task=headlines: allowed: captioning, causal_lm, classify, "),
    (("attention=softmx",), "uniform, or a normalizer as package.module.Class. Did you mean 'softmax'?"),
    (("seed=1,2",), "error: seed=1,2: several values start a sweep: type attnorm sweep, or add -m; a list is "),
    (("hnas",), "error: hnas: expected key=value\n"),
    (("--attention", "hnas"), "error: --attention: settings are typed without dashes, as in attention=<value>\n"),
    (("--seed=3",), "error: --seed=3: settings are typed without dashes, as in seed=3\n"),
    (("resume=nowhere",), "error: resume=nowhere: no such folder\n"),
    (("paths.log_dir=/dev/null",), "error: paths.log_dir=/dev/null: must be a folder, but /dev/null is a file\n"),
    (("paths.log_dir=/proc/none",), "error: paths.log_dir: the run folder /proc/none"),
    (("task=",), "error: task=: allowed: captioning, causal_lm, classify, "),
    (("run=5",), "error: run=5: allowed: default"),
    ((f"seed={'9' * 5000}",), "... (5,000 characters): allowed: whole numbers from 0"),
    ((f"seed={'a' * 200_000}",), "... (200,000 characters): allowed: at most 20,000 characters"),
    ((f"tags=[{'a,' * 40_000}a]",), "... (80,003 characters): allowed: at most 20,000 characters"),
    (("tags=" + "[" * 300 + "]" * 300,), "]: allowed: at most 20 brackets within each other"),
    (("decoding.beam_size=100000",), "error: decoding.beam_size=100000: allowed: whole numbers from 1 to 1000"),
    (("--config-dir=nowhere",), "error: --config-dir=nowhere: no such folder\n"),
    (("=3",), "error: =3: expected key=value\n"),
    (("hydra.nothing=3",), "nothing"),
    (("--config-name=mine",), "error: --config-name=mine: not available here; allowed: --config-dir, --cfg\n"),
    (("attention={encoder: hnsa}",), "Did you mean 'hnas'?"),
]


@pytest.mark.parametrize(("arguments", "words"), [*WRONG_COMMANDS[:9], *(slow(*case) for case in WRONG_COMMANDS[9:])])
def test_a_wrong_command_ends_with_2_and_a_message_and_leaves_no_folder(
    monkeypatch, tmp_path, capsys, arguments, words
):
    monkeypatch.chdir(tmp_path)
    said = refused(monkeypatch, capsys, "train", *arguments)
    assert words in said
    assert "++" not in said and " cleaned," not in said  # neither a rewritten override nor a file that is no choice
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_configuration_is_shown_without_a_run(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    assert runs.call(monkeypatch, "train", "--cfg", "job", "attention=[dnas,softmax]", "seed=7") == 0
    shown = OmegaConf.create(capsys.readouterr().out)
    assert (shown.attention._default_, shown.seed) == (["dnas", "softmax"], 7)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (DataError("train.csv:3: 2 fields"), 1, "error: train.csv:3: 2 fields\n"),
        (OSError(errno.ENOSPC, "disk full"), 1, "error: [Errno 28] disk full\n"),
        (OSError(errno.ENOLCK, "none", "/data/a"), 1, "error: paths.log_dir=/data: [Errno 37] none: '/data/a'\n"),
        (OSError(errno.EMFILE, "too many files", "/other"), 1, "error: [Errno 24] too many files: '/other'\n"),
        (MisconfigurationException("no backbone"), 1, "error: no backbone\n"),
        (front.ConfigError(["a", "b"]), 2, "error: a\nerror: b\n"),
    ],
)
def test_users_errors_are_messages(monkeypatch, capsys, error, code, message):
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    monkeypatch.setattr(sys, "argv", ["train.py", "seed=1", "paths.log_dir=/data"])

    def job():
        raise error

    assert errors.exit_code(job) == code
    printed = capsys.readouterr().err
    assert printed.startswith(message)
    assert "Traceback" not in printed


def test_the_processes_of_a_job_do_not_ask_for_tracebacks_and_an_exit_keeps_its_code(monkeypatch):
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    assert errors.exit_code(lambda: 7 if "HYDRA_FULL_ERROR" not in os.environ else 8) == 7
    with pytest.raises(SystemExit) as stopped, errors.no_early_exit():
        sys.exit(3)
    assert stopped.value.code == 3


BUGS = [RuntimeError, KeyError, TypeError, ValueError, OSError, AssertionError]


@pytest.mark.parametrize(("typed", "kind"), [*(("0", kind) for kind in BUGS), ("1", front.ConfigError)])
def test_bugs_keep_their_traceback_and_other_errors_if_it_is_asked_for(monkeypatch, typed, kind):
    monkeypatch.setenv("HYDRA_FULL_ERROR", typed)

    def job():
        raise kind(["ours"])

    with pytest.raises(kind, match="ours"):
        errors.exit_code(job)
    assert os.environ["HYDRA_FULL_ERROR"] == typed


NOT_OF_RUNS = "it is for metric=squad|vqa|rouge, which score a file, not a run\n"
REFUSED_BY_BOTH = [  # beside those of tests/test_refusals.py
    ("ckpt=last", "no checkpoint last.ckpt there (there is: ['best.ckpt', 'previous.ckpt'])"),
    ("rnu=x", "Did you mean 'run'?"),
    ("decoding.beam_sise=3", "Did you mean 'decoding.beam_size'?"),
    ("decoding=greedy", "decoding"),
    ("~decoding.beam_size", "decoding.beam_size"),
    ("decoding.beam_size=1,2", "decoding.beam_size=1,2: one value at a time here"),
    ("test", "error: test: expected key=value; the keys are run, "),
    ("data=newswires", "newswire"),
]
REFUSED_BY_ONE = [
    *(("eval", f"run={{run}} split={split}", "allowed: validation, test") for split in ("train", "valid", "1")),
    *(("generate", f"run={{run}} input={{text}} chunk={it}", "error: chunk=") for it in ("0", "x", "-1", "1.5")),
    ("generate", "run={run} input=nowhere", "error: input=nowhere: no such file; - reads standard input\n"),
    ("generate", "input=-", "run: must be given, as in run=<"),
    ("eval", "split=test", "error: run: must be given, as in run=<run folder>, or metric=squad|vqa|rouge with "),
    *(
        ("eval", f"run={{run}} {key}=1.0", f"error: {key}: {NOT_OF_RUNS}")
        for key in ("predictions", "references", "null_odds", "questions", "null_threshold")
    ),
]


@pytest.mark.parametrize(
    ("script", "typed", "words"),
    [
        *(("eval", f"run={{run}} {typed}", words) for typed, words in REFUSED_BY_BOTH),
        *(("generate", f"run={{run}} input={{text}} {typed}", words) for typed, words in REFUSED_BY_BOTH),
        *REFUSED_BY_ONE,
    ],
)
def test_a_script_refuses_what_it_cannot_do(monkeypatch, tmp_path, capsys, script, typed, words):
    run = runs.copied_run(tmp_path)
    (run / "checkpoints/last.ckpt").unlink()
    (tmp_path / "text").write_text(ARTICLE)
    before = sorted(run.rglob("*"))
    assert words in refused(monkeypatch, capsys, script, *typed.format(run=run, text=tmp_path / "text").split())
    assert sorted(run.rglob("*")) == before


# scoring a file


@pytest.fixture
def files(tmp_path):
    """Official files of four questions, the last without an answer, and predictions for them."""

    def question(name, *answers):
        answers = [{"text": text, "answer_start": 0} for text in answers]
        return {"id": name, "question": "why", "answers": answers, "is_impossible": not answers}

    qas = [question("q1", "the red cat", "cat"), question("q2", "a dog"), question("q3", "Rome"), question("q4")]
    document = {"data": [{"paragraphs": [{"context": "the red cat", "qas": qas}]}]}
    contents = {
        "dev": document,
        "answers": {"q1": "red", "q2": "Dog.", "q3": "", "q4": "fish"},
        "odds": {"q1": -1.0, "q2": 0.5, "q3": 0.1, "q4": 2.0},
        "list": ["red"],
        "number": {"q1": 1},
        "unknown": {"q1": "red", "q9": "x"},
        "others": {"q9": "x"},
        "three": {"q1": "red", "q2": "a dog", "q4": ""},
    }
    for name, content in contents.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    (tmp_path / "broken.json").write_text("{")
    return tmp_path


def typed_for(files, **keys):
    """`metric=squad` and these files; numbers as they are."""
    keys = {"predictions": "answers", "references": "dev"} | keys
    named = {key: value if key == "null_threshold" else f"{files}/{value}.json" for key, value in keys.items()}
    return ["metric=squad", *(f"{key}={value}" for key, value in named.items())]


def scored(monkeypatch, files, **keys):
    """What is scored: (title's split, size, metrics)."""
    scores = runs.scored_file(monkeypatch, *typed_for(files, **keys))
    return scores.split, scores.size, scores.metrics


def test_predictions_are_scored_by_the_official_rules(monkeypatch, files):
    name, size, found = scored(monkeypatch, files)
    assert (name, size, found["missing"]) == ("answers.json", 4, 0)
    assert found["exact"] == 25.0  # q2
    assert found["f1"] == pytest.approx(100 * (2 / 3 + 1) / 4)  # q1: "red" of "red cat"
    assert (found["HasAns_exact"], found["NoAns_exact"]) == (pytest.approx(100 / 3), 0.0)
    assert (found["HasAns_total"], found["NoAns_total"]) == (3, 1)
    assert not any(key.startswith("best") for key in found)


def test_odds_and_a_threshold_empty_answers_and_the_best_one_is_shown_with_all_its_digits(monkeypatch, files, capsys):
    """Typed as null_threshold, it gives the best score again."""
    _, _, found = scored(monkeypatch, files, null_odds="odds")
    assert (found["exact"], found["NoAns_f1"]) == (50.0, 100.0)  # at 1.0 only q4 is emptied
    assert (found["best_exact"], found["best_exact_thresh"]) == (50.0, 0.5)
    _, _, found = scored(monkeypatch, files, null_odds="odds", null_threshold=0.2)
    assert found["exact"] == 25.0  # q2 too
    odds = {"q1": 0.1 + 0.2, "q2": -1.0, "q3": 0.30000000000000016, "q4": 2.0}
    (files / "odds.json").write_text(json.dumps(odds))
    assert runs.call(monkeypatch, "eval", *typed_for(files, null_odds="odds")) == 0
    [shown] = re.findall(r"best_f1_thresh +│ +(\S+)", capsys.readouterr().out)
    assert float(shown) == odds["q1"]
    found = scored(monkeypatch, files, null_odds="odds", null_threshold=shown)[2]
    assert found["f1"] == found["best_f1"]


def test_missing_predictions_are_told_and_count_as_wrong_and_others_are_ignored(monkeypatch, files, caplog):
    assert scored(monkeypatch, files, predictions="three")[2]["missing"] == 1
    assert "1 question without a prediction, scored 0: q3" in caplog.text
    found = scored(monkeypatch, files, predictions="unknown")[2]
    assert (found["extra"], found["missing"], found["f1"]) == (1, 3, pytest.approx(100 * (2 / 3) / 4))
    assert "1 prediction not in the references, ignored: q9" in caplog.text


@pytest.mark.parametrize(
    ("metric", "arguments", "problems"),
    [
        ("", ["metric=squad"], ["predictions: must be given, as in predictions=<file>", "references: must be given"]),
        ("", ["metric=vqa", "predictions={files}/results.json"], ["references: must be given, as in references=<"]),
        ("", ["metric=bleu"], ["metric=bleu: allowed: squad, vqa, rouge"]),
        ("squad", ["references=[{files}/dev.json,{files}/dev.json]"], ["references=["]),
        ("squad", ["stemmer=true"], ["stemmer: metric=squad does not read it"]),
        ("squad", ["questions=x.json"], ["questions: metric=squad does not read it"]),
        ("squad", ["predictions={files}/nowhere.json"], ["predictions={files}/nowhere.json: no such file"]),
        ("squad", ["predictions={files}"], ["predictions={files}: no such file"]),
        ("squad", ["references=no", "null_odds=nowhere"], ["references=no: no", "null_odds=nowhere: no"]),
        ("squad", ["null_odds={files}/odds.json", "null_threshold=x"], ["null_threshold=x: allowed: numbers"]),
        ("squad", ["null_threshold=0.5"], ["null_threshold=0.5: it says which null_odds are too high; type null_"]),
        ("squad", ["task.null_threshold=1"], ["task.null_threshold: a file has no run to change"]),
        ("squad", ["data.max_valid=1", "data=squad"], ["data.max_valid: a file has no run", "data: a file has no run"]),
        ("squad", ["run={run}"], ["run: metric scores a file, not a run; type one of them"]),
        ("squad", ["split=test", "ckpt=last"], ["split: metric scores a file", "ckpt: metric scores a file"]),
        ("squad", ["prediction=x"], ["prediction: cannot be set here; allowed: "]),
        ("vqa", ["null_threshold=x", "null_odds=x"], ["null_threshold=x: allowed: numbers"]),
        ("vqa", ["null_threshold=1", "null_odds=x"], ["null_odds: metric=vqa does not", "null_threshold: metric=vqa"]),
        ("vqa", ["questions={files}/nowhere.json"], ["questions={files}/nowhere.json: no such file"]),
    ],
)
def test_what_cannot_be_scored_is_said_all_at_once(monkeypatch, files, answered, capsys, metric, arguments, problems):
    arguments = [argument.format(files=files, run=runs.finished_run()) for argument in arguments]
    named = {argument.partition("=")[0] for argument in arguments}
    given = {"": list, "squad": typed_for, "vqa": asked_of}[metric]
    arguments += [it for it in (given(files) if metric else []) if it.partition("=")[0] not in named]
    lines = refused(monkeypatch, capsys, "eval", *arguments).splitlines()
    expected = [f"error: {problem}".format(files=files) for problem in problems]
    assert [line[: len(text)] for line, text in zip(lines, expected, strict=True)] == expected


# scoring answers about images


@pytest.fixture
def answered(tmp_path):
    """Official files of three questions, and answers to them."""

    def annotation(number, kind, *answers):
        answers = [{"answer": text} for text in answers]
        about = {"answer_type": kind, "question_type": "is it", "answers": answers}
        return {"question_id": number, "image_id": 10 + number, **about}

    annotated = [
        annotation(1, "yes/no", *["yes"] * 10),
        annotation(2, "other", *["The cat."] * 2, *["dog"] * 8),
        annotation(3, "number", *["two"] * 3, *["3"] * 7),
    ]
    asked = [{"question_id": n, "image_id": 10 + n, "question": "what is it?"} for n in (1, 2, 3)]
    contents = {
        "gold": {"annotations": annotated},
        "asked": {"questions": asked},
        "fewer": {"questions": asked[:2]},
        "others": {"questions": [{**record, "question_id": 70 + n} for n, record in enumerate(asked)]},
        "images": {"questions": [{**record, "image_id": 5} for record in asked]},
        "results": [{"question_id": n, "answer": text} for n, text in ((1, "yes"), (2, "cat"), (3, "2"))],
        "two": [{"question_id": n, "answer": text} for n, text in ((1, "yes"), (2, "a DOG"))],
        "unknown": [{"question_id": 1, "answer": "yes"}, {"question_id": 9, "answer": "x"}],
        "other": [{"question_id": 9, "answer": "x"}],
        "number": [{"question_id": 1, "answer": 1}],
        "twice": [{"question_id": 1, "answer": "yes"}, {"question_id": 1, "answer": "no"}],
        "object": {"1": "yes"},
    }
    for name, content in contents.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    return tmp_path


def asked_of(folder, **keys):
    """`metric=vqa` and these files."""
    keys = {"predictions": "results", "references": "gold", "questions": "asked"} | keys
    return ["metric=vqa", *(f"{key}={folder}/{value}.json" for key, value in keys.items() if value is not None)]


def accuracies(monkeypatch, folder, **keys):
    scores = runs.scored_file(monkeypatch, *asked_of(folder, **keys))
    assert (scores.unit, scores.size) == ("questions", 3)
    return scores.metrics


@pytest.mark.parametrize("questions", ["asked", None])
def test_answers_about_images_are_scored_by_the_official_rules(monkeypatch, answered, questions):
    """Two of ten annotators: 2 of the subsets without one have one match, 8 have two."""
    two, three = 100 * (2 * 1 + 8 * 2) / 30, 100 * (3 * 2 + 7 * 3) / 30
    expected = {"yes/no": 100.0, "other": pytest.approx(two), "number": pytest.approx(three), "missing": 0, "extra": 0}
    expected |= {"accuracy": pytest.approx((100 + two + three) / 3, abs=0.005)}
    assert accuracies(monkeypatch, answered, questions=questions) == expected


def test_missing_answers_are_told_and_count_as_wrong_and_others_are_ignored(monkeypatch, answered, caplog, capsys):
    found = accuracies(monkeypatch, answered, predictions="two")
    assert (found["missing"], found["accuracy"], found["number"]) == (1, 66.67, 0.0)
    assert "1 question without a prediction, scored 0: 3" in caplog.text
    found = accuracies(monkeypatch, answered, predictions="unknown")
    assert (found["missing"], found["extra"], found["accuracy"]) == (2, 1, 33.33)
    assert "1 prediction not in the references, ignored: 9" in caplog.text
    for predictions, told in (("unknown", True), ("two", True), ("results", False)):
        assert runs.call(monkeypatch, "eval", *asked_of(answered, predictions=predictions)) == 0
        assert ("the official evaluation refuses this file" in capsys.readouterr().out) == told


def test_the_table_of_scores_is_shown(monkeypatch, files, answered, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    before = sorted(files.iterdir())
    for typed, words in (
        (typed_for(files), ("answers.json: 4 questions", "25.00", "exact match")),
        (asked_of(answered), ("results.json: 3 questions", "83.33", "yes/no")),
    ):
        assert runs.call(monkeypatch, "eval", *typed) == 0
        printed = capsys.readouterr().out
        assert all(it in printed for it in words)
    assert sorted(files.iterdir()) == before


@pytest.mark.parametrize(
    ("typed", "keys", "words"),
    [
        (typed_for, {"predictions": "list"}, r"list.json: expected one JSON object .*, got a list"),
        (typed_for, {"predictions": "number"}, r"number.json: q1 has 1, not text"),
        (typed_for, {"predictions": "broken"}, r"broken.json"),
        (typed_for, {"predictions": "others"}, r"others.json, .*dev.json: no prediction is for a question.* for q9"),
        (typed_for, {"references": "answers"}, r"answers.json"),
        (typed_for, {"null_odds": "answers"}, r"answers.json: q1 has \"red\", not a number"),
        (typed_for, {"null_odds": "unknown"}, r"unknown.json: q1 has"),
        (asked_of, {"references": "asked"}, r"asked.json: expected a file of annotations, .* contains questions"),
        (asked_of, {"questions": "gold"}, r"gold.json: expected a file of questions, .* contains annotations"),
        (asked_of, {"references": "results"}, r"results.json: not an official VQA file"),
        (asked_of, {"predictions": "gold"}, r"gold.json: expected a JSON list \[.*\]"),
        (asked_of, {"predictions": "object"}, r"object.json: expected a JSON list \[.*\]"),
        (asked_of, {"predictions": "other"}, r"other.json, .*gold.json: no prediction is for a question .* for 9"),
        (asked_of, {"predictions": "number"}, r"number.json: record 0: the answer to question 1 is 1, not text"),
        (asked_of, {"predictions": "twice"}, r"twice.json: record 1: question 1 is answered twice"),
        (asked_of, {"questions": "fewer"}, r"the annotation of 3 has no question"),
        (asked_of, {"questions": "others"}, r"gold.json: contains no annotation for any question of .*others.json"),
        (asked_of, {"questions": "images"}, r"question 1 is on image 5, but its annotation on image 11"),
    ],
)
def test_files_that_hold_something_else_are_said(monkeypatch, request, capsys, typed, keys, words):
    folder = request.getfixturevalue("files" if typed is typed_for else "answered")
    assert runs.call(monkeypatch, "eval", *typed(folder, **keys)) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ") and "Traceback" not in printed.err and printed.out == ""
    assert re.search(words, printed.err)


# writing headlines

ARTICLES = [ARTICLE, "", "  ", "the GOVERNMENT fell in 1994 .", "\u00fcber caf\u00e9s and \u65e5\u672c ."]
ARTICLES += [ARTICLE, "oil " * 300]


def generated(monkeypatch, capsys, tmp_path, text, *typed, stdin=False):
    """The lines that generate.py writes for a text."""
    content = text if isinstance(text, bytes) else text.encode()
    (tmp_path / "articles.txt").write_bytes(content)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(content))))
    run = runs.finished_run()
    capsys.readouterr()
    source = "-" if stdin else f"{tmp_path}/articles.txt"
    code = runs.call(monkeypatch, "generate", f"run={run}", f"input={source}", *typed)
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.mark.parametrize("ending", ["\n", ""], ids=["with a last newline", "without"])
@pytest.mark.parametrize("stdin", [False, True], ids=["file", "standard input"])
def test_one_line_in_is_one_line_out_in_order(monkeypatch, capsys, tmp_path, stdin, ending):
    text = "\n".join(ARTICLES) + ending
    code, out, err = generated(monkeypatch, capsys, tmp_path, text, "decoding.min_length=2", stdin=stdin)
    assert (code, err) == (0, "")
    lines = out.split("\n")[:-1]
    assert len(lines) == len(ARTICLES)
    assert [not line for line in lines] == [not article.strip() for article in ARTICLES]
    assert lines[0] == lines[5]


@pytest.mark.slow
def test_headlines_do_not_depend_on_how_many_are_written_together(monkeypatch, capsys, tmp_path):
    text = "\n".join(ARTICLES)
    whole = generated(monkeypatch, capsys, tmp_path, text)
    assert generated(monkeypatch, capsys, tmp_path, text, "chunk=2") == whole
    assert generated(monkeypatch, capsys, tmp_path, text, "data.batch_tokens=96") == whole


def test_articles_are_cleaned_as_the_run_cleaned_its_own_and_end_as_on_windows(monkeypatch, capsys, tmp_path):
    text = "In 1994 , A  B .\nin #### , a b .\n"
    _, out, _ = generated(monkeypatch, capsys, tmp_path, text, "decoding.min_length=2")
    first, second = out.splitlines()
    assert first == second
    assert generated(monkeypatch, capsys, tmp_path, "") == (0, "", "")
    _, expected, _ = generated(monkeypatch, capsys, tmp_path, f"{ARTICLE}\n\n{ARTICLE}\n")
    assert generated(monkeypatch, capsys, tmp_path, f"{ARTICLE}\r\n\r\n{ARTICLE}\r\n")[1] == expected


@pytest.mark.slow
def test_the_test_headlines_of_eval_are_those_of_generate(monkeypatch, capsys, tmp_path):
    run = runs.copied_run(tmp_path)
    assert runs.call(monkeypatch, "eval", f"run={run}") == 0
    articles = [article for article, _ in build_source("newswire", valid_size=20).rows("validation")]
    _, out, _ = generated(monkeypatch, capsys, tmp_path, "\n".join(articles) + "\n")
    assert out == (run / "eval_validation.txt").read_text()


def test_lines_are_written_before_the_next_are_read(monkeypatch, capsys, tmp_path):
    """What is done is not lost when a later line is bad."""
    text = f"{ARTICLE}\n{ARTICLE}\n\xff".encode("latin-1")
    code, out, err = generated(monkeypatch, capsys, tmp_path, text, "chunk=1")
    assert (code, len(out.splitlines())) == (1, 2) and ":3:" in err


class Marked(Newswire):
    """A user's source whose texts are marked up."""

    def clean(self, text, column):
        return text.replace("&amp;", "and") if column == "article" else text


MARKED = ["UNK &amp; UNK said 12 .", "the <unk> fell , UNK .", "UNKNOWN &amp; known"]


@pytest.fixture
def rush_folder(tmp_path):
    """The official test files, with headlines that are not looked at."""
    folder = tmp_path / "rush"
    folder.mkdir()
    (folder / "input.txt").write_text("\n".join(MARKED) + "\n")
    (folder / "task1_ref0.txt").write_text("a title\n" * len(MARKED))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("trained_on", ["newswire", "user", "rush"])
def test_eval_and_generate_clean_articles_alike_whatever_the_run_was_trained_on(
    monkeypatch, capsys, tmp_path, rush_folder, trained_on
):
    """The models of both get the same tokens: those of the cleaning that the run was trained with."""
    run = runs.copied_run(tmp_path)
    cfg = OmegaConf.create(runs.record_of(run)["settings"])
    if trained_on == "user":
        cfg.data._target_ = f"{__name__}.Marked"
    if trained_on == "rush":
        shared = {name: cfg.data[name] for name in SHARED}
        cfg.data = shared | {"_target_": "attnorm.data.sources.gigaword.Gigaword", "dir": str(rush_folder)}
    runs.write_settings(run, OmegaConf.to_container(cfg))
    monkeypatch.setattr(seq2seq, "write_texts", lambda model, tokenizer, sources, *_: list(map(str, sources)))
    data = () if trained_on == "rush" else ("data=gigaword", f"data.dir={rush_folder}")
    opened = (f"run={run}", "trust_code=true")
    assert runs.call(monkeypatch, "eval", *opened, "split=test", *data) == 0
    capsys.readouterr()
    for typed in ((), data):
        assert runs.call(monkeypatch, "generate", *opened, f"input={rush_folder}/input.txt", *typed) == 0
        assert capsys.readouterr().out == (run / "eval_test.txt").read_text()
    expected = {"user": ["UNK and UNK said ## .", "UNKNOWN and known"]}.get(trained_on, ["<unk> &amp; <unk> said ## ."])
    tokenizer = SentencePiece.load(run)
    shown = [str(ids) for ids in tokenizer.encode([text.lower() for text in expected])]
    assert set(shown) <= set((run / "eval_test.txt").read_text().splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("stdin", [False, True], ids=["file", "standard input"])
def test_articles_may_be_gzipped_and_begin_with_a_byte_order_mark(monkeypatch, capsys, tmp_path, stdin):
    text = f"{ARTICLE}\nthe government fell .\n".encode()
    expected = generated(monkeypatch, capsys, tmp_path, text, stdin=stdin)
    assert expected[0] == 0 and len(expected[1].splitlines()) == 2
    for content in (b"\xef\xbb\xbf" + text, gzip.compress(text), gzip.compress(b"\xef\xbb\xbf" + text)):
        assert generated(monkeypatch, capsys, tmp_path, content, stdin=stdin) == expected


NOT_UTF8 = r":3: not UTF-8 text \(character \d+ of the line is the byte 0xff\)\n"


@pytest.mark.parametrize(
    ("content", "stdin", "words"),
    [
        (b"fine\nstill fine\nbad \xff\n", True, f"input=-{NOT_UTF8}"),
        (b"fine\nstill fine\nbad \xff\n", False, rf"input=.*articles\.txt{NOT_UTF8}"),
        (gzip.compress(b"x y z\n" * 9, mtime=0)[:-9], False, r"input=.*articles.txt:\d+: damaged compressed file"),
        (
            "article\n".encode("utf-16-le"),
            False,
            r"input=.*articles.txt: this file is UTF-16-LE, not UTF-8; convert ",
        ),
        (b"one\rtwo\r", False, r"input=.*articles.txt: its lines end in a carriage return alone"),
        (b"one\ntw\0o\n", False, r"input=.*articles.txt:2: a NUL byte"),
    ],
)
def test_an_input_that_is_not_text_is_refused_as_what_it_is(monkeypatch, capsys, tmp_path, content, stdin, words):
    code, _, err = generated(monkeypatch, capsys, tmp_path, content, stdin=stdin)
    assert code == 1 and re.match(f"error: {words}", err) and "Traceback" not in err


@pytest.mark.parametrize(
    ("device", "words"),
    [("/dev/zero", ":1: longer than 16,777,216 characters"), ("/proc/self/mem", ": cannot be read: Input/output")],
)
def test_an_input_without_end_or_that_cannot_be_read_is_refused(monkeypatch, capsys, device, words):
    assert runs.call(monkeypatch, "generate", f"run={runs.finished_run()}", f"input={device}") == 1
    assert capsys.readouterr().err.startswith(f"error: input={device}{words}")


def test_articles_come_through_a_named_pipe(monkeypatch, capsys, tmp_path):
    expected = generated(monkeypatch, capsys, tmp_path, f"{ARTICLE}\n")
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=[f"{ARTICLE}\n"], daemon=True)
    writer.start()
    assert runs.call(monkeypatch, "generate", f"run={runs.finished_run()}", f"input={tmp_path}/pipe") == 0
    assert capsys.readouterr().out == expected[1]


def started(*typed) -> subprocess.Popen:
    """generate.py as a process of its own that reads from a pipe and has written the headline of a first article."""
    process = subprocess.Popen(
        [sys.executable, str(runs.ROOT / "generate.py"), f"run={runs.finished_run()}", "input=-", "chunk=1", *typed],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored if the tests run in the background
    )
    process.stdin.write(f"{ARTICLE}\n".encode())
    process.stdin.flush()
    assert process.stdout.readline().endswith(b"\n")
    return process


@pytest.mark.parametrize(("number", "code"), [slow(signal.SIGINT, 130), slow(signal.SIGTERM, 143)])
def test_a_signal_ends_generate_quietly(number, code):
    with started("decoding.min_length=2") as process:
        process.send_signal(number)
        assert process.wait(timeout=60) == code
        assert process.stdout.read() == process.stderr.read() == b""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="looks into /proc for what the process has loaded")
def test_a_signal_ends_generate_quietly_while_it_loads():
    command = [sys.executable, str(runs.ROOT / "generate.py"), f"run={runs.finished_run()}", "input=-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        while "libtorch" not in (Path("/proc") / str(process.pid) / "maps").read_text():
            time.sleep(0.01)
        process.terminate()
        assert process.wait(timeout=60) == 143
        assert process.stderr.read() == b""


@pytest.mark.slow
def test_a_closed_pipe_ends_generate_quietly():
    with started() as process:
        process.stdout.close()
        process.stdin.write(f"{ARTICLE}\n".encode() * 3)
        process.stdin.close()
        assert process.wait(timeout=60) == 128 + signal.SIGPIPE
        assert process.stderr.read() == b""


# parts of one's own


@pytest.mark.slow
@pytest.mark.parametrize("code", ["", slow("0"), slow("None")])
@pytest.mark.parametrize("where", ["on_train_batch_end", "__init__"])
def test_a_callback_that_exits_with_0_does_not_end_a_run_with_0(monkeypatch, tmp_path, code, where):
    body = f"    def {where}(self, *_):\n        import sys\n        sys.exit({code})\n"
    (tmp_path / "leaves.py").write_text(f"import pytorch_lightning as pl\nclass Leaves(pl.Callback):\n{body}")
    monkeypatch.syspath_prepend(tmp_path)
    typed = ("callbacks.mine._target_=leaves.Leaves", f"hydra.run.dir={tmp_path}/run")
    with pytest.raises(RuntimeError, match=r"sys.exit\(0\)"):
        runs.call(monkeypatch, "train", *runs.tiny_overrides(), *typed)
    assert runs.summary_of(tmp_path / "run")["state"] == "failed"
    sys.modules.pop("leaves")
