"""Options of streams and of the tail."""

from __future__ import annotations

import sys

import pytest

from service.base.errors import ConfigError
from service.spark.options import Edge
from service.spark.stream.options import includes_headers, parse_stream
from service.spark.tail.brokers import confluent_kafka
from service.spark.tail.options import TailOptions, parse_batch

BASE = {"url": "file:///none", "subscribe": "t"}


def test_limits_and_brokers_are_read() -> None:
    options = parse_stream(
        {**BASE, "maxoffsetspertrigger": "100", "maxbytespertrigger": "2m", "bootstrap.servers": "a:1,b:2"}
    )
    assert (options.max_offsets, options.max_bytes) == (100, 2 << 20)
    assert options.tail == TailOptions((("bootstrap.servers", "a:1,b:2"),), 120_000)
    assert options.read.starting is Edge.LATEST


def test_without_brokers_there_is_no_tail() -> None:
    assert parse_batch(BASE)[1] is None
    assert parse_stream(BASE).tail is None


def test_what_begins_with_kafka_goes_to_the_client() -> None:
    raw = {
        **BASE,
        "kafka.bootstrap.servers": "a:1",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.isolation.level": "read_committed",
        "kafkaconsumer.polltimeoutms": "5000",
    }
    read, tail = parse_batch(raw)
    assert tail == TailOptions((("bootstrap.servers", "a:1"), ("security.protocol", "SASL_SSL")), 5000)
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
        {**BASE, "bootstrap.servers": "a:1", "kafka.x": "y", "endingOffsets": "latest"}
    )


def test_a_missing_client_is_said_clearly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(
        ConfigError, match=r"bootstrap.servers needs .* every executor.*pip install confluent-kafka"
    ):
        confluent_kafka()
