"""Drawing stories: event, clause, frame and slot entries from one stream of random numbers, until the split fits."""

from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from attnorm.data.synthetic import SPLITS, Draw, content_lines, pick, split_of
from attnorm.data.synthetic.newswire.lexicon import (
    ARTICLE_CHOICES,
    HEADLINE_CHOICES,
    KINDS_WITH_RARE_NAMES,
    TEXT,
    rare_name,
    reword,
)
from attnorm.data.synthetic.newswire.notation import (
    ASIDES,
    DAYS,
    DESKS,
    FRAMES,
    FRAMES_OF_TWO,
    Event,
    Template,
    read_events,
)

_FILES = [  # their order is part of the corpus
    TEXT / f"events_{name}.txt" for name in ("business", "politics", "conflict", "nature", "sport")
]
_EVENTS: list[Event] = [event for file in _FILES for event in read_events("\n".join(content_lines(file)))]
for _event in _EVENTS:
    assert _event.desk in DESKS, f"{_event.name}: no desk {_event.desk!r} in frames"
    assert _event.stories and _event.details, f"{_event.name}: an event needs stories and details"
EVENT_KINDS: tuple[str, ...] = tuple(event.name for event in _EVENTS)

_NAME, _DEMONYM = 1, 2  # forms of a country in a headline: "tarvania", "tarvanian"
# A slot is drawn anew when its headline form is taken; not for ever, as an event's own slot may have few entries.
_TRIES = 50


@dataclass(frozen=True)
class Difficulty:
    """What distinguishes the stories of one difficulty from those of another. Shares are between 0 and 1.

    second_events: share of the articles that report a second event. The headline is about the main clause only, so the
                   model has to tell which of two complete events the sentence is about.
    rare_names:    share of the persons and companies with a rare name, which has to be copied piece by piece.
    reworded:      whether words are drawn from several choices, in articles and in headlines; see `lexicon.reword`.
                   A headline that names the people of a country may instead name the country.
    """

    second_events: float = 0.0
    rare_names: float = 0.0
    reworded: bool = False


DIFFICULTIES = {
    "easy": Difficulty(),
    "hard": Difficulty(second_events=0.8, rare_names=0.9, reworded=True),
}


class Story(NamedTuple):
    """One drawn story: its event kind, article (lead sentence) and headline, all lower case, tokens between spaces."""

    event: str
    article: str
    headline: str


def _is_drawn(random: Draw, share: float) -> bool:
    """True with probability `share`. A share of 0 consumes no random number."""
    return share > 0 and random() < share


def _fill(
    random: Draw,
    template: Template,
    values: dict[str, tuple[str, ...]],
    taken: set[str],
    level: Difficulty,
) -> None:
    """Draw the template's slots that have no value yet; no two slots of a story read the same in a headline."""
    for slot, entries in template.slots:
        if slot not in values:
            kind = slot.rstrip("0123456789")
            for _ in range(_TRIES):
                is_rare = kind in KINDS_WITH_RARE_NAMES and _is_drawn(random, level.rare_names)
                entry = rare_name(random, kind) if is_rare else pick(random, entries)
                if entry[1] not in taken:
                    break
            values[slot] = entry
            taken.add(entry[1])


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
        event = pick(random, _EVENTS)
        core, headline_template = pick(random, event.stories)
        values: dict[str, tuple[str, ...]] = {}
        taken: set[str] = set()
        _fill(random, core, values, taken, level)
        if level.reworded:
            headline = reword(random, vary_countries(random, headline_template).render(values), HEADLINE_CHOICES)
        else:
            headline = headline_template.render(values)
        if split_of(headline) == split:
            return Story(event.name, _article(random, event, core, values, taken, level), headline)


def _article(
    random: Draw,
    event: Event,
    core: Template,
    values: dict[str, tuple[str, ...]],
    taken: set[str],
    level: Difficulty,
) -> str:
    """The lead sentence: a frame around the clause `core`, whose slots are in `values`."""
    desk = DESKS[event.desk]
    frame = pick(random, FRAMES_OF_TWO if _is_drawn(random, level.second_events) else FRAMES)
    choices = {"detail": event.details, "who": desk.sources, "lead": desk.leads, "aside": ASIDES, "on": DAYS}
    texts = []
    for part in frame.parts:
        if part == "second":
            texts.append(_second_clause(random, taken, level))
            continue
        template = core if part == "core" else pick(random, choices[part])
        _fill(random, template, values, taken, level)
        texts.append(template.render(values))
    article = (frame.text % tuple(texts)).replace(" , .", " .")  # a source may end in an apposition
    return reword(random, article, ARTICLE_CHOICES) if level.reworded else article


def vary_countries(random: Draw, headline: Template) -> Template:
    """A headline template in which each demonym is replaced by the name of its country with a probability of 1/2."""
    fields = [
        (slot, _NAME if slot.startswith("country") and form == _DEMONYM and random() < 0.5 else form)
        for slot, form in headline.fields
    ]
    return headline._replace(fields=tuple(fields))


def _second_clause(random: Draw, taken: set[str], level: Difficulty) -> str:
    """The clause of an event of any kind, with people and places of its own."""
    clause, _ = pick(random, pick(random, _EVENTS).stories)
    values: dict[str, tuple[str, ...]] = {}
    _fill(random, clause, values, taken, level)
    return clause.render(values)


def pair(split: str, index: int, seed: int = 0, difficulty: str = "hard") -> tuple[str, str]:
    """(article, headline) number `index` of a split; see `story`, which also tells the event kind."""
    return story(split, index, seed, difficulty)[1:]
