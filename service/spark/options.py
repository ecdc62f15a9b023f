"""Options of ``spark.read.format("firn")``, checked and typed. [P]

Names and meanings are those of Spark's Kafka source ("Structured Streaming + Kafka Integration Guide") where
it has them. An unknown option is refused, because a misspelt one would silently read something else. Options
are shown in plans and logs, so none holds a secret: ``aws.…`` options name the credentials to use, and the
process that reads gets them (docs/bucket-format.md, "Stores").
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, NamedTuple

from service.base.errors import ConfigError
from service.remote.format.keys import MAX_OFFSET, MAX_PARTITION
from service.remote.stores.retry_policy import LONGEST_TIMEOUT_S
from service.remote.stores.s3_access import S3Access
from service.spark.durations import duration_ms
from service.spark.where import Where, parse_where

MIB: Final = 1 << 20
PerPartition = Mapping[str, Mapping[int, int]]
"""Topic, as the user wrote it -> partition -> an offset or a timestamp."""


class LogicalOffset(IntEnum):
    """Kafka's two special offsets, which stand for the ends of a log."""

    LATEST = -1
    EARLIEST = -2


class AtOffsets(NamedTuple):
    """An offset for every partition; `LogicalOffset` values stand for the ends."""

    offsets: PerPartition


class AtTimestamp(NamedTuple):
    """The first record not older than this, in every partition (ms)."""

    timestamp_ms: int


class AtTimestamps(NamedTuple):
    """The first record not older than a time for every partition (ms)."""

    timestamps_ms: PerPartition


Bound = LogicalOffset | AtOffsets | AtTimestamp | AtTimestamps


class Subscribe(NamedTuple):
    """All partitions of these topics, by name or by id."""

    topics: tuple[str, ...]


class SubscribePattern(NamedTuple):
    """All partitions of the topics whose whole name matches."""

    pattern: str


class Assign(NamedTuple):
    """Some partitions of some topics, by number."""

    partitions: Mapping[str, tuple[int, ...]]


Choice = Subscribe | SubscribePattern | Assign


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of one read, checked.

    `max_partition_bytes` bounds what one task reads of the bucket. Memory of a task is about
    `read_ahead_bytes` (downloaded, not decoded yet) and a few times `batch_bytes` (one Arrow batch), and more
    only where a single record batch is larger than these.
    """

    url: str
    endpoint: str | None
    region: str | None
    access: S3Access
    store_timeout_s: float
    """How long requests to a store that does not answer, or throttles, are repeated."""
    choice: Choice
    where: Where | None
    starting: Bound
    ending: Bound
    timestamp_miss_is_latest: bool
    """``startingOffsetsByTimestampStrategy=latest``: where no record is that new, start at the end."""
    fail_on_data_loss: bool
    include_headers: bool
    read_committed: bool
    parallelism: int | None
    """How many tasks run side by side; None: as many as Spark reports."""
    min_partitions: int | None
    max_records_per_partition: int | None
    max_partition_bytes: int
    fetch_bytes: int
    read_ahead_bytes: int
    batch_bytes: int
    batch_rows: int


STORE_OPTIONS: Final = (
    "endpoint",
    "region",
    "aws.profile",
    "aws.role_arn",
    "aws.external_id",
    "aws.role_session_name",
    "aws.credentials.provider",
    "storeTimeout",
)
"""Options for access to the store; the rows read do not depend on them."""
CHOICES: Final = ("subscribe", "subscribePattern", "assign")
OPTIONS: Final = (
    "url",
    *STORE_OPTIONS,
    *CHOICES,
    "where",
    "timeZone",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "failOnDataLoss",
    "includeHeaders",
    "isolationLevel",
    "parallelism",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxPartitionBytes",
    "fetchBytes",
    "readAheadBytes",
    "batchBytes",
    "batchRows",
)
"""Every option of a batch read. Spark passes them in lower case; this spelling is for messages."""
_SYNONYMS: Final = {"path": "url", "kafka.isolation.level": "isolationLevel"}
_SECRET: Final = re.compile(r"secret|password|token|access.?key|credential", re.IGNORECASE)
_SIZE: Final = re.compile(r"([0-9]+)\s*([kmg]?)i?b?", re.IGNORECASE)
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def known_names(more: tuple[str, ...] = ()) -> dict[str, str]:
    """Return the option of each lower-case name, synonyms included; `more` are the caller's own options."""
    names = {name.lower(): name for name in (*OPTIONS, *more)}
    return names | {synonym.lower(): name for synonym, name in _SYNONYMS.items()}


