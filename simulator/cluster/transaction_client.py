"""Transactional producer of the simulator: both of Kafka's protocols, request by request.

Version 2 (KIP-890) speaks Produce 12, TxnOffsetCommit 5 and EndTxn 5; version 1 adds partitions and groups
itself, and speaks Produce 11, TxnOffsetCommit 3 and EndTxn 4. What a client tries again is tried again; a
producer that is fenced, or gets no answer for long, ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from enum import Enum
from functools import cache
from random import Random
from typing import Any, Final

from kio.index import load_payload_module
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType

from service.records.batch import CompressionType
from service.records.builder import BatchBuilder
from simulator.client import Client, NoAnswer, Produced
from simulator.cluster.client import Batch, send_batch
from simulator.cluster.group_clients import GROUP, find_coordinator
from simulator.cluster.groups import ClusterGroup
from simulator.cluster.transaction_model import Transaction
from simulator.cluster.transactional import TransactionalWorld
from simulator.machine import Machine
from simulator.model import PartitionModel, TopicModel, Violation

TRANSACTION: Final = 1
"""Kind of a coordinator's key."""
AGAIN: Final = frozenset(
    {
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.concurrent_transactions,
        ErrorCode.request_timed_out,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.operation_not_attempted,
        ErrorCode.kafka_storage_error,
    }
)
FENCED: Final = frozenset(
    {
        ErrorCode.producer_fenced,
        ErrorCode.invalid_producer_epoch,
        ErrorCode.invalid_producer_id_mapping,
        ErrorCode.invalid_txn_state,
    }
)
_NEVER: Final = frozenset({ErrorCode.unknown_server_error, ErrorCode.invalid_request})
_PATIENCE_S: Final = 40.0
_ANSWER_S: Final = 8.0
_PAUSE_S: Final = 0.1


class Standing(Enum):
    """State of a producer, by what it may do."""

    NEW = "has no id"
    READY = "may begin a transaction"
    MUST_ABORT = "has to abort its transaction"
    ENDED = "is fenced, or was given up"


@cache
def schema(key: int, version: int) -> Any:
    """Return kio's module of a request."""
    return load_payload_module(key, version, EntityType.request)


