"""The size of the program, which may only fall: what a person has to hold in the head to change it.

A measure that is more than one percent above its number in `RECORDED` fails, and names what it counts. One that is well
below asks for a lower number, so that what was gained stays. Raise a number only in a commit that says in CHANGELOG.md
why, and what was deleted in exchange. The repair of a wrong result may raise the lines.
"""

import ast
import collections
import functools
import gc
import sys
from collections.abc import Callable
from types import FrameType

import pytest
import runs
from test_house import ROOT, SOURCE

from attnorm.config.compose import compose_files
from attnorm.data.sampler import TokenBatches
from attnorm.tasks.task import task_of

RECORDED = {
    "lines of src": 52_014,
    "files of src": 431,
    "functions of src": 3457,
    "public names that several modules define": 24,
    "lines of tests per line of src": 1.0,
    "functions that an override passes": 90,
    "files that an override passes": 20,
    "functions that a batch passes": 43,
}
SLACK = 0.01  # the share by which a measure may be above or below its number
OVERRIDE = ("task=gigaword", "attention.encoder=dnas")


COUNTED: dict[str, list[str]] = {}  # what a measure counted, by name


@functools.cache
def sizes() -> dict[str, float]:
    """What can be counted in the text of the files. Functions are those with a name."""
    texts = {file: file.read_text() for file in SOURCE.rglob("*.py")}
    trees = {file: ast.parse(text) for file, text in texts.items()}
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    modules = collections.Counter(
        node.name
        for file, tree in trees.items()
        if not file.is_relative_to(SOURCE / "skeleton")
        for node in tree.body
        if isinstance(node, (*kinds, ast.ClassDef)) and not node.name.startswith("_")
    )
    COUNTED["public names that several modules define"] = [name for name, count in modules.items() if count > 1]
    lines = sum(len(text.splitlines()) for text in texts.values())
    of_tests = sum(len(file.read_text().splitlines()) for file in (ROOT / "tests").rglob("*.py"))
    return {
        "lines of src": lines,
        "files of src": len(texts),
        "functions of src": sum(isinstance(node, kinds) for tree in trees.values() for node in ast.walk(tree)),
        "public names that several modules define": sum(count > 1 for count in modules.values()),
        "lines of tests per line of src": round(of_tests / lines, 2),
    }


def passed(action: Callable[[], object]) -> set[tuple[str, str]]:
    """The functions of src that an action runs, as (file, name), with lambdas and comprehensions. What happens only
    once, such as an import, is left out."""
    functions, folder = set(), f"{SOURCE}/"

    def see(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and (file := frame.f_code.co_filename).startswith(folder):
            functions.add((file.removeprefix(folder), frame.f_code.co_qualname))

    action()
    gc.disable()  # nothing of other tests is finalized meanwhile
    before = sys.getprofile()
    sys.setprofile(see)
    try:
        action()
    finally:
        sys.setprofile(before)
        gc.enable()
    return functions


@functools.cache
def path_of_an_override() -> dict[str, float]:
    """From the typed text to the checked settings."""
    functions = passed(lambda: runs.checked(runs.composed(*OVERRIDE, of_files=compose_files), overrides=OVERRIDE))
    files = {file for file, _ in functions}
    assert "attention/model_sites.py" in files
    COUNTED["functions that an override passes"] = sorted(map(" ".join, functions))
    COUNTED["files that an override passes"] = sorted(files)
    return {"functions that an override passes": len(functions), "files that an override passes": len(files)}


@functools.cache
def path_of_a_batch() -> dict[str, float]:
    """Collating, the loss and its gradients."""
    task = task_of(runs.tiny("attention.encoder=dnas"))
    splits = task.splits()
    train = splits["train"]
    module = task.module(task.model(train.tokenizer), train.tokenizer, splits["validation"])
    collator = task.collator(train)
    rows = next(iter(TokenBatches(train.lengths, 2048, weights=train.weights, seed=1)))

    def step() -> None:
        batch = collator[rows]
        (module.loss(batch).objective / batch["divisor"]).backward()

    functions = passed(step)
    assert "attention/normalizers/dnas.py" in {file for file, _ in functions}
    COUNTED["functions that a batch passes"] = sorted(map(" ".join, functions))
    return {"functions that a batch passes": len(functions)}


@pytest.mark.parametrize("what", RECORDED)
def test_the_program_does_not_grow(what):
    measure = path_of_an_override if "override" in what else path_of_a_batch if "batch" in what else sizes
    measured, recorded = measure()[what], RECORDED[what]
    many = f"{what}: {measured}, more than the {recorded} in RECORDED; delete something. Counted: {COUNTED.get(what)}"
    assert measured <= recorded * (1 + SLACK) + 1e-9, many
    assert measured >= recorded * (1 - SLACK) - 1e-9, f"{what}: only {measured}; write this number into RECORDED"
