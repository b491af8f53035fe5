"""The installed command: the same verbs as the scripts, from any folder, with conf/ shipped inside the package."""

import contextlib
import dataclasses
import os
import platform
import re
import subprocess
import sys
from functools import partial
from importlib.metadata import version

import pytest
import runs
import yaml

from attnorm import imports
from attnorm.analysis.loaded_run import load_run
from attnorm.attention.testing import check
from attnorm.choices import CONF
from attnorm.cli import main, sweep
from attnorm.cli.attention import AttentionKeys
from attnorm.cli.check import CheckKeys
from attnorm.cli.compare import CompareSettings
from attnorm.cli.evaluate import EvalKeys
from attnorm.cli.generate import GenerateKeys
from attnorm.cli.ls import LsKeys
from attnorm.cli.probe import ProbeSettings
from attnorm.cli.report import ReportSettings
from attnorm.cli.verbs import VERBS, Verb
from attnorm.config.command import fitting, read
from attnorm.experiments.papers.figures import FigureKeys
from attnorm.run.trust import find_own_parts
from attnorm.schema import EMPTY, defaults_of, parameters
from attnorm.sweeps.command import SweepSettings


def test_the_package_ships_the_configuration():
    assert CONF.is_dir() and CONF.resolve() == runs.CONF.resolve()
    assert (runs.ROOT / "src/attnorm/conf").is_symlink()


@pytest.mark.parametrize(
    ("typed", "code", "words"),
    [
        *((typed, 0, [f"  {verb} " for verb in VERBS]) for typed in ((), ("--help",), ("-h",))),
        (("--version",), 0, [f"attnorm {version('attnorm')}\n"]),
        (("trian", "x=1"), 2, [f"error: trian: no such verb; allowed: {', '.join(VERBS)}. Did you mean 'train'?\n"]),
    ],
)
def test_the_program_says_its_verbs_and_its_version(monkeypatch, capsys, typed, code, words):
    monkeypatch.setattr(sys, "argv", ["attnorm", *typed])
    assert main.main() == code
    printed = "".join(capsys.readouterr())
    assert all(it in printed for it in words)