class TransactionalProducer:
    """One client with a transactional id."""

    def __init__(
        self, world: TransactionalWorld, random: Random, name: str, *, is_second: bool, timeout_s: float
    ) -> None:
        self.world, self.random, self.name = world, random, name
        self.is_second = is_second
        self.timeout_s = timeout_s
        self.standing = Standing.NEW
        self.producer_id = self.epoch = -1
        self.who = f"{name}, client {len(world.producers)}"
        self.sequences: dict[tuple[str, int], int] = {}
        self.now: Transaction | None = None
        self.is_busy = False
        self.is_committed = False
        """whether the last transaction was committed, as answered"""
        self.last_error = ErrorCode.none
        self._added: set[tuple[str, int]] = set()
        self._groups: set[str] = set()
        self._is_doubtful = False
        """whether a batch may come late, so that the epoch has to rise before the next transaction"""
        world.producers.append(self)

    def __str__(self) -> str:
        return f"{self.who} ({self.producer_id}/{self.epoch})"

    def tell(self, text: str) -> None:
        self.world.trace.tell("producer", f"{self}: {text}")

    # Steps

    async def init(self) -> bool:
        """Send InitProducerId until it is answered; return whether the producer may begin."""
        m = schema(22, 5 if self.is_second else 4)
        again = self.standing is Standing.READY
        request = m.InitProducerIdRequest(
            transactional_id=self.name,
            transaction_timeout=timedelta(seconds=self.timeout_s),
            producer_id=self.producer_id if again else -1,
            producer_epoch=self.epoch if again else -1,
        )
        answer = await self._ask_coordinator(request, lambda one: one.error_code)
        if answer is None or answer.error_code is not ErrorCode.none:
            return self._end_of("InitProducerId", answer)
        self._take(answer)
        self._is_doubtful = False
        self.standing = Standing.READY
        self.tell("is ready")
        return True

    async def begin(self) -> bool:
        """Begin a transaction; nothing is sent but, where it is needed, InitProducerId."""
        if self.standing is Standing.NEW or (self.standing is Standing.READY and self._is_doubtful):
            await self.init()
        if self.standing is not Standing.READY:
            return False
        known = self.world.transactions
        after = known.ids.count(self.name)
        self.now = known.transactions.begin(self.name, self.producer_id, self.epoch, after)
        self._added.clear()
        self._groups.clear()
        return True

    async def send(self, topic: TopicModel, partition: PartitionModel, values: list[bytes]) -> bool:
        """Produce one batch; return whether it is certainly in the log."""
        assert self.now is not None
        place, key = (topic.name, partition.index), (topic.topic_id, partition.index)
        if not self.is_second and not await self.add(place):
            return False
        self.world.transactions.transactions.sends(self.now, key, values)
        batch = self.batch_of(place, values)
        is_there = await send_batch(
            self.world,
            self.random,
            topic,
            partition,
            batch,
            again=True,
            acks=-1,
            connect=lambda machine: Sender(machine, self, topic.name),
        )
        if is_there:
            self.sequences[place] = self.sequences.get(place, 0) + len(values)
            self.now.acknowledged.update(values)
        elif self.last_error in FENCED - {ErrorCode.invalid_txn_state}:
            self._fenced(f"produce: {self.last_error.name}")
        else:
            self.give_up()
        return is_there

    async def send_offsets(self, group: ClusterGroup, topic: TopicModel, offsets: dict[int, int]) -> bool:
        """Commit offsets of a group in the transaction; return whether that was done."""
        assert self.now is not None
        if not self.is_second and not await self._add_group(group):
            return False
        m = schema(28, 5 if self.is_second else 3)
        rows = tuple(
            m.TxnOffsetCommitRequestPartition(
                partition_index=one, committed_offset=value, committed_metadata=""
            )
            for one, value in offsets.items()
        )
        request = m.TxnOffsetCommitRequest(
            transactional_id=self.name,
            group_id=group.group_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=(m.TxnOffsetCommitRequestTopic(name=topic.name, partitions=rows),),
        )
        self.now.offsets.update({(group.group_id, one): value for one, value in offsets.items()})
        if group.is_transactional:  # else offsets are those of records, and come again
            for one, value in offsets.items():
                group.of(one).sent.add(value)
                group.of(one).undecided[value] = self.now
        answer = await self._ask(request, _worst_of_offsets, GROUP, group.group_id)
        error = ErrorCode.request_timed_out if answer is None else _worst_of_offsets(answer)
        self.tell(f"offsets {offsets} of {group}: {error.name}")
        if error is ErrorCode.none:
            self.now.answered_offsets.update((group.group_id, one) for one in offsets)
            return True
        if error in FENCED - {ErrorCode.invalid_txn_state}:
            self._fenced(f"offsets: {error.name}")
        else:
            self.give_up()
        return False

    async def end(self, *, commit: bool) -> bool:
        """Send EndTxn until it is answered; return whether it was answered as wanted."""
        one, self.now = self.now, None
        assert one is not None
        self.is_committed = False
        if not (one.records or one.offsets or self._added or self._groups):
            return True
        if self.standing is Standing.ENDED:
            return False
        commit = commit and self.standing is not Standing.MUST_ABORT
        one.asked = "commit" if commit else "abort"
        m = schema(26, 5 if self.is_second else 4)
        request = m.EndTxnRequest(
            transactional_id=self.name,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        answer = await self._ask_coordinator(request, lambda one: one.error_code)
        if answer is None or answer.error_code is not ErrorCode.none:
            return self._end_of(f"EndTxn, {one.asked}", answer)
        one.told = one.asked
        self.is_committed = commit
        self.tell(f"{one}: {one.told}, as answered")
        self.world.ends[one.told] += 1
        if self.is_second:
            self._take(answer)
        self.standing = Standing.READY
        return True

    def give_up(self) -> None:
        """Have the transaction aborted, as a client has to that does not know what became of a batch."""
        self.standing, self._is_doubtful = Standing.MUST_ABORT, True

    # Their parts

    def batch_of(self, place: tuple[str, int], values: list[bytes]) -> Batch:
        """Return the producer's next batch for a partition."""
        builder = BatchBuilder(
            codec=CompressionType.NONE,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self.sequences.get(place, 0),
            is_transactional=True,
        )
        made_ms = self.world.real_ms()
        for value in values:
            builder.add(made_ms, None, value)
        return Batch(bytes(builder.build()), values, made_ms)

    async def add(self, place: tuple[str, int]) -> bool:
        """Add a partition to the transaction, as clients of version 1 do; return whether that was done."""
        if place in self._added:
            return True
        m = schema(24, 3)
        topic = m.AddPartitionsToTxnTopic(name=place[0], partitions=(place[1],))
        request = m.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=(topic,),
        )
        self._added.add(place)
        answer = await self._ask_coordinator(request, _worst_of_added)
        error = ErrorCode.request_timed_out if answer is None else _worst_of_added(answer)
        return self._is_done(f"add {place}", error)

    async def _add_group(self, group: ClusterGroup) -> bool:
        if group.group_id in self._groups:
            return True
        m = schema(25, 3)
        request = m.AddOffsetsToTxnRequest(
            transactional_id=self.name,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            group_id=group.group_id,
        )
        self._groups.add(group.group_id)
        answer = await self._ask_coordinator(request, lambda one: one.error_code)
        error = ErrorCode.request_timed_out if answer is None else answer.error_code
        return self._is_done(f"add {group}", error)

    def _is_done(self, what: str, error: ErrorCode) -> bool:
        if error is ErrorCode.none:
            return True
        if error in FENCED:
            self._fenced(f"{what}: {error.name}")
        else:
            self.tell(f"{what}: {error.name}")
            self.standing = Standing.MUST_ABORT
        return False

    def _fenced(self, why: str) -> None:
        self.tell(f"ends, {why}")
        self.standing = Standing.ENDED

    def _end_of(self, what: str, answer: Any) -> bool:
        """End the producer: it got no answer, or one that a client does not go on after."""
        said = "no answer" if answer is None else answer.error_code.name
        if answer is not None and answer.error_code not in FENCED | AGAIN:
            raise Violation(f"{self}: {what} is answered {said}")
        self._fenced(f"{what}: {said}")
        return False

    def _take(self, answer: Any) -> None:
        """Take the id and epoch of an answer. Raises `Violation` where another client has them (X8)."""
        now = int(answer.producer_id), int(answer.producer_epoch)
        if now == (self.producer_id, self.epoch):
            return
        owner = self.world.transactions.transactions.given.setdefault(now, self.who)
        if owner != self.who and not self.world.transactions.is_excused(self.name):
            raise Violation(f"X8: {owner} and {self.who} were given {now}")
        self.producer_id, self.epoch = now
        self.sequences.clear()

    async def _ask_coordinator(self, request: Any, error_of: Callable[[Any], ErrorCode]) -> Any:
        return await self._ask(request, error_of, TRANSACTION, self.name)

    async def _ask(self, request: Any, error_of: Callable[[Any], ErrorCode], kind: int, name: str) -> Any:
        """Ask a coordinator until it answers what a client does not ask again after; None after a while."""
        deadline, answer = self.world.loop.time() + _PATIENCE_S, None
        while self.world.loop.time() < deadline and self.standing is not Standing.ENDED:
            machine = await find_coordinator(self.world, self.random, kind, name)
            if machine is None:
                await asyncio.sleep(_PAUSE_S * 3)
                continue
            client = Client(machine.address)
            try:
                answer = await client.call(request, _ANSWER_S)
            except NoAnswer as e:
                self.world.trace.tell("producer", f"{self} at {machine.name}: {e}")
                await asyncio.sleep(_PAUSE_S * 2)
                continue
            finally:
                client.close()
            error = error_of(answer)
            if error is not ErrorCode.none:
                asked = type(request).__name__.removesuffix("Request")
                self.world.trace.tell("producer", f"{self}: {asked} at {machine.name}: {error.name}")
            if error in _NEVER:
                raise Violation(f"{self}: {type(request).__name__} is answered {error.name}")
            if error not in AGAIN:
                return answer
            await asyncio.sleep(self.random.random() * _PAUSE_S * 2)
        return None


