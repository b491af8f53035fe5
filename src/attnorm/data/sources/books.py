"""Long documents from a folder of text files: a document is a file, or a chapter of it."""

import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path

from attnorm.data.readers import text as files
from attnorm.data.sources.base import GROUPED_DOCUMENTS, DividedTrain
from attnorm.errors import Problem
from attnorm.schema import Count, Share, Text

# "CHAPTER IV", "Chapter 4: The Storm", "Chapter Four", or a line with nothing but a number
CHAPTER = r"^\s*((?i:chapter)\s+([IVXLC]+|\d+|[A-Z]+|[A-Z][a-z]+)\b(\s*[.:—-].*)?|[IVXLC]+\.?|\d{1,3}\.?)\s*$"


class Books(DividedTrain):
    """The text files of `folder` and its subfolders, plain or gzipped. Hidden files are ignored.

    The documents of a file are a group, which has the name of the file in `folder`.

    chapter:    a regular expression. Every line in which it is found begins a document. None: a document is a file. By
                default, these are the lines that consist of a number, with or without the word "chapter" before it.
    words:      the least number of words of a document. Shorter ones, such as the entries of a table of contents, are
                left out.
    validation, test: patterns of file names, such as "Doyle_*", of the books that belong to these splits. All other
                books belong to train. Without validation books, the share `holdout` of the documents of train, evenly
                spaced, is the validation split.
    encoding:   the encoding of the files.
    """

    schema = GROUPED_DOCUMENTS

    def __init__(
        self,
        *,
        folder: Text,
        chapter: Text | None = CHAPTER,
        words: Count = 100,
        validation: Sequence[Text] = (),
        test: Sequence[Text] = (),
        holdout: Share = 0.05,
        encoding: str = files.UTF8,
    ):
        self.folder, self.chapter, self.words = Path(folder), chapter, words
        self.patterns = {"validation": tuple(validation), "test": tuple(test)}
        self.given = {"train": folder} | {split: names or None for split, names in self.patterns.items()}
        self.holdout, self.encoding = holdout, encoding

    @cached_property
    def paths(self) -> list[Path]:
        """All files, sorted by their path."""
        return files.files_in(self.folder)

    def check(self, splits: Sequence[str] = ("train", "validation")) -> list[str]:
        """A chapter pattern that is no regular expression; patterns that match no file, or the files of another split;
        splits without files; and files that are not text."""
        problems: list[str] = list(files.encoding_problem(self.encoding))
        if self.chapter is not None:
            try:
                re.compile(self.chapter)
            except re.error as error:
                problems.append(Problem("data.chapter", f"not a regular expression: {error}", self.chapter))
        if not self.folder.is_dir():
            return [*problems, Problem("data.folder", "no such folder", str(self.folder))]
        names = [path.name for path in self.paths]
        for split, patterns in self.patterns.items():
            for pattern in patterns:
                if not any(fnmatchcase(name, pattern) for name in names):
                    message = f"no file has such a name; there are {', '.join(names[:10]) or 'no files'}"
                    problems.append(Problem(f"data.{split}", message, pattern))
        if both := [name for name in names if all(self._matches(name, split) for split in self.patterns)]:
            problems.append(Problem("data.test", f"also in data.validation: {', '.join(both)}", self.patterns["test"]))
        problems += self.holdout_problems(splits, "books")
        if "test" in splits and not self.patterns["test"]:
            problems.append(Problem("data.test", "the test split is asked for; name its books", []))
        if not self._paths("train"):
            problems.append(Problem("data.folder", "no book is left for the train split", str(self.folder)))
        for path in self.paths:
            problems += files.text_problem("data.folder", path, self.encoding, skip_bad=False)
        return problems

    def fingerprint(self, split: str) -> str:
        """A hash of the files, of their names, and of the settings that divide them into documents."""
        share = [split, self.holdout] if self.is_divided(split) else None
        paths = self._paths(split)
        settings = ["books", 2, self.chapter, self.words, share, self.encoding, *map(self._name, paths)]
        return files.digest(settings, *paths)

    def rows(self, split: str) -> Iterator[tuple[str, str]]:
        """Streams the documents. Raises ValueError that names file and line if something cannot be read."""
        documents = ((text, self._name(path)) for path in self._paths(split) for text in self._documents(path))
        rows = ((text, name) for text, name in documents if len(text.split()) >= self.words)
        return self.part(rows, split, "data.folder")

    def _name(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()

    def _matches(self, name: str, split: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.patterns[split])

    def _paths(self, split: str) -> list[Path]:
        if self.origin(split) == "train":
            return [path for path in self.paths if not any(self._matches(path.name, other) for other in self.patterns)]
        return [path for path in self.paths if self._matches(path.name, split)]

    def _documents(self, path: Path) -> Iterator[str]:
        document: list[str] = []
        for line in files.read_lines(path, self.encoding):
            if document and self.chapter is not None and re.search(self.chapter, line):
                yield "".join(document)
                document = []
            document.append(line)
        yield "".join(document)
