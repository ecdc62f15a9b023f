"""Orders to erase keys: started, noted place by place, done, removed. [P]

The metadata has no keys, only which order is there and what is clean of its records. It does not know the
keeper of the prefix either, whose election goes on in the bucket: any broker may start, finish and remove an
order, but only as the process that the metadata knows. What must not be wrong is decided here: a note counts
for its sender's own replica, or for the bucket if it leads the partition in that epoch, and an order is done
only when nothing of its topics lacks a note.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.steps import Steps
from service.base.types import INTERNAL_TOPICS
from service.metadata.controller.decision import ControllerResult
from service.metadata.controller.requests import CatalogSender, ResourceType
from service.metadata.controller.rewrite_control import check_allowed
from service.metadata.frames import newest
from service.metadata.image import Erased, MetadataImage, PartitionImage, Place
from service.metadata.image_frames import erased_records, erasure_record
from service.metadata.persistent import PersistentMap
from service.metadata.records import MetadataRecord, RemoveErasureRecord
from service.remote.catalog import (
    IN_BUCKET,
    MAX_ERASURE_PARTITIONS,
    MAX_ERASURES,
    ErasedPlace,
    Erasure,
)
from service.remote.format.documents import MAX_STORED_BYTES
from service.remote.format.keys import erasure_key

_NO_NOTES: Final[Erased] = PersistentMap()
_NOBODY: Final[frozenset[int]] = frozenset()


class ErasedNotes(NamedTuple):
    """Places that are clean of an order's records: in a broker's logs, or `IN_BUCKET`."""

    erasure_id: UUID
    broker_id: int
    places: Collection[ErasedPlace]


def start_erasure(
    image: MetadataImage,
    erasure: Erasure,
    *,
    sender: CatalogSender | None = None,
    needs_level: bool = False,
) -> Steps[ControllerResult[None]]:
    """Put an order into the metadata, in steps; the same one again changes nothing.

    Raises `RequestError` as `rewrite_control.check_allowed`, INVALID_REQUEST for an order that is invalid in
    itself or has the id of another, UNKNOWN_TOPIC_ID, INVALID_TOPIC_EXCEPTION for an internal topic, and
    POLICY_VIOLATION for a compacted one and beyond the bounds.
    """
    check_allowed(image, sender, needs_level=needs_level)
    known = image.erasures.get(erasure.id)
    if known is not None and known._replace(done_ms=-1) == erasure:
        return ControllerResult((), None)
    reason = erasure.malformed()
    if reason is None and (erasure.is_restored or not erasure.is_open):
        reason = "a new order is open, and not of a restore"
    if reason is None and known is not None:
        reason = "its id is that of another order"
    if reason is None and (erasure.key != erasure_key(erasure.id) or erasure.stored_size > MAX_STORED_BYTES):
        reason = f"{erasure.key}, of {erasure.stored_size} bytes, is no document of it"
    if reason is not None:
        raise RequestError(ErrorCode.invalid_request, f"erasure {erasure.id}: {reason}")
    yield from _check_topics(image, erasure)
    yield from _check_bounds(image, erasure)
    return ControllerResult((newest(erasure_record(erasure)),), None)


def _check_topics(image: MetadataImage, erasure: Erasure) -> Steps[None]:
    default = image.config(ResourceType.BROKER, "").get("log.cleanup.policy", "")
    for topic_id in erasure.topics:
        yield
        topic = image.topics_by_id.get(topic_id)
        if topic is None:
            raise RequestError(ErrorCode.unknown_topic_id, f"No topic has the id {topic_id}.")
        if topic.name in INTERNAL_TOPICS:
            raise RequestError(
                ErrorCode.invalid_topic_exception, f"{topic.name} is internal: no key is erased from it."
            )
        policy = image.config(ResourceType.TOPIC, topic.name).get("cleanup.policy", default)
        if "compact" in policy:
            raise compacted(topic.name)


def compacted(topic: str) -> RequestError:
    """Return the refusal of an order for a compacted topic."""
    return RequestError(
        ErrorCode.policy_violation,
        f"{topic} is compacted: a record of the key without a value (a tombstone) removes it.",
    )


def _check_bounds(image: MetadataImage, erasure: Erasure) -> Steps[None]:
    if len(image.erasures) >= MAX_ERASURES:
        raise RequestError(
            ErrorCode.policy_violation,
            f"{len(image.erasures)} orders are there; {MAX_ERASURES} are allowed. Wait until one is gone.",
        )
    partitions = 0
    for one in (*image.erasures.values(), erasure):
        for topic_id in one.topics:
            yield
            topic = image.topics_by_id.get(topic_id)
            partitions += 0 if topic is None else len(topic.partitions)
    if partitions > MAX_ERASURE_PARTITIONS:
        raise RequestError(
            ErrorCode.policy_violation,
            f"All orders together have {partitions} partitions; {MAX_ERASURE_PARTITIONS} are allowed.",
        )


def note_erased(
    image: MetadataImage,
    notes: Sequence[ErasedNotes],
    *,
    sender: CatalogSender | None = None,
    needs_level: bool = False,
) -> Steps[ControllerResult[None]]:
    """Note which places are clean, in steps. Those that the sender cannot know of are ignored: logs of a
    partition with whose leader it is not in sync, objects of one that another broker leads, another leader
    epoch than the partition's, topics that the order does not have, and orders that are gone.

    Raises `RequestError` as `rewrite_control.check_allowed`, and INVALID_REQUEST for the logs of another
    broker.
    """
    check_allowed(image, sender, needs_level=needs_level)
    records: list[MetadataRecord] = []
    for erasure_id, broker_id, places in notes:
        yield
        if broker_id != IN_BUCKET and (
            broker_id < 0 or (sender is not None and broker_id != sender.broker_id)
        ):
            raise RequestError(ErrorCode.invalid_request, f"broker {broker_id} tells of its own logs itself")
        erasure = image.erasures.get(erasure_id)
        if erasure is None:
            continue
        topics, known = frozenset(erasure.topics), image.erased.get(erasure_id, _NO_NOTES)
        new: set[Place] = set()
        for topic_id, number, leader_epoch in places:
            yield
            partition = image.partition(topic_id, number) if topic_id in topics else None
            if partition is None or partition.leader_epoch != leader_epoch:
                continue
            knows = _knows(partition, broker_id, sender)
            if knows and broker_id not in known.get((topic_id, number), _NOBODY):
                new.add((topic_id, number))
        records += erased_records(erasure_id, ((place, (broker_id,)) for place in sorted(new)))
    return ControllerResult(tuple(map(newest, records)), None, is_atomic=False)


def _knows(partition: PartitionImage, broker_id: int, sender: CatalogSender | None) -> bool:
    if broker_id != IN_BUCKET:
        return broker_id in partition.isr
    return partition.has_leader and (sender is None or partition.leader == sender.broker_id)


def finish_erasure(
    image: MetadataImage,
    erasure_id: UUID,
    done_ms: int,
    *,
    sender: CatalogSender | None = None,
    needs_level: bool = False,
) -> Steps[ControllerResult[None]]:
    """Note, in steps, that an order is done; ignored where it is done or gone.

    Raises `RequestError` as `rewrite_control.check_allowed`, and INVALID_REQUEST for a time before its start,
    and while a partition of its topics lacks the note of a replica or of the bucket.
    """
    check_allowed(image, sender, needs_level=needs_level)
    erasure = image.erasures.get(erasure_id)
    if erasure is None or not erasure.is_open:
        return ControllerResult((), None)
    if done_ms < 0:
        raise RequestError(ErrorCode.invalid_request, f"erasure {erasure_id}: done at {done_ms}")
    for place, lacking in unerased(image, erasure):
        yield
        if lacking:
            who = ", ".join("the bucket" if one == IN_BUCKET else f"broker {one}" for one in sorted(lacking))
            raise RequestError(
                ErrorCode.invalid_request,
                f"erasure {erasure_id} is not done: {place[0]}-{place[1]} is not noted as clean at {who}",
            )
    return ControllerResult((newest(erasure_record(erasure._replace(done_ms=done_ms))),), None)


def unerased(image: MetadataImage, erasure: Erasure) -> Iterator[tuple[Place, frozenset[int]]]:
    """Yield each partition of an order's topics with who is not noted as clean: replicas, and `IN_BUCKET`."""
    notes = image.erased.get(erasure.id, _NO_NOTES)
    for topic_id in erasure.topics:
        topic = image.topics_by_id.get(topic_id)
        if topic is None:
            continue
        for number, partition in topic.partitions.items():
            clean = notes.get((topic_id, number), _NOBODY)
            yield (topic_id, number), frozenset({*partition.replicas, IN_BUCKET} - clean)


def remove_erasure(
    image: MetadataImage,
    erasure_id: UUID,
    *,
    sender: CatalogSender | None = None,
    needs_level: bool = False,
) -> ControllerResult[None]:
    """Remove an order, done or not, with its notes; ignored where it is gone.

    Raises `RequestError` as `rewrite_control.check_allowed`.
    """
    check_allowed(image, sender, needs_level=needs_level)
    frames = (newest(RemoveErasureRecord(id=erasure_id)),) if erasure_id in image.erasures else ()
    return ControllerResult(frames, None)
