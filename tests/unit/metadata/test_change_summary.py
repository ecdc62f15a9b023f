"""Summary of elections, ISRs and brokers: one line for each kind, however many there are."""

from __future__ import annotations

from uuid import UUID

from service.base.steps import at_once
from service.metadata.controller.change_summary import ChangeSummary, matters
from service.metadata.delta import MetadataDelta
from service.metadata.image import MetadataImage
from service.metadata.records import (
    BrokerRegistrationChangeRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
    UnregisterBrokerRecord,
)

TOPIC = UUID(int=7)


def image_with(*records: MetadataRecord) -> MetadataImage:
    return MetadataDelta(MetadataImage()).replay_all(records).build(len(records), 1, 0)


def partition(number: int) -> PartitionRecord:
    return PartitionRecord(
        partition_id=number,
        topic_id=TOPIC,
        replicas=(1, 2, 3),
        isr=(1, 2, 3),
        leader=1,
        leader_epoch=0,
        partition_epoch=0,
        directories=(UUID(int=1), UUID(int=2), UUID(int=3)),
    )


def broker(broker_id: int, epoch: int = 1) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=broker_id,
        incarnation_id=UUID(int=broker_id),
        broker_epoch=epoch,
        end_points=(),
        features=(),
        rack=None,
        fenced=True,
        log_dirs=(),
    )


def summary(before: MetadataImage, *records: MetadataRecord) -> dict[str, tuple[int, list[str]]]:
    delta = MetadataDelta(before).replay_all(records)
    after = delta.build(before.offset + len(records), 1, 0)
    assert matters(before, after, delta)
    found = ChangeSummary()
    at_once(found.add_in_steps(before, after, delta))
    return {change.event: (change.number, list(change.items)) for change in found.changes()}


def test_elections_and_isrs_are_told_with_before_and_after() -> None:
    before = image_with(TopicRecord(name="t", topic_id=TOPIC), *map(partition, range(4)))
    assert summary(
        before,
        PartitionChangeRecord(partition_id=0, topic_id=TOPIC, isr=(2, 3), leader=2),
        PartitionChangeRecord(partition_id=1, topic_id=TOPIC, isr=(), leader=-1),
        PartitionChangeRecord(partition_id=2, topic_id=TOPIC, isr=(3,), leader=3, leader_recovery_state=1),
        PartitionChangeRecord(partition_id=3, topic_id=TOPIC, replicas=(1, 2, 3, 4), isr=(1, 2, 3, 4)),
    ) == {
        "leader-elected": (1, ["t-0 [leader 1 -> 2, epoch 1]"]),
        "leader-elected-unclean": (1, ["t-2 [leader 1 -> 3, epoch 1]"]),
        "leader-lost": (1, ["t-1 [leader 1 -> -1, epoch 1]"]),
        "isr-shrunk": (3, ["t-0 [1,2,3 -> 2,3]", "t-1 [1,2,3 -> none]", "t-2 [1,2,3 -> 3]"]),
        "isr-expanded": (1, ["t-3 [1,2,3 -> 1,2,3,4]"]),
    }


def test_ten_thousand_elections_name_twenty_and_their_number() -> None:
    before = image_with(TopicRecord(name="t", topic_id=TOPIC), *map(partition, range(10_000)))
    found = summary(
        before,
        *(PartitionChangeRecord(partition_id=n, topic_id=TOPIC, leader=2) for n in range(10_000)),
    )
    number, items = found["leader-elected"]
    assert number == 10_000
    assert len(items) == 20
    assert found.keys() == {"leader-elected"}


def test_a_topic_that_is_created_elects_nobody() -> None:
    before = image_with()
    delta = MetadataDelta(before).replay_all([TopicRecord(name="t", topic_id=TOPIC), partition(0)])
    assert not matters(before, delta.build(2, 1, 0), delta)


def test_brokers_come_and_go() -> None:
    before = image_with(broker(1), broker(2))
    unfenced = BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=1, fenced=-1)
    assert summary(before, unfenced) == {"broker-unfenced": (1, ["1"])}
    running = image_with(broker(1), unfenced, broker(2))
    leaving = BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=1, in_controlled_shutdown=1)
    assert summary(running, leaving) == {"broker-shutting-down": (1, ["1"])}
    fenced = BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=1, fenced=1)
    assert summary(running, fenced, UnregisterBrokerRecord(broker_id=2, broker_epoch=1)) == {
        "broker-fenced": (1, ["1"]),
        "broker-removed": (1, ["2"]),
    }
    assert summary(running, broker(1, epoch=9)) == {"broker-registered": (1, ["1"])}
