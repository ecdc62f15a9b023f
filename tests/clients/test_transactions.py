"""Transactions of an ordinary client: commit, abort, what readers of committed records see, offsets."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import confluent_kafka
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.clients.conftest import NewTopic

PATIENCE_S = 30


def producer(bootstrap: str, name: str, **options: object) -> Producer:
    made = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": f"{name}-{os.getpid()}",
            **{key.replace("_", "."): value for key, value in options.items()},
        }
    )
    made.init_transactions(PATIENCE_S)
    return made


@contextmanager
def consumer(bootstrap: str, group: str, level: str = "read_committed") -> Iterator[Consumer]:
    made = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"{group}-{os.getpid()}",
            "isolation.level": level,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    try:
        yield made
    finally:
        made.close()


def seen(bootstrap: str, topic: str, partitions: int, level: str = "read_committed") -> list[bytes]:
    """Read all partitions to their end, as a client of that isolation level sees it."""
    found: list[bytes] = []
    with consumer(bootstrap, "reads", level) as reader:
        reader.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
        ended: set[int] = set()
        deadline = time.monotonic() + PATIENCE_S
        while len(ended) < partitions:
            assert time.monotonic() < deadline
            message = reader.poll(1)
            if message is None:
                continue
            error = message.error()
            if error is None:
                found.append(message.value())
            else:
                assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
                ended.add(message.partition())
    return sorted(found)


def send(to: Producer, topic: str, word: bytes, partitions: int) -> list[bytes]:
    values = [b"%s%d" % (word, number) for number in range(2 * partitions)]
    for number, value in enumerate(values):
        to.produce(topic, value, partition=number % partitions)
    to.flush()
    return values


def test_committed_records_are_seen_at_once_and_aborted_ones_never(
    bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic(3)
    writer = producer(bootstrap, "writer")
    writer.begin_transaction()
    first = send(writer, topic, b"a", 3)
    assert seen(bootstrap, topic, 3) == []
    assert seen(bootstrap, topic, 3, "read_uncommitted") == first
    writer.commit_transaction(PATIENCE_S)
    assert seen(bootstrap, topic, 3) == first
    writer.begin_transaction()
    aborted = send(writer, topic, b"b", 3)
    writer.abort_transaction(PATIENCE_S)
    writer.begin_transaction()
    last = send(writer, topic, b"c", 3)
    writer.commit_transaction(PATIENCE_S)
    assert seen(bootstrap, topic, 3) == sorted(first + last)
    assert seen(bootstrap, topic, 3, "read_uncommitted") == sorted(first + aborted + last)


def test_offsets_are_committed_with_the_records_or_not_at_all(bootstrap: str, new_topic: NewTopic) -> None:
    source, sink = new_topic(2), new_topic(1)
    plain = Producer({"bootstrap.servers": bootstrap})
    for number in range(10):
        plain.produce(source, b"%d" % number, partition=number % 2)
    plain.flush()
    places = [TopicPartition(source, index) for index in range(2)]
    writer = producer(bootstrap, "worker")
    with consumer(bootstrap, "workers") as reader:
        reader.assign([TopicPartition(source, index, 0) for index in range(2)])

        def work(word: bytes, *offsets: int) -> None:
            writer.begin_transaction()
            writer.produce(sink, word)
            read = [TopicPartition(source, index, offset) for index, offset in enumerate(offsets)]
            writer.send_offsets_to_transaction(read, reader.consumer_group_metadata(), PATIENCE_S)

        def committed() -> list[int]:
            return [one.offset for one in reader.committed(places, PATIENCE_S)]

        work(b"first", 2, 3)
        writer.commit_transaction(PATIENCE_S)
        assert committed() == [2, 3]
        work(b"second", 5, 5)
        writer.abort_transaction(PATIENCE_S)
        assert committed() == [2, 3]
        assert seen(bootstrap, sink, 1) == [b"first"]


def test_a_second_producer_of_an_id_fences_the_first_and_aborts_its_transaction(
    bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic(1)
    zombie = producer(bootstrap, "twice")
    zombie.begin_transaction()
    zombie.produce(topic, b"lost")
    zombie.flush()
    heir = producer(bootstrap, "twice")
    heir.begin_transaction()
    heir.produce(topic, b"kept")
    heir.commit_transaction(PATIENCE_S)
    with pytest.raises(KafkaException) as fenced:
        zombie.commit_transaction(PATIENCE_S)
    assert fenced.value.args[0].code() == confluent_kafka.KafkaError._FENCED
    assert seen(bootstrap, topic, 1) == [b"kept"]


@pytest.mark.thorough
def test_a_transaction_that_is_open_for_too_long_is_aborted(bootstrap: str, new_topic: NewTopic) -> None:
    """A timeout is noticed by the sweep, which comes every ten seconds."""
    topic = new_topic(1)
    sleeper = producer(bootstrap, "sleeper", transaction_timeout_ms=1000)
    sleeper.begin_transaction()
    sleeper.produce(topic, b"late")
    sleeper.flush()
    plain = Producer({"bootstrap.servers": bootstrap})
    plain.produce(topic, b"behind")
    plain.flush()
    deadline = time.monotonic() + PATIENCE_S
    while seen(bootstrap, topic, 1) != [b"behind"]:
        assert time.monotonic() < deadline
        time.sleep(0.5)
    with pytest.raises(KafkaException):
        sleeper.commit_transaction(PATIENCE_S)
