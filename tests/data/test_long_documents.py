"""Sources of long documents: the built-in chronicles, and books that are split into chapters."""

import hashlib
import re
import zlib
from pathlib import Path

import pytest

from attnorm.data.sources.base import DOCUMENTS, GROUPED_DOCUMENTS, LABELLED, PAIRS
from attnorm.data.sources.books import Books
from attnorm.data.sources.chronicles import Chronicles
from attnorm.data.synthetic.chronicles import chronicle

FIRST_20_SHA256 = "6e99690546b14d09fa424bacc84891cf23aea54642a20dd8f1f17953ae436fd0"
NOVELS = Path(__file__).parents[2] / "../shared/data/text/novels"


# ---------------------------------------------------------------------------------------------------------- chronicles


def test_the_corpus_is_frozen():
    texts = "\n\n".join(chronicle(split, index) for split in ("train", "test") for index in range(10))
    assert hashlib.sha256(texts.encode()).hexdigest() == FIRST_20_SHA256


def test_a_document_is_a_function_of_its_split_number_and_seed():
    source = Chronicles(train_size=3, valid_size=2, words=500, corpus_seed=4)
    assert [text for (text,) in source.rows("train")] == [chronicle("train", index, 4, 500) for index in range(3)]
    different = {
        chronicle(*which, 500) for which in [("train", 0, 0), ("train", 1, 0), ("test", 0, 0), ("train", 0, 1)]
    }
    assert len(different) == 4
    assert source.fingerprint("train") != Chronicles(train_size=3, words=501, corpus_seed=4).fingerprint("train")


def test_a_shorter_document_is_the_beginning_of_a_longer_one():
    short, long = chronicle("train", 5, length=800), chronicle("train", 5, length=3000)
    assert long.startswith(short) and len(short.split()) >= 800 and len(long.split()) >= 3000


def test_facts_that_a_document_states_first_hold_to_its_end():
    _, introduction, _, *days = chronicle("validation", 2, length=20_000).split("\n")
    told = set(re.findall(r"(\w+), the (\w+) from (\w+), met", " ".join(days)))
    assert len(told) > 10 and len({name for name, _, _ in told}) == len(told)
    sentences = introduction.split(". ")
    for facts in told:
        assert any(all(fact in entry for fact in facts) for entry in sentences), facts


def test_a_thing_belongs_to_the_person_who_got_it_last():
    owners, known = {}, 0
    for sentence in re.split(r"(?<=\.)\s", chronicle("train", 7)):
        if match := re.fullmatch(r"(?:It was )?(\w+) (?:who had|owned) the (\w+ \w+)\.", sentence):
            owners[match[2]] = match[1]
        elif match := re.fullmatch(r"The (\w+ \w+) belonged to (\w+)\.", sentence):
            owners[match[1]] = match[2]
        elif match := re.fullmatch(r"(\w+) gave the (\w+ \w+) to (\w+)\.", sentence):
            assert owners[match[2]] == match[1]
            owners[match[2]] = match[3]
        elif match := re.fullmatch(r"(\w+) (?:won|paid ten coins to \w+ for) the (\w+ \w+)( from .*)?\.", sentence):
            owners[match[2]] = match[1]
        elif match := re.fullmatch(r"\w+ lost the (\w+ \w+), and (\w+) found it and kept it\.", sentence):
            owners[match[1]] = match[2]
        elif match := re.fullmatch(r"(\w+) still had the (\w+ \w+)\.", sentence):
            assert owners[match[2]] == match[1]
            known += 1
    assert known > 5


def compressed(text, window):
    """The bytes of a text after Lempel-Ziv coding with a window of 2 ** window bytes."""
    coder = zlib.compressobj(9, zlib.DEFLATED, window)
    return len(coder.compress(text.encode()) + coder.flush())


def test_distant_context_helps():
    text = chronicle("train", 3)
    sentences = [re.split(r"(?<=\.)\s", chronicle("train", index, length=900))[-20:] for index in range(60)]
    mixed = " ".join(sentence for several in zip(*sentences, strict=True) for sentence in several)[: len(text)]
    far, near, control = compressed(text, 15), compressed(text, 11), compressed(mixed, 15)
    print(f"{len(text):,} bytes: {near:,} with a window of 2 kB, {far:,} with 32 kB; other documents: {control:,}")
    assert far < 0.8 * near  # repetitions more than 2 kB back
    assert far < 0.8 * control  # which are of this document, not of all


# --------------------------------------------------------------------------------------------------------------- books


def text_of(word, count):
    return " ".join([word] * count)


