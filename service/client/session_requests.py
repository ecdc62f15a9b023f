"""Requests about the open sessions of all nodes, to each node in turn (ListSessions, EndSessions)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from service.base.errors import FirnError, RequestError
from service.client.admin import ChangingCluster, Cluster, raise_for
from service.client.blocking_client import BlockingClient
from service.wire.api import ApiKey, request_module
from service.wire.errors import MalformedMessage
from service.wire.sessions import EndSessionsRequest, ListSessionsRequest, OpenSession

_METADATA_TOPIC: Final = "__cluster_metadata"


class NodeSession(NamedTuple):
    """A session, and the node that it is at."""

    node: int
    session: OpenSession


class FoundSessions(NamedTuple):
    """Sessions of all nodes that answered, and why others did not."""

    sessions: list[NodeSession]
    problems: list[str]


class EndedSessions(NamedTuple):
    """Number of sessions that ended, by node, and the nodes' problems."""

    ended: dict[int, int]
    problems: list[str]


def find_sessions(cluster: Cluster, principal: str | None, *, controllers: bool = False) -> FoundSessions:
    """Return the sessions of a principal, or of all, at every broker (or controller)."""
    found: list[NodeSession] = []
    problems: list[str] = []
    for info in cluster.describe(controllers=controllers).nodes:
        try:
            client = cluster.client(info.node_id)
            found += [NodeSession(info.node_id, one) for one in _sessions_at(client, principal)]
        except (FirnError, OSError) as e:
            problems.append(f"node {info.node_id}: {e}")
    return FoundSessions(found, problems)


def _sessions_at(client: BlockingClient, principal: str | None) -> Iterator[OpenSession]:
    after = -1
    while True:
        request = ListSessionsRequest(principal=principal, after=after)
        answer = client.request(ApiKey.LIST_SESSIONS, request)
        raise_for(answer.error_code, answer.error_message, "the sessions")
        yield from answer.sessions
        if answer.is_last:
            return
        last = answer.sessions[-1].connection if answer.sessions else after
        if last <= after:
            raise MalformedMessage(f"the sessions after connection {after} go on at {last}")
        after = last


def end_sessions(cluster: ChangingCluster, principal: str, *, controllers: bool = False) -> EndedSessions:
    """End the sessions of a principal at every broker (or controller), but the one that asks.

    Each node first learns all that was decided before, credentials among it.
    """
    ended: dict[int, int] = {}
    problems: list[str] = []
    request = EndSessionsRequest(principal=principal, metadata_offset=_decided_offset(cluster))
    for info in cluster.describe(controllers=controllers).nodes:
        try:
            answer = cluster.client(info.node_id).request(ApiKey.END_SESSIONS, request)
            ended[info.node_id] = answer.ended
            raise_for(answer.error_code, answer.error_message, "the sessions")
        except (FirnError, OSError) as e:
            problems.append(f"node {info.node_id}: {e}")
    return EndedSessions(ended, problems)


def _decided_offset(cluster: Cluster) -> int:
    """Return the newest committed offset of the metadata, -1 where the node asked does not know it."""
    module = request_module(ApiKey.DESCRIBE_QUORUM)
    topic = module.TopicData(
        topic_name=_METADATA_TOPIC, partitions=(module.PartitionData(partition_index=0),)
    )
    answer: Any = cluster.first.request(ApiKey.DESCRIBE_QUORUM, module.DescribeQuorumRequest(topics=(topic,)))
    raise_for(answer.error_code, answer.error_message, "the quorum")
    found = [one for each in answer.topics for one in each.partitions]
    if len(found) != 1:
        raise RequestError(ErrorCode.unknown_server_error, "the quorum: no answer about the metadata")
    return found[0].high_watermark - 1 if found[0].error_code == ErrorCode.none else -1
