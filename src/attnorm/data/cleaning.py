"""Cleaning: what is done to the words before any tokenizer sees them."""

import re

_ASCII_DIGITS = str.maketrans(dict.fromkeys("0123456789", "#"))
_DIGIT = re.compile(r"\d")
_UNKNOWN = re.compile(r"(?<!\S)UNK(?!\S)")


def clean(text: str, *, lowercase: bool, digits: bool) -> str:
    """One line of words separated by single spaces; lower-cased if `lowercase`; every digit a '#' if `digits`.

    These are the steps of the published Gigaword headlines, so that they leave those unchanged; cleaning twice is
    cleaning once. White space is everything that Unicode calls so.
    """
    text = " ".join(text.split())
    if lowercase:
        text = text.lower()
    if digits:
        text = text.translate(_ASCII_DIGITS) if text.isascii() else _DIGIT.sub("#", text)
    return text


def read_unknown(text: str) -> str:
    """`text` with <unk> instead of the word UNK: the published headline files write an unknown word as <unk> in the
    training files, but as UNK in the test files."""
    return _UNKNOWN.sub("<unk>", text) if "UNK" in text else text
