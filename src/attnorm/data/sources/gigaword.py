"""The Gigaword headline files of Rush et al. (2015). Line i of the article file belongs to line i of the title file."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from attnorm.data.cleaning import read_unknown
from attnorm.data.readers import text as files
from attnorm.data.readers.bad_rows import BadRow, usable
from attnorm.data.sources.base import SPLITS, Source
from attnorm.data.sources.table_source import reading_settings
from attnorm.errors import DataError
from attnorm.schema import Text

FILES = {
    "train": ("train.article.txt", "train.title.txt"),
    "validation": ("valid.article.filter.txt", "valid.title.filter.txt"),
    "test": ("input.txt", "task1_ref0.txt"),
}


class Gigaword(Source):
    """Pairs from a folder `dir` with these files, each plain or .gz (if both exist, the plain one is read).

    The test files are required only if the test split is used. The test files contain the word UNK where the training
    files contain <unk>; it is read as <unk>.

    dir:      the folder of the files.
    encoding: the encoding of all files.
    skip_bad: skip pairs with a line that is not text and log their number, instead of raising an error.
    """

    splits = SPLITS

    def __init__(self, *, dir: Text, encoding: str = files.UTF8, skip_bad: bool = False):
        self.dir, self.encoding, self.skip_bad = dir, encoding, skip_bad

    def check(self, splits: Sequence[str] = ("train", "validation")) -> list[str]:
        """Missing or empty files, or a missing folder."""
        return [
            *files.encoding_problem(self.encoding),
            *self._folder_problems(splits),
        ]

    def _folder_problems(self, splits: Sequence[str]) -> list[str]:
        key = f"data.dir={self.dir}"
        if not Path(self.dir).is_dir():
            return [f"{key}: no such folder"]
        return [
            problem
            for split in splits
            for path in self._paths(split)
            for problem in files.text_problem(key, path, self.encoding, self.skip_bad)
        ]

    def clean(self, text: str, column: str) -> str:
        """Replaces the word UNK by <unk>."""
        return read_unknown(text)

    def fingerprint(self, split: str) -> str:
        """A hash of the two files as stored on disk, and of all settings that determine their rows."""
        return files.digest(["rush", 2, *reading_settings(self.encoding, self.skip_bad)], *self._paths(split))

    def rows(self, split: str) -> Iterator[tuple[str, str]]:
        """Streams the pairs. Raises ValueError before the first one if the two files differ in length."""
        articles, titles = self._paths(split)
        counts = [files.count_lines(path, self.encoding) for path in (articles, titles)]
        if counts[0] != counts[1]:
            raise DataError(
                f"data.dir={self.dir}: {articles.name} has {counts[0]:,} lines but {titles.name} has {counts[1]:,}: "
                "line i of one must pair with line i of the other"
            )
        if counts[0] == 0:
            raise DataError(f"data.dir={self.dir}: {articles.name} and {titles.name} are empty")
        lines = zip(*(files.path_lines(path, self.encoding) for path in (articles, titles)), strict=True)
        yield from usable(lines, _pair, self.skip_bad)

    def _paths(self, split: str) -> tuple[Path, Path]:
        """The two files of a split: the plain one, or its .gz if only that exists."""
        plain = [Path(self.dir) / name for name in FILES[split]]
        packed = [path.with_name(f"{path.name}.gz") for path in plain]
        first, second = (p if p.exists() or not z.exists() else z for p, z in zip(plain, packed, strict=True))
        return first, second


def _pair(lines: tuple[str | BadRow, str | BadRow]) -> tuple[str, str]:
    """The two lines without their ends. Raises BadRow if one of them is bad."""
    article, title = lines
    if isinstance(article, BadRow):
        raise article
    if isinstance(title, BadRow):
        raise title
    return article.rstrip("\r\n"), title.rstrip("\r\n")
