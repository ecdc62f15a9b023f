"""Encodes the quorum's responses and requests as Kafka's messages; `messages` decodes. [P]"""

from __future__ import annotations

from datetime import timedelta
from types import ModuleType
from typing import Any

from kio.schema.errors import ErrorCode

from service.metadata.endpoint import Endpoint
from service.metadata.raft.keys import EpochEnd, SnapshotId
from service.metadata.raft.message_parts import (
    LISTENER,
    TOPIC,
    TOPIC_ID,
    UNKNOWN,
    listeners_of,
    make,
    module_of,
    or_none,
)
from service.metadata.raft.requests import (
    NONE,
    AddVoter,
    ApiVersionsRequest,
    ApiVersionsResponse,
    BeginQuorumEpochRequest,
    DescribeQuorumResponse,
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
    ReplicaDescription,
    UpdateVoter,
    VoterChangeResponse,
    VoteRequest,
    VoteResponse,
)
from service.wire.apis import APIS, ApiKey

# -- responses out


def to_response(api_key: int, version: int, answer: RaftResponse, wall_ms: int = 0) -> Any:
    """Encode a response. `wall_ms` is added to times of the machine's clock, for DescribeQuorum."""
    module = module_of(api_key, version, "response")
    match answer:
        case Refusal(error):
            return _refused(module, api_key, error)
        case VoteResponse() | RaftFetchResponse() | FetchSnapshotResponse():
            return _with_partition(module, answer)
        case LeaderResponse():
            return _leader_response(module, api_key, answer)
        case VoterChangeResponse(error, text):
            name = f"{APIS[api_key].name}Response"
            return make(module, name, throttle_time=timedelta(), error_code=error, error_message=text or None)
        case DescribeQuorumResponse():
            return _described(module, answer, wall_ms)
        case ApiVersionsResponse():
            raise ValueError("ApiVersions is answered by the listener")


def to_refusal(api_key: int, version: int, message: Any, refusal: Refusal) -> Any:
    """Encode the refusal of a request for another partition.

    The error is that of each named partition where Kafka puts it there (DescribeQuorum, FetchSnapshot), else
    that of the response.
    """
    module = module_of(api_key, version, "response")
    if api_key not in (ApiKey.DESCRIBE_QUORUM, ApiKey.FETCH_SNAPSHOT) or refusal.error is not UNKNOWN.error:
        return to_response(api_key, version, refusal)
    if api_key == ApiKey.FETCH_SNAPSHOT:
        topic = message.topics[0]
        partition = _snapshot_partition(
            module, FetchSnapshotResponse(refusal.error, -1), int(topic.partitions[0].partition)
        )
        topics: tuple[Any, ...] = (make(module, "TopicSnapshot", name=topic.name, partitions=(partition,)),)
        values: dict[str, Any] = {"throttle_time": timedelta(), "node_endpoints": ()}
        return make(module, "FetchSnapshotResponse", error_code=NONE, topics=topics, **values)
    topics = tuple(
        make(
            module,
            "TopicData",
            topic_name=topic.topic_name,
            partitions=tuple(
                _described_partition(
                    module, DescribeQuorumResponse(refusal.error, -1), 0, int(one.partition_index)
                )
                for one in topic.partitions
            ),
        )
        for topic in message.topics or ()
    )
    return make(
        module, "DescribeQuorumResponse", error_code=NONE, error_message=None, topics=topics, nodes=()
    )


def _refused(module: ModuleType, api_key: int, error: ErrorCode) -> Any:
    """Encode an error of the whole request."""
    if api_key == ApiKey.UPDATE_RAFT_VOTER:
        return _leader_response(module, api_key, LeaderResponse(error, -1))
    values: dict[str, Any] = {"throttle_time": timedelta(), "error_code": error, "error_message": None}
    return make(module, f"{APIS[api_key].name}Response", topics=(), responses=(), nodes=(), **values)


