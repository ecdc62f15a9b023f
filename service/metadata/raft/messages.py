"""The quorum's requests and answers, from and to Kafka's messages. [P]

    of_request(api key, version, message) -> asked | refusal      what a peer or an admin asks of us
    to_response(api key, version, answer) -> message              what we answer
    to_request(asked) -> (api key, version, message)              what we ask, in the newest version
    of_response(api key, version, message) -> answer              what we are answered

Exactly one topic and partition, ours, is spoken of; anything else is INVALID_REQUEST. Layouts of the versions
are kio's: a field that a version lacks is left out on the way out, and has its default on the way in.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from datetime import timedelta
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import CorruptionError
from service.metadata.controller.requests import Endpoint
from service.metadata.raft.keys import NO_DIRECTORY, NOBODY, EpochEnd, ReplicaKey, SnapshotId
from service.metadata.raft.requests import (
    NONE,
    NOT_BEHIND,
    AddVoter,
    Answered,
    Asked,
    BeginAsked,
    ChangeAnswer,
    DescribeAnswer,
    DescribeAsked,
    EndAsked,
    FetchAnswer,
    FetchAsked,
    LeaderAnswer,
    Refusal,
    RemoveVoter,
    ReplicaTold,
    SnapshotAnswer,
    SnapshotAsked,
    UpdateVoter,
    VersionsAnswer,
    VersionsAsked,
    VoteAnswer,
    VoteAsked,
)
from service.metadata.raft.voters import Voter, VoterEndpoints

TOPIC: Final = "__cluster_metadata"
TOPIC_ID: Final = UUID(int=1)
KRAFT_VERSION: Final = "kraft.version"
LISTENER: Final = "CONTROLLER"

FETCH: Final = 1
API_VERSIONS: Final = 18
VOTE: Final = 52
BEGIN: Final = 53
END: Final = 54
DESCRIBE: Final = 55
FETCH_SNAPSHOT: Final = 59
ADD_VOTER: Final = 80
REMOVE_VOTER: Final = 81
UPDATE_VOTER: Final = 82

_MODULES: Final = {
    FETCH: "fetch",
    API_VERSIONS: "api_versions",
    VOTE: "vote",
    BEGIN: "begin_quorum_epoch",
    END: "end_quorum_epoch",
    DESCRIBE: "describe_quorum",
    FETCH_SNAPSHOT: "fetch_snapshot",
    ADD_VOTER: "add_raft_voter",
    REMOVE_VOTER: "remove_raft_voter",
    UPDATE_VOTER: "update_raft_voter",
}
_BAD: Final = Refusal(ErrorCode.invalid_request)


@cache
def _module(api_key: int, version: int, side: str) -> ModuleType:
    return import_module(f"kio.schema.{_MODULES[api_key]}.v{version}.{side}")


def _make(module: ModuleType, of: str, /, **values: Any) -> Any:
    """An instance of the module's class, of those of `values` that this version has."""
    cls = getattr(module, of)
    known = {field.name for field in fields(cls)}
    return cls(**{key: value for key, value in values.items() if key in known})


def _uuid(value: UUID | None) -> UUID:
    return value or NO_DIRECTORY


def _or_none(value: UUID) -> UUID | None:
    return None if value == NO_DIRECTORY else value


def _endpoints(listeners: Iterable[Any]) -> VoterEndpoints:
    return tuple(Endpoint(str(one.name), str(one.host), int(one.port)) for one in listeners)


def _listeners(module: ModuleType, name: str, endpoints: VoterEndpoints) -> tuple[Any, ...]:
    return tuple(_make(module, name, name=one.name, host=one.host, port=one.port) for one in endpoints)


def _ms(value: timedelta) -> int:
    return round(value.total_seconds() * 1000)


def _only(topics: Any) -> Any | None:
    """The one partition, where it is ours."""
    if topics is None or len(topics) != 1 or len(topics[0].partitions) != 1:
        return None
    topic, partition = topics[0], topics[0].partitions[0]
    name = getattr(topic, "topic_name", getattr(topic, "name", getattr(topic, "topic", None)))
    is_ours = topic.topic_id == TOPIC_ID if hasattr(topic, "topic_id") else name == TOPIC
    index = getattr(
        partition, "partition_index", getattr(partition, "partition", getattr(partition, "index", 0))
    )
    return partition if is_ours and index == 0 else None


# -- requests in


