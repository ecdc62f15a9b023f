"""Readers of committed transactions on a whole node.

The test is the transaction coordinator, and the producer that it has verified.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import pytest
from kio.schema.errors import ErrorCode

from service.hot.markers import Marker
from service.hot.state import AppendInfo
from service.hot.verification import VERIFICATION_OFF
from service.partition.partition import Partition
from service.records.batch import read_header
from service.records.builder import BatchBuilder
from service.records.decode import iter_records
from service.records.validation import ValidatedBatch
from service.wire.api import ApiKey, request_module
from tests.node.conftest import NodeThread, Talk
from tests.node.requests import DAY, list_offset, values
from tests.node.test_fetch_sessions import Session, another

T = TypeVar("T")


class Transactions(NamedTuple):
    """What producers and their coordinator write to partition 0 of a topic."""

    node: NodeThread
    topic_id: Any
    sequences: dict[int, int]

    def on_loop(self, call: Callable[[Partition], T]) -> T:
        async def run() -> T:
            broker = self.node.node.parts.broker
            assert broker is not None
            return call(broker.replicas.find(self.topic_id, 0))

        return asyncio.run_coroutine_threadsafe(run(), self.node._loop).result(20)

    def send(self, producer_id: int, *values: bytes, timestamp: int = DAY) -> None:
        sequence = self.sequences.get(producer_id, 0)
        self.sequences[producer_id] = sequence + len(values)
        builder = BatchBuilder(
            producer_id=producer_id, producer_epoch=0, base_sequence=sequence, is_transactional=True
        )
        for value in values:
            builder.add(timestamp, None, value)
        data = memoryview(builder.build())
        batch = ValidatedBatch(data, read_header(data), timestamp, 0, len(values))
        self.on_loop(lambda partition: partition.append(batch, DAY, VERIFICATION_OFF))

    def end(self, *producer_ids: int, is_commit: bool = True) -> None:
        markers = [Marker(one, 0, 1, is_commit, 1) for one in producer_ids]
        for result in self.on_loop(lambda partition: partition.append_markers(markers, DAY)):
            assert isinstance(result, AppendInfo)


@pytest.fixture
def node(start: Callable[..., NodeThread]) -> NodeThread:
    return start()


@pytest.fixture
def talk(node: NodeThread) -> Any:
    with node.client() as client:
        yield Talk(client)


@pytest.fixture
def transactions(node: NodeThread, talk: Talk) -> Transactions:
    return Transactions(node, talk.create("t").topic_id, {})


def committed(answer: Any) -> list[bytes | None]:
    """What a client shows of the whole batches of an answer: nothing of aborted transactions."""
    firsts: dict[int, list[int]] = {}
    for one in answer.aborted_transactions or ():
        firsts.setdefault(one.producer_id, []).append(one.first_offset)
    shown, data = [], memoryview(answer.records or b"")
    aborting: set[int] = set()
    while len(data) > 61 and read_header(data).size <= len(data):
        header = read_header(data)
        producer_id = header.producer_id
        while firsts.get(producer_id) and min(firsts[producer_id]) <= header.last_offset:
            firsts[producer_id].remove(min(firsts[producer_id]))
            aborting.add(producer_id)
        if header.is_control:
            aborting.discard(producer_id)
        elif not (header.is_transactional and producer_id in aborting):
            shown += [record.value for record in iter_records(data[: header.size])]
        data = data[header.size :]
    return shown


def test_readers_of_committed_transactions_see_them_whole_and_in_order(
    talk: Talk, transactions: Transactions
) -> None:
    transactions.send(7, b"a")
    transactions.send(8, b"b")
    talk.produce(transactions.topic_id, [b"c"], DAY)
    transactions.end(8, is_commit=False)
    hidden = talk.fetch(transactions.topic_id, 0, isolation_level=1)
    assert (hidden.last_stable_offset, hidden.high_watermark, hidden.records) == (0, 4, b"")
    assert hidden.aborted_transactions == ()
    assert values(talk.fetch(transactions.topic_id, 0).records)[:3] == [b"a", b"b", b"c"]
    transactions.send(7, b"d")
    transactions.end(7)
    seen = talk.fetch(transactions.topic_id, 0, isolation_level=1)
    assert (seen.last_stable_offset, seen.high_watermark) == (6, 6)
    assert [(one.producer_id, one.first_offset) for one in seen.aborted_transactions] == [(8, 1)]
    assert committed(seen) == [b"a", b"c", b"d"]
    behind = talk.fetch(transactions.topic_id, 4, isolation_level=1)
    assert (behind.aborted_transactions, committed(behind)) == ((), [b"d"])
    assert talk.fetch(transactions.topic_id, 0).aborted_transactions is None


def test_a_fetch_has_the_transactions_of_what_it_returns_and_no_others(
    talk: Talk, transactions: Transactions
) -> None:
    for n in range(300):
        transactions.send(n, b"%03d" % n * 100)
        transactions.end(n, is_commit=n % 2 == 0)
    at, found, named = 0, [], []
    while at < 600:
        answer = talk.fetch(transactions.topic_id, at, isolation_level=1, partition_max_bytes=30_000)
        found += [value[:3] for value in committed(answer) if value]
        named.append([one.first_offset for one in answer.aborted_transactions])
        data, end = memoryview(answer.records), at
        while len(data) > 61 and read_header(data).size <= len(data):
            end = read_header(data).next_offset
            data = data[read_header(data).size :]
        assert named[-1][0] < end
        assert all(at - 2 < first < end + 30 for first in named[-1])
        at = end
    assert found == [b"%03d" % n for n in range(0, 300, 2)]
    assert len(named) > 3
    assert all(len(set(some)) == len(some) for some in named)


def test_a_waiting_reader_is_woken_by_the_marker_and_by_nothing_before(
    talk: Talk, transactions: Transactions
) -> None:
    transactions.send(7, b"a" * 100)
    waits = another(talk)
    answers: list[Any] = []

    def wait() -> None:
        answers.append(
            waits.fetch(transactions.topic_id, 0, isolation_level=1, max_wait=60_000, min_bytes=50)
        )

    thread = threading.Thread(target=wait)
    thread.start()
    broker = transactions.node.node.parts.broker
    assert broker is not None
    while broker.metrics.waiting == 0:
        time.sleep(0.01)
    talk.produce(transactions.topic_id, [b"b" * 100], DAY)
    transactions.send(8, b"c" * 100)
    assert (answers, broker.metrics.waiting) == ([], 1)
    transactions.end(7)
    thread.join()
    assert committed(answers[0]) == [b"a" * 100, b"b" * 100]
    assert answers[0].last_stable_offset == 2
    waits.client.close()


def test_bytes_behind_the_last_stable_offset_are_not_counted(talk: Talk, transactions: Transactions) -> None:
    talk.produce(transactions.topic_id, [b"a" * 100], DAY)
    transactions.send(7, b"b" * 5000)
    began = time.monotonic()
    found = talk.fetch(transactions.topic_id, 0, isolation_level=1, max_wait=200, min_bytes=1000)
    assert time.monotonic() - began >= 0.15
    assert committed(found) == [b"a" * 100]
    assert values(talk.fetch(transactions.topic_id, 0, max_wait=60_000, min_bytes=1000).records)


def test_a_session_reads_up_to_the_last_stable_offset_and_rests_there(
    talk: Talk, transactions: Transactions
) -> None:
    topic_id = transactions.topic_id
    session = Session(talk, {(topic_id, 0): 0})
    assert session.fetch(isolation_level=1)[topic_id, 0].records == b""
    assert session.session_id != 0
    transactions.send(7, b"a")
    talk.produce(topic_id, [b"b"], DAY)
    assert session.fetch(isolation_level=1) == {}, "nothing is new to it"
    broker = transactions.node.node.parts.broker
    assert broker is not None
    (known,) = broker.fetch_sessions._sessions.values()
    assert not known.dirty, "it is not read again until the offset rises"
    talk.produce(topic_id, [b"c"], DAY)
    assert not known.dirty
    transactions.end(7, is_commit=False)
    assert known.dirty
    (answer,) = session.fetch(isolation_level=1, max_wait=20_000).values()
    assert committed(answer) == [b"b", b"c"]


@pytest.mark.parametrize("before", [0, 1])
def test_a_session_may_change_its_isolation_level(
    talk: Talk, transactions: Transactions, before: int
) -> None:
    topic_id = transactions.topic_id
    session = Session(talk, {(topic_id, 0): 0})
    session.fetch(isolation_level=before)
    transactions.send(7, b"a")
    session.fetch(isolation_level=before)
    for level in (1 - before, before, 1 - before):
        told = session.fetch(isolation_level=level)
        assert told == {} or not level or committed(told[topic_id, 0]) == []
    transactions.send(7, b"b")
    found = session.fetch(isolation_level=0, max_wait=20_000)
    assert values(found[topic_id, 0].records)[-1] == b"b"
    waits = Session(another(talk), {(topic_id, 0): 0})
    waits.fetch(isolation_level=0)
    assert waits.fetch(isolation_level=1) in ({}, {(topic_id, 0): waits})
    thread = threading.Timer(0.1, lambda: transactions.end(7))
    thread.start()
    waits.at[topic_id, 0] = waits.changed[topic_id, 0] = 0
    assert committed(waits.fetch(isolation_level=1, max_wait=20_000)[topic_id, 0]) == [b"a", b"b"]
    thread.join()
    waits.talk.client.close()


def test_offsets_are_found_below_the_last_stable_offset(talk: Talk, transactions: Transactions) -> None:
    talk.produce(transactions.topic_id, [b"a", b"b"], DAY)
    transactions.send(7, b"c", timestamp=DAY + 500)
    talk.produce(transactions.topic_id, [b"d"], DAY + 1000)

    def offset(timestamp: int, isolation: int) -> int:
        module = request_module(ApiKey.LIST_OFFSETS)
        part = module.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        answer = talk(
            ApiKey.LIST_OFFSETS, "ListOffsetsRequest", replica_id=-1, isolation_level=isolation,
            topics=(module.ListOffsetsTopic(name="t", partitions=(part,)),), timeout=20_000,
        )  # fmt: skip
        found = answer.topics[0].partitions[0]
        assert found.error_code is ErrorCode.none
        return int(found.offset)

    asked = (-1, -2, -3, DAY, DAY + 400, DAY + 900)
    assert [offset(one, 0) for one in asked] == [4, 0, 3, 0, 2, 3]
    assert [offset(one, 1) for one in asked] == [2, 0, -1, 0, -1, -1]
    transactions.end(7)
    assert [offset(one, 1) for one in asked] == [5, 0, 3, 0, 2, 3]
    assert list_offset(talk, -1).offset == 5


def test_producers_are_described_with_their_coordinator_and_transaction(
    talk: Talk, transactions: Transactions
) -> None:
    transactions.send(7, b"a")
    transactions.send(8, b"b")
    transactions.end(8)
    module = request_module(ApiKey.DESCRIBE_PRODUCERS)
    topics = (module.TopicRequest(name="t", partition_indexes=(0,)),)
    answer = talk(ApiKey.DESCRIBE_PRODUCERS, "DescribeProducersRequest", topics=topics)
    found = [
        (one.producer_id, one.producer_epoch, one.coordinator_epoch, one.current_txn_start_offset)
        for one in answer.topics[0].partitions[0].active_producers
    ]
    assert found == [(7, 0, -1, 0), (8, 0, 1, -1)]
