from __future__ import annotations

import pytest

from service.base.errors import ConfigError
from service.spark.options import (
    Assign,
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    LogicalOffset,
    Subscribe,
    SubscribePattern,
    parse_options,
)
from service.spark.schema import ReadColumn, check_columns, schema_ddl

URL = {"url": "s3://bucket/prefix"}
ONE = {**URL, "subscribe": "flights"}


def test_option_defaults_are_those_of_sparks_kafka_source() -> None:
    options = parse_options(ONE)
    assert options.choice == Subscribe(("flights",))
    assert (options.starting, options.ending) == (LogicalOffset.EARLIEST, LogicalOffset.LATEST)
    assert options.fail_on_data_loss
    assert not options.include_headers
    assert not options.read_committed
    assert options.max_partition_bytes == 256 << 20
    assert parse_options(ONE, streaming=True).starting is LogicalOffset.LATEST


def test_names_are_not_case_sensitive_and_values_are_typed() -> None:
    options = parse_options(
        {
            "URL": "file:///x",
            "subscribepattern": "fl.*",
            "INCLUDEHEADERS": "True",
            "failondataloss": "FALSE",
            "kafka.isolation.level": "read_committed",
            "maxPartitionBytes": "64m",
            "fetchBytes": "1 MiB",
            "minPartitions": "7",
        }
    )
    assert options.choice == SubscribePattern("fl.*")
    assert (options.include_headers, options.fail_on_data_loss, options.read_committed) == (True, False, True)
    assert (options.max_partition_bytes, options.fetch_bytes, options.min_partitions) == (
        64 << 20,
        1 << 20,
        7,
    )


def test_topics_and_partitions_can_be_named_in_three_ways() -> None:
    assert parse_options({**URL, "subscribe": " a, b ,a,"}).choice == Subscribe(("a", "b"))
    assert parse_options({**URL, "assign": '{"a":[0,2,0]}'}).choice == Assign({"a": (0, 2)})


