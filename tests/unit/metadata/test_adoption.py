"""What the metadata takes over from an archive, and what it leaves alone."""

from __future__ import annotations

from uuid import UUID

from service.metadata.controller.adoption_control import (
    EPOCH_MARGIN,
    AdoptedPartition,
    AdoptedTopic,
    Adoption,
    adopt,
)
from service.metadata.controller.requests import ResourceType
from service.metadata.delta import MetadataDelta
from service.metadata.image import MetadataImage
from service.metadata.records import PartitionRecord, RemoteLogRecord, TombstoneRecord, TopicRecord
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


def adopted(image: MetadataImage, *topics: AdoptedTopic) -> tuple[MetadataImage, Adoption]:
    decision = adopt(image, topics, node_id=1, next_producer_id=5000)
    if not decision.frames:
        return image, decision.response
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
    assert image.next_producer_id == 5000
    assert (adoption.topics, adoption.partitions) == (["events"], {(ID, 0)})


def test_an_older_entry_gives_way_and_its_leader_epoch_rises_above_both() -> None:
    image, adoption = adopted(known(entry(2, 40)), topic(p0=AdoptedPartition(entry(4), 9)))
    assert image.remote.get((ID, 0)) == entry(4)
    assert image.topics_by_id[ID].partitions[0].leader_epoch == 9 + EPOCH_MARGIN
    assert image.topics_by_id[ID].partitions[1].leader_epoch == 5
    assert adoption.partitions == {(ID, 0)}


def test_an_entry_that_is_as_new_or_newer_stays() -> None:
    for own in (entry(4), entry(5, 120)):
        before = known(own)
        image, adoption = adopted(before, topic(p0=AdoptedPartition(entry(4), 3)))
        assert image is before
        assert not adoption.partitions


def test_of_two_manifests_under_one_version_the_bucket_s_wins() -> None:
    image, _ = adopted(known(entry(4, key="clone")), topic(p0=AdoptedPartition(entry(4), 3)))
    assert image.remote.get((ID, 0)) == entry(4)


def test_what_was_deleted_here_stays_deleted_and_a_name_is_not_taken_twice() -> None:
    buried = TombstoneRecord(topic_id=ID, name="events", partitions=2, deleted_ms=0)
    image = MetadataDelta(MetadataImage()).replay_all([buried]).build(3, 1, 0)
    after, adoption = adopted(image, topic(p0=AdoptedPartition(entry(4), 3)))
    assert after is image
    after, adoption = adopted(known(None), topic(topic_id=UUID(int=8), p0=AdoptedPartition(entry(4), 3)))
    assert UUID(int=8) not in after.topics_by_id
    assert adoption.refused == [f"events ({UUID(int=8)}): another topic has that name here"]
