"""Options of the tail: the brokers to read after the archive and their client's settings, or a cut. [P]

Names are those of Spark's Kafka source. Options that begin with ``kafka.`` are the client's
(`config/client`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from service.base.errors import ConfigError
from service.config.client import Address, ClientOptions, parse_client, parse_servers
from service.spark.kafka_options import check_moved, is_meaningless
from service.spark.options import ReadOptions, count_of, named, parse_options

BOOTSTRAP: Final = "bootstrap.servers"
TIMEOUT: Final = "kafkaConsumer.pollTimeoutMs"
INCLUDE: Final = "includeTail"
TAIL: Final = (BOOTSTRAP, TIMEOUT, INCLUDE)
_PREFIX: Final = "kafka."
_OURS: Final = frozenset({"kafka.isolation.level"})
"""Synonyms of the source's own options that have the client's prefix."""

_JAVA_STORES: Final = "is Java's: write kafka.ssl.ca.location, kafka.ssl.certificate.location and "
_INSTEAD: Final = {
    "sasl.jaas.config": "is Java's: write kafka.sasl.mechanism, kafka.sasl.username and kafka.sasl.password",
    "ssl.truststore.location": f"{_JAVA_STORES}kafka.ssl.key.location, which name PEM files",
    "ssl.keystore.location": f"{_JAVA_STORES}kafka.ssl.key.location, which name PEM files",
    "max.partition.fetch.bytes": "has a name here: fetchBytes",
    "fetch.message.max.bytes": "has a name here: fetchBytes",
    "check.crcs": "is not needed: checksums are always compared",
    "group.instance.id": "is not yours to set: offsets are kept by Spark",
    "auto.offset.reset": "is not yours to set: startingOffsets and failOnDataLoss say it",
    "enable.auto.commit": "is not yours to set: offsets are kept by Spark",
    "enable.auto.offset.store": "is not yours to set: offsets are kept by Spark",
    "key.deserializer": "is not yours to set: keys are binary",
    "value.deserializer": "is not yours to set: values are binary",
}
"""Options that people have from other clients, and what to do about them."""


@dataclass(frozen=True, slots=True)
class TailOptions:
    """The brokers and how to connect to them; `timeout_ms` bounds the wait without progress."""

    servers: tuple[Address, ...]
    timeout_ms: int
    client: ClientOptions


@dataclass(frozen=True, slots=True)
class CutOptions:
    """``includeTail=cut``: the tail comes from the newest complete cut in the bucket."""


Tail = TailOptions | CutOptions


def parse_batch(raw: Mapping[str, str]) -> tuple[ReadOptions, Tail | None]:
    """Return the options of a batch read and, where it has one, its tail's. Raises `ConfigError`."""
    check_moved(raw, streaming=False)
    client, rest = split_options(raw)
    given = named(rest, TAIL)
    return parse_options(without(given, TAIL)), tail_of(given, client)


def refuse_tail(raw: Mapping[str, str], reason: str) -> None:
    """Raise `ConfigError` with this reason if options of the tail are among these."""
    client, rest = split_options(raw)
    names = {name.lower() for name in TAIL}
    for name in (*(key for key in rest if key.lower() in names), *(_PREFIX + key for key in client)):
        raise ConfigError(f"option {name} is refused: {reason}")


def split_options(raw: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Separate the client's options, without the prefix, from the source's; drops those without effect."""
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


def tail_of(given: Mapping[str, str], client: Mapping[str, str]) -> Tail | None:
    servers = given.get(BOOTSTRAP, "").strip()
    if INCLUDE in given and given[INCLUDE].strip().lower() != "cut":
        raise ConfigError(f"option {INCLUDE} is {given[INCLUDE]!r}, not cut")
    if INCLUDE in given and servers:
        raise ConfigError(
            f"option {INCLUDE}=cut is refused beside {BOOTSTRAP}: the tail comes from one of them"
        )
    if not servers:
        alone = [name for name in (BOOTSTRAP, TIMEOUT) if name in given] + [_PREFIX + key for key in client]
        if alone:
            raise ConfigError(f"option {alone[0]} has no effect without {BOOTSTRAP}")
        return CutOptions() if INCLUDE in given else None
    for name in sorted(client):
        if name in _INSTEAD:
            raise ConfigError(f"option {_PREFIX}{name} {_INSTEAD[name]}")
    options = parse_client(client, _PREFIX)
    return TailOptions(parse_servers(servers), count_of(given, TIMEOUT) or 120_000, options)
