"""Options of the tail: which brokers are read behind the archive, and what their client is told. [P]

Names are those of Spark's Kafka source. What begins with ``kafka.`` goes to confluent-kafka without that
prefix, so it is spelt as librdkafka spells it (``kafka.sasl.username``); where credentials have to go there,
Spark leaves out of its plans whatever ``spark.redaction.regex`` matches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from service.base.errors import ConfigError
from service.spark.kafka_options import check_moved, is_meaningless
from service.spark.options import ReadOptions, count_of, named, parse_options

BOOTSTRAP: Final = "bootstrap.servers"
TIMEOUT: Final = "kafkaConsumer.pollTimeoutMs"
TAIL: Final = (BOOTSTRAP, TIMEOUT)
_PREFIX: Final = "kafka."
_OURS: Final = frozenset({"kafka.isolation.level"})
"""Synonyms of the source's own options that begin like the client's."""
_TAKEN: Final = frozenset(
    {
        "group.instance.id",
        "enable.auto.offset.store",
        "enable.partition.eof",
    }
)
"""What the source sets itself, or reads past Kafka's clients in Java."""


@dataclass(frozen=True, slots=True)
class TailOptions:
    """Where the brokers are and what else their client is told; `timeout_ms` is how long to wait for them."""

    client: tuple[tuple[str, str], ...]
    timeout_ms: int


def parse_batch(raw: Mapping[str, str]) -> tuple[ReadOptions, TailOptions | None]:
    """The options of a batch read and, where brokers are given, those of its tail; or `ConfigError`."""
    check_moved(raw, streaming=False)
    client, rest = apart(raw)
    given = named(rest, TAIL)
    return parse_options(without(given, TAIL)), tail_of(given, client)


def refuse_tail(raw: Mapping[str, str], reason: str) -> None:
    """`ConfigError` with this reason if there are options of the tail among these."""
    client, rest = apart(raw)
    names = {name.lower() for name in TAIL}
    for name in (*(key for key in rest if key.lower() in names), *(_PREFIX + key for key in client)):
        raise ConfigError(f"option {name} is refused: {reason}")


def apart(raw: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """What is the client's, without the prefix, and what is the source's; what says nothing is left out."""
    client: dict[str, str] = {}
    rest: dict[str, str] = {}
    for key, value in raw.items():
        name = key.lower()
        if is_meaningless(name):
            continue
        if not name.startswith(_PREFIX) or name in _OURS:
            rest[key] = value
        elif name == _PREFIX + BOOTSTRAP:
            if raw.get(BOOTSTRAP, value) != value:
                raise ConfigError(f"option {BOOTSTRAP} is given twice, under two names")
            rest[BOOTSTRAP] = value
        else:
            client[name.removeprefix(_PREFIX)] = value
    return client, rest


def without(given: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    return {name: value for name, value in given.items() if name not in names}


def tail_of(given: Mapping[str, str], client: Mapping[str, str]) -> TailOptions | None:
    servers = given.get(BOOTSTRAP, "").strip()
    if not servers:
        alone = [name for name in (BOOTSTRAP, TIMEOUT) if name in given] + [_PREFIX + key for key in client]
        if alone:
            raise ConfigError(f"option {alone[0]} says nothing without {BOOTSTRAP}")
        return None
    if taken := sorted(_TAKEN & client.keys()):
        raise ConfigError(f"option {_PREFIX}{taken[0]} is not yours to set: offsets are kept by Spark")
    settings = {**client, BOOTSTRAP: servers}
    return TailOptions(tuple(sorted(settings.items())), count_of(given, TIMEOUT) or 120_000)