def of_request(api_key: int, version: int, message: Any) -> Asked | Refusal:
    """What is asked. A `Refusal` where it is not of our partition. Clusters are compared by the machine."""
    match api_key:
        case 1:
            return _fetch_asked(message)
        case 59:
            return _snapshot_asked(message)
        case 80:
            return AddVoter(
                _voter_named(message),
                _ms(message.timeout),
                getattr(message, "ack_when_committed", True),
                message.cluster_id,
            )
        case 81:
            return RemoveVoter(_key_named(message), message.cluster_id)
        case 82:
            feature = message.k_raft_version_feature
            voter = _voter_named(message)._replace(
                min_version=int(feature.min_supported_version), max_version=int(feature.max_supported_version)
            )
            return UpdateVoter(int(message.current_leader_epoch), voter, message.cluster_id)
        case 18:
            return VersionsAsked()
        case 52 | 53 | 54 | 55:
            partition = _only(message.topics)
            return _BAD if partition is None else _election_asked(api_key, message, partition)
        case _:
            raise ValueError(f"API {api_key} is none of the quorum's")


def _election_asked(api_key: int, message: Any, partition: Any) -> Asked:
    if api_key == DESCRIBE:
        return DescribeAsked()
    voter = ReplicaKey(
        int(getattr(message, "voter_id", NOBODY)), _uuid(getattr(partition, "voter_directory_id", None))
    )
    cluster_id = message.cluster_id
    if api_key == VOTE:
        return VoteAsked(
            int(partition.replica_epoch),
            ReplicaKey(int(partition.replica_id), _uuid(getattr(partition, "replica_directory_id", None))),
            int(partition.last_offset_epoch),
            int(partition.last_offset),
            getattr(partition, "pre_vote", False),
            voter,
            cluster_id,
        )
    endpoints = _endpoints(getattr(message, "leader_endpoints", ()))
    epoch, leader_id = int(partition.leader_epoch), int(partition.leader_id)
    if api_key == BEGIN:
        return BeginAsked(epoch, leader_id, endpoints, voter, cluster_id)
    candidates = getattr(partition, "preferred_candidates", None)
    successors = (
        tuple(ReplicaKey(int(one)) for one in partition.preferred_successors)
        if candidates is None
        else tuple(ReplicaKey(int(one.candidate_id), _uuid(one.candidate_directory_id)) for one in candidates)
    )
    return EndAsked(epoch, leader_id, successors, endpoints, cluster_id)


def _fetch_asked(message: Any) -> FetchAsked | Refusal:
    partition = _only(message.topics)
    if partition is None:
        return _BAD
    replica_id = message.replica_state.replica_id if hasattr(message, "replica_state") else message.replica_id
    mark = getattr(partition, "high_watermark", NOT_BEHIND)
    return FetchAsked(
        ReplicaKey(int(replica_id), _uuid(getattr(partition, "replica_directory_id", None))),
        int(getattr(partition, "current_leader_epoch", -1)),
        int(partition.fetch_offset),
        int(getattr(partition, "last_fetched_epoch", -1)),
        int(mark),
        int(message.max_bytes),
        _ms(message.max_wait),
        getattr(message, "cluster_id", None),
    )


def _snapshot_asked(message: Any) -> SnapshotAsked | Refusal:
    partition = _only(message.topics)
    if partition is None:
        return _BAD
    return SnapshotAsked(
        ReplicaKey(int(message.replica_id), _uuid(getattr(partition, "replica_directory_id", None))),
        int(partition.current_leader_epoch),
        SnapshotId(int(partition.snapshot_id.end_offset), int(partition.snapshot_id.epoch)),
        int(partition.position),
        int(message.max_bytes),
        message.cluster_id,
    )


def _key_named(message: Any) -> ReplicaKey:
    return ReplicaKey(int(message.voter_id), _uuid(message.voter_directory_id))


def _voter_named(message: Any) -> Voter:
    return Voter(_key_named(message), _endpoints(message.listeners))


# -- responses out


def to_response(api_key: int, version: int, answer: Answered, wall_ms: int = 0) -> Any:
    """The message. `wall_ms` is added to times of the machine's clock, for DescribeQuorum."""
    module = _module(api_key, version, "response")
    match answer:
        case Refusal(error):
            return _refused(module, api_key, error)
        case VoteAnswer() | FetchAnswer() | SnapshotAnswer():
            return _with_partition(module, answer)
        case LeaderAnswer():
            return _leader_response(module, api_key, answer)
        case ChangeAnswer(error, text):
            name = "AddRaftVoterResponse" if api_key == ADD_VOTER else "RemoveRaftVoterResponse"
            return _make(
                module, name, throttle_time=timedelta(), error_code=error, error_message=text or None
            )
        case DescribeAnswer():
            return _described(module, answer, wall_ms)
        case VersionsAnswer():
            raise ValueError("ApiVersions is answered by the listener")


