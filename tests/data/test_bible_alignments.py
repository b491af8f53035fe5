"""Verses and their alignments: rows, links and splits, on a stand-in for the package and, if installed, on itself."""

import importlib
import json
import re
from importlib.metadata import PackageNotFoundError, distribution

import pytest
from builders import build_source

from attnorm.errors import DataError
from attnorm.experiments.alignments.bible_alignments import RECORDS, SOURCE, TARGET, read_verses

CHAPTERS = [(40, 1), (41, 1), *((43, chapter) for chapter in range(1, 10)), *((44, chapter) for chapter in range(1, 9))]
ENGLISH = ["In", "the", "beginning", ",", "He"]
EXCLUDED = {","}


def write_package(site, chapters=CHAPTERS, verses=2):
    """The files of the package with `verses` verses per chapter, of which the words are named after their verse."""
    source, target, records = ["id\taltId\ttext"], ["id\tsource_verse\ttext\tskip_space_after\texclude"], []
    for book, chapter in chapters:
        for number in range(1, verses + 1):
            verse = f"{book:02}{chapter:03}{number:03}"
            source += [f"n{verse}{word:03}\t-\tλ{verse}" for word in (1, 2, 3)]
            words = enumerate(ENGLISH, 1)
            target += [f"{verse}{at:03}\t{verse}\t{word}\t\t{'y' if word in EXCLUDED else ''}" for at, word in words]
            records += [
                {"source": [f"n{verse}001"], "target": [f"{verse}001", f"{verse}002"]},
                {"source": [f"n{verse}002", f"n{verse}003"], "target": [f"{verse}005"]},
            ]
    write(site, source, target, records)
    information = site / "bible_alignments-0.0.dist-info/METADATA"
    information.parent.mkdir()
    information.write_text("Metadata-Version: 2.1\nName: bible-alignments\nVersion: 0.0\n")


def write(site, source, target, records):
    for name, text in ((SOURCE, source), (TARGET, target), (RECORDS, None)):
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        content = json.dumps({"records": records}) if text is None else "\n".join(text) + "\n"
        (site / name).write_text(content, encoding="utf-8")
    return [site / name for name in (SOURCE, TARGET, RECORDS)]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package bible-alignments with a few verses in each of 19 chapters."""
    write_package(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    return tmp_path


def test_rows_have_the_words_that_can_be_aligned(package):
    source = build_source("bible_alignments")
    assert source.schema.name == "parallel" and source.splits == ("train", "validation", "test")
    assert source.check(source.splits) == []
    assert next(source.rows("train")) == (" ".join(["λ40001001"] * 3), "In the beginning He")
    # He is word 3 without the comma
    assert source.links("train")[0] == {(0, 0), (0, 1), (1, 3), (2, 3)}
    for split in source.splits:
        assert len(source.links(split)) == len(list(source.rows(split))) == len(source.verses(split))


def test_splits_are_chapters_outside_the_synoptic_gospels(package):
    source = build_source("bible_alignments")
    chapters = {split: sorted({verse.chapter for verse in source.verses(split)}) for split in source.splits}
    # 17 chapters of books 43 and 44, counted from 0: 43001 is 0, 43009 is 8, 44001 is 9
    assert chapters["validation"] == ["43004", "44003"]
    assert chapters["test"] == ["43008", "44007"]
    assert len(chapters["train"]) == 15 and {"40001", "41001"} < {*chapters["train"]}
    rows = [row for split in source.splits for row in source.rows(split)]
    assert len({*rows}) == 2 * len(CHAPTERS)


def test_the_fingerprint_depends_on_the_split_and_on_the_links(package):
    source = build_source("bible_alignments")
    before = [source.fingerprint(split) for split in source.splits]
    assert len({*before}) == 3
    (package / RECORDS).write_text(json.dumps({"records": []}))
    assert not {*before} & {source.fingerprint(split) for split in source.splits}


def test_links_between_verses_and_verses_without_links_are_left_out(tmp_path):
    source = ["id\ttext", *(f"n4300100{verse}001\tλ" for verse in (1, 2, 3, 4))]
    target = ["id\tsource_verse\ttext\texclude"]
    # the last English word is numbered as verse 2, but translates verse 1
    target += ["43001001001\t43001001\tone\t", "43001002001\t43001001\tmore\t", "43001002002\t43001002\ttwo\t"]
    target += ["43001003001\t43001003\tthree\t"]
    records = [
        {"source": ["n43001001001"], "target": ["43001001001", "43001002001", "43001002002"]},
        {"source": ["n43001003001", "n43001002001"], "target": ["43001002002"]},
    ]
    verses = read_verses(*write(tmp_path, source, target, records))
    assert [(verse.id, verse.target, set(verse.links)) for verse in verses] == [
        ("43001001", ("one", "more"), {(0, 0), (0, 1)}),
        ("43001002", ("two",), {(0, 0)}),
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (SOURCE, "id\tword\n", "SBLGNT.tsv: has no column text"),
        (TARGET, "id\tsource_verse\ttext\texclude\n43\t43\ta\n", "nt_BSB.tsv, line 2: must have 4 cells"),
        (RECORDS, "{", "manual.json: cannot be read"),
        (RECORDS, '{"records": [{"source": ["n1"], "target": ["2"]}]}', "a record lacks 'n1', or names a word"),
        (RECORDS, "[]", "manual.json: a record lacks"),
    ],
)
def test_files_of_another_format_are_refused(package, name, content, message):
    (package / name).write_text(content)
    with pytest.raises(DataError, match=re.escape(message)):
        list(build_source("bible_alignments").rows("train"))


def test_a_missing_package_names_the_extra(monkeypatch):
    def absent(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr("attnorm.experiments.alignments.bible_alignments.distribution", absent)
    source = build_source("bible_alignments")
    [problem] = source.check()
    assert problem.startswith("data=bible_alignments: the package bible-alignments is not installed; ")
    assert "pip install bible-alignments, or only its files" in problem
    with pytest.raises(DataError, match="is not installed"):
        list(source.rows("train"))


def test_the_package_itself():
    try:
        distribution("bible-alignments")
    except PackageNotFoundError:
        pytest.skip("the package bible-alignments is not installed")
    source = build_source("bible_alignments")
    verses = {split: source.verses(split) for split in source.splits}
    assert [len(actual) for actual in verses.values()] == [6550, 709, 660]
    chapters = [{verse.chapter for verse in actual} for actual in verses.values()]
    assert [len(actual) for actual in chapters] == [212, 24, 24] and len(set.union(*chapters)) == 260
    [john] = [verse for verse in verses["train"] if verse.id == "43003016"]
    pairs = {(john.source[s], john.target[t]) for s, t in john.links}
    assert {("γὰρ", "For"), ("ἠγάπησεν", "loved"), ("κόσμον", "world"), ("ζωὴν", "life")} <= pairs