def _nodes(module: ModuleType, answer: Any) -> tuple[Any, ...]:
    if answer.endpoint is None or answer.leader_id < 0 or not hasattr(module, "NodeEndpoint"):
        return ()
    one = answer.endpoint
    return (make(module, "NodeEndpoint", node_id=answer.leader_id, host=one.host, port=one.port, rack=None),)


def _part(module: ModuleType, of: str, **values: Any) -> Any:
    """Build a structure as `make` does; None in versions that lack it, such as Fetch below 12."""
    return make(module, of, **values) if hasattr(module, of) else None


def _with_partition(
    module: ModuleType, answer: VoteResponse | RaftFetchResponse | FetchSnapshotResponse
) -> Any:
    values: dict[str, Any] = {
        "error_code": NONE,
        "throttle_time": timedelta(),
        "session_id": 0,
        "node_endpoints": _nodes(module, answer),
    }
    if isinstance(answer, VoteResponse):
        partition = make(
            module,
            "PartitionData",
            partition_index=0,
            error_code=answer.error,
            leader_id=answer.leader_id,
            leader_epoch=answer.epoch,
            vote_granted=answer.granted,
        )
        topic = make(module, "TopicData", topic_name=TOPIC, partitions=(partition,))
        return make(module, "VoteResponse", topics=(topic,), **values)
    if isinstance(answer, FetchSnapshotResponse):
        partition = _snapshot_partition(module, answer, 0)
        topic = make(module, "TopicSnapshot", name=TOPIC, partitions=(partition,))
        return make(module, "FetchSnapshotResponse", topics=(topic,), **values)
    diverging = answer.diverging or EpochEnd(-1, -1)
    snapshot_id, leader = _snapshot_and_leader(module, answer)
    partition = make(
        module,
        "PartitionData",
        partition_index=0,
        error_code=answer.error,
        high_watermark=answer.high_watermark,
        last_stable_offset=-1,
        log_start_offset=answer.log_start,
        diverging_epoch=_part(
            module, "EpochEndOffset", epoch=diverging.epoch, end_offset=diverging.end_offset
        ),
        current_leader=leader,
        snapshot_id=snapshot_id,
        aborted_transactions=(),
        preferred_read_replica=-1,
        records=answer.records,
    )
    topic = make(module, "FetchableTopicResponse", topic=TOPIC, topic_id=TOPIC_ID, partitions=(partition,))
    return make(module, "FetchResponse", responses=(topic,), **values)


def _snapshot_and_leader(
    module: ModuleType, answer: RaftFetchResponse | FetchSnapshotResponse
) -> tuple[Any, Any]:
    snapshot = answer.snapshot or SnapshotId(-1, -1)
    return (
        _part(module, "SnapshotId", end_offset=snapshot.end_offset, epoch=snapshot.epoch),
        _part(module, "LeaderIdAndEpoch", leader_id=answer.leader_id, leader_epoch=answer.epoch),
    )


def _snapshot_partition(module: ModuleType, answer: FetchSnapshotResponse, index: int) -> Any:
    snapshot_id, leader = _snapshot_and_leader(module, answer)
    return make(
        module,
        "PartitionSnapshot",
        index=index,
        error_code=answer.error,
        snapshot_id=snapshot_id,
        current_leader=leader,
        size=answer.size,
        position=answer.position,
        unaligned_records=answer.data,
    )


def _leader_response(module: ModuleType, api_key: int, answer: LeaderResponse) -> Any:
    if api_key == ApiKey.UPDATE_RAFT_VOTER:
        one = answer.endpoint or Endpoint(LISTENER, "", 0)
        leader = make(
            module,
            "CurrentLeader",
            leader_id=answer.leader_id,
            leader_epoch=answer.epoch,
            host=one.host,
            port=one.port,
        )
        return make(
            module,
            "UpdateRaftVoterResponse",
            throttle_time=timedelta(),
            error_code=answer.error,
            current_leader=leader,
        )
    partition = make(
        module,
        "PartitionData",
        partition_index=0,
        error_code=answer.error,
        leader_id=answer.leader_id,
        leader_epoch=answer.epoch,
    )
    topic = make(module, "TopicData", topic_name=TOPIC, partitions=(partition,))
    name = f"{APIS[api_key].name}Response"
    return make(module, name, error_code=NONE, topics=(topic,), node_endpoints=_nodes(module, answer))


