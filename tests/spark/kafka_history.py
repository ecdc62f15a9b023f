"""Histories that Apache Kafka writes and Firn does not yet: transactions, compacted logs, a truncated log."""

from __future__ import annotations

import random
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from service.base.disk import SystemDisk
from service.base.files import read_checkpoint
from tests.spark.filling import CODECS, START_MS, Row, row_of
from tests.support.processes import wait_until

PARTITIONS = {"ledger": 2, "compacted": 1, "cut": 1, "huge": 1}
SETTINGS = {
    "log.segment.bytes": str(1 << 20),
    "log.cleaner.backoff.ms": "200",
    "log.cleaner.dedupe.buffer.size": "8000000",
    "log.initial.task.delay.ms": "500",
    "log.cleanup.policy": "delete",
    "message.max.bytes": str(16 << 20),
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.segment.bytes": str(1 << 20),
}
_CONFIGS = {
    "compacted": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"},
    "huge": {"segment.bytes": str(32 << 20)},
}
_HEADERS = (None, [("a", b"1")], [("a", None), ("a", b""), ("\u00fc", b"\x00\xff")])


def write_history(bootstrap: str, data: Path, seed: int) -> None:
    """Fill the topics of a running broker whose log directory is `data`."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [
        NewTopic(name, count, config=dict(_CONFIGS.get(name, {}))) for name, count in PARTITIONS.items()
    ]
    for done in admin.create_topics(topics).values():
        done.result(30)
    rng = random.Random(seed)
    _ledger(bootstrap, rng)
    _compacted(bootstrap, rng)
    _huge(bootstrap, rng)
    _cut(bootstrap, admin, rng)
    wait_until("the cleaner", lambda: _is_cleaned(data, "compacted"), 60, 0.2)


def _producer(bootstrap: str, transactional_id: str | None, codec: str = "none") -> Producer:
    settings: dict[str, object] = {
        "bootstrap.servers": bootstrap,
        "compression.type": codec,
        "linger.ms": 5,
        "message.max.bytes": 16 << 20,
    }
    producer = Producer(settings | ({"transactional.id": transactional_id} if transactional_id else {}))
    if transactional_id:
        producer.init_transactions(30)
    return producer


def _some(producer: Producer, topic: str, count: int, rng: random.Random, keys: int = 0) -> None:
    """Records of every kind; with `keys` never without a key, and tombstones among them."""
    for _ in range(count):
        key = b"k%d" % rng.randrange(keys) if keys else rng.choice([None, b"", rng.randbytes(8)])
        value = rng.choice([None, b"", *[b"v" * 2000 + rng.randbytes(1500)] * 4])
        producer.produce(
            topic,
            value,
            key,
            partition=rng.randrange(PARTITIONS[topic]),
            timestamp=START_MS + rng.randrange(10**7),
            headers=rng.choice(_HEADERS),
        )
    assert producer.flush(30) == 0


def _ledger(bootstrap: str, rng: random.Random) -> None:
    """Transactions side by side over several segments; one is open all the time and aborted at the end."""
    slow, plain = _producer(bootstrap, "slow"), _producer(bootstrap, None)
    slow.begin_transaction()
    for codec in CODECS:
        producer = _producer(bootstrap, codec, codec)
        for number in range(6):
            producer.begin_transaction()
            _some(producer, "ledger", 60, rng)
            _some(slow, "ledger", 5, rng)
            _some(plain, "ledger", 20, rng)
            _some(producer, "ledger", 20, rng)
            if number % 3 == 1:
                producer.abort_transaction(30)
            else:
                producer.commit_transaction(30)
    slow.abort_transaction(30)
    _some(plain, "ledger", 10, rng)


def _compacted(bootstrap: str, rng: random.Random) -> None:
    producer = _producer(bootstrap, "compacting", "lz4")
    for number in range(30):
        producer.begin_transaction()
        _some(producer, "compacted", 80, rng, keys=60)
        if number % 4 == 2:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)


def _huge(bootstrap: str, rng: random.Random) -> None:
    producer = _producer(bootstrap, "huge", "zstd")
    for number, size in enumerate((10_000_000, 10, 9_000_000, 10_000_000)):
        producer.begin_transaction()
        producer.produce("huge", rng.randbytes(size), b"k", partition=0, timestamp=START_MS + number)
        assert producer.flush(30) == 0
        if number == 2:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)


def _cut(bootstrap: str, admin: AdminClient, rng: random.Random) -> None:
    """The log begins in the middle of a batch in the middle of a segment."""
    producer = _producer(bootstrap, None, "snappy")
    _some(producer, "cut", 2000, rng)
    (done,) = admin.delete_records([TopicPartition("cut", 0, 777)]).values()
    assert done.result(30).low_watermark == 777


def _is_cleaned(data: Path, topic: str) -> bool:
    """Whether the cleaner came to the active segment."""
    path = data / "cleaner-offset-checkpoint"
    rows = [line.split() for line in read_checkpoint(SystemDisk(), path)] if path.exists() else []
    cleaned = {row[0]: int(row[2]) for row in rows}
    newest = max(int(log.stem) for log in (data / f"{topic}-0").glob("*.log"))
    return newest > 0 and cleaned.get(topic, 0) >= newest


def consume_all(bootstrap: str, topic: str, partitions: int, isolation: str) -> list[Row]:
    """Everything that a consumer is given, whatever the gaps."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",
            "fetch.message.max.bytes": 16 << 20,
        }
    )
    rows: list[Row] = []
    try:
        for partition in range(partitions):
            low, _ = consumer.get_watermark_offsets(TopicPartition(topic, partition), 10)
            consumer.assign([TopicPartition(topic, partition, low)])
            while True:
                message = consumer.poll(30)
                assert message is not None, f"{topic}-{partition} does not end"
                if message.error() is None:
                    rows.append(row_of(message))
                    continue
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                break
    finally:
        consumer.close()
    return rows
