"""Offsets that are part of a transaction, on a whole node. The test is the transaction's coordinator; the
node asks none, as verification is off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from service.base.java_hash import partition_of
from service.wire.api import ApiKey, request_module
from tests.node.conftest import NodeThread, Talk
from tests.node.requests import commit
from tests.support.processes import wait_until
from tests.support.transactional_requests import commit_in_transaction, fetch_offsets, write_markers

OFFSETS = "__consumer_offsets"
NONE = ErrorCode.none
UNSTABLE = ErrorCode.unstable_offset_commit


@pytest.fixture
def talk(start: Callable[..., NodeThread]) -> Iterator[Talk]:
    node = start(
        offsets_topic_num_partitions="3",
        transaction_partition_verification_enable="false",
        offset_metadata_max_bytes="10",
    )
    with node.client() as client:
        talk = Talk(client)
        talk.create("t", 3)
        talk(ApiKey.FIND_COORDINATOR, "FindCoordinatorRequest", key_type=0, coordinator_keys=("g",))
        wait_until("the group's coordinator", lambda: has_loaded(talk))
        yield talk


def has_loaded(talk: Talk) -> bool:
    module = request_module(ApiKey.OFFSET_FETCH)
    groups = (module.OffsetFetchRequestGroup(group_id="g", topics=None),)
    [found] = talk(ApiKey.OFFSET_FETCH, "OffsetFetchRequest", groups=groups).groups
    return bool(found.error_code is NONE)


def end(talk: Talk, *, is_commit: bool, producer: tuple[int, int] = (7, 0)) -> None:
    place = OFFSETS, partition_of("g", 3)
    markers = (*producer, is_commit, {place[0]: (place[1],)})
    assert write_markers(talk, markers) == {producer[0]: {place: NONE}}


def test_offsets_of_a_transaction_are_a_groups_with_its_commit(talk: Talk) -> None:
    assert commit_in_transaction(talk, {"t": {0: 10, 1: 11}}) == {("t", 0): NONE, ("t", 1): NONE}
    assert fetch_offsets(talk, "t", 0, 1, 2) == [-1, -1, -1]
    assert fetch_offsets(talk, "t", 0, 1, 2, stable=True) == [UNSTABLE, UNSTABLE, -1]
    end(talk, is_commit=True)
    assert fetch_offsets(talk, "t", 0, 1, 2) == [10, 11, -1]
    assert fetch_offsets(talk, "t", 0, 1, 2, stable=True) == [10, 11, -1]


def test_offsets_of_an_aborted_transaction_are_nobodys(talk: Talk) -> None:
    commit(talk, {talk.topic_id("t"): range(1)})
    assert commit_in_transaction(talk, {"t": {0: 10}}) == {("t", 0): NONE}
    assert fetch_offsets(talk, "t", 0, stable=True) == [UNSTABLE]
    end(talk, is_commit=False)
    assert fetch_offsets(talk, "t", 0) == [7]
    assert fetch_offsets(talk, "t", 0, stable=True) == [7]


def test_the_later_record_wins_whatever_ends_first(talk: Talk) -> None:
    """The group's plain commits go on beside a transaction."""
    topic_id = talk.topic_id("t")
    commit_in_transaction(talk, {"t": {0: 10}})
    commit(talk, {topic_id: range(1)})
    end(talk, is_commit=True)
    assert fetch_offsets(talk, "t", 0) == [7]
    commit(talk, {topic_id: range(1)})
    commit_in_transaction(talk, {"t": {0: 20}})
    end(talk, is_commit=True)
    assert fetch_offsets(talk, "t", 0) == [20]


