"""Subwords of sentencepiece (Kudo and Richardson, 2018), trained on the training split or from a file of others."""

import io
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Literal

import numpy as np

from attnorm.data.readers.text import file_problem
from attnorm.data.tokenizers.base import UNK, Tokenizer, file_in
from attnorm.data.tokenizers.library import LibraryTokenizer
from attnorm.errors import DataError, reading, refuse_one_text
from attnorm.schema import Count

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor

log = logging.getLogger(__name__)

_SPACE = "▁"
_PAD, _BOS, _EOS, _UNK = range(4)
# sentencepiece reserves ▁ ▅ and NUL: a word that contains one of them cannot be represented.
_RESERVED = re.compile("[▁▅\0]")
_THREADS = 4  # fixed, because the result of the training depends on it
_LONGEST = 1 << 24  # bytes of a sentence; sentencepiece silently skips longer ones


class SentencePiece(Tokenizer):
    """Lossless on text like its training text: decode(encode(x)) == x for words of seen characters.

    Each character that was not in the training text becomes one `<unk>`.
    """

    FILE = "sentencepiece.model"
    names = (FILE, "spiece.model", "tokenizer.model", "sentencepiece.bpe.model")  # in a folder, in this order
    pad_id, bos_id, eos_id, unk_id = _PAD, _BOS, _EOS, _UNK

    def __init__(self, model: bytes):
        """model: of `train`."""
        super().__init__()
        self._model, self._processor = model, _processor(model)
        self.vocab_size = self._processor.get_piece_size()
        pieces = [piece.replace(_SPACE, " ") for piece in map(self._processor.id_to_piece, range(self.vocab_size))]
        self._pieces = ["", "", "", f" {UNK}", *pieces[4:]]
        self._starts = np.array([i < 4 or piece.startswith(" ") for i, piece in enumerate(self._pieces)])

    @classmethod
    def train(cls, sentences: Iterable[str], *, model_type: str, vocab_size: int) -> "SentencePiece":
        """Trains on cleaned sentences. The same sentences in the same order give the same bytes.

        Raises ValueError if the vocabulary is too small for all characters. If the sentences have too few pieces, the
        vocabulary is smaller, which is logged.
        """
        import sentencepiece

        refuse_one_text("train", sentences)
        characters: set[str] = set()
        model = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=_without_unknown(sentences, characters),
                model_writer=model,
                model_type=model_type,
                vocab_size=vocab_size,
                pad_id=_PAD,
                bos_id=_BOS,
                eos_id=_EOS,
                unk_id=_UNK,
                pad_piece="<pad>",
                unk_piece=UNK,
                unk_surface=UNK,
                character_coverage=1.0,
                normalization_rule_name="identity",  # the default normalizes characters, which cannot be undone
                hard_vocab_limit=False,
                shuffle_input_sentence=False,
                max_sentence_length=_LONGEST,
                num_threads=_THREADS,
                minloglevel=2,
            )
        except RuntimeError as error:
            least = len(characters | {" "}) + 4
            if vocab_size < least:
                raise DataError(
                    f"tokenizer.vocab_size={vocab_size}: too small for the {least - 4} characters of the training "
                    f"text and 4 special tokens; the least that works is {least}"
                ) from error
            raise DataError(f"tokenizer: sentencepiece could not train on this text: {error}") from error
        tokenizer = cls(model.getvalue())
        if tokenizer.vocab_size < vocab_size:
            log.warning(
                "tokenizer.vocab_size=%d: the training text yields only %d tokens", vocab_size, tokenizer.vocab_size
            )
        return tokenizer

    @classmethod
    def from_settings(  # type: ignore[override]  # names its options
        cls,
        draw: Callable[[int | None], Iterable[str]] | None = None,
        *,
        file: str | None = None,
        model_type: Literal["unigram", "bpe"] = "bpe",
        vocab_size: Count = 4000,
        sample: Count | None = 500_000,
    ) -> "SentencePiece | SentencePieceFile":
        """Reads `file`, any model of sentencepiece or a folder with one of `names`; without a file, trains on `sample`
        sentences (None: on all).

        Raises DataError for a file that is not such a model, and the errors of `train`.
        """
        if file is None:
            assert draw is not None  # only a tokenizer from a file does without sentences
            return cls.train(draw(sample), model_type=model_type, vocab_size=vocab_size)
        tokenizer = cls.from_bytes(file_in(file, cls.names).read_bytes(), f"tokenizer.file={file}")
        if isinstance(tokenizer, SentencePieceFile):
            tokenizer.say_what_is_added(file)
        return tokenizer

    @classmethod
    def check(cls, options: dict) -> list[str]:
        """A file that is missing or empty."""
        if (file := options.get("file")) is None:
            return []
        if (path := file_in(file, cls.names)).is_dir():
            return [f"tokenizer.file={file}: no {cls.FILE} in this folder"]
        return file_problem(f"tokenizer.file={file}", path)

    @classmethod
    def from_bytes(cls, content: bytes, name: str = "tokenizer") -> "SentencePiece | SentencePieceFile":
        """A model of `train`, or else one of others, which is used as it is."""
        with reading(name, "not a sentencepiece model"):
            return cls(content) if _is_of_train(_processor(content)) else SentencePieceFile(content)

    def token(self, number: int) -> str:
        return self._processor.id_to_piece(number) if number > _UNK else super().token(number)

    def to_bytes(self) -> bytes:
        return self._model

    def starts_word(self, ids: np.ndarray) -> np.ndarray:
        return self._starts[ids]

    def _encode_words(self, words: list[str]) -> list[list[int]]:
        words = [_RESERVED.sub("▅", word) for word in words]  # the trainer never takes ▅ into a vocabulary
        encoded = self._processor.encode(words, out_type=int)
        return [self._unmerged(word, ids) if _UNK in ids else ids for word, ids in zip(words, encoded, strict=True)]

    def _unmerged(self, word: str, ids: list[int]) -> list[int]:
        """The ids of a word with one _UNK per unknown character. sentencepiece has one per run of them."""
        pieces = self._processor.encode(word, out_type=str)  # an unknown piece is the text that it stands for
        runs = ([_UNK] * len(piece) if id_ == _UNK else [id_] for piece, id_ in zip(pieces, ids, strict=True))
        return list(chain.from_iterable(runs))

    def decode(self, ids: Iterable[int]) -> str:
        return " ".join("".join(self._pieces[id_] for id_ in map(int, ids)).split())


