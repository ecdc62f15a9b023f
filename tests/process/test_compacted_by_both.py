"""A log that Apache Kafka has compacted goes on here, and one that was compacted here goes on there."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import confluent_kafka
import pytest

from service.base.clock import SystemClock
from service.base.disk import SystemDisk
from service.base.files import read_checkpoint
from service.config.settings import LogConfig
from service.hot.log import LocalLog
from service.hot.log_dir import CLEANER_OFFSETS
from service.records.checkpoint_lines import decode_offsets
from service.records.decode import Record
from tests.support.clients import Admin
from tests.support.compaction import Pair, last_of_each
from tests.support.kafka_node import KafkaNode
from tests.support.kafka_tools import tool
from tests.support.processes import wait_until
from tests.support.world import make_world
from tests.unit.hot.cleanings import clean, put, records_in
from tests.unit.hot.logs import TIP

pytestmark = pytest.mark.java

TOPIC = "keys"
KEYS = 400
SETTINGS = {
    "log.cleaner.backoff.ms": "200",
    "log.initial.task.delay.ms": "100",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
}


def transact(bootstrap: str, name: str, rounds: int) -> None:
    """Transactions of updates and deletions; every third is aborted."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": name, "compression.type": "lz4", "linger.ms": 5}
    )
    chance = random.Random(name)
    producer.init_transactions(30)
    for number in range(rounds):
        producer.begin_transaction()
        for key in range(KEYS):
            value = None if key % 11 == number % 11 else chance.randbytes(250)
            producer.produce(TOPIC, value, b"key %d" % key)
        producer.flush(30)
        if number % 3 == 1:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)


def consumed(bootstrap: str) -> dict[bytes, bytes]:
    """What a consumer that reads committed records takes for the value of each key."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "check.crcs": True,
        }
    )
    found: dict[bytes, bytes | None] = {}
    try:
        consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
        while True:
            message = consumer.poll(30)
            assert message is not None
            if message.error() is not None:
                assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF, message.error()
                return {key: value for key, value in found.items() if value is not None}
            found[message.key()] = message.value()
    finally:
        consumer.close()


def cleaned_offset(data: Path) -> int:
    path = data / CLEANER_OFFSETS
    if not path.stat().st_size:
        return -1  # as Apache Kafka makes it
    return decode_offsets(read_checkpoint(SystemDisk(), path)).get((TOPIC, 0), -1)


def opened(data: Path, policy: str = "compact") -> LocalLog:
    config = LogConfig(
        segment_bytes=1 << 20, cleanup_policy=policy, min_cleanable_dirty_ratio=0.0, delete_retention_ms=0
    )
    return LocalLog.open(
        data / f"{TOPIC}-0",
        TIP,
        config,
        world=make_world(SystemClock()),
        clean=True,
        cleaned_offset=cleaned_offset(data),
    )


def of_clients(records: list[Record]) -> list[Record]:
    """Without the markers of transactions."""
    return [record for record in records if record.key is not None and record.key.startswith(b"key")]


def dump(log: LocalLog) -> str:
    """`kafka-dump-log` over every file of the log."""
    files = [str(path) for pattern in ("*.log", "*.txnindex") for path in sorted(log.dir.glob(pattern))]
    found = (path for pattern in ("*.index", "*.timeindex") for path in sorted(log.dir.glob(pattern)))
    indexes = [str(path) for path in found if path.stat().st_size]
    sane = tool("dump-log", "--files", ",".join(indexes), "--index-sanity-check")
    assert sane.count("passed sanity check.") == len(indexes)
    verified = tool("dump-log", "--files", ",".join(indexes), "--verify-index-only")
    assert "mismatch" not in verified.lower()
    return tool("dump-log", "--files", ",".join(files), "--deep-iteration", "--print-data-log")


@pytest.mark.thorough
def test_a_log_goes_back_and_forth(tmp_path: Path) -> None:
    kafka = KafkaNode(tmp_path / "kafka", SETTINGS)
    try:
        admin = Admin(kafka.bootstrap)
        admin.create(
            TOPIC,
            cleanup_policy="compact",
            segment_bytes=str(1 << 20),
            min_cleanable_dirty_ratio="0.01",
            delete_retention_ms="0",
        )
        for name in ("one", "two"):
            transact(kafka.bootstrap, name, 12)
        wait_until("Apache Kafka to compact", lambda: cleaned_offset(kafka.data) > 0, 60, 0.2)
        want = consumed(kafka.bootstrap)
        kafka.stop()

        # Here, under any policy, with the gaps that Apache Kafka left.
        for policy in ("delete", "compact"):
            log = opened(kafka.data, policy)
            before = records_in(log)
            assert any(after.offset > one.offset + 1 for one, after in pairwise(before))
            log.close(clean=False)
        log = opened(kafka.data)
        size = log.size
        put(log, [Pair(b"key 1", b"ours"), Pair(b"key 2", None)])
        want[b"key 1"] = b"ours"
        want.pop(b"key 2", None)
        log.appender.roll()
        assert clean(log)
        after = records_in(log)
        assert log.size < size
        assert [one.offset for one in of_clients(after)] == sorted(
            one.offset for one in last_of_each(of_clients(after)).values()
        )
        text = dump(log)
        assert "isvalid: false" not in text
        assert text.count("| offset: ") == len(after)
        log.close()

        # And back.
        kafka.start()
        assert consumed(kafka.bootstrap) == want
        transact(kafka.bootstrap, "three", 15)
        want = consumed(kafka.bootstrap)
        end = log.log_end_offset
        wait_until("Apache Kafka to compact again", lambda: cleaned_offset(kafka.data) > end, 60, 0.2)
        assert consumed(kafka.bootstrap) == want
        assert f"Marking its partition ({TOPIC}-0)" not in (tmp_path / "kafka" / "server.log").read_text()
    finally:
        kafka.stop()
    log = opened(kafka.data)
    live = {key: one.value for key, one in last_of_each(of_clients(records_in(log))).items()}
    assert {key for key, value in live.items() if value is not None} >= want.keys()
    log.close(clean=False)
