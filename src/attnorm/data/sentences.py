"""Divides a text into sentences, by its punctuation."""

import re

# A word that ends a sentence: . ! or ?, possibly inside quotation marks or brackets.
_END = re.compile(r"[.!?][\"'”’)\]]*$")
_OPENING = "\"'“‘(["
_ABBREVIATIONS = {
    *("mr", "mrs", "ms", "dr", "st", "prof", "rev", "hon", "capt", "col", "gen", "lt", "sgt", "messrs", "mme", "mlle"),
    *("jr", "sr", "vol", "chap", "viz", "i.e", "e.g"),
}


def split_sentences(text: str) -> list[str]:
    """The sentences of a text, each with its words separated by single spaces; [] for a text without words.

    A sentence ends at a word with . ! or ? at its end, unless the word is a common abbreviation or a single letter (an
    initial), or the next word starts with a small letter in a text that has capitals.
    """
    words, has_capitals = text.split(), text != text.lower()
    sentences, begun = [], 0
    for number, word in enumerate(words, start=1):
        following = words[number].lstrip(_OPENING) if number < len(words) else ""
        if ends_sentence(word) and not (has_capitals and following[:1].islower()):
            sentences.append(" ".join(words[begun:number]))
            begun = number
    return sentences + [" ".join(words[begun:])] * (begun < len(words))


def ends_sentence(word: str) -> bool:
    """Whether a word has the punctuation of the end of a sentence, and is not an abbreviation."""
    return _END.search(word) is not None and not is_abbreviated(word)


def is_abbreviated(word: str) -> bool:
    """Whether a word is a common abbreviation with its period, or an initial."""
    bare = word.strip(_OPENING)
    return bare.endswith(".") and (bare[:-1].lower() in _ABBREVIATIONS or (len(bare) == 2 and bare[0].isupper()))
