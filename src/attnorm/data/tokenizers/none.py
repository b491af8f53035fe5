"""A stand-in for the tokenizer of a task whose models read no text."""

from collections.abc import Callable, Iterable

import numpy as np

from attnorm.data.tokenizers.base import Tokenizer
from attnorm.errors import DataError


class NoText(Tokenizer):
    """Has no vocabulary, so it needs no training. Raises DataError if there is a text to encode."""

    FILE = "no_text.json"
    vocab_size, pad_id, bos_id, eos_id, unk_id = 0, 0, 0, 0, 0

    @classmethod
    def needs_training(cls, options: dict) -> bool:
        return False

    @classmethod
    def from_settings(cls, draw: Callable[[int | None], Iterable[str]] | None) -> "NoText":  # type: ignore[override]
        return cls()

    def _encode_words(self, words: list[str]) -> list[list[int]]:
        raise DataError("tokenizer=none: this task reads text; use tokenizer=sentencepiece or tokenizer=wordpiece")

    def decode(self, ids: Iterable[int]) -> str:
        return ""

    def starts_word(self, ids: np.ndarray) -> np.ndarray:
        return np.ones(ids.shape, bool)

    def to_bytes(self) -> bytes:
        return b"{}\n"

    @classmethod
    def from_bytes(cls, content: bytes, name: str = "tokenizer") -> "NoText":
        return cls()
