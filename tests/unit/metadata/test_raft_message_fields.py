"""What the quorum's messages say, field by field, beside what Apache Kafka's documents ask of them."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.metadata.endpoint import Endpoint
from service.metadata.raft import messages
from service.metadata.raft.keys import EpochEnd, ReplicaKey, SnapshotId
from service.metadata.raft.requests import (
    NONE,
    AddVoter,
    ApiVersionsRequest,
    BeginQuorumEpochRequest,
    DescribeQuorumRequest,
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
from service.metadata.raft.voters import VoterNode

PLACE = Endpoint("CONTROLLER", "host", 9093)
KEY = ReplicaKey(2, UUID(int=77))
VOTER = VoterNode(KEY, (PLACE,))


def plain(message: Any) -> Any:
    """Times in ms, ids as numbers, errors by name."""
    if is_dataclass(message):
        return {field.name: plain(getattr(message, field.name)) for field in fields(message)}
    if isinstance(message, tuple | list):
        return [plain(one) for one in message]
    if isinstance(message, timedelta):
        return round(message.total_seconds() * 1000)
    if isinstance(message, UUID):
        return message.int
    return message.name if isinstance(message, ErrorCode) else message


@pytest.mark.parametrize(
    ("asked", "api_key", "version", "said"),
    [
        (
            VoteRequest(4, KEY, 3, 17, True, ReplicaKey(1, UUID(int=5)), "cluster"),
            52,
            2,
            {
                "cluster_id": "cluster",
                "voter_id": 1,
                "topics": [
                    {
                        "topic_name": "__cluster_metadata",
                        "partitions": [
                            {
                                "partition_index": 0,
                                "replica_epoch": 4,
                                "replica_id": 2,
                                "replica_directory_id": 77,
                                "voter_directory_id": 5,
                                "last_offset_epoch": 3,
                                "last_offset": 17,
                                "pre_vote": True,
                            }
                        ],
                    }
                ],
            },
        ),
        (
            BeginQuorumEpochRequest(4, 2, (PLACE,), ReplicaKey(1, UUID(int=5)), "cluster"),
            53,
            1,
            {
                "cluster_id": "cluster",
                "voter_id": 1,
                "topics": [
                    {
                        "topic_name": "__cluster_metadata",
                        "partitions": [
                            {"partition_index": 0, "voter_directory_id": 5, "leader_id": 2, "leader_epoch": 4}
                        ],
                    }
                ],
                "leader_endpoints": [{"name": "CONTROLLER", "host": "host", "port": 9093}],
            },
        ),
        (
            EndQuorumEpochRequest(4, 2, (KEY, ReplicaKey(3)), (PLACE,), "cluster"),
            54,
            1,
            {
                "cluster_id": "cluster",
                "topics": [
                    {
                        "topic_name": "__cluster_metadata",
                        "partitions": [
                            {
                                "partition_index": 0,
                                "leader_id": 2,
                                "leader_epoch": 4,
                                "preferred_candidates": [
                                    {"candidate_id": 2, "candidate_directory_id": 77},
                                    {"candidate_id": 3, "candidate_directory_id": None},
                                ],
                            }
                        ],
                    }
                ],
                "leader_endpoints": [{"name": "CONTROLLER", "host": "host", "port": 9093}],
            },
        ),
        (
            RaftFetchRequest(KEY, 4, 17, 3, 12, 1000, 500, "cluster"),
            1,
            18,
            {
                "cluster_id": "cluster",
                "replica_state": {"replica_id": 2, "replica_epoch": -1},
                "max_wait": 500,
                "min_bytes": 0,
                "max_bytes": 1000,
                "isolation_level": 0,
                "session_id": 0,
                "session_epoch": -1,
                "topics": [
                    {
                        "topic_id": 1,
                        "partitions": [
                            {
                                "partition": 0,
                                "current_leader_epoch": 4,
                                "fetch_offset": 17,
                                "last_fetched_epoch": 3,
                                "log_start_offset": -1,
                                "partition_max_bytes": 0,
                                "replica_directory_id": 77,
                                "high_watermark": 12,
                            }
                        ],
                    }
                ],
                "forgotten_topics_data": [],
                "rack_id": "",
            },
        ),
        (
            RaftFetchRequest(ReplicaKey(-1), 4, 0, 0),
            1,
            18,
            {
                "cluster_id": None,
                "replica_state": {"replica_id": -1, "replica_epoch": -1},
                "max_wait": 500,
                "min_bytes": 0,
                "max_bytes": 1048576,
                "isolation_level": 0,
                "session_id": 0,
                "session_epoch": -1,
                "topics": [
                    {
                        "topic_id": 1,
                        "partitions": [
                            {
                                "partition": 0,
                                "current_leader_epoch": 4,
                                "fetch_offset": 0,
                                "last_fetched_epoch": 0,
                                "log_start_offset": -1,
                                "partition_max_bytes": 0,
                                "replica_directory_id": None,
                                "high_watermark": 9223372036854775807,
                            }
                        ],
                    }
                ],
                "forgotten_topics_data": [],
                "rack_id": "",
            },
        ),
        (
            FetchSnapshotRequest(KEY, 4, SnapshotId(17, 3), 99, 1000, "cluster"),
            59,
            1,
            {
                "cluster_id": "cluster",
                "replica_id": 2,
                "max_bytes": 1000,
                "topics": [
                    {
                        "name": "__cluster_metadata",
                        "partitions": [
                            {
                                "partition": 0,
                                "current_leader_epoch": 4,
                                "snapshot_id": {"end_offset": 17, "epoch": 3},
                                "position": 99,
                                "replica_directory_id": 77,
                            }
                        ],
                    }
                ],
            },
        ),
        (
            AddVoter(VOTER, 1234, False, "cluster"),
            80,
            1,
            {
                "cluster_id": "cluster",
                "timeout": 1234,
                "voter_id": 2,
                "voter_directory_id": 77,
                "listeners": [{"name": "CONTROLLER", "host": "host", "port": 9093}],
                "ack_when_committed": False,
            },
        ),
        (
            RemoveVoter(KEY, "cluster"),
            81,
            0,
            {"cluster_id": "cluster", "voter_id": 2, "voter_directory_id": 77},
        ),
        (
            UpdateVoter(4, VOTER, "cluster"),
            82,
            0,
            {
                "cluster_id": "cluster",
                "current_leader_epoch": 4,
                "voter_id": 2,
                "voter_directory_id": 77,
                "listeners": [{"name": "CONTROLLER", "host": "host", "port": 9093}],
                "k_raft_version_feature": {"min_supported_version": 0, "max_supported_version": 1},
            },
        ),
        (ApiVersionsRequest(), 18, 4, {"client_software_name": "firn", "client_software_version": "1"}),
    ],
)
def test_a_question_says(asked: RaftRequest, api_key: int, version: int, said: dict[str, Any]) -> None:
    found = messages.to_request(asked)
    assert found[:2] == (api_key, version)
    assert plain(found[2]) == said


def test_what_only_admins_ask_is_not_asked_of_peers() -> None:
    with pytest.raises(ValueError, match="DescribeQuorumRequest is never sent to another node"):
        messages.to_request(DescribeQuorumRequest())


@pytest.mark.parametrize(
    ("api_key", "version", "answer", "name", "said"),
    [
        (
            52,
            2,
            VoteResponse(NONE, 4, 2, PLACE, True),
            "VoteResponse",
            {
                "error_code": "none",
                "topics": [
                    {
                        "topic_name": "__cluster_metadata",
                        "partitions": [
                            {
                                "partition_index": 0,
                                "error_code": "none",
                                "leader_id": 2,
                                "leader_epoch": 4,
                                "vote_granted": True,
                            }
                        ],
                    }
                ],
                "node_endpoints": [{"node_id": 2, "host": "host", "port": 9093}],
            },
        ),
        (
            52,
            0,
            VoteResponse(ErrorCode.fenced_leader_epoch, 4),
            "VoteResponse",
            {
                "error_code": "none",
                "topics": [
                    {
                        "topic_name": "__cluster_metadata",
                        "partitions": [
                            {
                                "partition_index": 0,
                                "error_code": "fenced_leader_epoch",
                                "leader_id": -1,
                                "leader_epoch": 4,
                                "vote_granted": False,
                            }
                        ],
                    }
                ],
            },
        ),
        (
            53,
            1,
            LeaderResponse(ErrorCode.fenced_leader_epoch, 4, 2, PLACE),
            "BeginQuorumEpochResponse",
            {
                "error_code": "none",
                "topics": [
                    {
                        "topic_name": "__cluster_metadata",
                        "partitions": [
                            {
                                "partition_index": 0,
                                "error_code": "fenced_leader_epoch",
                                "leader_id": 2,
                                "leader_epoch": 4,
                            }
                        ],
                    }
                ],
                "node_endpoints": [{"node_id": 2, "host": "host", "port": 9093}],
            },
        ),
        (
            54,
            1,
            LeaderResponse(NONE, 4),
            "EndQuorumEpochResponse",
            {
                "error_code": "none",
                "topics": [
                    {
                        "topic_name": "__cluster_metadata",
                        "partitions": [
                            {"partition_index": 0, "error_code": "none", "leader_id": -1, "leader_epoch": 4}
                        ],
                    }
                ],
                "node_endpoints": [],
            },
        ),
        (
            54,
            1,
            LeaderResponse(NONE, 4, 0, PLACE),
            "EndQuorumEpochResponse",
            {
                "error_code": "none",
                "topics": [
                    {
                        "topic_name": "__cluster_metadata",
                        "partitions": [
                            {"partition_index": 0, "error_code": "none", "leader_id": 0, "leader_epoch": 4}
                        ],
                    }
                ],
                "node_endpoints": [{"node_id": 0, "host": "host", "port": 9093}],
            },
        ),
        (
            82,
            0,
            LeaderResponse(NONE, 4, 2, PLACE),
            "UpdateRaftVoterResponse",
            {
                "throttle_time": 0,
                "error_code": "none",
                "current_leader": {"leader_id": 2, "leader_epoch": 4, "host": "host", "port": 9093},
            },
        ),
        (
            82,
            0,
            LeaderResponse(NONE, 4),
            "UpdateRaftVoterResponse",
            {
                "throttle_time": 0,
                "error_code": "none",
                "current_leader": {"leader_id": -1, "leader_epoch": 4, "host": "", "port": 0},
            },
        ),
        (
            1,
            18,
            RaftFetchResponse(NONE, 4, 2, PLACE, 17, 3, records=b"x"),
            "FetchResponse",
            {
                "throttle_time": 0,
                "error_code": "none",
                "session_id": 0,
                "responses": [
                    {
                        "topic_id": 1,
                        "partitions": [
                            {
                                "partition_index": 0,
                                "error_code": "none",
                                "high_watermark": 17,
                                "last_stable_offset": -1,
                                "log_start_offset": 3,
                                "diverging_epoch": {"epoch": -1, "end_offset": -1},
                                "current_leader": {"leader_id": 2, "leader_epoch": 4},
                                "snapshot_id": {"end_offset": -1, "epoch": -1},
                                "aborted_transactions": [],
                                "preferred_read_replica": -1,
                                "records": b"x",
                            }
                        ],
                    }
                ],
                "node_endpoints": [{"node_id": 2, "host": "host", "port": 9093, "rack": None}],
            },
        ),
        (
            1,
            12,
            RaftFetchResponse(NONE, 4, 2, PLACE, 17, 3, EpochEnd(3, 9), SnapshotId(9, 2)),
            "FetchResponse",
            {
                "throttle_time": 0,
                "error_code": "none",
                "session_id": 0,
                "responses": [
                    {
                        "topic": "__cluster_metadata",
                        "partitions": [
                            {
                                "partition_index": 0,
                                "error_code": "none",
                                "high_watermark": 17,
                                "last_stable_offset": -1,
                                "log_start_offset": 3,
                                "diverging_epoch": {"epoch": 3, "end_offset": 9},
                                "current_leader": {"leader_id": 2, "leader_epoch": 4},
                                "snapshot_id": {"end_offset": 9, "epoch": 2},
                                "aborted_transactions": [],
                                "preferred_read_replica": -1,
                                "records": b"",
                            }
                        ],
                    }
                ],
            },
        ),
        (
            59,
            1,
            FetchSnapshotResponse(NONE, 4, 2, PLACE, SnapshotId(9, 2), 1000, 10, b"b"),
            "FetchSnapshotResponse",
            {
                "throttle_time": 0,
                "error_code": "none",
                "topics": [
                    {
                        "name": "__cluster_metadata",
                        "partitions": [
                            {
                                "index": 0,
                                "error_code": "none",
                                "snapshot_id": {"end_offset": 9, "epoch": 2},
                                "current_leader": {"leader_id": 2, "leader_epoch": 4},
                                "size": 1000,
                                "position": 10,
                                "unaligned_records": b"b",
                            }
                        ],
                    }
                ],
                "node_endpoints": [{"node_id": 2, "host": "host", "port": 9093}],
            },
        ),
        (
            59,
            0,
            FetchSnapshotResponse(ErrorCode.snapshot_not_found, 4),
            "FetchSnapshotResponse",
            {
                "throttle_time": 0,
                "error_code": "none",
                "topics": [
                    {
                        "name": "__cluster_metadata",
                        "partitions": [
                            {
                                "index": 0,
                                "error_code": "snapshot_not_found",
                                "snapshot_id": {"end_offset": -1, "epoch": -1},
                                "current_leader": {"leader_id": -1, "leader_epoch": 4},
                                "size": 0,
                                "position": 0,
                                "unaligned_records": b"",
                            }
                        ],
                    }
                ],
            },
        ),
        (
            55,
            2,
            DescribeQuorumResponse(
                NONE,
                4,
                2,
                17,
                (ReplicaDescription(KEY, 5, 0, 700),),
                (ReplicaDescription(ReplicaKey(8), -1, -1, -1),),
                (VOTER,),
            ),
            "DescribeQuorumResponse",
            {
                "error_code": "none",
                "error_message": None,
                "topics": [
                    {
                        "topic_name": "__cluster_metadata",
                        "partitions": [
                            {
                                "partition_index": 0,
                                "error_code": "none",
                                "error_message": None,
                                "leader_id": 2,
                                "leader_epoch": 4,
                                "high_watermark": 17,
                                "current_voters": [
                                    {
                                        "replica_id": 2,
                                        "replica_directory_id": 77,
                                        "log_end_offset": 5,
                                        "last_fetch_timestamp": 10000,
                                        "last_caught_up_timestamp": 10700,
                                    }
                                ],
                                "observers": [
                                    {
                                        "replica_id": 8,
                                        "replica_directory_id": None,
                                        "log_end_offset": -1,
                                        "last_fetch_timestamp": -1,
                                        "last_caught_up_timestamp": -1,
                                    }
                                ],
                            }
                        ],
                    }
                ],
                "nodes": [
                    {"node_id": 2, "listeners": [{"name": "CONTROLLER", "host": "host", "port": 9093}]}
                ],
            },
        ),
        (
            55,
            0,
            DescribeQuorumResponse(ErrorCode.not_leader_or_follower, 4),
            "DescribeQuorumResponse",
            {
                "error_code": "none",
                "topics": [
                    {
                        "topic_name": "__cluster_metadata",
                        "partitions": [
                            {
                                "partition_index": 0,
                                "error_code": "not_leader_or_follower",
                                "leader_id": -1,
                                "leader_epoch": 4,
                                "high_watermark": -1,
                                "current_voters": [],
                                "observers": [],
                            }
                        ],
                    }
                ],
            },
        ),
        (
            80,
            1,
            VoterChangeResponse(ErrorCode.duplicate_voter, "it is there"),
            "AddRaftVoterResponse",
            {"throttle_time": 0, "error_code": "duplicate_voter", "error_message": "it is there"},
        ),
        (
            81,
            0,
            VoterChangeResponse(NONE),
            "RemoveRaftVoterResponse",
            {"throttle_time": 0, "error_code": "none", "error_message": None},
        ),
        (
            52,
            0,
            Refusal(ErrorCode.invalid_request),
            "VoteResponse",
            {"error_code": "invalid_request", "topics": []},
        ),
        (
            54,
            1,
            Refusal(ErrorCode.invalid_request),
            "EndQuorumEpochResponse",
            {"error_code": "invalid_request", "topics": [], "node_endpoints": []},
        ),
        (
            55,
            2,
            Refusal(ErrorCode.invalid_request),
            "DescribeQuorumResponse",
            {"error_code": "invalid_request", "error_message": None, "topics": [], "nodes": []},
        ),
        (
            80,
            0,
            Refusal(ErrorCode.invalid_request),
            "AddRaftVoterResponse",
            {"throttle_time": 0, "error_code": "invalid_request", "error_message": None},
        ),
        (
            81,
            0,
            Refusal(ErrorCode.invalid_request),
            "RemoveRaftVoterResponse",
            {"throttle_time": 0, "error_code": "invalid_request", "error_message": None},
        ),
        (
            82,
            0,
            Refusal(ErrorCode.invalid_request),
            "UpdateRaftVoterResponse",
            {
                "throttle_time": 0,
                "error_code": "invalid_request",
                "current_leader": {"leader_id": -1, "leader_epoch": -1, "host": "", "port": 0},
            },
        ),
        (
            1,
            17,
            Refusal(ErrorCode.invalid_request),
            "FetchResponse",
            {
                "throttle_time": 0,
                "error_code": "invalid_request",
                "session_id": 0,
                "responses": [],
                "node_endpoints": [],
            },
        ),
        (
            59,
            1,
            Refusal(ErrorCode.invalid_request),
            "FetchSnapshotResponse",
            {"throttle_time": 0, "error_code": "invalid_request", "topics": [], "node_endpoints": []},
        ),
    ],
)
def test_an_answer_says(
    api_key: int, version: int, answer: RaftResponse, name: str, said: dict[str, Any]
) -> None:
    """Times of the machine's clock, which began at 10,000 ms of the wall's."""
    message = messages.to_response(api_key, version, answer, 10_000)
    assert type(message).__name__ == name
    assert plain(message) == said
