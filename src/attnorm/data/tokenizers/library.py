"""Tokenizers from files of other programs, used as they are: ids and texts are those of the library that reads them."""

import logging
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import chain
from typing import ClassVar, Self

import numpy as np

from attnorm.data.readers.text import file_problem
from attnorm.data.tokenizers.base import UNK, Tokenizer, file_in
from attnorm.errors import refuse_one_text
from attnorm.schema import Text

log = logging.getLogger(__name__)


class LibraryTokenizer(Tokenizer):
    """Encodes whole texts instead of single words. The word `<unk>` is a word like any other.

    Which of pad, bos, eos and unk a file lacks gets an id after its last one. In the text of ids, white space is a
    single space, and what the vocabulary cannot represent is <unk>.

    A subclass reads a file of one library.
    """

    names: ClassVar[tuple[str, ...]]  # of the files to look for in a folder, in this order
    _unknown: str  # how the library writes an unknown token; "" if it has none

    def __init__(self, content: bytes, size: int, *special: int | None):
        """content: that of the file. size: the number of its ids. special: those of pad, bos, eos and unk, or None."""
        super().__init__()
        self._content, self._size = content, size
        new = iter(range(size, size + len(special) + 1))
        ids = [next(new) if known is None else known for known in special]
        self.pad_id, self.bos_id, self.eos_id, self.unk_id = ids
        self.vocab_size = next(new)
        self._outer = {self.pad_id, self.bos_id, self.eos_id}
        self.starts = np.ones(self.vocab_size, bool)

    @classmethod
    def from_settings(  # type: ignore[override]  # names its option
        cls, draw: Callable[[int | None], Iterable[str]] | None = None, *, file: Text | None = None
    ) -> "Self":
        """Reads `file`, or the first of `names` in a folder. Raises DataError for a file of another kind."""
        assert file is not None  # `check` has asked for one
        tokenizer = cls.from_bytes(file_in(file, cls.names).read_bytes(), f"tokenizer.file={file}")
        assert isinstance(tokenizer, cls)
        tokenizer.say_what_is_added(file)
        return tokenizer

    @classmethod
    def check(cls, options: dict) -> list[str]:
        """No file, or one that is missing or empty."""
        if (file := options.get("file")) is None:
            return [f"tokenizer.file: must name a {cls.names[-1]}, or a folder with one"]
        if (path := file_in(file, cls.names)).is_dir():
            return [f"tokenizer.file={file}: no {' or '.join(cls.names)} in this folder"]
        return file_problem(f"tokenizer.file={file}", path)

    def say_what_is_added(self, file: str) -> None:
        """Logs, once in a process, which special tokens the file lacks."""
        ids = {"pad": self.pad_id, "bos": self.bos_id, "eos": self.eos_id, "unk": self.unk_id}
        if added := [f"{name} ({number})" for name, number in ids.items() if number >= self._size]:
            _log_once(f"tokenizer.file={file}: special tokens that the file lacks are added: {', '.join(added)}")

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text. No special tokens are added; pad, bos and eos in a text become unk."""
        refuse_one_text("encode", texts)
        encoded = self._encode_words(list(texts))
        return [
            ids if self._outer.isdisjoint(ids) else [self.unk_id if number in self._outer else number for number in ids]
            for ids in encoded
        ]

    def unknown(self, texts: Sequence[str]) -> tuple[int, int]:
        refuse_one_text("unknown", texts)
        words = Counter(chain.from_iterable(map(str.split, texts)))
        missing = sum(self._unknown_characters(word) * times for word, times in words.items())
        return missing, sum(len(word) * times for word, times in words.items())

    def decode(self, ids: Iterable[int]) -> str:
        text = self._decode([number for number in map(int, ids) if number < self._size and number not in self._outer])
        return " ".join((text.replace(self._unknown, UNK) if self._unknown else text).split())

    def starts_word(self, ids: np.ndarray) -> np.ndarray:
        return self.starts[ids]

    def to_bytes(self) -> bytes:
        return self._content

    def fingerprint(self) -> str:
        """Differs from that of a tokenizer that encodes word by word with the same file."""
        return f"{super().fingerprint()}-texts"

    @abstractmethod
    def _unknown_characters(self, word: str) -> int:
        """The number of characters of a word that the vocabulary cannot represent."""

    @abstractmethod
    def _decode(self, ids: list[int]) -> str:
        """The text of ids of the file, as the library writes it."""


@cache
def _log_once(message: str) -> None:
    log.info(message)
