"""The built-in parallel corpus: sentences of an invented language, Kelvan, and their English translations.

    from attnorm.data.synthetic.phrases import pair
    kelvan, english = pair("train", 0)

Kelvan differs from English in what makes a translation depend on attention:

- Its order is subject, place, object, verb, time, and adjectives and numbers follow their noun. English has the time
  first and the verb second. What somebody says stands before the speaker. So alignments cross, some of them far away.
- One Kelvan word can stand for several English ones: nouns carry the article and the number as endings, verbs carry
  tense and negation, and compounds are one word. The fertility of a word, the number of its translations, is 1 to 3.
- Some verbs have two translations, which depend on the object.

The text is a pure function of (split, index, seed). No English sentence occurs in two splits.
"""

from attnorm.data.synthetic.phrases.generate import SPLITS, pair

__all__ = ["SPLITS", "pair"]