class SentencePieceFile(LibraryTokenizer):
    """A model that another program has trained, with any ids of its special tokens."""

    FILE, names = SentencePiece.FILE, SentencePiece.names

    def __init__(self, model: bytes):
        read = self._processor = _processor(model)
        special = [None if number < 0 else number for number in (read.pad_id(), read.bos_id(), read.eos_id())]
        super().__init__(model, read.get_piece_size(), *special, read.unk_id())
        self._unknown = read.decode([self.unk_id]).strip()
        for number in range(self._size):
            begins = read.id_to_piece(number).startswith(_SPACE)  # also shows a piece that is no UTF-8
            self.starts[number] = begins or read.is_control(number) or read.is_unknown(number)

    @classmethod
    def from_bytes(cls, content: bytes, name: str = "tokenizer") -> "SentencePieceFile":
        with reading(name, "not a sentencepiece model"):
            return cls(content)

    def token(self, number: int) -> str:
        is_text = number < self._size and number not in self._outer
        return self._processor.id_to_piece(number) if is_text else super().token(number)

    def _encode_words(self, words: list[str]) -> list[list[int]]:
        return self._processor.encode(words, out_type=int)

    def _unknown_characters(self, word: str) -> int:
        ids, pieces = (self._processor.encode(word, out_type=kind) for kind in (int, str))
        unknown = (piece for number, piece in zip(ids, pieces, strict=True) if number == self.unk_id)
        return min(len(word), sum(len(piece.replace(_SPACE, "")) for piece in unknown))

    def _decode(self, ids: list[int]) -> str:
        return self._processor.decode(ids)


def _processor(model: bytes) -> "SentencePieceProcessor":
    import sentencepiece

    return sentencepiece.SentencePieceProcessor(model_proto=model)


def _is_of_train(model: "SentencePieceProcessor") -> bool:
    """Whether a model has the special tokens of `SentencePiece.train`, marks spaces in a single word, and has no bytes:
    word by word, it encodes as a whole text."""
    ids = model.pad_id(), model.bos_id(), model.eos_id(), model.unk_id()
    is_spelled_so = ids == (_PAD, _BOS, _EOS, _UNK) and model.decode([_UNK]) == UNK
    marks_spaces = _SPACE in "".join(model.encode("a", out_type=str))
    return is_spelled_so and marks_spaces and model.piece_to_id("<0x00>") == _UNK


def _without_unknown(sentences: Iterable[str], characters: set[str]) -> Iterator[str]:
    """Removes the words that are encoded as <unk>, and adds the remaining characters to `characters`."""
    for sentence in sentences:
        if UNK in sentence or _RESERVED.search(sentence):
            sentence = " ".join(word for word in sentence.split() if word != UNK and not _RESERVED.search(word))
        characters.update(sentence)
        yield sentence
