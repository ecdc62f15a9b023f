"""What the metadata takes over from an archive, and what it leaves alone."""

from __future__ import annotations

from uuid import UUID

import pytest

from service.base.errors import CorruptionError
from service.metadata.controller.adoption_control import (
    EPOCH_MARGIN,
    PRODUCER_ID_MARGIN,
    AdoptedPartition,
    AdoptedTopic,
    Adoption,
    adopt,
)
from service.metadata.controller.requests import ResourceType
from service.metadata.delta import MetadataDelta
from service.metadata.image import MetadataImage
from service.metadata.records import (
    PartitionRecord,
    ProducerIdsRecord,
    RemoteLogRecord,
    TombstoneRecord,
    TopicRecord,
)
from service.remote.catalog import CatalogEntry

ID = UUID(int=7)


def entry(version: int, end: int = 100, key: str = "m") -> CatalogEntry:
    return CatalogEntry(version, f"{key}{version}", 3, 0, end, 1, 1000)


def topic(name: str = "events", topic_id: UUID = ID, **partitions: AdoptedPartition) -> AdoptedTopic:
    return AdoptedTopic(
        name,
        topic_id,
        2,
        {"remote.storage.enable": "true"},
        {int(number.removeprefix("p")): one for number, one in partitions.items()},
    )


def adopted(
    image: MetadataImage, *topics: AdoptedTopic, lost: MetadataImage | None = None
) -> tuple[MetadataImage, Adoption]:
    decision = adopt(image, topics, lost, node_id=1, last_producer_id=4999)
    delta = MetadataDelta(image).replay_all(frame.record for frame in decision.frames)
    return delta.build(image.offset + len(decision.frames), 1, 0), decision.response


def known(own: CatalogEntry | None, leader_epoch: int = 5) -> MetadataImage:
    records: list[object] = [TopicRecord(name="events", topic_id=ID)]
    records += [
        PartitionRecord(
            partition_id=number, topic_id=ID, replicas=(1,), isr=(1,), leader=1,
            leader_epoch=leader_epoch, partition_epoch=0, directories=(UUID(int=50),),
        )
        for number in range(2)
    ]  # fmt: skip
    if own is not None:
        records.append(RemoteLogRecord(topic_id=ID, partition_id=0, **own._asdict()))
    return MetadataDelta(MetadataImage()).replay_all(records).build(10, 1, 0)  # type: ignore[arg-type]


def test_a_topic_that_only_the_archive_knows_comes_back_under_its_id() -> None:
    image, adoption = adopted(MetadataImage(), topic(p0=AdoptedPartition(entry(4), 9)))
    assert image.topics_by_name["events"].id == ID
    assert image.config(ResourceType.TOPIC, "events") == {"remote.storage.enable": "true"}
    assert image.remote.get((ID, 0)) == entry(4)
    first, second = image.topics_by_id[ID].partitions.values()
    assert (first.leader, first.isr, first.leader_epoch) == (-1, (1,), 9 + EPOCH_MARGIN)
    assert second.isr == (1,)
    assert image.next_producer_id == 5000 + PRODUCER_ID_MARGIN
    assert (adoption.topics, adoption.partitions) == (["events"], {(ID, 0)})


def test_an_older_entry_gives_way_and_its_leader_epoch_rises_above_both() -> None:
    image, adoption = adopted(known(entry(2, 40)), topic(p0=AdoptedPartition(entry(4), 9)))
    assert image.remote.get((ID, 0)) == entry(4)
    assert image.topics_by_id[ID].partitions[0].leader_epoch == 9 + EPOCH_MARGIN
    assert image.topics_by_id[ID].partitions[1].leader_epoch == 5 + EPOCH_MARGIN
    assert adoption.partitions == {(ID, 0)}


def test_an_entry_that_is_as_new_or_newer_stays() -> None:
    for own in (entry(4), entry(5, 120)):
        image, adoption = adopted(known(own), topic(p0=AdoptedPartition(entry(4), 3)))
        assert image.remote.get((ID, 0)) == own
        assert not adoption.partitions


