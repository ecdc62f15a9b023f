"""Options of ``df.write.format("firn").option(…)``, checked, and the columns that a write accepts. [P]

Names and meanings are those of Spark's Kafka sink (`KafkaWriter`, `KafkaSourceProvider`, and "Structured
Streaming + Kafka Integration Guide"). Options that begin with ``kafka.`` go to confluent-kafka's producer
without that prefix, so their names are librdkafka's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from service.base.errors import ConfigError
from service.spark.options import known_names, with_headers
from service.spark.schema import HEADERS, HEADERS_TYPE
from service.spark.tail.options import BOOTSTRAP, TIMEOUT, split_options

COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "topic": ("string",),
    HEADERS: (HEADERS_TYPE,),
    "partition": ("int",),
    "timestamp": ("timestamp", "double"),
}
"""Column -> its allowed types, as Spark's DDL writes them. Other columns are not written."""
PRODUCER: Final[Mapping[str, str]] = {
    "enable.idempotence": "true",
    "acks": "all",
    "linger.ms": "20",
    "partitioner": "murmur2_random",  # Java's: a key goes to the same partition
    "message.max.bytes": "1000000000",  # brokers decide what is too large
    "queue.buffering.max.kbytes": str(64 << 10),
    "delivery.timeout.ms": "120000",  # Java's default; librdkafka's own is 300000
    "log_level": "2",  # librdkafka logs an absent broker every 50 ms; our error reports it once
}
"""Defaults of the producer's settings; no other value of the first two is accepted."""
_SPARKS: Final = ("checkpointLocation", "queryName")
"""Spark's own options of a stream's writer, which it passes on."""
_SAME: Final[Mapping[str, str]] = {
    "message.timeout.ms": "delivery.timeout.ms",
    "request.required.acks": "acks",
    "queue.buffering.max.ms": "linger.ms",
}
"""librdkafka's names of settings that it also takes under Kafka's name."""
_FIXED: Final[Mapping[str, tuple[str, ...]]] = {"enable.idempotence": ("true",), "acks": ("all", "-1")}
_NOT_HERE: Final[Mapping[str, str]] = {
    "key.serializer": "keys are sent as they are; cast the column",
    "value.serializer": "values are sent as they are; cast the column",
    "transactional.id": "records are sent without transactions, at least once",
    "delivery.report.only.error": "the sink sets it itself",
    "buffer.memory": "librdkafka calls it queue.buffering.max.kbytes",
    "max.request.size": "librdkafka calls it message.max.bytes",
    "max.block.ms": "librdkafka has none; delivery.timeout.ms bounds the wait for brokers",
    "partitioner.class": "librdkafka has partitioner, which is murmur2_random here, as Java's",
    "interceptor.classes": "librdkafka has no interceptors",
    "logger": "it is not text",
    "on_delivery": "it is not text",
}
"""Settings that are refused before librdkafka gets them -> the reason, or the alternative."""


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

    `raw` is case-insensitive, as Spark passes it. Raises `ConfigError`, which names the option or column.
    """
    client, rest = split_options(raw)
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
    """Return all settings of the producer. `ConfigError` for one that would break the sink's guarantees.

    Error texts put `prefix` before a setting's name.
    """
    for name, value in client.items():
        if name in _NOT_HERE or name.endswith("_cb"):
            raise ConfigError(f"{prefix}{name} is refused: {_NOT_HERE.get(name, 'it is not text')}")
        allowed = _FIXED.get(_SAME.get(name, name))
        if allowed is not None and value.strip().lower() not in allowed:
            raise ConfigError(
                f"{prefix}{name} is {value!r}; it has to be {allowed[0]}, or records could be lost or "
                "change their order"
            )
    given = {_SAME.get(name, name) for name in client}
    defaults = {name: value for name, value in PRODUCER.items() if name not in given}
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
                f"option {reads[key.lower()]} is for reads, and this is a write: records go to the brokers "
                f"that kafka.{BOOTSTRAP} names, into the topic that the option or the column topic names"
            )
        if name is None:
            raise ConfigError(
                f"unknown option {key} of a write; there are topic, includeHeaders, kafka.{BOOTSTRAP}, and "
                "every setting of librdkafka's producer with kafka. before it"
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
        raise ConfigError("there is neither an option topic nor a column topic; give one of them")
    if "includeHeaders" in given and with_headers(given) != (HEADERS in names):
        raise ConfigError(
            f"option includeHeaders is {given['includeHeaders']}, and there is "
            f"{'a' if HEADERS in names else 'no'} column headers; headers are sent where there is one"
        )
