"""Changes of groups by an administrator: offsets committed, offsets deleted, groups deleted. Blocking.

Each goes to the group's coordinator. Raises `RequestError`, `StorageError` and `OSError`. Source: Kafka
``AlterConsumerGroupOffsetsHandler``, ``DeleteConsumerGroupOffsetsHandler``, ``DeleteConsumerGroupsHandler``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from kio.schema.errors import ErrorCode
from kio.schema.offset_commit.v10.request import OffsetCommitRequestPartition

from service.base.errors import RequestError
from service.client.admin import ChangingCluster, raise_for
from service.client.admin_models import Place
from service.client.coordinators import COORDINATOR_MOVED, GROUP_KEY, Again, find_coordinator
from service.client.partition_changes import by_topic, error_of
from service.wire.api import ApiKey, request_module
from service.wire.offsets import OffsetCommitRequest, OffsetCommitRequestTopic

_COMMIT_BY_NAMES: Final = 9
"""Last version of OffsetCommit that names topics."""
PlaceErrors = dict[Place, RequestError | None]


def commit_offsets(
    cluster: ChangingCluster, again: Again, group: str, offsets: Mapping[Place, int]
) -> PlaceErrors:
    """Commit offsets in the name of a group without members; return what became of each."""
    topics = tuple(
        OffsetCommitRequestTopic(
            name=topic,
            partitions=tuple(
                OffsetCommitRequestPartition(
                    partition_index=number, committed_offset=offsets[topic, number], committed_metadata=""
                )
                for number in numbers
            ),
        )
        for topic, numbers in by_topic(offsets).items()
    )
    request = OffsetCommitRequest(group_id=group, member_id="", topics=topics)
    while True:
        answer = _at_coordinator(cluster, again, group, ApiKey.OFFSET_COMMIT, request, _COMMIT_BY_NAMES)
        found = _by_place(answer)
        if not _has_moved(found) or not again():
            return found


def delete_offsets(
    cluster: ChangingCluster, again: Again, group: str, places: Collection[Place]
) -> PlaceErrors:
    """Delete committed offsets of a group; return what became of each partition.

    Raises `RequestError` where the group is not there, or has members of a kind that may not be touched.
    """
    module = request_module(ApiKey.OFFSET_DELETE)
    topics = tuple(
        module.OffsetDeleteRequestTopic(
            name=topic,
            partitions=tuple(module.OffsetDeleteRequestPartition(partition_index=one) for one in numbers),
        )
        for topic, numbers in by_topic(places).items()
    )
    request = module.OffsetDeleteRequest(group_id=group, topics=topics)
    while True:
        answer = _at_coordinator(cluster, again, group, ApiKey.OFFSET_DELETE, request)
        if answer.error_code not in COORDINATOR_MOVED or not again():
            raise_for(answer.error_code, None, f"group {group}")
            return _by_place(answer)


def delete_group(cluster: ChangingCluster, again: Again, group: str) -> None:
    """Delete a group without members, and its offsets."""
    module = request_module(ApiKey.DELETE_GROUPS)
    request = module.DeleteGroupsRequest(groups_names=(group,))
    may_be_gone = False
    while True:
        (one,) = _at_coordinator(cluster, again, group, ApiKey.DELETE_GROUPS, request).results
        if may_be_gone and one.error_code == ErrorCode.group_id_not_found:
            return  # the try before has deleted it, and its coordinator did not know
        may_be_gone |= one.error_code == ErrorCode.coordinator_not_available
        if one.error_code not in COORDINATOR_MOVED or not again():
            raise_for(one.error_code, None, f"group {group}")
            return


def _at_coordinator(
    cluster: ChangingCluster,
    again: Again,
    group: str,
    key: ApiKey,
    request: Any,
    newest: int | None = None,
) -> Any:
    node = find_coordinator(cluster, again, GROUP_KEY, group)
    return cluster.client(node).request(key, request, newest=newest)


def _by_place(answer: Any) -> PlaceErrors:
    return {
        (topic.name, one.partition_index): error_of(one.error_code, None)
        for topic in answer.topics
        for one in topic.partitions
    }


def _has_moved(found: PlaceErrors) -> bool:
    return any(one is not None and one.code in COORDINATOR_MOVED for one in found.values())


def is_without_members(state: str) -> bool:
    """Return whether a group of this state may be reset or deleted."""
    return state in ("Empty", "Dead")