@pytest.fixture
def library(tmp_path):
    (tmp_path / "more").mkdir()
    front, chapters = "A title\n\nCHAPTER I\nCHAPTER II\n", [text_of("one", 20), text_of("two", 30)]
    first = f"{front}\nCHAPTER I\n{chapters[0]}\n\nChapter 2: The Storm\n{chapters[1]}\na chapter of it\n"
    (tmp_path / "first.txt").write_text(first)
    (tmp_path / "more" / "second.txt").write_text(f"I\n{text_of('three', 25)}\nII.\n{text_of('four', 25)}\n")
    (tmp_path / "third.txt").write_text(f"Chapter One\n{text_of('five', 40)}\n")
    (tmp_path / ".hidden").write_text("hidden\n")
    return tmp_path


def rows(source, split):
    return [" ".join(text.split()) for text, *_ in source.rows(split)]


def test_each_chapter_is_a_document(library):
    source = Books(folder=str(library), words=10, test=["third*"])
    assert source.check(("train", "validation", "test")) == [] and source.splits == ("train", "validation", "test")
    documents = [
        f"CHAPTER I {text_of('one', 20)}",
        f"Chapter 2: The Storm {text_of('two', 30)} a chapter of it",
        f"I {text_of('three', 25)}",
        f"II. {text_of('four', 25)}",
    ]
    whole = Books(folder=str(library), words=10, test=["third*"], validation=["second.txt"])
    assert rows(whole, "train") == documents[:2] and rows(whole, "validation") == documents[2:]
    assert rows(source, "test") == [f"Chapter One {text_of('five', 40)}"]
    held_out = Books(folder=str(library), words=10, test=["third*"], holdout=0.25)
    assert sorted(rows(held_out, "train") + rows(held_out, "validation")) == sorted(documents)
    assert len(rows(held_out, "validation")) == 1


def test_the_documents_of_a_file_are_a_group(library):
    def groups(split, **options):
        return [name for _, name in Books(folder=str(library), words=10, test=["third*"], **options).rows(split)]

    second = "more/second.txt"
    assert groups("train", holdout=0.25) == ["first.txt", second, second]
    assert groups("validation", holdout=0.25) == ["first.txt"]  # the second of the four chapters
    assert groups("test") == ["third.txt"]
    assert groups("train", chapter=None, validation=["first*"]) == [second]
    before = Books(folder=str(library)).fingerprint("train")
    (library / "more" / "second.txt").rename(library / "more" / "fourth.txt")
    assert Books(folder=str(library)).fingerprint("train") != before  # the cached rows have the names of the groups


def test_documents_with_a_group_can_be_used_as_documents():
    assert GROUPED_DOCUMENTS.has(DOCUMENTS) and DOCUMENTS.has(DOCUMENTS)
    assert not DOCUMENTS.has(GROUPED_DOCUMENTS) and not GROUPED_DOCUMENTS.has(PAIRS) and not LABELLED.has(DOCUMENTS)


def test_without_a_pattern_each_file_is_a_document(library):
    source = Books(folder=str(library), chapter=None, words=1, validation=["third.txt"])
    assert [text.split()[:2] for text in rows(source, "train")] == [["A", "title"], ["I", "three"]]
    assert len(rows(source, "validation")) == 1


def test_a_fingerprint_depends_on_the_content_and_the_settings(library):
    def fingerprint(**options):
        return Books(folder=str(library), words=10, **options).fingerprint("train")

    before = [fingerprint(), fingerprint(chapter="two"), fingerprint(holdout=0.5), fingerprint(validation=["third*"])]
    assert len(set(before)) == 4
    (library / "third.txt").write_text("changed " * 20)
    assert fingerprint() != before[0] and fingerprint(validation=["third*"]) == before[3]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"folder": "nowhere"}, "data.folder=nowhere: no such folder"),
        ({"chapter": "("}, "data.chapter=(: not a regular expression"),
        ({"test": ["fourth*"]}, "data.test=fourth*: no file has such a name; there are first.txt"),
        ({"validation": ["f*"], "test": ["first.txt"]}, "also in data.validation: first.txt"),
        ({"validation": ["*"]}, "no book is left for the train split"),
        ({"holdout": 0.0}, "the validation split is asked for; name its books, or set data.holdout above 0"),
        ({"encoding": "none"}, "data.encoding=none: not a text encoding of Python"),
    ],
)
def test_what_cannot_be_read_is_refused_before(library, options, problem):
    actual = Books(**{"folder": str(library), **options}).check()
    assert any(problem in item for item in actual), actual


def test_the_novels_are_split_into_their_chapters():
    if not NOVELS.is_dir():
        pytest.skip("needs the novels in ../shared/data/text/novels")
    source = Books(folder=str(NOVELS), test=["Doyle_*", "Stevenson_*"])
    assert source.check(("train", "validation", "test")) == []
    assert len(rows(source, "test")) == 15 + 35 and len(rows(source, "train")) > 300
