"""The topics that a recovery restores, from any copy, topics.json and archives."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from service.metadata.controller.adoption_control import BucketContent, adopt
from service.metadata.controller.recovered_topics import recovered_topics
from service.metadata.controller.requests import ResourceType
from service.metadata.delta import MetadataDelta
from service.metadata.image import MetadataImage
from service.metadata.records import ConfigRecord, PartitionRecord, TombstoneRecord, TopicRecord
from service.remote.catalog import CatalogEntry
from service.remote.format.manifest_codec import TopicsFile, TopicsFileRow
from service.tiering.recovery import ArchivedPartition, RecoveredArchive

NAMES = ["a", "b", "c"]
IDS = [UUID(int=number) for number in range(1, 6)]
ENTRY = CatalogEntry(3, "m3", 1, 0, 50, 1, 100)
OFFSET = 40

names = st.sampled_from(NAMES)
ids = st.sampled_from(IDS)
retention = st.sampled_from(["-1", "1000"])
topics_by_id = st.dictionaries(ids, st.tuples(names, st.integers(1, 3), retention), max_size=5).filter(
    lambda made: len({name for name, _, _ in made.values()}) == len(made)
)
archives = st.dictionaries(st.tuples(ids, st.integers(0, 2)), st.tuples(names, st.integers(0, 9)), max_size=8)


def image_of(made: dict[UUID, tuple[str, int, str]], dead: set[UUID]) -> MetadataImage:
    records: list[object] = []
    for topic_id, (name, count, retention_ms) in made.items():
        records.append(TopicRecord(name=name, topic_id=topic_id))
        records += [
            PartitionRecord(
                partition_id=number, topic_id=topic_id, replicas=(1,), isr=(1,), leader=1,
                leader_epoch=1, partition_epoch=0, directories=(None,),
            )
            for number in range(count)
        ]  # fmt: skip
        records.append(
            ConfigRecord(
                resource_type=int(ResourceType.TOPIC), resource_name=name, name="retention.ms",
                value=retention_ms,
            )
        )  # fmt: skip
    records += [
        TombstoneRecord(topic_id=one, name="gone", partitions=1, deleted_ms=0) for one in dead - set(made)
    ]
    return MetadataDelta(MetadataImage()).replay_all(records).build(OFFSET, 1, 0)  # type: ignore[arg-type]


def listed_of(made: dict[UUID, tuple[str, int, str]], offset: int) -> TopicsFile:
    rows = tuple(
        TopicsFileRow(name, topic_id, count, {"retention.ms": retention_ms})
        for topic_id, (name, count, retention_ms) in made.items()
    )
    return TopicsFile("c", offset, rows)


@given(
    st.one_of(st.none(), topics_by_id),
    st.sets(ids),
    st.one_of(st.none(), topics_by_id),
    st.integers(OFFSET - 2, OFFSET + 2),
    archives,
    st.booleans(),
)
def test_a_recovered_cluster_is_consistent_and_expires_nothing_unproved(
    copied: dict[UUID, tuple[str, int, str]] | None,
    dead: set[UUID],
    listed: dict[UUID, tuple[str, int, str]] | None,
    listed_offset: int,
    archived: dict[tuple[UUID, int], tuple[str, int]],
    is_copy_newer: bool,
) -> None:
    copy = None if copied is None else image_of(copied, dead)
    archive = RecoveredArchive(
        {key: ArchivedPartition(name, ENTRY, 1, at) for key, (name, at) in archived.items()}, (), (), -1
    )
    rows = None if listed is None else listed_of(listed, listed_offset)
    found = recovered_topics(copy, rows, archive)
    by_name = {one.name: one for one in found.topics}
    assert len(by_name) == len(found.topics), "names are given once"
    deleted = set() if copy is None else set(copy.tombstones)
    assert not {one.topic_id for one in found.topics} & deleted
    # Every archive that nobody deleted comes back, or is named as left out.
    brought = {one.topic_id for one in found.topics}
    for topic_id, number in archived:
        if topic_id in brought:
            topic = next(one for one in found.topics if one.topic_id == topic_id)
            assert topic.partition_count > number
            assert topic.partitions[number].entry == ENTRY
        elif topic_id not in deleted:
            assert any(str(topic_id) in one for one in found.refused)
    for topic in found.topics:
        known = None if copied is None else copied.get(topic.topic_id)
        if not topic.settings_unknown:
            assert known is not None, "only the copy vouches for settings"
            assert topic.configs == {"retention.ms": known[2]}
        if known is not None:
            assert topic.partition_count >= known[1]
    # It can be written into any metadata, that of an empty disk among them.
    for own in (MetadataImage(), image_of(copied or {}, set())):
        told = BucketContent(found.topics, copy, copy is not None and is_copy_newer, -1, 0)
        decision = adopt(own, told, node_id=1, life_id=UUID(int=70))
        delta = MetadataDelta(own).replay_all(frame.record for frame in decision.frames)
        after = delta.build(own.offset + len(decision.frames), 1, 0)
        assert after.life == 1
        assert len(after.topics_by_name) == len(after.topics_by_id)


def test_the_topic_that_was_made_again_after_the_copy_has_the_name() -> None:
    copy = image_of({IDS[0]: ("orders", 1, "-1")}, set())
    archive = RecoveredArchive(
        {
            (IDS[0], 0): ArchivedPartition("orders", ENTRY, 1, 100),
            (IDS[1], 0): ArchivedPartition("orders", ENTRY, 1, 50),
            (IDS[2], 1): ArchivedPartition("newest", ENTRY, 1, 50),
        },
        (),
        (),
        -1,
    )
    found = recovered_topics(copy, None, archive)
    assert {one.name: one.topic_id for one in found.topics} == {"orders": IDS[1], "newest": IDS[2]}
    assert [one.settings_unknown for one in found.topics] == [True, True]
    assert [one.configs for one in found.topics] == [{"remote.storage.enable": "true"}] * 2
    assert "its name now belongs to" in found.refused[0]


def test_settings_that_topics_json_has_newer_are_taken_and_not_vouched_for() -> None:
    copy = image_of({IDS[0]: ("orders", 1, "1000"), IDS[1]: ("same", 1, "1000")}, set())
    made = {IDS[0]: ("orders", 2, "-1"), IDS[1]: ("same", 1, "1000")}
    newer = recovered_topics(copy, listed_of(made, OFFSET + 1), RecoveredArchive({}, (), (), -1))
    orders, same = sorted(newer.topics)
    assert (orders.configs, orders.partition_count, orders.settings_unknown) == (
        {"retention.ms": "-1"},
        2,
        True,
    )
    assert not same.settings_unknown
    older = recovered_topics(copy, listed_of(made, OFFSET), RecoveredArchive({}, (), (), -1))
    assert [(one.configs["retention.ms"], one.settings_unknown) for one in sorted(older.topics)] == [
        ("1000", False)
    ] * 2
