"""Queries for offsets of many partitions: by time, by a special timestamp, by name. Blocking, read-only.

Raises `RequestError`, `StorageError` and `OSError`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError, StorageError
from service.base.types import NO_LEADER_EPOCH
from service.client.admin import TIMEOUT, Cluster
from service.client.admin_models import Place
from service.wire.api import ApiKey, request_module
from service.wire.errors import WireError

NO_LEADER: Final = -1
_AT_ONCE: Final = 2_000


class OffsetAnswer(NamedTuple):
    """Answer of ListOffsets for one partition: an offset (-1: there is none), the time of its record and a
    leader epoch, -1 where that is not told; or an error.

    With the latest offset comes the epoch of the leader that tells it.
    """

    offset: int
    timestamp: int
    error: RequestError | None = None
    leader_epoch: int = NO_LEADER_EPOCH


def partitions_of(cluster: Cluster, topics: Collection[str] | None = None) -> Iterator[tuple[Place, int]]:
    """Yield the partitions of these topics, or of all, and their leaders; in order of names.

    Raises `RequestError` for a topic that is not there.
    """
    if topics is not None and not topics:
        return  # a request without names would be for all
    for page in cluster.described(sorted(topics or ()), _AT_ONCE):
        for topic in page:
            if topics is None and topic.error_code == ErrorCode.unknown_topic_or_partition:
                continue  # deleted since it was listed
            if topic.error_code != ErrorCode.none:
                raise no_such_topic(topic.error_code, topic.name)
            for one in topic.partitions:
                yield (topic.name, one.partition_index), one.leader_id


def no_such_topic(code: int, name: str) -> RequestError:
    """Return the error of a topic that cannot be described."""
    if code == ErrorCode.unknown_topic_or_partition:
        return RequestError(ErrorCode(code), f"there is no topic {name}")
    return RequestError(ErrorCode(code), f"topic {name}: {ErrorCode(code).name.upper()}")


def leaders_of(cluster: Cluster, places: Collection[Place]) -> dict[int, list[Place]]:
    """Return the partitions by leader, `NO_LEADER` among them. Raises `RequestError` for one that is not
    there."""
    if not places:
        return {}
    leaders = dict(partitions_of(cluster, {topic for topic, _ in places}))
    found: dict[int, list[Place]] = {}
    for place in places:
        if place not in leaders:
            raise RequestError(
                ErrorCode.unknown_topic_or_partition, f"topic {place[0]} has no partition {place[1]}"
            )
        found.setdefault(leaders[place], []).append(place)
    return found


def list_offsets(cluster: Cluster, places: Collection[Place], timestamp: int) -> dict[Place, OffsetAnswer]:
    """Return the answer of each partition's leader for a time or a special timestamp.

    Raises `RequestError` for a partition that is not there.
    """
    return _asked(cluster, leaders_of(cluster, places), timestamp)


def _asked(cluster: Cluster, by_leader: dict[int, list[Place]], timestamp: int) -> dict[Place, OffsetAnswer]:
    found: dict[Place, OffsetAnswer] = {}
    for leader, places in by_leader.items():
        if leader == NO_LEADER:
            error = RequestError(ErrorCode.leader_not_available, "it has no leader")
            found.update(dict.fromkeys(places, OffsetAnswer(-1, -1, error)))
            continue
        try:
            found.update(_offsets_at(cluster, leader, places, timestamp))
        except (OSError, StorageError, WireError) as e:
            found.update(dict.fromkeys(places, OffsetAnswer(-1, -1, unanswered(leader, e))))
    return found


def unanswered(leader: int, error: Exception) -> RequestError:
    """Return the error of partitions whose leader does not answer."""
    return RequestError(ErrorCode.network_exception, f"its leader is node {leader}: {error}")


def _offsets_at(
    cluster: Cluster, leader: int, places: Iterable[Place], timestamp: int
) -> Iterator[tuple[Place, OffsetAnswer]]:
    module = request_module(ApiKey.LIST_OFFSETS)
    numbers: dict[str, list[int]] = {}
    for topic, number in places:
        numbers.setdefault(topic, []).append(number)
    topics = tuple(
        module.ListOffsetsTopic(
            name=topic,
            partitions=tuple(
                module.ListOffsetsPartition(partition_index=one, current_leader_epoch=-1, timestamp=timestamp)
                for one in of_topic
            ),
        )
        for topic, of_topic in numbers.items()
    )
    request = module.ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=topics, timeout=TIMEOUT)
    for answered in cluster.client(leader).request(ApiKey.LIST_OFFSETS, request).topics:
        for one in answered.partitions:
            error = None
            if one.error_code != ErrorCode.none:
                error = RequestError(ErrorCode(one.error_code), ErrorCode(one.error_code).name.upper())
            yield (
                (answered.name, one.partition_index),
                OffsetAnswer(one.offset, one.timestamp, error, one.leader_epoch),
            )
