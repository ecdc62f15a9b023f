"""Computes the delta between two images, to publish a fetched snapshot as a change. [P]

A node that is too far behind gets a snapshot instead of the log. Listeners need a delta: the one that
`difference_in_steps` computes, as if records had been written. Both images are traversed once, in steps;
shared partition maps are skipped. ACLs that differ are taken as the whole set that the snapshot has.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import Final
from uuid import UUID

from service.base.steps import Steps
from service.metadata.access_records import other_differences, same_entries
from service.metadata.delta import MetadataDelta
from service.metadata.image import BrokerImage, Erased, MetadataImage, Place, RecoveredTopic, TopicImage
from service.metadata.image_frames import (
    broker_record,
    controller_record,
    erased_records,
    erasure_record,
    partition_record,
    restored_tail_record,
    rewrite_record,
)
from service.metadata.persistent import PersistentMap
from service.metadata.records import (
    ConfigRecord,
    FeatureLevelRecord,
    LifeRecord,
    MetadataRecord,
    ProducerIdsRecord,
    RecoveredTopicRecord,
    RemoteLogRecord,
    RemoveErasureRecord,
    RemoveRestoredTailRecord,
    RemoveRewriteRecord,
    RemoveTombstoneRecord,
    RemoveTopicRecord,
    TombstoneRecord,
    TopicRecord,
    UnregisterBrokerRecord,
)

_NO_BROKER: Final = -1
_TOPIC: Final = 2
_NO_NOTES: Final[Erased] = PersistentMap()
_NOBODY: Final[frozenset[int]] = frozenset()


def difference_in_steps(before: MetadataImage, after: MetadataImage) -> Steps[MetadataDelta]:
    """Return a delta from `before` to `after`, without the fields that a snapshot takes from its name."""
    delta = MetadataDelta(replace(before, transaction=None))
    delta.set_kraft_version(after.kraft_version)
    for change in _differences(before, after):
        yield
        if change is None:
            continue
        yield from delta.replay_in_steps((change,))
    if not (yield from same_entries(before.acls, after.acls)):
        delta.set_acls(after.acls)
    forgotten = [node_id for node_id in before.controllers if node_id not in after.controllers]
    delta.forget_controllers(forgotten)
    return delta


def apply_snapshot(before: MetadataImage, after: MetadataImage) -> Steps[tuple[MetadataImage, MetadataDelta]]:
    """Return `after` built on `before`, and the delta between them, for listeners."""
    delta = yield from difference_in_steps(before, after)
    image = yield from delta.build_in_steps(after.offset, after.epoch, after.timestamp_ms)
    return image, delta


def _differences(before: MetadataImage, after: MetadataImage) -> Iterator[MetadataRecord | None]:
    """Yield the records of the difference, and None for each unchanged entry, as a step."""
    yield from _features(before, after)
    yield from _cluster(before, after)
    yield from _topics(before, after)
    yield from _configs(before, after)
    yield from other_differences(before, after)
    if after.next_producer_id != before.next_producer_id:
        yield ProducerIdsRecord(
            broker_id=_NO_BROKER, broker_epoch=-1, next_producer_id=after.next_producer_id
        )
    yield from _catalog(before, after)
    yield from _recovery(before, after)
    yield from _rewrites(before, after)
    yield from _erasures(before, after)


def _features(before: MetadataImage, after: MetadataImage) -> Iterator[MetadataRecord]:
    for name in sorted({*before.features, *after.features}):
        level = after.features.get(name, 0)
        if level != before.features.get(name, 0):
            yield FeatureLevelRecord(name=name, feature_level=level)


def _cluster(before: MetadataImage, after: MetadataImage) -> Iterator[MetadataRecord]:
    for broker_id, gone in before.brokers.items():
        if broker_id not in after.brokers:
            yield UnregisterBrokerRecord(broker_id=broker_id, broker_epoch=gone.epoch)
    for broker_id, broker in after.brokers.items():
        if before.brokers.get(broker_id) != broker:
            yield broker_record(broker)
    for node_id, controller in after.controllers.items():
        if before.controllers.get(node_id) != controller:
            yield controller_record(controller)


def _topics(before: MetadataImage, after: MetadataImage) -> Iterator[MetadataRecord | None]:
    for topic_id in before.topics_by_id:
        yield None if topic_id in after.topics_by_id else RemoveTopicRecord(topic_id=topic_id)
    for topic in after.topics_by_id.values():
        old = before.topics_by_id.get(topic.id)
        if old is None:
            yield TopicRecord(name=topic.name, topic_id=topic.id)
        yield from _partitions(old, topic)


def _partitions(old: TopicImage | None, topic: TopicImage) -> Iterator[MetadataRecord | None]:
    if old is not None and old.partitions is topic.partitions:
        return
    for number, partition in topic.partitions.items():
        same = old is not None and old.partitions.get(number) == partition
        yield None if same else partition_record(topic, number, partition)


def _configs(before: MetadataImage, after: MetadataImage) -> Iterator[MetadataRecord | None]:
    for resource in sorted({*before.configs, *after.configs}):
        kind, name = resource
        old, new = before.config(kind, name), after.config(kind, name)
        yield None
        if kind == _TOPIC and name not in after.topics_by_name:
            continue  # removed with its topic
        if kind == _TOPIC and _id_of(before, name) != _id_of(after, name):
            old = {}  # of another topic with the same name
        for key in sorted({*old, *new}):
            if old.get(key) != new.get(key):
                value = new.get(key)
                yield ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value)


def _id_of(image: MetadataImage, name: str) -> object:
    topic = image.topics_by_name.get(name)
    return None if topic is None else topic.id


def _catalog(before: MetadataImage, after: MetadataImage) -> Iterator[MetadataRecord | None]:
    for key in after.remote:
        entry = after.remote[key]
        same = before.remote.get(key) == entry
        yield None if same else RemoteLogRecord(topic_id=key[0], partition_id=key[1], **entry._asdict())
    for topic_id in before.tombstones:
        yield None if topic_id in after.tombstones else RemoveTombstoneRecord(topic_id=topic_id)
    for topic_id in after.tombstones:
        tombstone = after.tombstones[topic_id]
        same = before.tombstones.get(topic_id) == tombstone
        yield None if same else TombstoneRecord(**tombstone._asdict())


def _recovery(before: MetadataImage, after: MetadataImage) -> Iterator[MetadataRecord | None]:
    if (after.life, after.life_id) != (before.life, before.life_id):
        yield LifeRecord(life=after.life, life_id=after.life_id)
    for topic_id in sorted({*before.recovered, *after.recovered}):
        if topic_id in before.topics_by_id and topic_id not in after.topics_by_id:
            continue  # removed with its topic
        new = after.recovered.get(topic_id, RecoveredTopic())
        same = before.recovered.get(topic_id, RecoveredTopic()) == new
        yield None if same else RecoveredTopicRecord(topic_id=topic_id, **new._asdict())
    for key in before.restored_tails:
        if key in after.restored_tails or key[0] not in after.topics_by_id:
            yield None  # still to load, or removed with its topic
        else:
            yield RemoveRestoredTailRecord(topic_id=key[0], partition_id=key[1])
    for key in after.restored_tails:
        tail = after.restored_tails[key]
        same = before.restored_tails.get(key) == tail
        yield None if same else restored_tail_record(key, tail)


def _rewrites(before: MetadataImage, after: MetadataImage) -> Iterator[MetadataRecord | None]:
    for key in before.rewrites:
        old, now = before.rewrites[key], after.partition(*key)
        if key in after.rewrites or now is None or now.leader_epoch != old.leader_epoch:
            yield None  # replaced below, or ended with its topic or its leader epoch
        else:
            yield RemoveRewriteRecord(topic_id=key[0], partition_id=key[1], rewrite_id=old.rewrite_id)
    for key in after.rewrites:
        intent = after.rewrites[key]
        yield None if before.rewrites.get(key) == intent else rewrite_record(key, intent)


def _erasures(before: MetadataImage, after: MetadataImage) -> Iterator[MetadataRecord | None]:
    for erasure_id in before.erasures:
        yield None if erasure_id in after.erasures else RemoveErasureRecord(id=erasure_id)
    for erasure_id in after.erasures:
        erasure = after.erasures[erasure_id]
        old, new = before.erased.get(erasure_id, _NO_NOTES), after.erased.get(erasure_id, _NO_NOTES)
        takes_back = yield from _takes_back(old, new, after)
        if takes_back:  # notes are only added by records: the order begins anew
            yield RemoveErasureRecord(id=erasure_id)
            old = _NO_NOTES
        same = before.erasures.get(erasure_id) == erasure and not takes_back
        yield None if same else erasure_record(erasure)
        yield from _notes(erasure_id, old, new, before, after)


def _takes_back(old: Erased, new: Erased, after: MetadataImage) -> Generator[None, None, bool]:
    """Return whether a place has lost a note, other than with its topic; a step for each place."""
    if old is new:
        return False
    for place, brokers in old.items():
        yield None
        if not brokers <= new.get(place, _NOBODY) and place[0] in after.topics_by_id:
            return True
    return False


def _notes(
    erasure_id: UUID, old: Erased, new: Erased, before: MetadataImage, after: MetadataImage
) -> Iterator[MetadataRecord | None]:
    """Yield records of the places whose notes are others. A partition that has changed, and a broker that has
    started again, may have lost notes that came again since."""
    restarted = {one.id for one in after.brokers.values() if not _is_process(before.brokers.get(one.id), one)}
    changed: list[tuple[Place, frozenset[int]]] = []
    for place, brokers in new.items():
        yield None
        is_same = old.get(place) == brokers and before.partition(*place) == after.partition(*place)
        if not is_same or brokers & restarted:
            changed.append((place, brokers))
    changed.sort()
    yield from erased_records(erasure_id, changed)


def _is_process(before: BrokerImage | None, after: BrokerImage) -> bool:
    return before is not None and before.incarnation_id == after.incarnation_id
