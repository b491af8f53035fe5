"""The built-in headline corpus: made-up newswire in the form of Gigaword, lead sentence -> headline.

    from attnorm.data.synthetic.newswire import pair
    article, headline = pair("train", 0)

Every country, person, company and club is invented. The text is a pure function of (split, index, seed, difficulty).
See `generate` for how a pair is drawn and what makes it hard, and `notation` for how to add an event kind in a few
lines.
"""

from attnorm.data.synthetic import SPLITS
from attnorm.data.synthetic.newswire.generate import DIFFICULTIES, EVENT_KINDS, Story, pair, story

__all__ = ["DIFFICULTIES", "EVENT_KINDS", "SPLITS", "Story", "pair", "story"]
