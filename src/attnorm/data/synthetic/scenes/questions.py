"""Questions on a scene: drawn as programs that a scene answers, and put into words.

("exist", F)                 is there a thing like F?
("count", F)                 how many?
("query", attribute, F)      what shape, colour or size has the one thing like F?
("more", F, G)               are there more things like F than like G?
("relation", side, F, G)     is the one like F left of, right of, above, below the one like G?
("larger", F, G)             is the one like F larger than the one like G?

F and G are attributes with values, (("size", "small"), ("shape", "ring")). A yes or no is drawn first and the question
then, and things that are not there differ in one attribute from one that is, so that the words tell little.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from attnorm.data.synthetic import pick
from attnorm.data.synthetic.scenes.generate import VALUES, Scene, Thing, draw_distinct, scene, stream

PER_SCENE = 4
TYPES = ("exist", "count", "query", "compare")
KIND = {"count": "number", "query": "other"}  # the others: yes/no
APART = 0.12  # how far things must be apart for one to be left of the other
_TRIES = 40

SIDE = {"left of": ("x", -1), "right of": ("x", 1), "above": ("y", -1), "below": ("y", 1)}
WORDS = {
    "exist": ("is there {a}?", "can you see {a}?", "is {a} in the picture?", "does the image show {a}?"),
    "count": ("how many {many} are there?", "what number of {many} can be seen?", "count the {many}.",
              "how many {many} does the image show?"),
    "shape": ("what shape is the {one}?", "which shape does the {one} have?", "the {one} has what shape?"),
    "colour": ("what color is the {one}?", "which color does the {one} have?", "the {one} is of what color?"),
    "size": ("what size is the {one}?", "how big is the {one}?", "the {one} is of what size?"),
    "more": ("are there more {many} than {others}?", "is the number of {many} greater than that of {others}?"),
    "relation": ("is the {one} {side} the {other}?", "does the {one} lie {side} the {other}?"),
    "larger": ("is the {one} larger than the {other}?", "is the {other} smaller than the {one}?",
               "does the {one} take up more room than the {other}?"),
}  # fmt: skip
SIZE_WORDS = {"small": ("small", "little", "tiny"), "medium": ("medium", "medium-sized"), "large": ("large", "big")}
THINGS = (("thing", "things"), ("object", "objects"), ("item", "items"))

Filter = tuple[tuple[str, str], ...]


class Question(NamedTuple):
    """type: of TYPES; kind: of its answer, "yes/no", "number" or "other"; program: what is asked."""

    type: str
    text: str
    answer: str
    kind: str
    program: tuple


def answer(program: tuple, things: Sequence[Thing]) -> str:
    """The answer to a program where there are these things. Raises ValueError where "the one like F" is not one."""
    name, *args = program
    if name == "exist":
        return _yes(bool(_like(things, args[0])))
    if name == "count":
        return str(len(_like(things, args[0])))
    if name == "query":
        return getattr(_one(things, args[1]), args[0])
    if name == "more":
        return _yes(len(_like(things, args[0])) > len(_like(things, args[1])))
    first, second = (_one(things, wanted) for wanted in args[-2:])
    if name == "larger":
        return _yes(_rank(first) > _rank(second))
    axis, sign = SIDE[args[0]]
    return _yes(sign * getattr(first, axis) > sign * getattr(second, axis))


def _like(things: Sequence[Thing], wanted: Filter) -> list[Thing]:
    return [thing for thing in things if all(getattr(thing, name) == value for name, value in wanted)]


def _one(things: Sequence[Thing], wanted: Filter) -> Thing:
    like = _like(things, wanted)
    if len(like) != 1:
        raise ValueError(f"{len(like)} things like {dict(wanted)}")
    return like[0]


def _yes(true: bool) -> str:
    return "yes" if true else "no"


def _rank(thing: Thing) -> int:
    return VALUES["size"].index(thing.size)


def questions(split: str, index: int, seed: int = 0) -> list[Question]:
    """The PER_SCENE questions on scene number `index` of a split, all of them different."""
    things, random = scene(split, index, seed), stream("questions", split, index, seed)
    asked: dict[tuple, Question] = {}
    while len(asked) < PER_SCENE:
        type_ = pick(random, TYPES)
        draw, wanted = pick(random, _DRAW[type_]), _yes(random() < 0.5)
        for _ in range(_TRIES):
            program = draw(random, things, wanted)
            if program is not None and program not in asked:
                result = answer(program, things)
                assert type_ not in ("exist", "compare") or result == wanted
                asked[program] = Question(type_, _words(random, program), result, KIND.get(type_, "yes/no"), program)
                break
    return list(asked.values())


def _exist(random: Callable, things: Scene, wanted: str) -> tuple | None:
    names = pick(random, (("shape",), ("colour",), *_PAIRS, ("size", "colour", "shape")))
    thing = pick(random, things)
    values = {name: getattr(thing, name) for name in names}
    if wanted == "no":
        name = pick(random, names)  # one attribute alone is any value's, of several one is another thing's
        values[name] = pick(random, VALUES[name]) if len(names) == 1 else getattr(pick(random, things), name)
    asked = tuple(values.items())
    return ("exist", asked) if bool(_like(things, asked)) == (wanted == "yes") else None


_PAIRS = (("colour", "shape"), ("size", "shape"), ("size", "colour"))


def _count(random: Callable, things: Scene, wanted: str) -> tuple | None:
    names = pick(random, (("shape",), ("colour",), ("size",), *_PAIRS))
    values = [VALUES[name] if len(names) == 1 else [getattr(thing, name) for thing in things] for name in names]
    filters = sorted({tuple(zip(names, chosen, strict=True)) for chosen in itertools.product(*values)})
    number = pick(random, sorted({len(_like(things, asked)) for asked in filters}))
    return "count", pick(random, [asked for asked in filters if len(_like(things, asked)) == number])


def _query(random: Callable, things: Scene, wanted: str) -> tuple | None:
    name, thing = pick(random, tuple(VALUES)), pick(random, things)
    asked = _description(random, things, thing, [other for other in VALUES if other != name])
    return ("query", name, asked) if asked else None


def _more(random: Callable, things: Scene, wanted: str) -> tuple | None:
    names = pick(random, (("shape",), ("colour",), ("size",), *_PAIRS))
    pair = [tuple((name, getattr(pick(random, things), name)) for name in names) for _ in range(2)]
    counts = [len(_like(things, asked)) for asked in pair]
    if counts[0] == counts[1]:
        return None
    return ("more", *(pair if (counts[0] > counts[1]) == (wanted == "yes") else pair[::-1]))


def _relation(random: Callable, things: Scene, wanted: str) -> tuple | None:
    first, second = draw_distinct(random, things, 2)
    pair = [_description(random, things, thing, list(VALUES)) for thing in (first, second)]
    side = pick(random, tuple(SIDE))
    axis, sign = SIDE[side]
    distance = sign * (getattr(first, axis) - getattr(second, axis))
    if abs(distance) < APART or None in pair:
        return None
    return ("relation", side, *(pair if (distance > 0) == (wanted == "yes") else pair[::-1]))


def _larger(random: Callable, things: Scene, wanted: str) -> tuple | None:
    first, second = draw_distinct(random, things, 2)
    pair = [_description(random, things, thing, ["colour", "shape"]) for thing in (first, second)]
    if _rank(first) == _rank(second) or None in pair:
        return None
    return ("larger", *(pair if (_rank(first) > _rank(second)) == (wanted == "yes") else pair[::-1]))


_DRAW = {"exist": (_exist,), "count": (_count,), "query": (_query,), "compare": (_more, _relation, _larger)}


def _description(random: Callable, things: Scene, thing: Thing, names: list[str]) -> Filter | None:
    """What only this thing has, of these attributes; None if there is nothing."""
    choices = [
        tuple((name, getattr(thing, name)) for name in chosen)
        for count in range(1, len(names) + 1)
        for chosen in itertools.combinations(names, count)
    ]
    alone = [choice for choice in choices if len(_like(things, choice)) == 1]
    return pick(random, alone) if alone else None


def _words(random: Callable, program: tuple) -> str:
    name, *args = program
    text = pick(random, WORDS[args[0] if name == "query" else name])
    filters = [_phrase(random, part) for part in args if isinstance(part, tuple)]
    one, many = filters[0]
    other, others = filters[-1]
    article = "an" if one[0] in "aeiou" else "a"
    side = args[0] if name == "relation" else ""
    return text.format(a=f"{article} {one}", one=one, many=many, other=other, others=others, side=side)


def _phrase(random: Callable, asked: Filter) -> tuple[str, str]:
    """A filter in words, for one thing and for many."""
    values = dict(asked)
    one, many = pick(random, THINGS)
    if "shape" in values:
        one = values["shape"]
        many = f"{one}es" if one.endswith("s") else f"{one}s"
    before = [pick(random, SIZE_WORDS[values["size"]])] if "size" in values else []
    before += [values["colour"]] if "colour" in values else []
    return " ".join([*before, one]), " ".join([*before, many])
