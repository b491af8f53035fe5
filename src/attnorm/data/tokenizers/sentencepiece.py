"""Subwords of sentencepiece (Kudo and Richardson, 2018), unigram or BPE, trained on the training split."""

import io
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, groupby
from typing import Literal

import numpy as np

from attnorm.data.readers.text import file_problem
from attnorm.data.tokenizers.base import UNK, Tokenizer, file_in
from attnorm.errors import DataError, reading, refuse_one_text
from attnorm.schema import Count

log = logging.getLogger(__name__)

_SPACE = "▁"
_PAD, _BOS, _EOS, _UNK = range(4)
# sentencepiece reserves ▁ ▅ and NUL: a word that contains one of them cannot be represented.
_RESERVED = re.compile("[▁▅\0]")
_THREADS = 4  # fixed, because the result of the training depends on it
_LONGEST = 1 << 24  # bytes of a sentence; sentencepiece silently skips longer ones


class SentencePiece(Tokenizer):
    """Lossless on text like its training text: decode(encode(x)) == x for words of seen characters.

    Each character that was not in the training text becomes one `<unk>`, or its bytes if the model has them
    (`byte_fallback`).
    """

    FILE = "sentencepiece.model"
    pad_id, bos_id, eos_id, unk_id = _PAD, _BOS, _EOS, _UNK

    def __init__(self, model: bytes):
        import sentencepiece

        super().__init__()
        self._model = model
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.vocab_size = self._processor.get_piece_size()
        pieces = [piece.replace(_SPACE, " ") for piece in map(self._processor.id_to_piece, range(self.vocab_size))]
        self._pieces = ["", "", "", f" {UNK}", *pieces[4:]]
        self._bytes = frozenset(filter(self._processor.is_byte, range(self.vocab_size)))
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
    ) -> "SentencePiece":
        """Reads `file`, a model of sentencepiece or a folder with sentencepiece.model; without a file, trains on
        `sample` sentences (None: on all).

        Raises DataError for a file that is not such a model, whose special tokens have other ids than those of this
        class, or that marks no spaces in a single word, and the errors of `train`.
        """
        if file is None:
            assert draw is not None  # only a tokenizer from a file does without sentences
            return cls.train(draw(sample), model_type=model_type, vocab_size=vocab_size)
        name = f"tokenizer.file={file}"
        tokenizer = cls.from_bytes(file_in(file, (cls.FILE,)).read_bytes(), name)
        read = tokenizer._processor
        ids, needed = (read.pad_id(), read.bos_id(), read.eos_id(), read.unk_id()), (_PAD, _BOS, _EOS, _UNK)
        if ids != needed:
            raise DataError(f"{name}: the ids of pad, bos, eos and unk must be {needed}, not {ids}")
        if _SPACE not in "".join(read.encode("a", out_type=str)):
            raise DataError(f"{name}: words would run together; expected a model with add_dummy_prefix=true")
        return tokenizer

    @classmethod
    def check(cls, options: dict) -> list[str]:
        """A file that is missing or empty."""
        if (file := options.get("file")) is None:
            return []
        if (path := file_in(file, (cls.FILE,))).is_dir():
            return [f"tokenizer.file={file}: no {cls.FILE} in this folder"]
        return file_problem(f"tokenizer.file={file}", path)

    @classmethod
    def from_bytes(cls, content: bytes, name: str = "tokenizer") -> "SentencePiece":
        with reading(name, "not a sentencepiece model"):
            return cls(content)

    def token(self, number: int) -> str:
        return self._processor.id_to_piece(number) if number > _UNK else super().token(number)

    def to_bytes(self) -> bytes:
        return self._model

    def starts_word(self, ids: np.ndarray) -> np.ndarray:
        return self._starts[ids]

    def _encode_words(self, words: list[str]) -> list[list[int]]:
        words = [_RESERVED.sub("▅", word) for word in words]  # the trainer never takes ▅ into a vocabulary
        encoded = self._processor.encode(words, out_type=int)
        if self._bytes:  # which would spell ▅
            return [[_UNK] if "▅" in word else ids for word, ids in zip(words, encoded, strict=True)]
        return [self._unmerged(word, ids) if _UNK in ids else ids for word, ids in zip(words, encoded, strict=True)]

    def _unmerged(self, word: str, ids: list[int]) -> list[int]:
        """The ids of a word with one _UNK per unknown character. sentencepiece has one per run of them."""
        pieces = self._processor.encode(word, out_type=str)  # an unknown piece is the text that it stands for
        runs = ([_UNK] * len(piece) if id_ == _UNK else [id_] for piece, id_ in zip(pieces, ids, strict=True))
        return list(chain.from_iterable(runs))

    def decode(self, ids: Iterable[int]) -> str:
        text = ""
        for are_bytes, run in groupby(map(int, ids), self._bytes.__contains__):
            numbers = list(run)
            text += self._processor.decode(numbers) if are_bytes else "".join([self._pieces[id_] for id_ in numbers])
        return " ".join(text.split())


def _without_unknown(sentences: Iterable[str], characters: set[str]) -> Iterator[str]:
    """Removes the words that are encoded as <unk>, and adds the remaining characters to `characters`."""
    for sentence in sentences:
        if UNK in sentence or _RESERVED.search(sentence):
            sentence = " ".join(word for word in sentence.split() if word != UNK and not _RESERVED.search(word))
        characters.update(sentence)
        yield sentence
