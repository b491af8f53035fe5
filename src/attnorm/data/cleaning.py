"""Cleaning of texts before they are tokenized."""

import re

_ASCII_DIGITS = str.maketrans(dict.fromkeys("0123456789", "#"))
_DIGIT = re.compile(r"\d")
_UNKNOWN = re.compile(r"(?<!\S)UNK(?!\S)")


def clean(text: str, *, lowercase: bool, digits: bool) -> str:
    """Returns one line of words separated by single spaces, optionally lower-cased and with digits replaced by '#'.

    These are the steps of the published Gigaword headlines, which are therefore unchanged. Cleaning is idempotent.
    White space is defined by Unicode.
    """
    text = " ".join(text.split())
    if lowercase:
        text = text.lower()
    if digits:
        text = text.translate(_ASCII_DIGITS) if text.isascii() else _DIGIT.sub("#", text)
    return text


def read_unknown(text: str) -> str:
    """Replaces the word UNK by <unk>.

    The published headline files contain <unk> for unknown words in the training files, but UNK in the test files.
    """
    return _UNKNOWN.sub("<unk>", text) if "UNK" in text else text
