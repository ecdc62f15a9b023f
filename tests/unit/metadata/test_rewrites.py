"""Rewrites of chains in the metadata: who begins one, what ends it, and which commits it allows (T25)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import CorruptionError, RequestError
from service.base.steps import at_once
from service.base.types import TopicIdPartition
from service.metadata.controller.activation import activate
from service.metadata.controller.catalog_control import commit_catalog
from service.metadata.controller.features_control import FeatureUpdate, UpgradeType, update_features
from service.metadata.controller.requests import CatalogSender
from service.metadata.controller.rewrite_control import RewriteChange, change_rewrites
from service.metadata.delta import MetadataDelta
from service.metadata.features import (
    CATALOG_VERSION,
    cluster_bootstrap_records,
    cluster_features,
    has_rewrites,
)
from service.metadata.image import MetadataImage, live_rewrite
from service.metadata.image_diff import apply_snapshot
from service.metadata.image_frames import erasure_record, rewrite_record
from service.metadata.records import (
    FeatureLevelRecord,
    MetadataRecord,
    RemoteLogRecord,
    RemoveRewriteRecord,
    RemoveTopicRecord,
)
from service.metadata.snapshot_codec import decode_snapshot, encode_image
from service.remote.catalog import (
    CatalogCommit,
    CatalogResult,
    RewriteAnswer,
    RewriteIntent,
    RewriteKind,
    decide_commit,
)
from tests.unit.metadata.erasing import (
    CLUSTER,
    ENTRY,
    FIRST,
    INTENT,
    ORDER,
    PLACE,
    SECOND,
    TIP,
    TOPIC,
    changed,
    image_of,
    partition,
    written,
)

BEGUN = rewrite_record(PLACE, INTENT)
ENDED = RemoveRewriteRecord(topic_id=TOPIC, partition_id=0, rewrite_id=INTENT.rewrite_id)
REWRITING = image_of(BEGUN, before=CLUSTER)
ERASING = image_of(erasure_record(ORDER), before=CLUSTER)
MERGED = ENTRY._replace(version=5, manifest_key="m5", segments=13)


def begin(
    image: MetadataImage,
    intent: RewriteIntent = INTENT,
    *,
    tip: TopicIdPartition = TIP,
    sender: CatalogSender | None = FIRST,
) -> tuple[RewriteAnswer, list[MetadataRecord]]:
    changes = [RewriteChange(tip, intent.rewrite_id, intent)]
    decision = at_once(change_rewrites(image, changes, sender=sender, needs_level=True))
    [answer] = decision.response
    return answer, written(decision)


def give_up(image: MetadataImage, rewrite_id: UUID = INTENT.rewrite_id, sender: Any = FIRST) -> list[Any]:
    return written(at_once(change_rewrites(image, [RewriteChange(TIP, rewrite_id)], sender=sender)))


def commit(image: MetadataImage, entry: Any = MERGED, **more: Any) -> tuple[CatalogResult, list[Any]]:
    more = {"rewrite_id": INTENT.rewrite_id, "sender": FIRST, **more}
    asked = CatalogCommit(TIP, entry.version - 1, entry, more.pop("rewrite_id"))
    decision = commit_catalog(image, [asked], **more)
    [result] = decision.response
    return result, written(decision)


def test_a_leader_begins_a_rewrite_and_begins_it_again_after_a_lost_answer() -> None:
    assert begin(CLUSTER) == (RewriteAnswer.BEGUN, [BEGUN])
    assert begin(CLUSTER, sender=None) == (RewriteAnswer.BEGUN, [BEGUN]), "a node that is its own controller"
    assert begin(REWRITING) == (RewriteAnswer.BEGUN, [])
    assert live_rewrite(REWRITING, PLACE) == INTENT
    assert live_rewrite(CLUSTER, PLACE) is None


@pytest.mark.parametrize(
    ("image", "changes", "more", "answer"),
    [
        (CLUSTER, {}, {"sender": SECOND}, RewriteAnswer.FENCED),
        (CLUSTER, {"leader_epoch": 4}, {}, RewriteAnswer.FENCED),
        (CLUSTER, {"leader_epoch": 6}, {}, RewriteAnswer.FENCED),
        (CLUSTER, {}, {"tip": TIP._replace(partition=2)}, RewriteAnswer.UNKNOWN_PARTITION),
        (CLUSTER, {}, {"tip": TIP._replace(topic_id=UUID(int=99))}, RewriteAnswer.UNKNOWN_PARTITION),
        (REWRITING, {"rewrite_id": UUID(int=32)}, {}, RewriteAnswer.BUSY),
        (CLUSTER, {"base_offset": 0, "last_offset": 99}, {}, RewriteAnswer.BUSY),
        (CLUSTER, {"last_offset": 900}, {}, RewriteAnswer.BUSY),
        (CLUSTER, {"kind": RewriteKind.ERASE}, {}, RewriteAnswer.BUSY),
        (ERASING, {}, {}, RewriteAnswer.BUSY),
    ],
)
def test_a_rewrite_that_may_not_begin_is_answered_why(
    image: MetadataImage, changes: dict[str, Any], more: dict[str, Any], answer: RewriteAnswer
) -> None:
    assert begin(image, INTENT._replace(**changes), **more) == (answer, [])


def test_an_erasure_of_a_run_begins_while_an_order_of_its_topic_is_open() -> None:
    erase = INTENT._replace(kind=RewriteKind.ERASE)
    assert begin(ERASING, erase)[0] is RewriteAnswer.BEGUN
    done = image_of(erasure_record(ORDER._replace(done_ms=99)), before=ERASING)
    assert begin(done, erase)[0] is RewriteAnswer.BUSY
    assert begin(done)[0] is RewriteAnswer.BEGUN, "merges go on"
    elsewhere = image_of(erasure_record(ORDER._replace(topics=(UUID(int=8),))), before=CLUSTER)
    assert begin(elsewhere, erase)[0] is RewriteAnswer.BUSY
    assert begin(elsewhere)[0] is RewriteAnswer.BEGUN


@pytest.mark.parametrize(
    "changes",
    [
        {"rewrite_id": UUID(int=0)},
        {"base_offset": -1},
        {"last_offset": 199},
        {"last_offset": 200 + (1 << 31)},
        {"leader_epoch": -1},
        {"started_ms": -1},
    ],
)
def test_an_intent_that_is_none_is_refused_as_a_request(changes: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as refused:
        begin(CLUSTER, INTENT._replace(**changes))
    assert refused.value.code is ErrorCode.invalid_request


def test_an_id_stands_for_one_rewrite() -> None:
    with pytest.raises(RequestError, match="that of another rewrite") as refused:
        begin(REWRITING, INTENT._replace(last_offset=599))
    assert refused.value.code is ErrorCode.invalid_request


def test_a_begin_that_is_repeated_while_the_first_is_decided_changes_nothing() -> None:
    """A worker asks again after a time-out: the leader has sent the first one on, at another time."""
    later = INTENT._replace(started_ms=INTENT.started_ms + 20_000)
    assert begin(REWRITING, later) == (RewriteAnswer.BEGUN, [])
    changes = [RewriteChange(TIP, one.rewrite_id, one) for one in (INTENT, later)]
    decision = at_once(change_rewrites(CLUSTER, changes, sender=FIRST))
    assert decision.response == [RewriteAnswer.BEGUN, RewriteAnswer.BEGUN]
    assert written(decision) == [BEGUN]


def test_a_replaced_process_and_a_lower_level_change_nothing() -> None:
    with pytest.raises(RequestError) as stale:
        begin(CLUSTER, sender=CatalogSender(1, 9))
    assert stale.value.code is ErrorCode.stale_broker_epoch
    level = FeatureLevelRecord(name=CATALOG_VERSION, feature_level=2)
    with pytest.raises(RequestError, match=r"is 2; .* need 3: firn cluster features upgrade") as refused:
        begin(image_of(level, before=CLUSTER))
    assert refused.value.code is ErrorCode.unsupported_version


def test_the_leader_gives_its_rewrite_up_and_no_other() -> None:
    assert give_up(REWRITING) == [ENDED]
    assert give_up(REWRITING, sender=None) == [ENDED]
    assert give_up(REWRITING, sender=SECOND) == []
    assert give_up(REWRITING, UUID(int=32)) == []
    assert give_up(CLUSTER) == []
    assert not image_of(ENDED, before=REWRITING).rewrites


def test_changes_of_one_request_see_each_other() -> None:
    second = INTENT._replace(rewrite_id=UUID(int=32))
    changes = [
        RewriteChange(TIP, INTENT.rewrite_id, INTENT),
        RewriteChange(TIP, second.rewrite_id, second),
        RewriteChange(TIP, INTENT.rewrite_id),
        RewriteChange(TIP, second.rewrite_id, second),
    ]
    decision = at_once(change_rewrites(CLUSTER, changes, sender=FIRST))
    begun, busy = RewriteAnswer.BEGUN, RewriteAnswer.BUSY
    assert decision.response == [begun, busy, begun, begun]
    assert dict(image_of(*written(decision), before=CLUSTER).rewrites) == {PLACE: second}


def test_a_commit_with_the_id_takes_the_intent_away_in_its_own_batch() -> None:
    entry = RemoteLogRecord(topic_id=TOPIC, partition_id=0, **MERGED._asdict())
    assert commit(REWRITING) == (CatalogResult.COMMITTED, [entry, ENDED])
    after = image_of(entry, ENDED, before=REWRITING)
    assert commit(after) == (CatalogResult.COMMITTED, []), "its first answer was lost"
    again = CatalogCommit(TIP, 5, MERGED._replace(version=6), INTENT.rewrite_id)
    assert commit_catalog(after, [again]).response == [CatalogResult.NO_INTENT]


def test_two_commits_of_one_request_do_not_share_an_intent() -> None:
    first = CatalogCommit(TIP, 4, MERGED, INTENT.rewrite_id)
    second = CatalogCommit(TIP, 5, MERGED._replace(version=6, segments=9), INTENT.rewrite_id)
    decision = commit_catalog(REWRITING, [first, second], sender=FIRST)
    assert decision.response == [CatalogResult.COMMITTED, CatalogResult.NO_INTENT]
    assert len(decision.frames) == 2


def test_a_commit_without_the_intent_of_its_id_changes_nothing() -> None:
    """Invariant T25: what was made for an intent that is gone is never named."""
    assert commit(CLUSTER) == (CatalogResult.NO_INTENT, [])
    assert commit(REWRITING, rewrite_id=UUID(int=32)) == (CatalogResult.NO_INTENT, [])
    elected = image_of(changed(leader=1), before=REWRITING)
    late = MERGED._replace(leader_epoch=6)
    assert commit(elected, late) == (CatalogResult.NO_INTENT, []), "the epoch has ended it"
    assert commit(elected) == (CatalogResult.FENCED, [])
    assert commit(REWRITING, sender=SECOND) == (CatalogResult.FENCED, [])


def test_commits_without_an_id_go_on_beside_a_rewrite() -> None:
    grown = ENTRY._replace(version=5, end_offset=950, segments=21)
    result, records = commit(REWRITING, grown, rewrite_id=None)
    assert (result, len(records)) == (CatalogResult.COMMITTED, 1)
    after = image_of(*records, before=REWRITING)
    assert dict(after.rewrites) == {PLACE: INTENT}
    assert commit(after) == (CatalogResult.VERSION_CONFLICT, [])
    assert commit(after, grown._replace(version=6, segments=14))[0] is CatalogResult.COMMITTED


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"start_offset": 150}, "moves the chain from 100..900 to 150..900"),
        ({"end_offset": 950}, "moves the chain from 100..900 to 100..950"),
        ({"segments": 21}, "makes 21 segments of 20"),
        ({"start_offset": 0, "end_offset": 0, "segments": 0}, "moves the chain from 100..900 to 0..0"),
    ],
)
def test_a_rewrite_leaves_the_ends_of_the_chain(change: dict[str, Any], words: str) -> None:
    """Invariant T23."""
    with pytest.raises(RequestError, match=words) as refused:
        commit(REWRITING, MERGED._replace(**change))
    assert refused.value.code is ErrorCode.invalid_request


def test_a_chain_that_never_was_cannot_be_rewritten() -> None:
    first = ENTRY._replace(version=1)
    with pytest.raises(ValueError, match="never was"):
        decide_commit(
            None,
            previous_version=0,
            entry=first,
            leader_epoch=5,
            rewrite_id=INTENT.rewrite_id,
            intent=INTENT,
        )


@pytest.mark.parametrize(
    "record", [changed(leader=1), changed(leader=-1), partition(TOPIC, 0, leader_epoch=6), None]
)
def test_a_rewrite_ends_with_its_leader_epoch_and_with_its_topic(record: MetadataRecord | None) -> None:
    delta = MetadataDelta(REWRITING)
    delta.replay(record or RemoveTopicRecord(topic_id=TOPIC))
    assert delta.rewrites == {PLACE}
    assert not delta.build(99, 1, 0).rewrites


@pytest.mark.parametrize("record", [changed(isr=(1,)), changed(replicas=(1, 3), isr=(1,))])
def test_a_rewrite_outlives_other_changes_of_its_partition(record: MetadataRecord) -> None:
    assert dict(image_of(record, before=REWRITING).rewrites) == {PLACE: INTENT}


@pytest.mark.parametrize(
    "record",
    [
        rewrite_record((UUID(int=99), 0), INTENT),
        rewrite_record((TOPIC, 2), INTENT),
        rewrite_record(PLACE, INTENT._replace(leader_epoch=4)),
        rewrite_record(PLACE, INTENT._replace(last_offset=0)),
        rewrite_record(PLACE, INTENT._replace(kind=3)),  # type: ignore[arg-type]
        RemoveRewriteRecord(topic_id=TOPIC, partition_id=0, rewrite_id=UUID(int=32)),
        RemoveRewriteRecord(topic_id=TOPIC, partition_id=1, rewrite_id=INTENT.rewrite_id),
    ],
)
def test_a_record_that_contradicts_the_metadata_is_damage(record: MetadataRecord) -> None:
    with pytest.raises(CorruptionError):
        image_of(record, before=REWRITING)


@pytest.mark.parametrize(
    "records",
    [
        (ENDED,),
        (changed(leader=2),),
        (changed(leader=2), rewrite_record(PLACE, INTENT._replace(leader_epoch=6))),
        (ENDED, rewrite_record(PLACE, INTENT._replace(rewrite_id=UUID(int=32)))),
        (RemoveTopicRecord(topic_id=TOPIC),),
    ],
)
def test_a_node_behind_learns_from_a_snapshot_what_became_of_a_rewrite(
    records: tuple[MetadataRecord, ...],
) -> None:
    after = image_of(*records, before=REWRITING)
    assert decode_snapshot(encode_image(after, 0), end_offset=after.offset + 1, epoch=1) == after
    built, delta = at_once(apply_snapshot(REWRITING, after))
    assert (built, delta.rewrites) == (after, {PLACE})


def test_new_clusters_have_rewrites_and_the_level_stays_while_there_are_any() -> None:
    levels = {one.name: one.feature_level for one in cluster_bootstrap_records()}  # type: ignore[attr-defined]
    assert levels[CATALOG_VERSION] == 3
    assert [has_rewrites({CATALOG_VERSION: level}) for level in range(4)] == [False, False, False, True]
    for image, words in ((REWRITING, "being rewritten"), (ERASING, "being erased"), (CLUSTER, None)):
        bare = image_of(before=image)
        down = FeatureUpdate(CATALOG_VERSION, 2, UpgradeType.SAFE_DOWNGRADE)
        without = MetadataImage(
            features=bare.features, rewrites=bare.rewrites, erasures=bare.erasures, remote=bare.remote
        )
        if words is None:
            record = FeatureLevelRecord(name=CATALOG_VERSION, feature_level=2)
            decision = update_features(without, [down], node_id=9, supported=cluster_features())
            assert written(decision) == [record]
        else:
            with pytest.raises(RequestError, match=words):
                update_features(without, [down], node_id=9, supported=cluster_features())


def test_a_log_of_a_node_that_was_alone_gets_the_level_of_its_records() -> None:
    """Alone it needs none; other nodes have to know what they are going to read."""
    lone = FeatureLevelRecord(name=CATALOG_VERSION, feature_level=0)
    for image, level in ((REWRITING, 3), (ERASING, 3), (CLUSTER, 1)):
        decision = activate(image_of(lone, before=image), (), min_isr=1, supported=cluster_features())
        assert written(decision) == [FeatureLevelRecord(name=CATALOG_VERSION, feature_level=level)]
    assert written(activate(ERASING, (), min_isr=1, supported=cluster_features())) == []
