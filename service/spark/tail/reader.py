"""Offsets of one partition read from its brokers, as the rows the archive would give. Needs pyarrow.

Batches come raw and are decoded as those of the bucket are: no record becomes a Python object.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import attrgetter
from typing import Any

from service.base.errors import CorruptionError
from service.records.columns import COLUMNS, AbortedRange, ColumnDecoder
from service.spark.options import ReadOptions
from service.spark.read.arrow import arrow_schema, of_times, record_batch
from service.spark.schema import Column
from service.spark.selection import END_OF_TIME, MIN_TIMESTAMP
from service.spark.tail.fetches import Fetches
from service.spark.tail.options import TailOptions
from service.spark.tail.plan import TailSplit


def read_tail(
    split: TailSplit, tail: TailOptions, options: ReadOptions, columns: Sequence[Column]
) -> Iterator[Any]:
    """The rows of `split` as `pyarrow.RecordBatch`es with these columns, in the order of their offsets.

    Raises `BrokerError` when the brokers do not answer in time, `ConfigError` when they are of another
    cluster, `DataLossError` when they do not have the offsets any more, or the topic is another one (with
    ``failOnDataLoss=false`` what there is of them is read), `CorruptionError` for batches that are damaged.
    """
    schema = arrow_schema(columns)
    want = COLUMNS & frozenset(column.name for column in columns)
    with Fetches(split, tail, options) as fetches:
        # Chunks reach over the ends of answers, but for those with transactions of their own to leave out.
        for aborted, parts in groupby(fetches, key=attrgetter("aborted")):
            decoder = _decoder(split, aborted, options, want)
            with _naming(split):
                for chunk in decoder.decode_stream(part.data for part in parts):
                    found = record_batch(chunk, split.topic, split.partition, schema)
                    yield found if len(split.times) == 1 else of_times(found, chunk, split.times)


def _decoder(
    split: TailSplit,
    aborted: tuple[AbortedRange, ...],
    options: ReadOptions,
    want: frozenset[str],
) -> ColumnDecoder:
    """Of several spans of time the decoder is told the outermost, and leaves the choice to `of_times`."""
    begin, end = split.times[0][0], split.times[-1][1]
    return ColumnDecoder(
        want=want if len(split.times) == 1 else want | {"timestamp"},
        max_rows=options.batch_rows,
        max_bytes=options.batch_bytes,
        min_offset=split.begin_offset,
        max_offset=split.end_offset,
        min_timestamp=None if begin <= MIN_TIMESTAMP else begin,
        max_timestamp=None if end >= END_OF_TIME else end,
        aborted=aborted,
    )


@contextmanager
def _naming(split: TailSplit) -> Iterator[None]:
    """Whatever is found corrupt names its partition."""
    name = f"{split.topic}-{split.partition}"
    try:
        yield
    except CorruptionError as e:
        if name in str(e):
            raise
        raise CorruptionError(f"{name}: {e}") from e