_NAMES: Final = {
    FETCH: ("FetchResponse", "responses"),
    VOTE: ("VoteResponse", "topics"),
    BEGIN: ("BeginQuorumEpochResponse", "topics"),
    END: ("EndQuorumEpochResponse", "topics"),
    DESCRIBE: ("DescribeQuorumResponse", "topics"),
    FETCH_SNAPSHOT: ("FetchSnapshotResponse", "topics"),
}


def _refused(module: ModuleType, api_key: int, error: ErrorCode) -> Any:
    """An error for the whole request."""
    if api_key not in _NAMES:
        return _make(module, "UpdateRaftVoterResponse", throttle_time=timedelta(), error_code=error)
    name, topics = _NAMES[api_key]
    values: dict[str, Any] = {topics: (), "throttle_time": timedelta(), "nodes": (), "error_message": None}
    return _make(module, name, error_code=error, **values)


def _nodes(module: ModuleType, answer: Any) -> tuple[Any, ...]:
    if answer.endpoint is None or answer.leader_id < 0 or not hasattr(module, "NodeEndpoint"):
        return ()
    one = answer.endpoint
    return (_make(module, "NodeEndpoint", node_id=answer.leader_id, host=one.host, port=one.port, rack=None),)


def _with_partition(module: ModuleType, answer: VoteAnswer | FetchAnswer | SnapshotAnswer) -> Any:
    values: dict[str, Any] = {
        "error_code": NONE,
        "throttle_time": timedelta(),
        "session_id": 0,
        "node_endpoints": _nodes(module, answer),
    }
    if isinstance(answer, VoteAnswer):
        partition = _make(
            module,
            "PartitionData",
            partition_index=0,
            error_code=answer.error,
            leader_id=answer.leader_id,
            leader_epoch=answer.epoch,
            vote_granted=answer.granted,
        )
        topic = _make(module, "TopicData", topic_name=TOPIC, partitions=(partition,))
        return _make(module, "VoteResponse", topics=(topic,), **values)
    leader = _make(module, "LeaderIdAndEpoch", leader_id=answer.leader_id, leader_epoch=answer.epoch)
    snapshot = answer.snapshot or SnapshotId(-1, -1)
    told = _make(module, "SnapshotId", end_offset=snapshot.end_offset, epoch=snapshot.epoch)
    if isinstance(answer, SnapshotAnswer):
        partition = _make(
            module,
            "PartitionSnapshot",
            index=0,
            error_code=answer.error,
            snapshot_id=told,
            current_leader=leader,
            size=answer.size,
            position=answer.position,
            unaligned_records=answer.data,
        )
        topic = _make(module, "TopicSnapshot", name=TOPIC, partitions=(partition,))
        return _make(module, "FetchSnapshotResponse", topics=(topic,), **values)
    diverging = answer.diverging or EpochEnd(-1, -1)
    partition = _make(
        module,
        "PartitionData",
        partition_index=0,
        error_code=answer.error,
        high_watermark=answer.high_watermark,
        last_stable_offset=-1,
        log_start_offset=answer.log_start,
        diverging_epoch=_make(
            module, "EpochEndOffset", epoch=diverging.epoch, end_offset=diverging.end_offset
        ),
        current_leader=leader,
        snapshot_id=told,
        aborted_transactions=(),
        preferred_read_replica=-1,
        records=answer.records,
    )
    topic = _make(module, "FetchableTopicResponse", topic=TOPIC, topic_id=TOPIC_ID, partitions=(partition,))
    return _make(module, "FetchResponse", responses=(topic,), **values)


def _leader_response(module: ModuleType, api_key: int, answer: LeaderAnswer) -> Any:
    if api_key == UPDATE_VOTER:
        one = answer.endpoint or Endpoint(LISTENER, "", 0)
        leader = _make(
            module,
            "CurrentLeader",
            leader_id=answer.leader_id,
            leader_epoch=answer.epoch,
            host=one.host,
            port=one.port,
        )
        return _make(
            module,
            "UpdateRaftVoterResponse",
            throttle_time=timedelta(),
            error_code=answer.error,
            current_leader=leader,
        )
    partition = _make(
        module,
        "PartitionData",
        partition_index=0,
        error_code=answer.error,
        leader_id=answer.leader_id,
        leader_epoch=answer.epoch,
    )
    topic = _make(module, "TopicData", topic_name=TOPIC, partitions=(partition,))
    name = _NAMES[api_key][0]
    return _make(module, name, error_code=NONE, topics=(topic,), node_endpoints=_nodes(module, answer))


