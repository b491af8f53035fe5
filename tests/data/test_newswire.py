"""The built-in headline corpus: form, calibration against baselines, disjoint splits, determinism, the notation.

The figures that a test measures are printed: `pytest tests/data/test_newswire.py -s`.
"""

import hashlib
import re
import statistics
from collections import Counter
from random import Random
from typing import get_args

import numpy as np
import pytest
from rouge_score.rouge_scorer import RougeScorer

from attnorm.data.sources.newswire import Level
from attnorm.data.synthetic import sections
from attnorm.data.synthetic.newswire import DIFFICULTIES, EVENT_KINDS, SPLITS, generate, pair, story
from attnorm.data.synthetic.newswire.generate import _EVENTS, Difficulty, vary_countries
from attnorm.data.synthetic.newswire.lexicon import ARTICLE_CHOICES, HEADLINE_CHOICES, KINDS, reword
from attnorm.data.synthetic.newswire.notation import compile_template, read_events

FORM = re.compile(r"[^\sA-Z0-9]+( [^\sA-Z0-9]+)*")
SCORER = RougeScorer(["rouge1"], use_stemmer=True)
FIRST_200_SHA256 = {
    "easy": "f314c42969b6712b65d71a05f9b3a0ed95e02ec6ad5745409e12eac085aa6b47",
    "hard": "82c345a5cdfc707d634f009402720ed4935d10e6c771d582d7d26ff53812c64d",
}


def pairs(split, count, seed=0, difficulty="hard"):
    return [pair(split, index, seed, difficulty) for index in range(count)]


def rouge1(references: list[str], hypotheses: list[str]) -> float:
    """Mean ROUGE-1 F1 in percent."""
    scores = [SCORER.score(r, h)["rouge1"].fmeasure for r, h in zip(references, hypotheses, strict=True)]
    return 100 * statistics.mean(scores)


