"""The built-in corpus of long documents: chronicles of invented towns.

    from attnorm.data.synthetic.chronicles import chronicle
    text = chronicle("train", 0)

A chronicle introduces the people of a town, with facts that are drawn for this chronicle alone, and then tells what
happens day by day. Most sentences mention facts that were stated long before, so a model that sees more of the context
predicts them better:

- The trade, the birthplace and the animal of a person are stated once at the beginning, and mentioned again later.
- Some things pass from hand to hand. Who has a thing follows from the latest sentence that gives it away.
- A song of invented words is sung line by line, always in the same order.
- The days are counted.

The text is a pure function of (split, index, seed).
"""

from attnorm.data.synthetic.chronicles.generate import chronicle

__all__ = ["chronicle"]
