"""The quorum's questions and answers come through Kafka's messages as they were."""

from __future__ import annotations

import io
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from service.metadata.endpoint import Endpoint
from service.metadata.raft import messages
from service.metadata.raft.keys import EpochEnd, ReplicaKey, SnapshotId
from service.metadata.raft.requests import (
    NONE,
    AddVoter,
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
from service.metadata.raft.voters import VoterNode

PLACE = Endpoint("CONTROLLER", "host", 9093)
KEY = ReplicaKey(2, UUID(int=77))
VOTER = VoterNode(KEY, (PLACE,))


def through_bytes(message: Any) -> Any:
    buffer = io.BytesIO()
    writer: Any = entity_writer(type(message))
    writer(buffer, message)
    reader: Any = entity_reader(type(message))
    data = buffer.getvalue()
    again, size = reader(data, 0)
    assert size == len(data)
    return again


@pytest.mark.parametrize(
    "asked",
    [
        VoteRequest(4, KEY, 3, 17, True, ReplicaKey(1, UUID(int=5)), "cluster"),
        VoteRequest(4, ReplicaKey(2), 3, 17),
        BeginQuorumEpochRequest(4, 2, (PLACE,), ReplicaKey(1, UUID(int=5)), "cluster"),
        EndQuorumEpochRequest(4, 2, (KEY, ReplicaKey(3)), (PLACE,), "cluster"),
        RaftFetchRequest(KEY, 4, 17, 3, 12, 1000, 500, "cluster"),
        FetchSnapshotRequest(KEY, 4, SnapshotId(17, 3), 99, 1000, "cluster"),
        AddVoter(VOTER, 1234, False, "cluster"),
        RemoveVoter(KEY, "cluster"),
        UpdateVoter(4, VOTER, "cluster"),
    ],
)
def test_requests_round_trip(asked: RaftRequest) -> None:
    api_key, version, message = messages.to_request(asked)
    assert messages.of_request(api_key, version, through_bytes(message)) == asked


@pytest.mark.parametrize(
    ("api_key", "version", "answer"),
    [
        (52, 2, VoteResponse(NONE, 4, 2, PLACE, True)),
        (53, 1, LeaderResponse(ErrorCode.invalid_voter_key, 4, 2, PLACE)),
        (54, 1, LeaderResponse(NONE, 4)),
        (82, 0, LeaderResponse(ErrorCode.voter_not_found, 4, 2, PLACE)),
        (1, 18, RaftFetchResponse(NONE, 4, 2, PLACE, 17, 3, records=b"some bytes")),
        (1, 17, RaftFetchResponse(NONE, 4, 2, PLACE, 17, 3, diverging=EpochEnd(3, 9))),
        (1, 18, RaftFetchResponse(NONE, 4, 2, PLACE, 17, 3, snapshot=SnapshotId(9, 2))),
        (59, 1, FetchSnapshotResponse(NONE, 4, 2, PLACE, SnapshotId(9, 2), 1000, 10, b"bytes")),
        (80, 1, VoterChangeResponse(ErrorCode.duplicate_voter, "it is there")),
        (81, 0, VoterChangeResponse(NONE)),
        (52, 2, Refusal(ErrorCode.inconsistent_cluster_id)),
        (1, 18, Refusal(ErrorCode.invalid_request)),
    ],
)
def test_an_answer_arrives_as_it_was_given(api_key: int, version: int, answer: RaftResponse) -> None:
    message = through_bytes(messages.to_response(api_key, version, answer))
    assert messages.of_response(api_key, version, message) == answer


@pytest.mark.parametrize(
    ("api_key", "versions"),
    [(1, range(12, 19)), (52, range(3)), (53, range(2)), (54, range(2)), (55, range(3)), (59, range(2))],
)
def test_every_version_can_be_written(api_key: int, versions: range) -> None:
    answers: dict[int, RaftResponse] = {
        1: RaftFetchResponse(NONE, 4, 2, PLACE, 17, 3, records=b"x"),
        52: VoteResponse(NONE, 4, 2, PLACE, True),
        53: LeaderResponse(NONE, 4, 2, PLACE),
        54: LeaderResponse(NONE, 4, 2, PLACE),
        55: DescribeQuorumResponse(NONE, 4, 2, 17, (ReplicaDescription(KEY, 5, 6, 7),), (), (VOTER,)),
        59: FetchSnapshotResponse(NONE, 4, 2, PLACE, SnapshotId(9, 2), 1000, 10, b"bytes"),
    }
    for version in versions:
        through_bytes(messages.to_response(api_key, version, answers[api_key]))
        through_bytes(messages.to_response(api_key, version, Refusal(ErrorCode.invalid_request)))


def test_another_topic_is_an_invalid_request() -> None:
    _, _, message = messages.to_request(VoteRequest(4, KEY, 3, 17))
    (topic,) = message.topics
    other = type(message)(
        cluster_id=None,
        voter_id=message.voter_id,
        topics=(type(topic)(topic_name="other", partitions=topic.partitions),),
    )
    assert messages.of_request(52, 2, other) == Refusal(ErrorCode.invalid_request)
    twice = type(message)(cluster_id=None, voter_id=message.voter_id, topics=(topic, topic))
    assert messages.of_request(52, 2, twice) == Refusal(ErrorCode.invalid_request)
