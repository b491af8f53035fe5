"""Base class of the sources that read two text files per split, the lines of which belong together."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path

from attnorm.data.readers import text as files
from attnorm.data.readers.bad_rows import BadRow, usable
from attnorm.data.sources.base import Source
from attnorm.errors import DataError


class AlignedFiles(Source):
    """Pairs of lines: line i of one file of a split belongs to line i of the other.

    dir:      the folder of the files. Each may be plain or .gz; if both exist, the plain one is read.
    encoding: the encoding of all files.
    skip_bad: skip pairs with a line that is not text and log their number, instead of raising an error.
    """

    def __init__(self, dir: str, encoding: str, skip_bad: bool):
        self.dir, self.encoding, self.skip_bad = dir, encoding, skip_bad

    @abstractmethod
    def names(self, split: str) -> tuple[str, str]:
        """The names of the two files of a split, without .gz."""

    def check(self, splits: Sequence[str] = ("train", "validation")) -> list[str]:
        """Missing or empty files, or a missing folder."""
        problems = files.encoding_problem(self.encoding)
        if not Path(self.dir).is_dir():
            return [*problems, f"data.dir={self.dir}: no such folder"]
        paths = [path for split in splits for path in self.paths(split)]
        texts = (files.text_problem(f"data.dir={self.dir}", path, self.encoding, self.skip_bad) for path in paths)
        return problems + [problem for found in texts for problem in found]

    def rows(self, split: str) -> Iterator[tuple[str, str]]:
        """Streams the pairs. Raises DataError before the first one if the two files differ in length."""
        paths = self.paths(split)
        first, second = (files.count_lines(path, self.encoding) for path in paths)
        names = [path.name for path in paths]
        if first != second:
            raise DataError(
                f"data.dir={self.dir}: {names[0]} has {first:,} lines but {names[1]} has {second:,}: "
                "line i of one must belong to line i of the other"
            )
        if first == 0:
            raise DataError(f"data.dir={self.dir}: {names[0]} and {names[1]} are empty")
        lines = zip(*(files.path_lines(path, self.encoding) for path in paths), strict=True)
        yield from usable(lines, _pair, self.skip_bad)

    def paths(self, split: str) -> tuple[Path, Path]:
        """The two files of a split."""
        return self.existing(self.names(split))

    def existing(self, names: tuple[str, str]) -> tuple[Path, Path]:
        """The files of these names: the plain ones, or .gz if only that exists."""
        first, second = (Path(self.dir) / name for name in names)
        return _plain_or_packed(first), _plain_or_packed(second)


def _plain_or_packed(path: Path) -> Path:
    packed = path.with_name(f"{path.name}.gz")
    return packed if packed.exists() and not path.exists() else path


def _pair(lines: tuple[str | BadRow, str | BadRow]) -> tuple[str, str]:
    """The two lines without their ends. Raises BadRow if one of them is bad."""
    for line in lines:
        if isinstance(line, BadRow):
            raise line
    first, second = map(str, lines)
    return first.rstrip("\r\n"), second.rstrip("\r\n")