def named(raw: Mapping[str, str], more: tuple[str, ...] = ()) -> dict[str, str]:
    """Return the options under their proper names. `ConfigError` for an unknown one, or one given twice.

    >>> named({"startingoffsets": "earliest"})
    {'startingOffsets': 'earliest'}
    """
    names = known_names(more)
    found: dict[str, str] = {}
    for key, value in raw.items():
        name = names.get(key.lower())
        if name is None:
            raise ConfigError(_unknown(key, sorted(set(names.values()))))
        if name in found and found[name] != value:
            raise ConfigError(f"option {name} is given twice, under two names")
        found[name] = value
    return found


def _unknown(key: str, names: list[str]) -> str:
    if _SECRET.search(key):
        return (
            f"option {key} is refused: options are shown in plans and logs. "
            "Credentials come from the environment, or from what aws.profile or aws.role_arn name"
        )
    return f"unknown option {key}; there are {', '.join(names)}"


def parse_options(raw: Mapping[str, str], *, streaming: bool = False) -> ReadOptions:
    """Check and type the options of a batch read (or, with `streaming`, those a stream shares with it).

    `raw` is case-insensitive, as Spark passes it. A stream starts at the latest offset by default and has no
    end; a batch reads everything. Raises `ConfigError`, which names the option and the reason.
    """
    given = named(raw)
    url = given.get("url", "")
    if not url:
        raise ConfigError("option url is missing: s3://bucket/prefix or file:///folder")
    return ReadOptions(
        url=url,
        endpoint=given.get("endpoint"),
        region=given.get("region"),
        access=S3Access(
            given.get("aws.profile"),
            given.get("aws.role_arn"),
            given.get("aws.external_id"),
            given.get("aws.role_session_name"),
            given.get("aws.credentials.provider"),
        ),
        store_timeout_s=duration_ms(
            "storeTimeout", given.get("storeTimeout", "3m"), most_ms=int(LONGEST_TIMEOUT_S * 1000)
        )
        / 1000,
        choice=_choice(given),
        where=_where(given),
        starting=_starting(given, streaming),
        ending=_ending(given, streaming),
        timestamp_miss_is_latest=_one_of(
            given, "startingOffsetsByTimestampStrategy", {"error": False, "latest": True}, "error"
        ),
        fail_on_data_loss=_flag(given, "failOnDataLoss", "true"),
        include_headers=with_headers(given),
        read_committed=_one_of(
            given, "isolationLevel", {"read_uncommitted": False, "read_committed": True}, "read_uncommitted"
        ),
        parallelism=_optional(given, "parallelism", _count),
        min_partitions=_optional(given, "minPartitions", _count),
        max_records_per_partition=_optional(given, "maxRecordsPerPartition", _count),
        max_partition_bytes=_size(given, "maxPartitionBytes", 256 * MIB, least=64 << 10),
        fetch_bytes=_size(given, "fetchBytes", 8 * MIB, least=64 << 10),
        read_ahead_bytes=_size(given, "readAheadBytes", 32 * MIB, least=0),
        batch_bytes=_size(given, "batchBytes", 8 * MIB, least=64 << 10, most=1 << 30),
        batch_rows=_count("batchRows", given.get("batchRows", "131072")),
    )


def with_headers(given: Mapping[str, str]) -> bool:
    """Return the value of ``includeHeaders``, of options under their proper names."""
    return _flag(given, "includeHeaders", "false")


