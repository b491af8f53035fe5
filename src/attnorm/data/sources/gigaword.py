"""The Gigaword headline files of Rush et al. (2015). Line i of the article file belongs to line i of the title file."""

from attnorm.data.cleaning import read_unknown
from attnorm.data.readers import text as files
from attnorm.data.sources.base import SPLITS
from attnorm.data.sources.parallel import AlignedFiles
from attnorm.schema import Text

FILES = {
    "train": ("train.article.txt", "train.title.txt"),
    "validation": ("valid.article.filter.txt", "valid.title.filter.txt"),
    "test": ("input.txt", "task1_ref0.txt"),
}


class Gigaword(AlignedFiles):
    """Pairs from a folder with these files.

    The test files are required only if the test split is used. The test files contain the word UNK where the training
    files contain <unk>; it is read as <unk>.

    dir, encoding, skip_bad: as in `AlignedFiles`.
    """

    splits = SPLITS

    def __init__(self, *, dir: Text, encoding: str = files.UTF8, skip_bad: bool = False):
        super().__init__(dir, encoding, skip_bad)

    def names(self, split: str) -> tuple[str, str]:
        return FILES[split]

    def clean(self, text: str, column: str) -> str:
        """Replaces the word UNK by <unk>."""
        return read_unknown(text)

    def fingerprint(self, split: str) -> str:
        """A hash of the two files as stored on disk, and of all settings that determine their rows."""
        return files.digest(["rush", 2, *files.reading_settings(self.encoding, self.skip_bad)], *self.paths(split))
