"""Idempotent producers: a batch that is sent twice is in the log once, also when the node died in between."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import confluent_kafka
import pytest

from tests.clients.conftest import Broker, NewTopic
from tests.conftest import NodeFactory
from tests.support.batches import batch
from tests.support.clients import AioKafka, Client, Confluent, KafkaPython, by_partition, digest, make_rows
from tests.support.processes import Node
from tests.support.wire import RawConnection, end_offset, leader_of, produce, schema

IDEMPOTENT: list[tuple[Client, dict[str, object]]] = [
    (Confluent(), {"enable.idempotence": True, "socket.timeout.ms": 3000}),
    (KafkaPython(), {"enable_idempotence": True}),
    (AioKafka(), {"enable_idempotence": True}),
]


def new_producer_id(connection: RawConnection) -> tuple[int, int]:
    module = schema(22, 4)
    request = module.InitProducerIdRequest(
        transactional_id=None, transaction_timeout=timedelta(seconds=60), producer_id=-1, producer_epoch=-1
    )
    response = connection.call(request)
    assert response.error_code == 0
    return int(response.producer_id), int(response.producer_epoch)


@pytest.mark.parametrize(("client", "options"), IDEMPOTENT, ids=lambda value: getattr(value, "name", ""))
def test_an_idempotent_producer_writes_each_record_once(
    client: Client, options: dict[str, object], bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic(2)
    rows = make_rows(2000, 2)
    client.produce(bootstrap, topic, rows, "snappy", **options)
    for partition, expected in by_partition(rows).items():
        assert end_offset(bootstrap, topic, partition) == len(expected)
        assert digest(client.read(bootstrap, topic, partition, 0, len(expected))) == digest(expected)


def test_producer_ids_are_never_given_twice(bootstrap: str) -> None:
    with RawConnection(bootstrap) as connection:
        ids = [new_producer_id(connection)[0] for _ in range(50)]
    assert len(set(ids)) == 50


def test_a_batch_sent_again_is_answered_with_the_offset_it_has(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    with RawConnection(leader_of(bootstrap, topic)) as connection:
        producer_id, epoch = new_producer_id(connection)

        def send(sequence: int, count: int = 3) -> tuple[int, int]:
            data = batch(
                [b"v"] * count, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
            )
            answer = produce(connection, topic, 0, data)
            return int(answer.error_code), int(answer.base_offset)

        assert [send(sequence) for sequence in (0, 3, 6, 9, 12)] == [(0, 0), (0, 3), (0, 6), (0, 9), (0, 12)]
        assert send(12) == (0, 12)
        assert send(0) == (0, 0)
        assert end_offset(bootstrap, topic, 0) == 15
        assert send(15) == (0, 15)
        # Only the last five batches are remembered: an older one is refused, not written again.
        assert send(0)[0] in (45, 46)
        assert send(99)[0] == 45  # a gap: OUT_OF_ORDER_SEQUENCE_NUMBER
        assert end_offset(bootstrap, topic, 0) == 18


def test_an_older_epoch_of_a_producer_is_fenced(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    with RawConnection(leader_of(bootstrap, topic)) as connection:
        producer_id, _ = new_producer_id(connection)

        def send(epoch: int, sequence: int) -> int:
            data = batch([b"v"], producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
            return int(produce(connection, topic, 0, data).error_code)

        assert send(3, 0) == 0
        assert send(2, 1) == 47  # INVALID_PRODUCER_EPOCH
        assert send(4, 1) == 45  # a new epoch begins at sequence 0
        assert send(4, 0) == 0
    assert end_offset(bootstrap, topic, 0) == 2


LAST = 2**31 - 1
SENT = {
    # (epoch, sequence, records): the answer is an error, or the offset
    "begins anywhere": [(0, 77, 3, 0), (0, 80, 1, 3), (0, 77, 3, 0), (0, 78, 2, 45)],
    "wraps": [(0, LAST - 1, 4, 0), (0, 2, 1, 4), (0, LAST - 1, 4, 0), (0, LAST, 1, 45), (0, 3, 1, 5)],
    "wraps between": [(0, LAST, 1, 0), (0, 0, 1, 1), (0, 1, 1, 2), (0, LAST, 1, 0), (0, 2, 1, 3)],
    "epochs": [(5, 0, 2, 0), (4, 2, 1, 47), (6, 1, 1, 45), (6, 0, 2, 2), (5, 2, 1, 47), (5, 0, 2, 47)],
    "new epoch": [(0, 0, 3, 0), (1, 0, 3, 3), (1, 0, 3, 3), (0, 0, 3, 47), (1, 3, 1, 6)],
    "last epoch": [(32767, 3, 1, 0), (32767, 4, 1, 1), (0, 0, 1, 47), (-1, 0, 1, 47)],
    "six": [(0, n, 1, n) for n in range(6)] + [(0, 0, 1, 45), (0, 1, 1, 1), (0, 4, 2, 45), (0, 7, 1, 45)],
    "other lengths": [(0, 0, 3, 0), (0, 0, 2, 45), (0, 1, 2, 45), (0, 0, 4, 45), (0, 3, 2, 3), (0, 0, 3, 0)],
}


@pytest.mark.parametrize("name", SENT)
def test_sequences_and_epochs_are_judged_as_by_kafka(name: str, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    now = int(time.time() * 1000)
    end = 0
    with RawConnection(leader_of(bootstrap, topic)) as connection:
        producer_id, _ = new_producer_id(connection)
        for epoch, sequence, count, expected in SENT[name]:
            data = batch(
                [b"v"] * count,
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=sequence,
                base_timestamp=now,
            )
            answer = produce(connection, topic, 0, data)
            if expected >= 45:
                assert (answer.error_code, answer.base_offset) == (expected, -1)
            else:
                assert (answer.error_code, answer.base_offset) == (0, expected)
                end = max(end, expected + count)
        assert end_offset(bootstrap, topic, 0) == end


def test_a_batch_that_breaks_a_rule_is_no_duplicate(bootstrap: str, new_topic: NewTopic) -> None:
    """What is sent again is looked at before it is recognized."""
    topic = new_topic()
    now = int(time.time() * 1000)
    ids: dict[str, Any] = {"producer_epoch": 3, "base_sequence": 0}
    with RawConnection(leader_of(bootstrap, topic)) as connection:
        ids["producer_id"] = new_producer_id(connection)[0]
        assert produce(connection, topic, 0, batch([b"v"], base_timestamp=now, **ids)).error_code == 0
        late = produce(connection, topic, 0, batch([b"v"], base_timestamp=now + 10**9, **ids))
        assert late.error_code == 32
        control = produce(connection, topic, 0, batch([b"v"], base_timestamp=now, attributes=32, **ids))
        assert control.error_code == 87
        ids["producer_epoch"] = 2
        late = produce(connection, topic, 0, batch([b"v"], base_timestamp=now + 10**9, **ids))
        assert late.error_code == 32
    assert end_offset(bootstrap, topic, 0) == 1


def test_producers_are_remembered_when_all_their_records_are_deleted(
    broker: Broker, new_topic: NewTopic
) -> None:
    topic = new_topic()
    now = int(time.time() * 1000)
    with RawConnection(leader_of(broker.bootstrap, topic)) as connection:
        ids: dict[str, Any] = {"producer_id": new_producer_id(connection)[0], "producer_epoch": 0}

        def send(sequence: int) -> tuple[int, int]:
            data = batch([b"v"] * 2, base_timestamp=now, base_sequence=sequence, **ids)
            answer = produce(connection, topic, 0, data)
            return int(answer.error_code), int(answer.base_offset)

        assert [send(0), send(2)] == [(0, 0), (0, 2)]
        module = schema(21, 2)
        part = module.DeleteRecordsPartition(partition_index=0, offset=-1)
        deleted = connection.call(
            module.DeleteRecordsRequest(
                topics=(module.DeleteRecordsTopic(name=topic, partitions=(part,)),),
                timeout=timedelta(seconds=10),
            )
        )
        assert deleted.topics[0].partitions[0].low_watermark == 4
        assert [send(2), send(9), send(4)] == [(0, 2), (45, -1), (0, 4)]


@pytest.mark.parametrize("ending", [Node.kill, Node.stop], ids=["after kill -9", "after a clean stop"])
def test_a_duplicate_is_known_after_a_restart(
    ending: Callable[[Node], None], start_node: NodeFactory
) -> None:
    # Producers are forgotten a day after the timestamp of their last record.
    now = int(time.time() * 1000)
    node = start_node()
    with RawConnection(node.bootstrap) as connection:
        producer_id, epoch = new_producer_id(connection)

    def send(sequence: int) -> tuple[int, int]:
        with RawConnection(node.bootstrap) as connection:
            data = batch(
                [b"x"] * 10,
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=sequence,
                base_timestamp=now,
            )
            answer = produce(connection, "topic", 0, data)
            return int(answer.error_code), int(answer.base_offset)

    from tests.support.clients import Admin

    Admin(node.bootstrap).create("topic")
    assert [send(0), send(10)] == [(0, 0), (0, 10)]
    ending(node)
    node.start()
    assert send(10) == (0, 10)
    assert send(20) == (0, 20)
    assert send(50)[0] == 45
    with RawConnection(node.bootstrap) as connection:
        assert new_producer_id(connection)[0] > producer_id
    assert end_offset(node.bootstrap, "topic", 0) == 30
    node.stop()


@pytest.mark.parametrize("seed", range(2))
def test_an_idempotent_producer_carries_on_through_kills(seed: int, start_node: NodeFactory) -> None:
    """librdkafka sends on while the node is killed and started again: all is there, once and in order."""
    import random

    from tests.support.clients import Admin

    source = random.Random(seed)
    node = start_node()
    Admin(node.bootstrap).create("topic", 2)
    rows = make_rows(6000, 2, value_bytes=300, seed=seed)
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": node.bootstrap,
            "enable.idempotence": True,
            "linger.ms": 5,
            "batch.num.messages": 50,
            "message.timeout.ms": 90_000,
            "reconnect.backoff.max.ms": 500,
        }
    )
    producer.list_topics("topic", timeout=20)
    failed: list[object] = []
    done = threading.Event()

    def send() -> None:
        for number, row in enumerate(rows):
            producer.produce(
                "topic", row.value, row.key, row.partition, timestamp=row.timestamp,
                headers=list(row.headers),
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )  # fmt: skip
            producer.poll(0)
            if number % 20 == 0:
                time.sleep(0.005)
        producer.flush(90)
        done.set()

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    for _ in range(4):
        time.sleep(source.uniform(0.1, 0.5))
        node.kill()
        node.start()
    assert done.wait(100)
    sender.join()
    assert failed == []
    for partition, expected in by_partition(rows).items():
        assert end_offset(node.bootstrap, "topic", partition) == len(expected)
        found = Confluent().read(node.bootstrap, "topic", partition, 0, len(expected))
        assert digest(found) == digest(expected)
    node.stop()
