"""One split read to its end: downloads, decoding, Arrow. What a task does. Needs pyarrow."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Protocol, cast

from service.records.columns import COLUMNS, ColumnDecoder, Columns
from service.remote.stores.errors import naming
from service.remote.stores.store import ObjectStore
from service.spark.options import ReadOptions
from service.spark.plan.splits import Piece, Split
from service.spark.read.arrow import arrow_schema, of_times, offset_batch, record_batch
from service.spark.read.downloads import Downloads, Part
from service.spark.schema import Column
from service.spark.selection import ALL_TIMES, END_OF_TIME, MIN_TIMESTAMP, Times

log = logging.getLogger(__name__)


class Wanted(Protocol):
    """Of one partition these offsets, half open, and times: a `Piece` of the archive, or one of its tail."""

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
    store: ObjectStore, split: Split, options: ReadOptions, columns: Sequence[Column]
) -> Iterator[Any]:
    """The rows of `split` as `pyarrow.RecordBatch`es with these columns, in the order of their offsets.

    Raises `DataLossError`, `CorruptionError` or a store's error, all of which name the object.
    """
    schema = arrow_schema(columns)
    want = COLUMNS & frozenset(column.name for column in columns)
    downloads = Downloads(
        store,
        split.pieces,
        fetch_bytes=options.fetch_bytes,
        budget_bytes=options.read_ahead_bytes,
        offsets_alone=want <= {"offset"} and all(piece.times == ALL_TIMES for piece in split.pieces),
        lost=None if options.fail_on_data_loss else _warn,
    )
    with downloads:
        for piece, parts in downloads:
            for rows in _rows(piece, parts, options, want):
                with naming(piece.entry.key):
                    if isinstance(rows, range):
                        yield offset_batch(rows, piece.topic, piece.partition, schema)
                        continue
                    yield chosen_rows(rows, piece, schema)


def _rows(
    piece: Piece, parts: Iterator[Part], options: ReadOptions, want: frozenset[str]
) -> Iterator[Columns | range]:
    decoder = decoder_of(piece, options, want, piece.aborted)
    with naming(piece.entry.key):
        for kind, alike in groupby(parts, type):
            if kind is range:
                yield from _in_batches(cast("Iterator[range]", alike), options.batch_rows)
            else:
                yield from decoder.decode_stream(cast("Iterator[memoryview]", alike))


def decoder_of(
    part: Wanted, options: ReadOptions, want: frozenset[str], aborted: Iterable[tuple[int, int, int]]
) -> ColumnDecoder:
    """Of several spans of time it is told the outermost, and leaves the choice to `chosen_rows`."""
    begin, end = part.times[0][0], part.times[-1][1]
    return ColumnDecoder(
        want=want if len(part.times) == 1 else want | {"timestamp"},
        max_rows=options.batch_rows,
        max_bytes=options.batch_bytes,
        min_offset=part.begin_offset,
        max_offset=part.end_offset,
        min_timestamp=None if begin <= MIN_TIMESTAMP else begin,
        max_timestamp=None if end >= END_OF_TIME else end,
        aborted=aborted,
    )


def chosen_rows(columns: Columns, part: Wanted, schema: Any) -> Any:
    """What `decoder_of` has decoded as one `pyarrow.RecordBatch`, of the part's times alone."""
    found = record_batch(columns, part.topic, part.partition, schema)
    return found if len(part.times) == 1 else of_times(found, columns, part.times)


def _in_batches(spans: Iterable[range], rows: int) -> Iterator[range]:
    for span in spans:
        for start in range(0, len(span), rows):
            yield span[start : start + rows]


def _warn(message: str) -> None:
    log.warning("%s", message)
