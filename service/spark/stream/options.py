"""Options that a batch read of the archive does not have: the limits of a stream. [P]

Names are those of Spark's Kafka source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from service.spark.options import ReadOptions, count_of, named, parse_options, size_of, with_headers
from service.spark.tail.options import TAIL, TailOptions, apart, tail_of, without

LIMITS: Final = ("maxOffsetsPerTrigger", "maxBytesPerTrigger")


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The options of a stream. Limits are per micro-batch, None for none; bytes are those of the log."""

    read: ReadOptions
    tail: TailOptions | None
    max_offsets: int | None
    max_bytes: int | None


def parse_stream(raw: Mapping[str, str]) -> StreamOptions:
    """The options of a stream, checked and typed."""
    client, rest = apart(raw)
    more = (*TAIL, *LIMITS)
    given = named(rest, more)
    return StreamOptions(
        parse_options(without(given, more), streaming=True),
        tail_of(given, client),
        count_of(given, "maxOffsetsPerTrigger"),
        size_of(given, "maxBytesPerTrigger"),
    )


def includes_headers(raw: Mapping[str, str]) -> bool:
    """Whether the schema has headers; of batch reads and of streams, whose other options differ."""
    return with_headers(named(apart(raw)[1], (*TAIL, *LIMITS)))