def _described(module: ModuleType, answer: DescribeAnswer, wall_ms: int) -> Any:
    def told(replicas: tuple[ReplicaTold, ...]) -> tuple[Any, ...]:
        return tuple(
            _make(
                module,
                "ReplicaState",
                replica_id=one.key.node_id,
                replica_directory_id=_or_none(one.key.directory_id),
                log_end_offset=one.end_offset,
                last_fetch_timestamp=_wall(one.last_fetch_ms, wall_ms),
                last_caught_up_timestamp=_wall(one.last_caught_up_ms, wall_ms),
            )
            for one in replicas
        )

    partition = _make(
        module,
        "PartitionData",
        partition_index=0,
        error_code=answer.error,
        error_message=None,
        leader_id=answer.leader_id,
        leader_epoch=answer.epoch,
        high_watermark=answer.high_watermark,
        current_voters=told(answer.voters),
        observers=told(answer.observers),
    )
    nodes = tuple(
        _make(module, "Node", node_id=one.node_id, listeners=_listeners(module, "Listener", one.endpoints))
        for one in (answer.nodes if hasattr(module, "Node") else ())
    )
    topic = _make(module, "TopicData", topic_name=TOPIC, partitions=(partition,))
    return _make(
        module, "DescribeQuorumResponse", error_code=NONE, error_message=None, topics=(topic,), nodes=nodes
    )


def _wall(time_ms: int, wall_ms: int) -> int:
    return -1 if time_ms < 0 else time_ms + wall_ms


# -- requests out


def to_request(asked: Asked) -> tuple[int, int, Any]:
    """API key, version and message."""
    match asked:
        case VoteAsked() | BeginAsked() | EndAsked():
            return _election_request(asked)
        case FetchAsked() | SnapshotAsked():
            return _fetch_request(asked)
        case AddVoter() | RemoveVoter() | UpdateVoter():
            return _change_request(asked)
        case VersionsAsked():
            module = _module(API_VERSIONS, 4, "request")
            name = {"client_software_name": "firn", "client_software_version": "1"}
            return API_VERSIONS, 4, _make(module, "ApiVersionsRequest", **name)
        case _:
            raise ValueError(f"{type(asked).__name__} is not asked of peers")


def _election_request(asked: VoteAsked | BeginAsked | EndAsked) -> tuple[int, int, Any]:
    api_key = {VoteAsked: VOTE, BeginAsked: BEGIN, EndAsked: END}[type(asked)]
    version = 2 if api_key == VOTE else 1
    module = _module(api_key, version, "request")
    values: dict[str, Any] = {"partition_index": 0}
    top: dict[str, Any] = {"cluster_id": asked.cluster_id}
    if isinstance(asked, EndAsked):
        values["preferred_candidates"] = tuple(
            _make(
                module,
                "ReplicaInfo",
                candidate_id=key.node_id,
                candidate_directory_id=_or_none(key.directory_id),
            )
            for key in asked.successors
        )
    else:
        top["voter_id"] = asked.voter.node_id
        values["voter_directory_id"] = _or_none(asked.voter.directory_id)
    if isinstance(asked, VoteAsked):
        values |= {
            "replica_epoch": asked.epoch,
            "replica_id": asked.candidate.node_id,
            "replica_directory_id": _or_none(asked.candidate.directory_id),
            "last_offset_epoch": asked.last_epoch,
            "last_offset": asked.last_offset,
            "pre_vote": asked.pre_vote,
        }
    else:
        values |= {"leader_id": asked.leader_id, "leader_epoch": asked.epoch}
        top["leader_endpoints"] = _listeners(module, "LeaderEndpoint", asked.endpoints)
    partition = _make(module, "PartitionData", **values)
    topic = _make(module, "TopicData", topic_name=TOPIC, partitions=(partition,))
    name = _NAMES[api_key][0].replace("Response", "Request")
    return api_key, version, _make(module, name, topics=(topic,), **top)


