"""From a source to token ids: cleaned, tokenized once, kept on disk under a hash of everything that decides them.

The cache holds three kinds of folders: `rows-*`, the cleaned pairs of a split; `tokenizer-*`, trained on the rows of
the train split; `tokens-*`, the ids of one split under one tokenizer. A change rebuilds only what depends on it.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from attnorm.data import checks, files, tables
from attnorm.data.cache import cached
from attnorm.data.sources import SHORT, Source
from attnorm.data.tokenizer import TOKENIZERS, Tokenizer, check_tokenizer, load_tokenizer
from attnorm.registry import find

if TYPE_CHECKING:
    from datasets import Dataset

log = logging.getLogger(__name__)

FORMAT = 1  # of the cache; raise it when cleaning, tokenizing or the files change


@dataclass(frozen=True)
class Split:
    """One split, ready for batching.

    `dataset` is memory-mapped, with the columns article, title (cleaned text), source, target (token ids without
    specials). `lengths` is int32 (rows, 2): the tokens of source and target with the one special that each gets.
    `counts` has read, empty, kept (pairs) and truncated_source, truncated_target.
    """

    name: str
    dataset: "Dataset"
    counts: dict[str, int]
    lengths: np.ndarray
    tokenizer: Tokenizer

    @property
    def rows(self) -> "Dataset":
        """`rows[i]` is {"article": str, "title": str, "source": list[int], "target": list[int]}."""
        return self.dataset

    def __len__(self) -> int:
        return len(self.lengths)


def prepare(
    source: Source,
    tokenizer: Tokenizer | Mapping[str, object],
    *,
    lowercase: bool,
    digits: bool,
    max_source: int,
    max_target: int,
    max_rows: Mapping[str, int | None],
    cache_dir: str | Path,
    splits: Sequence[str] = ("train", "validation"),
) -> dict[str, Split]:
    """The splits of `source` as token ids, from the cache or made now.

    `tokenizer` is a loaded one, or its settings ({"name": "sentencepiece", ...}); what must be trained is trained on
    the train split. `max_rows` keeps the first so many pairs of a split. `max_source` and `max_target` are in tokens,
    specials included; what is longer is cut and counted. Raises ValueError with all problems that show before reading,
    one a line; then for data that cannot be read, and for a split without a usable pair.
    """
    problems, asked = [], list(splits)
    if isinstance(tokenizer, Mapping):
        problems += check_tokenizer(**tokenizer)
        if not problems and _kind(tokenizer).trained and "train" not in asked:
            asked.append("train")
    problems += source.check(asked)
    problems += checks.whole_number("model.max_source", max_source, least=2)
    problems += checks.whole_number("model.max_target", max_target, least=2)
    for split in asked:
        if max_rows.get(split) is not None:
            problems += checks.whole_number(f"data.max_{SHORT[split]}", max_rows[split])
    if problems:
        raise ValueError("\n".join(problems))

    cache_dir = Path(cache_dir)
    rows = {split: _rows(source, split, lowercase, digits, max_rows.get(split), cache_dir) for split in asked}
    if isinstance(tokenizer, Mapping):
        tokenizer = _tokenizer(tokenizer, rows.get("train"), cache_dir)
    return {split: _split(split, rows[split], tokenizer, max_source, max_target, cache_dir) for split in splits}


def _kind(settings: Mapping[str, object]) -> type[Tokenizer]:
    return find("tokenizer", settings["name"], TOKENIZERS)


def _rows(source: Source, split: str, lowercase: bool, digits: bool, limit: int | None, cache_dir: Path) -> Path:
    """The folder with the cleaned pairs of a split."""

    def build(folder: Path) -> None:
        counts = tables.write_rows(
            source.rows(split), folder, lowercase=lowercase, digits=digits, limit=limit, what=f"reading {split}"
        )
        if counts["kept"] == 0:
            raise ValueError(
                f"the {split} split has no pair with words in both article and title: "
                f"{counts['read']:,} read, {counts['empty']:,} of them empty on one side or both"
            )

    settings = [FORMAT, source.fingerprint(split), split, lowercase, digits, limit]
    return cached(cache_dir / f"rows-{files.digest(settings)}", build)


def _tokenizer(settings: Mapping[str, object], rows: Path | None, cache_dir: Path) -> Tokenizer:
    """The tokenizer of these settings, trained on `rows` if it is of a kind that is."""
    options = {key: value for key, value in settings.items() if key != "name"}
    kind = _kind(settings)
    if not kind.trained:
        return kind.from_settings(None, **options)

    def build(folder: Path) -> None:
        log.info("training the tokenizer on the train split")
        kind.from_settings(lambda count: tables.sample_sentences(rows, count), **options).save(folder)

    folder = cached(cache_dir / f"tokenizer-{files.digest([FORMAT, rows.name, dict(settings)])}", build)
    return load_tokenizer(folder)


def _split(name: str, rows: Path, tokenizer: Tokenizer, max_source: int, max_target: int, cache_dir: Path) -> Split:
    import pyarrow.compute as pc
    from datasets import Dataset, concatenate_datasets

    def build(folder: Path) -> None:
        tables.write_tokens(
            rows, folder, tokenizer, max_source=max_source, max_target=max_target, what=f"tokenizing {name}"
        )

    settings = [FORMAT, rows.name, tokenizer.fingerprint(), max_source, max_target]
    tokens = cached(cache_dir / f"tokens-{files.digest(settings)}", build)
    texts, ids = (Dataset.from_file(str(folder / tables.TABLE)) for folder in (rows, tokens))
    lengths = [pc.list_value_length(ids.data.column(side)).to_numpy() + 1 for side in ("source", "target")]
    counts = {}
    for folder in (rows, tokens):
        counts |= json.loads((folder / tables.COUNTS).read_text())
    return Split(
        name=name,
        dataset=concatenate_datasets([texts, ids], axis=1),
        counts=counts,
        lengths=np.stack(lengths, axis=1).astype(np.int32),
        tokenizer=tokenizer,
    )


def describe(splits: Mapping[str, Split]) -> str:
    """One line a split: "train 11,022 pairs (0 empty skipped, 37 articles and 2 headlines truncated)"."""
    return "\n".join(
        f"{name} {split.counts['kept']:,} pairs ({split.counts['empty']:,} empty skipped, "
        f"{split.counts['truncated_source']:,} articles and {split.counts['truncated_target']:,} headlines truncated)"
        for name, split in splits.items()
    )
