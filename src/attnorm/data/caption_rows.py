"""What sources of images with captions have in common: the structure of their rows, and the words of a caption."""

import re
import unicodedata
from abc import abstractmethod
from functools import lru_cache
from pathlib import Path

from attnorm.data.images import Images
from attnorm.data.sources.base import RowSchema, Source

# id: of the image, unique in its split. captions: its captions, one per line, each in the form of `plain`.
CAPTIONS = RowSchema("captions", "image", ("id", "captions"), ("captions",), (), ("captions",))
_WORD = re.compile(r"[^\s'’-]+(?:['’-][^\s'’-]+)*")


class CaptionSource(Source):
    """A source of images with captions."""

    schema = CAPTIONS

    @abstractmethod
    def images(self, split: str, cache_dir: str | Path) -> Images:
        """The images of a split, from the cache or newly built."""


def plain_words(caption: str) -> str:
    """A caption as it is learned and scored: its words in lower case, separated by single spaces.

    A word consists of letters, their marks, and digits, with apostrophes and hyphens inside it. All other characters,
    such as punctuation, are dropped. The Java tokenizer of the COCO evaluation also lower-cases and drops punctuation,
    but it splits "dog's" into "dog" and "'s".
    """
    text = unicodedata.normalize("NFC", caption.lower())
    return " ".join(_WORD.findall("".join(letter if _is_part_of_word(letter) else " " for letter in text)))


@lru_cache(maxsize=1 << 12)
def _is_part_of_word(character: str) -> bool:
    return character in "'’-" or unicodedata.category(character)[0] in "LMN"  # letters, marks, numbers