def _described(module: ModuleType, answer: DescribeQuorumResponse, wall_ms: int) -> Any:
    nodes = tuple(
        make(module, "Node", node_id=one.node_id, listeners=listeners_of(module, "Listener", one.endpoints))
        for one in (answer.nodes if hasattr(module, "Node") else ())
    )
    partition = _described_partition(module, answer, wall_ms, 0)
    topic = make(module, "TopicData", topic_name=TOPIC, partitions=(partition,))
    return make(
        module, "DescribeQuorumResponse", error_code=NONE, error_message=None, topics=(topic,), nodes=nodes
    )


def _described_partition(module: ModuleType, answer: DescribeQuorumResponse, wall_ms: int, index: int) -> Any:
    def states(replicas: tuple[ReplicaDescription, ...]) -> tuple[Any, ...]:
        return tuple(
            make(
                module,
                "ReplicaState",
                replica_id=one.key.node_id,
                replica_directory_id=or_none(one.key.directory_id),
                log_end_offset=one.end_offset,
                last_fetch_timestamp=_wall(one.last_fetch_ms, wall_ms),
                last_caught_up_timestamp=_wall(one.last_caught_up_ms, wall_ms),
            )
            for one in replicas
        )

    return make(
        module,
        "PartitionData",
        partition_index=index,
        error_code=answer.error,
        error_message=None,
        leader_id=answer.leader_id,
        leader_epoch=answer.epoch,
        high_watermark=answer.high_watermark,
        current_voters=states(answer.voters),
        observers=states(answer.observers),
    )


def _wall(time_ms: int, wall_ms: int) -> int:
    return -1 if time_ms < 0 else time_ms + wall_ms


# -- requests out


def to_request(request: RaftRequest) -> tuple[int, int, Any]:
    """Encode a request; return its API key, version and message."""
    match request:
        case VoteRequest() | BeginQuorumEpochRequest() | EndQuorumEpochRequest():
            return _election_request(request)
        case RaftFetchRequest() | FetchSnapshotRequest():
            return _fetch_request(request)
        case AddVoter() | RemoveVoter() | UpdateVoter():
            return _change_request(request)
        case ApiVersionsRequest():
            module = module_of(ApiKey.API_VERSIONS, 4, "request")
            name = {"client_software_name": "firn", "client_software_version": "1"}
            return ApiKey.API_VERSIONS, 4, make(module, "ApiVersionsRequest", **name)
        case _:
            raise ValueError(f"{type(request).__name__} is never sent to another node")


def _election_request(
    request: VoteRequest | BeginQuorumEpochRequest | EndQuorumEpochRequest,
) -> tuple[int, int, Any]:
    api_key = {
        VoteRequest: ApiKey.VOTE,
        BeginQuorumEpochRequest: ApiKey.BEGIN_QUORUM_EPOCH,
        EndQuorumEpochRequest: ApiKey.END_QUORUM_EPOCH,
    }[type(request)]
    version = 2 if api_key == ApiKey.VOTE else 1
    module = module_of(api_key, version, "request")
    values: dict[str, Any] = {"partition_index": 0}
    top: dict[str, Any] = {"cluster_id": request.cluster_id}
    if isinstance(request, EndQuorumEpochRequest):
        values["preferred_candidates"] = tuple(
            make(
                module,
                "ReplicaInfo",
                candidate_id=key.node_id,
                candidate_directory_id=or_none(key.directory_id),
            )
            for key in request.successors
        )
    else:
        top["voter_id"] = request.voter.node_id
        values["voter_directory_id"] = or_none(request.voter.directory_id)
    if isinstance(request, VoteRequest):
        values |= {
            "replica_epoch": request.epoch,
            "replica_id": request.candidate.node_id,
            "replica_directory_id": or_none(request.candidate.directory_id),
            "last_offset_epoch": request.last_epoch,
            "last_offset": request.last_offset,
            "pre_vote": request.pre_vote,
        }
    else:
        values |= {"leader_id": request.leader_id, "leader_epoch": request.epoch}
        top["leader_endpoints"] = listeners_of(module, "LeaderEndpoint", request.endpoints)
    partition = make(module, "PartitionData", **values)
    topic = make(module, "TopicData", topic_name=TOPIC, partitions=(partition,))
    name = f"{APIS[api_key].name}Request"
    return api_key, version, make(module, name, topics=(topic,), **top)