def test_bounds_can_be_offsets_or_times_and_a_time_for_all_comes_first() -> None:
    starting = '{"flights":{"0":23,"1":-2}}'
    assert parse_options({**ONE, "startingOffsets": starting}).starting == AtOffsets(
        {"flights": {0: 23, 1: -2}}
    )
    by_time = {**ONE, "startingOffsetsByTimestamp": '{"flights":{"0":5}}', "startingOffsets": starting}
    assert parse_options(by_time).starting == AtTimestamps({"flights": {0: 5}})
    assert parse_options({**by_time, "startingTimestamp": "9"}).starting == AtTimestamp(9)
    ending = {**ONE, "endingOffsets": '{"flights":{"0":-1}}', "endingTimestamp": "12"}
    assert parse_options(ending).ending == AtTimestamp(12)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"subscribe": "a"}, "url"),
        (URL, "exactly one"),
        ({**ONE, "assign": '{"a":[0]}'}, "exactly one"),
        ({**ONE, "startingOffset": "earliest"}, "unknown option startingOffset"),
        ({**ONE, "path": "s3://other"}, "given twice"),
        ({**URL, "subscribe": " , "}, "no topic"),
        ({**URL, "subscribePattern": "("}, "regular expression"),
        ({**URL, "assign": '{"a":[0'}, "not JSON"),
        ({**URL, "assign": '{"a":[-1]}'}, "list of partitions"),
        ({**URL, "assign": '{"a":[true]}'}, "list of partitions"),
        ({**URL, "assign": '{"a":[]}'}, "no partition"),
        ({**ONE, "startingOffsets": "latest"}, "cannot start at the latest"),
        ({**ONE, "startingOffsets": '{"flights":{"0":-1}}'}, "cannot start at the latest"),
        ({**ONE, "startingOffsets": '{"flights":{"0":-3}}'}, "not a valid value"),
        ({**ONE, "startingOffsets": '{"flights":{"x":1}}'}, "not a partition"),
        ({**ONE, "startingOffsets": "[" * 100_000}, "not JSON"),
        ({**ONE, "endingOffsets": "earliest"}, "cannot end at the earliest"),
        ({**ONE, "startingTimestamp": "yesterday"}, "milliseconds"),
        ({**ONE, "startingOffsetsByTimestampStrategy": "ignore"}, "not one of error, latest"),
        ({**ONE, "failOnDataLoss": "maybe"}, "not one of true, false"),
        ({**ONE, "isolationLevel": "serializable"}, "read_committed"),
        ({**ONE, "minPartitions": "0"}, "above 0"),
        ({**ONE, "maxPartitionBytes": "lots"}, "size"),
        ({**ONE, "maxPartitionBytes": "1"}, "at least 65536"),
    ],
)
def test_a_bad_option_is_refused_by_its_name_and_the_reason(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_options(given)


def test_a_stream_has_no_end() -> None:
    with pytest.raises(ConfigError, match="no end"):
        parse_options({**ONE, "endingOffsets": "latest"}, streaming=True)


@pytest.mark.parametrize("name", ["secretAccessKey", "access_key_id", "aws.session.token", "password"])
def test_secrets_are_no_options_and_are_not_repeated(name: str) -> None:
    with pytest.raises(ConfigError, match="refused") as raised:
        parse_options({**ONE, name: "hunter2"})
    assert "hunter2" not in str(raised.value)


def test_the_columns_are_those_of_sparks_kafka_source() -> None:
    assert schema_ddl(include_headers=True) == (
        "key binary, value binary, topic string NOT NULL, partition int NOT NULL, offset bigint NOT NULL, "
        "timestamp timestamp NOT NULL, timestampType int NOT NULL, "
        "headers array<struct<key:string,value:binary>>"
    )
    assert "headers" not in schema_ddl(include_headers=False)


def test_a_schema_may_leave_columns_out_and_turn_them_round() -> None:
    fields = [("offset", "bigint", False), ("key", "binary", True)]
    assert check_columns(fields, include_headers=False) == (ReadColumn("offset", False), ReadColumn("key"))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ([("payload", "binary", True)], "no column 'payload'"),
        ([("headers", "array<struct<key:string,value:binary>>", True)], "includeHeaders"),
        ([("value", "string", True)], "is binary, not string"),
        ([("key", "binary", False)], "may hold nulls"),
        ([("key", "binary", True), ("key", "binary", True)], "twice"),
        ([], "no column"),
    ],
)
def test_a_schema_that_is_not_a_part_of_the_columns_is_refused(
    fields: list[tuple[str, str, bool]], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        check_columns(fields, include_headers=False)


def test_store_options_are_names_and_a_timeout() -> None:
    options = parse_options(ONE)
    assert options.access.is_default
    assert options.store_timeout_s == 180
    role = "arn:aws:iam::123456789012:role/reader"
    options = parse_options(
        {**ONE, "AWS.PROFILE": "work", "aws.role_arn": role, "aws.external_id": "p-7", "storetimeout": "90s"}
    )
    assert (options.access.profile, options.access.role_arn, options.access.external_id) == (
        "work",
        role,
        "p-7",
    )
    assert options.store_timeout_s == 90
    provided = parse_options({**ONE, "aws.credentials.provider": "my.vault:keys", "storeTimeout": "500"})
    assert (provided.access.provider, provided.store_timeout_s) == ("my.vault:keys", 0.5)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"aws.secret_access_key": "hidden"}, "options are shown in plans and logs"),
        ({"aws.access_key_id": "hidden"}, "options are shown in plans and logs"),
        ({"aws.session_token": "hidden"}, "options are shown in plans and logs"),
        ({"aws.credentials": "hidden"}, "options are shown in plans and logs"),
        ({"aws.profiles": "x"}, "unknown option aws.profiles"),
        ({"aws.role_arn": "reader"}, "option aws.role_arn is 'reader', not a role"),
        ({"aws.external_id": "p-7"}, "go with aws.role_arn"),
        ({"aws.credentials.provider": "my.vault"}, "not module:callable"),
        ({"aws.credentials.provider": "a:b", "aws.profile": "p"}, "goes without aws.profile"),
        ({"storeTimeout": "soon"}, "option storeTimeout is 'soon', not a time"),
        ({"storeTimeout": "-1s"}, "not a time"),
        ({"storeTimeout": "2d"}, "not a time of at most 86400 s"),
    ],
)
def test_secrets_and_names_that_will_not_do_are_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as e:
        parse_options({**ONE, **given})
    assert "hidden" not in str(e.value)
