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
    Answered,
    Asked,
    BeginAsked,
    ChangeAnswer,
    DescribeAnswer,
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
    VoteAnswer,
    VoteAsked,
)
from service.metadata.raft.voters import Voter

PLACE = Endpoint("CONTROLLER", "host", 9093)
KEY = ReplicaKey(2, UUID(int=77))
VOTER = Voter(KEY, (PLACE,))


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
        VoteAsked(4, KEY, 3, 17, True, ReplicaKey(1, UUID(int=5)), "cluster"),
        VoteAsked(4, ReplicaKey(2), 3, 17),
        BeginAsked(4, 2, (PLACE,), ReplicaKey(1, UUID(int=5)), "cluster"),
        EndAsked(4, 2, (KEY, ReplicaKey(3)), (PLACE,), "cluster"),
        FetchAsked(KEY, 4, 17, 3, 12, 1000, 500, "cluster"),
        SnapshotAsked(KEY, 4, SnapshotId(17, 3), 99, 1000, "cluster"),
        AddVoter(VOTER, 1234, False, "cluster"),
        RemoveVoter(KEY, "cluster"),
        UpdateVoter(4, VOTER, "cluster"),
    ],
)
def test_a_question_arrives_as_it_was_asked(asked: Asked) -> None:
    api_key, version, message = messages.to_request(asked)
    assert messages.of_request(api_key, version, through_bytes(message)) == asked


@pytest.mark.parametrize(
    ("api_key", "version", "answer"),
    [
        (52, 2, VoteAnswer(NONE, 4, 2, PLACE, True)),
        (53, 1, LeaderAnswer(ErrorCode.invalid_voter_key, 4, 2, PLACE)),
        (54, 1, LeaderAnswer(NONE, 4)),
        (82, 0, LeaderAnswer(ErrorCode.voter_not_found, 4, 2, PLACE)),
        (1, 18, FetchAnswer(NONE, 4, 2, PLACE, 17, 3, records=b"some bytes")),
        (1, 17, FetchAnswer(NONE, 4, 2, PLACE, 17, 3, diverging=EpochEnd(3, 9))),
        (1, 18, FetchAnswer(NONE, 4, 2, PLACE, 17, 3, snapshot=SnapshotId(9, 2))),
        (59, 1, SnapshotAnswer(NONE, 4, 2, PLACE, SnapshotId(9, 2), 1000, 10, b"bytes")),
        (80, 1, ChangeAnswer(ErrorCode.duplicate_voter, "it is there")),
        (81, 0, ChangeAnswer(NONE)),
        (52, 2, Refusal(ErrorCode.inconsistent_cluster_id)),
        (1, 18, Refusal(ErrorCode.invalid_request)),
    ],
)
def test_an_answer_arrives_as_it_was_given(api_key: int, version: int, answer: Answered) -> None:
    message = through_bytes(messages.to_response(api_key, version, answer))
    assert messages.of_response(api_key, version, message) == answer


@pytest.mark.parametrize(
    ("api_key", "versions"),
    [(1, range(12, 19)), (52, range(3)), (53, range(2)), (54, range(2)), (55, range(3)), (59, range(2))],
)
def test_every_version_can_be_written(api_key: int, versions: range) -> None:
    answers: dict[int, Answered] = {
        1: FetchAnswer(NONE, 4, 2, PLACE, 17, 3, records=b"x"),
        52: VoteAnswer(NONE, 4, 2, PLACE, True),
        53: LeaderAnswer(NONE, 4, 2, PLACE),
        54: LeaderAnswer(NONE, 4, 2, PLACE),
        55: DescribeAnswer(NONE, 4, 2, 17, (ReplicaTold(KEY, 5, 6, 7),), (), (VOTER,)),
        59: SnapshotAnswer(NONE, 4, 2, PLACE, SnapshotId(9, 2), 1000, 10, b"bytes"),
    }
    for version in versions:
        through_bytes(messages.to_response(api_key, version, answers[api_key]))
        through_bytes(messages.to_response(api_key, version, Refusal(ErrorCode.invalid_request)))


def test_another_topic_is_an_invalid_request() -> None:
    _, _, message = messages.to_request(VoteAsked(4, KEY, 3, 17))
    (topic,) = message.topics
    other = type(message)(
        cluster_id=None,
        voter_id=message.voter_id,
        topics=(type(topic)(topic_name="other", partitions=topic.partitions),),
    )
    assert messages.of_request(52, 2, other) == Refusal(ErrorCode.invalid_request)
    twice = type(message)(cluster_id=None, voter_id=message.voter_id, topics=(topic, topic))
    assert messages.of_request(52, 2, twice) == Refusal(ErrorCode.invalid_request)
