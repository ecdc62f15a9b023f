"""Answered requests leave no cycles: a node collects its whole heap so seldom that they would fill it.

Each kind of request is made again and again without the collector; then the collector tells what it would
have had to free.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import count

import confluent_kafka
import pytest
from kio.schema.errors import ErrorCode

from service.wire.api import ApiKey
from tests.node.conftest import NodeThread
from tests.support.clients import Admin
from tests.support.garbage import without_collector
from tests.support.processes import wait_until
from tests.support.wire import RawConnection, schema

TIMES = 12
PARTITIONS = 2


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeThread]:
    node = NodeThread(
        tmp_path_factory.mktemp("node"),
        offsets_topic_num_partitions="2",
        transaction_state_log_num_partitions="2",
        group_initial_rebalance_delay_ms="0",
    ).start()
    Admin(address(node)).create("t", PARTITIONS)
    yield node
    node.stop()
    assert node.failure is None


def address(node: NodeThread) -> str:
    return f"{node.host}:{node.port}"


def check(repeat: Callable[[], None]) -> None:
    for _ in range(3):
        repeat()
    time.sleep(0.3)  # what is under way after an answer ends
    with without_collector() as left:
        for _ in range(TIMES):
            repeat()
        time.sleep(0.3)
    most = {name: count for name, count in left.items() if count >= TIMES / 2}
    assert not most, f"of {TIMES} requests: {left}"


def test_records(node: NodeThread) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": address(node), "linger.ms": 0})
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": address(node), "group.id": "none", "fetch.wait.max.ms": 20}
    )
    consumer.assign([confluent_kafka.TopicPartition("t", 0, 0)])

    def repeat() -> None:
        producer.produce("t", b"x", partition=0)
        producer.flush(20)
        assert consumer.consume(1, 20)

    check(repeat)
    consumer.close()


@pytest.mark.parametrize("is_committed", [True, False])
def test_transactions(node: NodeThread, is_committed: bool) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": address(node), "transactional.id": f"mover-{is_committed}", "linger.ms": 0}
    )
    producer.init_transactions(30)

    def repeat() -> None:
        producer.begin_transaction()
        for number in range(PARTITIONS):
            producer.produce("t", b"y", partition=number)
        if is_committed:
            producer.commit_transaction(30)
        else:
            producer.flush(20)
            producer.abort_transaction(30)

    check(repeat)


def test_refused_transactions(node: NodeThread) -> None:
    module = schema(ApiKey.ADD_PARTITIONS_TO_TXN, 3)
    topic = module.AddPartitionsToTxnTopic(name="t", partitions=(0,))
    request = module.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="nobody",
        v3_and_below_producer_id=77,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=(topic,),
    )
    with RawConnection(address(node)) as connection:

        def code() -> ErrorCode:
            [answered] = connection.call(request).results_by_topic_v3_and_below
            found: ErrorCode = answered.results_by_partition[0].partition_error_code
            return found

        wait_until(
            "the coordinator to be loaded", lambda: code() is ErrorCode.invalid_producer_id_mapping, 30
        )
        check(lambda: None if code() is ErrorCode.invalid_producer_id_mapping else pytest.fail("another"))


def test_groups(node: NodeThread) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": address(node), "linger.ms": 0})

    def repeat() -> None:
        producer.produce("t", b"x", partition=0)
        producer.flush(20)
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": address(node), "group.id": "members", "auto.offset.reset": "earliest"}
        )
        consumer.subscribe(["t"])
        [message] = consumer.consume(1, 20)
        consumer.commit(message, asynchronous=False)
        consumer.close()

    check(repeat)


def test_refused_commits(node: NodeThread) -> None:
    module = schema(ApiKey.OFFSET_COMMIT, 9)
    position = module.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_metadata=""
    )
    request = module.OffsetCommitRequest(
        group_id="nobody",
        generation_id_or_member_epoch=3,
        member_id="stranger",
        topics=(module.OffsetCommitRequestTopic(name="t", partitions=(position,)),),
    )
    find = schema(ApiKey.FIND_COORDINATOR, 4).FindCoordinatorRequest(key_type=0, coordinator_keys=("nobody",))
    with RawConnection(address(node)) as connection:
        connection.call(find)

        def code() -> ErrorCode:
            found: ErrorCode = connection.call(request).topics[0].partitions[0].error_code
            return found

        wait_until("the coordinator to be loaded", lambda: code() is ErrorCode.group_id_not_found, 30)
        check(lambda: None if code() is ErrorCode.group_id_not_found else pytest.fail("another"))


def test_deleted_topics(node: NodeThread) -> None:
    admin = Admin(address(node))
    producer = confluent_kafka.Producer({"bootstrap.servers": address(node), "linger.ms": 0})
    names = (f"gone-{number}" for number in count())

    def repeat() -> None:
        topic = next(names)
        admin.create(topic, PARTITIONS)
        producer.produce(topic, b"x", partition=0)
        producer.flush(20)
        admin.delete(topic)
        wait_until("its partitions to be gone", lambda: not [*node.data.rglob(f"{topic}-?")], 20)

    check(repeat)


def test_connections(node: NodeThread) -> None:
    def repeat() -> None:
        with RawConnection(address(node)):
            pass

    check(repeat)
