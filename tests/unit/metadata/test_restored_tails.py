"""Restored tails in the metadata: what is replayed, kept in snapshots, taken away, and by whom."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.base.disk import SystemDisk
from service.base.errors import CorruptionError, RequestError
from service.base.steps import at_once
from service.metadata.bootstrap import FILE_NAME, first_records
from service.metadata.controller.activation import activate
from service.metadata.controller.catalog_control import tails_loaded
from service.metadata.controller.cluster_control import register_broker
from service.metadata.controller.features_control import FeatureUpdate, UpgradeType, update_features
from service.metadata.controller.heartbeat_control import fence_broker, unfence_broker
from service.metadata.controller.requests import CatalogSender
from service.metadata.delta import MetadataDelta
from service.metadata.features import (
    CATALOG_VERSION,
    ELR_VERSION,
    cluster_bootstrap_records,
    cluster_features,
    has_cuts,
)
from service.metadata.frames import newest
from service.metadata.image import MetadataImage, RestoredTail
from service.metadata.image_diff import apply_snapshot
from service.metadata.image_frames import restored_tail_record
from service.metadata.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveRestoredTailRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from service.metadata.snapshot_codec import decode_snapshot, encode_image, encode_snapshot
from service.remote.catalog import LoadedTail
from tests.unit.metadata.controllers import (
    CLUSTER_ID,
    LoneController,
    join,
    make_controller,
    registration,
)

TOPIC = UUID(int=7)
TAIL = RestoredTail(100, 150, 1150, "cut/00000000000000000009-x.json.gz", "")
LEVEL = FeatureLevelRecord(name="metadata.version", feature_level=30)


def partition(number: int = 0, leader: int = 1, epoch: int = 1004) -> PartitionRecord:
    return PartitionRecord(
        partition_id=number,
        topic_id=TOPIC,
        replicas=(1, 2),
        isr=(1,),
        leader=leader,
        leader_epoch=epoch,
        partition_epoch=0,
        directories=(None, None),
    )


def broker(broker_id: int, epoch: int) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=broker_id,
        incarnation_id=UUID(int=broker_id),
        broker_epoch=epoch,
        end_points=(),
        rack=None,
        fenced=False,
    )


RESTORED = (
    LEVEL,
    FeatureLevelRecord(name=CATALOG_VERSION, feature_level=2),
    broker(1, 10),
    broker(2, 20),
    TopicRecord(name="t", topic_id=TOPIC),
    partition(0),
    partition(1, leader=2),
    restored_tail_record((TOPIC, 0), TAIL),
    restored_tail_record((TOPIC, 1), TAIL._replace(segment_key="data/s")),
)


def image_of(*records: MetadataRecord, before: MetadataImage | None = None) -> MetadataImage:
    return MetadataDelta(before or MetadataImage()).replay_all(records).build(20, 1, 0)


def written(decision: Any) -> list[MetadataRecord]:
    return [frame.record for frame in decision.frames]


def test_a_tail_is_there_until_it_is_loaded_or_its_topic_is_gone() -> None:
    image = image_of(*RESTORED)
    assert dict(image.restored_tails) == {
        (TOPIC, 0): TAIL,
        (TOPIC, 1): TAIL._replace(segment_key="data/s"),
    }
    delta = MetadataDelta(image)
    delta.replay(RemoveRestoredTailRecord(topic_id=TOPIC, partition_id=0))
    assert delta.restored_tails == {(TOPIC, 0)}
    after = delta.build(21, 1, 0)
    assert list(after.restored_tails) == [(TOPIC, 1)]
    assert not image_of(RemoveTopicRecord(topic_id=TOPIC), before=after).restored_tails


def test_a_snapshot_keeps_what_is_to_load_and_a_node_behind_learns_what_is_loaded() -> None:
    image = image_of(*RESTORED)
    assert decode_snapshot(encode_image(image, 0), end_offset=21, epoch=1) == image
    after = image_of(RemoveRestoredTailRecord(topic_id=TOPIC, partition_id=0), before=image)
    built, delta = at_once(apply_snapshot(image, after))
    assert (built, delta.restored_tails) == (after, {(TOPIC, 0)})
    gone = image_of(RemoveTopicRecord(topic_id=TOPIC), before=image)
    assert at_once(apply_snapshot(image, gone))[0] == gone


@pytest.mark.parametrize(
    "record",
    [
        restored_tail_record((UUID(int=8), 0), TAIL),
        restored_tail_record((TOPIC, 2), TAIL),
        restored_tail_record((TOPIC, 0), TAIL._replace(end_offset=99)),
        restored_tail_record((TOPIC, 0), TAIL._replace(go_on=149)),
        restored_tail_record((TOPIC, 0), TAIL._replace(chain_end=-1)),
        RemoveRestoredTailRecord(topic_id=TOPIC, partition_id=2),
    ],
)
def test_a_record_that_contradicts_the_metadata_is_damage(record: MetadataRecord) -> None:
    with pytest.raises(CorruptionError):
        image_of(record, before=image_of(*RESTORED))


def test_only_the_leader_of_now_says_that_a_partition_is_loaded() -> None:
    image, first, second = image_of(*RESTORED), CatalogSender(1, 10), CatalogSender(2, 20)
    loaded = LoadedTail(TOPIC, 0, 1004)
    gone = [RemoveRestoredTailRecord(topic_id=TOPIC, partition_id=0)]
    assert written(tails_loaded(image, [loaded, loaded], sender=first)) == gone
    assert written(tails_loaded(image, [loaded])) == gone, "a node that is its own controller"
    assert written(tails_loaded(image, [loaded], sender=second)) == []
    assert written(tails_loaded(image, [loaded._replace(leader_epoch=1003)], sender=first)) == []
    assert written(tails_loaded(image, [loaded._replace(partition=1)], sender=first)) == []
    unknown = [loaded._replace(topic_id=UUID(int=9)), loaded._replace(partition=5)]
    assert written(tails_loaded(image, unknown, sender=first)) == []
    with pytest.raises(RequestError) as refused:
        tails_loaded(image, [loaded], sender=CatalogSender(1, 9))
    assert refused.value.code is ErrorCode.stale_broker_epoch
    after = image_of(*gone, before=image)
    assert written(tails_loaded(after, [loaded], sender=first)) == [], "told again"


def test_new_clusters_have_cuts_and_the_level_stays_while_tails_load() -> None:
    levels = {one.name: one.feature_level for one in cluster_bootstrap_records()}  # type: ignore[attr-defined]
    assert levels[CATALOG_VERSION] == 3
    assert [has_cuts({CATALOG_VERSION: level}) for level in (0, 1, 2, 3)] == [False, False, True, True]
    down = FeatureUpdate(CATALOG_VERSION, 1, UpgradeType.SAFE_DOWNGRADE)
    image = image_of(*RESTORED[:2], *RESTORED[4:])
    with pytest.raises(RequestError, match="still loading"):
        update_features(image, [down], node_id=9, supported=cluster_features())
    done = image_of(RemoveTopicRecord(topic_id=TOPIC), before=image)
    assert written(update_features(done, [down], node_id=9, supported=cluster_features())) == [
        FeatureLevelRecord(name=CATALOG_VERSION, feature_level=1)
    ]


def many_topics(count: int) -> list[MetadataRecord]:
    found: list[MetadataRecord] = [LEVEL]
    for number in range(count):
        topic_id = UUID(int=1000 + number)
        found.append(TopicRecord(name=f"t{number}", topic_id=topic_id))
        found.append(
            PartitionRecord(
                partition_id=0,
                topic_id=topic_id,
                replicas=(1,),
                isr=(1,),
                leader_epoch=0,
                partition_epoch=0,
                directories=(None,),
            )
        )
        found.append(restored_tail_record((topic_id, 0), TAIL))
    return found


def write_file(directory: Path, records: list[MetadataRecord]) -> None:
    """Write what `firn format --restore` leaves."""
    directory.mkdir(exist_ok=True)
    runs = encode_snapshot(map(newest, records), epoch=0, last_timestamp_ms=0, now_ms=5)
    (directory / FILE_NAME).write_bytes(b"".join(runs))


def restoring(directory: Path) -> LoneController:
    controller = make_controller(directory)
    first = first_records(SystemDisk(), directory, cluster_features())
    assert first is not None
    object.__setattr__(controller._options, "bootstrap", first)
    return controller


def test_a_restored_clusters_records_are_written_in_batches_and_have_effect_together(tmp_path: Path) -> None:
    write_file(tmp_path, many_topics(4_000))

    async def scenario() -> None:
        controller = restoring(tmp_path)
        published: list[tuple[int, bool]] = []
        controller._publisher.subscribe(
            lambda before, image, delta: published.append(
                (len(image.restored_tails), image.transaction is not None)
            )
        )
        await controller.start()
        try:
            await join(controller)
            assert len(controller.image.restored_tails) == 4_000
            assert {count for count, _ in published} == {0, 4_000}
            assert (0, True) in published, "12,003 records are more than one batch"
        finally:
            await controller.close()

    asyncio.run(scenario())


def test_a_setting_of_the_cluster_is_not_replaced_by_a_nodes_own() -> None:
    chosen = ConfigRecord(resource_type=4, resource_name="", name="min.insync.replicas", value="3")
    elr = FeatureLevelRecord(name=ELR_VERSION, feature_level=1)
    records = written(activate(MetadataImage(), [LEVEL, elr, chosen], min_isr=2, supported=()))
    assert [one for one in records if isinstance(one, ConfigRecord)] == [chosen]


def test_a_restore_that_ended_in_the_middle_begins_again() -> None:
    records = many_topics(3)
    image = image_of(BeginTransactionRecord(name="Bootstrap records"), *records[:4])
    again = written(activate(image, records, min_isr=1, supported=()))
    assert again[0] == AbortTransactionRecord(reason="Controller failover")
    assert again[2:-1] == records
    assert again[-1] == EndTransactionRecord()
    assert len(image_of(*again, before=image).restored_tails) == 3


def test_replicas_of_a_restored_partition_have_lost_nothing_when_they_register(tmp_path: Path) -> None:
    """The first process of a broker did not shut down cleanly before: with eligible leader replicas it would
    leave the ISR, and nobody could ever lead."""
    elr = FeatureLevelRecord(name=ELR_VERSION, feature_level=1)
    lone = partition(0, leader=-1), partition(1, leader=-1)
    for tails in (RESTORED[-2:], ()):
        records = [LEVEL, elr, TopicRecord(name="t", topic_id=TOPIC), *lone, *tails]
        image = image_of(*records)
        request = registration(1, log_dirs=(UUID(int=500),), features=cluster_features())
        made = at_once(
            register_broker(image, request, cluster_id=CLUSTER_ID, next_offset=21, has_session=False)
        )
        image = image_of(*written(made), before=image)
        image = image_of(*written(at_once(unfence_broker(image, 1, made.response))), before=image)
        assert [one.leader for one in image.topics_by_id[TOPIC].partitions.values()] == [
            1 if tails else -1
        ] * 2


def test_any_replica_may_lead_a_partition_that_is_not_loaded() -> None:
    """Replica 2 was never in sync, and 1 is gone."""
    image = image_of(*RESTORED)
    decided = at_once(fence_broker(image, 1, 10))
    after = image_of(*written(decided), before=image)
    assert after.topics_by_id[TOPIC].partitions[0].leader == 2
    loaded = image_of(RemoveRestoredTailRecord(topic_id=TOPIC, partition_id=0), before=image)
    after = image_of(*written(at_once(fence_broker(loaded, 1, 10))), before=loaded)
    assert after.topics_by_id[TOPIC].partitions[0].leader == -1
