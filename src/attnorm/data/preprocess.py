"""Converts a source to token ids, which are cached on disk under a hash of everything that determines them.

The cache has three kinds of folders: `rows-*` contains the cleaned texts of a split, `tokenizer-*` a tokenizer trained
on the rows of the train split, and `tokens-*` the ids of one split for one tokenizer and layout. After a change, only
what depends on it is rebuilt.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from attnorm.data import arrow as tables
from attnorm.data import validation as checks
from attnorm.data.cache import cached
from attnorm.data.featurizer import Featurizer
from attnorm.data.readers import text as files
from attnorm.data.sources.base import SHORT, Source
from attnorm.data.tokenizers.base import Tokenizer, check_tokenizer, tokenizer_class
from attnorm.errors import ConfigError, DataError
from attnorm.parts import options_of

if TYPE_CHECKING:
    from datasets import Dataset

log = logging.getLogger(__name__)

FORMAT = 3  # version of the cache; increase it when cleaning, tokenizing or the files change
TRAINED = 2  # version of the training of tokenizers; increase it when it changes


@dataclass(frozen=True)
class Split:
    """One split, ready for batching.

    fingerprint: a hash of everything that determines the rows: the source's content, cleaning, tokenizer and layout.
    texts, rows: memory-mapped tables with the (cleaned) columns of the source's schema, and the columns of the layout.
    counts:      the numbers of texts that were read, empty and kept, and the counts of the layout.
    lengths, weights: those of the layout, one per row of `rows`.
    """

    name: str
    fingerprint: str
    texts: "Dataset"
    rows: "Dataset"
    counts: dict[str, int]
    lengths: np.ndarray
    weights: np.ndarray
    tokenizer: Tokenizer

    def __len__(self) -> int:
        return len(self.lengths)


def prepare(
    source: Source,
    tokenizer: Tokenizer | Mapping[str, object],
    layout: Featurizer,
    *,
    lowercase: bool = False,
    digits: bool = False,
    max_rows: Mapping[str, int | None],
    cache_dir: str | Path,
    splits: Sequence[str] = ("train", "validation"),
    cleaner: Source | None = None,
) -> dict[str, Split]:
    """Returns the splits of `source` as token ids, from the cache or newly built.

    tokenizer: a tokenizer, or its settings ({"_target_": ..., ...}). If necessary, it is trained on the train split.
    max_rows:  maximum number of texts of each split; the first ones are used.
    cleaner:   the source whose `clean` is applied to the texts, if not `source` itself.

    Raises ConfigError that lists all problems found before reading, and ValueError if data cannot be read or a split
    has no usable text.
    """
    problems, asked = [], list(splits)
    if isinstance(tokenizer, Mapping):
        problems += check_tokenizer(tokenizer)
        if not problems and "train" not in asked and tokenizer_class(tokenizer).needs_training(options_of(tokenizer)):
            asked.append("train")
    problems += source.check(asked)
    for split in asked:
        if max_rows.get(split) is not None:
            problems += checks.whole_number(f"data.max_{SHORT[split]}", max_rows[split])
    if problems:
        raise ConfigError(problems)

    cache_dir = Path(cache_dir)
    clean = cleaner or source
    rows = {split: _rows(source, split, lowercase, digits, max_rows.get(split), cache_dir, clean) for split in asked}
    if isinstance(tokenizer, Mapping):
        tokenizer = _tokenizer(tokenizer, source.schema.words, rows.get("train"), cache_dir)
    return {split: _split(split, rows[split], tokenizer, layout, cache_dir) for split in splits}


def _rows(
    source: Source, split: str, lowercase: bool, digits: bool, limit: int | None, cache_dir: Path, cleaner: Source
) -> Path:
    """Returns the folder with the cleaned texts of a split."""
    schema = source.schema

    def fill(folder: Path) -> None:
        counts = tables.write_rows(
            source.rows(split),
            folder,
            row_schema=schema,
            lowercase=lowercase,
            digits=digits,
            limit=limit,
            what=f"reading {split}",
            cleaner=cleaner,
        )
        if counts["kept"] == 0:
            needed = "both " * (len(schema.needed) > 1) + " and ".join(schema.needed)
            raise DataError(
                f"the {split} split has no {schema.unit} with words in {needed}: "
                f"{counts['read']:,} read, {counts['empty']:,} of them empty"
            )

    settings = [FORMAT, source.fingerprint(split), split, lowercase, digits, limit]
    cls = type(cleaner)
    if cleaner is not source and not (cls.clean is type(source).clean is Source.clean):
        # a source's own cleaning is part of its fingerprint; this one is that of another source
        settings += [f"{cls.__module__}:{cls.__qualname__}", repr(sorted(vars(cleaner).items()))]
    return cached(cache_dir / f"rows-{files.digest(settings)}", fill)


def _tokenizer(settings: Mapping[str, object], words: tuple[str, ...], rows: Path | None, cache_dir: Path) -> Tokenizer:
    """Returns the tokenizer of these settings. If it must be trained, the columns `words` of `rows` are used."""
    options, cls = options_of(settings), tokenizer_class(settings)
    if not cls.needs_training(options):
        return cls.from_settings(None, **options)

    assert rows is not None  # given to train on

    def fill(folder: Path) -> None:
        log.info("training the tokenizer on the train split")
        cls.from_settings(lambda count: tables.sample_sentences(rows, words, count), **options).save(folder)

    folder = cached(cache_dir / f"tokenizer-{files.digest([FORMAT, TRAINED, rows.name, dict(settings)])}", fill)
    return cls.load(folder)


def _split(name: str, rows: Path, tokenizer: Tokenizer, layout: Featurizer, cache_dir: Path) -> Split:
    from datasets import Dataset

    settings, what = [FORMAT, rows.name, tokenizer.fingerprint(), layout.settings()], f"tokenizing {name}"
    tokens = cached(
        cache_dir / f"tokens-{files.digest(settings)}",
        lambda folder: tables.write_tokens(rows, folder, tokenizer, layout, what=what),
    )
    texts, ids = (Dataset.from_file(str(folder / tables.TABLE)) for folder in (rows, tokens))
    read, encoded = (json.loads((folder / tables.COUNTS).read_text()) for folder in (rows, tokens))
    return Split(name, tokens.name, texts, ids, read | encoded, layout.lengths(ids), layout.weights(ids), tokenizer)


def describe(splits: Mapping[str, Split], layout: Featurizer) -> str:
    """One line per split: "train 11,022 pairs (0 empty skipped, 37 articles and 2 headlines truncated)"."""
    return "\n".join(f"{name} {layout.describe(split.counts)}" for name, split in splits.items())
