"""Plants faults of one line in a copy of the program, and records which tests see them.

    python tests/plants.py tests/plants.jsonl [package ...]

Tests that are folded must see afterwards what they saw before. Without such a table, the script draws faults at random
(with a fixed seed, by package in proportion to its lines) and writes which test sees each; if it is interrupted, the
next call goes on with the table. With a complete one, it plants the same faults again, prints those that are no longer
seen, and then ends with 1. Packages restrict it to their faults. The key "equivalent" of a row says why no test can see
the fault.

The program is that of the last commit. A fault is shown to the test that is recorded, and then to the fast tests that
are about its file: those named like it, those that import it, and those of its folder, for at most SECONDS of CPU time,
until one fails. A slow test that sees a fault is recorded by hand. Some faults cannot be seen: a number that only has
to be large may as well be larger.
"""

import ast
import collections
import copy
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = Path("src/attnorm")
SEED, COUNT, SECONDS = 41, 60, (30, 30, 90)  # for each of the three
PAIRS = (
    *((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.In, ast.NotIn), (ast.Is, ast.IsNot)),
    *((ast.And, ast.Or), (ast.Add, ast.Sub), (ast.Mult, ast.Div)),
)
OPPOSITES = {first: second for pair in PAIRS for first, second in (pair, pair[::-1])}
failing: list[str] = []  # tests that fail without a fault, such as those that need the folder of this repository
EVEN_SLOW = ("-m", "slow or not slow")
OPTIONS = ("-x", "-q", "--tb=no", "-rfE", "-p", "no:cacheprovider", "--durations=0", "--durations-min=999")


def wrong(node: ast.AST) -> str | None:
    """The text of another node that is wrong in the place of this one; None if there is no such fault."""
    other = copy.copy(node)
    match other:
        case ast.Compare(ops=[operator]) if type(operator) in OPPOSITES:
            other.ops = [OPPOSITES[type(operator)]()]
        case ast.BinOp(op=operator) | ast.BoolOp(op=operator) if type(operator) in OPPOSITES:
            other.op = OPPOSITES[type(operator)]()
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            other.value = value + 1
        case ast.UnaryOp(op=ast.Not()):
            other = other.operand
        case ast.Expr(value=ast.Call()):
            other = ast.Constant(0)
        case _:
            return None
    return f"({ast.unparse(other)})"


def nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below a node, without annotations, and without formatted texts, whose positions are not exact."""
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and name not in ("annotation", "returns"):
                yield child
                if not isinstance(child, ast.JoinedStr):
                    yield from nodes(child)


def faults(path: Path) -> list[dict]:
    """One fault, chosen at random, for each line of a file that can have one."""
    lines, choices = path.read_text().splitlines(), collections.defaultdict(list)
    for node in nodes(ast.parse(path.read_text())):
        if getattr(node, "lineno", 0) == getattr(node, "end_lineno", 1) and (text := wrong(node)):
            before = lines[node.lineno - 1].encode()
            after = (before[: node.col_offset] + text.encode() + before[node.end_col_offset :]).decode()
            fault = {"file": str(path.relative_to(ROOT / SOURCE)), "line": node.lineno}
            choices[node.lineno].append(fault | {"before": before.decode(), "after": after, "seen_by": None})
    return [random.choice(choices[line]) for line in sorted(choices)]


def drawn() -> list[dict]:
    """COUNT faults, of each package in proportion to the lines that can have one."""
    random.seed(SEED)
    packages = collections.defaultdict(list)
    for path in sorted((ROOT / SOURCE).rglob("*.py")):
        packages[path.relative_to(ROOT / SOURCE).parts[0]] += faults(path)
    total, lines, plants = sum(map(len, packages.values())), 0, list[dict]()
    for package in packages.values():
        lines += len(package)
        plants += random.sample(package, round(COUNT * lines / total) - len(plants))
    return plants


def tests_about(file: str, tests: Path) -> list[list[str]]:
    """The test files that are about a file of SOURCE: those named like it, those that import it, and its folder's."""
    parent, _, name = f"attnorm/{file}".removesuffix(".py").removesuffix("/__init__").replace("/", ".").rpartition(".")
    imports = re.compile(rf"\b{parent}\.{name}\b|^from {parent} import [^\n]*\b{name}\b", re.M)
    ranked: list[list[str]] = [[], [], [], []]
    for path in sorted(tests.rglob("test_*.py")):
        is_near = path.relative_to(tests).parts[0] == file.partition("/")[0]
        ranks = (name.lstrip("_") in path.stem, bool(imports.search(path.read_text())), is_near, True)
        ranked[ranks.index(True)].append(str(path))
    return ranked[:3]


def first_failure(clone: Path, tests: Iterable[str], seconds: int = max(SECONDS)) -> str:
    """The first test that fails, in at most so many seconds of CPU time; "" if none does."""
    limited = ("bash", "-c", f'ulimit -t {seconds}; exec "$@"', "bash", sys.executable, "-B", "-m", "pytest", *OPTIONS)
    environment = {**os.environ, "PYTHONPATH": str(clone / "src"), "OMP_NUM_THREADS": "1"}
    command = [*limited, *(f"--deselect={test}" for test in failing), *tests]
    ended = subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True)
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", ended.stdout, re.M)
    return failed[1] if failed else "its import" if 0 < ended.returncode < 4 else ""  # 4: there is no such test


def seen_by(plant: dict, clone: Path) -> str | None:
    """The first test that sees a fault in a copy of the program; "" if none does, None if its line is gone."""
    path = clone / SOURCE / plant["file"]
    text = path.read_text() if path.is_file() else ""
    lines = text.splitlines()
    if not (numbers := [number for number, line in enumerate(lines) if line == plant["before"]]):
        return None
    lines[min(numbers, key=lambda number: abs(number + 1 - plant["line"]))] = plant["after"]
    while True:
        path.write_text("\n".join([*lines, ""]))
        about = [
            [*EVEN_SLOW, plant["seen_by"]] if plant["seen_by"] else [],
            *tests_about(plant["file"], clone / "tests"),
        ]
        attempts = zip(about, (max(SECONDS), *SECONDS), strict=True)
        test = next(filter(None, (first_failure(clone, *each) for each in attempts if each[0])), "")
        path.write_text(text)
        if "::" not in test or not first_failure(clone, [*EVEN_SLOW, test]):
            return test
        failing.append(test)


def main(table: str, *packages: str) -> int:
    path, lost = Path(table), 0
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else drawn()
    unknown = [row for row in rows if row["seen_by"] is None]
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "attnorm"
        subprocess.run(["git", "clone", "--quiet", "--shared", ROOT, clone], check=True)
        for row in unknown or rows:
            if row["file"].startswith(packages or ""):
                test = seen_by(row, clone)
                print(*row.values(), "->", "its line is gone" if test is None else test or "not seen", flush=True)
                if unknown:
                    row["seen_by"] = test
                    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
                else:
                    lost += test == "" != row["seen_by"]
    return int(lost > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
