"""Reader of one split in a task: downloads, decoding, conversion to Arrow. Needs pyarrow."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Protocol, cast

import pyarrow.compute as pc

from service.records.columns import COLUMNS, ColumnDecoder, Columns
from service.remote.stores.errors import naming
from service.remote.stores.store import ObjectStore
from service.spark.options import ReadOptions
from service.spark.plan.splits import SegmentPiece, Split
from service.spark.read.arrow import arrow_schema, in_keys, in_times, offset_batch, record_batch
from service.spark.read.downloads import Downloads, Part
from service.spark.schema import ReadColumn
from service.spark.selection import ALL_TIMES, END_OF_TIME, MIN_TIMESTAMP, Times

log = logging.getLogger(__name__)


class ReadRange(Protocol):
    """A range of one partition's offsets, half open, and timestamps: a `SegmentPiece` or a `TailSplit`."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def begin_offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...
    @property
    def times(self) -> Times: ...


def read_split(
    store: ObjectStore, split: Split, options: ReadOptions, columns: Sequence[ReadColumn]
) -> Iterator[Any]:
    """Yield the rows of `split` as `pyarrow.RecordBatch`es with these columns, in the order of their offsets.

    Raises `DataLossError`, `CorruptionError` or a store's error, all of which name the object.
    """
    schema = arrow_schema(columns)
    want = COLUMNS & frozenset(column.name for column in columns)
    downloads = Downloads(
        store,
        split.pieces,
        fetch_bytes=options.fetch_bytes,
        budget_bytes=options.read_ahead_bytes,
        offsets_alone=want <= {"offset"}
        and _keys(options) is None
        and all(piece.times == ALL_TIMES for piece in split.pieces),
        lost=None if options.fail_on_data_loss else _warn,
    )
    with downloads:
        for piece, parts in downloads:
            for rows in _rows(piece, parts, options, want):
                with naming(piece.entry.key):
                    if isinstance(rows, range):
                        yield offset_batch(rows, piece.topic, piece.partition, schema)
                        continue
                    yield chosen_rows(rows, piece, options, schema)


def _rows(
    piece: SegmentPiece, parts: Iterator[Part], options: ReadOptions, want: frozenset[str]
) -> Iterator[Columns | range]:
    decoder = decoder_of(piece, options, want, piece.aborted)
    with naming(piece.entry.key):
        for kind, alike in groupby(parts, type):
            if kind is range:
                yield from _in_batches(cast("Iterator[range]", alike), options.batch_rows)
            else:
                yield from decoder.decode_stream(cast("Iterator[memoryview]", alike))


def decoder_of(
    part: ReadRange, options: ReadOptions, want: frozenset[str], aborted: Iterable[tuple[int, int, int]]
) -> ColumnDecoder:
    """Return a decoder of the part's records. With several spans of time it keeps the outermost bounds.

    `chosen_rows` then drops the rows between the spans.
    """
    begin, end = part.times[0][0], part.times[-1][1]
    want = want if len(part.times) == 1 else want | {"timestamp"}
    return ColumnDecoder(
        want=want if _keys(options) is None else want | {"key"},
        max_rows=options.batch_rows,
        max_bytes=options.batch_bytes,
        min_offset=part.begin_offset,
        max_offset=part.end_offset,
        min_timestamp=None if begin <= MIN_TIMESTAMP else begin,
        max_timestamp=None if end >= END_OF_TIME else end,
        aborted=aborted,
    )


def chosen_rows(columns: Columns, part: ReadRange, options: ReadOptions, schema: Any) -> Any:
    """Convert decoded columns to one `pyarrow.RecordBatch`, with the rows in the part's times and of the keys
    that ``where=`` names."""
    found = record_batch(columns, part.topic, part.partition, schema)
    keys = _keys(options)
    if len(part.times) > 1 and keys is not None:
        return found.filter(pc.and_(in_times(columns, part.times), in_keys(columns, keys)))
    if len(part.times) > 1:
        return found.filter(in_times(columns, part.times))
    return found if keys is None else found.filter(in_keys(columns, keys))


def _keys(options: ReadOptions) -> frozenset[bytes] | None:
    return None if options.where is None else options.where.keys


def _in_batches(spans: Iterable[range], rows: int) -> Iterator[range]:
    for span in spans:
        for start in range(0, len(span), rows):
            yield span[start : start + rows]


def _warn(message: str) -> None:
    log.warning("%s", message)
