"""What ``df.write.format("firn").option(…)`` understands, and the columns that it takes. [P]

Names and meanings are those of Spark's Kafka sink (`KafkaWriter`, `KafkaSourceProvider`, and "Structured
Streaming + Kafka Integration Guide"). What begins with ``kafka.`` goes to confluent-kafka's producer without
that prefix, so it is spelt as librdkafka spells it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from service.base.errors import ConfigError
from service.spark.options import known_names, with_headers
from service.spark.schema import HEADERS, HEADERS_TYPE
from service.spark.tail.options import BOOTSTRAP, TIMEOUT, apart

COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "topic": ("string",),
    HEADERS: (HEADERS_TYPE,),
    "partition": ("int",),
    "timestamp": ("timestamp", "double"),
}
"""Column -> the types that it may have, as Spark's DDL writes them. Other columns are not written."""
PRODUCER: Final[Mapping[str, str]] = {
    "enable.idempotence": "true",
    "acks": "all",
    "linger.ms": "20",
    "partitioner": "murmur2_random",  # as Java's producer: a key goes where it would have gone
    "message.max.bytes": "1000000000",  # brokers decide what is too large
    "queue.buffering.max.kbytes": str(64 << 10),
    "delivery.timeout.ms": "120000",  # Java's default; librdkafka's own is 300000
    "log_level": "2",  # of a broker that is away there is a line every 50 ms, and our error says it once
}
"""What the producer is told unless the user says otherwise; of the first two nothing else is taken."""
_SPARKS: Final = ("checkpointLocation", "queryName")
"""Options of a stream's writer that Spark hands on, though they are its own."""
_SAME: Final[Mapping[str, str]] = {
    "message.timeout.ms": "delivery.timeout.ms",
    "request.required.acks": "acks",
    "queue.buffering.max.ms": "linger.ms",
}
"""librdkafka's names for settings that have Kafka's name, too."""
_FIXED: Final[Mapping[str, tuple[str, ...]]] = {"enable.idempotence": ("true",), "acks": ("all", "-1")}
_NOT_HERE: Final[Mapping[str, str]] = {
    "key.serializer": "keys are sent as they are; cast the column",
    "value.serializer": "values are sent as they are; cast the column",
    "transactional.id": "records are sent without transactions, at least once",
    "delivery.report.only.error": "deliveries are watched already",
    "buffer.memory": "librdkafka calls it queue.buffering.max.kbytes",
    "max.request.size": "librdkafka calls it message.max.bytes",
    "max.block.ms": "librdkafka has none; delivery.timeout.ms bounds how long brokers are waited for",
    "partitioner.class": "librdkafka has partitioner, which is murmur2_random here, as Java's",
    "interceptor.classes": "librdkafka has no interceptors",
    "logger": "it is no text",
    "on_delivery": "it is no text",
}
"""Settings that are refused before librdkafka sees them -> why, or what to use."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of one write, checked. `topic` is None where each row names its own."""

    topic: str | None
    client: tuple[tuple[str, str], ...]
    """All settings of the producer."""


def parse_write(
    raw: Mapping[str, str], fields: Sequence[tuple[str, str]], *, streaming: bool = False
) -> WriteOptions:
    """Check the options of a write, and the columns of its rows as (name, simple type).

    `raw` is case-insensitive, as Spark gives it. Raises `ConfigError`, which names the option or column.
    """
    client, rest = apart(raw)
    given = _named(rest, streaming)
    servers = given.get(BOOTSTRAP, "").strip()
    if not servers:
        raise ConfigError(f"option kafka.{BOOTSTRAP} is missing: the brokers that get the records")
    topic = given["topic"].strip() if "topic" in given else None
    if topic == "":
        raise ConfigError("option topic names none")
    _check_columns(fields, topic, given)
    return WriteOptions(topic, tuple(sorted(producer_settings(servers, client, "option kafka.").items())))


def producer_settings(servers: str, client: Mapping[str, str], prefix: str = "") -> dict[str, str]:
    """Everything that the producer is told. `ConfigError` for what would break what is promised.

    `prefix` stands before a setting's name in words.
    """
    for name, value in client.items():
        if name in _NOT_HERE or name.endswith("_cb"):
            raise ConfigError(f"{prefix}{name} is refused: {_NOT_HERE.get(name, 'it is no text')}")
        allowed = _FIXED.get(_SAME.get(name, name))
        if allowed is not None and value.strip().lower() not in allowed:
            raise ConfigError(
                f"{prefix}{name} is {value!r}; it has to be {allowed[0]}, or records could be lost or "
                "change their order"
            )
    said = {_SAME.get(name, name) for name in client}
    defaults = {name: value for name, value in PRODUCER.items() if name not in said}
    return {**defaults, **client, BOOTSTRAP: servers}


def _named(rest: Mapping[str, str], streaming: bool) -> dict[str, str]:
    own = ("topic", "includeHeaders", BOOTSTRAP, *(_SPARKS if streaming else ()))
    names = {name.lower(): name for name in own}
    reads = known_names((TIMEOUT,))
    given: dict[str, str] = {}
    for key, value in rest.items():
        name = names.get(key.lower())
        if name is None and key.lower() in reads:
            raise ConfigError(
                f"option {reads[key.lower()]} is of reads, and this is a write: records go to the brokers "
                f"that kafka.{BOOTSTRAP} names, into what the option or the column topic names"
            )
        if name is None:
            raise ConfigError(
                f"unknown option {key} of a write; there are topic, includeHeaders, kafka.{BOOTSTRAP}, and "
                "with kafka. before it whatever librdkafka's producer understands"
            )
        given[name] = value
    return given


def _check_columns(fields: Sequence[tuple[str, str]], topic: str | None, given: Mapping[str, str]) -> None:
    names = [name for name, _ in fields]
    for name, kind in fields:
        if name in COLUMNS and kind not in COLUMNS[name]:
            raise ConfigError(f"column {name} is {kind}; it has to be {' or '.join(COLUMNS[name])}")
        if name in COLUMNS and names.count(name) > 1:
            raise ConfigError(f"there are two columns {name}")
        if name not in COLUMNS and name.lower() in COLUMNS:
            raise ConfigError(f"there is no column {name}; it is called {name.lower()}")
    if "value" not in names:
        raise ConfigError(f"there is no column value, only {', '.join(names) or 'none'}")
    if topic is None and "topic" not in names:
        raise ConfigError("there is neither an option nor a column topic: where are the records to go?")
    if "includeHeaders" in given and with_headers(given) != (HEADERS in names):
        raise ConfigError(
            f"option includeHeaders is {given['includeHeaders']}, and there is "
            f"{'a' if HEADERS in names else 'no'} column headers; it is sent where there is one"
        )
