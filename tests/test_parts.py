"""Parts that are named by `_target_`: what is found, and what is refused before it is called."""

import collections
from abc import ABC, abstractmethod
from dataclasses import dataclass

import pytest

from attnorm import parts
from attnorm.errors import ConfigError
from attnorm.parts import class_of, names_of, options_of


class Base(ABC):
    @abstractmethod
    def run(self):
        pass


class Abstract(Base):
    pass


class Concrete(Base):
    def run(self):
        pass


def make():
    pass


number = 3
FORM = "a dotted path has the form package.module.Class"


def problem_of(settings, base=None):
    """The one problem that a group has, which is about its `_target_`."""
    with pytest.raises(ConfigError) as error:
        class_of("data", settings, base)
    (problem,) = error.value.problems
    assert problem.key == "data._target_"
    return problem


def test_a_part_is_found_by_either_form_of_path_and_without_a_base_it_is_any_callable():
    for path in (f"{__name__}.Concrete", f"{__name__}:Concrete"):
        assert class_of("data", {"_target_": path, "size": 1}, Base) is Concrete
        assert class_of("data", {"_target_": path}) is Concrete
    assert class_of("scheduler", {"_target_": f"{__name__}.make"}) is make
    assert class_of("scheduler", {"_target_": "collections.OrderedDict"}) is collections.OrderedDict
    assert problem_of({"_target_": f"{__name__}.number"}).endswith("number: must be a class or a function")


def test_a_group_without_a_target_asks_for_another_file():
    assert problem_of({}).startswith("data._target_: is not set") and "data=<file>" in problem_of({"size": 1})
    assert problem_of({"_target_": None}).startswith("data._target_: is not set")


@pytest.mark.parametrize(
    ("path", "base", "message"),
    [
        *(
            (f"{__name__}.{name}", Base, f"must be a subclass of {__name__}.Base")
            for name in ("Base", "Abstract", "make", "number")
        ),
        ("no.such.Thing", None, "cannot import no.such: No module named 'no'"),
        (f"{__name__}.Concret", None, f"{__name__} has no Concret. Did you mean 'Concrete'?"),
        *((path, None, FORM) for path in ("Concrete", "../x.Concrete", "a.b:c.D", "")),
        (3, None, "must be a class or a function"),
    ],
)
def test_a_path_that_leads_to_no_part_is_named_with_the_reason(path, base, message):
    assert problem_of({"_target_": path}, base) == f"data._target_={path}: {message}"


def test_an_error_inside_a_users_module_is_not_taken_for_a_wrong_path(tmp_path, monkeypatch):
    (tmp_path / "broken_part.py").write_text("import collections\ncollections.missing\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(AttributeError, match="missing"):
        class_of("data", {"_target_": "broken_part.Thing"})


def test_options_are_the_keys_beside_the_target_and_names_those_of_fields_also_of_bases():
    settings = {"_target_": "a.B", "_partial_": True, "lr": 1, "shared": 2, "other": None}
    assert options_of(settings) == {"lr": 1, "shared": 2, "other": None}
    assert settings.keys() >= set(parts.RESERVED)  # they were left as they were

    @dataclass
    class First:
        one: int
        two: int = 2

    @dataclass
    class Second(First):
        three: int = 3

    assert names_of(Second) == ("one", "two", "three")
