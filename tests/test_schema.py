"""The options of a part: checked against the annotations of its constructor, and described in words."""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import pytest
import pytorch_lightning
import torch
from pydantic import Field

from attnorm import schema
from attnorm.errors import ConfigError
from attnorm.parts import Part as PartOfRun
from attnorm.schema import allowed, parameters, read_options, value_problems


class Colour(enum.Enum):
    RED, BLUE = "red", "blue"


@dataclass(frozen=True, kw_only=True)
class Part:
    """A dataclass of a user: it is outside of attnorm."""

    size: schema.Count
    rate: schema.Share = 0.1
    path: Path | None = None
    span: tuple[float, ...] = (1.0,)
    betas: tuple[float, float] = (0.9, 0.999)
    names: Sequence[str] = ()


def open_ended(size: int = 1, **options: Any) -> dict[str, Any]:
    return {"size": size, **options}


def option_problems(*arguments, **facts):
    try:
        read_options(*arguments, **facts)
    except ConfigError as error:
        return error.problems
    return []


def built(maker, options, **facts):
    return PartOfRun(maker, read_options("", maker, options, facts)).build(**facts)


def own(function):
    """The same function, as if it were one of attnorm."""
    function.__module__ = "attnorm.test"
    return function


def test_an_unknown_option_is_named_with_all_options_and_the_nearest():
    (problem,) = option_problems("model", Part, {"size": 1, "rat": 0.5})
    assert problem == (
        "model.rat=0.5: Part has no such option; it has betas, names, path, rate, size, span. Did you mean 'rate'?"
    )
    assert problem.key == "model.rat"
    (problem,) = option_problems("model", Part, {"size": 1, "zzz": None}, owner=Colour)
    assert problem.startswith("model.zzz=null: Colour has no such option; ") and "Did you mean" not in problem


def test_parameters_are_those_of_the_signature_of_a_class_a_method_or_a_wrapped_function():
    class Maker:
        def __init__(self, first, /, second, *rest, third: int = 3, **others):
            pass

        @classmethod
        def from_settings(cls, draw, *, size: int = 1):
            pass

    class Pair(NamedTuple):
        size: int
        other: int = 1

    class Heir(Maker):
        pass

    class Bare:
        pass

    assert list(parameters(Pair)) == ["size", "other"] and parameters(Bare) == {}
    assert list(parameters(Maker)) == ["second", "third"]
    assert list(parameters(Maker.from_settings)) == ["draw", "size"]
    assert list(parameters(partial(open_ended, size=3))) == ["size"]
    (problem,) = option_problems("tokenizer", Maker.from_settings, {"sise": 2}, facts=["draw"])
    assert "Maker has no such option; it has size. Did you mean 'size'?" in problem
    (problem,) = option_problems("tokenizer", Heir.from_settings, {"sise": 2}, facts=["draw"])
    assert "Heir has no such option" in problem
    (problem,) = option_problems("data", Bare, {"size": 1})
    assert problem.endswith("Bare has no such option; it has none")


def test_every_problem_is_found_and_a_missing_option_is_one():
    problems = option_problems("model", Part, {"rate": 1, "sise": 3, "span": "x"})
    assert [problem.key for problem in problems] == ["model.rate", "model.sise", "model.span", "model.size"]
    assert problems[-1] == "model.size: must be given, as in model.size=<value>"
    assert option_problems("model", Part, {"size": 3}) == []


def test_facts_are_no_options_and_a_part_with_keyword_arguments_takes_any_other_option():
    assert option_problems("model", Part, {}, facts=["size"]) == []
    (problem,) = option_problems("model", Part, {"size": 3}, facts=["size"])
    assert problem.startswith("model.size=3: Part has no such option; it has betas, names, path, rate, span")
    (problem,) = option_problems("model", open_ended, {"total": 3}, facts=["total"])  # although it takes any keyword
    assert problem.key == "model.total"
    assert schema.accepts_any(open_ended) and not schema.accepts_any(Part)
    assert option_problems("model", open_ended, {"other": 3}) == []
    assert built(open_ended, {"other": 3}, fact=4) == {"size": 1, "other": 3, "fact": 4}


