"""Options of streams and of the tail."""

from __future__ import annotations

import pytest

from service.base.errors import ConfigError
from service.config.client import ClientOptions
from service.spark.kafka_options import ignored_option_warnings
from service.spark.options import LogicalOffset
from service.spark.stream.options import includes_headers, parse_stream
from service.spark.tail.options import TailOptions, parse_batch

BASE = {"url": "file:///none", "subscribe": "t"}


def test_limits_and_brokers_are_read() -> None:
    options = parse_stream(
        {**BASE, "maxoffsetspertrigger": "100", "maxbytespertrigger": "2m", "bootstrap.servers": "a:1,b:2"}
    )
    assert (options.max_offsets, options.max_bytes) == (100, 2 << 20)
    assert options.tail == TailOptions((("a", 1), ("b", 2)), 120_000, ClientOptions())
    assert options.read.starting is LogicalOffset.LATEST


def test_without_brokers_there_is_no_tail() -> None:
    assert parse_batch(BASE)[1] is None
    assert parse_stream(BASE).tail is None


def test_options_with_the_kafka_prefix_go_to_the_client() -> None:
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
            "kafka.security.protocol has no effect without bootstrap.servers",
        ),
        ({"kafkaConsumer.pollTimeoutMs": "5"}, "has no effect without"),
        ({"bootstrap.servers": "a:1", "kafka.group.instance.id": "g"}, "id is not yours to set"),
        (
            {"bootstrap.servers": "a:1", "kafka.auto.offset.reset": "latest"},
            "startingOffsets and failOnDataLoss say it",
        ),
        ({"bootstrap.servers": "a:1", "kafka.sasl.jaas.config": "x"}, "write kafka.sasl.mechanism"),
        ({"bootstrap.servers": "a:1", "kafka.key.deserializer": "x"}, "keys are binary"),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "is 5, above maxOffsetsPerTrigger, 4"),
        ({"maxTriggerDelay": "1m"}, "has no effect without minOffsetsPerTrigger"),
        ({"refreshInterval": "11m"}, "not a time of at most 600 s"),
        ({"refreshInterval": "-1s"}, "not a time"),
        ({"refreshInterval": "1w"}, "not a time"),
        ({"refreshInterval": "9" * 5000}, "not a time"),
        ({"bootstrap.servers": "a:1", "kafka.bootstrap.servers": "b:1"}, "given twice"),
        ({"bootstrap.servers": "a"}, "'a' is not host:port"),
        ({"bootstrap.servers": "a:1,b:99999"}, "'b:99999' is not host:port"),
        ({"bootstrap.servers": ","}, "names no broker"),
        ({"maxBytesPerTrigger": "0"}, "maxBytesPerTrigger"),
        ({"maxOffsetsPerTriger": "1"}, "unknown option"),
        ({"endingTimestamp": "1"}, "a stream has no end"),
    ],
)
def test_contradictory_stream_options_are_refused(more: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        parse_stream({**BASE, **more})


@pytest.mark.parametrize(
    ("text", "ms"),
    [("5s", 5000), ("500ms", 500), ("1m", 60_000), ("2MIN", 120_000), ("250", 250), ("0", 0), ("999us", 0)],
)
def test_times_are_written_as_spark_writes_them(text: str, ms: int) -> None:
    assert parse_stream({**BASE, "refreshinterval": text}).refresh_interval_ms == ms


def test_a_stream_that_is_told_nothing_looks_every_five_seconds_and_waits_for_nothing() -> None:
    options = parse_stream(BASE)
    assert options.refresh_interval_ms == 5000
    assert options.limits == ()
    waiting = parse_stream({**BASE, "minOffsetsPerTrigger": "5"})
    assert waiting.limits == ("minOffsetsPerTrigger",)
    assert waiting.max_trigger_delay_ms == 15 * 60_000
    assert (
        parse_stream({**BASE, "minOffsetsPerTrigger": "5", "maxTriggerDelay": "2h"}).max_trigger_delay_ms
        == 2 * 3600_000
    )


@pytest.mark.parametrize("brokers", [{}, {"kafka.bootstrap.servers": "a:1"}])
def test_ignored_kafka_options_are_accepted_with_a_warning(brokers: dict[str, str]) -> None:
    more = {
        "kafka.group.id": "g",
        "groupIdPrefix": "p",
        "fetchOffset.numRetries": "3",
        "fetchOffset.retryIntervalMs": "10",
    }
    assert parse_stream({**BASE, **brokers, **more}) == parse_stream({**BASE, **brokers})
    assert parse_batch({**BASE, **brokers, **more}) == parse_batch({**BASE, **brokers})
    assert includes_headers({**BASE, **more, "includeHeaders": "true"})
    assert [text.split(":")[0] for text in ignored_option_warnings({**BASE, **more})] == [
        "option fetchoffset.numretries means nothing here",
        "option fetchoffset.retryintervalms means nothing here",
        "option groupidprefix means nothing here",
        "option kafka.group.id means nothing here",
    ]
    assert ignored_option_warnings(BASE) == []


def test_brokers_without_an_archive_are_told_what_to_add() -> None:
    moved = {"kafka.bootstrap.servers": "a:1", "subscribe": "t"}
    for parse in (parse_stream, parse_batch):
        with pytest.raises(ConfigError, match=r"Add url, as firn\.remote\.url is"):
            parse(moved)


SPARKS_KAFKA_SOURCE = {
    "assign": '{"t":[0]}',
    "subscribe": "t",
    "subscribePattern": "t.*",
    "kafka.bootstrap.servers": "a:1",
    "startingTimestamp": "1",
    "startingOffsetsByTimestamp": '{"t":{"0":1}}',
    "startingOffsets": "earliest",
    "endingTimestamp": "1",
    "endingOffsetsByTimestamp": '{"t":{"0":1}}',
    "endingOffsets": "latest",
    "failOnDataLoss": "false",
    "kafkaConsumer.pollTimeoutMs": "1000",
    "fetchOffset.numRetries": "3",
    "fetchOffset.retryIntervalMs": "10",
    "maxOffsetsPerTrigger": "7",
    "minOffsetsPerTrigger": "7",
    "maxTriggerDelay": "15m",
    "minPartitions": "2",
    "maxRecordsPerPartition": "1000",
    "groupIdPrefix": "spark-kafka-source",
    "kafka.group.id": "g",
    "includeHeaders": "true",
    "startingOffsetsByTimestampStrategy": "latest",
}
"""Every option in the table of Spark's "Structured Streaming + Kafka Integration Guide", with a value."""
OF_BATCHES = {"endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets"}
OF_STREAMS = {"maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"}


@pytest.mark.parametrize("name", SPARKS_KAFKA_SOURCE)
def test_every_option_of_sparks_kafka_source_is_known(name: str) -> None:
    raw = {"url": "file:///none", "kafka.bootstrap.servers": "a:1", name: SPARKS_KAFKA_SOURCE[name]}
    if name == "maxTriggerDelay":
        raw["minOffsetsPerTrigger"] = "5"
    if not raw.keys() & {"assign", "subscribe", "subscribePattern"}:
        raw["subscribe"] = "t"
    if name not in OF_BATCHES:
        parse_stream(raw)
    if name not in OF_STREAMS:
        parse_batch(raw)


def test_a_batch_has_no_limits_per_trigger() -> None:
    with pytest.raises(ConfigError, match="maxoffsetspertrigger is for streams"):
        parse_batch({**BASE, "maxOffsetsPerTrigger": "1"})
    with pytest.raises(ConfigError, match="unknown option refreshInterval"):
        parse_batch({**BASE, "refreshInterval": "1s"})


def test_offsets_that_a_stream_has_written_are_taken_without_what_the_topics_were() -> None:
    offsets = '{"t": {"0": 5}, "@firn": {"cluster": "c-1"}}'
    with pytest.raises(ConfigError, match="startingOffsets takes topics alone"):
        parse_stream({**BASE, "startingOffsets": offsets})


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
def test_unsupported_client_options_are_refused_by_name(client: dict[str, str], reason: str) -> None:
    given = {f"kafka.{name}": value for name, value in client.items()}
    with pytest.raises(ConfigError, match=reason):
        parse_batch({**BASE, "bootstrap.servers": "a:1", **given})


def test_passwords_are_in_no_repr() -> None:
    given = {f"kafka.{name}": value for name, value in {**SASL, "sasl.password": "geheim"}.items()}
    tail = parse_batch({**BASE, "bootstrap.servers": "a:1", **given})[1]
    assert tail is not None
    assert tail.client.password == "geheim"
    assert "geheim" not in repr(tail)