def _fetch_request(asked: FetchAsked | SnapshotAsked) -> tuple[int, int, Any]:
    directory = _or_none(asked.replica.directory_id)
    if isinstance(asked, SnapshotAsked):
        module = _module(FETCH_SNAPSHOT, 1, "request")
        wanted = _make(module, "SnapshotId", end_offset=asked.snapshot.end_offset, epoch=asked.snapshot.epoch)
        partition = _make(
            module,
            "PartitionSnapshot",
            partition=0,
            current_leader_epoch=asked.epoch,
            snapshot_id=wanted,
            position=asked.position,
            replica_directory_id=directory,
        )
        topic = _make(module, "TopicSnapshot", name=TOPIC, partitions=(partition,))
        message = _make(
            module,
            "FetchSnapshotRequest",
            cluster_id=asked.cluster_id,
            replica_id=asked.replica.node_id,
            max_bytes=asked.max_bytes,
            topics=(topic,),
        )
        return FETCH_SNAPSHOT, 1, message
    module = _module(FETCH, 18, "request")
    partition = _make(
        module,
        "FetchPartition",
        partition=0,
        current_leader_epoch=asked.epoch,
        fetch_offset=asked.offset,
        last_fetched_epoch=asked.last_epoch,
        log_start_offset=-1,
        partition_max_bytes=0,
        replica_directory_id=directory,
        high_watermark=asked.high_watermark,
    )
    message = _make(
        module,
        "FetchRequest",
        cluster_id=asked.cluster_id,
        replica_state=_make(module, "ReplicaState", replica_id=asked.replica.node_id, replica_epoch=-1),
        max_wait=timedelta(milliseconds=asked.max_wait_ms),
        min_bytes=0,
        max_bytes=asked.max_bytes,
        topics=(_make(module, "FetchTopic", topic_id=TOPIC_ID, partitions=(partition,)),),
        forgotten_topics_data=(),
    )
    return FETCH, 18, message


def _change_request(asked: AddVoter | RemoveVoter | UpdateVoter) -> tuple[int, int, Any]:
    key = asked.key if isinstance(asked, RemoveVoter) else asked.voter.key
    values: dict[str, Any] = {
        "cluster_id": asked.cluster_id,
        "voter_id": key.node_id,
        "voter_directory_id": _or_none(key.directory_id),
    }
    if isinstance(asked, RemoveVoter):
        return REMOVE_VOTER, 0, _make(_module(REMOVE_VOTER, 0, "request"), "RemoveRaftVoterRequest", **values)
    api_key, version = (ADD_VOTER, 1) if isinstance(asked, AddVoter) else (UPDATE_VOTER, 0)
    module = _module(api_key, version, "request")
    values["listeners"] = _listeners(module, "Listener", asked.voter.endpoints)
    if isinstance(asked, AddVoter):
        values["timeout"] = timedelta(milliseconds=asked.timeout_ms)
        values["ack_when_committed"] = asked.ack_when_committed
        return api_key, version, _make(module, "AddRaftVoterRequest", **values)
    values["current_leader_epoch"] = asked.epoch
    values["k_raft_version_feature"] = _make(
        module,
        "KRaftVersionFeature",
        min_supported_version=asked.voter.min_version,
        max_supported_version=asked.voter.max_version,
    )
    return api_key, version, _make(module, "UpdateRaftVoterRequest", **values)


# -- responses in


def of_response(api_key: int, version: int, message: Any) -> Answered:
    """What is answered. `CorruptionError` where it is not of our partition."""
    error: ErrorCode = message.error_code
    match api_key:
        case 80 | 81:
            return ChangeAnswer(error, message.error_message or "")
        case 82:
            one = message.current_leader
            endpoint = Endpoint(LISTENER, str(one.host), int(one.port)) if one.host else None
            return LeaderAnswer(error, int(one.leader_epoch), int(one.leader_id), endpoint)
        case 18:
            found = [one for one in message.supported_features if one.name == KRAFT_VERSION]
            if not found:
                return VersionsAnswer(error)
            return VersionsAnswer(error, int(found[0].min_version), int(found[0].max_version))
    if error is not NONE:
        return Refusal(error)
    partition = _only(message.responses if api_key == FETCH else message.topics)
    if partition is None:
        raise CorruptionError("an answer that is not of the metadata partition")
    leader = partition.current_leader if api_key in (FETCH, FETCH_SNAPSHOT) else partition
    leader_id, epoch = int(leader.leader_id), int(leader.leader_epoch)
    place = _endpoint_of(message, leader_id)
    error = partition.error_code
    if api_key == VOTE:
        return VoteAnswer(error, epoch, leader_id, place, partition.vote_granted)
    if api_key in (BEGIN, END):
        return LeaderAnswer(error, epoch, leader_id, place)
    told = SnapshotId(int(partition.snapshot_id.end_offset), int(partition.snapshot_id.epoch))
    snapshot = None if told.end_offset < 0 or told.epoch < 0 else told
    if api_key == FETCH_SNAPSHOT:
        size, position = int(partition.size), int(partition.position)
        data = partition.unaligned_records or b""
        return SnapshotAnswer(error, epoch, leader_id, place, snapshot, size, position, data)
    parts = EpochEnd(int(partition.diverging_epoch.epoch), int(partition.diverging_epoch.end_offset))
    return FetchAnswer(
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
            return Endpoint(LISTENER, str(one.host), int(one.port))
    return None