def test_of_two_manifests_under_one_version_the_bucket_s_wins() -> None:
    image, _ = adopted(known(entry(4, key="clone")), topic(p0=AdoptedPartition(entry(4), 3)))
    assert image.remote.get((ID, 0)) == entry(4)


def test_what_was_deleted_here_stays_deleted_and_a_name_is_not_taken_twice() -> None:
    buried = TombstoneRecord(topic_id=ID, name="events", partitions=2, deleted_ms=0)
    image = MetadataDelta(MetadataImage()).replay_all([buried]).build(3, 1, 0)
    after, adoption = adopted(image, topic(p0=AdoptedPartition(entry(4), 3)))
    assert ID not in after.topics_by_id
    assert ID in after.tombstones
    after, adoption = adopted(known(None), topic(topic_id=UUID(int=8), p0=AdoptedPartition(entry(4), 3)))
    assert UUID(int=8) not in after.topics_by_id
    assert adoption.refused == [f"events ({UUID(int=8)}): another topic has that name here"]


def used(next_producer_id: int, leader_epoch: int) -> MetadataImage:
    """The last that the bucket has of the lost node's metadata."""
    record = ProducerIdsRecord(broker_id=1, next_producer_id=next_producer_id)
    return MetadataDelta(known(None, leader_epoch)).replay_all([record]).build(90, 1, 0)


def test_what_the_lost_node_s_last_snapshot_had_given_out_is_not_given_out_again() -> None:
    """Ids and epochs of before may be in no segment: of a topic without records, or after a takeover."""
    lost = used(7_000_000_000, 4_000)
    image, _ = adopted(MetadataImage(), topic(p0=AdoptedPartition(entry(4), 9)), lost=lost)
    assert image.next_producer_id == 7_000_000_000 + PRODUCER_ID_MARGIN
    epochs = [one.leader_epoch for one in image.topics_by_id[ID].partitions.values()]
    assert epochs == [4_000 + EPOCH_MARGIN] * 2


def test_a_restored_disk_skips_ids_and_epochs_also_where_the_archive_holds_no_news() -> None:
    """The lost node went on after the backup, with idempotent producers whose records nobody archived."""
    before = known(entry(4), leader_epoch=5)
    image, adoption = adopted(before, topic(p0=AdoptedPartition(entry(4), 3)), lost=used(8_000, 7))
    assert not adoption.partitions
    assert image.next_producer_id == 8_000 + PRODUCER_ID_MARGIN
    assert [one.leader_epoch for one in image.topics_by_id[ID].partitions.values()] == [7 + EPOCH_MARGIN] * 2
    assert all(one.leader == -1 for one in image.topics_by_id[ID].partitions.values())


def test_a_topic_that_the_bucket_does_not_name_skips_epochs_too() -> None:
    image, _ = adopted(known(None, leader_epoch=5))
    assert [one.leader_epoch for one in image.topics_by_id[ID].partitions.values()] == [5 + EPOCH_MARGIN] * 2
    assert image.next_producer_id == 5000 + PRODUCER_ID_MARGIN


def test_one_takeover_after_another_gives_nothing_out_twice() -> None:
    """Between them ids were given out and epochs begun that no segment tells of; the snapshot does."""
    first, _ = adopted(MetadataImage(), topic(p0=AdoptedPartition(entry(4), 9)))
    second, _ = adopted(MetadataImage(), topic(p0=AdoptedPartition(entry(4), 9)), lost=first)
    assert second.next_producer_id == first.next_producer_id + PRODUCER_ID_MARGIN
    for number in range(2):
        before, after = (one.topics_by_id[ID].partitions[number].leader_epoch for one in (first, second))
        assert after == before + EPOCH_MARGIN


def test_a_bucket_that_says_that_none_are_left_is_not_believed() -> None:
    with pytest.raises(CorruptionError, match="led in epoch 2147483647"):
        adopted(MetadataImage(), topic(p0=AdoptedPartition(entry(4), 2**31 - 1)))
    with pytest.raises(CorruptionError, match="all producer ids below 9223372036854775807"):
        adopted(MetadataImage(), topic(p0=AdoptedPartition(entry(4), 1)), lost=used(2**63 - 1, 1))