def test_the_help_of_train_shows_the_files_of_the_user_and_none_that_cannot_be_chosen(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf/task").mkdir(parents=True)
    mine = "# my own task\ndefaults:\n  - translation\n  - override /data: phrases\n"
    (tmp_path / "conf/task/mine.yaml").write_text(mine)
    assert main.run("train", ["task=mine", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "# my own task" in shown and "detokenize:" in shown  # of the file that it builds on
    [data] = [line for line in shown.splitlines() if line.startswith("# ---- data=phrases")]
    assert " newswire," in data and " base," not in data and " cleaned," not in data
    [task] = [line for line in shown.splitlines() if line.startswith("# ---- task=mine")]
    assert " mine," in task and " mlm," in task


@pytest.mark.slow
@pytest.mark.parametrize("typed", ["--help", "train --help", "sweep --help", "report", "compare", "figures"])
def test_a_reader_that_has_seen_enough_gets_no_traceback(typed):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        command = [sys.executable, "-m", "attnorm", *typed.split()]
        ended = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, text=True, timeout=300, check=False)
    assert (ended.returncode, ended.stderr) == (141, "")


def test_a_bare_path_is_the_run_or_the_place_that_a_verb_reads(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lr=0.1").mkdir()
    (tmp_path / "here").mkdir()
    assert VERBS["eval"].with_key(["logs/a", "split=test"]) == ["run=logs/a", "split=test"]
    assert VERBS["generate"].with_key(["input=x/y", "here"]) == ["run=here", "input=x/y"]
    assert VERBS["attention"].with_key(["here", "logs/b", "text=a / b"]) == ["run=here,logs/b", "text=a / b"]
    assert VERBS["compare"].with_key(["lr=0.1"]) == ["against=lr=0.1"]
    assert VERBS["compare"].with_key(["logs/*", "here", "level=0.9"]) == ["against=['logs/*','here']", "level=0.9"]
    settings = read(VERBS["compare"].with_key(["logs/*", "lr=0.1"]), CompareSettings, "attnorm compare").settings
    assert settings.against == ("logs/*", "lr=0.1")
    assert VERBS["eval"].with_key(["last", "split=test"]) == ["run=last", "split=test"]
    for left in (["~decoding.beam_size"], ["data.dir=a/b"]):
        assert VERBS["eval"].with_key(left) == left


KEYS = {  # of the verbs whose help is a file of conf/
    **{"eval": EvalKeys, "generate": GenerateKeys, "attention": AttentionKeys, "compare": CompareSettings},
    **{"figures": FigureKeys, "report": ReportSettings, "sweep": SweepSettings, "check": CheckKeys, "ls": LsKeys},
    "probe": ProbeSettings,
}


def test_each_verb_has_a_file_of_its_keys_and_is_compared_with_it_here():
    """But `train`, whose keys are the settings, and `new`, which has none."""
    others = VERBS.keys() - {"train", "new"}
    without = [f"conf/ has no {verb}.yaml" for verb in others if not (runs.CONF / f"{verb}.yaml").is_file()]
    without += [f"KEYS has no entry {verb}" for verb in others - KEYS.keys()]
    assert not without, without


@pytest.mark.parametrize(("verb", "keys"), KEYS.items())
def test_the_help_of_a_verb_shows_its_keys_and_their_defaults(verb, keys):
    shown = yaml.safe_load((runs.CONF / f"{verb}.yaml").read_text())
    defaults = {key: "???" if it.default is EMPTY else it.default for key, it in parameters(keys).items()}
    defaults |= {key: value for key, value in defaults_of(keys).items() if value is not None}
    read_back = {key: fitting(value, str(value), parameters(keys)[key].annotation) for key, value in shown.items()}
    assert {key: tuple(it) if isinstance(it, list) else it for key, it in read_back.items()} == defaults
    assert [*shown] == [*parameters(keys)]


@dataclasses.dataclass(frozen=True)
class Optional:
    """Keys with defaults."""

    run: str = "last"


def test_a_verb_runs_without_arguments_if_all_its_keys_have_defaults(monkeypatch, capsys):
    monkeypatch.setitem(VERBS, "mine", Verb("mine", print, keys=Optional))
    started = []
    monkeypatch.setattr(Verb, "act", lambda verb, _: started.append(verb.purpose) or 0)
    verbs = [name for name, verb in VERBS.items() if not (verb.is_whole or verb.own_help)]
    for name in verbs:
        assert main.run(name, []) == 0
    assert started == [VERBS[name].purpose for name in ("ls", "probe", "mine")]
    monkeypatch.setattr(sweep, "sweep", lambda command: started.append(command.texts()) or 0)
    assert sweep.run_sweep([]) == 0 and started[-1] == []


def test_a_package_adds_a_verb(monkeypatch, tmp_path, capsys):
    """That of docs/extend.md, beside two that cannot be used."""
    page = (runs.ROOT / "docs/extend.md").read_text().partition("## Verbs\n")[2]
    code, entries = re.findall(r"```(?:python|text)\n(.*?)```", page, re.DOTALL)[:2]
    entries = entries.replace('project.entry-points."attnorm.verbs"', "attnorm.verbs").replace('"', "")
    installed = tmp_path / "lab_verbs-1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: lab_verbs\nVersion: 1\n")
    (installed / "entry_points.txt").write_text(f"{entries}eval = lab_verbs:VERB\nno = nowhere:V\n")
    (tmp_path / "lab_verbs.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    run = runs.finished_run()
    capsys.readouterr()

    def said(*typed, code=0):
        monkeypatch.setattr(sys, "argv", ["attnorm", *typed])
        assert main.main() == code
        return "".join(capsys.readouterr())

    listed = said("--help")
    assert "\n  count      count the parameters of the model of a run\n" in listed
    assert "\n  eval       score a run folder" in listed
    assert "\n  no         (cannot be loaded: ModuleNotFoundError: No module named 'nowhere')\n" in listed
    purpose, key = "Counts the parameters of the model of a run.", "run: the run folder; a bare path means the same."
    assert said("count") == said("count", "--help") == f"# {purpose}\n#\n# {key}\nrun: ???\n"
    assert said("count", str(run)) == f"{sum(it.numel() for it in load_run(run).model.parameters())}\n"
    wrong = said("count", "runs=x", code=2)
    assert "runs=x: attnorm count has no such option; it has run. Did you mean 'run'?" in wrong
    assert said("coutn", code=2).endswith("Did you mean 'count'?\n")


def test_the_shell_completes_verbs_and_settings(monkeypatch, capsys):
    def completed(line):
        monkeypatch.setattr(sys, "argv", ["attnorm", "-sc", "query=bash"])
        monkeypatch.setenv("COMP_LINE", line)
        assert main.main() == 0
        return capsys.readouterr().out.split()

    assert completed("attnorm ") == [*main.VERBS]
    assert completed("attnorm train optimizer.l") == ["optimizer.lr="]
    assert completed("attnorm eval ru") == []
    monkeypatch.setattr(sys, "argv", ["attnorm", "train", "-sc", "install=bash"])
    assert main.main() == 0
    assert capsys.readouterr().out.endswith("-F hydra_bash_completion attnorm\n")


# the working directory, which may be the folder of a stranger's run

SHADOWS = ("omegaconf", "hydra", "datetime", "typing", "hydra_plugins/planted")  # hydra_plugins: Hydra imports them all
COMMANDS = {"eval": "run={run}", "compare": "against={run}", "train resume": "resume={run}", "sweep": "seed=x"}
COMMANDS |= {"train": "seed=x"}
DOORS = {
    "attnorm": ("-c", "import sys; sys.path.pop(0); from attnorm.cli.main import main; sys.exit(main())"),
    "python -m attnorm": ("-m", "attnorm"),
}
# each door from inside and from beside; they act before the verb is known
STARTS = [
    ("attnorm", "eval", "inside"),
    ("attnorm", "sweep", "beside"),
    ("python -m attnorm", "train resume", "inside"),
    ("python -m attnorm", "compare", "beside"),
    ("train.py", "train", "inside"),
    ("eval.py", "eval", "beside"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("door", "verb", "place"), STARTS)
def test_files_of_the_working_directory_take_the_place_of_no_library(tmp_path, door, verb, place):
    run = runs.copied_run(tmp_path)
    for folder in (tmp_path, run):
        (folder / "hydra_plugins").mkdir()
        for name in SHADOWS:
            (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'a').write('{name} ')\n")
    cwd, named = (run, ".") if place == "inside" else (tmp_path, "run")
    start = (*DOORS[door], verb.split()[0]) if door in DOORS else (str(runs.ROOT / door),)
    ended = runs.command(*start, *COMMANDS[verb].format(run=named).split(), cwd=cwd)
    assert "Traceback" not in ended.stderr and ended.returncode in (0, 2), ended.stderr
    assert not (tmp_path / "mark").exists(), (tmp_path / "mark").read_text()


SLURM = ("launcher=submitit", "submitit.cluster=local")
TRAIN = ("train", *runs.tiny_overrides(), "task.max_steps=1", "trainer=ddp", "trainer.devices=2")
STARTING = {  # commands that start further interpreters, as attnorm or as a library does; forked: sweeps/test_real.py
    "spawned": ("probe", "normalizers=softmax,uniform", "probes=probe_parts.Tiny", "seeds=1", "rates=0.01", "jobs=2"),
    "submitit": ("sweep", *runs.tiny_overrides(), "task.max_steps=1", "seed=1", "out=s", *SLURM),
    "ranks": TRAIN,
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", STARTING)
def test_interpreters_that_are_started_do_not_search_the_working_directory(tmp_path, kind):
    for name in (*sys.stdlib_module_names, "attnorm", "numpy", "submitit", "torch"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'a').write('{name} ')\n")
    path = {"PYTHONPATH": str(runs.ROOT / "tests")}
    ended = runs.command("-P", "-m", "attnorm", *STARTING[kind], cwd=tmp_path, env=path)
    assert ended.returncode == 0, ended.stderr
    assert not (tmp_path / "mark").exists(), (tmp_path / "mark").read_text()


@pytest.mark.slow
def test_ranks_find_the_modules_beside_the_script_that_starts_them(tmp_path):
    (tmp_path / "code").mkdir()
    typed = f"attnorm.train({[*TRAIN[1:]]})"
    script = f"import attnorm, beside, os\n{typed}\nassert not os.environ.get('PYTHONSAFEPATH')\n"
    (tmp_path / "code/mine.py").write_text(script)
    (tmp_path / "code/beside.py").touch()
    ended = runs.command("code/mine.py", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(
    ("busy", "typed", "chosen"),
    [
        (False, {}, {"GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "1"}),
        (True, {}, {"GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}),
        (True, {"GOMP_SPINCOUNT": "7"}, {"GOMP_SPINCOUNT": "7"}),
        (True, {"OMP_WAIT_POLICY": "ACTIVE"}, {"OMP_WAIT_POLICY": "ACTIVE"}),
        (True, {"OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": "1"}),
        (True, {"torch": "imported"}, {}),
    ],
)
def test_threads_sleep_while_they_wait_unless_the_user_says_how(monkeypatch, busy, typed, chosen):
    variables = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_NUM_THREADS")
    for name in variables:
        monkeypatch.setenv(name, "1")  # what a test leaves in the environment is taken back
        monkeypatch.delenv(name)
        if name in typed:
            monkeypatch.setenv(name, typed[name])
    if "torch" not in typed:
        monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(main, "is_busy", lambda: busy)
    monkeypatch.setattr(main, "keep_freed_memory", lambda: None)
    monkeypatch.setattr(main, "start", lambda verb, arguments: 0)
    main.run("train", [])
    assert {name: os.environ[name] for name in variables if name in os.environ} == chosen


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc has the option")
def test_freed_memory_is_kept_for_the_next_tensors():
    """A block of 64 MB that is freed and used again costs no page fault; it is 32 of them even with huge pages."""
    code = (
        "import resource, sys\nfrom attnorm.cli import main\n"
        "main.start = lambda *_: 0\nmain.run('train', [])\n"
        "def faults(blocks):\n"
        "    for _ in range(blocks):\n        bytearray(2**26)\n"
        "    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "before = faults(1)\nprint(faults(20) - before)\n"
    )
    free = {name: value for name, value in os.environ.items() if name not in main.MALLOC}
    kept, chosen = (
        int(subprocess.run([sys.executable, "-c", code], env=free | typed, capture_output=True, check=True).stdout)
        for typed in ({}, {"MALLOC_TRIM_THRESHOLD_": "131072"})
    )
    assert kept < 20 * 32 <= chosen


@pytest.mark.parametrize(
    ("typed", "code", "said"),
    [
        (("beside.Right", "options.power=2"), 0, "0 failed"),
        (("normalizer=beside.Wrong",), 1, "0 ok, 1 failed"),
        (("beside.Right", "options.q=2"), 2, "normalizer 'beside.Right': q=2: no such option; allowed: power."),
        (("beside.Missing",), 2, "beside.Missing"),
        (("dnsa",), 2, "Did you mean 'dnas'?"),
    ],
)
def test_a_normalizer_is_checked_from_the_shell(monkeypatch, tmp_path, capsys, typed, code, said):
    monkeypatch.setattr(imports, "own_folders", [])
    monkeypatch.setattr(check, "check_normalizer", partial(check.check_normalizer, properties="dead_rows_give_zero"))
    (tmp_path / "beside.py").write_text(
        "from attnorm.attention.normalizers.softmax import Softmax\n"
        "class Right(Softmax):\n"
        "    def __init__(self, power=1.0):\n        super().__init__()\n"
        "class Wrong(Softmax):\n    finite_scores = False\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "beside", raising=False)
    assert main.run("check", list(typed)) == code
    printed = capsys.readouterr()
    assert said in printed.out + printed.err


def test_a_working_directory_that_has_been_removed_is_said(monkeypatch, tmp_path, capsys):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert [main.run(verb, ["seed=1"]) for verb in ("train", "eval")] == [2, 2]
    assert capsys.readouterr().err == 2 * "error: the working directory has been removed; change to another one\n"


@pytest.fixture
def in_folder(monkeypatch, tmp_path):
    """A folder with a module `own_part`, which is the working directory and first on the search path."""
    monkeypatch.setattr(imports, "own_folders", [])
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delenv("ATTNORM_TRUST", raising=False)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_part.py").write_text("class Part: ...\n")
    (tmp_path / "colorsys.py").write_text("raise AssertionError('a library was replaced')\n")
    yield tmp_path
    for name in ("own_part", "colorsys"):
        sys.modules.pop(name, None)


def is_own_part_found() -> bool:
    with contextlib.suppress(ValueError):
        return imports.locate("own_part.Part").__name__ == "Part"
    return False


@pytest.mark.parametrize(
    ("verb", "typed", "variable", "is_found"),
    [
        ("train", (), "", True),
        ("sweep", (), "", True),
        ("check", (), "", True),
        *((verb, (), "", False) for verb in ("eval", "generate", "attention", "compare", "report", "figures")),
        *((verb, ("trust_code=true",), "", True) for verb in ("eval", "generate", "attention")),
        *((verb, (), "own_part", True) for verb in ("eval", "compare")),
        ("eval", ("trust_code=false",), "", False),
    ],
)
def test_own_parts_are_in_the_working_directory_if_they_may_be(monkeypatch, in_folder, verb, typed, variable, is_found):
    monkeypatch.setenv("ATTNORM_TRUST", variable)
    find_own_parts(verb, typed)
    assert str(in_folder) not in sys.path  # until a part is named that is nowhere else
    assert imports.locate("colorsys.rgb_to_hsv") and str(in_folder) not in sys.path
    assert is_own_part_found() == is_found
    assert str(in_folder) not in sys.path[:-1]


@pytest.mark.parametrize("inside", [".", "figures/deep"])
@pytest.mark.parametrize("kind", ["run", "sweep", "another program"])
def test_own_parts_are_never_in_the_folder_of_a_run_or_of_a_sweep(monkeypatch, in_folder, kind, inside):
    (in_folder / inside).mkdir(parents=True, exist_ok=True)
    (in_folder / inside / "own_part.py").write_text("class Part: ...\n")
    if kind == "run":
        (in_folder / "run.json").touch()
    elif kind == "sweep":
        (in_folder / "jobs.jsonl").touch()
    else:
        (in_folder / "config.yaml").write_text("server: {port: 1}\n")
    monkeypatch.chdir(in_folder / inside)
    monkeypatch.setenv("ATTNORM_TRUST", "own_part")
    monkeypatch.setenv("PYTHONPATH", str(in_folder))
    monkeypatch.setattr(sys, "path", [it for it in sys.path if it != str(in_folder)])
    find_own_parts("train", ("trust_code=true",))
    assert is_own_part_found() == (kind == "another program")


def test_a_bug_in_the_constructor_of_an_own_part_keeps_its_traceback(monkeypatch, tmp_path):
    """The label of the run, which names its folder, needs the normalizer before the settings are checked."""
    methods = "def __init__(self):\n        undefined()\n\n    def weights(self, s, given): ..."
    bug = f"from attnorm.attention import Normalizer\n\n\nclass Bug(Normalizer):\n    {methods}\n"
    (tmp_path / "own_bug.py").write_text(bug)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NameError, match="undefined"):
        runs.call(monkeypatch, "train", "attention.encoder=own_bug.Bug", "task=gigaword")
