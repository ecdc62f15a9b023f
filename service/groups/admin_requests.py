"""Requests for groups of one coordinator: descriptions of both protocols, committed offsets. Blocking.

Raises `RequestError` and `OSError`; an answer has an error of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from kio.schema.errors import ErrorCode

from service.client.admin import Cluster
from service.client.admin_models import Place
from service.wire.api import ApiKey, request_module
from service.wire.offsets import OffsetFetchRequest, OffsetFetchRequestGroup

_NO_OFFSET: Final = -1
_FETCH_BY_NAMES: Final = 9
"""last version of OffsetFetch that names topics: people cannot read ids of deleted topics"""


def describe_consumer_groups(cluster: Cluster, node: int, group_ids: Sequence[str]) -> Sequence[Any]:
    """Return the answers of ConsumerGroupDescribe."""
    module = request_module(ApiKey.CONSUMER_GROUP_DESCRIBE)
    request = module.ConsumerGroupDescribeRequest(
        group_ids=tuple(group_ids), include_authorized_operations=False
    )
    found: Sequence[Any] = cluster.client(node).request(ApiKey.CONSUMER_GROUP_DESCRIBE, request).groups
    return found


def describe_classic_groups(cluster: Cluster, node: int, group_ids: Sequence[str]) -> Sequence[Any]:
    """Return the answers of DescribeGroups."""
    module = request_module(ApiKey.DESCRIBE_GROUPS)
    request = module.DescribeGroupsRequest(groups=tuple(group_ids), include_authorized_operations=False)
    found: Sequence[Any] = cluster.client(node).request(ApiKey.DESCRIBE_GROUPS, request).groups
    return found


def fetch_committed(cluster: Cluster, node: int, group_ids: Sequence[str]) -> Sequence[Any]:
    """Return the answers of OffsetFetch, of all partitions; `offsets_in` has the offsets of one."""
    asked = tuple(OffsetFetchRequestGroup(group_id=one, topics=None) for one in group_ids)
    request = OffsetFetchRequest(groups=asked)
    client = cluster.client(node)
    found: Sequence[Any] = client.request(ApiKey.OFFSET_FETCH, request, newest=_FETCH_BY_NAMES).groups
    return found


def offsets_in(answer: Any) -> dict[Place, int]:
    """Return the committed offsets that one group's answer has."""
    return {
        (topic.name, one.partition_index): one.committed_offset
        for topic in answer.topics
        for one in topic.partitions
        if one.error_code == ErrorCode.none and one.committed_offset != _NO_OFFSET
    }
