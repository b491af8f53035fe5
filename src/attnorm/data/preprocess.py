"""From a source to token ids: cleaned, tokenized once, kept on disk under a hash of everything that decides them.

The cache holds three kinds of folders: `rows-*`, the cleaned texts of a split; `tokenizer-*`, trained on the rows of
the train split; `tokens-*`, the ids of one split under one tokenizer and layout. A change rebuilds only what depends on
it.
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

FORMAT = 2  # of the cache; raise it when cleaning, tokenizing or the files change


@dataclass(frozen=True)
class Split:
    """One split, ready for batching.

    `fingerprint` stands for everything that decides the rows: the source's content, cleaning, tokenizer and layout.
    `texts` (the columns of the source's kind, cleaned) and `rows` (the columns of the layout) are memory-mapped;
    `lengths` and `weights` are the layout's, one a row of `rows`. `counts` has read, empty and kept (texts) and what
    the layout counts.
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
    """The splits of `source` as token ids, from the cache or made now.

    `tokenizer` is a loaded one, or its settings ({"_target_": ..., ...}); what must be trained is trained on
    the train split. `max_rows` keeps the first so many texts of a split. `cleaner` is the source whose `clean` texts go
    through, if not `source` itself. Raises ValueError with all problems that show
    before reading, one a line; then for data that cannot be read, and for a split without a usable text.
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
    """The folder with the cleaned texts of a split."""
    schema = source.schema

    def build(folder: Path) -> None:
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
            raise DataError(
                f"the {split} split has no {schema.unit} with words in {_both(schema.needed)}: "
                f"{counts['read']:,} read, {counts['empty']:,} of them empty"
            )

    settings = [FORMAT, source.fingerprint(split), split, lowercase, digits, limit, *_foreign(cleaner, source)]
    return cached(cache_dir / f"rows-{files.digest(settings)}", build)


def _foreign(cleaner: Source, source: Source) -> list[str]:
    """What identifies the cleaning of another source than the one that is read, whose own is in its fingerprint."""
    if cleaner is source or type(cleaner).clean is type(source).clean is Source.clean:
        return []
    return [f"{type(cleaner).__module__}:{type(cleaner).__qualname__}", repr(sorted(vars(cleaner).items()))]


def _both(names: Sequence[str]) -> str:
    return f"both {' and '.join(names)}" if len(names) > 1 else names[0]


def _tokenizer(settings: Mapping[str, object], words: tuple[str, ...], rows: Path | None, cache_dir: Path) -> Tokenizer:
    """The tokenizer of these settings, trained on the columns `words` of `rows` if it has to be trained."""
    options, cls = options_of(settings), tokenizer_class(settings)
    if not cls.needs_training(options):
        return cls.from_settings(None, **options)

    assert rows is not None  # given to train on

    def build(folder: Path) -> None:
        log.info("training the tokenizer on the train split")
        cls.from_settings(lambda count: tables.sample_sentences(rows, words, count), **options).save(folder)

    folder = cached(cache_dir / f"tokenizer-{files.digest([FORMAT, rows.name, dict(settings)])}", build)
    return cls.load(folder)


def _split(name: str, rows: Path, tokenizer: Tokenizer, layout: Featurizer, cache_dir: Path) -> Split:
    from datasets import Dataset

    def build(folder: Path) -> None:
        tables.write_tokens(rows, folder, tokenizer, layout, what=f"tokenizing {name}")

    settings = [FORMAT, rows.name, tokenizer.fingerprint(), layout.settings()]
    tokens = cached(cache_dir / f"tokens-{files.digest(settings)}", build)
    texts, ids = (Dataset.from_file(str(folder / tables.TABLE)) for folder in (rows, tokens))
    counts: dict[str, int] = {}
    for folder in (rows, tokens):
        counts |= json.loads((folder / tables.COUNTS).read_text())
    return Split(name, tokens.name, texts, ids, counts, layout.lengths(ids), layout.weights(ids), tokenizer)


def describe(splits: Mapping[str, Split], layout: Featurizer) -> str:
    """One line a split: "train 11,022 pairs (0 empty skipped, 37 articles and 2 headlines truncated)"."""
    return "\n".join(f"{name} {layout.describe(split.counts)}" for name, split in splits.items())
