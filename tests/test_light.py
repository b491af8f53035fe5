"""`pip install attnorm` brings torch and entmax: what works with them alone, and what says that it needs more."""

import os
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from shutil import copy, copytree, ignore_patterns

import pytest
from light import (
    CORE,
    PROJECT,
    ROOMS,
    ROOT,
    TOOLS,
    light_tests,
    link,
    modules_of,
    python_without_extras,
    with_dependencies,
)

from attnorm import imports
from attnorm.cli import main

EXTRAS = PROJECT["optional-dependencies"]
FOR_DEVELOPERS = {"test", "bench", "docs", "release"}
APART = {
    "alignments",  # the package of the data requires an older pandas, Django and JupyterLab
    "triton",  # comes with the CUDA builds of torch, and is of no use without a GPU
}
NAMED = "pytorch-lightning torch hydra-core wandb sentencepiece datasets rouge-score pytest"  # that users look for
CHECKS = """
import importlib, pkgutil
for room in sys.argv[1:]:
    package = importlib.import_module(f"attnorm.{room}")
    for module in pkgutil.walk_packages(package.__path__, f"attnorm.{room}."):
        if not module.name.endswith("triton_kernels"):  # imported where Triton is
            importlib.import_module(module.name)
from attnorm.attention import build_normalizer
from attnorm.attention.testing import check_normalizer
few = ["attend_equals_forward_times_values", "gradients_equal_finite_differences"]
check_normalizer(lambda: build_normalizer("hnas"), properties=few, lengths=[(5, 7)])
check_normalizer(lambda: build_normalizer("sparsemax"), properties=few, lengths=[(5, 7)])
try:
    import yaml
except ModuleNotFoundError:
    print("without extras")
"""
COMMANDS = """
from attnorm.cli.main import main
for typed in sys.argv[1:]:
    sys.argv = ["attnorm", *typed.split()]
    print("code", main(), flush=True)
"""
FIRST_CASES = """
import pytest
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    items[:] = [*{item.nodeid.partition("[")[0]: item for item in reversed(items)}.values()][::-1]
"""
NOTES = """
import attnorm
for name in attnorm.__all__:
    try:
        getattr(attnorm, name)
    except ModuleNotFoundError as error:
        print(*error.__notes__)
"""


def names_in(requirements: list[str]) -> list[str]:
    """The packages of requirements, without versions."""
    return [re.match(r"[\w-]+", requirement)[0] for requirement in requirements]


def extras_in(requirement: str) -> set[str]:
    """{"train", "vqa"} of "attnorm[train,vqa]"."""
    return set(re.fullmatch(r"attnorm\[(.*)\]", requirement)[1].split(","))


@pytest.mark.slow
def test_the_light_core_works_without_any_other_package():
    ended = python_without_extras(CHECKS, *ROOMS)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.endswith("without extras\n")  # the package was missing indeed


def test_a_command_without_the_laboratory_says_how_to_install_it_and_shows_the_verbs_and_the_version():
    typed = [*main.VERBS, *(f"{verb} --help" for verb in main.VERBS)]
    ended = python_without_extras(COMMANDS, *typed, "--help", "--version", "nonsense")
    codes = re.findall("^code (.*)", ended.stdout, re.M)
    assert codes == [*["2"] * len(typed), "0", "0", "2"] and all(verb in ended.stdout for verb in main.VERBS)
    *said, last = ended.stderr.splitlines()
    assert last.startswith("error: nonsense: no such verb")
    for line, command in zip(said, typed, strict=True):
        needs = rf"error: attnorm {command.split()[0]} needs the package \w+; install it in a clone of attnorm with: "
        assert re.match(needs, line) and line.endswith(' pip install ".[train]"')


@pytest.mark.slow
def test_functions_of_the_laboratory_say_how_to_install_it():
    ended = python_without_extras(NOTES)
    said = [line.partition(" ")[0] for line in ended.stdout.splitlines()]
    assert said == ["attnorm.Run", "attnorm.load_run", "attnorm.train"]
    assert all(line.endswith('pip install ".[train]"') for line in ended.stdout.splitlines())


@pytest.mark.parametrize("name", ["attnorm.data.nowhere", "tabulate", "hydra.nowhere", None, "hydra"])
def test_a_module_that_is_missing_by_mistake_keeps_its_traceback_and_others_on_request(monkeypatch, name):
    def start(verb, arguments):
        raise ModuleNotFoundError("no such module", name=name)

    monkeypatch.setattr(main, "start", start)
    if name == "hydra":
        monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(ModuleNotFoundError, match="no such module"):
        main.run("train", [])


