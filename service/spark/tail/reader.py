"""Reader of a tail split: rows from brokers, equal to those that the archive would give. Needs pyarrow.

Batches are decoded from their raw bytes as those of the bucket are: no record becomes a Python object.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

from service.records.columns import COLUMNS
from service.remote.stores.errors import naming
from service.spark.options import ReadOptions
from service.spark.read.arrow import arrow_schema
from service.spark.read.split_reader import chosen_rows, decoder_of
from service.spark.schema import ReadColumn
from service.spark.tail.fetches import Fetches
from service.spark.tail.options import TailOptions
from service.spark.tail.plan import TailSplit


def read_tail(
    split: TailSplit, tail: TailOptions, options: ReadOptions, columns: Sequence[ReadColumn]
) -> Iterator[Any]:
    """Yield the rows of `split` as `pyarrow.RecordBatch`es with these columns, in the order of their offsets.

    Raises `BrokerError` when the brokers do not answer in time, `ConfigError` when they are of another
    cluster, `DataLossError` when they no longer have the offsets, or the topic is another one (with
    ``failOnDataLoss=false`` the existing ones are read), `CorruptionError` for damaged batches.
    """
    schema = arrow_schema(columns)
    want = COLUMNS & frozenset(column.name for column in columns)
    with Fetches(split, tail, options) as fetches:
        # Chunks span responses, except where a response has aborted transactions of its own to drop.
        for aborted, parts in groupby(fetches, key=attrgetter("aborted")):
            decoder = decoder_of(split, options, want, aborted)
            with naming(f"{split.topic}-{split.partition}"):
                for chunk in decoder.decode_stream(part.data for part in parts):
                    yield chosen_rows(chunk, split, options, schema)
