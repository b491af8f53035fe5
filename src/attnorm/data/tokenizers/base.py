"""Tokenizers: a common interface of sentencepiece, WordPiece and your own, named by `_target_` in conf/tokenizer/.

Texts are cleaned before they are tokenized. The word `<unk>`, which published headline files contain, is the same token
as the one for what the vocabulary cannot represent, except with `library.LibraryTokenizer`. It is decoded as `<unk>`.
"""

import hashlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnorm.errors import ConfigError, DataError, reading, refuse_one_text
from attnorm.parts import RESERVED, class_of
from attnorm.schema import read_options

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Pipeline

UNK = "<unk>"
REMEMBERED = 1 << 18  # cached words; about 100 MB


class Tokenizer(ABC):
    """Converts texts to token ids and back. Tokenizers with equal bytes (`to_bytes`) give equal results."""

    FILE: str  # the file that `save` writes into a folder
    has_mask = False  # whether it has a mask token
    has_offsets = False  # whether `encode_with_offsets` works
    vocab_size: int
    pad_id: int
    bos_id: int
    eos_id: int
    unk_id: int
    mask_id: int | None = None  # None: there is no mask token

    @classmethod
    def needs_training(cls, options: dict) -> bool:
        """Whether `from_settings` with these options trains the tokenizer on the train split: if they name no file."""
        return options.get("file") is None

    def __init__(self) -> None:
        self._words: dict[str, list[int]] = {}

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text. No special tokens are added, and none are parsed from the text.

        A text is encoded word by word (words are separated by white space), and the ids of words are cached. This makes
        encoding a corpus several times faster.
        """
        refuse_one_text("encode", texts)
        if len(self._words) > REMEMBERED:
            self._words.clear()
        split = [text.split() for text in texts]
        new = sorted(set(chain.from_iterable(split)) - self._words.keys())
        if new:
            self._words.update(zip(new, self._encode_words(new), strict=True))
            self._words[UNK] = [self.unk_id]
        ids = self._words.__getitem__
        return [list(chain.from_iterable(map(ids, words))) for words in split]

    def unknown(self, texts: Sequence[str]) -> tuple[int, int]:
        """The number of characters that the vocabulary cannot represent, and of all, without space and words <unk>."""
        refuse_one_text("unknown", texts)
        words = Counter(chain.from_iterable(map(str.split, texts)))
        words.pop(UNK, None)
        missing = 0
        for word, ids in zip(words, self.encode(list(words)), strict=True):
            missing += words[word] * (len(word) if ids == [self.unk_id] else ids.count(self.unk_id))
        return missing, sum(len(word) * times for word, times in words.items())

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """The ids of one text, as in `encode`, and the character range (start, end) of each in `text`.

        Raises ValueError if the tokenizer does not support this.
        """
        raise DataError(f"tokenizer: a {type(self).__name__} has no character offsets; use tokenizer=wordpiece")

    @abstractmethod
    def starts_word(self, ids: np.ndarray) -> np.ndarray:
        """bool, same shape as `ids`: False for pieces that continue a word, True for all others."""

    @abstractmethod
    def _encode_words(self, words: list[str]) -> list[list[int]]:
        """The ids of each single word."""

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids: words separated by single spaces, without pad, bos and eos, and with unk as <unk>."""

    def token(self, number: int) -> str:
        """A token in readable form: [pad], [bos], [eos] and [mask] for the special ones."""
        special = {self.pad_id: "[pad]", self.bos_id: "[bos]", self.eos_id: "[eos]", self.mask_id: "[mask]"}
        return special.get(number) or self.decode([number])

    @abstractmethod
    def to_bytes(self) -> bytes:
        """The content of `FILE`."""

    @classmethod
    @abstractmethod
    def from_bytes(cls, content: bytes, name: str = "tokenizer") -> "Tokenizer":
        """The tokenizer with these `to_bytes`. Raises ValueError, starting with `name`, for invalid content."""

    @classmethod
    @abstractmethod
    def from_settings(cls, draw: Callable[[int | None], Iterable[str]] | None, **options: Any) -> "Tokenizer":
        """Builds the tokenizer from settings.

        `draw(n)` returns at most n cleaned sentences of the train split, the same ones in each call.
        """

    @classmethod
    def check(cls, options: dict) -> list[str]:
        """Problems with options of `from_settings` that can be found before data is read, such as a missing file.

        options: options that `from_settings` has, with values that its annotations allow.
        """
        return []

    def save(self, folder: str | Path) -> None:
        """Writes `FILE` into the folder, which is created if necessary."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / self.FILE).write_bytes(self.to_bytes())

    @classmethod
    def load(cls, folder: str | Path) -> "Tokenizer":
        """The tokenizer of this class that was saved in `folder`. Raises DataError if none was saved there."""
        path = Path(folder) / cls.FILE
        if not path.is_file():
            raise DataError(f"{path}: missing; it should contain the tokenizer ({cls.__name__})")
        if not (content := path.read_bytes()):
            raise DataError(f"{path}: the file is empty")
        return cls.from_bytes(content, str(path))

    def fingerprint(self) -> str:
        """A hash of `to_bytes`."""
        return hashlib.blake2b(self.to_bytes(), digest_size=16).hexdigest()

    def __reduce__(self) -> tuple[Callable, tuple]:
        return type(self).from_bytes, (self.to_bytes(),)


class PipelineTokenizer(Tokenizer):
    """A tokenizer of the library `tokenizers`, given as a tokenizers.Tokenizer.

    needed: the pieces that its vocabulary must have. before: what each word is encoded with in front of it.
    """

    needed: tuple[str, ...]
    before = ""

    def __init__(self, tokenizer: "Pipeline", name: str = "tokenizer"):
        """Raises DataError, naming them, if pieces are missing. A subclass sets `starts` and the ids."""
        super().__init__()
        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokenizer.encode_special_tokens = True  # in a text, they are ordinary text
        self.vocabulary = tokenizer.get_vocab()
        if missing := [piece for piece in self.needed if piece not in self.vocabulary]:
            raise DataError(f"{name}: the vocabulary does not contain {', '.join(missing)}")
        self._tokenizer = tokenizer
        self.vocab_size = 1 + max(self.vocabulary.values())  # some files have gaps between their ids
        self.starts = np.ones(self.vocab_size, bool)

    def to_bytes(self) -> bytes:
        return self._tokenizer.to_str().encode()

    def starts_word(self, ids: np.ndarray) -> np.ndarray:
        return self.starts[ids]

    def _encode_words(self, words: list[str]) -> list[list[int]]:
        # One by one, because encode_batch starts threads, which do not survive the fork of a data worker.
        return [self._tokenizer.encode(self.before + word, add_special_tokens=False).ids for word in words]


def file_in(file: str, names: Iterable[str]) -> Path:
    """The file itself, or the first of these names in the folder. Returns the folder if it contains none of them."""
    path = Path(file)
    return next((path / name for name in names if (path / name).is_file()), path)


def read_pipeline(content: bytes, name: str) -> "Pipeline":
    """The tokenizer in a tokenizer.json. Raises DataError for any other file."""
    from tokenizers import Tokenizer as Pipeline

    with reading(name, "not a tokenizer.json"):
        return Pipeline.from_buffer(content)


def tokenizer_class(settings: Mapping[str, object]) -> type[Tokenizer]:
    """The class that the settings of a tokenizer name. Raises ConfigError."""
    return class_of("tokenizer", settings, Tokenizer)


def check_tokenizer(settings: Mapping[str, object]) -> list[str]:
    """All problems with the settings of a tokenizer that show before data is read."""
    try:
        cls = tokenizer_class(settings)
        return cls.check(read_options("tokenizer", cls.from_settings, settings, facts=("draw",), elsewhere=RESERVED))
    except ConfigError as error:
        return error.problems
