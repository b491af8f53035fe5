"""Labelled passages of long texts: a folder of text files, one label per file, such as novels.

    attnorm train task=document_classification data=base data.folder=<novels> \\
      data._target_=attnorm.experiments.hierarchical.passages.Passages

Passages that stand near each other share people, places and topics, so a random split would put almost the same text
into train and validation. Instead, each file is cut into contiguous parts, each of which belongs to one split. A gap at
the ends of the validation and test parts is left out, so passages of different splits are at least that far apart.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from attnorm.data.readers import text as files
from attnorm.data.sentences import ends_sentence, is_abbreviated, split_sentences
from attnorm.data.sources.base import LABELLED_DOCUMENTS, SPLITS, Source
from attnorm.data.tokenizers.base import UNK
from attnorm.errors import Problem
from attnorm.schema import Count, WholeNumber

# group: the contiguous part of a text that the passage is from
PASSAGES = replace(LABELLED_DOCUMENTS, columns=("text", "group", "label", "id"))
_NAME = re.compile(r"(?!I\b)[A-Z][\w’'-]*\b")  # at the start of a word


class Passages(Source):
    """Passages of the text files in `folder`. The label of a passage is the name of its file without the ending.

    folder:     a folder of at least two text files, plain or gzipped. Hidden files are ignored.
    words:      the least number of words of a passage, which consists of whole sentences.
    parts:      the number of contiguous parts of about equal length into which each file is cut.
    validation, test: the numbers of the parts, from 0, that belong to these splits. All others belong to train.
    gap:        the number of words between passages of different splits.
    mask_names: replaces words with a capital letter by <unk>, see `masked`. The names of people and places give most
                books away.
    encoding:   the encoding of the files.
    """

    schema = PASSAGES

    def __init__(
        self,
        *,
        folder: str,
        words: Count = 150,
        parts: Count = 20,
        validation: Sequence[WholeNumber] = (3, 8, 13, 18),
        test: Sequence[WholeNumber] = (),
        gap: WholeNumber = 100,
        mask_names: bool = False,
        encoding: str = "utf-8",
    ):
        self.folder, self.words, self.parts, self.gap = Path(folder), words, parts, gap
        self.held_out = {"validation": tuple(validation), "test": tuple(test)}
        self.mask_names, self.encoding = mask_names, encoding

    @property
    def splits(self) -> tuple[str, ...]:
        return ("train", *(split for split in SPLITS[1:] if self.held_out[split]))

    @cached_property
    def paths(self) -> list[Path]:
        """The files, sorted by name."""
        inside = self.folder.iterdir() if self.folder.is_dir() else ()
        return sorted(path for path in inside if path.is_file() and not path.name.startswith("."))

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the files without their endings."""
        return tuple(path.name.partition(".")[0] for path in self.paths)

    def check(self, splits: Sequence[str] = ("train", "validation")) -> list[str]:
        """Files that are missing, not text, or of the same name; parts that do not exist or are in two splits."""
        problems: list[str] = list(files.encoding_problem(self.encoding))
        if not self.folder.is_dir():
            return [*problems, Problem("data.folder", "no such folder", str(self.folder))]
        if len(self.paths) < 2:
            problems.append(Problem("data.folder", "needs at least two files, one per label", str(self.folder)))
        if len(set(self.labels)) < len(self.labels):
            problems.append(Problem("data.folder", "two files have the same name", str(self.folder)))
        for split, numbers in self.held_out.items():
            key = f"data.{split}"
            if split in splits and not numbers:
                problems.append(Problem(key, f"the {split} split is asked for; name its parts", list(numbers)))
            if any(number >= self.parts for number in numbers):
                problems.append(Problem(key, f"allowed: numbers from 0 to {self.parts - 1}", list(numbers)))
        if both := sorted(set(self.held_out["validation"]) & set(self.held_out["test"])):
            problems.append(Problem("data.test", f"part {both[0]} is in validation, too", list(self.held_out["test"])))
        if len({*self.held_out["validation"], *self.held_out["test"]}) >= self.parts:
            problems.append(Problem("data.parts", "leaves no part for train", self.parts))
        for path in self.paths:
            problems += files.text_problem(f"data.folder={self.folder}", path, self.encoding, skip_bad=False)
        return problems

    def fingerprint(self, split: str) -> str:
        """A hash of the files and of all options."""
        settings = [self.words, self.parts, self.held_out, self.gap, self.mask_names, self.encoding, self.labels]
        return files.digest(["passages", 2, split, *settings], *self.paths)

    def rows(self, split: str) -> Iterator[tuple[str, str, str, str]]:
        """Streams (text, part, label, id), from the files in turn, so that the first rows have all labels.

        Raises ValueError that names file and line for a line that is not text.
        """
        rest = [self.rows_of(path, label, split) for path, label in zip(self.paths, self.labels, strict=True)]
        while rest:
            heads = [(rows, next(rows, None)) for rows in rest]
            yield from (row for _, row in heads if row is not None)
            rest = [rows for rows, row in heads if row is not None]

    def rows_of(self, path: Path, label: str, split: str) -> Iterator[tuple[str, str, str, str]]:
        """The rows of one file, in order."""
        for part, sentences in enumerate(self.parts_of(path)):
            if self.split_of(part) == split:
                for number, passage in enumerate(self.passages(self.without_gap(part, sentences))):
                    yield passage, f"{label}-{part}", label, f"{label}-{part}-{number}"

    def split_of(self, part: int) -> str:
        """The split that a part belongs to."""
        return next((split for split, numbers in self.held_out.items() if part in numbers), "train")

    def parts_of(self, path: Path) -> list[list[str]]:
        """The sentences of each part of a file. A sentence belongs to the part in which it starts."""
        sentences = [sentence for block in self.blocks(path) for sentence in split_sentences(block)]
        total = sum(len(sentence.split()) for sentence in sentences)
        parts: list[list[str]] = [[] for _ in range(self.parts)]
        read = 0
        for sentence in sentences:
            parts[read * self.parts // total].append(sentence)
            read += len(sentence.split())
        return parts

    def blocks(self, path: Path) -> Iterator[str]:
        """The paragraphs of a file, which are separated by blank lines."""
        block: list[str] = []
        for line in files.read_lines(path, self.encoding):
            if line.strip():
                block.append(line)
            elif block:
                yield " ".join(block)
                block = []
        yield " ".join(block)

    def without_gap(self, part: int, sentences: list[str]) -> list[str]:
        """The sentences of a part that are far enough from the parts of other splits."""
        split = self.split_of(part)
        if split == "train":  # the other side leaves the gap
            return sentences
        if part > 0 and self.split_of(part - 1) != split:
            sentences = after(sentences, self.gap)
        if part < self.parts - 1 and self.split_of(part + 1) != split:
            sentences = after(sentences[::-1], self.gap)[::-1]
        return sentences

    def passages(self, sentences: list[str]) -> Iterator[str]:
        """Consecutive sentences, as few as have `words` words. A shorter rest is left out."""
        passage: list[str] = []
        for sentence in sentences:
            passage.append(masked(sentence) if self.mask_names else sentence)
            if sum(len(words.split()) for words in passage) >= self.words:
                yield " ".join(passage)
                passage = []


def after(sentences: list[str], words: int) -> list[str]:
    """The sentences that follow the first `words` words."""
    read = 0
    for number, sentence in enumerate(sentences):
        if read >= words:
            return sentences[number:]
        read += len(sentence.split())
    return []


def masked(sentence: str) -> str:
    """The sentence with <unk> for words with a capital letter. Punctuation after such a word becomes a word of its own.

    The first word, the first word of a quotation, "I" and titles such as "Mr." are kept.
    """
    words = sentence.split()
    kept = words[:1]
    for before, word in pairwise(words):
        name = _NAME.match(word)
        if name is None or ends_sentence(before) or is_abbreviated(word):
            kept.append(word)
        else:
            kept += [UNK, *filter(None, [word[name.end() :]])]
    return " ".join(kept)
