"""Answers of Apache Kafka 4.3.1's transaction coordinator, request by request, beside ours.

``capture_answers.py`` wrote ``answers.txt.gz``: sequences of requests of every version, in
every state, with epochs that are present, behind, ahead and used up, at each level of
``transaction.version``.
"""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest

from service.network.request import RequestContext
from service.serving.handlers import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    describe_transactions,
    end_txn,
    init_producer_id,
)
from service.transactions.metadata import TransactionMetadata
from service.transactions.records import decode_value, encode_key
from service.wire.api import request_module
from service.wire.schema import millis
from tests.support.shards import CoordinatorRecord, Written
from tests.support.transaction_broker import TransactionBroker
from tests.support.transaction_shards import TransactionLeader

ANSWERS = Path(__file__).parent / "answers.txt.gz"
PLACES = {"a0": ("a", 0), "a1": ("a", 1), "b0": ("b", 0), "s0": ("stuck", 0)}
NAMES = {place: name for name, place in PLACES.items()}
NAME = "an-id"


class Sequence(NamedTuple):
    """Requests about one id. `level` of the feature; `start`: its first record's value."""

    line: int
    level: int
    start: bytes
    steps: list[tuple[str, str, str]]


def sequences() -> Iterator[Sequence]:
    found: Sequence | None = None
    for number, line in enumerate(gzip.decompress(ANSWERS.read_bytes()).decode().splitlines(), 1):
        if line.startswith("#"):
            if found is not None:
                yield found
            _, level, start = line.split(" ")
            found = Sequence(number, int(level), b"" if start == "-" else bytes.fromhex(start), [])
        else:
            assert found is not None
            ask, answer, seen = line.split(" | ")
            found.steps.append((ask, answer, seen))
    assert found is not None
    yield found


class Replayed:
    """Our broker, asked what Kafka's was asked. Markers of the topic ``stuck`` are never written."""

    def __init__(self, sequence: Sequence) -> None:
        start = decode_value(sequence.start) if sequence.start else None
        now_ms = start.updated_ms if isinstance(start, TransactionMetadata) else 1_800_000_000_000
        self.leader = TransactionLeader(now_ms, transaction_version=sequence.level)
        topics = {"a": 2, "b": 1, "stuck": 1, "__consumer_offsets": 1}
        self.broker = cast("Any", TransactionBroker(self.leader, topics))
        if sequence.start:
            record = CoordinatorRecord(encode_key(NAME), sequence.start)
            self.leader.leader.reload([Written(record, -1)])

    async def ask(self, text: str) -> str:
        kind, version, *more = text.split(" ")
        context = self.broker.context(1, int(version))
        producer = {"producer_id": int(more[0]), "producer_epoch": int(more[1])}
        if kind == "init":
            given = producer if int(version) >= 3 else {}
            request = request_module(22).InitProducerIdRequest(
                transactional_id=NAME, transaction_timeout=timedelta(milliseconds=int(more[2])), **given
            )
            answer: Any = await init_producer_id.handle(self.broker, context, request)
            return f"{answer.error_code.name} {answer.producer_id} {answer.producer_epoch}"
        if kind == "end":
            request = request_module(26).EndTxnRequest(
                transactional_id=NAME, committed=more[2] == "commit", **producer
            )
            answer = await end_txn.handle(self.broker, context, request)
            return f"{answer.error_code.name} {answer.producer_id} {answer.producer_epoch}"
        if kind == "offsets":
            request = request_module(25).AddOffsetsToTxnRequest(
                transactional_id=NAME, group_id="a-group", **producer
            )
            return (await add_offsets_to_txn.handle(self.broker, context, request)).error_code.name
        return await self._add(context, more[2].split(","), is_verified=kind == "verify", **producer)

    async def _add(
        self, context: RequestContext, names: list[str], *, is_verified: bool, **producer: int
    ) -> str:
        module = request_module(24)
        topics = tuple(
            module.AddPartitionsToTxnTopic(name=PLACES[name][0], partitions=(PLACES[name][1],))
            for name in names
        )
        one = module.AddPartitionsToTxnTransaction(
            transactional_id=NAME, verify_only=is_verified, topics=topics, **producer
        )
        request = module.AddPartitionsToTxnRequest(transactions=(one,))
        answer: Any = await add_partitions_to_txn.handle(self.broker, context, request)
        codes = {
            NAMES[topic.name, one.partition_index]: one.partition_error_code.name
            for topic in answer.results_by_transaction[0].topic_results
            for one in topic.results_by_partition
        }
        return " ".join(codes[name] for name in names)

    async def see(self) -> str:
        """The id as DescribeTransactions tells it, once the markers that can be written are."""
        self.leader.leader.advance(0)
        told, self.leader.told[:] = list(self.leader.told), []
        for one in told:
            if ("stuck", 0) not in one.partitions:
                self.leader.marked(one)
        request = request_module(65).DescribeTransactionsRequest(transactional_ids=(NAME,))
        made: Any = describe_transactions.handle(self.broker, self.broker.context(65, 0), request)
        answer: Any = await made if asyncio.iscoroutine(made) else made
        (state,) = answer.transaction_states
        if state.error_code.name != "none":
            return str(state.error_code.name)
        places = sorted(NAMES.get((t.topic, p), "o") for t in state.topics for p in t.partitions)
        if state.transaction_state.startswith("Prepare"):
            places = ["s0"]  # the others have their markers, which Kafka's answer shows
        timeout_ms = millis(state.transaction_timeout)
        head = f"{state.transaction_state} {state.producer_id} {state.producer_epoch} {timeout_ms}"
        return f"{head} {','.join(places) or '-'}"


async def _differences(level: int) -> tuple[int, list[str]]:
    count, found = 0, []
    for sequence in sequences():
        if sequence.level != level:
            continue
        count += 1
        replayed = Replayed(sequence)
        for number, (ask, answer, seen) in enumerate(sequence.steps, sequence.line + 1):
            ours = await replayed.ask(ask), await replayed.see()
            if ours != (answer, seen):
                found.append(f"{number}: {ask} | {answer} | {seen}, ours {' | '.join(ours)}")
                break
    return count, found


@pytest.mark.parametrize(("level", "least"), [(0, 2000), (1, 500), (2, 2000)])
def test_the_coordinator_answers_as_apache_kafka_does(level: int, least: int) -> None:
    count, found = asyncio.run(_differences(level))
    assert count >= least
    assert not found
