"""Requests about transactions with very many elements: no turn of the loop takes long, whatever they name."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from service.wire.api import ApiKey, request_module
from tests.node.conftest import NodeThread, Talk
from tests.support.processes import wait_until

LONGEST_S = 0.03
HEAVY = "|".join(f"[ab]*a[ab]{{{count}}}c" for count in range(100, 700, 100))
"""A match with a long name takes a second, where it is by steps of an automaton."""


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """CPU time of each turn of the node's loop, without the collector of garbage, which a node keeps out of
    them."""
    found: list[float] = []
    run_once = asyncio.BaseEventLoop._run_once  # type: ignore[attr-defined]

    def timed(self: Any) -> None:
        began_s = time.thread_time()
        run_once(self)
        if threading.current_thread().name == "node":
            found.append(time.thread_time() - began_s)

    monkeypatch.setattr(asyncio.BaseEventLoop, "_run_once", timed)
    gc.disable()
    yield found
    gc.enable()


@pytest.fixture
def talk(turns: list[float], start: Callable[..., NodeThread]) -> Iterator[Talk]:
    node = start(**{"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"})
    with node.client() as client:
        yield Talk(client)


def init(talk: Talk, name: str) -> tuple[int, int]:
    found: list[tuple[int, int]] = []

    def is_given() -> bool:
        talk(ApiKey.FIND_COORDINATOR, "FindCoordinatorRequest", key_type=1, coordinator_keys=(name,))
        answer = talk(
            ApiKey.INIT_PRODUCER_ID,
            "InitProducerIdRequest",
            transactional_id=name,
            transaction_timeout=timedelta(minutes=1),
        )
        found[:] = [(answer.producer_id, answer.producer_epoch)]
        return bool(answer.error_code == ErrorCode.none)

    wait_until("a producer", is_given)
    return found[0]


def test_turns_are_short_whatever_transactional_requests_name(talk: Talk, turns: list[float]) -> None:
    talk.create("t")
    producer_id, epoch = init(talk, "pay")
    adding = request_module(ApiKey.ADD_PARTITIONS_TO_TXN)
    offsets = request_module(ApiKey.TXN_OFFSET_COMMIT)
    marking = request_module(ApiKey.WRITE_TXN_MARKERS)

    def add(*partitions: int) -> None:
        topics = (adding.AddPartitionsToTxnTopic(name="t", partitions=partitions),)
        one = adding.AddPartitionsToTxnTransaction(
            transactional_id="pay",
            producer_id=producer_id,
            producer_epoch=epoch,
            verify_only=False,
            topics=topics,
        )
        talk(ApiKey.ADD_PARTITIONS_TO_TXN, "AddPartitionsToTxnRequest", transactions=(one,))

    def commit(*names: str) -> None:
        topics = [offsets.TxnOffsetCommitRequestTopic(name=name, partitions=()) for name in names]
        talk(
            ApiKey.TXN_OFFSET_COMMIT,
            "TxnOffsetCommitRequest",
            transactional_id="pay",
            group_id="g",
            producer_id=producer_id,
            producer_epoch=epoch,
            topics=tuple(topics),
        )

    def mark(*partitions: int) -> None:
        topics = (marking.WritableTxnMarkerTopic(name="t", partition_indexes=partitions),)
        one = marking.WritableTxnMarker(
            producer_id=9,
            producer_epoch=0,
            transaction_result=True,
            topics=topics,
            coordinator_epoch=1,
        )
        talk(ApiKey.WRITE_TXN_MARKERS, "WriteTxnMarkersRequest", markers=(one,))

    add()  # the first one of each loads code
    commit()
    mark()
    turns.clear()
    add(*[0] * 70_000)
    assert max(turns) < LONGEST_S, "AddPartitionsToTxn"
    commit(*[f"t{number}" for number in range(30_000)])
    assert max(turns) < LONGEST_S, "TxnOffsetCommit"
    mark(*[0] * 5_000)
    assert max(turns) < LONGEST_S, "WriteTxnMarkers"


def test_a_pattern_that_takes_long_is_matched_beside_the_loop(talk: Talk, turns: list[float]) -> None:
    draw = random.Random(1)
    name = "".join(draw.choices("ab", k=30_000))
    init(talk, name)
    init(talk, "pay")

    def listed(pattern: str) -> list[str]:
        answer = talk(
            ApiKey.LIST_TRANSACTIONS,
            "ListTransactionsRequest",
            state_filters=(),
            producer_id_filters=(),
            duration_filter=-1,
            transactional_id_pattern=pattern,
        )
        assert answer.error_code == ErrorCode.none
        return sorted(one.transactional_id for one in answer.transaction_states)

    assert listed("p.*") == ["pay"]
    turns.clear()
    assert listed(HEAVY) == []
    assert listed(f"{HEAVY}|[ab]*") == [name]
    assert max(turns) < LONGEST_S
