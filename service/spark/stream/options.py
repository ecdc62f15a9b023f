"""Options that only a stream has: limits, poll interval, tolerance of missing topics. [P]

Names are those of Spark's Kafka source, where it has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from service.base.errors import ConfigError
from service.spark.durations import duration_ms
from service.spark.kafka_options import check_moved
from service.spark.options import ReadOptions, count_of, flag_of, named, parse_options, size_of, with_headers
from service.spark.tail.options import TAIL, Tail, split_options, tail_of, without

LIMITS: Final = (
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "refreshInterval",
)
MISSING: Final = ("failOnMissingTopic",)
MAX_INTERVAL_MS: Final = 600_000
"""Longest interval; objects that a poll has seen stay for ``firn.remote.object.grace.ms``, 1 h by default."""
_MAX_DELAY_MS: Final = 366 * 86_400_000


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The options of a stream. Limits are per micro-batch, None for none; bytes are those of the log.

    A batch of less than `min_offsets` waits for more, `max_trigger_delay_ms` at most. The bucket is polled
    once in `refresh_interval_ms`, with 0 on every trigger. Without `fail_on_missing` an absent topic is left
    out, with a warning, and continues where it was should it come back.
    """

    read: ReadOptions
    tail: Tail | None
    max_offsets: int | None
    max_bytes: int | None
    min_offsets: int | None
    max_trigger_delay_ms: int
    refresh_interval_ms: int
    fail_on_missing: bool = True

    @property
    def limits(self) -> tuple[str, ...]:
        """The names of the limits that are set."""
        values = (self.max_offsets, self.max_bytes, self.min_offsets)
        return tuple(name for name, value in zip(LIMITS, values, strict=False) if value is not None)


def parse_stream(raw: Mapping[str, str]) -> StreamOptions:
    """Check and type the options of a stream."""
    check_moved(raw, streaming=True)
    client, rest = split_options(raw)
    more = (*TAIL, *LIMITS, *MISSING)
    given = named(rest, more)
    read = parse_options(without(given, more), streaming=True)
    least, most = count_of(given, "minOffsetsPerTrigger"), count_of(given, "maxOffsetsPerTrigger")
    if least is not None and most is not None and least > most:
        raise ConfigError(f"option minOffsetsPerTrigger is {least}, above maxOffsetsPerTrigger, {most}")
    if least is None and "maxTriggerDelay" in given:
        raise ConfigError("option maxTriggerDelay has no effect without minOffsetsPerTrigger")
    return StreamOptions(
        read,
        tail_of(given, client),
        most,
        size_of(given, "maxBytesPerTrigger"),
        least,
        duration_ms("maxTriggerDelay", given.get("maxTriggerDelay", "15m"), most_ms=_MAX_DELAY_MS),
        duration_ms("refreshInterval", given.get("refreshInterval", "5s"), most_ms=MAX_INTERVAL_MS),
        flag_of(given, "failOnMissingTopic", default=read.fail_on_data_loss),
    )


def includes_headers(raw: Mapping[str, str]) -> bool:
    """Return whether the schema has headers; accepts options of batch reads and of streams."""
    return with_headers(named(split_options(raw)[1], (*TAIL, *LIMITS, *MISSING)))
