"""The built-in headline corpus: form, calibration against baselines, disjoint splits, determinism, the notation.

The figures that a test measures are printed: `pytest tests/data/test_newswire.py -s`.
"""

import hashlib
import re
import statistics
from collections import Counter

import numpy as np
import pytest
from rouge_score.rouge_scorer import RougeScorer

from attnorm.data.synthetic.newswire import EVENT_KINDS, SPLITS, pair, pairs, story
from attnorm.data.synthetic.newswire.notation import read_events

FORM = re.compile(r"[^\sA-Z0-9]+( [^\sA-Z0-9]+)*")
SCORER = RougeScorer(["rouge1"], use_stemmer=True)
FIRST_200_SHA256 = "f314c42969b6712b65d71a05f9b3a0ed95e02ec6ad5745409e12eac085aa6b47"


def rouge1(references: list[str], hypotheses: list[str]) -> float:
    """Mean ROUGE-1 F1 in percent."""
    scores = [SCORER.score(r, h)["rouge1"].fmeasure for r, h in zip(references, hypotheses, strict=True)]
    return 100 * statistics.mean(scores)


@pytest.fixture(scope="module")
def train() -> list[tuple[str, str]]:
    return list(pairs("train", 50_000))


@pytest.fixture(scope="module")
def validation() -> list[tuple[str, str]]:
    return list(pairs("validation", 1_000))


def test_lead_8_baseline_is_like_gigaword(validation):
    score = rouge1([h for _, h in validation], [" ".join(a.split()[:8]) for a, _ in validation])
    print(f"\nlead-8 ROUGE-1: {score:.1f}")
    assert 17 <= score <= 25


def test_headlines_use_words_that_their_article_lacks(validation):
    new = [word not in set(article.split()) for article, headline in validation for word in headline.split()]
    share = 100 * statistics.mean(new)
    print(f"\nheadline words not in the article: {share:.1f} %")
    assert 25 <= share <= 50


def test_lengths(validation):
    articles = [len(article.split()) for article, _ in validation]
    headlines = [len(headline.split()) for _, headline in validation]
    for name, lengths in (("article", articles), ("headline", headlines)):
        low, high = np.percentile(lengths, [2.5, 97.5])
        print(f"\n{name} words: mean {statistics.mean(lengths):.1f}, 95 % between {low:.0f} and {high:.0f}")
    assert 29 <= statistics.mean(articles) <= 33
    assert 7 <= statistics.mean(headlines) <= 9
    assert statistics.stdev(articles) > 4, "articles of one length teach nothing about length"
    assert min(headlines) >= 3


def test_few_pairs_and_headlines_repeat(train):
    pairs_twice = 100 * (1 - len(set(train)) / len(train))
    headlines_twice = 100 * (1 - len({headline for _, headline in train}) / len(train))
    print(f"\nof 50,000 train pairs repeat {pairs_twice:.2f} %, of their headlines {headlines_twice:.2f} %")
    assert pairs_twice < 1
    assert headlines_twice < 2


def test_no_headline_is_in_two_splits(train, validation):
    headlines = {"train": {h for _, h in train}, "validation": {h for _, h in validation}}
    headlines["test"] = {h for _, h in pairs("test", 500)}
    headlines["train of another seed"] = {h for _, h in pairs("train", 5_000, seed=1)}
    assert not headlines["train"] & headlines["validation"]
    assert not headlines["test"] & (headlines["train"] | headlines["validation"])
    assert not headlines["train of another seed"] & (headlines["validation"] | headlines["test"])


def test_vocabulary_is_small_and_each_word_is_seen(train):
    counts = Counter(word for texts in train for text in texts for word in text.split())
    rare = sum(count < 10 for count in counts.values())
    print(f"\nword forms in 50,000 train pairs: {len(counts)}, of them {rare} seen less than 10 times")
    assert len(counts) <= 3_000
    assert rare <= 0.01 * len(counts)


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


def test_the_nearest_training_headline_is_a_poor_answer(train, validation):
    train, validation = train[:20_000], validation[:200]
    words = dict.fromkeys(word for article, _ in train for word in article.split())
    column = {word: number for number, word in enumerate(words)}
    known, idf = tfidf([article for article, _ in train], column)
    asked, _ = tfidf([article for article, _ in validation], column, idf)
    nearest = (asked @ known.T).argmax(axis=1)
    score = rouge1([h for _, h in validation], [train[number][1] for number in nearest])
    print(f"\nROUGE-1 of the headline of the nearest of 20,000 training articles: {score:.1f}")
    assert score < 50, "a model that only recalls event kinds would look good"


def test_every_text_is_in_gigaword_form(train, validation):
    for texts in train + validation:
        for text in texts:
            assert FORM.fullmatch(text), text
    for article, headline in validation:
        assert article.endswith(" .") and article.count(" . ") == 0, article
        assert not headline.endswith("."), headline
        assert not re.search(r"\w's|\w[,:;]|, [,.]|\{|%", article + headline), (article, headline)


def test_every_event_kind_appears():
    assert len(EVENT_KINDS) == len(set(EVENT_KINDS)) >= 40
    seen = Counter(story("train", index).event for index in range(5_000))
    assert set(seen) == set(EVENT_KINDS)
    print(f"\n{len(seen)} event kinds, in 5,000 pairs the rarest {min(seen.values())} times")
    assert min(seen.values()) > 20


def test_the_first_200_pairs_are_pinned():
    text = "\n".join("\t".join(texts) for texts in pairs("train", 200))
    assert hashlib.sha256(text.encode()).hexdigest() == FIRST_200_SHA256


def test_a_pair_depends_on_its_arguments_only():
    forwards = [pair("train", index) for index in range(50)]
    backwards = [pair("train", index) for index in reversed(range(50))][::-1]
    assert forwards == backwards == list(pairs("train", 50))
    assert forwards[7] == story("train", 7)[1:]
    others = [pair("train", 7, seed=1), pair("train", 8), pair("validation", 7), pair("test", 7)]
    assert len({forwards[7], *others}) == 5


@pytest.mark.parametrize("split", ["valid", "", "Train", None])
def test_a_wrong_split_lists_the_right_ones(split):
    with pytest.raises(ValueError, match=r"allowed: train, validation, test"):
        pair(split, 0)
    assert SPLITS == ("train", "validation", "test")


@pytest.mark.parametrize("bad", [{"index": -1}, {"index": 1.0}, {"seed": -1}, {"seed": "0"}, {"seed": True}])
def test_a_wrong_index_or_seed_is_refused(bad):
    with pytest.raises(ValueError, match=rf"{next(iter(bad))}=.*allowed: integers >= 0"):
        pair("train", **{"index": 0, **bad})


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
