"""Options and columns of a write: what is taken, and in which words the rest is refused."""

from __future__ import annotations

import pytest

from service.base.errors import ConfigError
from service.spark.write.options import PRODUCER, WriteOptions, parse_write, producer_settings

BROKERS = {"kafka.bootstrap.servers": "host:9092"}
HEADERS = ("headers", "array<struct<key:string,value:binary>>")
VALUE = [("value", "binary")]


def parsed(more: dict[str, str], fields: list[tuple[str, str]] = VALUE, **how: bool) -> WriteOptions:
    return parse_write({**BROKERS, "topic": "flights", **more}, fields, **how)


def test_the_producer_is_told_what_java_would_tell_it_unless_the_user_says_otherwise() -> None:
    options = parsed({"kafka.linger.ms": "5", "kafka.compression.type": "zstd"})
    assert options.topic == "flights"
    assert dict(options.client) == {
        **PRODUCER,
        "linger.ms": "5",
        "compression.type": "zstd",
        "bootstrap.servers": "host:9092",
    }


@pytest.mark.parametrize(
    ("alias", "own"), [("message.timeout.ms", "delivery.timeout.ms"), ("queue.buffering.max.ms", "linger.ms")]
)
def test_a_setting_under_its_other_name_replaces_the_default(alias: str, own: str) -> None:
    settings = producer_settings("host:9092", {alias: "7"})
    assert settings[alias] == "7"
    assert own not in settings


def test_rows_may_name_their_topics_and_have_every_column_in_either_type() -> None:
    fields = [("key", "string"), ("value", "string"), ("topic", "string"), ("partition", "int"), HEADERS]
    for timestamp in ("timestamp", "double"):
        all_fields = [*fields, ("timestamp", timestamp), ("offset", "bigint")]
        assert parse_write(BROKERS, all_fields).topic is None
    assert parse_write({"bootstrap.servers": "host:9092", "topic": " t "}, fields).topic == "t"


def test_options_that_spark_adds_to_a_stream_are_ignored() -> None:
    sparks = {"checkpointlocation": "/x", "queryname": "q"}
    assert parsed(sparks, streaming=True) == parsed({})
    with pytest.raises(ConfigError, match="unknown option checkpointlocation of a write"):
        parsed(sparks)


@pytest.mark.parametrize("flag", ["true", "false"])
def test_headers_and_what_is_said_of_them_have_to_agree(flag: str) -> None:
    agreeing, other = ([*VALUE, HEADERS], VALUE) if flag == "true" else (VALUE, [*VALUE, HEADERS])
    assert parsed({"includeHeaders": flag}, agreeing) == parsed({}, agreeing)
    with pytest.raises(ConfigError, match=f"includeHeaders is {flag}, and there is"):
        parsed({"includeHeaders": flag}, other)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"url": "s3://bucket/x"}, "option url is for reads, and this is a write"),
        ({"path": "flights"}, "option url is for reads"),
        ({"startingoffsets": "earliest"}, "option startingOffsets is for reads"),
        ({"kafkaconsumer.polltimeoutms": "1"}, "option kafkaConsumer.pollTimeoutMs is for reads"),
        ({"topics": "x"}, "unknown option topics of a write; there are topic, includeHeaders, kafka."),
        ({"topic": " "}, "option topic names none"),
        ({"kafka.bootstrap.servers": " "}, "option kafka.bootstrap.servers is missing"),
        ({"bootstrap.servers": "other:9092"}, "given twice"),
        ({"kafka.acks": "1"}, "option kafka.acks is '1'; it has to be all"),
        ({"kafka.request.required.acks": "0"}, "it has to be all"),
        ({"kafka.enable.idempotence": "false"}, "it has to be true"),
        ({"kafka.transactional.id": "x"}, "without transactions, at least once"),
        ({"kafka.buffer.memory": "1"}, "librdkafka calls it queue.buffering.max.kbytes"),
        ({"kafka.value.serializer": "x"}, "cast the column"),
        ({"kafka.stats_cb": "x"}, "it is not text"),
    ],
)
def test_invalid_write_options_are_refused_by_name(options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parsed(options)


@pytest.mark.parametrize("acks", ["all", "-1", "ALL"])
def test_all_replicas_may_be_asked_for_in_every_spelling(acks: str) -> None:
    assert dict(parsed({"kafka.acks": acks}).client)["acks"] == acks


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ([("key", "binary")], "there is no column value, only key"),
        ([], "there is no column value, only none"),
        ([("value", "int")], "column value is int; it has to be string or binary"),
        ([("Value", "string")], "there is no column Value; it is called value"),
        ([*VALUE, ("key", "bigint")], "column key is bigint"),
        ([*VALUE, ("partition", "bigint")], "column partition is bigint; it has to be int"),
        ([*VALUE, ("topic", "binary")], "column topic is binary"),
        ([*VALUE, ("headers", "map<string,binary>")], "column headers is map"),
        ([*VALUE, ("timestamp", "bigint")], "it has to be timestamp or double"),
        ([*VALUE, ("value", "binary")], "there are two columns value"),
    ],
)
def test_columns_that_will_not_do_are_named(fields: list[tuple[str, str]], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parsed({}, fields)


def test_records_have_to_go_somewhere() -> None:
    with pytest.raises(ConfigError, match="neither an option topic nor a column topic"):
        parse_write(BROKERS, VALUE)
