"""The house: each floor imports only from the floors below it, and no file grows past a screenful of ideas."""

import ast
import functools
import importlib
import importlib.util
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path
from types import ModuleType

import pytest
import yaml

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "attnorm"
FILES = sorted(file for file in SOURCE.rglob("*.py") if not file.is_relative_to(SOURCE / "skeleton"))
DOORS = ("train.py", "eval.py", "generate.py")
BASE: dict[str, set[str]] = {  # single files that every floor may import, and which others of them each imports
    **{name: set() for name in ("choices", "removed", "source_code", "wording")},
    "errors": {"removed", "wording"},
    "imports": {"source_code"},
    "files": {"errors", "wording"},
    "progress": {"wording"},
    "schema": {"errors", "imports"},
    "parts": {"errors", "imports", "schema"},
    "settings": {"errors", "parts", "schema"},
}
BELOW = {  # what of ours a floor may import besides BASE and itself
    "attention": set(),
    "nn": {"attention"},
    "integrations": {"attention", "nn"},
    "probes": {"attention"},
    "optim": {"attention"},
    "experiments": set(),
    "data": set(),
    "models": {"attention"},
    "tasks": {"models", "data", "attention", "optim"},
    "run": {"tasks", "models", "data", "attention", "optim"},
    "config": {"run", "tasks", "models", "data", "attention", "optim"},
    "training": {"run", "config", "tasks", "models", "data", "attention", "optim"},
    "analysis": {"probes", "sweeps", "training", "run", "config", "tasks", "models", "data", "attention"},
    "sweeps": {"training", "run", "config"},
    "__main__": {"cli"},
    "cli": {"probes", "sweeps", "analysis", "training", "run", "config", "tasks", "models", "data", "attention"},
    "testing": {"cli", "analysis", "training", "run", "config", "tasks", "data", "attention"},
}
FOREIGN = {  # libraries that a floor does without
    "attention": {"pytorch_lightning", "hydra", "omegaconf", "datasets", "numpy", "wandb", "transformers"},
    "nn": {"pytorch_lightning", "hydra", "omegaconf", "datasets", "numpy", "wandb", "transformers"},
    "integrations": {"pytorch_lightning", "hydra", "omegaconf", "datasets", "numpy"},
    "probes": {"pytorch_lightning", "hydra", "omegaconf", "datasets", "pydantic"},
    "data": {"pytorch_lightning", "hydra", "omegaconf"},
    "models": {"pytorch_lightning", "hydra", "omegaconf", "datasets", "transformers"},
    "tasks": {"pytorch_lightning", "hydra", "omegaconf", "datasets", "wandb"},
    "sweeps": {"torch", "pytorch_lightning", "datasets", "pandas", "wandb"},
}
ALONE = {  # libraries that importing a module does not load
    "attnorm.attention": {"pytorch_lightning", "hydra", "omegaconf", "datasets", "transformers", "pydantic"},
    "attnorm.nn": {"pytorch_lightning", "hydra", "omegaconf", "datasets", "transformers", "pydantic"},
    "attnorm.integrations.transformers": {"pytorch_lightning", "hydra", "omegaconf"},
    "attnorm.models.seq2seq": {"pytorch_lightning", "hydra", "omegaconf", "datasets", "transformers"},
    "attnorm.data": {"pytorch_lightning", "hydra", "datasets", "pyarrow"},
    "attnorm.analysis.statistics.crossed": {"torch", "pytorch_lightning", "pandas", "matplotlib", "hydra", "omegaconf"},
    "attnorm.analysis.loaded_run": {"torch", "numpy", "pytorch_lightning", "hydra", "omegaconf", "matplotlib"},
    "attnorm.cli.train": {"torch", "pytorch_lightning", "datasets", "matplotlib"},
    "attnorm.cli.sweep": {"torch", "pytorch_lightning", "datasets", "matplotlib", "submitit", "ray"},
}


@functools.cache
def tree_of(file):
    return ast.parse(file.read_text())


def module_of(file):
    parts = file.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def floor_of(module):
    return module.split(".")[1] if "." in module else "attnorm"


