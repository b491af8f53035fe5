"""A tokenizer that needs no training: one token per character."""

import json
from collections.abc import Callable, Iterable

import numpy as np

from attnorm.data.tokenizers.base import Tokenizer


class Characters(Tokenizer):
    FILE = "characters.json"
    pad_id, bos_id, eos_id, unk_id = range(4)

    def __init__(self, alphabet: str):
        super().__init__()
        self.alphabet, self.vocab_size = alphabet, 4 + len(alphabet)

    @classmethod
    def from_settings(cls, draw: Callable[[int | None], Iterable[str]], *, alphabet: str) -> "Characters":
        return cls(alphabet)

    @classmethod
    def needs_training(cls, options: dict) -> bool:
        return False

    @classmethod
    def check(cls, options: dict) -> list[str]:
        return [] if options["alphabet"] else ["tokenizer.alphabet: must not be empty"]

    def _encode_words(self, words: list[str]) -> list[list[int]]:
        return [[4 + index if (index := self.alphabet.find(c)) >= 0 else self.unk_id for c in word] for word in words]

    def decode(self, ids: Iterable[int]) -> str:
        return "".join(self.alphabet[number - 4] for number in ids if number >= 4)

    def starts_word(self, ids: np.ndarray) -> np.ndarray:
        return np.ones(ids.shape, bool)

    def to_bytes(self) -> bytes:
        return json.dumps(self.alphabet).encode()

    @classmethod
    def from_bytes(cls, content: bytes, name: str = "tokenizer") -> "Characters":
        return cls(json.loads(content))
