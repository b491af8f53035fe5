"""Drawing stories: event, clause, frame and slot entries from one stream of random numbers, until the split fits."""

import zlib
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import NamedTuple, TypeVar

from attnorm.data.synthetic.newswire.difficulty import DIFFICULTIES, Difficulty
from attnorm.data.synthetic.newswire.frames import ASIDES, DAYS, DESKS, FRAMES, FRAMES_OF_TWO
from attnorm.data.synthetic.newswire.lexicon import TEXT
from attnorm.data.synthetic.newswire.names import KINDS_WITH_RARE_NAMES, rare_name
from attnorm.data.synthetic.newswire.notation import Event, Template, read_events
from attnorm.data.synthetic.newswire.wording import ARTICLE_CHOICES, HEADLINE_CHOICES, reword
from attnorm.data.synthetic.text_files import content_lines

_FILES = [  # their order is part of the corpus
    TEXT / f"events_{name}.txt" for name in ("business", "politics", "conflict", "nature", "sport")
]
_EVENTS: list[Event] = [event for file in _FILES for event in read_events("\n".join(content_lines(file)))]
for _event in _EVENTS:
    assert _event.desk in DESKS, f"{_event.name}: no desk {_event.desk!r} in frames"
    assert _event.stories and _event.details, f"{_event.name}: an event needs stories and details"
EVENT_KINDS: tuple[str, ...] = tuple(event.name for event in _EVENTS)

# Of 100 checksum classes of headlines, those below the bound belong to the split.
_BOUNDS = (("train", 92), ("validation", 96), ("test", 100))
SPLITS: tuple[str, ...] = tuple(name for name, _ in _BOUNDS)
_NAME, _DEMONYM = 1, 2  # forms of a country in a headline: "tarvania", "tarvanian"
# A slot is drawn anew when its headline form is taken; not for ever, as an event's own slot may have few entries.
_TRIES = 50


Entry = TypeVar("Entry")


class Story(NamedTuple):
    """One drawn story: its event kind, article (lead sentence) and headline, all lower case, tokens between spaces."""

    event: str
    article: str
    headline: str


def _pick(random: Callable[[], float], entries: Sequence[Entry]) -> Entry:
    """One entry, uniformly. Uses only `.random()`, whose stream Python documents as stable between versions."""
    return entries[int(random() * len(entries))]


def _is_drawn(random: Callable[[], float], share: float) -> bool:
    """True with probability `share`. A share of 0 consumes no random number."""
    return share > 0 and random() < share


def _draw(
    random: Callable[[], float], slot: str, entries: Sequence[tuple[str, ...]], level: Difficulty
) -> tuple[str, ...]:
    """One entry for a slot: a rare name, or one of `entries`."""
    kind = slot.rstrip("0123456789")
    if kind in KINDS_WITH_RARE_NAMES and _is_drawn(random, level.rare_names):
        return rare_name(random, kind)
    return _pick(random, entries)


def _fill(
    random: Callable[[], float],
    template: Template,
    values: dict[str, tuple[str, ...]],
    taken: set[str],
    level: Difficulty,
) -> None:
    """Draw the template's slots that have no value yet; no two slots of a story read the same in a headline."""
    for slot, entries in template.slots:
        if slot not in values:
            for _ in range(_TRIES):
                entry = _draw(random, slot, entries, level)
                if entry[1] not in taken:
                    break
            values[slot] = entry
            taken.add(entry[1])


def _split_of(headline: str) -> str:
    """The split that a headline belongs to: a checksum decides, so that no headline can be in two splits."""
    bucket = zlib.crc32(headline.encode("ascii")) % 100
    return next(name for name, bound in _BOUNDS if bucket < bound)


def story(split: str, index: int, seed: int = 0, difficulty: str = "hard") -> Story:
    """Story number `index` of a split, a pure function of its arguments on every machine and Python version.

    Raises ValueError for a split that is not in SPLITS, an index or seed that is not an integer >= 0, or a difficulty
    that is not in DIFFICULTIES.
    """
    for name, value, allowed in (("split", split, SPLITS), ("difficulty", difficulty, tuple(DIFFICULTIES))):
        if value not in allowed:
            raise ValueError(f"newswire {name}={value!r}: allowed: {', '.join(allowed)}")
    for name, number in (("index", index), ("seed", seed)):
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise ValueError(f"newswire {name}={number!r}: allowed: integers >= 0")
    level = DIFFICULTIES[difficulty]
    stream = f"newswire {seed} {split} {index}" + (f" {difficulty}" if difficulty != "easy" else "")
    random = Random(stream).random
    while True:
        event = _pick(random, _EVENTS)
        core, headline_template = _pick(random, event.stories)
        values: dict[str, tuple[str, ...]] = {}
        taken: set[str] = set()
        _fill(random, core, values, taken, level)
        if level.reworded:
            headline = reword(random, vary_countries(random, headline_template).render(values), HEADLINE_CHOICES)
        else:
            headline = headline_template.render(values)
        if _split_of(headline) == split:
            return Story(event.name, _article(random, event, core, values, taken, level), headline)


def _article(
    random: Callable[[], float],
    event: Event,
    core: Template,
    values: dict[str, tuple[str, ...]],
    taken: set[str],
    level: Difficulty,
) -> str:
    """The lead sentence: a frame around the clause `core`, whose slots are in `values`."""
    desk = DESKS[event.desk]
    frame = _pick(random, FRAMES_OF_TWO if _is_drawn(random, level.second_events) else FRAMES)
    choices = {"detail": event.details, "who": desk.sources, "lead": desk.leads, "aside": ASIDES, "on": DAYS}
    texts = []
    for part in frame.parts:
        if part == "second":
            texts.append(_second_clause(random, taken, level))
            continue
        template = core if part == "core" else _pick(random, choices[part])
        _fill(random, template, values, taken, level)
        texts.append(template.render(values))
    article = (frame.text % tuple(texts)).replace(" , .", " .")  # a source may end in an apposition
    return reword(random, article, ARTICLE_CHOICES) if level.reworded else article


def vary_countries(random: Callable[[], float], headline: Template) -> Template:
    """A headline template in which each demonym is replaced by the name of its country with a probability of 1/2."""
    fields = [
        (slot, _NAME if slot.startswith("country") and form == _DEMONYM and random() < 0.5 else form)
        for slot, form in headline.fields
    ]
    return headline._replace(fields=tuple(fields))


def _second_clause(random: Callable[[], float], taken: set[str], level: Difficulty) -> str:
    """The clause of an event of any kind, with people and places of its own."""
    clause, _ = _pick(random, _pick(random, _EVENTS).stories)
    values: dict[str, tuple[str, ...]] = {}
    _fill(random, clause, values, taken, level)
    return clause.render(values)


def pair(split: str, index: int, seed: int = 0, difficulty: str = "hard") -> tuple[str, str]:
    """(article, headline) number `index` of a split; see `story`, which also tells the event kind."""
    return story(split, index, seed, difficulty)[1:]


def pairs(split: str, count: int, seed: int = 0, difficulty: str = "hard") -> Iterator[tuple[str, str]]:
    """The first `count` pairs of a split, one after the other. Raises ValueError as `story` does, at the first pair."""
    return (pair(split, index, seed, difficulty) for index in range(count))
