"""Orders to erase keys in the metadata: started, noted place by place, done, removed, and who may say so."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import CorruptionError, RequestError
from service.base.steps import at_once
from service.metadata.controller.erase_control import (
    ErasedNotes,
    finish_erasure,
    note_erased,
    remove_erasure,
    start_erasure,
)
from service.metadata.controller.requests import CatalogSender
from service.metadata.delta import MetadataDelta
from service.metadata.features import CATALOG_VERSION
from service.metadata.image import MetadataImage
from service.metadata.image_diff import apply_snapshot
from service.metadata.image_frames import MAX_ERASED_IN_RECORD, erased_records, erasure_record
from service.metadata.records import (
    ConfigRecord,
    ErasedRecord,
    FeatureLevelRecord,
    MetadataRecord,
    RegisterBrokerRecord,
    RemoveErasureRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from service.metadata.snapshot_codec import decode_snapshot, encode_image
from service.remote.catalog import (
    IN_BUCKET,
    MAX_ERASURE_KEYS,
    MAX_ERASURE_PARTITIONS,
    MAX_ERASURES,
    ErasedPlace,
    Erasure,
)
from service.remote.format import erase_codec
from tests.unit.metadata.erasing import (
    CLUSTER,
    COMPACTED,
    FIRST,
    INTERNAL,
    ORDER,
    ORDER_ID,
    OTHER,
    PLACE,
    SECOND,
    THIRD,
    TOPIC,
    changed,
    directory,
    image_of,
    partition,
    policy,
    written,
)

STARTED = image_of(erasure_record(ORDER), before=CLUSTER)
REMOVED = RemoveErasureRecord(id=ORDER_ID)
TOO_MANY = tuple(UUID(int=number) for number in range(10_001))
PLACES = [(TOPIC, 0), (TOPIC, 1), (OTHER, 0)]
NOTED = image_of(*erased_records(ORDER_ID, [(PLACE, (1, 2, IN_BUCKET))]), before=STARTED)
CLEAN = image_of(*erased_records(ORDER_ID, [(place, (1, 2, IN_BUCKET)) for place in PLACES]), before=STARTED)


def start(image: MetadataImage, erasure: Erasure = ORDER, sender: Any = FIRST) -> list[MetadataRecord]:
    return written(at_once(start_erasure(image, erasure, sender=sender, needs_level=True)))


def note(
    image: MetadataImage,
    broker_id: int,
    *places: ErasedPlace,
    sender: CatalogSender | None = FIRST,
    erasure_id: UUID = ORDER_ID,
) -> list[MetadataRecord]:
    asked = [ErasedNotes(erasure_id, broker_id, places)]
    return written(at_once(note_erased(image, asked, sender=sender, needs_level=True)))


def place(topic_id: UUID = TOPIC, number: int = 0, leader_epoch: int = 5) -> ErasedPlace:
    return ErasedPlace(topic_id, number, leader_epoch)


def noted(broker_id: int, topic_id: UUID = TOPIC, *partitions: int) -> ErasedRecord:
    return ErasedRecord(
        erasure_id=ORDER_ID, broker_id=broker_id, topic_id=topic_id, partitions=partitions or (0,)
    )


def finish(image: MetadataImage, sender: Any = FIRST, done_ms: int = 70) -> list[MetadataRecord]:
    return written(at_once(finish_erasure(image, ORDER_ID, done_ms, sender=sender, needs_level=True)))


def test_a_replica_that_is_not_in_sync_is_not_noted() -> None:
    """Its leader may have records for it that are still to go."""
    behind = image_of(changed(isr=(1,)), before=STARTED)
    assert note(behind, 2, place(), sender=SECOND) == []
    assert note(behind, 1, place()) == [noted(1)]
    assert note(STARTED, 2, place(), sender=SECOND) == [noted(2)]


def test_an_unclean_election_takes_the_notes_of_logs_while_the_order_is_open() -> None:
    """Its leader may have what others had erased, or had lost."""
    unclean = changed(isr=(2,), leader=2, leader_recovery_state=1)
    image = image_of(unclean, before=NOTED)
    assert image.erased[ORDER_ID][PLACE] == {IN_BUCKET}
    for harmless in (
        changed(leader=2),
        changed(isr=(2,), leader=2),
        changed(isr=(1,), leader_recovery_state=0),
        changed(leader=-1),
    ):
        assert image_of(harmless, before=NOTED).erased[ORDER_ID][PLACE] == {1, 2, IN_BUCKET}
    again = image_of(*erased_records(ORDER_ID, [(PLACE, (2,))]), before=image)
    assert image_of(changed(isr=(2, 1)), before=again).erased[ORDER_ID][PLACE] == {2, IN_BUCKET}, (
        "the new leader recovers, and leads"
    )
    twice = image_of(changed(isr=(1,), leader=1), before=again)
    assert twice.erased[ORDER_ID][PLACE] == {IN_BUCKET}, "unclean once more, before it has recovered"
    done = image_of(erasure_record(ORDER._replace(done_ms=70)), before=CLEAN)
    assert image_of(unclean, before=done).erased[ORDER_ID][PLACE] == {1, 2, IN_BUCKET}


def test_an_order_starts_once() -> None:
    assert start(CLUSTER) == [erasure_record(ORDER)]
    assert start(CLUSTER, sender=None) == [erasure_record(ORDER)]
    assert start(CLUSTER, sender=THIRD) == [erasure_record(ORDER)], "any broker: the keeper is not known here"
    assert start(STARTED) == [], "its first answer was lost"
    done = image_of(erasure_record(ORDER._replace(done_ms=70)), before=STARTED)
    assert start(done) == []


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"id": UUID(int=0)}, ErrorCode.invalid_request),
        ({"key": "erase/other.json.gz"}, ErrorCode.invalid_request),
        ({"key": ""}, ErrorCode.invalid_request),
        ({"stored_size": 0}, ErrorCode.invalid_request),
        ({"stored_size": 1 << 40}, ErrorCode.invalid_request),
        ({"crc32c": -1}, ErrorCode.invalid_request),
        ({"crc32c": 1 << 32}, ErrorCode.invalid_request),
        ({"keys": 0}, ErrorCode.invalid_request),
        ({"keys": 100_001}, ErrorCode.invalid_request),
        ({"topics": ()}, ErrorCode.invalid_request),
        ({"topics": (TOPIC, TOPIC)}, ErrorCode.invalid_request),
        ({"topics": TOO_MANY}, ErrorCode.invalid_request),
        ({"started_ms": -1}, ErrorCode.invalid_request),
        ({"done_ms": 70}, ErrorCode.invalid_request),
        ({"is_restored": True}, ErrorCode.invalid_request),
        ({"topics": (TOPIC, UUID(int=99))}, ErrorCode.unknown_topic_id),
        ({"topics": (INTERNAL,)}, ErrorCode.invalid_topic_exception),
        ({"topics": (TOPIC, COMPACTED)}, ErrorCode.policy_violation),
    ],
)
def test_an_order_that_cannot_be_is_refused(changes: dict[str, Any], code: ErrorCode) -> None:
    with pytest.raises(RequestError) as refused:
        start(CLUSTER, ORDER._replace(**changes))
    assert refused.value.code is code
    assert refused.value.message


def test_a_topic_that_the_cluster_compacts_is_refused_unless_it_says_otherwise() -> None:
    default = ConfigRecord(resource_type=4, resource_name="", name="log.cleanup.policy", value="compact")
    compacting = image_of(default, before=CLUSTER)
    with pytest.raises(RequestError, match="tombstone"):
        start(compacting)
    deleting = image_of(policy("events", "delete"), policy("other", "delete"), before=compacting)
    assert start(deleting) == [erasure_record(ORDER)]


def test_an_id_stands_for_one_order() -> None:
    with pytest.raises(RequestError, match="that of another order") as refused:
        start(STARTED, ORDER._replace(keys=4))
    assert refused.value.code is ErrorCode.invalid_request


def test_orders_have_bounds() -> None:
    assert (erase_codec.MAX_KEYS, erase_codec.MAX_PARTITIONS) == (MAX_ERASURE_KEYS, MAX_ERASURE_PARTITIONS)
    others = [ORDER._replace(id=UUID(int=1000 + number), topics=(OTHER,)) for number in range(MAX_ERASURES)]
    full = image_of(*map(erasure_record, others), before=CLUSTER)
    with pytest.raises(RequestError, match="64 are allowed") as refused:
        start(full)
    assert refused.value.code is ErrorCode.policy_violation
    one_less = image_of(RemoveErasureRecord(id=others[0].id), before=full)
    assert start(one_less) == [erasure_record(ORDER)]


def test_the_partitions_of_all_orders_together_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.metadata.controller.erase_control.MAX_ERASURE_PARTITIONS", 5)
    again = ORDER._replace(id=UUID(int=42), key=f"erase/{UUID(int=42)}.json.gz")
    with pytest.raises(RequestError, match="have 6 partitions; 5 are allowed") as refused:
        start(STARTED, again)
    assert refused.value.code is ErrorCode.policy_violation
    assert start(STARTED, again._replace(topics=(TOPIC,)))


def test_a_broker_tells_of_its_own_logs_and_a_leader_of_the_bucket() -> None:
    assert note(STARTED, 1, place()) == [noted(1)]
    assert note(STARTED, 2, place(), sender=SECOND) == [noted(2)]
    assert note(STARTED, IN_BUCKET, place()) == [noted(IN_BUCKET)]
    assert note(STARTED, 1, place(), sender=None) == [noted(1)], "a node that is its own controller"
    many = note(STARTED, 1, place(OTHER), place(), place(number=1), place())
    assert many == [noted(1, TOPIC, 0, 1), noted(1, OTHER, 0)]
    after = image_of(*many, before=STARTED)
    assert dict(after.erased[ORDER_ID]) == {one: frozenset({1}) for one in PLACES}
    assert note(after, 1, place()) == [], "told again"
    both = image_of(*note(after, 2, place(), sender=SECOND), before=after)
    assert both.erased[ORDER_ID][PLACE] == {1, 2}


@pytest.mark.parametrize(
    ("broker_id", "told", "sender"),
    [
        (3, place(), THIRD),
        (IN_BUCKET, place(), SECOND),
        (IN_BUCKET, place(number=1), FIRST),
        (1, place(leader_epoch=4), FIRST),
        (1, place(leader_epoch=6), FIRST),
        (IN_BUCKET, place(leader_epoch=4), FIRST),
        (1, place(COMPACTED), FIRST),
        (1, place(number=2), FIRST),
        (1, place(UUID(int=99)), FIRST),
    ],
)
def test_a_note_of_what_the_sender_cannot_know_is_ignored(
    broker_id: int, told: ErasedPlace, sender: CatalogSender
) -> None:
    assert note(STARTED, broker_id, told, sender=sender) == []


def test_places_of_a_note_that_are_ignored_do_not_affect_the_rest() -> None:
    assert note(STARTED, 1, place(COMPACTED), place(), place(number=2)) == [noted(1)]


def test_a_note_for_a_partition_without_a_leader_waits_for_one() -> None:
    leaderless = image_of(changed(leader=-1), before=STARTED)
    assert note(leaderless, IN_BUCKET, place(leader_epoch=6), sender=None) == []
    assert note(leaderless, 1, place(leader_epoch=6)) == [noted(1)]


def test_a_note_of_an_order_that_is_gone_is_ignored() -> None:
    assert note(STARTED, 1, place(), erasure_id=UUID(int=42)) == []


@pytest.mark.parametrize("broker_id", [2, -2])
def test_a_note_for_another_brokers_logs_is_refused(broker_id: int) -> None:
    with pytest.raises(RequestError) as refused:
        note(STARTED, broker_id, place())
    assert refused.value.code is ErrorCode.invalid_request


def test_notes_of_many_partitions_are_few_records() -> None:
    count = 2 * MAX_ERASED_IN_RECORD + 1
    wide = image_of(
        TopicRecord(name="wide", topic_id=UUID(int=77)),
        *(partition(UUID(int=77), number) for number in range(count)),
        erasure_record(ORDER._replace(topics=(UUID(int=77),))),
        before=CLUSTER,
    )
    records = note(wide, 1, *(place(UUID(int=77), number) for number in range(count)))
    assert [len(one.partitions) for one in records if isinstance(one, ErasedRecord)] == [1000, 1000, 1]
    after = image_of(*records, before=wide)
    assert len(after.erased[ORDER_ID]) == count
    assert len({id(one) for one in after.erased[ORDER_ID].values()}) == 1, "equal sets are one object"


def test_an_order_is_done_once_all_of_it_is_noted() -> None:
    done = erasure_record(ORDER._replace(done_ms=70))
    assert finish(CLEAN) == [done]
    assert finish(CLEAN, sender=None) == [done]
    after = image_of(done, before=CLEAN)
    assert finish(after, done_ms=99) == [], "the first time counts"
    assert finish(CLUSTER) == [], "it is gone"
    with pytest.raises(RequestError, match="done at -1"):
        finish(CLEAN, done_ms=-1)


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ((changed(replicas=(1, 3), isr=(1,), directories=(directory(1), directory(3))),), "at broker 3"),
        ((changed(directories=(directory(1), UUID(int=59))),), "at broker 2"),
        ((partition(TOPIC, 2),), "at the bucket, broker 1, broker 2"),
        ((partition(TOPIC, 2), *erased_records(ORDER_ID, [((TOPIC, 2), (1, 2))])), "at the bucket$"),
    ],
)
def test_an_order_that_is_not_done_is_not_finished(records: tuple[MetadataRecord, ...], words: str) -> None:
    with pytest.raises(RequestError, match=words) as refused:
        finish(image_of(*records, before=CLEAN))
    assert refused.value.code is ErrorCode.invalid_request


def test_a_deleted_topic_does_not_keep_an_order_open() -> None:
    less = image_of(*erased_records(ORDER_ID, [((OTHER, 0), (1, 2, IN_BUCKET))]), before=STARTED)
    with pytest.raises(RequestError):
        finish(less)
    gone = image_of(RemoveTopicRecord(topic_id=TOPIC), before=less)
    assert gone.erasures[ORDER_ID].topics == (TOPIC, OTHER)
    assert finish(gone) == [erasure_record(ORDER._replace(done_ms=70))]


def test_an_order_is_removed_with_its_notes() -> None:
    for image in (STARTED, NOTED):
        assert written(remove_erasure(image, ORDER_ID, sender=SECOND, needs_level=True)) == [REMOVED]
        after = image_of(REMOVED, before=image)
        assert (dict(after.erasures), dict(after.erased)) == ({}, {})
    assert written(remove_erasure(CLUSTER, ORDER_ID)) == []


@pytest.mark.parametrize("what", ["start", "note", "finish", "remove"])
def test_a_replaced_process_and_a_lower_level_change_nothing(what: str) -> None:
    def asked(image: MetadataImage, sender: CatalogSender) -> object:
        if what == "start":
            return start(image, sender=sender)
        if what == "note":
            return note(image, 1, place(), sender=sender)
        if what == "finish":
            return finish(image, sender)
        return remove_erasure(image, ORDER_ID, sender=sender, needs_level=True)

    with pytest.raises(RequestError) as stale:
        asked(CLEAN, CatalogSender(1, 9))
    assert stale.value.code is ErrorCode.stale_broker_epoch
    level = FeatureLevelRecord(name=CATALOG_VERSION, feature_level=2)
    with pytest.raises(RequestError, match="need 3") as refused:
        asked(image_of(level, before=CLEAN), FIRST)
    assert refused.value.code is ErrorCode.unsupported_version


@pytest.mark.parametrize(
    ("record", "left"),
    [
        (changed(replicas=(1, 3), isr=(1,), directories=(directory(1), directory(3))), {1, IN_BUCKET}),
        (changed(directories=(UUID(int=59), directory(2))), {2, IN_BUCKET}),
        (changed(replicas=(2, 1), directories=(directory(2), directory(1))), {1, 2, IN_BUCKET}),
        (changed(leader=2), {1, 2, IN_BUCKET}),
        (changed(isr=(2,)), {1, 2, IN_BUCKET}),
        (partition(TOPIC, 0, replicas=(3,), isr=(3,), directories=(directory(3),)), {IN_BUCKET}),
    ],
)
def test_a_note_goes_with_its_replica(record: MetadataRecord, left: set[int]) -> None:
    """A replica that is assigned again begins with another log."""
    assert image_of(record, before=NOTED).erased[ORDER_ID][PLACE] == left


def test_a_replica_that_goes_and_comes_again_in_one_batch_has_no_note() -> None:
    away = changed(replicas=(1,), isr=(1,), directories=(directory(1),))
    back = changed(replicas=(1, 2), directories=(directory(1), directory(2)))
    delta = MetadataDelta(NOTED).replay_all([away, back])
    assert delta.erasures == {ORDER_ID}
    assert delta.build(99, 1, 0).erased[ORDER_ID][PLACE] == {1, IN_BUCKET}


def restarted(broker_id: int, incarnation: int = 900) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=broker_id,
        incarnation_id=UUID(int=incarnation),
        broker_epoch=500,
        end_points=(),
        rack=None,
        fenced=True,
        log_dirs=(directory(broker_id),),
    )


def test_a_note_of_an_open_order_goes_with_the_process_that_told_it() -> None:
    """The next one may have found a disk from before the order, or a log that has lost its end."""
    after = image_of(restarted(2), before=CLEAN)
    assert dict(after.erased[ORDER_ID]) == {place: frozenset({1, IN_BUCKET}) for place in PLACES}
    with pytest.raises(RequestError, match="not noted as clean at broker 2"):
        finish(after)
    told = image_of(*(noted(2, *place) for place in PLACES), before=after)
    assert told.erased == CLEAN.erased
    assert image_of(restarted(2, incarnation=2), before=CLEAN).erased == CLEAN.erased, (
        "the same process again"
    )


def test_notes_that_a_new_process_tells_in_the_batch_of_its_start_stay() -> None:
    delta = MetadataDelta(CLEAN).replay_all([noted(2), restarted(2), noted(2)])
    assert delta.erasures == {ORDER_ID}
    assert dict(delta.build(99, 1, 0).erased[ORDER_ID]) == {
        PLACE: {1, 2, IN_BUCKET},
        (TOPIC, 1): {1, IN_BUCKET},
        (OTHER, 0): {1, IN_BUCKET},
    }


def test_an_order_that_is_done_keeps_its_notes() -> None:
    """By them a broker knows that its disk is from before the order."""
    done = image_of(erasure_record(ORDER._replace(done_ms=70)), before=CLEAN)
    assert image_of(restarted(2), before=done).erased == CLEAN.erased


def test_notes_go_with_their_topic() -> None:
    both = image_of(*erased_records(ORDER_ID, [((OTHER, 0), (1,))]), before=NOTED)
    after = image_of(RemoveTopicRecord(topic_id=TOPIC), before=both)
    assert dict(after.erased[ORDER_ID]) == {(OTHER, 0): frozenset({1})}
    assert not image_of(RemoveTopicRecord(topic_id=OTHER), before=after).erased


@pytest.mark.parametrize(
    "record",
    [
        erasure_record(ORDER._replace(id=UUID(int=0))),
        erasure_record(ORDER._replace(keys=100_001)),
        erasure_record(ORDER._replace(topics=())),
        erasure_record(ORDER._replace(done_ms=-2)),
        RemoveErasureRecord(id=UUID(int=42)),
        ErasedRecord(erasure_id=UUID(int=42), broker_id=1, topic_id=TOPIC, partitions=(0,)),
        ErasedRecord(erasure_id=ORDER_ID, broker_id=-2, topic_id=TOPIC, partitions=(0,)),
        ErasedRecord(erasure_id=ORDER_ID, broker_id=1, topic_id=TOPIC, partitions=(2,)),
        ErasedRecord(erasure_id=ORDER_ID, broker_id=1, topic_id=UUID(int=99), partitions=(0,)),
    ],
)
def test_a_record_that_contradicts_the_metadata_is_damage(record: MetadataRecord) -> None:
    with pytest.raises(CorruptionError):
        image_of(record, before=STARTED)


AWAY_AND_BACK = (
    changed(replicas=(1,), isr=(1,), directories=(directory(1),)),
    changed(replicas=(1, 2), directories=(directory(1), directory(2))),
)


@pytest.mark.parametrize(
    "records",
    [
        (noted(3, TOPIC, 1),),
        (REMOVED,),
        (REMOVED, erasure_record(ORDER._replace(keys=9)), noted(2)),
        (erasure_record(ORDER._replace(done_ms=70)),),
        (changed(replicas=(1, 3), isr=(1,), directories=(directory(1), directory(3))), noted(3)),
        (changed(directories=(directory(1), UUID(int=59))), noted(2)),
        AWAY_AND_BACK,
        (*AWAY_AND_BACK, noted(2)),
        (RemoveTopicRecord(topic_id=TOPIC),),
        (RemoveTopicRecord(topic_id=TOPIC), noted(1, OTHER)),
        (restarted(2),),
        (restarted(2), noted(2)),
        (noted(3, TOPIC, 1), restarted(2), noted(2)),
    ],
)
def test_a_node_behind_learns_from_a_snapshot_what_became_of_an_order(
    records: tuple[MetadataRecord, ...],
) -> None:
    after = image_of(*records, before=NOTED)
    assert decode_snapshot(encode_image(after, 0), end_offset=after.offset + 1, epoch=1) == after
    built, delta = at_once(apply_snapshot(NOTED, after))
    assert built == after
    assert delta.erasures == {ORDER_ID}
    back, _ = at_once(apply_snapshot(after, NOTED))
    assert back.erased == NOTED.erased


def test_an_image_of_many_notes_shares_all_but_the_change() -> None:
    """A note costs by its own size, not by the number of places."""
    topic_id, count = UUID(int=77), 5_000
    wide = image_of(
        TopicRecord(name="wide", topic_id=topic_id),
        *(partition(topic_id, number) for number in range(count)),
        erasure_record(ORDER._replace(topics=(topic_id,))),
        *erased_records(ORDER_ID, [((topic_id, number), (1,)) for number in range(count)]),
        before=CLUSTER,
    )
    after = image_of(noted(2, topic_id, 4_000), before=wide)
    leaves = {id(leaf) for leaf in wide.erased[ORDER_ID]._leaves()}
    others = [leaf for leaf in after.erased[ORDER_ID]._leaves() if id(leaf) not in leaves]
    assert len(others) == 1
    assert after.erased[ORDER_ID][topic_id, 4_000] == {1, 2}
    assert after.topics_by_id is wide.topics_by_id
