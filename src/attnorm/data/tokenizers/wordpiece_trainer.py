"""Trains a WordPiece vocabulary deterministically, and builds BERT's tokenization pipeline for a vocabulary."""

import logging
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING

from attnorm.data.tokenizers.base import UNK
from attnorm.errors import DataError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Pipeline

log = logging.getLogger(__name__)

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # at ids 0 to 4
_CHARACTERS = 1000  # characters in the vocabulary, if these are _COVERAGE of the text; rarer ones become [UNK]
_COVERAGE = 0.9995
_LONGEST = 100  # characters of a word of WordPiece; longer ones would become [UNK]
_LEAST_COUNT = 2  # minimum count of a piece with several characters


def pipeline(vocabulary: Mapping[str, int], lowercase: bool) -> "Pipeline":
    """A tokenizers.Tokenizer with the pipeline of BERT. `lowercase` also removes accents."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    made = Tokenizer(models.WordPiece(dict(vocabulary), unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return made


def pipeline_by_character(vocabulary: Mapping[str, int], lowercase: bool) -> "Pipeline":
    """As `pipeline`, but accents, vowel signs and joiners are kept, and each character that the vocabulary cannot spell
    is an [UNK] of its own, as if it stood between two spaces."""
    from tokenizers import Regex, normalizers, pre_tokenizers

    beginning = {piece for piece in vocabulary if len(piece) == 1}
    alone = beginning - {piece[2:] for piece in vocabulary if piece.startswith("##")}  # only at the start of a word
    unspelled = [f"[^{_escaped(beginning)}]", *[rf"(?!\A)[{_escaped(alone)}]"] * bool(alone)]
    made = pipeline(vocabulary, lowercase)
    made.normalizer = normalizers.BertNormalizer(clean_text=False, strip_accents=False, lowercase=lowercase)
    cuts = [Regex("|".join(unspelled)), Regex(f".{{1,{_LONGEST}}}")] if beginning else []
    steps = [made.pre_tokenizer, *(pre_tokenizers.Split(cut, "isolated") for cut in cuts)]
    made.pre_tokenizer = pre_tokenizers.Sequence(steps)
    return made


def _escaped(characters: Iterable[str]) -> str:
    return "".join(map(re.escape, sorted(characters)))


def train_wordpiece(sentences: Callable[[], Iterable[str]], *, vocab_size: int, lowercase: bool) -> "Pipeline":
    """`pipeline_by_character` of a vocabulary of `vocab_size` pieces, trained on `sentences()`, which is called twice.

    Raises ValueError if the vocabulary is too small for all characters. If the sentences have too few pieces, the
    vocabulary is smaller, which is logged.
    """
    from tokenizers import trainers

    trained = pipeline_by_character({}, lowercase)
    beginning, continuing = _characters(sentences(), trained, vocab_size)
    # The trainer numbers characters in the order of a hash table, and ties between pieces go by number. Listed as
    # special tokens, they have their numbers before it begins.
    first = [*SPECIAL, *beginning, *continuing]
    if vocab_size < len(first):
        raise DataError(
            f"tokenizer.vocab_size={vocab_size}: too small for the {len(first) - len(SPECIAL)} characters that begin "
            f"and continue the words of the training text and {len(SPECIAL)} special tokens; the least that works is "
            f"{len(first)}"
        )
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=_LEAST_COUNT,
        special_tokens=first,
        initial_alphabet=beginning,
        limit_alphabet=len(beginning),
        show_progress=False,
    )
    trained.train_from_iterator(map(_without_unknown, sentences()), trainer)
    vocabulary = trained.get_vocab()
    if len(vocabulary) < vocab_size:
        log.warning("tokenizer.vocab_size=%d: the training text yields only %d tokens", vocab_size, len(vocabulary))
    # in the trained pipeline, each listed character is a special token
    return pipeline_by_character(vocabulary, lowercase)


def _characters(sentences: Iterable[str], pipeline: "Pipeline", vocab_size: int) -> tuple[list[str], list[str]]:
    """The characters of the words, sorted, and "##" followed by each character that continues a word."""
    words: Counter[str] = Counter()
    for sentence in sentences:
        words.update(sentence.split())
    words.pop(UNK, None)
    counts: Counter[str] = Counter()
    continuing: set[str] = set()
    for word, times in words.items():
        for piece, _ in pipeline.pre_tokenizer.pre_tokenize_str(pipeline.normalizer.normalize_str(word)):
            for character in piece:
                counts[character] += times
            continuing.update(piece[1:])
    ranked = sorted(counts, key=lambda character: (-counts[character], character))
    covering = 1 + bisect_left(list(accumulate(map(counts.__getitem__, ranked))), _COVERAGE * counts.total())
    kept = ranked[: max(_CHARACTERS, min(covering, vocab_size // 3))]  # of 3: some pieces may be words
    if len(kept) < len(counts):
        log.info("the vocabulary spells %d of %d characters; the others are [UNK]", len(kept), len(counts))
    return sorted(kept), [f"##{character}" for character in sorted(continuing.intersection(kept))]


def _without_unknown(sentence: str) -> str:
    if UNK not in sentence:
        return sentence
    return " ".join(word for word in sentence.split() if word != UNK)
