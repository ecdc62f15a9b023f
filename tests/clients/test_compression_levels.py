"""Topics that want a codec: at which level it works, and from when on."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from confluent_kafka import KafkaException

from tests.clients.conftest import Broker, NewTopic
from tests.support.batches import GZIP, LZ4, ZSTD, batch
from tests.support.kafka_tools import run_tool
from tests.support.processes import wait_until
from tests.support.wire import RawConnection, leader_of, produce, schema

NOW_MS = int(time.time() * 1000)
LEVELS = {"gzip": (GZIP, "1", "9"), "lz4": (LZ4, "1", "12"), "zstd": (ZSTD, "-131072", "19")}
WORDS = b" ".join(b"%d" % (n * n * n % 9973) for n in range(20_000))


def stored(bootstrap: str, topic: str, offset: int) -> bytes:
    """The first batch from `offset` on, as it lies in the log."""
    module = schema(1, 11)
    part = module.FetchPartition(
        partition=0, current_leader_epoch=-1, fetch_offset=offset, log_start_offset=-1,
        partition_max_bytes=1 << 20,
    )  # fmt: skip
    request = module.FetchRequest(
        replica_id=-1, max_wait=timedelta(0), min_bytes=1, max_bytes=1 << 20, isolation_level=0, session_id=0,
        session_epoch=-1, topics=(module.FetchTopic(topic=topic, partitions=(part,)),),
        forgotten_topics_data=(), rack_id="",
    )  # fmt: skip
    with RawConnection(leader_of(bootstrap, topic)) as connection:
        records = bytes(connection.call(request).responses[0].partitions[0].records)
    return records[: 12 + int.from_bytes(records[8:12], "big")]


def written(bootstrap: str, topic: str) -> bytes:
    """What became of an uncompressed batch of `WORDS`."""
    with RawConnection(leader_of(bootstrap, topic)) as connection:
        answer = produce(connection, topic, 0, batch([WORDS], base_timestamp=NOW_MS))
    assert answer.error_code == 0
    return stored(bootstrap, topic, answer.base_offset)


@pytest.mark.parametrize("name", LEVELS)
def test_a_level_holds_from_its_change_on(name: str, broker: Broker, new_topic: NewTopic) -> None:
    codec, fast, small = LEVELS[name]
    key = f"compression_{name}_level"
    topic = new_topic(compression_type=name, **{key: fast})
    first = written(broker.bootstrap, topic)
    assert first[22] & 7 == codec
    broker.admin.alter(topic, **{key: small})
    wait_until("the new level", lambda: len(written(broker.bootstrap, topic)) < len(first))


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("gzip", "0", "Value must be between 1 and 9 or equal to -1"),
        ("gzip", "10", "Value must be between 1 and 9 or equal to -1"),
        ("lz4", "0", "Value must be at least 1"),
        ("lz4", "18", "Value must be no more than 17"),
        ("zstd", "23", "Value must be no more than 22"),
        ("zstd", "-131073", "Value must be at least -131072"),
        ("zstd", "fast", "Not a number of type INT"),
    ],
)
def test_levels_have_the_bounds_of_their_codec(
    key: str, value: str, reason: str, broker: Broker, new_topic: NewTopic
) -> None:
    topic = new_topic()
    name = f"compression.{key}.level"
    with pytest.raises(KafkaException) as refused:
        broker.admin.alter(topic, **{name.replace(".", "_"): value})
    assert f"Invalid value {value} for configuration {name}: {reason}" in str(refused.value)


@pytest.mark.java
def test_levels_and_the_expiration_of_producers_are_set_for_all_brokers(bootstrap: str) -> None:
    at = ("--bootstrap-server", bootstrap, "--entity-type", "brokers", "--entity-default")
    keys = ["compression.gzip.level", "compression.lz4.level", "compression.zstd.level"]
    keys.append("producer.id.expiration.ms")
    values = dict(zip(keys, ("4", "7", "-3", "77000000"), strict=True))
    try:
        added = ",".join(f"{key}={value}" for key, value in values.items())
        done = run_tool("configs", *at, "--alter", "--add-config", added)
        assert done.returncode == 0, done.stderr.decode()
        described = run_tool("configs", *at, "--describe").stdout.decode()
        for key, value in values.items():
            assert f"{key}={value}" in described
    finally:
        run_tool("configs", *at, "--alter", "--delete-config", ",".join(keys))
