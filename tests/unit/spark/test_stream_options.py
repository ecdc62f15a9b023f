"""Options of streams and of the tail."""

from __future__ import annotations

import pytest

from service.base.errors import ConfigError
from service.spark.options import Edge
from service.spark.stream.options import includes_headers, parse_stream
from service.spark.tail.client_options import ClientOptions
from service.spark.tail.options import TailOptions, parse_batch

BASE = {"url": "file:///none", "subscribe": "t"}


def test_limits_and_brokers_are_read() -> None:
    options = parse_stream(
        {**BASE, "maxoffsetspertrigger": "100", "maxbytespertrigger": "2m", "bootstrap.servers": "a:1,b:2"}
    )
    assert (options.max_offsets, options.max_bytes) == (100, 2 << 20)
    assert options.tail == TailOptions((("a", 1), ("b", 2)), 120_000, ClientOptions())
    assert options.read.starting is Edge.LATEST


def test_without_brokers_there_is_no_tail() -> None:
    assert parse_batch(BASE)[1] is None
    assert parse_stream(BASE).tail is None


def test_what_begins_with_kafka_is_the_clients() -> None:
    raw = {
        **BASE,
        "kafka.bootstrap.servers": "a:1",
        "kafka.security.protocol": "ssl",
        "kafka.ssl.endpoint.identification.algorithm": "none",
        "kafka.isolation.level": "read_committed",
        "kafkaconsumer.polltimeoutms": "5000",
    }
    read, tail = parse_batch(raw)
    assert tail == TailOptions((("a", 1),), 5000, ClientOptions(protocol="SSL", checks_hostname=False))
    assert read.read_committed


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (
            {"kafka.security.protocol": "SSL"},
            "kafka.security.protocol says nothing without bootstrap.servers",
        ),
        ({"kafkaConsumer.pollTimeoutMs": "5"}, "says nothing without"),
        ({"bootstrap.servers": "a:1", "kafka.group.id": "g"}, "kafka.group.id is not yours to set"),
        ({"bootstrap.servers": "a:1", "kafka.bootstrap.servers": "b:1"}, "given twice"),
        ({"bootstrap.servers": "a"}, "'a' is not host:port"),
        ({"bootstrap.servers": "a:1,b:99999"}, "'b:99999' is not host:port"),
        ({"bootstrap.servers": ","}, "names no broker"),
        ({"maxBytesPerTrigger": "0"}, "maxBytesPerTrigger"),
        ({"maxOffsetsPerTriger": "1"}, "unknown option"),
        ({"endingTimestamp": "1"}, "a stream has no end"),
    ],
)
def test_what_makes_no_sense_is_refused(more: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        parse_stream({**BASE, **more})


def test_a_batch_has_no_limits_per_trigger() -> None:
    with pytest.raises(ConfigError, match="unknown option maxOffsetsPerTrigger"):
        parse_batch({**BASE, "maxOffsetsPerTrigger": "1"})


def test_the_schema_knows_headers_from_the_options_of_streams_too() -> None:
    assert includes_headers({**BASE, "includeHeaders": "true", "maxOffsetsPerTrigger": "1"})
    assert not includes_headers(
        {**BASE, "bootstrap.servers": "a:1", "kafka.client.id": "y", "endingOffsets": "latest"}
    )


SASL = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "me"}


@pytest.mark.parametrize(
    ("client", "reason"),
    [
        (
            {"no.such.thing": "1"},
            r"kafka.no.such.thing is not served; .* kafka.client.id, .*kafka.ssl.ca.location",
        ),
        ({"enable.auto.commit": "true"}, "offsets are kept by Spark"),
        ({"max.partition.fetch.bytes": "1"}, "has a name here: fetchBytes"),
        ({"ssl.truststore.location": "a.jks"}, "is Java's: write kafka.ssl.ca.location"),
        ({**SASL, "sasl.jaas.config": "…PlainLoginModule…"}, "is Java's: write kafka.sasl.mechanism"),
        ({"security.protocol": "TLS"}, "'TLS', not one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ({**SASL, "sasl.password": "p", "sasl.mechanism": "GSSAPI"}, "not one of PLAIN, SCRAM-SHA-256"),
        (SASL, "SASL_PLAINTEXT needs option kafka.sasl.password"),
        ({**SASL, "sasl.mechanisms": "SCRAM-SHA-256"}, "given twice"),
        ({"sasl.username": "me"}, "kafka.sasl.username says nothing without kafka.security.protocol=SASL_"),
        ({"ssl.ca.location": "ca.pem"}, "kafka.ssl.ca.location says nothing without"),
        (
            {"security.protocol": "SSL", "ssl.key.location": "k"},
            "nothing without kafka.ssl.certificate.location",
        ),
        ({"security.protocol": "SSL", "ssl.ca.location": ""}, "kafka.ssl.ca.location is empty"),
        ({"request.timeout.ms": "soon"}, "not milliseconds"),
    ],
)
def test_what_the_client_does_not_understand_is_refused_by_name(client: dict[str, str], reason: str) -> None:
    given = {f"kafka.{name}": value for name, value in client.items()}
    with pytest.raises(ConfigError, match=reason):
        parse_batch({**BASE, "bootstrap.servers": "a:1", **given})


def test_passwords_are_in_no_repr() -> None:
    given = {f"kafka.{name}": value for name, value in {**SASL, "sasl.password": "geheim"}.items()}
    tail = parse_batch({**BASE, "bootstrap.servers": "a:1", **given})[1]
    assert tail is not None
    assert tail.client.password == "geheim"
    assert "geheim" not in repr(tail)
