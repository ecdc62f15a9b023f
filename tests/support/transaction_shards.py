"""A leader of one partition of `__transaction_state`, asked as producers ask."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.transactions.config import TransactionSettings
from service.transactions.init import check_init
from service.transactions.marker_requests import PreparedTransaction
from service.transactions.metrics import TransactionMetrics
from service.transactions.requests import (
    AddPartitions,
    EndTransaction,
    InitTransactions,
    ProducerIdNeeded,
    TransactionalProducer,
)
from service.transactions.shard import TransactionShard
from tests.support.shards import ShardLeader

WAITS = "waits"


class TransactionLeader:
    """Answers are the producer that was given, None, an error code, or `WAITS`. `told`: what is to be marked.
    `next_id`: the next producer id of the controller."""

    def __init__(self, now_ms: int = 1_000_000_000, **settings: int) -> None:
        self.settings = TransactionSettings(**settings)
        self.told: list[PreparedTransaction] = []
        self.wanting_ids: list[str] = []
        self.warnings: list[str] = []
        self.metrics = TransactionMetrics()
        self.coordinator_epoch = 5
        self.next_id = 1000
        self.leader: ShardLeader[TransactionShard] = ShardLeader(self._make, now_ms)

    def _make(self) -> TransactionShard:
        return TransactionShard(
            3,
            self.coordinator_epoch,
            lambda: self.settings,
            self.metrics,
            self.told.append,
            self.wanting_ids.append,
            self.warnings.append,
            lambda: None,
        )

    @property
    def shard(self) -> TransactionShard:
        return self.leader.shard

    def init(self, name: str, producer: tuple[int, int] = (-1, -1), timeout_ms: int = 60_000) -> Any:
        request = InitTransactions(name, timeout_ms, TransactionalProducer(*producer))
        try:
            check_init(request, self.settings.transaction_max_timeout_ms)
        except RequestError as e:
            return e.code
        return self._ask(lambda shard, fresh, now: shard.init_producer_id(request, fresh, now))

    def add(
        self, name: str, producer: tuple[int, int], *partitions: tuple[str, int], version: int = 0
    ) -> Any:
        request = AddPartitions(name, TransactionalProducer(*producer), frozenset(partitions), version)
        return self._ask(lambda shard, fresh, now: shard.add_partitions(request, now))

    def verify(
        self, name: str, producer: tuple[int, int], *partitions: tuple[str, int]
    ) -> dict[tuple[str, int], ErrorCode] | ErrorCode:
        request = AddPartitions(name, TransactionalProducer(*producer), frozenset(partitions), 2)
        try:
            return self.shard.verify_partitions(request)
        except RequestError as e:
            return e.code

    def end(self, name: str, producer: tuple[int, int], is_commit: bool = True, version: int = 0) -> Any:
        request = EndTransaction(name, TransactionalProducer(*producer), is_commit, version)
        return self._ask(lambda shard, fresh, now: shard.end_transaction(request, fresh, now))

    def mark(self) -> None:
        """All markers of what was told are written."""
        told, self.told[:] = list(self.told), []
        for one in told:
            self.marked(one)

    def marked(self, one: PreparedTransaction) -> None:
        """All markers of one transaction are written."""
        self.leader.tell(lambda shard, now: shard.markers_written(*one[:3], now))

    def abort_timed_out(self, name: str) -> None:
        """The shell has got a new producer id for a transaction that is open for too long."""
        fresh, self.next_id = self.next_id, self.next_id + 1
        self.leader.tell(lambda shard, now: shard.abort_timed_out(name, fresh, now))

    def state(self, name: str) -> tuple[str, int, int]:
        """The committed state: its name, producer id and epoch."""
        there = self.shard.ids.committed(name)
        assert there is not None
        return there.state.word, there.producer_id, there.producer_epoch

    def answer(self, ticket: int) -> Any:
        if self.leader.waits(ticket):
            return WAITS
        found = self.leader.answers[ticket]
        return found.code if isinstance(found, RequestError) else found

    def _ask(self, decide: Any) -> Any:
        ticket = self.leader.ask(lambda shard, _, now: decide(shard, None, now))
        found = self.leader.answers.get(ticket)
        if isinstance(found, ProducerIdNeeded):
            fresh, self.next_id = self.next_id, self.next_id + 1
            ticket = self.leader.ask(lambda shard, _, now: decide(shard, fresh, now))
        return self.answer(ticket)
