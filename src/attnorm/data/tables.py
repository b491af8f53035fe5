"""Arrow files of a split, written batch by batch so that memory does not grow with the corpus, and read by mapping."""

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from attnorm.data.text import clean
from attnorm.data.tokenizer import Tokenizer

BATCH = 4096  # rows of an Arrow record batch
TABLE, COUNTS = "table.arrow", "counts.json"


def progress(rows: Iterable, what: str, total: int | None = None) -> Iterable:
    """`rows` with a bar on standard error, at a terminal only and after two seconds only."""
    from tqdm import tqdm

    return tqdm(rows, desc=what, total=total, unit=" rows", unit_scale=True, delay=2, disable=None, leave=False)


def write_rows(
    rows: Iterable[tuple[str, str]], folder: Path, *, lowercase: bool, digits: bool, limit: int | None, what: str
) -> dict[str, int]:
    """Clean the raw pairs and write those with words on both sides, `limit` of them at most.

    Returns and writes the counts: pairs read, empty ones skipped, kept.
    """
    import pyarrow as pa

    schema = pa.schema([("article", pa.string()), ("title", pa.string())])
    counts = {"read": 0, "empty": 0, "kept": 0}
    with pa.ipc.new_stream(str(folder / TABLE), schema) as writer:
        for batch in _batches(_cleaned(progress(rows, what, limit), counts, lowercase, digits, limit)):
            columns = [pa.array(column, pa.string()) for column in zip(*batch, strict=True)]
            writer.write_batch(pa.record_batch(columns, schema=schema))
    (folder / COUNTS).write_text(json.dumps(counts))
    return counts


def _cleaned(rows, counts, lowercase, digits, limit) -> Iterator[tuple[str, str]]:
    for article, title in rows:
        counts["read"] += 1
        article = clean(article, lowercase=lowercase, digits=digits)
        title = clean(title, lowercase=lowercase, digits=digits)
        if not article or not title:
            counts["empty"] += 1
            continue
        counts["kept"] += 1
        yield article, title
        if counts["kept"] == limit:  # before the next row is read
            return


def _batches(rows: Iterator) -> Iterator[list]:
    while batch := list(itertools.islice(rows, BATCH)):
        yield batch


def write_tokens(
    rows: Path, folder: Path, tokenizer: Tokenizer, *, max_source: int, max_target: int, what: str
) -> dict[str, int]:
    """Encode the table in `rows` without special tokens, cut so that eos still fits into the maximal lengths.

    Returns and writes the counts: articles and titles that were cut.
    """
    import pyarrow as pa

    schema = pa.schema([("source", pa.list_(pa.int32())), ("target", pa.list_(pa.int32()))])
    counts = {"truncated_source": 0, "truncated_target": 0}
    limits = {"source": max_source - 1, "target": max_target - 1}
    with read_batches(rows) as reader, pa.ipc.new_stream(str(folder / TABLE), schema) as writer:
        total = json.loads((rows / COUNTS).read_text())["kept"]
        with progress((), what, total) as bar:
            for batch in reader:
                columns = []
                for texts, (side, limit) in zip(batch.columns, limits.items(), strict=True):
                    column, cut = _cut(tokenizer.encode(texts.to_pylist()), limit)
                    columns.append(column)
                    counts[f"truncated_{side}"] += cut
                writer.write_batch(pa.record_batch(columns, schema=schema))
                bar.update(batch.num_rows)
    (folder / COUNTS).write_text(json.dumps(counts))
    return counts


def _cut(sequences: Sequence[Sequence[int]], limit: int):
    """The sequences as an Arrow list column, each cut to `limit`; and how many were cut."""
    import pyarrow as pa

    lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
    offsets = np.zeros(len(sequences) + 1, np.int32)
    np.cumsum(np.minimum(lengths, limit), out=offsets[1:])
    values = itertools.chain.from_iterable(sequence[:limit] for sequence in sequences)
    flat = np.fromiter(values, np.int32, int(offsets[-1]))
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat)), int((lengths > limit).sum())


def read_batches(folder: Path):
    """The record batches of a table, mapped into memory; a context manager."""
    import pyarrow as pa

    return pa.ipc.open_stream(pa.memory_map(str(folder / TABLE)))


def sample_sentences(rows: Path, count: int | None) -> Iterator[str]:
    """Articles and titles of the table in `rows`; at most `count`, evenly from all of it, always the same ones."""
    total = 2 * json.loads((rows / COUNTS).read_text())["kept"]
    wanted = np.ones(total, bool)
    if count is not None and count < total:
        wanted[:] = False
        wanted[np.random.default_rng(0).choice(total, count, replace=False, shuffle=False)] = True
    start = 0
    with read_batches(rows) as reader:
        for batch in reader:
            pairs = wanted[start : start + 2 * batch.num_rows].reshape(-1, 2)  # (rows, article and title)
            for texts, chosen in zip(batch.columns, pairs.T, strict=True):
                yield from texts.filter(chosen).to_pylist()
            start += 2 * batch.num_rows
