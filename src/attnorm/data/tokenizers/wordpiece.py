"""BERT's WordPiece (Devlin et al., 2019), with an existing vocabulary or one trained on the train split."""

import re
import unicodedata
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from attnorm.data.readers import text as files
from attnorm.data.tokenizers.base import REMEMBERED, UNK, PipelineTokenizer, file_in, read_pipeline
from attnorm.data.tokenizers.wordpiece_trainer import pipeline, train_wordpiece
from attnorm.errors import DataError
from attnorm.schema import Count

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Pipeline

SPECIAL = {"pad_id": "[PAD]", "bos_id": "[CLS]", "eos_id": "[SEP]", "unk_id": "[UNK]"}
MASK = "[MASK]"
_NAMES = ("vocab.txt", "tokenizer.json")  # the file names to look for in a folder, in this order

# BERT splits at every punctuation mark, and the positions of spaces are lost. These patterns join words again as in the
# published headlines: ##.# / u.s. / -lrb- / ca n't / the state 's / vice-president / --.
_JOINS: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(r"(?<=#) (?=#)"), ""),
    (re.compile(r"(?<=#) ([.:/-]) (?=#)"), r"\1"),
    (re.compile(r"(?<=#) , (?=###(?!#))"), ","),
    (re.compile(r"(?<!\S)(?:[^\W\d_] \. ){2,}"), lambda match: match[0].replace(" ", "") + " "),
    (re.compile(r"(?<!\S)(?:[^\W\d_] \. )+[^\W\d_] \.(?!\S)"), lambda match: match[0].replace(" ", "")),
    (re.compile(r"(?<!\S)- ([lr][rcs]b) -(?!\S)"), r"-\1-"),
    (re.compile(r"(?<!\S)n ' t(?!\S)"), "n't"),
    (re.compile(r"(?<!\S)' (s|re|ve|ll|d|m)(?!\S)"), r"'\1"),
    (re.compile(r"(?<!\S)- -(?!\S)"), "--"),
    (re.compile(r"(?<=[\w#]) - (?=[\w#])"), "-"),
]
_HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002fa1f"  # BERT puts spaces around these
_JOIN_OF_HAN = (re.compile(f"(?<=[{_HAN}]) | (?=[{_HAN}])"), "")