class Sender(Client):
    """Connection to a leader that produces in a transaction."""

    def __init__(self, machine: Machine, producer: TransactionalProducer, topic: str) -> None:
        super().__init__(machine.address)
        self._producer = producer
        self._topic = topic

    async def produce(self, topic_id: Any, partition: int, batch: bytes, acks: int = -1) -> Produced:
        m = schema(0, 12 if self._producer.is_second else 11)
        data = m.PartitionProduceData(index=partition, records=batch)
        request = m.ProduceRequest(
            transactional_id=self._producer.name,
            acks=acks,
            timeout=timedelta(seconds=10),
            topic_data=(m.TopicProduceData(name=self._topic, partition_data=(data,)),),
        )
        found = (await self.call(request)).responses[0].partition_responses[0]
        self._producer.last_error = ErrorCode(found.error_code)
        if self._producer.last_error in _NEVER:
            raise Violation(f"{self._producer}: Produce is answered {self._producer.last_error.name}")
        return Produced(self._producer.last_error, int(found.base_offset))


def _worst(errors: list[ErrorCode]) -> ErrorCode:
    """Return the error that decides what a client does: a fatal one, one to ask again after, or none."""
    wrong = [one for one in errors if one is not ErrorCode.none]
    return next((one for one in wrong if one not in AGAIN), wrong[0] if wrong else ErrorCode.none)


def _worst_of_added(answer: Any) -> ErrorCode:
    return _worst(
        [
            ErrorCode(one.partition_error_code)
            for topic in answer.results_by_topic_v3_and_below
            for one in topic.results_by_partition
        ]
    )


def _worst_of_offsets(answer: Any) -> ErrorCode:
    return _worst([ErrorCode(one.error_code) for topic in answer.topics for one in topic.partitions])
