"""What sources of images with captions have in common: the structure of their rows, and the words of a caption."""

import re
from abc import abstractmethod
from pathlib import Path

from attnorm.data.images import Images
from attnorm.data.sources.base import RowSchema, Source

# id: of the image, unique in its split. captions: its captions, one per line, each in the form of `plain`.
CAPTIONS = RowSchema("captions", "image", ("id", "captions"), ("captions",), (), ("captions",))
_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")


class CaptionSource(Source):
    """A source of images with captions."""

    schema = CAPTIONS

    @abstractmethod
    def images(self, split: str, cache_dir: str | Path) -> Images:
        """The images of a split, from the cache or newly built."""


def plain(caption: str) -> str:
    """A caption as it is learned and scored: its words in lower case, separated by single spaces.

    A word consists of letters and digits, with apostrophes and hyphens inside it. All other characters, such as
    punctuation, are dropped. The Java tokenizer of the COCO evaluation also lower-cases and drops punctuation, but it
    splits "dog's" into "dog" and "'s".
    """
    return " ".join(_WORD.findall(caption.lower()))