INF, NAN = float("inf"), float("nan")
ANNOTATIONS = [  # what each allows in words, values that it allows, and values that it does not
    (int, "whole numbers", [], []),
    (schema.Count, "whole numbers from 1", [1, 7], [0, 1.0, 1.5, True, "1", None, [1]]),
    (schema.WholeNumber, "whole numbers from 0", [0, 7], [-1, False]),
    (Annotated[int, Field(ge=0, le=2**32 - 1)], "whole numbers from 0 to 4294967295", [], []),
    (Annotated[int, Field(gt=2)], "whole numbers above 2", [], []),
    (float, "numbers", [1, 1.5, INF], []),
    (schema.Number, "numbers", [-1, 0.5], [INF, NAN, "1", True]),
    (schema.Positive, "numbers above 0", [1, 1e-9], [0, -1, INF]),
    (schema.NonNegative, "numbers from 0", [0, 0.0, 3], [-1e-9]),
    (schema.Share, "numbers from 0 and below 1", [0, 0.99], [1, -0.1, NAN]),
    (schema.Probability, "numbers from 0 to 1", [0, 0.5, 1], [1.01, NAN]),
    (Annotated[float, Field(gt=0.5, lt=1)], "numbers above 0.5 and below 1", [], []),
    (Annotated[float, Field(ge=1.0)], "numbers from 1", [], []),
    (bool, "true, false", [True, False], [0, 1, "true", None]),
    (bool | None, "true, false or null", [True, None], []),
    (str, "text", ["", "1"], [1, True, None]),
    (schema.Text, "text that is not empty", ["a"], ["", 1, None]),
    (Path, "text", ["a/b", Path("a")], [1]),
    (None, "null", [], []),
    (schema.Count | None, "whole numbers from 1 or null", [], []),
    (schema.Count | str | None, "whole numbers from 1 or text or null", [], []),
    (Path | str, "text", [], []),
    (Literal["pre", "post"], "pre, post", [], []),
    (Literal["warn"] | bool, "warn or true, false", [], []),
    (Literal["auto"] | schema.Count, "auto or whole numbers from 1", ["auto", 3], ["gpu", 0, True]),
    (Colour, "red, blue", ["red"], ["green", 1]),
    (list[str], "a list of text", [[], ["a"]], ["a", [1]]),
    (tuple[float, ...], "a list of numbers", [[], [1, 0.5], (1, 2)], [1.0, ["a"]]),
    (tuple[schema.Share, ...], "a list of numbers from 0 and below 1", [], []),
    (tuple[float, float], "a list of 2 numbers", [[0.9, 1]], [[0.9], [0.9, 1, 2]]),
    (tuple[str, int], "a list of 2 text and whole numbers", [], []),
    (str | Sequence[str], "text or a list of text", ["a", ["a", "b"]], []),
    (str | Sequence[str] | None, "text or a list of text or null", [], []),
    (Mapping[str, Any], "settings by name", [{}, {"a": [1]}], ["a", [1]]),
    (Any, "any value", [None, 1, "a", [1]], []),
    (Annotated[str, Field(description="DD:HH:MM:SS")], "DD:HH:MM:SS", [], []),
    (Annotated[str, Field(description="a duration")] | None, "a duration or null", [], []),
    (torch.device, "torch.device", [], []),
]


@pytest.mark.parametrize(("annotation", "words", "right", "wrong"), ANNOTATIONS, ids=str)
def test_an_annotation_allows_what_it_says(annotation, words, right, wrong):
    assert allowed(annotation) == words
    assert [problem for value in right for problem in value_problems("key", value, annotation)] == []
    for value in wrong:
        (problem,) = value_problems("key", value, annotation)
        assert problem.startswith("key=") and f": allowed: {words}" in problem


