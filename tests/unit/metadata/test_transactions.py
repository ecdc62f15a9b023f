"""Metadata transactions over several batches, ELR that is cleared, records that are not served."""

from __future__ import annotations

from uuid import UUID

import pytest

from service.base.errors import CorruptionError
from service.base.steps import at_once
from service.metadata.delta import MetadataDelta
from service.metadata.frames import UnknownRecord, decode_frame, encode_frame, newest
from service.metadata.image import MetadataImage
from service.metadata.image_diff import apply_snapshot
from service.metadata.image_frames import image_frames
from service.metadata.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    ClearElrRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionRecord,
    RegisterControllerRecord,
    RemoveTopicRecord,
    TopicRecord,
)

A, B = UUID(int=1 << 70), UUID(int=1 << 71)


def after(image: MetadataImage, *records: MetadataRecord) -> tuple[MetadataImage, MetadataDelta]:
    delta = MetadataDelta(image).replay_all(records)
    return delta.build(image.offset + len(records), 1, 0), delta


def topic(name: str, topic_id: UUID) -> TopicRecord:
    return TopicRecord(name=name, topic_id=topic_id)


def partition(topic_id: UUID, number: int = 0, *, elr: tuple[int, ...] = ()) -> PartitionRecord:
    return PartitionRecord(
        partition_id=number,
        topic_id=topic_id,
        replicas=(1, 2),
        isr=(1,),
        leader=1,
        leader_epoch=3,
        partition_epoch=4,
        directories=(None, None),
        eligible_leader_replicas=elr,
    )


BEGIN, END = BeginTransactionRecord(name="x"), EndTransactionRecord()


def test_records_of_a_transaction_have_no_effect_before_its_end() -> None:
    first, delta = after(MetadataImage(), topic("a", A), BEGIN, topic("b", B))
    assert set(first.topics_by_name) == {"a"}
    assert delta.topics == {A}
    second, delta = after(first, partition(B))
    assert set(second.topics_by_name) == {"a"}
    assert delta.topics == set()
    assert second.offset == 3
    third, delta = after(second, partition(B, 1), END, topic("c", UUID(int=5)))
    assert set(third.topics_by_name) == {"a", "b", "c"}
    assert len(third.topics_by_name["b"].partitions) == 2
    assert delta.topics == {B, UUID(int=5)}
    assert third.transaction is None


def test_an_aborted_transaction_never_was() -> None:
    first, _ = after(MetadataImage(), topic("a", A), BEGIN, topic("b", B))
    second, _ = after(first, partition(B), AbortTransactionRecord(reason="no"), partition(A))
    assert set(second.topics_by_name) == {"a"}
    assert len(second.topics_by_name["a"].partitions) == 1
    whole, _ = after(
        MetadataImage(), topic("a", A), BEGIN, RemoveTopicRecord(topic_id=A), AbortTransactionRecord()
    )
    assert set(whole.topics_by_name) == {"a"}, "what stood before it in the same batch stays"


@pytest.mark.parametrize("records", [(END,), (AbortTransactionRecord(),), (BEGIN, BEGIN), (BEGIN, END, END)])
def test_transactions_neither_nest_nor_end_twice(records: tuple[MetadataRecord, ...]) -> None:
    with pytest.raises(CorruptionError, match="transaction"):
        after(MetadataImage(), *records)


def test_an_invalid_transaction_fails_at_its_end() -> None:
    image, _ = after(MetadataImage(), BEGIN, partition(A))
    with pytest.raises(CorruptionError, match="not there"):
        after(image, END)


def test_a_snapshot_is_made_of_what_was_before_an_open_transaction() -> None:
    before, _ = after(MetadataImage(), topic("a", A))
    image, _ = after(before, NoOpRecord(), BEGIN, topic("b", B))
    assert image.settled is before
    assert before.settled is before
    with pytest.raises(ValueError, match="open"):
        image_frames(image)


def test_a_fetched_snapshot_ends_an_open_transaction() -> None:
    image, _ = after(MetadataImage(), topic("a", A), BEGIN, topic("b", B))
    newer, _ = after(image, END, ConfigRecord(resource_type=2, resource_name="b", name="k", value="v"))
    made, delta = at_once(apply_snapshot(image, newer))
    assert made == newer
    assert delta.topics == {B}
    without = MetadataImage(offset=90, controllers={})
    controller = RegisterControllerRecord(
        controller_id=3, incarnation_id=A, zk_migration_ready=False, end_points=(), features=()
    )
    known, _ = after(newer, controller)
    assert at_once(apply_snapshot(known, without))[0] == without


def test_eligible_leaders_are_cleared_of_one_topic_or_of_all() -> None:
    records = (topic("a", A), partition(A, elr=(2,)), partition(A, 1), topic("b", B), partition(B, elr=(2,)))
    image, _ = after(MetadataImage(), *records)
    one, delta = after(image, ClearElrRecord(topic_name="a"))
    assert delta.topics == {A}
    assert set(delta.changed_partitions(A)) == {0}
    cleared, kept = one.partition(A, 0), one.partition(B, 0)
    assert cleared is not None
    assert kept is not None
    assert (cleared.eligible_leader_replicas, cleared.partition_epoch, cleared.leader_epoch) == ((), 5, 3)
    assert kept.eligible_leader_replicas == (2,)
    everything, delta = after(image, ClearElrRecord(topic_name=""))
    assert delta.topics == {A, B}
    assert everything.index == after(everything, NoOpRecord())[0].index
    same_batch, _ = after(MetadataImage(), *records, ClearElrRecord(topic_name="b"))
    made = same_batch.partition(B, 0)
    assert made is not None
    assert made.eligible_leader_replicas == ()
    with pytest.raises(CorruptionError, match="not there"):
        after(image, ClearElrRecord(topic_name="nobody"))
    assert decode_frame(encode_frame(newest(ClearElrRecord(topic_name="a")))).record == ClearElrRecord(
        topic_name="a"
    )


def test_records_of_unknown_types_are_refused() -> None:
    with pytest.raises(CorruptionError, match="unknown type"):
        MetadataDelta(MetadataImage()).replay(UnknownRecord(99, b""))


def test_the_quorums_own_level_is_not_taken_from_records() -> None:
    delta = MetadataDelta(MetadataImage(features={"metadata.version": 30}))
    delta.replay(FeatureLevelRecord(name="kraft.version", feature_level=1))
    image = delta.build(1, 1, 0)
    assert (dict(image.features), image.kraft_version) == ({"metadata.version": 30}, 0)
    delta = MetadataDelta(image)
    delta.set_kraft_version(1)
    assert delta.build(2, 1, 0).kraft_version == image.with_kraft_version(1).kraft_version == 1
