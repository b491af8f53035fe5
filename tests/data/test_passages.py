"""Passages of long texts: sentences by hand, contiguous parts, and the distance between those of different splits."""

import itertools
import re
from pathlib import Path

import pytest

from attnorm.data.sentences import split_sentences
from attnorm.experiments.hierarchical.passages import Passages, masked

NOVELS = Path(__file__).parents[3] / "shared/data/text/novels"
SPLITS = ("train", "validation", "test")


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("", []),
        ("No end", ["No end"]),
        ("One. Two!  Three?\nFour", ["One.", "Two!", "Three?", "Four"]),
        ('"Is it?" he said. "Yes."', ['"Is it?" he said.', '"Yes."']),
        ("Mr. and Mrs. Smith met St. John J. Rivers.", ["Mr. and Mrs. Smith met St. John J. Rivers."]),
        ("He left (at last!). She stayed.", ["He left (at last!).", "She stayed."]),
        ("all small. no capitals here", ["all small.", "no capitals here"]),
        ("It cost 3.50 in all. 'Why?' he asked.", ["It cost 3.50 in all.", "'Why?' he asked."]),
    ],
)
def test_sentences(text, sentences):
    assert split_sentences(text) == sentences


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("When Tom met Anna, they sang.", "When <unk> met <unk> , they sang."),
        ('"Yes," said Mr. Rochester\'s son; "I am Jane."', '"Yes," said Mr. <unk> son; "I am <unk> ."'),
        ("Then I'm off. Tomorrow never comes to London!", "Then I'm off. Tomorrow never comes to <unk> !"),
        ("", ""),
    ],
)
def test_names_are_masked_within_sentences(sentence, expected):
    assert masked(sentence) == expected


@pytest.fixture
def folder(tmp_path):
    """Three texts whose words are their own numbers, in sentences of 3 to 9 words and paragraphs of 4 sentences."""
    for number, (name, count) in enumerate((("a", 2000), ("b", 1500), ("c.long", 2600))):
        lengths, words, lines = itertools.cycle((3, 9, 5, 4, 7)), iter(range(count)), []
        for sentence in range(count):
            found = [f"{name[0]}{word}" for word in itertools.islice(words, next(lengths))]
            lines += [" ".join(found).capitalize() + "."] * bool(found) + [""] * (sentence % 4 == number)
        (tmp_path / f"{name}.txt").write_text("\n".join(lines))
    (tmp_path / ".hidden").write_text("x")
    return tmp_path


OPTIONS = {"words": 40, "parts": 10, "validation": [2, 3, 7], "test": [9], "gap": 25}


def numbers(passage):
    return [int(word) for word in re.findall(r"[A-Za-z](\d+)", passage)]


def rows(source):
    return {split: list(source.rows(split)) for split in SPLITS}


def test_passages_are_consecutive_whole_sentences_of_at_least_the_length(folder):
    source = Passages(folder=str(folder), **OPTIONS)
    assert source.check(SPLITS) == [] and source.splits == SPLITS and source.labels == ("a", "b", "c")
    for split, result in rows(source).items():
        assert {label for _, _, label, _ in result} == {"a", "b", "c"}
        for passage, part, label, name in result:
            places = numbers(passage)
            assert places == list(range(places[0], places[0] + len(places))) and 40 <= len(places) < 40 + 9
            assert passage[0].isupper() and passage.endswith(".") and passage[0].lower() == label == name[0]
            assert name.startswith(f"{part}-") and part.startswith(f"{label}-")
            assert (int(part.split("-")[1]) in {"train": {0, 1, 4, 5, 6, 8}}.get(split, OPTIONS.get(split))) is True


@pytest.mark.parametrize("gap", [0, 25, 60])
def test_passages_of_different_splits_are_at_least_the_gap_apart(folder, gap):
    actual = rows(Passages(folder=str(folder), **{**OPTIONS, "gap": gap}))
    for label in "abc":
        spans = {split: [numbers(it[0]) for it in actual[split] if it[2] == label] for split in SPLITS}
        for one, other in itertools.permutations(SPLITS, 2):
            apart = [max(b[0] - a[-1], a[0] - b[-1]) - 1 for a in spans[one] for b in spans[other]]
            assert min(apart) >= gap
        words = [word for split in SPLITS for span in spans[split] for word in span]
        assert len(words) == len(set(words))  # no word twice


def test_the_first_rows_have_all_labels(folder):
    source = Passages(folder=str(folder), **OPTIONS)
    first = [label for _, _, label, _ in itertools.islice(source.rows("train"), 9)]
    assert first == ["a", "b", "c"] * 3
    assert len(list(source.rows("train"))) == sum(
        len(list(source.rows_of(path, label, "train"))) for path, label in zip(source.paths, source.labels, strict=True)
    )


def test_names_are_masked_if_asked(folder):
    (folder / "a.txt").write_text(" ".join(["Once Tom Smith went to Rome for a day."] * 100))
    source = Passages(folder=str(folder), **OPTIONS, mask_names=True)
    passage = next(entry[0] for entry in source.rows("train") if entry[2] == "a")
    assert passage.startswith("Once <unk> <unk> went to <unk> for a day. Once")


def test_what_cannot_work_is_refused(folder):
    def problems(**options):
        return Passages(**{"folder": str(folder), **OPTIONS, **options}).check(SPLITS)

    assert problems(folder=f"{folder}/nothing") == [f"data.folder={folder}/nothing: no such folder"]
    assert problems(validation=[10]) == ["data.validation=[10]: allowed: numbers from 0 to 9"]
    assert problems(test=[]) == ["data.test=[]: the test split is asked for; name its parts"]
    assert problems(test=[2]) == ["data.test=[2]: part 2 is in validation, too"]
    assert problems(parts=2, validation=[0], test=[1]) == ["data.parts=2: leaves no part for train"]
    (folder / "a.md").write_text("words")
    assert problems() == [f"data.folder={folder}: two files have the same name"]
    for name in ("a.md", "a.txt", "b.txt"):
        (folder / name).unlink()
    assert problems() == [f"data.folder={folder}: needs at least two files, one per label"]


def test_every_option_and_byte_changes_the_fingerprint(folder):
    made = [{}, {"words": 41}, {"gap": 26}, {"validation": [2]}, {"mask_names": True}, {"parts": 11}]
    prints = {Passages(folder=str(folder), **{**OPTIONS, **item}).fingerprint("train") for item in made}
    (folder / "a.txt").write_text("Other words. " * 100)
    prints.add(Passages(folder=str(folder), **OPTIONS).fingerprint("train"))
    assert len(prints) == len(made) + 1


@pytest.mark.skipif(not NOVELS.is_dir(), reason=f"{NOVELS} is absent")
def test_passages_of_a_real_novel_are_its_text():
    source = Passages(folder=str(NOVELS), words=100, test=[5])
    path = next(it for it in source.paths if "Doyle" in it.name)
    text = " ".join(path.read_text(encoding="utf-8-sig").split())
    for split, share in {"train": 0.75, "validation": 0.2, "test": 0.05}.items():
        outcome = [passage for passage, *_ in source.rows_of(path, "Doyle", split)]
        assert all(passage in text for passage in outcome)
        words = sum(len(passage.split()) for passage in outcome) / len(text.split())
        assert share - 0.03 < words < share + 0.01  # the gaps, and rests of less than a passage, are left out