class WordPiece(PipelineTokenizer):
    """[CLS] and [SEP] are used as bos and eos. Decoding, for display and for metrics, restores spaces by rules."""

    FILE = "tokenizer.json"
    has_mask = has_offsets = True
    needed = tuple(SPECIAL.values())

    def __init__(self, tokenizer: "Pipeline", name: str = "tokenizer"):
        super().__init__(tokenizer, name)
        self.pad_id, self.bos_id, self.eos_id, self.unk_id = (self.vocabulary[token] for token in self.needed)
        self.mask_id = self.vocabulary.get(MASK)
        keeps_accents = getattr(tokenizer.normalizer, "strip_accents", None) is False  # as those trained here
        self._joins = [*_JOINS, *[_JOIN_OF_HAN] * keeps_accents]
        self.starts[[i for piece, i in self.vocabulary.items() if _continues(piece)]] = False
        self._placed: dict[str, list[tuple[int, int, int]]] = {}  # word: (id, start, end) of its pieces

    @classmethod
    def from_settings(  # type: ignore[override]  # names its options
        cls,
        draw: Callable[[int | None], Iterable[str]] | None = None,
        *,
        file: str | None = None,
        vocab_size: Count = 30_522,
        sample: Count | None = 500_000,
        lowercase: bool | None = None,
    ) -> "WordPiece":
        """Read `file`, a vocab.txt (one piece a line), a tokenizer.json or a folder with one of them; without a file,
        train `vocab_size` pieces on `sample` sentences (None: on all).

        `lowercase` None does as the file says: a vocab.txt without capitals is lower-cased; trained: True. With a file,
        it also removes accents. Raises ValueError.
        """
        if file is None:
            assert draw is not None  # only a tokenizer from a file does without sentences
            return cls(train_wordpiece(partial(draw, sample), vocab_size=vocab_size, lowercase=lowercase is not False))
        path, name = file_in(file, _NAMES), f"tokenizer.file={file}"
        if path.suffix == ".json":
            return cls(_from_json(path.read_bytes(), name, lowercase), name)
        return cls(_from_vocabulary(path, lowercase), name)

    @classmethod
    def check(cls, options: dict) -> list[str]:
        """A file that is missing or empty, or has neither format."""
        if (file := options.get("file")) is None:
            return []
        key = f"tokenizer.file={file}"
        if not file:
            return [f"{key}: must name a vocab.txt or a tokenizer.json; null trains one"]
        if (path := file_in(file, _NAMES)).is_dir():
            return [f"{key}: no {' or '.join(_NAMES)} in this folder"]
        if Path(file).suffix not in (".txt", ".json") and not Path(file).is_dir():
            return [f"{key}: must be a vocab.txt or a tokenizer.json, or a folder with one of them"]
        return files.file_problem(key, path)

    @classmethod
    def from_bytes(cls, content: bytes, name: str = "tokenizer") -> "WordPiece":
        return cls(_from_json(content, name, None), name)

    def token(self, number: int) -> str:
        return self._tokenizer.id_to_token(number) or UNK

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        if len(self._placed) > REMEMBERED:
            self._placed.clear()
        ids, offsets = [], []
        for match in re.finditer(r"\S+", text):
            if (placed := self._placed.get(match[0])) is None:
                placed = self._placed[match[0]] = self._place(match[0])
            for piece, start, end in placed:
                ids.append(piece)
                offsets.append((match.start() + start, match.start() + end))
        return ids, offsets

    def _place(self, word: str) -> list[tuple[int, int, int]]:
        if word == UNK:
            return [(self.unk_id, 0, len(word))]
        encoded = self._tokenizer.encode(word, add_special_tokens=False)
        limits = [*(start for start, _ in encoded.offsets), len(word)][1:]  # where the next piece starts
        placed = []
        for piece, (start, end), limit in zip(encoded.ids, encoded.offsets, limits, strict=True):
            while end < limit and unicodedata.combining(word[end]):  # a removed accent belongs to its letter
                end += 1
            placed.append((piece, start, end))
        return placed

    def decode(self, ids: Iterable[int]) -> str:
        kept = [i for i in map(int, ids) if i not in (self.pad_id, self.bos_id, self.eos_id)]
        tokens = [UNK if i == self.unk_id else self._tokenizer.id_to_token(i) or UNK for i in kept]
        text = "".join(token[2:] if _continues(token) else f" {token}" for token in tokens)
        text = " ".join(text.split())
        for pattern, joined in self._joins:
            text = pattern.sub(joined, text)
        return text


def _continues(piece: str) -> bool:
    return len(piece) > 2 and piece.startswith("##")


def _from_vocabulary(file: Path, lowercase: bool | None) -> "Pipeline":
    pieces = [line.rstrip("\r\n") for line in files.read_lines(file)]
    while pieces and not pieces[-1]:  # blank lines at the end
        pieces.pop()
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    if len(vocabulary) < len(pieces):
        twice = next(i for i, piece in enumerate(pieces) if vocabulary[piece] != i)
        raise DataError(f"{file}:{twice + 1}: {pieces[twice]!r} is repeated in this vocabulary")
    if lowercase is None:
        lowercase = not any(p != p.lower() for p in vocabulary if not re.fullmatch(r"\[\w+\]", p))
    return pipeline(vocabulary, lowercase)


def _from_json(content: bytes, name: str, lowercase: bool | None) -> "Pipeline":
    from tokenizers import models, normalizers

    read = read_pipeline(content, name)
    if not isinstance(read.model, models.WordPiece):
        raise DataError(
            f"{name}: this tokenizer is a {type(read.model).__name__}, not a WordPiece; use tokenizer=huggingface"
        )
    if lowercase is not None:
        if not isinstance(read.normalizer, normalizers.BertNormalizer):
            raise DataError(f"tokenizer.lowercase={lowercase}: {name} has no BertNormalizer to tell; use null")
        read.normalizer.lowercase = lowercase
    return read
