"""OffsetCommit, OffsetFetch and OffsetDelete: checks, records and responses. [P]

Checks that need only the topics come first (`known_commit`, `known_fetch`, `known_delete`); the rest is for
the group's coordinator. Order of checks and error codes are those of Kafka's `KafkaApis` and
`OffsetMetadataManager`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import chain, islice
from typing import Any, Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.steps import Steps
from service.base.types import NO_TIMESTAMP
from service.coordinator.ports import TopicsView
from service.coordinator.shard import CoordinatorRecord
from service.groups import records
from service.groups.config import GroupsConfig
from service.groups.group import CheckPartition, Group
from service.groups.offset_pieces import add_topics
from service.groups.offsets import CommittedOffsets, OffsetAndMetadata, Place
from service.groups.records import MAX_STRING_BYTES, OffsetKey, OffsetValue
from service.groups.requests import (
    NONE,
    CommittedPartition,
    CommittedTopic,
    DeletedPartition,
    DeletedTopic,
    FetchedGroup,
    FetchedPartition,
    FetchedTopic,
    GroupCommitRequest,
    GroupCommitResponse,
    OffsetCommitTopic,
    OffsetDeleteResponse,
    OffsetFetchGroup,
    OffsetFetchTopic,
)
from service.wire.schema import millis

_STEP_PARTITIONS: Final = 100
TOPIC_IDS_FROM: Final = 10
"""First version of OffsetCommit and OffsetFetch that names topics by id."""


MayUse = Callable[[str], bool]
"""Returns whether the client may use the topic; None in its place: any topic."""

# OffsetCommit.


class KnownCommit(NamedTuple):
    """`request` has the topics and partitions that exist, `refused` the responses for the others."""

    request: GroupCommitRequest
    refused: tuple[CommittedTopic, ...]

    def answer(self, response: GroupCommitResponse) -> GroupCommitResponse:
        """Merge the coordinator's response with `refused`."""
        return response._replace(topics=_merged(response.topics, self.refused))


def known_commit(
    request: Any, topics: TopicsView, version: int, may_use: MayUse | None = None
) -> KnownCommit:
    """Split an OffsetCommit: partitions that do not exist get UNKNOWN_TOPIC_ID or UNKNOWN_TOPIC_OR_PARTITION,
    those of topics that the client may not use TOPIC_AUTHORIZATION_FAILED. If none is left, no coordinator is
    asked."""
    known: list[OffsetCommitTopic] = []
    refused: list[CommittedTopic] = []
    for asked in request.topics:
        by_id = version >= TOPIC_IDS_FROM
        topic = topics.by_id(asked.topic_id) if by_id and asked.topic_id is not None else None
        name = asked.name if topic is None else topic.name
        if may_use is not None and (topic is not None or not by_id) and not may_use(name):
            refused.append(_refused(asked, name, asked.partitions, ErrorCode.topic_authorization_failed))
            continue
        if not by_id:
            topic = topics.by_name(asked.name)
        if topic is None:
            error = ErrorCode.unknown_topic_id if by_id else ErrorCode.unknown_topic_or_partition
            refused.append(_refused(asked, asked.name, asked.partitions, error))
            continue
        there = tuple([p for p in asked.partitions if 0 <= p.partition_index < topic.partitions])
        if len(there) < len(asked.partitions):
            others = [p for p in asked.partitions if not 0 <= p.partition_index < topic.partitions]
            refused.append(_refused(topic, topic.name, others, ErrorCode.unknown_topic_or_partition))
        if there:
            known.append(OffsetCommitTopic(topic.name, topic.topic_id, there))
    return KnownCommit(
        GroupCommitRequest(
            request.group_id,
            tuple(known),
            request.generation_id_or_member_epoch,
            request.member_id,
            request.group_instance_id,
            millis(request.retention_time),
        ),
        tuple(refused),
    )


def _refused(topic: Any, name: str, partitions: Iterable[Any], error: ErrorCode) -> CommittedTopic:
    return CommittedTopic(
        name, topic.topic_id, tuple([CommittedPartition(p.partition_index, error) for p in partitions])
    )


def _merged(
    answered: tuple[CommittedTopic, ...], refused: tuple[CommittedTopic, ...]
) -> tuple[CommittedTopic, ...]:
    if not refused:
        return answered
    merged: dict[Any, CommittedTopic] = {topic[:-1]: topic for topic in refused}
    add_topics(merged, answered)
    return tuple(merged.values())


