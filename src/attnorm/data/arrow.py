"""Arrow files of a split. They are written batch by batch, with constant memory, and memory-mapped for reading."""

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnorm.data.cleaning import clean
from attnorm.data.featurizer import Featurizer
from attnorm.data.readers.bad_rows import skipped
from attnorm.data.sources.base import RowSchema, Source
from attnorm.data.tokenizers.base import Tokenizer

if TYPE_CHECKING:
    import pyarrow as pa
    from tqdm import tqdm

BATCH = 4096  # rows per Arrow record batch
TABLE, COUNTS = "table.arrow", "counts.json"


def progress(rows: Iterable, what: str, total: int | None = None) -> "tqdm":
    """Wraps `rows` in a progress bar on standard error. It appears only in a terminal and after two seconds."""
    from tqdm import tqdm

    return tqdm(rows, desc=what, total=total, unit=" rows", unit_scale=True, delay=2, disable=None, leave=False)


def write_rows(
    rows: Iterable[tuple[str, ...]],
    folder: Path,
    *,
    row_schema: RowSchema,
    lowercase: bool,
    digits: bool,
    limit: int | None,
    what: str,
    cleaner: Source | None = None,
) -> dict[str, int]:
    """Cleans the raw rows and writes up to `limit` rows in which no needed text is empty.

    cleaner: the source whose `clean` is applied first. Returns and writes the counts of rows read, empty and kept, and
    of bad rows that were skipped.
    """
    import pyarrow as pa

    schema = pa.schema([(name, pa.string()) for name in row_schema.columns])
    needed = [row_schema.columns.index(name) for name in row_schema.needed]
    counts, before = {"read": 0, "empty": 0, "kept": 0}, skipped()

    def usable_rows() -> Iterator[tuple[str, ...]]:
        for row in progress(rows, what, limit):
            counts["read"] += 1
            row = tuple(
                cleaned(text, name, cleaner, lowercase=lowercase, digits=digits) if name in row_schema.cleaned else text
                for text, name in zip(row, row_schema.columns, strict=True)
            )
            if not all(row[column] for column in needed):
                counts["empty"] += 1
                continue
            counts["kept"] += 1
            yield row
            if counts["kept"] == limit:  # stop before the next row is read
                return

    with pa.ipc.new_stream(str(folder / TABLE), schema) as writer:
        kept = usable_rows()
        while batch := list(itertools.islice(kept, BATCH)):
            columns = [pa.array(column, pa.string()) for column in zip(*batch, strict=True)]
            writer.write_batch(pa.record_batch(columns, schema=schema))
    if bad := skipped() - before:
        counts["skipped"] = bad
    (folder / COUNTS).write_text(json.dumps(counts))
    return counts


def cleaned(text: str, column: str, cleaner: Source | None, *, lowercase: bool, digits: bool) -> str:
    """Applies all cleaning to a text of this column: `cleaner.clean` of a source, then `cleaning.clean`."""
    return clean(text if cleaner is None else cleaner.clean(text, column), lowercase=lowercase, digits=digits)


def write_tokens(rows: Path, folder: Path, tokenizer: Tokenizer, layout: Featurizer, what: str) -> dict[str, int]:
    """Encodes the table in `rows` with the layout. Returns and writes the counts of the layout."""
    import pyarrow as pa

    schema = pa.schema(list(layout.columns().items()))
    counts: Counter[str] = Counter()
    first = 0
    with read_batches(rows) as reader, pa.ipc.new_stream(str(folder / TABLE), schema) as writer:
        total = json.loads((rows / COUNTS).read_text())["kept"]
        with progress((), what, total) as bar:
            for batch in reader:
                texts = batch.to_pydict()
                ids, added = layout.encode(texts, first, tokenizer)
                counts.update(added)
                for words in layout.schema.words:
                    unknown, characters = tokenizer.unknown(texts[words])
                    counts.update(unknown_characters=unknown, characters=characters)
                columns = [_column(ids[field.name], field.type) for field in schema]
                writer.write_batch(pa.record_batch(columns, schema=schema))
                first += batch.num_rows
                bar.update(batch.num_rows)
    (folder / COUNTS).write_text(json.dumps(counts))
    return dict(counts)


def _column(values: Sequence, kind: "pa.DataType") -> "pa.Array":
    """An Arrow column. Lists are converted through one flat array, which is faster than one by one."""
    import pyarrow as pa

    if not pa.types.is_list(kind):
        return pa.array(values, kind)
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, values), np.int64, len(values)), out=offsets[1:])
    flat = np.fromiter(itertools.chain.from_iterable(values), kind.value_type.to_pandas_dtype(), int(offsets[-1]))
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat, kind.value_type))


def read_batches(folder: Path) -> Any:
    """The record batches of a table, memory-mapped. Returns a context manager."""
    import pyarrow as pa

    return pa.ipc.open_stream(pa.memory_map(str(folder / TABLE)))


def sample_sentences(rows: Path, words: tuple[str, ...], count: int | None) -> Iterator[str]:
    """At most `count` texts of the columns `words` of the table in `rows`, sampled uniformly and reproducibly."""
    width = len(words)
    total = width * json.loads((rows / COUNTS).read_text())["kept"]
    sampled = np.ones(total, bool)
    if count is not None and count < total:
        sampled[:] = False
        sampled[np.random.default_rng(0).choice(total, count, replace=False, shuffle=False)] = True
    start = 0
    with read_batches(rows) as reader:
        for batch in reader:
            in_batch = sampled[start : start + width * batch.num_rows].reshape(-1, width)
            for name, chosen in zip(words, in_batch.T, strict=True):
                yield from batch.column(name).filter(chosen).to_pylist()
            start += width * batch.num_rows
