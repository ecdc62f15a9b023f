"""Options that a batch read does not have: limits of a stream, how often it looks, what it may miss. [P]

Names are those of Spark's Kafka source, where it has them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from service.base.errors import ConfigError
from service.spark.kafka_options import check_moved
from service.spark.options import ReadOptions, count_of, flag_of, named, parse_options, size_of, with_headers
from service.spark.tail.options import TAIL, TailOptions, apart, tail_of, without

LIMITS: Final = (
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "refreshInterval",
)
MISSING: Final = ("failOnMissingTopic",)
_TIME: Final = re.compile(r"([0-9]+)([a-z]*)")
_UNITS_US: Final = {
    "us": 1,
    "": 1000,
    "ms": 1000,
    "s": 1_000_000,
    "m": 60_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}
MAX_INTERVAL_MS: Final = 600_000
"""Objects that a look has seen stay for ``firn.remote.object.grace.ms``, an hour by default."""
_MAX_DELAY_MS: Final = 366 * 86_400_000


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The options of a stream. Limits are per micro-batch, None for none; bytes are those of the log.

    A batch of less than `min_offsets` waits for more, `max_trigger_delay_ms` at most. The bucket is looked at
    once in `refresh_interval_ms`, 0 for with every trigger. Without `fail_on_missing` a topic that is not
    there is left out, with a warning, and goes on where it was should it come back.
    """

    read: ReadOptions
    tail: TailOptions | None
    max_offsets: int | None
    max_bytes: int | None
    min_offsets: int | None
    max_trigger_delay_ms: int
    refresh_interval_ms: int
    fail_on_missing: bool = True

    @property
    def limits(self) -> tuple[str, ...]:
        """Names of the limits that are set."""
        values = (self.max_offsets, self.max_bytes, self.min_offsets)
        return tuple(name for name, value in zip(LIMITS, values, strict=False) if value is not None)


def parse_stream(raw: Mapping[str, str]) -> StreamOptions:
    """The options of a stream, checked and typed."""
    check_moved(raw, streaming=True)
    client, rest = apart(raw)
    more = (*TAIL, *LIMITS, *MISSING)
    given = named(rest, more)
    read = parse_options(without(given, more), streaming=True)
    least, most = count_of(given, "minOffsetsPerTrigger"), count_of(given, "maxOffsetsPerTrigger")
    if least is not None and most is not None and least > most:
        raise ConfigError(f"option minOffsetsPerTrigger is {least}, above maxOffsetsPerTrigger, {most}")
    if least is None and "maxTriggerDelay" in given:
        raise ConfigError("option maxTriggerDelay says nothing without minOffsetsPerTrigger")
    return StreamOptions(
        read,
        tail_of(given, client),
        most,
        size_of(given, "maxBytesPerTrigger"),
        least,
        _duration_ms(given, "maxTriggerDelay", "15m", _MAX_DELAY_MS),
        _duration_ms(given, "refreshInterval", "5s", MAX_INTERVAL_MS),
        flag_of(given, "failOnMissingTopic", default=read.fail_on_data_loss),
    )


def includes_headers(raw: Mapping[str, str]) -> bool:
    """Whether the schema has headers; of batch reads and of streams, whose other options differ."""
    return with_headers(named(apart(raw)[1], (*TAIL, *LIMITS, *MISSING)))


def _duration_ms(given: Mapping[str, str], name: str, default: str, most_ms: int) -> int:
    """A time as Spark writes it (`JavaUtils.timeStringAsMs`): a whole number and a unit, ms without one."""
    text = given.get(name, default)
    match = _TIME.fullmatch(text.strip().lower())
    duration_us = int(match[1]) * _UNITS_US.get(match[2], -1) if match and len(match[1]) < 20 else -1
    if not 0 <= duration_us <= most_ms * 1000 or (match and match[2] not in _UNITS_US):
        raise ConfigError(
            f"option {name} is {text!r}, not a time of at most {most_ms // 60_000} minutes, "
            "as in 500ms, 5s or 1m"
        )
    return duration_us // 1000
