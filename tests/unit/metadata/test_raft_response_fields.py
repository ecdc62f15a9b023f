"""Responses of the quorum, field by field, compared with Apache Kafka's message definitions."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from service.metadata.raft import messages
from service.metadata.raft.keys import EpochEnd, ReplicaKey, SnapshotId
from service.metadata.raft.requests import (
    NONE,
    DescribeQuorumResponse,
    FetchSnapshotResponse,
    LeaderResponse,
    RaftFetchResponse,
    RaftResponse,
    Refusal,
    ReplicaDescription,
    VoterChangeResponse,
    VoteResponse,
)
from tests.unit.metadata.raft_fields import KEY, PLACE, VOTER, plain


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
def test_a_response_has_the_fields_of_its_message(
    api_key: int, version: int, answer: RaftResponse, name: str, said: dict[str, Any]
) -> None:
    """Times of the machine's clock, which began at 10,000 ms of the wall's."""
    message = messages.to_response(api_key, version, answer, 10_000)
    assert type(message).__name__ == name
    assert plain(message) == said
