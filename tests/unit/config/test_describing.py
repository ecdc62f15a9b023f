"""DescribeConfigs shows what a Kafka 4.3.1 broker shows for the same settings (captured from one)."""

from service.config.describing import (
    DescribedConfig,
    describe_broker,
    describe_broker_default,
    describe_topic,
)
from service.config.settings import BrokerConfig

NODE = BrokerConfig.from_properties(
    {
        "log.retention.hours": "100",
        "log.segment.bytes": "5000000",
        "log.roll.ms": "7000000",
        "log.dirs": "/a,/b",
    }
)


def shown(entry: DescribedConfig) -> str:
    """Return settings as `kafka-configs --describe --all` prints them."""
    words = {1: "DYNAMIC_TOPIC_CONFIG", 2: "DYNAMIC_BROKER_CONFIG", 3: "DYNAMIC_DEFAULT_BROKER_CONFIG",
             4: "STATIC_BROKER_CONFIG", 5: "DEFAULT_CONFIG"}  # fmt: skip
    synonyms = ", ".join(f"{words[s.source]}:{s.name}={s.value}" for s in entry.synonyms)
    return f"{entry.name}={entry.value or 'null'} synonyms={{{synonyms}}}"


def test_a_topic_as_kafka_shows_it() -> None:
    lines = [shown(entry) for entry in describe_topic({"retention.bytes": "999"}, NODE)]
    for expected in (
        "cleanup.policy=delete synonyms={DEFAULT_CONFIG:log.cleanup.policy=delete}",
        "flush.ms=9223372036854775807 synonyms={}",
        "local.retention.ms=-2 synonyms={DEFAULT_CONFIG:log.local.retention.ms=-2}",
        "max.message.bytes=1048588 synonyms={DEFAULT_CONFIG:message.max.bytes=1048588}",
        "remote.storage.enable=false synonyms={}",
        "retention.bytes=999 synonyms={DYNAMIC_TOPIC_CONFIG:retention.bytes=999, "
        "DEFAULT_CONFIG:log.retention.bytes=-1}",
        "retention.ms=360000000 synonyms={}",
        "segment.bytes=5000000 synonyms={STATIC_BROKER_CONFIG:log.segment.bytes=5000000, "
        "DEFAULT_CONFIG:log.segment.bytes=1073741824}",
        "segment.jitter.ms=0 synonyms={}",
        "segment.ms=7000000 synonyms={STATIC_BROKER_CONFIG:log.roll.ms=7000000, "
        "DEFAULT_CONFIG:log.roll.hours=168}",
    ):
        assert expected in lines
    assert lines == sorted(lines)
    assert not any(line.startswith("internal.") for line in lines)


def test_a_node_as_kafka_shows_it() -> None:
    lines = [shown(entry) for entry in describe_broker(NODE)]
    for expected in (
        "log.dirs=/a,/b synonyms={STATIC_BROKER_CONFIG:log.dirs=/a,/b}",
        "log.retention.hours=100 synonyms={STATIC_BROKER_CONFIG:log.retention.hours=100, "
        "DEFAULT_CONFIG:log.retention.hours=168}",
        "log.retention.ms=null synonyms={}",
        "log.roll.hours=168 synonyms={DEFAULT_CONFIG:log.roll.hours=168}",
        "log.roll.ms=7000000 synonyms={STATIC_BROKER_CONFIG:log.roll.ms=7000000, "
        "DEFAULT_CONFIG:log.roll.hours=168}",
    ):
        assert expected in lines


def test_only_what_may_change_while_running_is_not_read_only() -> None:
    entries = {entry.name: entry for entry in describe_broker(NODE)}
    assert entries["node.id"].read_only
    assert not entries["log.segment.bytes"].read_only
    assert not any(entry.read_only for entry in describe_topic({}, NODE))


def test_dynamic_settings_come_first_and_are_listed_for_all_brokers() -> None:
    node = NODE.with_dynamic({"log.segment.bytes": "6000000"}, {"log.segment.bytes": "5500000"})
    (segment_bytes,) = (entry for entry in describe_topic({}, node) if entry.name == "segment.bytes")
    assert shown(segment_bytes) == (
        "segment.bytes=6000000 synonyms={DYNAMIC_BROKER_CONFIG:log.segment.bytes=6000000, "
        "DYNAMIC_DEFAULT_BROKER_CONFIG:log.segment.bytes=5500000, "
        "STATIC_BROKER_CONFIG:log.segment.bytes=5000000, "
        "DEFAULT_CONFIG:log.segment.bytes=1073741824}"
    )
    assert [(e.name, e.value) for e in describe_broker_default(node)] == [("log.segment.bytes", "5500000")]


def test_an_internal_key_is_shown_where_it_is_set() -> None:
    entries = {entry.name: entry.value for entry in describe_topic({"internal.segment.bytes": "5"}, NODE)}
    assert entries["internal.segment.bytes"] == "5"


def test_the_rate_of_a_throttle_is_shown_where_it_is_set() -> None:
    key = "follower.replication.throttled.rate"
    assert key not in {entry.name for entry in describe_broker(NODE)}
    for own, everyone, expected in (
        ({key: "5"}, {}, f"5 synonyms={{DYNAMIC_BROKER_CONFIG:{key}=5}}"),
        ({}, {key: "7"}, f"7 synonyms={{DYNAMIC_DEFAULT_BROKER_CONFIG:{key}=7}}"),
    ):
        (found,) = (one for one in describe_broker(NODE.with_dynamic(own, everyone)) if one.name == key)
        assert shown(found) == f"{key}={expected}"
        assert not found.read_only
