"""The New Testament in Greek and English with manual word alignments, from the package bible-alignments.

source     the SBL Greek New Testament (SBLGNT), CC-BY-4.0
target     the Berean Standard Bible (BSB), public domain
links      made by hand by Biblica, CC-BY-4.0: groups of Greek words, each with a group of English words

Only the files of the package are read. Its code is not imported.
"""

import csv
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from itertools import product
from pathlib import Path

from attnorm.data.readers import text as files
from attnorm.data.sources.base import SPLITS, Source
from attnorm.data.sources.parallel import PARALLEL
from attnorm.errors import DataError

PACKAGE = "bible-alignments"
SOURCE = "data/sources/SBLGNT.tsv"
TARGET = "data/eng/targets/BSB/nt_BSB.tsv"
RECORDS = "data/eng/alignments/BSB/SBLGNT-BSB-manual.json"
SYNOPTIC = ("40", "41", "42")  # Matthew, Mark and Luke, which often tell the same in the same words
EVERY = 8  # chapters, of which one is held out for validation and one for test
HELD_OUT = {3: "validation", 7: "test"}


@dataclass(frozen=True)
class Verse:
    """A verse with its alignment.

    id:     book, chapter and verse: "43003016" is John 3:16.
    source, target: the words of both languages.
    links:  pairs (source word, target word), counted from 0. A word can have several links, or none.
    """

    id: str
    source: tuple[str, ...]
    target: tuple[str, ...]
    links: frozenset[tuple[int, int]]

    @property
    def chapter(self) -> str:
        """Book and chapter, such as "43003"."""
        return self.id[:5]


class BibleAlignments(Source):
    """Verses in Greek and English, with their alignments (`links`).

    The English words are those that can be aligned, so there is no punctuation; the Greek text has none either. A verse
    is used if it has words in both languages and at least one link.

    The chapters of all books but Matthew, Mark and Luke are counted from 0 in their usual order. Of each 8 chapters,
    number 3 is in the validation split, number 7 in the test split, and the others in the train split. The three
    books are in the train split, because much of what they tell is in several of them.
    """

    schema, splits = PARALLEL, SPLITS

    def check(self, splits: Sequence[str] = ("train", "validation")) -> list[str]:
        """The package, if it is not installed."""
        try:
            located(SOURCE)
        except DataError as error:
            return [str(error)]
        return []

    def fingerprint(self, split: str) -> str:
        """A hash of the three files and of the split."""
        return files.digest(["bible_alignments", 1, split], *map(located, (SOURCE, TARGET, RECORDS)))

    def rows(self, split: str) -> Iterator[tuple[str, str]]:
        """The pairs (Greek verse, English verse), with single spaces between words."""
        for verse in self.verses(split):
            yield " ".join(verse.source), " ".join(verse.target)

    def links(self, split: str) -> list[frozenset[tuple[int, int]]]:
        """The gold links (source word, target word) of each row, counted from 0."""
        return [verse.links for verse in self.verses(split)]

    def verses(self, split: str) -> list[Verse]:
        """The verses of a split, of which verse i is row i. Raises DataError for files of another format."""
        verses = read_verses(*map(located, (SOURCE, TARGET, RECORDS)))
        chapters = sorted({verse.chapter for verse in verses if not verse.id.startswith(SYNOPTIC)})
        held_out = {chapter: HELD_OUT.get(number % EVERY, "train") for number, chapter in enumerate(chapters)}
        return [verse for verse in verses if held_out.get(verse.chapter, "train") == split]


def located(name: str) -> Path:
    """A file of the package. Raises DataError with the command that installs it."""
    try:
        return Path(str(distribution(PACKAGE).locate_file(name)))
    except PackageNotFoundError as error:
        raise DataError(
            f"data=bible_alignments: the package {PACKAGE} is not installed; pip install {PACKAGE}, "
            f"or only its files: pip install --no-deps --ignore-requires-python {PACKAGE}"
        ) from error


@cache  # all splits are read from the same files
def read_verses(source: Path, target: Path, records: Path) -> list[Verse]:
    """The verses with words in both languages and at least one link, in the order of their ids.

    source:  TSV with the columns `id` (the letter n, the verse in 8 digits, and the word) and `text`.
    target:  TSV with `id`, `source_verse`, `text`, and `exclude`, which is "y" for punctuation.
    records: JSON with `records`, each with the ids of some `source` words and some `target` words. All pairs of them
             are links, except those between two verses.
    """
    words: dict[str, tuple[str, int]] = {}  # id -> verse, and number of the word in it
    greek, english, links = defaultdict[str, list](list), defaultdict[str, list](list), defaultdict[str, set](set)
    for row in read_table(source, ("id", "text")):
        words[row["id"]] = verse, _ = row["id"][1:9], len(greek[row["id"][1:9]])
        greek[verse].append(row["text"])
    for row in read_table(target, ("id", "source_verse", "text", "exclude")):
        if not row["exclude"]:
            words[row["id"]] = verse, _ = row["source_verse"], len(english[row["source_verse"]])
            english[verse].append(row["text"])
    try:
        found = json.loads(records.read_text(encoding=files.UTF8))["records"]
        for record in found:
            for first, second in product(record["source"], record["target"]):
                (verse, s), (other, t) = words[first], words[second]
                if verse == other:
                    links[verse].add((s, t))
    except (OSError, ValueError) as error:
        raise DataError(f"{records}: cannot be read: {error}") from error
    except (KeyError, TypeError) as error:
        raise DataError(f"{records}: a record lacks {error}, or names a word that is not in the texts") from error
    both = sorted(greek.keys() & english.keys() & links.keys())
    return [Verse(id, tuple(greek[id]), tuple(english[id]), frozenset(links[id])) for id in both]


def read_table(path: Path, columns: Sequence[str]) -> Iterator[dict[str, str]]:
    """The rows of a TSV file without quoting. Raises DataError if it cannot be read or lacks a column."""
    try:
        with open(path, encoding=files.UTF8, newline="") as file:
            reader = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
            if missing := set(columns) - set(reader.fieldnames or ()):
                raise DataError(f"{path}: has no column {min(missing)}")
            for row in reader:
                if None in row or None in row.values():
                    raise DataError(f"{path}, line {reader.line_num}: must have {len(reader.fieldnames or ())} cells")
                yield row
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