def flag_of(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Return the value of an option that is true or false."""
    return _flag(given, name, str(default).lower())


def count_of(given: Mapping[str, str], name: str) -> int | None:
    """Return a number above 0, None where it is not given."""
    return _optional(given, name, _count)


def size_of(given: Mapping[str, str], name: str) -> int | None:
    """Return a size in bytes, as in ``128m``; None where it is not given."""
    return _size(given, name, 0, least=1) if name in given else None


def _where(given: Mapping[str, str]) -> Where | None:
    if "where" in given:
        return parse_where(given["where"], given.get("timeZone"))
    if "timeZone" in given:
        raise ConfigError("option timeZone has no effect without where")
    return None


def _choice(given: Mapping[str, str]) -> Choice:
    names = [name for name in CHOICES if name in given]
    if len(names) != 1:
        raise ConfigError(f"exactly one of the options {', '.join(CHOICES)} is needed, {len(names)} given")
    text = given[names[0]]
    if names[0] == "subscribe":
        topics = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
        if not topics:
            raise ConfigError("option subscribe names no topic")
        return Subscribe(topics)
    if names[0] == "subscribePattern":
        try:
            re.compile(text)
        except re.error as e:
            raise ConfigError(f"option subscribePattern: {text!r} is not a regular expression: {e}") from e
        return SubscribePattern(text)
    return _assignment(text)


def _assignment(text: str) -> Assign:
    document = _json_object("assign", text)
    chosen: dict[str, tuple[int, ...]] = {}
    for topic, partitions in document.items():
        if not isinstance(partitions, list) or not all(_is_int(p, 0, MAX_PARTITION) for p in partitions):
            raise ConfigError(f'option assign: {topic} needs a list of partitions, as in {{"topic":[0,1]}}')
        chosen[topic] = tuple(dict.fromkeys(partitions))
    if not any(chosen.values()):
        raise ConfigError("option assign names no partition")
    return Assign(chosen)


def _starting(given: Mapping[str, str], streaming: bool) -> Bound:
    """Return the start, by Spark's precedence: one timestamp, else timestamps per partition, else offsets."""
    if "startingTimestamp" in given:
        return AtTimestamp(_timestamp("startingTimestamp", given["startingTimestamp"]))
    if "startingOffsetsByTimestamp" in given:
        return AtTimestamps(
            _per_partition("startingOffsetsByTimestamp", given["startingOffsetsByTimestamp"], 0)
        )
    bound = _offsets("startingOffsets", given.get("startingOffsets", "latest" if streaming else "earliest"))
    if not streaming and _has(bound, LogicalOffset.LATEST):
        raise ConfigError("option startingOffsets: a batch cannot start at the latest offset (-1)")
    return bound


def _ending(given: Mapping[str, str], streaming: bool) -> Bound:
    names = [
        name for name in ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets") if name in given
    ]
    if streaming and names:
        raise ConfigError(f"option {names[0]}: a stream has no end")
    if "endingTimestamp" in given:
        return AtTimestamp(_timestamp("endingTimestamp", given["endingTimestamp"]))
    if "endingOffsetsByTimestamp" in given:
        return AtTimestamps(_per_partition("endingOffsetsByTimestamp", given["endingOffsetsByTimestamp"], 0))
    bound = _offsets("endingOffsets", given.get("endingOffsets", "latest"))
    if _has(bound, LogicalOffset.EARLIEST):
        raise ConfigError("option endingOffsets: a batch cannot end at the earliest offset (-2)")
    return bound


def _has(bound: Bound, edge: LogicalOffset) -> bool:
    if isinstance(bound, AtOffsets):
        return any(offset == edge for row in bound.offsets.values() for offset in row.values())
    return bound is edge


def _offsets(name: str, text: str) -> Bound:
    word = text.strip().lower()
    if word == "earliest":
        return LogicalOffset.EARLIEST
    if word == "latest":
        return LogicalOffset.LATEST
    return AtOffsets(_per_partition(name, text, int(LogicalOffset.EARLIEST)))


def _per_partition(name: str, text: str, least: int) -> PerPartition:
    rows: dict[str, dict[int, int]] = {}
    for topic, row in _json_object(name, text).items():
        if topic.startswith("@"):
            raise ConfigError(f"option {name} takes topics alone, leave out {topic!r} of a stream's offsets")
        if not isinstance(row, dict):
            raise ConfigError(f'option {name}: {topic} needs an object, as in {{"topic":{{"0":23}}}}')
        rows[topic] = {}
        for partition, number in row.items():
            if not (partition.isascii() and partition.isdecimal() and int(partition) <= MAX_PARTITION):
                raise ConfigError(f"option {name}: {partition!r} is not a partition of {topic}")
            if not _is_int(number, least, MAX_OFFSET):
                raise ConfigError(f"option {name}: {number!r} is not a valid value for {topic}-{partition}")
            rows[topic][int(partition)] = number
    return rows


def _json_object(name: str, text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise ConfigError(f"option {name}: {text[:200]!r} is not JSON: {e}") from e
    if not isinstance(document, dict):
        raise ConfigError(f"option {name}: {text[:200]!r} is not a JSON object of topics")
    return document


def _is_int(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _timestamp(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) <= MAX_OFFSET):
        raise ConfigError(f"option {name}: {text!r} is not a time in milliseconds since 1970")
    return int(text)


def _flag(given: Mapping[str, str], name: str, default: str) -> bool:
    return _one_of(given, name, {"true": True, "false": False}, default)


def _one_of(given: Mapping[str, str], name: str, words: Mapping[str, bool], default: str) -> bool:
    word = given.get(name, default).strip().lower()
    if word not in words:
        raise ConfigError(f"option {name} is {given[name]!r}, not one of {', '.join(words)}")
    return words[word]


def _optional(given: Mapping[str, str], name: str, parse: Callable[[str, str], int]) -> int | None:
    return parse(name, given[name]) if name in given else None


def _count(name: str, text: str) -> int:
    text = text.strip()
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= MAX_OFFSET):
        raise ConfigError(f"option {name} is {text!r}, not a number above 0")
    return int(text)


def _size(given: Mapping[str, str], name: str, default: int, *, least: int, most: int = MAX_OFFSET) -> int:
    if name not in given:
        return default
    match = _SIZE.fullmatch(given[name].strip())
    size = int(match[1]) * _UNITS[match[2].lower()] if match else -1
    if not least <= size <= most:
        raise ConfigError(
            f"option {name} is {given[name]!r}, not a size of at least {least} bytes, as in 128m"
        )
    return size
