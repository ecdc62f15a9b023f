"""One split read to its end: downloads, decoding, Arrow. What a task does. Needs pyarrow."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, cast

from service.records.columns import COLUMNS, ColumnDecoder, Columns
from service.remote.store import ObjectStore
from service.spark.options import ReadOptions
from service.spark.plan.archive import naming
from service.spark.plan.selection import END_OF_TIME, MIN_TIMESTAMP, Selection
from service.spark.plan.splits import Piece, Split
from service.spark.read.arrow import arrow_schema, offset_batch, record_batch
from service.spark.read.downloads import Downloads, Part
from service.spark.schema import Column

log = logging.getLogger(__name__)


def read_split(
    store: ObjectStore, split: Split, options: ReadOptions, selection: Selection, columns: Sequence[Column]
) -> Iterator[Any]:
    """The rows of `split` as `pyarrow.RecordBatch`es with these columns, in the order of their offsets.

    Raises `DataLossError`, `CorruptionError` or a store's error, all of which name the object.
    """
    schema = arrow_schema(columns)
    want = COLUMNS & frozenset(column.name for column in columns)
    downloads = Downloads(
        store,
        split.pieces,
        selection,
        fetch_bytes=options.fetch_bytes,
        budget_bytes=options.read_ahead_bytes,
        offsets_alone=want <= {"offset"} and not selection.by_time,
        lost=None if options.fail_on_data_loss else _warn,
    )
    with downloads:
        for piece, parts in downloads:
            for rows in _rows(piece, parts, options, selection, want):
                with naming(piece.entry.key):
                    if isinstance(rows, range):
                        yield offset_batch(rows, piece.topic, piece.partition, schema)
                    else:
                        yield record_batch(rows, piece.topic, piece.partition, schema)


def _rows(
    piece: Piece, parts: Iterator[Part], options: ReadOptions, selection: Selection, want: frozenset[str]
) -> Iterator[Columns | range]:
    decoder = ColumnDecoder(
        want=want,
        max_rows=options.batch_rows,
        max_bytes=options.batch_bytes,
        min_offset=piece.begin_offset,
        max_offset=piece.end_offset,
        min_timestamp=None if selection.begin_timestamp <= MIN_TIMESTAMP else selection.begin_timestamp,
        max_timestamp=None if selection.end_timestamp >= END_OF_TIME else selection.end_timestamp,
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
