"""The Gigaword headline files of Rush et al. (2015): line i of the article file pairs with line i of the title file."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from attnorm.data import files
from attnorm.data.sources import SPLITS, Source

FILES = {
    "train": ("train.article.txt", "train.title.txt"),
    "validation": ("valid.article.filter.txt", "valid.title.filter.txt"),
    "test": ("input.txt", "task1_ref0.txt"),
}

# The published test files write the unknown word UNK where the training files write <unk>.
_UNK = re.compile(r"(?<!\S)UNK(?!\S)")


class Rush(Source):
    """Pairs from a folder `dir` of these files, each plain or .gz (the plain one is read where both are there).

    The test files are needed only when the test split is asked for. In them the word UNK is read as <unk>, as the
    training files write it.
    """

    splits = SPLITS

    def __init__(self, *, dir: str):
        self.dir = dir

    def check(self, splits: Sequence[str] = ("train", "validation")) -> list[str]:
        """The folder or all files that are missing or empty."""
        key = f"data.dir={self.dir}"
        if not isinstance(self.dir, str) or not self.dir:
            return [f"{key}: must be the folder of the headline files"]
        if not Path(self.dir).is_dir():
            return [f"{key}: no such folder"]
        return [problem for split in splits for path in self._paths(split) for problem in files.file_problem(key, path)]

    def fingerprint(self, split: str) -> str:
        """A hash of the two files as they lie on disk."""
        return files.digest(["rush", 1, split == "test"], *self._paths(split))

    def rows(self, split: str) -> Iterator[tuple[str, str]]:
        """Stream the pairs. Raises ValueError before the first one if the two files differ in length."""
        articles, titles = self._paths(split)
        counts = files.count_lines(articles), files.count_lines(titles)
        if counts[0] != counts[1]:
            raise ValueError(
                f"data.dir={self.dir}: {articles.name} has {counts[0]:,} lines but {titles.name} has {counts[1]:,}: "
                "line i of one must pair with line i of the other"
            )
        if counts[0] == 0:
            raise ValueError(f"data.dir={self.dir}: {articles.name} and {titles.name} are empty")
        for article, title in zip(files.read_lines(articles), files.read_lines(titles), strict=True):
            if split == "test":
                article, title = _UNK.sub("<unk>", article), _UNK.sub("<unk>", title)
            yield article.rstrip("\r\n"), title.rstrip("\r\n")

    def _paths(self, split: str) -> tuple[Path, Path]:
        """The two files of a split: the plain one, or its .gz where only that is there."""
        plain = [Path(self.dir) / name for name in FILES[split]]
        packed = [path.with_name(f"{path.name}.gz") for path in plain]
        first, second = (p if p.exists() or not z.exists() else z for p, z in zip(plain, packed, strict=True))
        return first, second
