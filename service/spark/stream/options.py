"""Options that a batch read of the archive does not have: limits of a stream, topics that it may miss. [P]

Names are those of Spark's Kafka source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from service.spark.options import ReadOptions, count_of, flag_of, named, parse_options, size_of, with_headers
from service.spark.tail.options import TAIL, TailOptions, apart, tail_of, without

LIMITS: Final = ("maxOffsetsPerTrigger", "maxBytesPerTrigger")
MISSING: Final = ("failOnMissingTopic",)


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The options of a stream. Limits are per micro-batch, None for none; bytes are those of the log.

    Without `fail_on_missing` a topic that is not there is left out, with a warning, and goes on where it was
    should it come back.
    """

    read: ReadOptions
    tail: TailOptions | None
    max_offsets: int | None
    max_bytes: int | None
    fail_on_missing: bool = True


def parse_stream(raw: Mapping[str, str]) -> StreamOptions:
    """The options of a stream, checked and typed."""
    client, rest = apart(raw)
    more = (*TAIL, *LIMITS, *MISSING)
    given = named(rest, more)
    read = parse_options(without(given, more), streaming=True)
    return StreamOptions(
        read,
        tail_of(given, client),
        count_of(given, "maxOffsetsPerTrigger"),
        size_of(given, "maxBytesPerTrigger"),
        flag_of(given, "failOnMissingTopic", default=read.fail_on_data_loss),
    )


def includes_headers(raw: Mapping[str, str]) -> bool:
    """Whether the schema has headers; of batch reads and of streams, whose other options differ."""
    return with_headers(named(apart(raw)[1], (*TAIL, *LIMITS, *MISSING)))