def imports(file, everywhere=True):
    """(module, line) for each import of a file; `everywhere` includes those inside functions."""
    nodes = ast.walk(tree_of(file)) if everywhere else top_level(tree_of(file).body)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((name.name, node.lineno) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: relative import"
            yield node.module, node.lineno
            yield from ((f"{node.module}.{name.name}", node.lineno) for name in node.names)


def top_level(body):
    """The statements that run when a module is imported; what `if TYPE_CHECKING` holds does not."""
    for node in body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.dump(node.test):
            yield from top_level([*node.body, *node.orelse])
        elif isinstance(node, ast.Try):
            yield from top_level([*node.body, *node.orelse, *node.finalbody])
        else:
            yield node


def path_of(file):
    return str(file.relative_to(ROOT))


def assert_none(offenders):
    """Fails with a line per offender."""
    assert not offenders, "\n".join(["", *offenders])


def test_a_floor_imports_only_from_below():
    wrong = []
    for file in FILES:
        floor = floor_of(module_of(file))
        if floor == "attnorm":
            continue
        assert floor in BASE.keys() | BELOW.keys(), f"{floor} is a new floor: add what it may import to BELOW"
        allowed = {floor} | (BASE[floor] if floor in BASE else BELOW[floor] | BASE.keys())
        named = ((module, line) for module, line in imports(file) if module.startswith("attnorm."))
        wrong += [f"{path_of(file)}:{line}: {module}" for module, line in named if floor_of(module) not in allowed]
    assert_none(wrong)


def test_a_normalizer_knows_no_table_of_names():
    of_names = ("attnorm.attention.registry", "attnorm.attention.site")
    files = [file for file in FILES if module_of(file).startswith("attnorm.attention.normalizers.")]
    assert len(files) > 30
    wrong = [f"{path_of(file)}:{line}: {name}" for file in files for name, line in imports(file) if name in of_names]
    assert_none(wrong)


def test_only_the_package_run_names_the_files_of_a_run():
    """The others ask `Run` and `RunWriter`. The suite for tasks says which files there are."""
    from attnorm.run import folder

    NAMES = {folder.RUN, folder.CONFIG, folder.SUMMARY, folder.LOG, folder.LOCK, folder.JOB_LOCK, folder.CONSOLE}
    NAMES |= {*folder.CURVES}
    folders = {folder.CHECKPOINTS, folder.PREDICTIONS}  # which are words as well, unless they are joined to a path
    of_sweeps = {"EVENTS", "FURTHER", "TUNE"}  # constants that others may import
    wrong = []
    for file in (file for file in FILES if floor_of(module_of(file)) not in ("run", "testing")):
        for node in ast.walk(tree_of(file)):
            if isinstance(node, ast.ImportFrom) and node.module == "attnorm.run.folder":
                names = {name.name for name in node.names if name.name.isupper()} - of_sweeps
            elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
                names = {getattr(node.right, "value", None)} & (NAMES | folders)
            else:
                names = {node.value} & NAMES if isinstance(node, ast.Constant) else ()
            wrong += [f"{path_of(file)}:{node.lineno}: {name}" for name in names]
    assert_none(wrong)


def test_a_task_does_not_import_another():
    files = sorted((ROOT / "conf/task").glob("*.yaml"))
    named = {path for file in files for path in targets(yaml.safe_load(file.read_text()))}
    tasks = {path.split(".")[2] for path in named}
    assert {"headlines", "mlm", "squad", "classification", "vqa", "captioning", "translation"} <= tasks
    wrong = []
    for file in FILES:
        _, floor, *rest = *module_of(file).split("."), ""
        if floor == "tasks" and rest[0] in tasks:
            others = tuple(f"attnorm.tasks.{other}." for other in tasks - {rest[0]})
            of_others = ((name, line) for name, line in imports(file) if f"{name}.".startswith(others))
            wrong += [f"{path_of(file)}:{line}: {name}" for name, line in of_others]
    assert_none(wrong)


def test_a_floor_does_without_the_libraries_of_those_above():
    wrong = []
    for file in FILES:
        floor = floor_of(module_of(file))
        everywhere = floor not in ("data", "tasks")  # there, heavy ones may be imported where they are needed
        found = {module.split(".")[0] for module, _ in imports(file, everywhere)}
        wrong += [f"{path_of(file)}: {name}" for name in sorted(found & FOREIGN.get(floor, set()))]
    assert_none(wrong)


def test_no_imports_go_in_a_circle():
    """Nor do those inside functions and for type checkers."""
    known = {module_of(file) for file in FILES}
    graph = {}
    for file in FILES:
        named = {module for module, _ in imports(file)}
        packages = {name.rpartition(".")[0] for name in named & known}  # `from attnorm.data import files` is of files
        graph[module_of(file)] = (named & known) - packages - {module_of(file)}
    order = list(TopologicalSorter(graph).static_order())  # raises CycleError
    assert set(order) == known


def test_a_source_file_stays_under_300_lines_and_says_what_it_is_for():
    texts = {path_of(file): file.read_text() for file in FILES}
    lengths = {file: len(text.splitlines()) for file, text in texts.items()}
    assert_none([f"{file}: {length} lines" for file, length in lengths.items() if length >= 300])
    assert_none([path_of(it) for it in FILES if it.read_text().strip() and not ast.get_docstring(tree_of(it))])


def test_a_front_door_stays_under_40_lines_and_imports_nothing_heavy():
    lengths = {door: len((ROOT / door).read_text().splitlines()) for door in DOORS}
    wrong = [f"{door}: {length} lines" for door, length in lengths.items() if length >= 40]
    found = {door: {module.split(".")[0] for module, _ in imports(ROOT / door)} for door in DOORS}
    wrong += [f"{door}: {name}" for door in DOORS for name in sorted(found[door] - {"sys", "pathlib", "attnorm"})]
    assert_none(wrong)


@pytest.mark.slow
def test_a_part_is_useful_without_what_stands_above_it():
    """Imported by itself, a part loads none of these libraries, directly or through another."""
    wrong = []
    for shared in ("sys", "torch"):
        modules = [module for module, without in ALONE.items() if ("torch" in without) == (shared == "sys")]
        for module, loaded in zip(modules, loaded_by(modules, shared), strict=True):
            assert "attnorm" in loaded
            wrong += [f"{module}: {name}" for name in sorted(loaded & ALONE[module])]
    assert_none(wrong)


def loaded_by(modules, shared):
    """The libraries that each module loads, each in a process forked from one that has imported `shared`: torch takes
    most of the time, so all that need it share it."""
    code = f"""
import importlib, os, sys, {shared}
for module in sys.argv[1:]:
    child = os.fork()
    if not child:
        importlib.import_module(module)
        print(*(name.partition(".")[0] for name in sys.modules), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""
    ended = subprocess.run([sys.executable, "-c", code, *modules], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    return [set(line.split()) for line in ended.stdout.splitlines()]


@pytest.mark.slow
def test_tasks_models_data_and_optimizers_do_not_load_the_libraries_of_training():
    modules = [module_of(file) for file in FILES]
    modules = [module for module in modules if floor_of(module) in ("optim", "data", "models", "tasks")]
    code = f"import sys, {', '.join(modules)}; print(*(name.partition('.')[0] for name in sys.modules))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert {"attnorm", "torch"} <= set(ended.stdout.split())
    assert not {"pytorch_lightning", "torchmetrics", "hydra", "datasets"} & set(ended.stdout.split())


def test_every_name_that_is_listed_can_be_imported():
    """In a table of names, or in the `__all__` of a module."""
    from attnorm.attention.registry import NORMALIZERS, PRIORS, SCORERS

    wrong = []
    for table in (NORMALIZERS, PRIORS, SCORERS):
        for name, path in table.items():
            module, _, attribute = path.rpartition(".")
            if not isinstance(getattr(importlib.import_module(module), attribute, None), type):
                wrong.append(f"{name}: {path}")
    modules = [importlib.import_module(module_of(file)) for file in FILES if "\n__all__ = " in file.read_text()]
    assert len(modules) > 10
    listed = ((module, name) for module in modules for name in module.__all__)
    assert_none(wrong + [f"{module.__name__}: {name}" for module, name in listed if not hasattr(module, name)])


def targets(settings):
    """Every `_target_` inside the settings of a YAML file."""
    if isinstance(settings, dict):
        for key, value in settings.items():
            yield from [value] if key == "_target_" else targets(value)


def test_every_class_that_a_yaml_file_names_can_be_imported():
    from attnorm.imports import locate

    named = {path for file in (ROOT / "conf").rglob("*.yaml") for path in targets(yaml.safe_load(file.read_text()))}
    for path in named:
        assert callable(locate(path)), path
    for group in ("tasks", "models", "data", "training", "optim"):  # so that none of them is overlooked
        assert any(path.startswith(f"attnorm.{group}.") for path in named), group


def test_scripts_use_what_is_there():
    """Type checkers see only src/, so a name that has moved would be noticed when a benchmark is run."""
    missing = []
    for file in sorted(file for folder in ("benchmarks", "experiments") for file in (ROOT / folder).rglob("*.py")):
        nodes = list(ast.walk(ast.parse(file.read_text())))
        imported = [node for node in nodes if isinstance(node, ast.ImportFrom)]
        parts = {n.asname or n.name: value_of(node.module, n.name) for node in imported for n in node.names}
        missing += [f"{path_of(file)}: {name}" for name, value in parts.items() if value is None]
        for node in nodes:
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                module = parts.get(node.value.id)
                if isinstance(module, ModuleType) and not hasattr(module, node.attr):
                    missing.append(f"{path_of(file)}: {node.value.id}.{node.attr}")
    assert_none(missing)


def value_of(module: str, name: str) -> object:
    """What a module of attnorm has under a name, or its submodule; None for neither, and "" in other modules."""
    if module.partition(".")[0] != "attnorm" or name == "triton_kernels":  # it needs Triton
        return ""
    try:
        return getattr(importlib.import_module(module), name, None) or importlib.import_module(f"{module}.{name}")
    except ModuleNotFoundError:
        return None