@pytest.fixture(scope="module", params=DIFFICULTIES)
def difficulty(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def train(difficulty) -> list[tuple[str, str]]:
    return pairs("train", 25_000, 0, difficulty)


@pytest.fixture(scope="module")
def validation(difficulty) -> list[tuple[str, str]]:
    return pairs("validation", 1_000, 0, difficulty)


@pytest.mark.slow
def test_lead_8_baseline_is_like_gigaword(validation):
    score = rouge1([h for _, h in validation], [" ".join(a.split()[:8]) for a, _ in validation])
    print(f"\nlead-8 ROUGE-1: {score:.1f}")
    assert 17 <= score <= 25


def test_headlines_use_words_that_their_article_lacks(validation):
    new = [word not in set(article.split()) for article, headline in validation for word in headline.split()]
    share = 100 * statistics.mean(new)
    print(f"\nheadline words not in the article: {share:.1f} %")
    assert 25 <= share <= 50


def test_lengths(validation, difficulty):
    articles = [len(article.split()) for article, _ in validation]
    headlines = [len(headline.split()) for _, headline in validation]
    for name, lengths in (("article", articles), ("headline", headlines)):
        low, high = np.percentile(lengths, [2.5, 97.5])
        print(f"\n{name} words: mean {statistics.mean(lengths):.1f}, 95 % between {low:.0f} and {high:.0f}")
    least, most = {"easy": (29, 33), "hard": (34, 38)}[difficulty]
    assert least <= statistics.mean(articles) <= most
    assert 7 <= statistics.mean(headlines) <= 9
    assert statistics.stdev(articles) > 4, "articles of one length teach nothing about length"
    assert min(headlines) >= 3


@pytest.mark.slow
def test_few_pairs_and_headlines_repeat(train):
    pairs_twice = 100 * (1 - len(set(train)) / len(train))
    headlines_twice = 100 * (1 - len({headline for _, headline in train}) / len(train))
    print(f"\nof {len(train):,} train pairs repeat {pairs_twice:.2f} %, of their headlines {headlines_twice:.2f} %")
    assert pairs_twice < 0.5
    assert headlines_twice < 1


@pytest.mark.slow
def test_no_headline_is_in_two_splits(train, validation, difficulty):
    headlines = {"train": {h for _, h in train}, "validation": {h for _, h in validation}}
    headlines["test"] = {h for _, h in pairs("test", 500, 0, difficulty)}
    headlines["train of another seed"] = {h for _, h in pairs("train", 2_000, 1, difficulty)}
    assert not headlines["train"] & headlines["validation"]
    assert not headlines["test"] & (headlines["train"] | headlines["validation"])
    assert not headlines["train of another seed"] & (headlines["validation"] | headlines["test"])


@pytest.mark.long
def test_words_are_few_and_often_seen_unless_names_are_rare(train, validation, difficulty):
    counts = Counter(word for texts in train for text in texts for word in text.split())
    rare = sum(count < 5 for count in counts.values())
    unseen = {word for article, _ in validation for word in article.split()} - set(counts)
    copied = [word for _, headline in validation for word in headline.split() if word not in counts]
    print(
        f"\nwords in {len(train):,} train pairs: {len(counts)}, seen less than 5 times: {rare}; unseen: {len(unseen)}"
    )
    if difficulty == "easy":
        assert len(counts) <= 3_000 and rare <= 0.01 * len(counts) and not unseen
    else:  # a headline in three has a name that no training pair has
        assert len(counts) > 10_000 and rare > 0.5 * len(counts)
        assert len(copied) > 0.25 * len(validation)


def tfidf(articles: list[str], column: dict[str, int], idf: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Unit rows (articles, words) of term frequency times log inverse document frequency, and the latter."""
    rows = np.zeros((len(articles), len(column)), dtype=np.float32)
    for row, article in zip(rows, articles, strict=True):
        for word in article.split():
            if word in column:
                row[column[word]] += 1
    if idf is None:
        idf = np.log(len(rows) / np.count_nonzero(rows, axis=0)).astype(np.float32)
    rows *= idf
    return rows / np.linalg.norm(rows, axis=1, keepdims=True), idf


@pytest.mark.slow
def test_the_nearest_training_headline_is_a_poor_answer(train, validation):
    train, validation = train[:10_000], validation[:200]
    words = Counter(word for article, _ in train for word in article.split())
    column = {word: number for number, word in enumerate(word for word, count in words.items() if count >= 5)}
    known, idf = tfidf([article for article, _ in train], column)
    asked, _ = tfidf([article for article, _ in validation], column, idf)
    nearest = (asked @ known.T).argmax(axis=1)
    score = rouge1([h for _, h in validation], [train[number][1] for number in nearest])
    print(f"\nROUGE-1 of the headline of the nearest of 10,000 training articles: {score:.1f}")
    assert score < 50, "a model that only recalls event kinds would look good"


def test_every_text_is_in_gigaword_form(train, validation):
    for texts in train[:5_000] + validation:
        for text in texts:
            assert FORM.fullmatch(text), text
    for article, headline in validation:
        assert article.endswith(" .") and article.count(" . ") == 0, article
        assert not headline.endswith("."), headline
        assert not re.search(r"\w's|\w[,:;]|, [,.]|\{|%", article + headline), (article, headline)


def test_every_event_kind_appears():
    assert len(EVENT_KINDS) == len(set(EVENT_KINDS)) >= 40
    seen = Counter(story("train", index, 0, "easy").event for index in range(5_000))
    assert set(seen) == set(EVENT_KINDS)
    print(f"\n{len(seen)} event kinds, in 5,000 pairs the rarest {min(seen.values())} times")
    assert min(seen.values()) > 20


# --------------------------------------------------------------------------------------------------------- difficulties


def test_the_easy_corpus_has_nothing_of_what_makes_the_hard_one_hard():
    assert DIFFICULTIES["easy"] == Difficulty(second_events=0.0, rare_names=0.0, reworded=False)
    assert tuple(DIFFICULTIES) == get_args(Level) == ("easy", "hard")


def test_most_hard_articles_report_a_second_event_on_which_the_headline_does_not_depend(monkeypatch):
    before = {level: [story("test", index, 0, level) for index in range(300)] for level in DIFFICULTIES}
    monkeypatch.setattr(generate, "_second_clause", lambda *_: "nothing else happened")
    share = {}
    for level, stories in before.items():
        marked = [story("test", index, 0, level) for index in range(300)]
        assert [item.headline for item in marked] == [item.headline for item in stories]
        share[level] = statistics.mean("nothing else happened" in item.article for item in marked)
    assert share["easy"] == 0
    assert abs(share["hard"] - 0.8) < 4 * (0.8 * 0.2 / 300) ** 0.5  # four standard deviations


@pytest.mark.parametrize("choices", [ARTICLE_CHOICES, HEADLINE_CHOICES], ids=["articles", "headlines"])
def test_choices_of_words_are_different_words_in_gigaword_form(choices):
    assert len(choices) > 40
    for word, options in choices.items():
        assert options[0] == word and len(set(options)) == len(options) >= 2
        assert all(FORM.fullmatch(option) for option in options) and " " not in word
    texts = [t.text for event in _EVENTS for templates in event.stories for t in templates]
    texts += [form for event in _EVENTS for kind in event.kinds.values() for entry in kind.entries for form in entry]
    assert set(choices) <= {word for text in texts for word in text.split()}, "words that never occur"


def test_each_choice_of_a_word_is_drawn_equally_often():
    drawn = Counter(reword(Random(0).random, " ".join(["a", "row"] * 3_000), HEADLINE_CHOICES).split())
    assert set(drawn) == {"a", "row", "dispute", "spat"} and drawn["a"] == 3_000
    deviation = (3_000 * 1 / 3 * 2 / 3) ** 0.5
    assert all(abs(drawn[word] - 1_000) < 4 * deviation for word in ("row", "dispute", "spat"))


def test_a_headline_names_a_people_or_its_country():
    template = compile_template("{country.adj} police arrest {country2.adj} {person}", KINDS, headline=True)
    random = Random(0).random
    drawn = Counter(vary_countries(random, template).fields for _ in range(400))
    assert len(drawn) == 4 and min(drawn.values()) > 60  # of 100 each
    assert all(fields[2] == ("person", 1) for fields in drawn)


@pytest.mark.parametrize("level", DIFFICULTIES)
def test_the_first_200_pairs_are_pinned(level):
    text = "\n".join("\t".join(texts) for texts in pairs("train", 200, 0, level))
    assert hashlib.sha256(text.encode()).hexdigest() == FIRST_200_SHA256[level]


def test_a_pair_depends_on_its_arguments_only():
    forwards = [pair("train", index) for index in range(50)]
    backwards = [pair("train", index) for index in reversed(range(50))][::-1]
    assert forwards == backwards == pairs("train", 50)
    assert forwards[7] == story("train", 7)[1:]
    others = [pair("train", 7, seed=1), pair("train", 8), pair("validation", 7), pair("test", 7)]
    others.append(pair("train", 7, difficulty="easy"))
    assert len({forwards[7], *others}) == 6


NUMBERS = [{"index": -1}, {"index": 1.0}, {"seed": -1}, {"seed": "0"}, {"seed": True}]
WRONG = [  # arguments of a pair, and what is said
    *(({"difficulty": it}, "difficulty=.*allowed: easy, hard") for it in ("medium", "", None)),
    *(({"split": it}, f"allowed: {', '.join(SPLITS)}") for it in ("valid", "", "Train", None)),
    *((it, f"{next(iter(it))}=.*allowed: integers >= 0") for it in NUMBERS),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG)
def test_a_wrong_argument_lists_what_is_allowed(arguments, message):
    with pytest.raises(ValueError, match=message):
        pair(**{"split": "train", "index": 0, **arguments})
    assert SPLITS == ("train", "validation", "test")


def test_an_event_is_a_few_lines():
    (event,) = read_events("""
== regatta / sport
boat: a canoe > canoe | a sculling boat > scull
> {person} of {country} overtook
  {person2} in {boat}
< {country.adj} {boat} beats {person2}
+ in front of {few9} swans
""")
    ((clause, headline),) = event.stories
    values = {
        "person": ("rosa sorel", "sorel"),
        "person2": ("karim voss", "voss"),
        "country": ("kumaria", "kumaria", "kumari", "chandpur", "velagar"),
        "boat": ("a sculling boat", "scull"),
    }
    assert clause.render(values) == "rosa sorel of kumaria overtook karim voss in a sculling boat"
    assert headline.render(values) == "kumari scull beats voss"
    assert (event.name, event.desk, len(event.details)) == ("regatta", "sport", 1)


def test_lines_before_the_first_event_are_refused():
    with pytest.raises(ValueError, match="events begin with a line '== name / desk'"):
        read_events("> {person} left")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("> {persn} left", r"unknown slot \{persn\}.*known are.*person"),
        ("> {country.town.x} left", "slots in braces"),
        ("> {person.adj} left", r"unknown form \{person.adj\}.*known are article, headline"),
        ("> {person} left\n< {person} leaves {country}", r"\['country'\] are not in the article clause"),
        ("> Paris", "lower case"),
        ("> in 1999", "lower case"),
        ("< {person}", "not a line of an event"),
        ("? {person}", "not a line of an event"),
    ],
)
def test_a_wrong_line_of_an_event_is_named(line, message):
    with pytest.raises(ValueError, match=message):
        read_events(f"== regatta / sport\n{line}")


def test_the_texts_of_a_corpus_are_read_section_by_section(tmp_path):
    file = tmp_path / "words.txt"
    file.write_text("// a comment\n[first]\n# a | b |\n\nc\n[second]\n// another\nd\n")
    assert sections(file) == {"first": ["# a | b |", "c"], "second": ["d"]}
    file.write_text("[first]\na\n[first]\nb\n")
    with pytest.raises(ValueError, match=r"\[first\]"):
        sections(file)
