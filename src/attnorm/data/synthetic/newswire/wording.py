"""The wording of stories: words for which reporters and copy editors have more than one choice (text/wording.txt).

In the corpus of difficulty "hard", each occurrence of such a word is replaced by one of its choices, drawn uniformly
and independently of everything else. In an article, this means more words to learn for the same event. In a headline,
no model can predict which choice was drawn, as with real headlines.
"""

from collections.abc import Callable, Mapping

from attnorm.data.synthetic.newswire.lexicon import TEXT
from attnorm.data.synthetic.text_files import sections


def _read(lines: list[str]) -> dict[str, tuple[str, ...]]:
    entries = (line.partition(":") for line in lines)
    return {word: (word, *(other.strip() for other in others.split("|"))) for word, _, others in entries}


_CHOICES = sections(TEXT / "wording.txt")
ARTICLE_CHOICES, HEADLINE_CHOICES = _read(_CHOICES["articles"]), _read(_CHOICES["headlines"])


def reword(random: Callable[[], float], text: str, choices: Mapping[str, tuple[str, ...]]) -> str:
    """Replaces each word of the text that has choices by one of them, drawn with `random`."""
    words = (choices.get(word, (word,)) for word in text.split())
    return " ".join(options[int(random() * len(options))] for options in words)
