"""One split read to its end: downloads, decoding, Arrow. What a task does. Needs pyarrow."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import unquote, urlsplit

from service.base.errors import ConfigError
from service.records.columns import COLUMNS, ColumnDecoder, Columns
from service.remote.obstore_store import StoreOptions, open_store
from service.remote.store import ObjectStore
from service.spark.archive import naming
from service.spark.arrow import arrow_schema, offset_batch, record_batch
from service.spark.downloads import Downloads, Part
from service.spark.filters import END_OF_TIME, MIN_TIMESTAMP, Pushed
from service.spark.options import ReadOptions
from service.spark.planner import Piece, Split
from service.spark.schema import Column

log = logging.getLogger(__name__)

_PATIENCE: Final = StoreOptions(max_retries=10, retry_timeout_s=180.0)
"""A job of hours should outlive a store that is away for a minute or two."""


def open_store_of(options: ReadOptions) -> ObjectStore:
    """The store that the options name; one client per process and place, as worker processes are reused."""
    return _opened(options.url, options.endpoint, options.region, os.getpid())


@lru_cache(maxsize=8)
def _opened(url: str, endpoint: str | None, region: str | None, _pid: int) -> ObjectStore:
    parts = urlsplit(url)
    if parts.scheme == "file" and not Path(unquote(parts.path)).is_dir():
        raise ConfigError(f"option url: there is no folder {parts.path}")
    return open_store(url, endpoint=endpoint, region=region, options=_PATIENCE)


def read_split(
    store: ObjectStore, split: Split, options: ReadOptions, pushed: Pushed, columns: Sequence[Column]
) -> Iterator[Any]:
    """The rows of `split` as `pyarrow.RecordBatch`es with these columns, in the order of their offsets.

    Raises `DataLossError`, `CorruptionError` or a store's error, all of which name the object.
    """
    schema = arrow_schema(columns)
    want = COLUMNS & frozenset(column.name for column in columns)
    downloads = Downloads(
        store,
        split.pieces,
        pushed,
        fetch_bytes=options.fetch_bytes,
        budget_bytes=options.read_ahead_bytes,
        offsets_alone=want <= {"offset"} and not pushed.by_time,
        lost=None if options.fail_on_data_loss else _warn,
    )
    with downloads:
        for piece, parts in downloads:
            for rows in _rows(piece, parts, options, pushed, want):
                with naming(piece.entry.key):
                    if isinstance(rows, range):
                        yield offset_batch(rows, piece.topic, piece.partition, schema)
                    else:
                        yield record_batch(rows, piece.topic, piece.partition, schema)


def _rows(
    piece: Piece, parts: Iterator[Part], options: ReadOptions, pushed: Pushed, want: frozenset[str]
) -> Iterator[Columns | range]:
    decoder = ColumnDecoder(
        want=want,
        max_rows=options.batch_rows,
        max_bytes=options.batch_bytes,
        min_offset=piece.begin_offset,
        max_offset=piece.end_offset,
        min_timestamp=None if pushed.begin_timestamp <= MIN_TIMESTAMP else pushed.begin_timestamp,
        max_timestamp=None if pushed.end_timestamp >= END_OF_TIME else pushed.end_timestamp,
        aborted=piece.aborted,
    )
    with naming(piece.entry.key):
        for kind, alike in groupby(parts, type):
            if kind is range:
                yield from _in_batches(cast("Iterator[range]", alike), options.batch_rows)
            else:
                yield from decoder.decode_stream(cast("Iterator[memoryview]", alike))


def _in_batches(spans: Iterable[range], rows: int) -> Iterator[range]:
    for span in spans:
        for start in range(0, len(span), rows):
            yield span[start : start + rows]


def _warn(message: str) -> None:
    log.warning("%s", message)