class CommitDecision(NamedTuple):
    """Records of a commit, and its response."""

    records: tuple[CoordinatorRecord, ...]
    response: GroupCommitResponse


def commit(
    request: GroupCommitRequest, version: int, group: Group | None, config: GroupsConfig, now_ms: int
) -> CommitDecision:
    """Decide an OffsetCommit. Raises `RequestError` if the whole request is rejected.

    Without a group and a generation it creates a simple group, which has offsets only.
    """
    check_group_id(request.group_id)
    check = None
    epoch = request.generation_id_or_member_epoch
    if group is not None:
        check = group.check_commit(request.member_id, request.group_instance_id, epoch, version)
    elif epoch >= 0:
        raise RequestError(ErrorCode.group_id_not_found if version >= 9 else ErrorCode.illegal_generation)
    return accept(request, check, config, now_ms)


def check_group_id(group_id: str) -> None:
    """Raise `RequestError` INVALID_GROUP_ID for one that no record can hold."""
    if len(group_id.encode()) > MAX_STRING_BYTES:
        raise RequestError(ErrorCode.invalid_group_id)


def accept(
    request: GroupCommitRequest,
    check: CheckPartition | None,
    config: GroupsConfig,
    now_ms: int,
    *,
    has_topic_ids: bool = True,
) -> CommitDecision:
    """Return records and response of a commit whose member is accepted; only too long metadata is rejected.
    Raises what `check` raises. `has_topic_ids`: the records have the ids of their topics."""
    expire_ms = NO_TIMESTAMP if request.retention_time == -1 else now_ms + request.retention_time
    is_short = expire_ms == NO_TIMESTAMP
    writes: list[CoordinatorRecord] = []
    answers: list[CommittedTopic] = []
    for topic in request.topics:
        prefix = records.offset_key_prefix(request.group_id, topic.name)
        topic_id = topic.topic_id if has_topic_ids else None
        end = records.offset_value_end(now_ms, topic_id)
        partitions: list[CommittedPartition] = []
        for partition in topic.partitions:
            index = partition.partition_index
            metadata = partition.committed_metadata or ""
            if metadata and _is_too_large(metadata, config):
                partitions.append(CommittedPartition(index, ErrorCode.offset_metadata_too_large))
                continue
            if check is not None:
                check(topic.name, topic.topic_id, index)
            partitions.append(_accepted(index))
            offset, leader_epoch = partition.committed_offset, partition.committed_leader_epoch
            if is_short and not metadata:
                raw = records.short_offset_value(offset, leader_epoch, end)
            else:
                raw = records.offset_value(
                    OffsetValue(offset, leader_epoch, metadata, now_ms, expire_ms, topic_id)
                )
            writes.append(CoordinatorRecord(prefix + index.to_bytes(4, "big"), raw))
        answers.append(CommittedTopic(topic.name, topic.topic_id, tuple(partitions)))
    return CommitDecision(tuple(writes), GroupCommitResponse(tuple(answers)))


@lru_cache(maxsize=1 << 10)
def _accepted(partition: int) -> CommittedPartition:
    """Return the response for an offset that is written."""
    return CommittedPartition(partition)


def _is_too_large(metadata: str, config: GroupsConfig) -> bool:
    """Count UTF-16 units, as Kafka does. Metadata that no record can hold is too large, too."""
    if len(metadata) > config.offset_metadata_max_bytes:
        return True
    if metadata.isascii():
        return len(metadata) > MAX_STRING_BYTES
    units = len(metadata.encode("utf-16-le")) // 2
    return units > config.offset_metadata_max_bytes or len(metadata.encode()) > MAX_STRING_BYTES


# OffsetFetch.


class KnownFetch(NamedTuple):
    """`request` has the topics with known names, `refused` the responses for the others."""

    request: OffsetFetchGroup
    refused: tuple[FetchedTopic, ...]


def known_fetch(group: Any, topics: TopicsView, version: int, may_use: MayUse | None = None) -> KnownFetch:
    """Split one group of an OffsetFetch: unknown topic ids get UNKNOWN_TOPIC_ID, topics that the client may
    not use TOPIC_AUTHORIZATION_FAILED."""
    if group.topics is None:
        return KnownFetch(OffsetFetchGroup(group.group_id, None, group.member_id, group.member_epoch), ())
    known: list[OffsetFetchTopic] = []
    refused: list[FetchedTopic] = []
    for asked in group.topics:
        topic_id, error = None, NONE
        if version < TOPIC_IDS_FROM:
            name = asked.name
        else:
            topic = None if asked.topic_id is None else topics.by_id(asked.topic_id)
            name, topic_id = ("", asked.topic_id) if topic is None else (topic.name, topic.topic_id)
            error = ErrorCode.unknown_topic_id if topic is None else NONE
        if error is NONE and may_use is not None and not may_use(name):
            error = ErrorCode.topic_authorization_failed
        if error is NONE:
            known.append(OffsetFetchTopic(name, topic_id, asked.partition_indexes))
            continue
        partitions = tuple([FetchedPartition(i, error_code=error) for i in asked.partition_indexes])
        refused.append(FetchedTopic(name, topic_id, partitions))
    asks = OffsetFetchGroup(group.group_id, tuple(known), group.member_id, group.member_epoch)
    return KnownFetch(asks, tuple(refused))


