"""Requests of the quorum, field by field, compared with Apache Kafka's message definitions."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from service.metadata.raft import messages
from service.metadata.raft.keys import ReplicaKey, SnapshotId
from service.metadata.raft.requests import (
    AddVoter,
    ApiVersionsRequest,
    BeginQuorumEpochRequest,
    DescribeQuorumRequest,
    EndQuorumEpochRequest,
    FetchSnapshotRequest,
    RaftFetchRequest,
    RaftRequest,
    RemoveVoter,
    UpdateVoter,
    VoteRequest,
)
from tests.unit.metadata.raft_fields import KEY, PLACE, VOTER, plain


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
def test_a_request_has_the_fields_of_its_message(
    asked: RaftRequest, api_key: int, version: int, said: dict[str, Any]
) -> None:
    found = messages.to_request(asked)
    assert found[:2] == (api_key, version)
    assert plain(found[2]) == said


def test_a_node_never_sends_describe_quorum_to_a_peer() -> None:
    with pytest.raises(ValueError, match="DescribeQuorumRequest is never sent to another node"):
        messages.to_request(DescribeQuorumRequest())
