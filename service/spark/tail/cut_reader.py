"""Reader of tails of a cut: rows from the bucket, equal to those that segments will give. Needs pyarrow.

Sections are read whole, so that each is proved; rows outside of a task's offsets are dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from service.records.columns import COLUMNS
from service.remote.reading.tail_records import read_pieces
from service.remote.stores.errors import ObjectNotFound, naming
from service.remote.stores.store import ObjectStore
from service.spark.errors import DataLossError
from service.spark.options import ReadOptions
from service.spark.read.arrow import arrow_schema
from service.spark.read.split_reader import chosen_rows, decoder_of
from service.spark.schema import ReadColumn
from service.spark.tail.cut_splits import CutSplit


def read_cut(
    store: ObjectStore, split: CutSplit, options: ReadOptions, columns: Sequence[ReadColumn]
) -> Iterator[Any]:
    """Yield the rows of `split` as `pyarrow.RecordBatch`es with these columns, in the order of their offsets.

    Raises `CorruptionError`, `DataLossError` where a tail is gone, or a store's error; all name the object.
    """
    schema = arrow_schema(columns)
    want = COLUMNS & frozenset(column.name for column in columns)
    decoder = decoder_of(split, options, want, split.aborted)
    with naming(f"{split.topic}-{split.partition}"):
        try:
            for chunk in decoder.decode_stream(run.data for run in read_pieces(store, split.pieces)):
                yield chosen_rows(chunk, split, options, schema)
        except ObjectNotFound as e:
            raise DataLossError(f"{e}: it was planned longer ago than deleted objects stay") from e