def with_topic_ids(fetched: FetchedGroup, topics: TopicsView) -> FetchedGroup:
    """Add topic ids to all offsets of a group; topics that have none are left out."""
    named = []
    for topic in fetched.topics:
        known = None if topic.topic_id is not None else topics.by_name(topic.name)
        if topic.topic_id is not None:
            named.append(topic)
        elif known is not None:
            named.append(topic._replace(topic_id=known.topic_id))
    return fetched._replace(topics=tuple(named))


def is_of_another_topic(position: OffsetAndMetadata, topic_id: UUID | None) -> bool:
    """Return whether `position` was committed for another topic than `topic_id`; None if the topic does not
    exist.

    Topic names are reused, topic ids are not: an offset of a deleted topic does not apply to the topic
    created under its name since (invariant G6). An offset without a topic id applies to any topic of that
    name.
    """
    return position.topic_id is not None and position.topic_id != topic_id


def fetch(
    request: OffsetFetchGroup,
    group: Group | None,
    offsets: CommittedOffsets,
    topics: TopicsView,
    stable: bool,
) -> FetchedGroup:
    """Return the requested offsets: the committed ones; with `stable` the newest, with an error where an open
    transaction commits. An unknown group has no offsets. Raises `RequestError` if the member may not read
    them."""
    has_no_group = _has_no_group(request, group)
    fetched = []
    for topic in request.topics or ():
        if has_no_group:
            partitions = [FetchedPartition(index) for index in topic.partition_indexes]
        else:
            topic_id = topic.topic_id or _id_of(topic.name, topics)
            partitions = [
                _fetched_partition(request.group_id, topic.name, topic_id, index, offsets, stable)
                for index in topic.partition_indexes
            ]
        fetched.append(FetchedTopic(topic.name, topic.topic_id, tuple(partitions)))
    return FetchedGroup(request.group_id, tuple(fetched))


def fetch_all(
    request: OffsetFetchGroup,
    group: Group | None,
    offsets: CommittedOffsets,
    topics: TopicsView,
    stable: bool,
) -> Steps[FetchedGroup]:
    """Return all present offsets of the group as `fetch` does; the steps build the response."""
    if _has_no_group(request, group):
        return _all(request.group_id, (), topics, frozenset())
    unstable = frozenset(offsets.unstable_places(request.group_id)) if stable else frozenset[Place]()
    return _all(request.group_id, offsets.of_group(request.group_id, committed=not stable), topics, unstable)


def _has_no_group(request: OffsetFetchGroup, group: Group | None) -> bool:
    """Return whether the group does not exist. Raises `RequestError` if the member may not read its
    offsets."""
    if group is None:
        return True
    try:
        group.check_fetch(request.member_id, request.member_epoch)
    except RequestError as e:
        if e.code != ErrorCode.group_id_not_found:
            raise
        return True
    return False


def _id_of(name: str, topics: TopicsView) -> UUID | None:
    topic = topics.by_name(name)
    return None if topic is None else topic.topic_id


def _fetched_partition(
    group_id: str, name: str, topic_id: UUID | None, index: int, offsets: CommittedOffsets, stable: bool
) -> FetchedPartition:
    if stable and offsets.is_unstable(group_id, name, index):
        return FetchedPartition(index, error_code=ErrorCode.unstable_offset_commit)
    found = offsets.get(group_id, name, index, committed=not stable)
    if found is None or is_of_another_topic(found, topic_id):
        return FetchedPartition(index)
    return FetchedPartition(index, found.offset, found.leader_epoch, found.metadata)


