"""Handlers of transactional requests over one shard, without a node: for answers by the thousand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

from service.base.errors import RequestError
from service.network.request import RequestContext
from service.security.session import anonymous
from service.serving import transactional_init
from service.transactions.shard import TransactionShard
from tests.support.transaction_shards import TransactionLeader


class TransactionBroker:
    """A broker that coordinates all ids in one shard, and has these topics. No authorizer: all is allowed."""

    authorizer = None

    def __init__(self, leader: TransactionLeader, topics: Mapping[str, int]) -> None:
        self.leader = leader
        self.config = SimpleNamespace(transactions={"transaction.max.timeout.ms": 900_000})
        known = {name: SimpleNamespace(partitions=range(count)) for name, count in topics.items()}
        self.image = SimpleNamespace(topics_by_name=known)
        self.groups = SimpleNamespace(internal=SimpleNamespace(find_or_create=self._topic))
        self.transactions = _OneShard(leader)
        self.producer_ids = SimpleNamespace(next=self._next_id)

    def context(self, api_key: int, api_version: int) -> RequestContext:
        context = RequestContext(1, "127.0.0.1", 1, "PLAINTEXT", anonymous("127.0.0.1", "PLAINTEXT"))
        context.api_key, context.api_version = api_key, api_version
        return context

    async def load(self, module: str) -> ModuleType:
        assert module == transactional_init.__name__
        return transactional_init

    async def _topic(self, name: str) -> Any:
        return self.image.topics_by_name[name]

    async def _next_id(self) -> int:
        self.leader.next_id += 1
        return self.leader.next_id - 1


class _OneShard:
    def __init__(self, leader: TransactionLeader) -> None:
        self._leader = leader

    def write(self, key: str, decide: Callable[[TransactionShard, int, int], Any]) -> Any:
        leader = self._leader.leader
        answer = leader.answers[leader.ask(decide)]
        if isinstance(answer, RequestError):
            raise answer
        return answer

    def read(self, key: str, query: Callable[[TransactionShard, int], Any]) -> Any:
        leader = self._leader.leader
        return query(leader.shard, leader.now_ms)
