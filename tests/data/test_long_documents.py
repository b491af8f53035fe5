"""Sources of long documents: the built-in chronicles, folders of texts, and chapters of novels."""

import hashlib
import re
import zlib
from pathlib import Path

import pytest

from attnorm.data.sources.base import DOCUMENTS, GROUPED_DOCUMENTS, LABELLED, LABELLED_DOCUMENTS, PAIRS
from attnorm.data.sources.chronicles import Chronicles
from attnorm.data.sources.folders import Folders
from attnorm.data.synthetic.chronicles import chronicle
from attnorm.experiments.causal_lm.chapters import Chapters

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


# ------------------------------------------------------------------------------------------------------------- folders


def text_of(word, count):
    return " ".join([word] * count)


@pytest.fixture
def library(tmp_path):
    """Two files, and one in a subfolder: headings, and paragraphs of two lines."""
    (tmp_path / "more").mkdir()
    (tmp_path / "first.txt").write_text(f"A title\n\n{text_of('one', 20)}\nand\n \n\n{text_of('two', 30)}\n")
    (tmp_path / "more" / "second.txt").write_text(f"{text_of('three', 25)}\n\n{text_of('four', 25)}\n")
    (tmp_path / "third.txt").write_text(f"{text_of('five', 40)}\n")
    (tmp_path / ".hidden").write_text("hidden\n")
    return tmp_path


def rows(source, split):
    return [(" ".join(text.split()), group, label) for text, group, label in source.rows(split)]


ONE, TWO, THREE, FOUR, FIVE = map(text_of, ("one", "two", "three", "four", "five"), (20, 30, 25, 25, 40))
IN_FIRST, IN_SECOND, IN_THIRD = ("first.txt", "first"), ("more/second.txt", "more"), ("third.txt", "third")
UNITS = {
    "line": [("A title", *IN_FIRST), (ONE, *IN_FIRST), ("and", *IN_FIRST), (TWO, *IN_FIRST)],
    "paragraph": [("A title", *IN_FIRST), (f"{ONE} and", *IN_FIRST), (TWO, *IN_FIRST)],
    "file": [(f"A title {ONE} and {TWO}", *IN_FIRST)],
}
OF_SECOND = {"file": [(f"{THREE} {FOUR}", *IN_SECOND)]}


@pytest.mark.parametrize("document", UNITS)
def test_the_documents_of_a_file_are_a_group_and_their_label_is_its_folder_or_its_name(library, document):
    source = Folders(folder=str(library), document=document, validation=["third*"])
    assert (
        source.check() == []
        and source.splits == ("train", "validation")
        and source.labels == ["first", "more", "third"]
    )
    second = OF_SECOND.get(document, [(THREE, *IN_SECOND), (FOUR, *IN_SECOND)])
    assert rows(source, "train") == UNITS[document] + second
    assert rows(source, "validation") == [(FIVE, *IN_THIRD)]
    longer = Folders(folder=str(library), document=document, validation=["third*"], words=5)
    assert rows(longer, "train") == [row for row in UNITS[document] + second if len(row[0].split()) >= 5]


def test_documents_are_held_out_evenly_if_no_file_is_named(library):
    source = Folders(folder=str(library), document="paragraph", words=10, test=["third*"], holdout=0.25)
    assert source.splits == ("train", "validation", "test") and source.check(source.splits) == []
    assert [group for _, group, _ in source.rows("train")] == ["first.txt", "more/second.txt", "more/second.txt"]
    assert [group for _, group, _ in source.rows("validation")] == ["first.txt"]  # the second of four paragraphs
    assert [group for _, group, _ in source.rows("test")] == ["third.txt"]


def test_documents_with_further_columns_can_be_used_as_documents():
    assert LABELLED_DOCUMENTS.has(DOCUMENTS) and LABELLED_DOCUMENTS.has(GROUPED_DOCUMENTS) and DOCUMENTS.has(DOCUMENTS)
    assert not DOCUMENTS.has(GROUPED_DOCUMENTS) and not GROUPED_DOCUMENTS.has(PAIRS) and not LABELLED.has(DOCUMENTS)
    assert not GROUPED_DOCUMENTS.has(LABELLED_DOCUMENTS)


@pytest.mark.parametrize(("make", "option"), [(Folders, {"document": "line"}), (Chapters, {"chapter": "two"})])
def test_a_fingerprint_depends_on_the_content_and_the_settings(library, make, option):
    def fingerprint(**options):
        return make(folder=str(library), **options).fingerprint("train")

    before = [
        fingerprint(),
        *(fingerprint(**it) for it in (option, {"words": 9}, {"holdout": 0.5}, {"test": ["third*"]})),
    ]
    assert len(set(before)) == 5
    (library / "third.txt").write_text("changed " * 20)
    assert fingerprint() != before[0] and fingerprint(test=["third*"]) == before[4]
    (library / "more" / "second.txt").rename(library / "more" / "fourth.txt")
    assert fingerprint(test=["third*"]) != before[4]  # the cached rows have the names of the groups


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"folder": "nowhere"}, "data.folder=nowhere: no such folder"),
        ({"test": ["fourth*"]}, "data.test=fourth*: no file has such a name; there are first.txt"),
        ({"validation": ["f*"], "test": ["first.txt"]}, "also in data.validation: first.txt"),
        ({"validation": ["*"]}, "no file is left for the train split"),
        ({"holdout": 0.0}, "the validation split is asked for; name its files, or set data.holdout above 0"),
        ({"encoding": "none"}, "data.encoding=none: not a text encoding of Python"),
    ],
)
def test_what_cannot_be_read_is_refused_before(library, options, problem):
    actual = Folders(**{"folder": str(library), **options}).check()
    assert any(problem in item for item in actual), actual


# ------------------------------------------------------------------------------------------------------------ chapters


def test_each_chapter_of_a_novel_is_a_document(tmp_path):
    front, chapters = "A title\n\nCHAPTER I\nCHAPTER II\n", [text_of("one", 20), text_of("two", 30)]
    first = f"{front}\nCHAPTER I\n{chapters[0]}\n\nChapter 2: The Storm\n{chapters[1]}\na chapter of it\n"
    (tmp_path / "first.txt").write_text(first)
    (tmp_path / "second.txt").write_text(f"I\n{text_of('three', 25)}\nII.\n{text_of('four', 25)}\n")
    (tmp_path / "third.txt").write_text(f"Chapter One\n{text_of('five', 40)}\n")
    novels = Chapters(folder=str(tmp_path), words=10, validation=["second.txt"], test=["third*"])
    assert novels.check(("train", "validation", "test")) == []
    assert rows(novels, "train") == [
        (f"CHAPTER I {text_of('one', 20)}", *IN_FIRST),
        (f"Chapter 2: The Storm {text_of('two', 30)} a chapter of it", *IN_FIRST),
    ]
    second = ("second.txt", "second")
    assert rows(novels, "validation") == [(f"I {THREE}", *second), (f"II. {FOUR}", *second)]
    assert rows(novels, "test") == [(f"Chapter One {FIVE}", *IN_THIRD)]
    [problem] = Chapters(folder=str(tmp_path), chapter="(").check()
    assert problem.startswith("data.chapter=(: not a regular expression")


def test_the_novels_are_split_into_their_chapters():
    if not NOVELS.is_dir():
        pytest.skip("needs the novels in ../shared/data/text/novels")
    source = Chapters(folder=str(NOVELS), test=["Doyle_*", "Stevenson_*"])
    assert source.check(("train", "validation", "test")) == []
    assert len(rows(source, "test")) == 15 + 35 and len(rows(source, "train")) > 300