def _all(
    group_id: str,
    positions: Iterable[tuple[Place, OffsetAndMetadata]],
    topics: TopicsView,
    unstable: frozenset[Place],
) -> Steps[FetchedGroup]:
    by_topic: dict[str, list[FetchedPartition]] = {}
    for count, (place, found) in enumerate(positions):
        if count % _STEP_PARTITIONS == 0:
            yield
        topic, index = place
        if is_of_another_topic(found, _id_of(topic, topics)):
            continue
        if place in unstable:
            partition = FetchedPartition(index, error_code=ErrorCode.unstable_offset_commit)
        else:
            partition = FetchedPartition(index, found.offset, found.leader_epoch, found.metadata)
        by_topic.setdefault(topic, []).append(partition)
    return FetchedGroup(group_id, tuple(FetchedTopic(t, None, tuple(ps)) for t, ps in by_topic.items()))


# OffsetDelete.


class OffsetDeleteTopic(NamedTuple):
    name: str
    partitions: tuple[Any, ...]


class KnownDelete(NamedTuple):
    """`topics` of the request that exist, and `refused`: the responses for the others."""

    group_id: str
    topics: tuple[OffsetDeleteTopic, ...]
    refused: tuple[DeletedTopic, ...]

    def answer(self, response: OffsetDeleteResponse) -> OffsetDeleteResponse:
        """Merge the coordinator's response with `refused`; an error of the whole group is returned alone."""
        if response.error_code != NONE or not self.refused:
            return response
        merged = {topic.name: topic for topic in self.refused}
        for topic in response.topics:
            known = merged.get(topic.name)
            merged[topic.name] = (
                topic if known is None else topic._replace(partitions=known.partitions + topic.partitions)
            )
        return response._replace(topics=tuple(merged.values()))


def known_delete(request: Any, topics: TopicsView, may_use: MayUse | None = None) -> KnownDelete:
    """Split an OffsetDelete: partitions that do not exist get UNKNOWN_TOPIC_OR_PARTITION, those of topics
    that the client may not use TOPIC_AUTHORIZATION_FAILED. The group is checked even if none is left."""
    known: list[OffsetDeleteTopic] = []
    refused: list[DeletedTopic] = []
    for asked in request.topics:
        if may_use is not None and not may_use(asked.name):
            error = ErrorCode.topic_authorization_failed
            denied = tuple([DeletedPartition(p.partition_index, error) for p in asked.partitions])
            refused.append(DeletedTopic(asked.name, denied))
            continue
        topic = topics.by_name(asked.name)
        count = 0 if topic is None else topic.partitions
        there = tuple([p for p in asked.partitions if 0 <= p.partition_index < count])
        others = [p.partition_index for p in asked.partitions if not 0 <= p.partition_index < count]
        if there:
            known.append(OffsetDeleteTopic(asked.name, there))
        if others or not there:
            error = ErrorCode.unknown_topic_or_partition
            refused.append(DeletedTopic(asked.name, tuple([DeletedPartition(i, error) for i in others])))
    return KnownDelete(request.group_id, tuple(known), tuple(refused))


def delete(
    request: KnownDelete, group: Group | None, offsets: CommittedOffsets
) -> tuple[tuple[CoordinatorRecord, ...], OffsetDeleteResponse]:
    """Decide an OffsetDelete. Raises GROUP_ID_NOT_FOUND and NON_EMPTY_GROUP."""
    if group is None:
        raise RequestError(ErrorCode.group_id_not_found)
    group.check_offset_delete()
    tombstones: list[CoordinatorRecord] = []
    answers: list[DeletedTopic] = []
    for topic in request.topics:
        subscribed = group.is_subscribed_to(topic.name)
        error = ErrorCode.group_subscribed_to_topic if subscribed else NONE
        for partition in topic.partitions:
            index = partition.partition_index
            if not subscribed and (
                offsets.has(request.group_id, topic.name, index)
                or offsets.is_unstable(request.group_id, topic.name, index)
            ):
                tombstones.append(records.offset_tombstone(OffsetKey(request.group_id, topic.name, index)))
        partitions = tuple([DeletedPartition(p.partition_index, error) for p in topic.partitions])
        answers.append(DeletedTopic(topic.name, partitions))
    return tuple(tombstones), OffsetDeleteResponse(topics=tuple(answers))


def delete_most(group_id: str, offsets: CommittedOffsets, most: int) -> list[CoordinatorRecord]:
    """Return tombstones of at most `most` offsets of a group, those of open transactions included."""
    stable = offsets.places(group_id)
    unstable = (place for place in offsets.unstable_places(group_id) if not offsets.has(group_id, *place))
    return [
        records.offset_tombstone(OffsetKey(group_id, *place))
        for place in islice(chain(stable, unstable), most)
    ]