def test_two_transactions_commit_to_one_group_and_each_ends_its_own(talk: Talk) -> None:
    commit_in_transaction(talk, {"t": {0: 10, 1: 11}})
    commit_in_transaction(talk, {"t": {1: 21, 2: 22}}, producer=(8, 3))
    end(talk, is_commit=False)
    assert fetch_offsets(talk, "t", 0, 1, 2, stable=True) == [-1, UNSTABLE, UNSTABLE]
    end(talk, is_commit=True, producer=(8, 3))
    assert fetch_offsets(talk, "t", 0, 1, 2, stable=True) == [-1, 21, 22]


def test_each_partition_has_its_own_error(talk: Talk) -> None:
    offsets = {"t": {0: 1, 3: 1}, "unknown": {0: 1}}
    assert commit_in_transaction(talk, offsets) == {
        ("t", 0): NONE,
        ("t", 3): ErrorCode.unknown_topic_or_partition,
        ("unknown", 0): ErrorCode.unknown_topic_or_partition,
    }


@pytest.mark.parametrize("version", range(6))
def test_a_generation_of_an_unknown_group_is_illegal_in_every_version_that_has_one(
    talk: Talk, version: int
) -> None:
    member: dict[str, Any] = {"generation_id": 3, "member_id": "m"} if version >= 3 else {}
    expected = ErrorCode.illegal_generation if version >= 3 else NONE
    if version == 5:
        return  # a leader asks the coordinator in any case
    assert commit_in_transaction(talk, {"t": {0: 1}}, version=version, **member) == {("t", 0): expected}


def test_producers_that_are_none_and_groups_without_a_name_are_refused(talk: Talk) -> None:
    refused = commit_in_transaction(talk, {"t": {0: 1}}, producer=(-1, 0))
    assert refused == {("t", 0): ErrorCode.invalid_producer_id_mapping}
    refused = commit_in_transaction(talk, {"t": {0: 1}}, producer=(7, -1))
    assert refused == {("t", 0): ErrorCode.invalid_producer_epoch}
    refused = commit_in_transaction(talk, {"t": {0: 1}}, group="")
    assert refused == {("t", 0): ErrorCode.invalid_group_id}


def test_an_older_epoch_cannot_commit_offsets(talk: Talk) -> None:
    assert commit_in_transaction(talk, {"t": {0: 1}}, producer=(7, 2)) == {("t", 0): NONE}
    refused = commit_in_transaction(talk, {"t": {0: 2}}, producer=(7, 1))
    assert refused == {("t", 0): ErrorCode.invalid_producer_epoch}


def test_very_many_offsets_are_one_transaction(talk: Talk) -> None:
    talk.create("wide", 1000)
    answer = commit_in_transaction(talk, {"wide": dict.fromkeys(range(1001), 5)})
    assert answer.pop(("wide", 1000)) is ErrorCode.unknown_topic_or_partition
    assert set(answer.values()) == {NONE}
    assert fetch_offsets(talk, "wide", 0, 999, stable=True) == [UNSTABLE, UNSTABLE]
    end(talk, is_commit=True)
    assert fetch_offsets(talk, "wide", *range(1000), stable=True) == [5] * 1000


def test_pending_offsets_are_there_after_a_restart(start: Callable[..., NodeThread]) -> None:
    keys = {"offsets_topic_num_partitions": "3", "transaction_partition_verification_enable": "false"}
    node = start(**keys)
    with node.client() as client:
        talk = Talk(client)
        talk.create("t", 3)
        talk(ApiKey.FIND_COORDINATOR, "FindCoordinatorRequest", key_type=0, coordinator_keys=("g",))
        wait_until("the group's coordinator", lambda: has_loaded(talk))
        assert commit_in_transaction(talk, {"t": {0: 10}}) == {("t", 0): NONE}
    node.stop()
    node = start(**keys)
    with node.client() as client:
        talk = Talk(client)
        wait_until("the group's coordinator", lambda: has_loaded(talk))
        assert fetch_offsets(talk, "t", 0, stable=True) == [UNSTABLE]
        end(talk, is_commit=True)
        assert fetch_offsets(talk, "t", 0, stable=True) == [10]
