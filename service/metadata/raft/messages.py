"""Converts the quorum's requests and responses from and to Kafka's messages. [P]

    of_request(api key, version, message) -> request | refusal    request of another node or an admin client
    to_response(api key, version, answer) -> message              our response
    to_refusal(api key, version, message, refusal) -> message     our response to a request that was refused
    to_request(request) -> (api key, version, message)            our request, in the newest version
    of_response(api key, version, message) -> answer              response of another node

A message must name exactly one topic and partition, the metadata partition; others are INVALID_REQUEST.
Layouts of the versions are kio's: a field that a version lacks is left out when encoding, and has its default
when decoding.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from service.base.errors import CorruptionError
from service.metadata.endpoint import Endpoint
from service.metadata.raft.keys import NOBODY, EpochEnd, ReplicaKey, SnapshotId
from service.metadata.raft.message_parts import (
    BAD,
    KRAFT_VERSION,
    LISTENER,
    UNKNOWN,
    endpoint_of,
    endpoints_of,
    make,
    module_of,
    ms,
    only_partition,
    uuid_or_zero,
)
from service.metadata.raft.messages_out import to_refusal, to_request, to_response
from service.metadata.raft.requests import (
    NONE,
    NOT_BEHIND,
    AddVoter,
    ApiVersionsRequest,
    ApiVersionsResponse,
    BeginQuorumEpochRequest,
    DescribeQuorumRequest,
    EndQuorumEpochRequest,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    LeaderResponse,
    RaftFetchRequest,
    RaftFetchResponse,
    RaftRequest,
    RaftResponse,
    Refusal,
    RemoveVoter,
    UpdateVoter,
    VoterChangeResponse,
    VoteRequest,
    VoteResponse,
)
from service.metadata.raft.state import MAX_EPOCH
from service.metadata.raft.voters import VoterNode
from service.wire.apis import ApiKey

__all__ = [
    "make",
    "module_of",
    "of_request",
    "of_response",
    "to_refusal",
    "to_request",
    "to_response",
]

# -- requests in


def of_request(api_key: int, version: int, message: Any) -> RaftRequest | Refusal:
    """Decode a request; a `Refusal` where it names another partition or an invalid address.

    The machine compares cluster ids; for a refusal, which the machine does not see, the caller does.
    """
    try:
        return _decode_request(api_key, message)
    except CorruptionError:
        return BAD


def _decode_request(api_key: int, message: Any) -> RaftRequest | Refusal:
    match api_key:
        case ApiKey.FETCH:
            return _decode_fetch(message)
        case ApiKey.FETCH_SNAPSHOT:
            return _decode_snapshot(message)
        case ApiKey.ADD_RAFT_VOTER:
            return AddVoter(
                _voter_named(message),
                ms(message.timeout),
                getattr(message, "ack_when_committed", True),
                message.cluster_id,
            )
        case ApiKey.REMOVE_RAFT_VOTER:
            return RemoveVoter(_key_named(message), message.cluster_id)
        case ApiKey.UPDATE_RAFT_VOTER:
            feature = message.k_raft_version_feature
            voter = _voter_named(message)._replace(
                min_version=int(feature.min_supported_version), max_version=int(feature.max_supported_version)
            )
            return UpdateVoter(int(message.current_leader_epoch), voter, message.cluster_id)
        case ApiKey.API_VERSIONS:
            return ApiVersionsRequest()
        case ApiKey.VOTE | ApiKey.BEGIN_QUORUM_EPOCH | ApiKey.END_QUORUM_EPOCH | ApiKey.DESCRIBE_QUORUM:
            partition = only_partition(message.topics)
            if partition is None:
                return UNKNOWN if api_key == ApiKey.DESCRIBE_QUORUM else BAD
            return _decode_election(api_key, message, partition)
        case _:
            raise ValueError(f"API {api_key} is none of the quorum's")


def _decode_election(api_key: int, message: Any, partition: Any) -> RaftRequest:
    if api_key == ApiKey.DESCRIBE_QUORUM:
        return DescribeQuorumRequest()
    voter = ReplicaKey(
        int(getattr(message, "voter_id", NOBODY)),
        uuid_or_zero(getattr(partition, "voter_directory_id", None)),
    )
    cluster_id = message.cluster_id
    if api_key == ApiKey.VOTE:
        return VoteRequest(
            int(partition.replica_epoch),
            ReplicaKey(
                int(partition.replica_id), uuid_or_zero(getattr(partition, "replica_directory_id", None))
            ),
            int(partition.last_offset_epoch),
            int(partition.last_offset),
            getattr(partition, "pre_vote", False),
            voter,
            cluster_id,
        )
    endpoints = endpoints_of(getattr(message, "leader_endpoints", ()))
    epoch, leader_id = int(partition.leader_epoch), int(partition.leader_id)
    if api_key == ApiKey.BEGIN_QUORUM_EPOCH:
        return BeginQuorumEpochRequest(epoch, leader_id, endpoints, voter, cluster_id)
    candidates = getattr(partition, "preferred_candidates", None)
    successors = (
        tuple(ReplicaKey(int(one)) for one in partition.preferred_successors)
        if candidates is None
        else tuple(
            ReplicaKey(int(one.candidate_id), uuid_or_zero(one.candidate_directory_id)) for one in candidates
        )
    )
    return EndQuorumEpochRequest(epoch, leader_id, successors, endpoints, cluster_id)


def _decode_fetch(message: Any) -> RaftFetchRequest | Refusal:
    partition = only_partition(message.topics)
    if partition is None or not hasattr(message.topics[0], "topic_id"):
        return BAD  # below version 13 topics have names; the metadata topic is looked up by its id
    replica_id = message.replica_state.replica_id if hasattr(message, "replica_state") else message.replica_id
    mark = getattr(partition, "high_watermark", NOT_BEHIND)
    return RaftFetchRequest(
        ReplicaKey(int(replica_id), uuid_or_zero(getattr(partition, "replica_directory_id", None))),
        int(getattr(partition, "current_leader_epoch", -1)),
        int(partition.fetch_offset),
        int(getattr(partition, "last_fetched_epoch", -1)),
        int(mark),
        int(message.max_bytes),
        ms(message.max_wait),
        getattr(message, "cluster_id", None),
    )


def _decode_snapshot(message: Any) -> FetchSnapshotRequest | Refusal:
    partition = only_partition(message.topics)
    if partition is None:
        return UNKNOWN if len(message.topics) == 1 and len(message.topics[0].partitions) == 1 else BAD
    return FetchSnapshotRequest(
        ReplicaKey(int(message.replica_id), uuid_or_zero(getattr(partition, "replica_directory_id", None))),
        int(partition.current_leader_epoch),
        SnapshotId(int(partition.snapshot_id.end_offset), int(partition.snapshot_id.epoch)),
        int(partition.position),
        int(message.max_bytes),
        message.cluster_id,
    )


def _key_named(message: Any) -> ReplicaKey:
    return ReplicaKey(int(message.voter_id), uuid_or_zero(message.voter_directory_id))


def _voter_named(message: Any) -> VoterNode:
    return VoterNode(_key_named(message), endpoints_of(message.listeners))


# -- responses in


def of_response(api_key: int, version: int, message: Any) -> RaftResponse:
    """Decode a response. `CorruptionError` where it is of another partition, or invalid."""
    error: ErrorCode = message.error_code
    match api_key:
        case ApiKey.ADD_RAFT_VOTER | ApiKey.REMOVE_RAFT_VOTER:
            return VoterChangeResponse(error, message.error_message or "")
        case ApiKey.UPDATE_RAFT_VOTER:
            one = message.current_leader
            endpoint = endpoint_of(LISTENER, str(one.host), int(one.port)) if one.host else None
            return LeaderResponse(error, _epoch(one.leader_epoch), int(one.leader_id), endpoint)
        case ApiKey.API_VERSIONS:
            found = [one for one in message.supported_features if one.name == KRAFT_VERSION]
            if not found:
                return ApiVersionsResponse(error)
            return ApiVersionsResponse(error, int(found[0].min_version), int(found[0].max_version))
    if error is not NONE:
        return Refusal(error)
    partition = only_partition(message.responses if api_key == ApiKey.FETCH else message.topics)
    if partition is None:
        raise CorruptionError("a response for another partition than the metadata log's")
    leader = partition.current_leader if api_key in (ApiKey.FETCH, ApiKey.FETCH_SNAPSHOT) else partition
    leader_id, epoch = int(leader.leader_id), _epoch(leader.leader_epoch)
    place = _endpoint_of(message, leader_id)
    error = partition.error_code
    if api_key == ApiKey.VOTE:
        return VoteResponse(error, epoch, leader_id, place, partition.vote_granted)
    if api_key in (ApiKey.BEGIN_QUORUM_EPOCH, ApiKey.END_QUORUM_EPOCH):
        return LeaderResponse(error, epoch, leader_id, place)
    snapshot_id = SnapshotId(int(partition.snapshot_id.end_offset), int(partition.snapshot_id.epoch))
    snapshot = None if snapshot_id.end_offset < 0 or snapshot_id.epoch < 0 else snapshot_id
    if api_key == ApiKey.FETCH_SNAPSHOT:
        size, position = int(partition.size), int(partition.position)
        data = partition.unaligned_records or b""
        return FetchSnapshotResponse(error, epoch, leader_id, place, snapshot, size, position, data)
    parts = EpochEnd(int(partition.diverging_epoch.epoch), int(partition.diverging_epoch.end_offset))
    return RaftFetchResponse(
        error,
        epoch,
        leader_id,
        place,
        int(partition.high_watermark),
        int(partition.log_start_offset),
        parts if parts.epoch >= 0 else None,
        snapshot,
        partition.records or b"",
    )


def _endpoint_of(message: Any, leader_id: int) -> Endpoint | None:
    for one in getattr(message, "node_endpoints", ()):
        if one.node_id == leader_id:
            return endpoint_of(LISTENER, str(one.host), int(one.port))
    return None


def _epoch(value: Any) -> int:
    if value > MAX_EPOCH:
        raise CorruptionError(f"epoch {value} is not below 2^31 - 1")
    return int(value)
