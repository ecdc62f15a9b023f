"""Consumer groups as their clients see them: members come, go and vanish; what they committed is there."""

from __future__ import annotations

import os
from itertools import count

import confluent_kafka
import pytest

from tests.clients.conftest import Broker, NewTopic
from tests.conftest import NodeFactory
from tests.support.clients import Admin
from tests.support.members import ALL, Member
from tests.support.processes import wait_until

_groups = count(1)


def new_group() -> str:
    return f"group-{os.getpid()}-{next(_groups)}"


def write(bootstrap: str, topic: str, partitions: int, values: range) -> set[bytes]:
    """One record for each value, dealt out over partitions."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for value in values:
        producer.produce(topic, b"%d" % value, partition=value % partitions)
    assert not producer.flush(30)
    return {b"%d" % value for value in values}


def committed(bootstrap: str, group: str, topic: str, partitions: int) -> list[int]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        asked = [confluent_kafka.TopicPartition(topic, n) for n in range(partitions)]
        return [one.offset for one in consumer.committed(asked, timeout=20)]
    finally:
        consumer.close()


@pytest.mark.parametrize("kind", ALL)
def test_members_share_the_partitions_and_each_record_is_read(
    kind: str, bootstrap: str, new_topic: NewTopic
) -> None:
    topic, group = new_topic(4), new_group()
    expected = write(bootstrap, topic, 4, range(200))
    first = Member(kind, bootstrap, group, topic).start()
    wait_until("the first member has everything", lambda: first.partitions == {0, 1, 2, 3})
    second = Member(kind, bootstrap, group, topic).start()
    wait_until(
        "both have their share",
        lambda: (
            len(first.partitions) == len(second.partitions) == 2
            and first.partitions | second.partitions == {0, 1, 2, 3}
        ),
    )
    expected |= write(bootstrap, topic, 4, range(200, 400))
    wait_until("everything is read", lambda: {*first.values, *second.values} == expected)
    first.leave()
    wait_until("the second takes over", lambda: second.partitions == {0, 1, 2, 3})
    expected |= write(bootstrap, topic, 4, range(400, 500))
    wait_until("everything is read again", lambda: {*first.values, *second.values} == expected)
    second.leave()
    assert committed(bootstrap, group, topic, 4) == [125] * 4


@pytest.mark.parametrize("kind", ["confluent", "aiokafka"])
def test_a_member_that_vanishes_is_replaced(kind: str, bootstrap: str, new_topic: NewTopic) -> None:
    topic, group = new_topic(2), new_group()
    # What vanishes is a client whose process would be killed: this library's own thread stops with its poll.
    gone = Member("confluent", bootstrap, group, topic, **{"max.poll.interval.ms": 6000}).start()
    wait_until("the first member has everything", lambda: len(gone.partitions) == 2)
    gone.vanish()
    stays = Member(kind, bootstrap, group, topic).start()
    wait_until("the other takes over", lambda: len(stays.partitions) == 2, seconds=40)
    stays.leave()


@pytest.mark.parametrize("kind", ALL)
def test_partitions_that_are_added_are_read(kind: str, bootstrap: str, new_topic: NewTopic) -> None:
    topic, group = new_topic(1), new_group()
    more = {
        "confluent": {"topic.metadata.refresh.interval.ms": 500},
        "confluent-consumer": {},
        "aiokafka": {"metadata_max_age_ms": 500},
        "kafka-python": {"metadata_max_age_ms": 500},
    }[kind]
    member = Member(kind, bootstrap, group, topic, **more).start()
    wait_until("the member has its partition", lambda: member.partitions == {0})
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": bootstrap})
    admin.create_partitions([confluent_kafka.admin.NewPartitions(topic, 3)])[topic].result(10)
    wait_until("it has the others, too", lambda: member.partitions == {0, 1, 2}, seconds=40)
    member.leave()


@pytest.mark.parametrize("kind", ALL)
def test_commits_and_members_outlive_a_killed_node(kind: str, start_node: NodeFactory) -> None:
    node = start_node(**{"group.initial.rebalance.delay.ms": "100"})
    Admin(node.bootstrap).create("t", 2)
    group = new_group()
    expected = write(node.bootstrap, "t", 2, range(100))
    member = Member(kind, node.bootstrap, group, "t").start()
    wait_until("everything is read", lambda: set(member.values) == expected)
    wait_until("and committed", lambda: committed(node.bootstrap, group, "t", 2) == [50, 50])
    node.kill()
    node.start()
    assert committed(node.bootstrap, group, "t", 2) == [50, 50]
    expected |= write(node.bootstrap, "t", 2, range(100, 200))
    wait_until("the member goes on", lambda: set(member.values) == expected, seconds=40)
    member.leave()
    assert len(member.values) == 200
    assert committed(node.bootstrap, group, "t", 2) == [100, 100]


def test_a_static_member_rejoins_with_its_partitions_and_without_a_rebalance(
    bootstrap: str, new_topic: NewTopic
) -> None:
    topic, group = new_topic(4), new_group()
    static = {"session.timeout.ms": 30_000}
    one = Member("confluent", bootstrap, group, topic, **static, **{"group.instance.id": "one"}).start()
    two = Member("confluent", bootstrap, group, topic, **static, **{"group.instance.id": "two"}).start()
    wait_until("both have their share", lambda: len(one.partitions) == len(two.partitions) == 2)
    before, rounds = two.partitions, one.rounds
    two.leave()
    again = Member("confluent", bootstrap, group, topic, **static, **{"group.instance.id": "two"}).start()
    wait_until("it is back", lambda: again.partitions == before)
    assert one.rounds == rounds
    again.leave()
    one.leave()


def test_cooperative_members_keep_what_they_keep(bootstrap: str, new_topic: NewTopic) -> None:
    topic, group = new_topic(4), new_group()
    options = {"partition.assignment.strategy": "cooperative-sticky"}
    one = Member("confluent", bootstrap, group, topic, **options).start()
    wait_until("the first member has everything", lambda: len(one.partitions) == 4)
    two = Member("confluent", bootstrap, group, topic, **options).start()
    wait_until("both have their share", lambda: len(one.partitions) == len(two.partitions) == 2)
    assert one.rounds == 2, "it went from four to two at once, never to none"
    one.leave()
    two.leave()


def test_librdkafka_knows_lz4_again(broker: Broker, new_topic: NewTopic) -> None:
    """It derives that from the versions of the group APIs."""
    topic = new_topic()
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "compression.type": "lz4"})
    producer.produce(topic, b"x" * 1000)
    assert not producer.flush(20)
    [segment] = broker.folder(topic).glob("*.log")
    assert segment.read_bytes()[22] & 7 == 3