def test_the_extras_are_what_they_say():
    assert names_in(PROJECT["dependencies"]) == [*CORE]
    assert set(NAMED.split()) <= {*names_in(PROJECT["dependencies"] + EXTRAS["train"] + EXTRAS["test"])}
    [everything] = EXTRAS["all"]
    assert extras_in(everything) == EXTRAS.keys() - FOR_DEVELOPERS - APART - {"all"}
    assert "pydantic" in names_in(EXTRAS["transformers"])  # docs/in_transformers.md uses attnorm.optim
    makefile = (ROOT / "Makefile").read_text()
    assert set(re.search("^USED := (.*)", makefile, re.M)[1].split(",")) <= extras_in(EXTRAS["test"][0])


@pytest.mark.slow
def test_the_laboratory_is_what_its_extra_installs():
    distributions = [name.replace("_", "-") for name in names_in(EXTRAS["train"]) if name not in CORE]
    listed = imports.LABORATORY
    assert listed <= modules_of(distributions)
    for name in distributions:
        assert modules_of([name]) & listed, name


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel that is built from the source distribution."""
    tree, built = (tmp_path_factory.mktemp(name) for name in ("tree", "built"))
    copytree(ROOT / "src", tree / "src", symlinks=True, ignore=ignore_patterns("__pycache__", "*.egg-info"))
    copytree(ROOT / "conf", tree / "conf")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        copy(ROOT / name, tree)
    code = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
    run(sys.executable, "-c", code, built, cwd=tree)
    [source] = built.glob("attnorm-*.tar.gz")
    pip = (sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation")
    run(*pip, "--wheel-dir", built, source, cwd=built)
    [wheel] = built.glob("attnorm-*.whl")
    return wheel


def run(*command, code: int = 0, **options) -> subprocess.CompletedProcess[str]:
    """Runs a command, which has to end with this code."""
    ended = subprocess.run([*map(str, command)], capture_output=True, text=True, **options)
    assert ended.returncode == code, f"{ended.stdout}\n{ended.stderr}"
    return ended


@pytest.mark.slow
def test_a_wheel_holds_the_configuration_and_the_texts_of_the_corpora(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    source = ROOT / "src"
    assert "attnorm/py.typed" in names
    shipped = {name.removeprefix("attnorm/conf/") for name in names if name.startswith("attnorm/conf/")}
    assert shipped == {str(file.relative_to(ROOT / "conf")) for file in (ROOT / "conf").rglob("*.yaml")}
    for kind in ("synthetic/*/text/*.txt", "skeleton/**/*.*", "**/assets/*", "**/templates/*", "**/*.py"):
        files = {str(file.relative_to(source)) for file in source.rglob(kind) if "__pycache__" not in file.parts}
        assert files and files <= set(names), kind


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_attention_tests_pass_where_only_the_wheel_is_installed(wheel, tmp_path):
    """Torch and entmax are those of this environment, so nothing is downloaded, and a requirement of the wheel that is
    not among them and their own requirements makes the installation fail."""
    link(with_dependencies(*CORE).values(), tmp_path / "core")
    link(with_dependencies(*TOOLS).values(), tmp_path / "tools")
    venv.create(tmp_path / "light", symlinks=True)
    [site] = (tmp_path / "light/lib").glob("python*/site-packages")
    (site / "core.pth").write_text(str(tmp_path / "core"))
    python = tmp_path / "light/bin/python"
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
    constraints = ("-c", ROOT / "constraints.txt")
    run(sys.executable, "-m", "pip", f"--python={python}", "install", "--no-index", *constraints, wheel, env=clean)

    command = tmp_path / "light/bin/attnorm"
    assert run(command, "--version", env=clean).stdout == f"attnorm {PROJECT['version']}\n"
    assert 'pip install ".[train]"' in run(command, "train", "attention=hnas", env=clean, code=2).stderr
    where = run(python, "-W", "ignore", "-c", "import attnorm; print(attnorm.__file__)", env=clean).stdout
    assert Path(where.strip()).is_relative_to(tmp_path)

    files = [*light_tests()]
    assert len(files) > 20
    # Other cases of a test and the property suite of a normalizer import nothing that the first case does not import.
    (tmp_path / "tools/first_cases.py").write_text(FIRST_CASES)
    chosen = ("-m", "not slow and not gpu and not long", "-k", "not keeps_its_promises", "-p", "no:cacheprovider", "-x")
    with_tools = clean | {"PYTHONPATH": str(tmp_path / "tools")}
    ended = run(python, "-m", "pytest", "-p", "first_cases", *chosen, *files, cwd=ROOT, env=with_tools)
    assert int(re.search(r"(\d+) passed", ended.stdout)[1]) > 300
