"""Markers that a coordinator sends to a whole node. The test is the coordinator."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from kio.schema.errors import ErrorCode

from service.base.java_hash import partition_of
from service.wire.api import ApiKey
from tests.node.conftest import NodeThread, Talk
from tests.node.requests import list_offset
from tests.node.test_read_committed import Transactions, committed
from tests.support.transactional_client import TransactionalClient, settled
from tests.support.transactional_requests import write_markers
from tests.support.wire import schema

NONE = ErrorCode.none


@pytest.fixture
def node(start: Callable[..., NodeThread]) -> NodeThread:
    return start()


@pytest.fixture
def talk(node: NodeThread) -> Iterator[Talk]:
    with node.client() as client:
        yield Talk(client)


def test_markers_end_transactions_and_each_partition_has_its_result(node: NodeThread, talk: Talk) -> None:
    transactions = Transactions(node, talk.create("t").topic_id, {})
    transactions.send(7, b"a")
    transactions.send(8, b"b")
    assert write_markers(talk, (7, 0, True, {"t": (0, 5), "nothing": (0,)}), (8, 0, False, {"t": (0,)})) == {
        7: {
            ("t", 0): NONE,
            ("t", 5): ErrorCode.unknown_topic_or_partition,
            ("nothing", 0): ErrorCode.unknown_topic_or_partition,
        },
        8: {("t", 0): NONE},
    }
    seen = talk.fetch(transactions.topic_id, 0, isolation_level=1)
    assert (seen.last_stable_offset, committed(seen)) == (4, [b"a"])


def test_markers_of_older_coordinators_and_epochs_are_refused(node: NodeThread, talk: Talk) -> None:
    transactions = Transactions(node, talk.create("t").topic_id, {})
    transactions.send(7, b"a")
    places = {"t": (0,)}
    assert write_markers(talk, (7, 3, False, places), coordinator_epoch=5) == {7: {("t", 0): NONE}}
    older = write_markers(talk, (7, 3, False, places), coordinator_epoch=4)
    assert older == {7: {("t", 0): ErrorCode.transaction_coordinator_fenced}}
    stale = write_markers(talk, (7, 2, True, places), coordinator_epoch=5)
    assert stale == {7: {("t", 0): ErrorCode.invalid_producer_epoch}}
    twice = write_markers(talk, (7, 3, False, places), coordinator_epoch=5)
    assert twice == {7: {("t", 0): NONE}}
    seen = talk.fetch(transactions.topic_id, 0, isolation_level=1)
    assert (seen.last_stable_offset, committed(seen)) == (3, [])


@pytest.mark.parametrize(("producer_id", "epoch"), [(-1, 0), (7, -1), (-5, -1)])
def test_markers_of_nobody_are_refused_and_nothing_is_written(
    talk: Talk, producer_id: int, epoch: int
) -> None:
    talk.create("t")
    [errors] = write_markers(talk, (producer_id, epoch, True, {"t": (0,)})).values()
    assert errors[("t", 0)] in (ErrorCode.invalid_producer_epoch, ErrorCode.invalid_request)
    assert list_offset(talk, -1).offset == 0


def test_a_marker_of_a_producer_never_seen_is_written_and_ends_nothing(talk: Talk) -> None:
    topic_id = talk.create("t").topic_id
    assert write_markers(talk, (99, 4, True, {"t": (0,)})) == {99: {("t", 0): NONE}}
    seen = talk.fetch(topic_id, 0, isolation_level=1)
    assert (seen.last_stable_offset, seen.aborted_transactions, committed(seen)) == (1, (), [])


def test_markers_for_ten_thousand_partitions_leave_turns_to_others(node: NodeThread, talk: Talk) -> None:
    talk.create("t")
    places = {f"topic-{n}": tuple(range(100)) for n in range(99)} | {"t": tuple(range(100))}
    began = time.monotonic()
    [errors] = write_markers(talk, (7, 0, True, places)).values()
    assert len(errors) == 10_000
    assert errors.pop(("t", 0)) is NONE
    assert set(errors.values()) == {ErrorCode.unknown_topic_or_partition}
    assert time.monotonic() - began < 20


def test_a_request_without_markers_is_answered(talk: Talk) -> None:
    assert write_markers(talk) == {}


def test_offsets_partitions_that_nobody_coordinates_here_are_not_led_here(talk: Talk) -> None:
    index = partition_of("g", 50)
    refused = write_markers(talk, (7, 0, True, {"__consumer_offsets": (index,)}))
    assert refused == {7: {("__consumer_offsets", index): ErrorCode.unknown_topic_or_partition}}


def test_the_topic_of_states_takes_no_markers(start: Callable[..., NodeThread]) -> None:
    """Not by hand, and not as a part of a transaction: its coordinators would have to read around it."""
    node, states = start(transaction_state_log_num_partitions="1"), ("__transaction_state", 0)
    with node.client() as client, TransactionalClient(f"{node.host}:{node.port}", "pay") as producer:
        talk = Talk(client)
        assert settled(producer, producer.init) == NONE
        refused = {states: ErrorCode.topic_authorization_failed}
        assert write_markers(talk, (7, 0, True, {states[0]: (0,)})) == {7: refused}
        module = schema(24, 5)
        topics = (module.AddPartitionsToTxnTopic(name=states[0], partitions=(0,)),)
        whole = module.AddPartitionsToTxnTransaction(
            transactional_id="pay",
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            verify_only=False,
            topics=topics,
        )
        added = talk(ApiKey.ADD_PARTITIONS_TO_TXN, "AddPartitionsToTxnRequest", transactions=(whole,))
        [answer] = added.results_by_transaction
        [error] = answer.topic_results[0].results_by_partition
        assert error.partition_error_code is ErrorCode.topic_authorization_failed
        assert settled(producer, producer.init) == NONE
