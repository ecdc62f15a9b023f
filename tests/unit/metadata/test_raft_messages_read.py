"""Parsing of the quorum's messages: absent fields, impossible values, other partitions."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import CorruptionError
from service.metadata.endpoint import Endpoint
from service.metadata.raft import messages
from service.metadata.raft.keys import EpochEnd, ReplicaKey, SnapshotId
from service.metadata.raft.message_parts import endpoint_of, endpoints_of, only_partition
from service.metadata.raft.messages_out import to_refusal
from service.metadata.raft.requests import (
    NONE,
    AddVoter,
    ApiVersionsRequest,
    ApiVersionsResponse,
    EndQuorumEpochRequest,
    FetchSnapshotResponse,
    LeaderResponse,
    RaftFetchRequest,
    RaftFetchResponse,
    RaftResponse,
    Refusal,
    VoterChangeResponse,
    VoteRequest,
    VoteResponse,
)
from service.metadata.raft.voters import VoterNode
from tests.unit.metadata.raft_fields import plain

PLACE = Endpoint("CONTROLLER", "host", 9093)
KEY = ReplicaKey(2, UUID(int=77))
VOTER = VoterNode(KEY, (PLACE,))


def named(values: dict[str, Any]) -> Any:
    """An object with these attributes; dictionaries within are objects, too."""

    class Named:
        def __init__(self) -> None:
            for name, value in values.items():
                if isinstance(value, dict):
                    value = named(value)
                elif isinstance(value, list):
                    value = [named(one) if isinstance(one, dict) else one for one in value]
                setattr(self, name, value)

    return Named()


@pytest.mark.parametrize(
    ("topics", "is_ours"),
    [
        ([{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}], True),
        ([{"name": "__cluster_metadata", "partitions": [{"partition": 0}]}], True),
        ([{"topic": "__cluster_metadata", "partitions": [{"index": 0}]}], True),
        ([{"topic_id": UUID(int=1), "partitions": [{"partition": 0}]}], True),
        ([{"topic_id": UUID(int=2), "partitions": [{"partition": 0}]}], False),
        ([{"topic_name": "other", "partitions": [{"partition_index": 0}]}], False),
        ([{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 1}]}], False),
        ([{"name": "__cluster_metadata", "partitions": [{"partition": -1}]}], False),
        ([{"topic": "__cluster_metadata", "partitions": [{"index": 1}]}], False),
        ([{"name": "__cluster_metadata", "partitions": []}], False),
        ([{"name": "__cluster_metadata", "partitions": [{"partition": 0}] * 2}], False),
        ([{"name": "__cluster_metadata", "partitions": [{"partition": 0}]}] * 2, False),
        ([], False),
    ],
)
def test_requests_name_the_metadata_partition_only(topics: list[Any], is_ours: bool) -> None:
    assert (only_partition([named(one) for one in topics]) is not None) is is_ours
    assert only_partition(None) is None


@pytest.mark.parametrize(
    ("host", "port", "is_one"),
    [
        ("host", 9093, True),
        ("host", 1, True),
        ("host", 0, False),
        ("host", -1, False),
        ("h", 9093, True),
        ("", 9093, False),
        (".".join(["a" * 63] * 3 + ["a" * 63]), 9093, True),
        (".".join(["a" * 62] * 3 + ["a" * 62, "a" * 5]), 9093, False),
        ("a" * 64, 9093, False),
        ("a\0b", 9093, False),
        ("ä.example", 9093, True),
        ("..", 9093, False),
    ],
)
def test_an_invalid_endpoint_is_refused(host: str, port: int, is_one: bool) -> None:
    if is_one:
        assert endpoint_of("X", host, port) == Endpoint("X", host, port)
    else:
        with pytest.raises(CorruptionError):
            endpoint_of("X", host, port)


def test_the_last_of_two_listeners_of_one_name_counts() -> None:
    listeners = [("one", "a", 1), ("Two", "b", 2), ("ONE", "c", 3)]
    found = endpoints_of(
        [named({"name": name, "host": host, "port": port}) for name, host, port in listeners]
    )
    assert found == (Endpoint("ONE", "c", 3), Endpoint("TWO", "b", 2))


def again(api_key: int, version: int, answer: RaftResponse) -> RaftResponse:
    return messages.of_response(api_key, version, messages.to_response(api_key, version, answer))


def test_absent_fields_of_a_response_stay_absent() -> None:
    assert again(59, 1, FetchSnapshotResponse(NONE, 4, 2, PLACE)) == FetchSnapshotResponse(NONE, 4, 2, PLACE)
    assert again(1, 18, RaftFetchResponse(NONE, 4)) == RaftFetchResponse(NONE, 4)
    first = RaftFetchResponse(NONE, 0, 0, PLACE, 0, 0, EpochEnd(0, 0), SnapshotId(0, 0))
    assert again(1, 18, first) == first
    assert again(82, 0, LeaderResponse(NONE, 4)) == LeaderResponse(NONE, 4)
    assert again(81, 0, VoterChangeResponse(NONE)) == VoterChangeResponse(NONE, "")


@pytest.mark.parametrize("snapshot", [SnapshotId(-1, 0), SnapshotId(0, -1)])
def test_a_snapshot_without_an_end_or_an_epoch_is_none(snapshot: SnapshotId) -> None:
    assert again(59, 1, FetchSnapshotResponse(NONE, 4, 2, PLACE, snapshot)) == FetchSnapshotResponse(
        NONE, 4, 2, PLACE
    )


@pytest.mark.parametrize(("epoch", "is_one"), [(2**31 - 2, True), (2**31 - 1, False)])
def test_an_epoch_after_which_there_is_none_is_no_epoch(epoch: int, is_one: bool) -> None:
    answers: list[tuple[int, int, RaftResponse]] = [
        (52, 2, VoteResponse(NONE, epoch)),
        (53, 1, LeaderResponse(NONE, epoch)),
        (82, 0, LeaderResponse(NONE, epoch)),
        (1, 18, RaftFetchResponse(NONE, epoch)),
    ]
    for api_key, version, answer in answers:
        if is_one:
            assert again(api_key, version, answer) == answer
        else:
            with pytest.raises(CorruptionError):
                again(api_key, version, answer)


def test_the_address_of_the_leader_is_the_one_that_is_named_for_it() -> None:
    message = messages.to_response(52, 2, VoteResponse(NONE, 4, 2, PLACE))
    other = type(message.node_endpoints[0])(node_id=1, host="other", port=1)
    object.__setattr__(message, "node_endpoints", (other, *message.node_endpoints))
    assert messages.of_response(52, 2, message) == VoteResponse(NONE, 4, 2, PLACE)
    object.__setattr__(message, "node_endpoints", (other,))
    assert messages.of_response(52, 2, message) == VoteResponse(NONE, 4, 2, None)


def features(*rows: tuple[str, int, int]) -> Any:
    found = [{"name": name, "min_version": least, "max_version": most} for name, least, most in rows]
    return named({"error_code": NONE, "supported_features": found})


def test_a_response_names_the_supported_kraft_versions() -> None:
    both = features(("metadata.version", 1, 29), ("kraft.version", 0, 1))
    assert messages.of_response(18, 4, both) == ApiVersionsResponse(NONE, 0, 1)
    assert messages.of_response(18, 4, features(("kraft.version", 1, 3))) == ApiVersionsResponse(NONE, 1, 3)
    assert messages.of_response(18, 4, features()) == ApiVersionsResponse(NONE, 0, 0)
    with pytest.raises(ValueError, match="answered by the listener"):
        messages.to_response(18, 4, ApiVersionsResponse(NONE))


def test_an_answer_of_another_partition_is_damage() -> None:
    message = messages.to_response(1, 18, RaftFetchResponse(NONE, 4))
    object.__setattr__(message, "responses", ())
    with pytest.raises(CorruptionError):
        messages.of_response(1, 18, message)


def described(*topics: tuple[str, list[int]]) -> Any:
    rows: Iterable[Any] = (
        {"topic_name": name, "partitions": [{"partition_index": one} for one in indexes]}
        for name, indexes in topics
    )
    return named({"topics": list(rows)})


UNKNOWN = Refusal(ErrorCode.unknown_topic_or_partition)


def test_describe_quorum_of_other_partitions_is_refused_for_each() -> None:
    asked = described(("one", [3, 0]), ("__cluster_metadata", [7]))
    assert messages.of_request(55, 2, asked) == UNKNOWN
    said = plain(to_refusal(55, 2, asked, UNKNOWN))
    assert (said["error_code"], said["nodes"]) == ("none", [])
    assert [topic["topic_name"] for topic in said["topics"]] == ["one", "__cluster_metadata"]
    found = [[one["partition_index"] for one in topic["partitions"]] for topic in said["topics"]]
    assert found == [[3, 0], [7]]
    (last,) = said["topics"][1]["partitions"]
    assert last == {
        "partition_index": 7, "error_code": "unknown_topic_or_partition", "error_message": None,
        "leader_id": -1, "leader_epoch": -1, "high_watermark": -1, "current_voters": [], "observers": [],
    }  # fmt: skip
    whole = plain(to_refusal(55, 2, asked, Refusal(ErrorCode.invalid_request)))
    assert (whole["error_code"], whole["topics"]) == ("invalid_request", [])


def test_a_snapshot_of_another_partition_is_refused() -> None:
    asked = named({"topics": [{"name": "other", "partitions": [{"partition": 5}]}]})
    assert messages.of_request(59, 1, asked) == UNKNOWN
    said = plain(to_refusal(59, 1, asked, UNKNOWN))
    assert (said["error_code"], said["topics"][0]["name"]) == ("none", "other")
    (partition,) = said["topics"][0]["partitions"]
    assert (partition["index"], partition["error_code"]) == (5, "unknown_topic_or_partition")
    assert partition["current_leader"] == {"leader_id": -1, "leader_epoch": -1}
    two = named({"topics": [{"name": "other", "partitions": [{"partition": 5}] * 2}]})
    none = named({"topics": []})
    bad = Refusal(ErrorCode.invalid_request)
    assert messages.of_request(59, 1, two) == messages.of_request(59, 1, none) == bad
    assert plain(to_refusal(59, 1, two, bad))["error_code"] == "invalid_request"
    assert plain(to_refusal(52, 2, two, UNKNOWN))["error_code"] == "unknown_topic_or_partition"


def test_fields_that_older_versions_lack_get_defaults() -> None:
    vote = named(
        {"cluster_id": None, "topics": [{"topic_name": "__cluster_metadata", "partitions": [
            {"partition_index": 0, "replica_epoch": 4, "replica_id": 2, "last_offset_epoch": 3,
             "last_offset": 17}]}]}
    )  # fmt: skip
    assert messages.of_request(52, 0, vote) == VoteRequest(
        4, ReplicaKey(2), 3, 17, False, ReplicaKey(-1), None
    )
    fetch = named(
        {"replica_id": 2, "max_bytes": 9, "max_wait": timedelta(milliseconds=7), "topics": [
            {"topic_id": UUID(int=1), "partitions": [{"partition": 0, "fetch_offset": 5}]}]}
    )  # fmt: skip
    assert messages.of_request(1, 13, fetch) == RaftFetchRequest(
        ReplicaKey(2), -1, 5, -1, 2**63 - 1, 9, 7, None
    )
    by_name = named(
        {"replica_id": 2, "max_bytes": 9, "max_wait": timedelta(), "topics": [
            {"topic": "__cluster_metadata", "partitions": [{"partition": 0, "fetch_offset": 5}]}]}
    )  # fmt: skip
    assert messages.of_request(1, 12, by_name) == Refusal(ErrorCode.invalid_request)
    end = named(
        {"cluster_id": "c", "topics": [{"topic_name": "__cluster_metadata", "partitions": [
            {"partition_index": 0, "leader_id": 2, "leader_epoch": 4, "preferred_successors": [3, 1]}]}]}
    )  # fmt: skip
    assert messages.of_request(54, 0, end) == EndQuorumEpochRequest(
        4, 2, (ReplicaKey(3), ReplicaKey(1)), (), "c"
    )
    added = named(
        {"cluster_id": None, "timeout": timedelta(seconds=2), "voter_id": 2,
         "voter_directory_id": UUID(int=77),
         "listeners": [{"name": "controller", "host": "host", "port": 9093}]}
    )  # fmt: skip
    assert messages.of_request(80, 0, added) == AddVoter(VOTER, 2_000, True, None)


def test_an_api_that_is_none_of_the_quorums_is_refused() -> None:
    with pytest.raises(ValueError, match="API 3 is none"):
        messages.of_request(3, 0, named({}))
    assert messages.of_request(18, 4, named({})) == ApiVersionsRequest()
