"""Your own texts in a folder: each line, paragraph or file is a document, and the documents of a file are a group."""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path

from attnorm.data.readers import text as files
from attnorm.data.readers.documents import Unit, documents
from attnorm.data.sources.base import LABELLED_DOCUMENTS, DividedTrain
from attnorm.errors import Problem
from attnorm.schema import Count, Share, Text


class Folders(DividedTrain):
    """The text files of `folder` and its subfolders, plain or gzipped. Hidden files are ignored.

    The documents of a file are a group, which has the name of the file in `folder`. The label of a document is the
    subfolder of `folder` that its file is in, or else the name of the file without its ending.

    document:   a "line", a "paragraph" (separated by blank lines) or the whole "file".
    words:      the least number of words of a document. Shorter ones, such as headings, are left out.
    validation, test: patterns of file names, such as "Doyle_*", of the files that belong to these splits. All other
                files belong to train. Without validation files, the share `holdout` of the documents of train, evenly
                spaced, is the validation split.
    encoding:   the encoding of the files.
    """

    schema = LABELLED_DOCUMENTS

    def __init__(
        self,
        *,
        folder: Text,
        document: Unit = "file",
        words: Count = 1,
        validation: Sequence[Text] = (),
        test: Sequence[Text] = (),
        holdout: Share = 0.05,
        encoding: str = files.UTF8,
    ):
        self.folder, self.document, self.words = Path(folder), document, words
        self.patterns = {"validation": tuple(validation), "test": tuple(test)}
        self.named = {"train": folder} | {split: names or None for split, names in self.patterns.items()}
        self.holdout, self.encoding = holdout, encoding

    @cached_property
    def paths(self) -> list[Path]:
        """All files, sorted by their path."""
        return files.files_in(self.folder)

    @property
    def labels(self) -> list[str]:
        """The different labels of all files, sorted."""
        return sorted({self._label(path) for path in self.paths})

    def check(self, splits: Sequence[str] = ("train", "validation")) -> list[str]:
        """Patterns that match no file, or the files of another split; splits without files; and files that are not
        text."""
        problems: list[str] = list(files.encoding_problem(self.encoding))
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
        problems += self.holdout_problems(splits, "files")
        if "test" in splits and not self.patterns["test"]:
            problems.append(Problem("data.test", "the test split is asked for; name its files", []))
        if not self._paths("train"):
            problems.append(Problem("data.folder", "no file is left for the train split", str(self.folder)))
        for path in self.paths:
            problems += files.text_problem("data.folder", path, self.encoding, skip_bad=False)
        return problems

    def division(self) -> list[object]:
        """What divides a file into documents, for the fingerprint."""
        return ["folders", 1, self.document]

    def fingerprint(self, split: str) -> str:
        """A hash of the files, of their names, and of the settings that divide them into documents."""
        share = [split, self.holdout] if self.is_divided(split) else None
        paths = self._paths(split)
        return files.digest([*self.division(), self.words, share, self.encoding, *map(self._name, paths)], *paths)

    def rows(self, split: str) -> Iterator[tuple[str, str, str]]:
        """Streams (text, group, label). Raises ValueError that names file and line if something cannot be read."""
        rows = (
            (text, self._name(path), self._label(path))
            for path in self._paths(split)
            for text in self.documents(path)
            if len(text.split()) >= self.words
        )
        return self.part(rows, split, "data.folder")

    def documents(self, path: Path) -> Iterator[str]:
        """The documents of a file."""
        return documents(files.read_lines(path, self.encoding), self.document)

    def _name(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()

    def _label(self, path: Path) -> str:
        inside = path.relative_to(self.folder).parts
        return inside[0] if len(inside) > 1 else path.name.partition(".")[0]

    def _matches(self, name: str, split: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.patterns[split])

    def _paths(self, split: str) -> list[Path]:
        if self.origin(split) == "train":
            return [path for path in self.paths if not any(self._matches(path.name, other) for other in self.patterns)]
        return [path for path in self.paths if self._matches(path.name, split)]