def _fetch_request(request: RaftFetchRequest | FetchSnapshotRequest) -> tuple[int, int, Any]:
    directory = or_none(request.replica.directory_id)
    if isinstance(request, FetchSnapshotRequest):
        module = module_of(ApiKey.FETCH_SNAPSHOT, 1, "request")
        wanted = make(
            module, "SnapshotId", end_offset=request.snapshot.end_offset, epoch=request.snapshot.epoch
        )
        partition = make(
            module,
            "PartitionSnapshot",
            partition=0,
            current_leader_epoch=request.epoch,
            snapshot_id=wanted,
            position=request.position,
            replica_directory_id=directory,
        )
        topic = make(module, "TopicSnapshot", name=TOPIC, partitions=(partition,))
        message = make(
            module,
            "FetchSnapshotRequest",
            cluster_id=request.cluster_id,
            replica_id=request.replica.node_id,
            max_bytes=request.max_bytes,
            topics=(topic,),
        )
        return ApiKey.FETCH_SNAPSHOT, 1, message
    module = module_of(ApiKey.FETCH, 18, "request")
    partition = make(
        module,
        "FetchPartition",
        partition=0,
        current_leader_epoch=request.epoch,
        fetch_offset=request.offset,
        last_fetched_epoch=request.last_epoch,
        log_start_offset=-1,
        partition_max_bytes=0,
        replica_directory_id=directory,
        high_watermark=request.high_watermark,
    )
    message = make(
        module,
        "FetchRequest",
        cluster_id=request.cluster_id,
        replica_state=make(module, "ReplicaState", replica_id=request.replica.node_id, replica_epoch=-1),
        max_wait=timedelta(milliseconds=request.max_wait_ms),
        min_bytes=0,
        max_bytes=request.max_bytes,
        topics=(make(module, "FetchTopic", topic_id=TOPIC_ID, partitions=(partition,)),),
        forgotten_topics_data=(),
    )
    return ApiKey.FETCH, 18, message


def _change_request(request: AddVoter | RemoveVoter | UpdateVoter) -> tuple[int, int, Any]:
    key = request.key if isinstance(request, RemoveVoter) else request.voter.key
    values: dict[str, Any] = {
        "cluster_id": request.cluster_id,
        "voter_id": key.node_id,
        "voter_directory_id": or_none(key.directory_id),
    }
    if isinstance(request, RemoveVoter):
        return (
            ApiKey.REMOVE_RAFT_VOTER,
            0,
            make(module_of(ApiKey.REMOVE_RAFT_VOTER, 0, "request"), "RemoveRaftVoterRequest", **values),
        )
    api_key, version = (
        (ApiKey.ADD_RAFT_VOTER, 1) if isinstance(request, AddVoter) else (ApiKey.UPDATE_RAFT_VOTER, 0)
    )
    module = module_of(api_key, version, "request")
    values["listeners"] = listeners_of(module, "Listener", request.voter.endpoints)
    if isinstance(request, AddVoter):
        values["timeout"] = timedelta(milliseconds=request.timeout_ms)
        values["ack_when_committed"] = request.ack_when_committed
        return api_key, version, make(module, "AddRaftVoterRequest", **values)
    values["current_leader_epoch"] = request.epoch
    values["k_raft_version_feature"] = make(
        module,
        "KRaftVersionFeature",
        min_supported_version=request.voter.min_version,
        max_supported_version=request.voter.max_version,
    )
    return api_key, version, make(module, "UpdateRaftVoterRequest", **values)
