"""Parallel corpora: the built-in one is frozen and its splits are disjoint; Moses files are read and checked."""

import gzip
import hashlib

import pytest
from builders import build_source

from attnorm.data.synthetic.phrases import KELVAN, NAMES, SPLITS, sentence_pair
from attnorm.errors import DataError

FIRST_200_SHA256 = "d45510e5069bee48f680a713ff20fa16547b46d5645f38022df8ed7a3177222a"


def test_the_corpus_is_frozen():
    """A change of the generator would make runs incomparable with earlier ones."""
    text = "\n".join("\t".join(sentence_pair(split, index)) for split in SPLITS for index in range(200))
    assert hashlib.sha256(text.encode()).hexdigest() == FIRST_200_SHA256


def test_no_sentence_is_in_two_splits_and_few_are_repeated():
    sentences = {split: {sentence_pair(split, index)[1] for index in range(300)} for split in SPLITS}
    assert all(len(result) > 297 for result in sentences.values())
    assert not sentences["train"] & (sentences["validation"] | sentences["test"])
    assert not sentences["validation"] & sentences["test"]
    assert sentence_pair("train", 0) == sentence_pair("train", 0, 0) != sentence_pair("train", 0, 1)  # another seed


def test_every_name_is_copied_and_the_orders_differ():
    crossing = 0
    for index in range(300):
        kelvan, english = (text.split() for text in sentence_pair("train", index))
        assert kelvan[-1] == english[-1] == "."
        assert {*kelvan} & {*NAMES} == {*english} & {*NAMES}
        assert len(kelvan) <= len(english) <= 3 * len(kelvan)  # endings and compounds have words of their own
        places = [kelvan.index(KELVAN[word]) for word in english if KELVAN.get(word) in kelvan]
        crossing += places != sorted(places)
    assert crossing > 150  # of two words whose Kelvan form stands there without an ending, one is behind the other


# --------------------------------------------------------------------------------------------------------------- files


def moses(folder, **options):
    settings = {"dir": str(folder), "source_language": "de", "target_language": "en"}
    return build_source("parallel_files", **settings | options)


@pytest.fixture
def corpus(tmp_path):
    (tmp_path / "train.de").write_text("ein Hund\nzwei Katzen\n")
    (tmp_path / "train.en").write_text("a dog\ntwo cats\n")
    with gzip.open(tmp_path / "valid.de.gz", "wt") as file:
        file.write("ein Haus\n")
    (tmp_path / "valid.en").write_text("a house\n")
    return tmp_path


def test_pairs_are_read_in_both_directions_plain_or_packed(corpus):
    source = moses(corpus)
    assert source.check() == [] and source.splits == ("train", "validation")
    assert list(source.rows("train")) == [("ein Hund", "a dog"), ("zwei Katzen", "two cats")]
    assert list(source.rows("validation")) == [("ein Haus", "a house")]
    back = moses(corpus, source_language="en", target_language="de")
    assert list(back.rows("train")) == [("a dog", "ein Hund"), ("two cats", "zwei Katzen")]
    assert back.fingerprint("train") != source.fingerprint("train")


@pytest.mark.parametrize("name", ["val", "dev", "validation"])
def test_validation_files_may_have_any_of_the_usual_names(corpus, name):
    fingerprint = moses(corpus).fingerprint("validation")
    for file in list(corpus.glob("valid.*")):
        file.rename(file.with_name(file.name.replace("valid.", f"{name}.")))
    source = moses(corpus)
    assert source.check() == [] and list(source.rows("validation")) == [("ein Haus", "a house")]
    assert source.fingerprint("validation") == fingerprint
    assert any("valid.de" in item for item in moses(corpus, validation="valid").check())
    for ending in ("de", "en"):
        (corpus / f"valid.{ending}").write_text("x\n")
    [problem] = moses(corpus).check()
    assert f"valid and {name} all name validation files there; type data.validation=" in problem
    assert moses(corpus, validation="valid").check() == moses(corpus).check(["train"]) == []


def test_files_of_different_lengths_are_refused(corpus):
    (corpus / "train.en").write_text("a dog\n")
    with pytest.raises(DataError, match=r"train.de has 2 lines but train.en has 1"):
        next(moses(corpus).rows("train"))


def test_marked_up_files_are_not_taken_for_sentences(corpus):
    for name in ("valid.de.gz", "valid.en"):
        (corpus / name).unlink()
    (corpus / "newstest-ref.en.sgm").write_text("<seg id=1>A dog.</seg>\n")
    said = "newstest-ref.en.sgm: SGML is not read; write one sentence per line"
    assert moses(corpus).check()[-1] == f"data.dir={corpus}: {said}"
    assert moses(corpus, validation="newstest").check()[-1] == f"data.dir={corpus}: {said}"
    assert moses(corpus, validation="train").check() == []


@pytest.mark.parametrize(
    "options, problem",
    [
        ({"dir": "nowhere"}, "data.dir=nowhere: no such folder"),
        ({"target_language": "de"}, "data.target_language=de: must differ"),
        ({"source_language": "fr"}, "train.fr"),
        ({"source_language": "fr", "target_language": "es"}, "no validation files; expected valid, val, dev, "),
    ],
)
def test_problems_are_found_before_anything_is_read(corpus, options, problem):
    actual = moses(corpus, **options).check()
    assert any(problem in str(entry) for entry in actual), actual
    assert any("data.test=null" in entry for entry in moses(corpus).check(["test"]))
