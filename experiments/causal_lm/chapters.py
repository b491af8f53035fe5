"""Novels that are divided into chapters.

    attnorm train task=causal_lm data=base data.folder=<novels> data.test=[Doyle_*] \\
      data._target_=attnorm.experiments.causal_lm.chapters.Chapters
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from attnorm.data.readers import text as files
from attnorm.data.sources.folders import Folders
from attnorm.errors import Problem
from attnorm.schema import Count, Share, Text

# "CHAPTER IV", "Chapter 4: The Storm", "Chapter Four", or a line with nothing but a number
CHAPTER = r"^\s*((?i:chapter)\s+([IVXLC]+|\d+|[A-Z]+|[A-Z][a-z]+)\b(\s*[.:—-].*)?|[IVXLC]+\.?|\d{1,3}\.?)\s*$"


class Chapters(Folders):
    """A folder of novels, as `Folders`. A document is a chapter.

    chapter: a regular expression. Every line in which it is found begins a document. By default, these are the lines
             that consist of a number, with or without the word "chapter" before it.
    words:   as in `Folders`; the entries of a table of contents are shorter than a chapter.
    """

    def __init__(
        self,
        *,
        folder: Text,
        chapter: Text = CHAPTER,
        words: Count = 100,
        validation: Sequence[Text] = (),
        test: Sequence[Text] = (),
        holdout: Share = 0.05,
        encoding: str = files.UTF8,
    ):
        super().__init__(
            folder=folder, words=words, validation=validation, test=test, holdout=holdout, encoding=encoding
        )
        self.chapter = chapter

    def check(self, splits: Sequence[str] = ("train", "validation")) -> list[str]:
        """The problems of the folder, and a chapter pattern that is no regular expression."""
        try:
            re.compile(self.chapter)
        except re.error as error:
            return [
                Problem("data.chapter", f"not a regular expression: {error}", self.chapter),
                *super().check(splits),
            ]
        return super().check(splits)

    def division(self) -> list[object]:
        return ["books", 2, self.chapter]

    def documents(self, path: Path) -> Iterator[str]:
        """The chapters of a novel, and what is before the first one."""
        document: list[str] = []
        for line in files.read_lines(path, self.encoding):
            if document and re.search(self.chapter, line):
                yield "".join(document)
                document = []
            document.append(line)
        yield "".join(document)
