"""The pages that are made for the web site: the API reference, and how its docstrings become Markdown."""

import importlib
import importlib.util
import inspect
import pkgutil
import re
import sys
from types import ModuleType, SimpleNamespace

import pytest
import runs
from scripts import load

DIRECTIVE = re.compile(r"^::: (\S+)$(?:\n    options: \{heading: (\S+)\}$)?", re.M)  # an object and its title
REFERENCE = {title or name: name for name, title in DIRECTIVE.findall((runs.ROOT / "docs/api.md").read_text())}
PUBLIC = ("attnorm", "attnorm.attention", "attnorm.nn", "attnorm.attention.testing", "attnorm.analysis")
PUBLIC += ("attnorm.integrations.transformers",)


@pytest.fixture
def docstrings(monkeypatch) -> ModuleType:
    """docs/docstrings.py, which needs griffe only for its base class; the tests have no griffe."""
    monkeypatch.setitem(sys.modules, "griffe", SimpleNamespace(Extension=object))
    return load("docs/docstrings")


def test_the_reference_has_every_public_name_and_no_other():
    documented = {title: pkgutil.resolve_name(name) for title, name in REFERENCE.items()}
    assert [title for title, it in documented.items() if not inspect.getdoc(it) or isinstance(it, ModuleType)] == []
    public = {
        f"{package}.{name}"
        for package in PUBLIC
        for name in importlib.import_module(package).__all__
        if callable(pkgutil.resolve_name(f"{package}.{name}"))
    }
    assert public - {*REFERENCE} == set() and len(REFERENCE) == len({*REFERENCE.values()})


@pytest.mark.parametrize(
    ("text", "markdown"),
    [
        ("Adds.\n\nx:    (B, N), a.\nlong: the\n      second.", "Adds.\n\n- `x`: (B, N), a.\n- `long`: the second."),
        ("x: one. long, y: two; see z: not a field.", "- `x`: one.\n- `long, y`: two; see z: not a field."),
        ("Args:\n    x: one\n        more.\n\nReturns:\n    two.", "- `x`: one more.\n\n**Returns:** two."),
        ("Raises ValueError for x < 0, see `_y_`.", "Raises ValueError for x &lt; 0, see `_y_`."),
        ("a * b, _default_ and w_ij [0]", r"a \* b, \_default\_ and w_ij \[0\]"),
        ("As in:\n\n    {x: [1]}", "As in:\n\n    {x: [1]}"),
    ],
)
def test_fields_of_a_docstring_become_a_list(docstrings, text, markdown):
    assert docstrings.to_markdown(text, {"x", "y", "long"}) == markdown