def test_a_refused_value_is_shown_as_in_yaml():
    assert value_problems("key", None, schema.Count) == ["key=null: allowed: whole numbers from 1"]
    assert value_problems("key", True, schema.Count) == ["key=true: allowed: whole numbers from 1"]
    (problem,) = value_problems("key", "1", schema.Count | None)
    assert problem.startswith("key=1: allowed: whole numbers from 1 or null; this value is text: leave out its quotes")
    assert value_problems("key", "0", schema.Count) == ["key=0: allowed: whole numbers from 1"]  # nor is the number


def test_values_are_checked_for_parts_of_attnorm_of_users_and_of_libraries():
    def function(*, size: schema.Count = 1):
        pass

    @own
    def of_attnorm(*, size: schema.Count = 1, plain=1):
        pass

    assert option_problems("model", function, {"size": 0}) == ["model.size=0: allowed: whole numbers from 1"]
    assert option_problems("model", of_attnorm, {"size": 0}) == ["model.size=0: allowed: whole numbers from 1"]
    assert option_problems("model", of_attnorm, {"plain": object()}) == []
    assert option_problems("model", Part, {"size": 0}) == ["model.size=0: allowed: whole numbers from 1"]
    assert value_problems("key", 3, Sequence["Missing"]) == []  # noqa: F821 - an annotation that cannot be checked
    wrong = {"lr": "fast", "betas": 3}
    problems = option_problems("optimizer", torch.optim.AdamW, wrong, facts=["params"])
    assert [problem.partition(":")[0] for problem in problems] == ["optimizer.lr=fast", "optimizer.betas=3"]
    (problem,) = option_problems("optimizer", torch.optim.AdamW, {"beta": 3}, facts=["params"])
    assert problem.startswith("optimizer.beta=3: AdamW has no such option; it has amsgrad, betas, ")


def test_the_options_of_every_class_of_torch_and_lightning_that_a_file_may_name_can_be_checked():
    """The defaults of each class are what its annotations allow; those that cannot be resolved allow any value."""
    modules = {
        torch.optim: torch.optim.Optimizer,
        torch.optim.lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
        pytorch_lightning.callbacks: pytorch_lightning.Callback,
        pytorch_lightning.loggers: pytorch_lightning.loggers.Logger,
    }
    classes = {
        cls
        for module, base in modules.items()
        for cls in vars(module).values()
        if isinstance(cls, type) and issubclass(cls, base) and cls is not base
    }
    assert len(classes) > 60
    for cls in classes:
        facts = {name for name, parameter in parameters(cls).items() if parameter.default is parameter.empty}
        defaults = {name: parameters(cls)[name].default for name in parameters(cls).keys() - facts}
        assert read_options("group", cls, defaults, facts).keys() == defaults.keys(), cls
        assert [problem.key for problem in option_problems("group", cls, {"bogus": 1}, facts)] in (["group.bogus"], [])


def test_lists_become_tuples_and_texts_paths_where_the_annotation_says_so():
    part = built(Part, {"size": 2, "path": "a/b", "span": [1, 0.5], "betas": [0.5, 0.9], "names": ["x"]})
    assert part == Part(size=2, path=Path("a/b"), span=(1.0, 0.5), betas=(0.5, 0.9), names=["x"])
    assert isinstance(part.path, Path) and isinstance(part.span, tuple) and isinstance(part.names, list)

    def library(betas: tuple[float, float] | None = None, milestones: Sequence[int] = ()) -> tuple:
        return betas, milestones

    assert built(library, {"betas": [0.5, 1], "milestones": [1]}) == ((0.5, 1.0), [1])
    assert isinstance(built(Part, {"size": 2, "rate": 0}).rate, int)  # as it was written
    assert built(Part, {"rate": 0.5}, size=3, seed=4) == Part(size=3, rate=0.5)  # the facts that it has parameters for
